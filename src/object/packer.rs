//! Packing of the objects of one unit, with dictionaries built from sampled objects.

mod sampler;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::sampler::Sampler;
use super::{
    Form, Object,
    codec::{self, Codec, Dictionary},
};
use crate::mutex::lock;

/// Compression of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// zstd, with a dictionary of samples of the type.
    #[default]
    Zstd,
    /// lz4, with the same dictionary.
    Lz4,
    /// No compression.
    None,
}

impl Compression {
    fn codec(self) -> Option<Codec> {
        match self {
            Self::Zstd => Some(Codec::Zstd),
            Self::Lz4 => Some(Codec::Lz4),
            Self::None => None,
        }
    }
}

/// Number of dictionaries of one unit in use at a time, besides one that is being retired.
const DICTIONARIES: usize = 4;

/// Size ratio for a new dictionary: it is adopted if bodies get at least a tenth smaller.
const BETTER: (usize, usize) = (9, 10);

/// Size ratio for a new dictionary that retires the oldest one: a quarter smaller, because repacking takes 7 µs per
/// object.
const WORTH_REPACKING: (usize, usize) = (3, 4);

/// Packer for the objects of one unit. Objects share ownership of their dictionary, so it is freed with the last of them.
/// Dictionaries that a store refers to by number are kept.
///
/// If all dictionaries are in use and a better one is found, the oldest one is retired: the cache repacks its objects with
/// the newest one ([`Packer::repack`]). No further dictionary is made until the retired one is freed. A store keeps all
/// its dictionaries.
pub struct Packer {
    state: Mutex<State>,
}

struct State {
    compression: Compression,
    /// Dictionaries that are or were in use, in order of creation.
    made: Vec<Made>,
    current: Option<Arc<Dictionary>>,
    /// Dictionaries that the store has not written yet; `None` without a store.
    unwritten: Option<Vec<(u8, Vec<u8>)>>,
    sampler: Sampler,
    /// Number of retirements so far.
    retirements: u64,
}

struct Made {
    /// Number of the dictionary. It is not reused while the dictionary is in use.
    number: u8,
    used: Weak<Dictionary>,
    /// Handle that keeps the dictionary for bodies in a store.
    kept: Option<Arc<Dictionary>>,
    is_retiring: bool,
}

impl Made {
    fn is_in_use(&self) -> bool {
        self.used.strong_count() > 0
    }
}

impl Packer {
    /// Creates a packer without a store.
    pub fn new(compression: Compression) -> Self {
        Self::with(compression, None)
    }

    /// Creates a packer whose dictionaries are written by a store: see [`Packer::unwritten`].
    pub fn of_store() -> Self {
        Self::with(Compression::default(), Some(Vec::new()))
    }

