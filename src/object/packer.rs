//! Packs the objects of one unit, with dictionaries that it makes of what comes by (D2).

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

/// How bodies are packed (D2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// By zstd, with a dictionary of what objects of the type have in common.
    #[default]
    Zstd,
    /// By lz4, with the same dictionary.
    Lz4,
    /// Not at all.
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

/// Dictionaries of one unit that may be in use at a time, beside one on its way out.
const DICTIONARIES: usize = 4;

/// A new dictionary takes the place of another one if bodies are smaller by a tenth with it,
const BETTER: (usize, usize) = (9, 10);

/// or by a quarter where the oldest has to go for it: its objects are unpacked and packed anew then, 7 µs each.
const WORTH_REPACKING: (usize, usize) = (3, 4);

/// Packs the objects of one unit. Objects share what they are packed with, so that dictionaries go with the last of them,
/// but for those that a store refers to by number.
///
/// Where as many are in use as may be and a better one is found, the oldest is on its way out: what a cache holds is packed
/// anew then, with the newest ([`Packer::repack`]), and no further one is made before it is gone. A store keeps all.
pub struct Packer {
    state: Mutex<State>,
}

struct State {
    compression: Compression,
    /// The dictionaries that are in use, or were, in the order in which they were made.
    made: Vec<Made>,
    current: Option<Arc<Dictionary>>,
    /// What a store has not written yet; `None` where there is no store.
    unwritten: Option<Vec<(u8, Vec<u8>)>>,
    sampler: Sampler,
    /// How often a dictionary was sent on its way out.
    retirements: u64,
}

struct Made {
    /// Not given to another one as long as this is in use.
    number: u8,
    used: Weak<Dictionary>,
    /// Kept for the bodies in a store.
    kept: Option<Arc<Dictionary>>,
    is_retiring: bool,
}

impl Made {
    fn is_in_use(&self) -> bool {
        self.used.strong_count() > 0
    }
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
        let (made, sampler) = (Vec::new(), Sampler::default());
        let state = State { compression, made, current: None, unwritten, sampler, retirements: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Replaces how bodies are packed from now on.
    pub fn set_compression(&self, compression: Compression) {
        lock(&self.state).compression = compression;
    }

    /// Takes up the next dictionary of an earlier run; false where it cannot be used.
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

    /// Returns the packed form of an object, the same one for as long as the object lives; the object itself where that
    /// would not be smaller, or nothing is packed. What another codec packed is packed anew, for each call.
    pub fn pack(&self, object: &Object) -> Object {
        let (codec, current) = lock(&self.state).way();
        let Some(codec) = codec else { return unpacked(object) };
        match object.packed_body() {
            Some((_, by, _)) if by == codec => object.packed_before().unwrap_or_else(|| object.clone()),
            // its own dictionary is one of such objects too
            Some((.., own)) => packed(object, codec, current.as_ref().or(own)).unwrap_or_else(|| unpacked(object)),
            None => match (object.form(), packed(object, codec, current.as_ref())) {
                (Form::Json { packed: before, .. }, Some(packed)) => before.get_or_init(|| packed).clone(),
                _ => object.clone(),
            },
        }
    }

    /// Returns how often a dictionary was sent on its way out: when that changes, what a cache holds is to be packed anew.
    pub fn retirements(&self) -> u64 {
        lock(&self.state).retirements
    }

    /// Returns the dictionary that is on its way out, if there is one.
    pub fn retiring(&self) -> Option<Arc<Dictionary>> {
        lock(&self.state).made.iter().filter(|made| made.is_retiring).find_map(|made| made.used.upgrade())
    }

    /// Returns an object packed with the newest dictionary, or unpacked if nothing is packed any more.
    pub fn repack(&self, object: &Object) -> Object {
        let (codec, current) = lock(&self.state).way();
        codec.and_then(|codec| packed(object, codec, current.as_ref())).unwrap_or_else(|| unpacked(object))
    }

    /// Hands the body of an object as it is to be stored to `take`: what packed it, if anything did, and the number of its
    /// dictionary, 0 for none. It is the body in memory if that was packed with a dictionary of this packer.
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

/// Returns an object packed that way; none where that would not be smaller.
fn packed(object: &Object, codec: Codec, dictionary: Option<&Arc<Dictionary>>) -> Option<Object> {
    let json = object.json();
    let json_bytes = u32::try_from(json.len()).ok()?;
    codec::with_packed(&json, codec, dictionary.map(|dictionary| &**dictionary), |body| {
        let of_packed =
            || Object::of_packed(object.identity(), object.who(), body, json_bytes, codec, dictionary.cloned());
        (body.len() < json.len()).then(of_packed)
    })
}

/// Returns what an object was before it was packed.
fn unpacked(object: &Object) -> Object {
    match object.form() {
        Form::Json { .. } | Form::OptedOut => object.clone(),
        Form::Packed { .. } => Object::assemble_with_who(object.identity(), &[&object.json()], object.who()),
    }
}

impl fmt::Debug for Packer {
    /// Leaves what it has seen out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Packer")
            .field("compression", &state.compression)
            .field("dictionaries", &state.made.iter().filter(|made| made.is_in_use()).count())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Returns how bodies are packed now.
    fn way(&self) -> (Option<Codec>, Option<Arc<Dictionary>>) {
        (self.compression.codec(), self.current.clone())
    }

    /// Returns whether as many dictionaries are in use as may be.
    fn is_full(&self) -> bool {
        self.made.iter().filter(|made| made.is_in_use() && !made.is_retiring).count() >= DICTIONARIES
    }

    /// Returns whether there may be one more: there is room, or the oldest can be sent on its way out.
    fn may_adopt(&self) -> bool {
        let one_retires = self.made.iter().any(|made| made.is_retiring && made.is_in_use());
        !self.is_full() || self.unwritten.is_none() && !one_retires
    }

    /// Returns the smallest number that no dictionary in use has; none where all have one.
    fn next_number(&self) -> Option<u8> {
        (1..=u8::MAX).find(|number| self.made.iter().all(|made| made.number != *number || !made.is_in_use()))
    }

    /// Takes a dictionary as the newest one. Where as many are in use as may be, the oldest is on its way out.
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

    /// Makes a dictionary of half the samples, and takes it if the other half is smaller with it.
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
