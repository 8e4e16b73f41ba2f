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

use self::sampler::Sampler;
pub use super::codec::Compression;
use super::{
    Form, Object,
    codec::{self, Dictionary},
};
use crate::mutex::lock;

/// Maximum number of dictionaries in use in one unit. A dictionary that is being retired is not counted.
const DICTIONARIES: usize = 4;

/// Size ratio for a new dictionary: it is adopted if bodies get at least a tenth smaller.
const BETTER: (usize, usize) = (9, 10);

/// Size ratio for a new dictionary that retires the oldest one: it is adopted only if bodies get at least a quarter smaller,
/// because repacking takes 7 µs per object.
const WORTH_REPACKING: (usize, usize) = (3, 4);

/// Packer for the objects of one unit. Packed objects share ownership of their dictionary, so a dictionary is freed with its last
/// object. A packer of a store keeps all its dictionaries, because the store refers to them by number.
///
/// Without a store, a better dictionary may be found while the maximum number is in use. The oldest dictionary is then retired: the
/// cache repacks the objects of the oldest dictionary with the newest one ([`Packer::repack`]). No further dictionary is made until
/// the retired one is freed.
pub struct Packer {
    state: Mutex<State>,
}

struct State {
    compression: Compression,
    /// Dictionaries that are or were in use, in order of creation.
    made: Vec<Weak<Dictionary>>,
    /// Number of the newest dictionary.
    number: u8,
    current: Option<Arc<Dictionary>>,
    /// Dictionary whose objects are repacked.
    retiring: Weak<Dictionary>,
    /// All dictionaries, for the bodies in a store; empty without a store.
    kept: Vec<Arc<Dictionary>>,
    /// Dictionaries that the store has not written yet; `None` without a store.
    unwritten: Option<Vec<(u8, Vec<u8>)>>,
    sampler: Sampler,
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
        let (made, number, current, retiring, kept, sampler) = <_>::default();
        Self { state: Mutex::new(State { compression, made, number, current, retiring, kept, unwritten, sampler }) }
    }

    /// Sets the compression of later bodies.
    pub fn set_compression(&self, compression: Compression) {
        lock(&self.state).compression = compression;
    }

    /// Restores the next dictionary of an earlier run; returns false if it cannot be used.
    pub fn restore(&self, bytes: &[u8]) -> bool {
        let mut state = lock(&self.state);
        let dictionary = Dictionary::new(state.number.wrapping_add(1), bytes).filter(|_| !state.is_full());
        let Some(dictionary) = dictionary else { return false };
        state.sampler = Sampler::of_restored();
        state.adopt(Arc::new(dictionary));
        true
    }

    /// Returns a dictionary by its number.
    pub fn dictionary(&self, number: u8) -> Option<Arc<Dictionary>> {
        lock(&self.state).made.iter().filter_map(Weak::upgrade).find(|dictionary| dictionary.number() == number)
    }

    /// Returns the number and bytes of each dictionary that the store has not written. The store must write a dictionary before a
    /// body that uses it.
    pub fn unwritten(&self) -> Vec<(u8, Vec<u8>)> {
        lock(&self.state).unwritten.clone().unwrap_or_default()
    }

    /// Marks all dictionaries up to number `up_to` as written by the store.
    pub fn written(&self, up_to: u8) {
        if let Some(unwritten) = &mut lock(&self.state).unwritten {
            unwritten.retain(|(number, _)| *number > up_to);
        }
    }

    /// Takes samples of objects that will be packed; skips packed objects. Sometimes makes a dictionary from the samples, which
    /// takes 0.5 ms.
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

    /// Returns the packed form of an object. While the object lives, further calls return the same form. Returns the object itself
    /// if packing is off or would not make it smaller. A body packed with another compression is packed again at each call.
    pub fn pack(&self, object: &Object) -> Object {
        let (compression, current) = lock(&self.state).way();
        match object.packed_body() {
            Some((_, by, _)) if by == compression => object.packed_before().unwrap_or_else(|| object.clone()),
            // without a current dictionary, use that of the body, which was made for the same type
            Some((.., own)) => {
                packed(object, compression, current.as_ref().or(own)).unwrap_or_else(|| unpacked(object))
            }
            None => match (object.form(), packed(object, compression, current.as_ref())) {
                (Form::Json { packed: before, .. }, Some(packed)) => before.get_or_init(|| packed).clone(),
                _ => object.clone(),
            },
        }
    }

    /// Returns the dictionary that is being retired, if any. The cache must repack the objects that use it.
    pub fn retiring(&self) -> Option<Arc<Dictionary>> {
        lock(&self.state).retiring.upgrade()
    }

    /// Returns an object packed with the newest dictionary, or unpacked if packing is off.
    pub fn repack(&self, object: &Object) -> Object {
        let (compression, current) = lock(&self.state).way();
        packed(object, compression, current.as_ref()).unwrap_or_else(|| unpacked(object))
    }

    /// Packs an object for the store: calls `take` with the compression, the number of the dictionary (0: none) and the packed
    /// body. A packed body in memory is reused if it has the current compression, and either no dictionary or one of this packer.
    pub fn with_body<T>(&self, object: &Object, take: impl FnOnce(Compression, u8, &[u8]) -> T) -> T {
        let is_ours = |dictionary: &Arc<Dictionary>| {
            self.dictionary(dictionary.number()).is_some_and(|ours| Arc::ptr_eq(&ours, dictionary))
        };
        let (compression, current) = lock(&self.state).way();
        match object.packed_body() {
            Some((body, by, None)) if by == compression => take(compression, 0, body),
            Some((body, by, Some(dictionary))) if by == compression && is_ours(dictionary) => {
                take(compression, dictionary.number(), body)
            }
            _ => {
                let number = current.as_ref().map_or(0, |dictionary| dictionary.number());
                codec::with_packed(&object.json(), compression, current.as_deref(), |body| {
                    take(compression, number, body)
                })
            }
        }
    }
}

