//! Packs the objects of one unit, with dictionaries that it makes of what comes by (D2).

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, Weak},
};

use super::{
    Form, Object, SharedObject,
    codec::{self, Dictionary},
};
use crate::mutex::lock;

/// How bodies are packed; `compression` of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// By zstd, with a dictionary of the unit once there was enough to make it of.
    #[default]
    Zstd,
    /// Not at all.
    None,
}

/// Dictionaries of one unit that may be in use at a time.
const DICTIONARIES: usize = 4;

/// A first dictionary is made once so many bytes of JSON have come by: a sixteenth of them is what it costs. A better one
/// is looked for each time that they have doubled,
const FIRST_AFTER_BYTES: u64 = 1 << 20;

/// or this much has come by since.
const AGAIN_AFTER_BYTES: u64 = 64 << 20;

/// What is looked at to make a dictionary: so many objects of so many bytes at most,
const SAMPLES: usize = 48;
const SAMPLES_BYTES: usize = 256 << 10;
/// none of them larger than this.
const SAMPLE_BYTES: usize = 32 << 10;

/// A new dictionary takes the place of another one if bodies are smaller by a tenth with it.
const BETTER: (usize, usize) = (9, 10);

/// Packs the objects of one unit. Objects share what they are packed with, so that dictionaries go with the last of them,
/// but for those that a store refers to by number.
pub struct Packer {
    state: Mutex<State>,
}

struct State {
    compression: Compression,
    /// The dictionaries made so far: that of number n lies at n − 1.
    made: Vec<Made>,
    current: Option<Arc<Dictionary>>,
    /// What a store has not written yet; `None` where there is no store.
    unwritten: Option<Vec<(u8, Vec<u8>)>>,
    sampler: Sampler,
}

#[derive(Default)]
struct Made {
    used: Weak<Dictionary>,
    /// Kept for the bodies in a store.
    kept: Option<Arc<Dictionary>>,
}

impl Packer {
    /// Makes a packer without a store.
    pub fn new(compression: Compression) -> Self {
        Self::with(compression, None)
    }

    /// Makes a packer whose dictionaries a store will write: see [`Packer::unwritten`].
    pub fn of_store() -> Self {
        Self::with(Compression::default(), Some(Vec::new()))
    }

    fn with(compression: Compression, unwritten: Option<Vec<(u8, Vec<u8>)>>) -> Self {
        let state = State { compression, made: Vec::new(), current: None, unwritten, sampler: Sampler::default() };
        Self { state: Mutex::new(state) }
    }

    /// Replaces how bodies are packed from now on.
    pub fn set_compression(&self, compression: Compression) {
        lock(&self.state).compression = compression;
    }

    /// Returns how bodies are packed.
    pub fn compression(&self) -> Compression {
        lock(&self.state).compression
    }

    /// Takes up the next dictionary of an earlier run; false where it cannot be used.
    pub fn restore(&self, bytes: &[u8]) -> bool {
        let mut state = lock(&self.state);
        let Some(dictionary) = state.next_number().and_then(|number| Dictionary::new(number, bytes)) else {
            return false;
        };
        state.sampler = Sampler::with_window(0, AGAIN_AFTER_BYTES);
        state.adopt(Arc::new(dictionary));
        true
    }

    /// Returns a dictionary by its number.
    pub fn dictionary(&self, number: u8) -> Option<Arc<Dictionary>> {
        let state = lock(&self.state);
        let made = state.made.get(usize::from(number).checked_sub(1)?)?;
        made.kept.clone().or_else(|| made.used.upgrade())
    }

    /// Returns the dictionaries that a store has to write before a body that is packed with one: number and bytes.
    pub fn unwritten(&self) -> Vec<(u8, Vec<u8>)> {
        lock(&self.state).unwritten.clone().unwrap_or_default()
    }

    /// Says that dictionaries up to a number are written.
    pub fn written(&self, up_to: u8) {
        if let Some(unwritten) = &mut lock(&self.state).unwritten {
            unwritten.retain(|(number, _)| *number > up_to);
        }
    }

