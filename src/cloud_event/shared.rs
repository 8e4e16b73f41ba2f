//! Cache of computed bodies, so that handlers with the same format compute a patch or list of changes once.

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

/// Maximum size of the cache, in bytes. Handlers that are further apart than this compute their bodies themselves.
const BYTES_MAX: usize = 2 << 20;
/// Overhead of an entry, without its body.
const ENTRY_BYTES: usize = 200;

/// Bodies computed for the latest events, shared by all handlers of an engine. The oldest body is evicted first.
#[derive(Clone, Debug, Default)]
pub struct SharedBodies {
    recent: Arc<Mutex<Recent>>,
}

/// Event and format of a body. The previous object is part of the key, because a handler with coalesced events has
/// another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    what: &'static str,
    unit: UnitId,
    sequence: Sequence,
    old: Box<str>,
    new: Box<str>,
}

impl Key {
    /// Makes the key of an update; `None` for other changes.
    pub(super) fn of(what: &'static str, record: &Record) -> Option<Self> {
        let version = |object: &Object| Box::from(object.resource_version());
        let (old, new) = (version(record.old()?), version(record.object()?));
        Some(Self { what, unit: record.unit, sequence: record.sequence, old, new })
    }
}

/// Body that is computed or being computed; an error if that failed.
type Slot = Arc<OnceLock<Result<Option<Bytes>, Failed>>>;

/// Failure marker. The next caller computes the body again to get the error.
#[derive(Clone, Copy, Debug)]
struct Failed;

#[derive(Debug, Default)]
struct Recent {
    slots: HashMap<Key, Slot>,
    /// Keys and sizes of the bodies, the oldest first.
    order: VecDeque<(Key, usize)>,
    bytes: usize,
}

impl SharedBodies {
    /// Returns the formats of the cached bodies.
    #[cfg(test)]
    pub(super) fn computed(&self) -> Vec<&'static str> {
        let mut formats: Vec<_> = lock(&self.recent).order.iter().map(|(key, _)| key.what).collect();
        formats.sort_unstable();
        formats
    }

    /// Returns the cached body of this key, or computes it. An absent body (`None`) is cached too. Blocks while another
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
    /// Stores a computed body, and evicts the oldest ones beyond the limit. Failures are not stored.
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
    fn concurrent_requests_compute_shared_body_once() {
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
    fn absence_is_cached_and_failure_is_not() {
        let shared = SharedBodies::default();
        assert_eq!(shared.get(key(1), || Ok::<_, &str>(None)), Ok(None));
        assert_eq!(shared.get(key(1), || Err("asked again")), Ok(None));
        assert_eq!(shared.get(key(2), || Err("damaged")), Err("damaged"));
        assert_eq!(shared.get(key(2), || Ok::<_, &str>(Some(body(2, 1)))), Ok(Some(body(2, 1))));
    }

    #[test]
    fn different_old_state_has_different_key() {
        let shared = SharedBodies::default();
        let merged = Key { old: "0".into(), ..key(1) };
        assert_eq!(shared.get(key(1), || Ok::<_, Infallible>(Some(body(1, 1)))), Ok(Some(body(1, 1))));
        assert_eq!(shared.get(merged, || Ok::<_, Infallible>(Some(body(2, 1)))), Ok(Some(body(2, 1))));
    }

    #[test]
    fn shared_bodies_are_bounded_and_oldest_is_evicted() {
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