/// Returns an object packed with this compression and dictionary; `None` if that would not make it smaller.
fn packed(object: &Object, compression: Compression, dictionary: Option<&Arc<Dictionary>>) -> Option<Object> {
    let json = object.json();
    let json_bytes = u32::try_from(json.len()).ok()?;
    codec::with_packed(&json, compression, dictionary.map(|dictionary| &**dictionary), |body| {
        let of_packed =
            || Object::of_packed(object.identity(), object.who(), body, json_bytes, compression, dictionary.cloned());
        (body.len() < json.len()).then(of_packed)
    })
}

/// Returns the unpacked form of an object.
fn unpacked(object: &Object) -> Object {
    match object.form() {
        Form::Json { .. } | Form::OptedOut | Form::Unread => object.clone(),
        Form::Packed { .. } => Object::assemble_with_who(object.identity(), &[&object.json()], object.who()),
    }
}

impl fmt::Debug for Packer {
    /// Formats the packer without its samples.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Packer")
            .field("compression", &state.compression)
            .field("dictionaries", &state.made.iter().filter(|made| is_in_use(made)).count())
            .finish_non_exhaustive()
    }
}

fn is_in_use(dictionary: &Weak<Dictionary>) -> bool {
    dictionary.strong_count() > 0
}

impl State {
    /// Returns the current compression and dictionary.
    fn way(&self) -> (Compression, Option<Arc<Dictionary>>) {
        let current = self.current.as_ref().filter(|_| self.compression != Compression::None);
        (self.compression, current.cloned())
    }

    /// Returns true if the maximum number of dictionaries is in use.
    fn is_full(&self) -> bool {
        self.made.iter().filter(|made| is_in_use(made)).count() >= DICTIONARIES
    }

    /// Returns true if one more dictionary is allowed: there is room, or the oldest one can be retired.
    fn may_adopt(&self) -> bool {
        !self.is_full() || self.unwritten.is_none() && !is_in_use(&self.retiring)
    }

    /// Adopts a dictionary as the newest one. If the maximum number is in use, retires the oldest.
    fn adopt(&mut self, dictionary: Arc<Dictionary>) {
        self.current = None;
        self.made.retain(is_in_use);
        if self.is_full() {
            self.retiring = self.made.remove(0);
        }
        self.made.push(Arc::downgrade(&dictionary));
        self.number = dictionary.number();
        if self.unwritten.is_some() {
            self.kept.push(Arc::clone(&dictionary));
        }
        self.current = Some(dictionary);
    }

    /// Makes a dictionary from half the samples, and adopts it if it makes the other half smaller by enough: see [`BETTER`] and
    /// [`WORTH_REPACKING`].
    fn renew(&mut self) {
        let samples = self.sampler.take();
        if !self.may_adopt() {
            return;
        }
        let json: Vec<_> = samples.iter().map(|object| object.json()).collect();
        let (of, on): (Vec<_>, Vec<_>) = json.iter().enumerate().partition(|(at, _)| at % 2 == 0);
        let of: Vec<&[u8]> = of.into_iter().map(|(_, json)| &**json).collect();
        let Some(bytes) = Dictionary::choose(&of) else { return };
        // Only a store refers to dictionaries by number, and it has few of them.
        let number = self.number.wrapping_add(1);
        let Some(dictionary) = Dictionary::new(number, &bytes) else { return };
        let size = |dictionary: Option<&Dictionary>| -> usize {
            on.iter().map(|(_, json)| codec::with_packed(json, self.compression, dictionary, <[u8]>::len)).sum()
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