    /// Looks at objects that will be packed, and makes a dictionary of some of them when it is time: 0.5 ms then. Those
    /// that are packed already are passed over.
    pub fn look_at<'a>(&self, objects: impl Iterator<Item = &'a SharedObject>) {
        let mut state = lock(&self.state);
        if state.compression == Compression::None {
            return;
        }
        for object in objects.filter(|object| object.packed().is_none()) {
            if state.sampler.offer(object) {
                state.renew();
            }
        }
    }

    /// Returns the packed form of an object, the same one for as long as the object lives; the object itself where that
    /// would not be smaller, or nothing is packed.
    pub fn pack(&self, object: &SharedObject) -> SharedObject {
        let state = lock(&self.state);
        let (compression, dictionary) = (state.compression, state.current.clone());
        drop(state);
        if compression == Compression::None {
            return unpacked(object);
        }
        let Form::Json(packed) = &object.form else { return Arc::clone(object) };
        if let Some(packed) = packed.get() {
            return Arc::clone(packed);
        }
        let body = codec::with_packed(&object.json(), dictionary.as_deref(), |body| {
            let json_bytes = u32::try_from(object.json_bytes()).ok()?;
            let of_packed = || Object::of_packed(object.identity(), body, json_bytes, dictionary.clone());
            (body.len() < object.json_bytes()).then(|| Arc::new(of_packed()))
        });
        match body {
            Some(body) => Arc::clone(packed.get_or_init(|| body)),
            None => Arc::clone(object),
        }
    }

    /// Hands the packed body of an object to `take`, with the number of its dictionary, 0 for none: as it is in memory if
    /// it was packed by this packer.
    pub fn with_body<T>(&self, object: &Object, take: impl FnOnce(u8, &[u8]) -> T) -> T {
        let is_ours = |dictionary: &Arc<Dictionary>| {
            self.dictionary(dictionary.number()).is_some_and(|ours| Arc::ptr_eq(&ours, dictionary))
        };
        match object.packed_body() {
            Some((body, None)) => take(0, body),
            Some((body, Some(dictionary))) if is_ours(dictionary) => take(dictionary.number(), body),
            _ => {
                let dictionary = lock(&self.state).current.clone();
                let number = dictionary.as_ref().map_or(0, |dictionary| dictionary.number());
                codec::with_packed(&object.json(), dictionary.as_deref(), |body| take(number, body))
            }
        }
    }
}

/// Returns what an object was before it was packed.
fn unpacked(object: &SharedObject) -> SharedObject {
    match &object.form {
        Form::Json(_) => Arc::clone(object),
        Form::Packed { .. } => Arc::new(Object::assemble(object.identity(), &[&object.json()])),
    }
}

impl fmt::Debug for Packer {
    /// Leaves what it has seen out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Packer")
            .field("compression", &state.compression)
            .field("dictionaries", &state.made.len())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Returns the number of the next dictionary; none while as many are in use as may be.
    fn next_number(&self) -> Option<u8> {
        let in_use = self.made.iter().filter(|made| made.used.strong_count() > 0).count();
        if in_use < DICTIONARIES { u8::try_from(self.made.len() + 1).ok() } else { None }
    }

    fn adopt(&mut self, dictionary: Arc<Dictionary>) {
        let kept = self.unwritten.is_some().then(|| Arc::clone(&dictionary));
        self.made.push(Made { used: Arc::downgrade(&dictionary), kept });
        self.current = Some(dictionary);
    }

    /// Makes a dictionary of half the samples, and takes it if the other half is smaller with it.
    fn renew(&mut self) {
        let samples = self.sampler.take();
        let Some(number) = self.next_number() else { return };
        let json: Vec<_> = samples.iter().map(|object| object.json()).collect();
        let (of, on): (Vec<_>, Vec<_>) = json.iter().enumerate().partition(|(at, _)| at % 2 == 0);
        let of: Vec<&[u8]> = of.into_iter().map(|(_, json)| &**json).collect();
        let Some(bytes) = Dictionary::choose(&of) else { return };
        let Some(dictionary) = Dictionary::new(number, &bytes) else { return };
        let size = |dictionary: Option<&Dictionary>| -> usize {
            on.iter().map(|(_, json)| codec::with_packed(json, dictionary, <[u8]>::len)).sum()
        };
        if size(Some(&dictionary)) * BETTER.1 < size(self.current.as_deref()) * BETTER.0 {
            self.adopt(Arc::new(dictionary));
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.push((number, bytes));
            }
        }
    }
}

