//! What several handlers send alike is computed once: patches and lists of changes of the last events.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, OnceLock},
};

use bytes::Bytes;

use crate::{
    journal::{Record, Sequence, UnitId},
    mutex::lock,
    object::Object,
};

/// Bytes that are kept. Handlers that are further apart than this compute for themselves.
const BYTES_MAX: usize = 2 << 20;
/// What an entry takes beside its body.
const ENTRY_BYTES: usize = 200;

/// What was computed of the last events, for all handlers of an engine. What was computed first goes first.
#[derive(Clone, Debug, Default)]
pub struct SharedBodies {
    recent: Arc<Mutex<Recent>>,
}

/// Of which event, and what. A lane that has merged events has another old state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    what: &'static str,
    unit: UnitId,
    sequence: Sequence,
    old: Box<str>,
    new: Box<str>,
}

impl Key {
    /// Makes the key of an update; `None` for what is none.
    pub(super) fn of(what: &'static str, record: &Record) -> Option<Self> {
        let version = |object: &Object| Box::from(object.resource_version());
        let (old, new) = (version(record.old()?), version(record.object()?));
        Some(Self { what, unit: record.unit, sequence: record.sequence, old, new })
    }
}

/// A body that is there or is being computed; an error where that failed.
type Slot = Arc<OnceLock<Result<Option<Bytes>, Failed>>>;

/// It cannot be computed. Whoever asks finds out why, by trying.
#[derive(Clone, Copy, Debug)]
struct Failed;

#[derive(Debug, Default)]
struct Recent {
    slots: HashMap<Key, Slot>,
    /// From the first to the last, with what each takes.
    order: VecDeque<(Key, usize)>,
    bytes: usize,
}

impl SharedBodies {
    /// Returns what was computed, by format.
    #[cfg(test)]
    pub(super) fn computed(&self) -> Vec<&'static str> {
        let mut formats: Vec<_> = lock(&self.recent).order.iter().map(|(key, _)| key.what).collect();
        formats.sort_unstable();
        formats
    }

    /// Returns what `compute` makes, or made before under this key; that there is none is kept too. Blocks while another
    /// thread computes it.
    pub(super) fn get<E>(
        &self,
        key: Key,
        compute: impl FnOnce() -> Result<Option<Bytes>, E>,
    ) -> Result<Option<Bytes>, E> {
        let slot = Arc::clone(lock(&self.recent).slots.entry(key.clone()).or_default());
        let (mut compute, mut error) = (Some(compute), None);
        let made = slot.get_or_init(|| {
            let made = compute.take().map_or(Err(Failed), |compute| {
                compute().map_err(|why| {
                    error = Some(why);
                    Failed
                })
            });
            lock(&self.recent).add(key, &made);
            made
        });
        match (made, error, compute) {
            (_, Some(error), _) => Err(error),
            (Ok(body), ..) => Ok(body.clone()),
            (Err(Failed), None, Some(compute)) => compute(),
            (Err(Failed), None, None) => Ok(None),
        }
    }
}

impl Recent {
    /// Notes what was computed, and forgets what is too much. What failed is computed again for whoever asks.
    fn add(&mut self, key: Key, made: &Result<Option<Bytes>, Failed>) {
        let Ok(body) = made else {
            self.slots.remove(&key);
            return;
        };
        let bytes = body.as_ref().map_or(0, Bytes::len) + ENTRY_BYTES;
        self.bytes += bytes;
        self.order.push_back((key, bytes));
        while self.bytes > BYTES_MAX
            && let Some((oldest, bytes)) = self.order.pop_front()
        {
            self.slots.remove(&oldest);
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::mpsc, thread};

    use super::*;

    fn key(sequence: u64) -> Key {
        Key { what: "diff", unit: UnitId(0), sequence: Sequence(sequence), old: "1".into(), new: "2".into() }
    }

    fn body(byte: u8, bytes: usize) -> Bytes {
        vec![byte; bytes].into()
    }

    #[test]
    fn what_several_want_is_computed_once_even_at_the_same_time() {
        let shared = SharedBodies::default();
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let other = shared.clone();
        let first = thread::spawn(move || {
            let compute = || {
                begun.send(()).unwrap();
                goes_on.recv().unwrap();
                Ok::<_, Infallible>(Some(body(1, 3)))
            };
            other.get(key(1), compute).unwrap()
        });
        begins.recv().unwrap();
        let second = thread::spawn(move || shared.get(key(1), || -> Result<_, Infallible> { panic!("a second time") }));
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Some(body(1, 3)));
        assert_eq!(second.join().unwrap(), Ok(Some(body(1, 3))));
    }

    #[test]
    fn that_there_is_none_is_kept_and_a_failure_is_not() {
        let shared = SharedBodies::default();
        assert_eq!(shared.get(key(1), || Ok::<_, &str>(None)), Ok(None));
        assert_eq!(shared.get(key(1), || Err("asked again")), Ok(None));
        assert_eq!(shared.get(key(2), || Err("damaged")), Err("damaged"));
        assert_eq!(shared.get(key(2), || Ok::<_, &str>(Some(body(2, 1)))), Ok(Some(body(2, 1))));
    }

    #[test]
    fn another_old_state_is_another_key() {
        let shared = SharedBodies::default();
        let merged = Key { old: "0".into(), ..key(1) };
        assert_eq!(shared.get(key(1), || Ok::<_, Infallible>(Some(body(1, 1)))), Ok(Some(body(1, 1))));
        assert_eq!(shared.get(merged, || Ok::<_, Infallible>(Some(body(2, 1)))), Ok(Some(body(2, 1))));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes() {
        let shared = SharedBodies::default();
        let third = BYTES_MAX / 3;
        for sequence in 1..=4 {
            assert!(shared.get(key(sequence), || Ok::<_, Infallible>(Some(body(1, third)))).unwrap().is_some());
        }
        assert!(lock(&shared.recent).bytes <= BYTES_MAX);
        let is_kept = |sequence| shared.get(key(sequence), || Err(())).is_ok();
        assert_eq!([1, 2, 3, 4].map(is_kept), [false, false, true, true]);
        shared.get(key(9), || Ok::<_, Infallible>(Some(body(1, BYTES_MAX * 2)))).unwrap();
        let recent = lock(&shared.recent);
        assert_eq!((recent.slots.len(), recent.order.len(), recent.bytes), (0, 0, 0));
    }
}