    fn with(compression: Compression, unwritten: Option<Vec<(u8, Vec<u8>)>>) -> Self {
        let (made, sampler) = (Vec::new(), Sampler::default());
        let state = State { compression, made, current: None, unwritten, sampler, retirements: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Sets the compression of later bodies.
    pub fn set_compression(&self, compression: Compression) {
        lock(&self.state).compression = compression;
    }

    /// Restores the next dictionary of an earlier run; returns false if it cannot be used.
    pub fn restore(&self, bytes: &[u8]) -> bool {
        let mut state = lock(&self.state);
        let number = state.next_number().filter(|_| !state.is_full());
        let Some(dictionary) = number.and_then(|number| Dictionary::new(number, bytes)) else { return false };
        state.sampler = Sampler::of_restored();
        state.adopt(Arc::new(dictionary));
        true
    }

    /// Returns a dictionary by its number.
    pub fn dictionary(&self, number: u8) -> Option<Arc<Dictionary>> {
        let state = lock(&self.state);
        let made = state.made.iter().find(|made| made.number == number)?;
        made.kept.clone().or_else(|| made.used.upgrade())
    }

    /// Returns the number and bytes of each dictionary that the store has not written. It must write them before a body that
    /// uses them.
    pub fn unwritten(&self) -> Vec<(u8, Vec<u8>)> {
        lock(&self.state).unwritten.clone().unwrap_or_default()
    }

    /// Records that dictionaries up to a number are written.
    pub fn written(&self, up_to: u8) {
        if let Some(unwritten) = &mut lock(&self.state).unwritten {
            unwritten.retain(|(number, _)| *number > up_to);
        }
    }

    /// Samples objects that will be packed. Sometimes makes a dictionary from the samples, which takes 0.5 ms. Packed objects
    /// are skipped.
    pub fn look_at<'a>(&self, objects: impl Iterator<Item = &'a Object>) {
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

    /// Returns the packed form of an object; while the object lives, always the same form. Returns the object itself if packing
    /// is off or would not make it smaller. A body packed with another codec is packed again at each call.
    pub fn pack(&self, object: &Object) -> Object {
        let (codec, current) = lock(&self.state).way();
        let Some(codec) = codec else { return unpacked(object) };
        match object.packed_body() {
            Some((_, by, _)) if by == codec => object.packed_before().unwrap_or_else(|| object.clone()),
            // its own dictionary also fits this type
            Some((.., own)) => packed(object, codec, current.as_ref().or(own)).unwrap_or_else(|| unpacked(object)),
            None => match (object.form(), packed(object, codec, current.as_ref())) {
                (Form::Json { packed: before, .. }, Some(packed)) => before.get_or_init(|| packed).clone(),
                _ => object.clone(),
            },
        }
    }

    /// Returns the number of retirements. When it changes, the cache must repack its objects.
    pub fn retirements(&self) -> u64 {
        lock(&self.state).retirements
    }

    /// Returns the dictionary that is being retired, if any.
    pub fn retiring(&self) -> Option<Arc<Dictionary>> {
        lock(&self.state).made.iter().filter(|made| made.is_retiring).find_map(|made| made.used.upgrade())
    }

    /// Returns an object packed with the newest dictionary, or unpacked if packing is off.
    pub fn repack(&self, object: &Object) -> Object {
        let (codec, current) = lock(&self.state).way();
        codec.and_then(|codec| packed(object, codec, current.as_ref())).unwrap_or_else(|| unpacked(object))
    }

    /// Passes the body for the store to `take`, with its codec (`None`: unpacked) and the number of its dictionary (0:
    /// none). A packed body in memory is reused if it has the current codec, and no dictionary or one of this packer.
    pub fn with_body<T>(&self, object: &Object, take: impl FnOnce(Option<Codec>, u8, &[u8]) -> T) -> T {
        let is_ours = |dictionary: &Arc<Dictionary>| {
            self.dictionary(dictionary.number()).is_some_and(|ours| Arc::ptr_eq(&ours, dictionary))
        };
        let (codec, current) = lock(&self.state).way();
        let Some(codec) = codec else { return take(None, 0, &object.json()) };
        match object.packed_body() {
            Some((body, by, None)) if by == codec => take(Some(codec), 0, body),
            Some((body, by, Some(dictionary))) if by == codec && is_ours(dictionary) => {
                take(Some(codec), dictionary.number(), body)
            }
            _ => {
                let number = current.as_ref().map_or(0, |dictionary| dictionary.number());
                codec::with_packed(&object.json(), codec, current.as_deref(), |body| take(Some(codec), number, body))
            }
        }
    }
}

/// Returns an object packed with this codec and dictionary; `None` if that would not make it smaller.
fn packed(object: &Object, codec: Codec, dictionary: Option<&Arc<Dictionary>>) -> Option<Object> {
    let json = object.json();
    let json_bytes = u32::try_from(json.len()).ok()?;
    codec::with_packed(&json, codec, dictionary.map(|dictionary| &**dictionary), |body| {
        let of_packed =
            || Object::of_packed(object.identity(), object.who(), body, json_bytes, codec, dictionary.cloned());
        (body.len() < json.len()).then(of_packed)
    })
}

/// Returns the unpacked form of an object.
fn unpacked(object: &Object) -> Object {
    match object.form() {
        Form::Json { .. } | Form::OptedOut => object.clone(),
        Form::Packed { .. } => Object::assemble_with_who(object.identity(), &[&object.json()], object.who()),
    }
}

impl fmt::Debug for Packer {
    /// Formats the packer without its samples.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Packer")
            .field("compression", &state.compression)
            .field("dictionaries", &state.made.iter().filter(|made| made.is_in_use()).count())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Returns the current codec and dictionary.
    fn way(&self) -> (Option<Codec>, Option<Arc<Dictionary>>) {
        (self.compression.codec(), self.current.clone())
    }

    /// Returns true if the maximum number of dictionaries is in use.
    fn is_full(&self) -> bool {
        self.made.iter().filter(|made| made.is_in_use() && !made.is_retiring).count() >= DICTIONARIES
    }

    /// Returns true if one more dictionary is allowed: there is room, or the oldest one can be retired.
    fn may_adopt(&self) -> bool {
        let one_retires = self.made.iter().any(|made| made.is_retiring && made.is_in_use());
        !self.is_full() || self.unwritten.is_none() && !one_retires
    }

    /// Returns the smallest number that no used dictionary has; `None` if all numbers are taken.
    fn next_number(&self) -> Option<u8> {
        (1..=u8::MAX).find(|number| self.made.iter().all(|made| made.number != *number || !made.is_in_use()))
    }

    /// Adopts a dictionary as the newest one. If the maximum number is in use, retires the oldest.
    fn adopt(&mut self, dictionary: Arc<Dictionary>) {
        self.current = None;
        self.made.retain(Made::is_in_use);
        if self.is_full()
            && let Some(oldest) = self.made.iter_mut().find(|made| !made.is_retiring)
        {
            oldest.is_retiring = true;
            self.retirements += 1;
        }
        let kept = self.unwritten.is_some().then(|| Arc::clone(&dictionary));
        let (number, used) = (dictionary.number(), Arc::downgrade(&dictionary));
        self.made.push(Made { number, used, kept, is_retiring: false });
        self.current = Some(dictionary);
    }

    /// Makes a dictionary from half the samples, and adopts it if it makes the other half smaller.
    fn renew(&mut self) {
        let samples = self.sampler.take();
        let number = self.next_number().filter(|_| self.may_adopt());
        let (Some(number), Some(codec)) = (number, self.compression.codec()) else { return };
        let json: Vec<_> = samples.iter().map(|object| object.json()).collect();
        let (of, on): (Vec<_>, Vec<_>) = json.iter().enumerate().partition(|(at, _)| at % 2 == 0);
        let of: Vec<&[u8]> = of.into_iter().map(|(_, json)| &**json).collect();
        let Some(bytes) = Dictionary::choose(&of) else { return };
        let Some(dictionary) = Dictionary::new(number, &bytes) else { return };
        let size = |dictionary: Option<&Dictionary>| -> usize {
            on.iter().map(|(_, json)| codec::with_packed(json, codec, dictionary, <[u8]>::len)).sum()
        };
        let (new, old) = if self.is_full() { WORTH_REPACKING } else { BETTER };
        if size(Some(&dictionary)) * old < size(self.current.as_deref()) * new {
            self.adopt(Arc::new(dictionary));
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.push((number, bytes));
            }
        }
    }
}