/// Chooses objects, evenly among those that come by, and says when it is time to make something of them.
struct Sampler {
    /// Bytes of JSON that came by since the first.
    seen_bytes: u64,
    /// While that is within, objects are chosen; when it is behind, it is time. What sees little keeps nothing.
    window: Range<u64>,
    /// Objects that came by within the window.
    seen: u64,
    /// One of so many is chosen, less one.
    passed_over: u64,
    samples: Vec<SharedObject>,
    samples_bytes: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::with_window(0, FIRST_AFTER_BYTES)
    }
}

impl Sampler {
    /// Chooses among the second half of so many bytes.
    fn with_window(seen_bytes: u64, bytes: u64) -> Self {
        let window = seen_bytes + bytes / 2..seen_bytes + bytes;
        Self { seen_bytes, window, seen: 0, passed_over: 0, samples: Vec::new(), samples_bytes: 0 }
    }

    /// Looks at an object; returns whether it is time.
    fn offer(&mut self, object: &SharedObject) -> bool {
        let bytes = object.json_bytes();
        self.seen_bytes += bytes as u64;
        if self.seen_bytes < self.window.start {
            return false;
        }
        if self.seen.is_multiple_of(self.passed_over + 1) && bytes <= SAMPLE_BYTES {
            self.samples.push(Arc::clone(object));
            self.samples_bytes += bytes;
            if self.samples.len() > SAMPLES || self.samples_bytes > SAMPLES_BYTES {
                self.thin_out();
            }
        }
        self.seen += 1;
        self.seen_bytes >= self.window.end
    }

    /// Lets go of every other one.
    fn thin_out(&mut self) {
        let mut at = 0_usize;
        self.samples.retain(|_| {
            at += 1;
            at % 2 == 1
        });
        self.samples_bytes = self.samples.iter().map(|object| object.json_bytes()).sum();
        self.passed_over = self.passed_over * 2 + 1;
    }

    /// Takes what was chosen, and begins anew.
    fn take(&mut self) -> Vec<SharedObject> {
        let again = self.seen_bytes.min(AGAIN_AFTER_BYTES);
        std::mem::replace(self, Self::with_window(self.seen_bytes, again)).samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object of some 2 KB; those of one family have much in common.
    fn object(family: usize, number: usize) -> SharedObject {
        let env: Vec<String> = (0..50)
            .map(|n| format!(r#"{{"name":"{family}_{:x}","value":"{}"}}"#, (n + family) * 7919, (n ^ family) * 104_729))
            .collect();
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"p{number}","uid":"u{number}","resourceVersion":"{number}"}},"env":[{}]}}"#,
            env.join(",")
        );
        Arc::new(Object::from_json(json.as_bytes()).expect("an object"))
    }

    fn show(packer: &Packer, family: usize, count: usize) -> usize {
        let objects: Vec<_> = (0..count).map(|number| object(family, number)).collect();
        packer.look_at(objects.iter());
        let kept: Vec<_> = objects.iter().map(|object| packer.pack(object)).collect();
        for (object, packed) in objects.iter().zip(&kept) {
            assert_eq!(object.json(), packed.json());
            assert_eq!((object.identity(), object.json_bytes()), (packed.identity(), packed.json_bytes()));
        }
        kept.last().map_or(0, |kept| kept.size_bytes())
    }

    #[test]
    fn d2_an_object_is_packed_once_and_reads_as_before() {
        let packer = Packer::new(Compression::Zstd);
        let one = object(1, 7);
        let kept = packer.pack(&one);
        assert!(Arc::ptr_eq(&kept, &packer.pack(&one)) && Arc::ptr_eq(&kept, &packer.pack(&kept)));
        assert!(kept.size_bytes() * 2 < one.size_bytes() && kept.same_version(&one));
        assert_eq!(kept.key(), one.key());
        assert_eq!(kept.value().expect("JSON"), one.value().expect("JSON"));
        let tiny = Arc::new(Object::from_json(br#"{"apiVersion":"v","kind":"K","metadata":{"name":"n"}}"#).unwrap());
        assert!(packer.pack(&tiny).size_bytes() <= tiny.size_bytes(), "what would grow stays as it is");
        let none = Packer::new(Compression::None);
        assert!(Arc::ptr_eq(&none.pack(&tiny), &tiny));
        assert!(Arc::ptr_eq(&none.pack(&one), &one), "although it is packed elsewhere");
        let whole = none.pack(&kept);
        assert_eq!((whole.size_bytes(), whole.json()), (one.size_bytes(), one.json()));
    }

    #[test]
    fn d2_a_dictionary_is_made_within_the_first_list_and_another_when_bodies_change() {
        let packer = Packer::new(Compression::Zstd);
        let alone = show(&packer, 1, 1);
        let few = show(&packer, 1, 100);
        assert!(few + 10 > alone, "few bytes make no dictionary: {few}");
        let many = show(&packer, 1, 1000);
        assert!(many * 3 < alone, "{many} of {alone}");
        let before = show(&packer, 2, 1);
        (0..3).for_each(|_| learn(&packer, 2));
        assert_eq!(lock(&packer.state).made.len(), 2, "what is as good is not replaced");
        let after = show(&packer, 2, 1);
        assert!(after * 2 < before, "{after} of {before}");
        assert!(packer.dictionary(1).is_none(), "nothing is packed with the first any more");
        assert!(packer.dictionary(2).is_some() && packer.dictionary(3).is_none() && packer.dictionary(0).is_none());
    }

    /// Lets it see some objects, and look for a better dictionary at once.
    fn learn(packer: &Packer, family: usize) {
        let mut state = lock(&packer.state);
        state.sampler.window = 0..u64::MAX;
        for number in 0..30 {
            state.sampler.offer(&object(family, number));
        }
        state.renew();
    }

    #[test]
    fn d2_a_better_dictionary_is_looked_for_each_time_that_the_bytes_have_doubled() {
        let mut sampler = Sampler::default();
        let object = object(1, 1);
        let mut due = Vec::new();
        for at in 0..200_000_u64 {
            if sampler.offer(&object) {
                let chosen = sampler.take();
                assert!(chosen.len() > 20 && chosen.len() <= SAMPLES, "{}", chosen.len());
                due.push(((at + 1) * object.json_bytes() as u64) >> 20);
            }
            assert!(sampler.samples_bytes <= SAMPLES_BYTES);
        }
        assert_eq!(due[..8], [1, 2, 4, 8, 16, 32, 64, 128]);
        assert_eq!(due[8] - due[7], 64);
    }

    #[test]
    fn d7_a_unit_has_four_dictionaries_in_use_at_most() {
        let packer = Packer::of_store();
        (1..9).for_each(|family| learn(&packer, family * 100));
        let numbers: Vec<u8> = packer.unwritten().iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        packer.written(3);
        assert_eq!(packer.unwritten().len(), 1);
    }

    #[test]
    fn d7_a_store_takes_bodies_as_they_are_packed_and_reads_them_after_a_restart() {
        let (packer, other) = (Packer::of_store(), Packer::of_store());
        show(&packer, 1, 1000);
        show(&other, 1, 1000);
        let restarted = Packer::of_store();
        for (_, bytes) in packer.unwritten() {
            assert!(restarted.restore(&bytes));
        }
        assert!(restarted.unwritten().is_empty(), "it lies there already");
        let read = |by: &Packer, object: &Object| {
            let (number, body) = by.with_body(object, |number, body| (number, body.to_vec()));
            let dictionary = (number > 0).then(|| restarted.dictionary(number).expect("it was restored"));
            codec::of_packed(object.identity(), &body, object.json_bytes(), dictionary).expect("a body")
        };
        let foreign = other.pack(&object(1, 5000));
        let own = packer.pack(&object(1, 5000));
        let fresh = object(1, 5000);
        let fresh_and_packed = object(1, 5000);
        packer.pack(&fresh_and_packed);
        for object in [&own, &foreign, &fresh, &fresh_and_packed] {
            assert_eq!(read(&packer, object).json(), fresh.json());
        }
        let (len, same) = own.packed_body().map(|(body, _)| (body.len(), body.to_vec())).expect("it is packed");
        packer.with_body(&own, |number, body| assert_eq!((number, body.len(), body), (1, len, &same[..])));
    }
}
