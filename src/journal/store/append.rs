//! One append is one batch of fjall: heads, bodies, states of objects, versions reached.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, PoisonError, atomic::Ordering::SeqCst},
};

use fjall::OwnedWriteBatch;
use foldhash::fast::RandomState;

use super::{
    Append, Fault, Files, Inner, Unit,
    body::{Pointer, encode_body, object_key, old_key, sequence_key},
    record::{Body, Old, StoredHead},
    state,
    tail::{MARK_KEY, Mark},
};
use crate::{
    indexer::{Cause, Change},
    journal::{ChangeKind, UnitId},
    mutex::lock,
    object::{Object, SharedObject, codec::Dictionary},
};

/// A dictionary is made when this many bodies of a unit have come by,
const SAMPLED: u32 = 1000;

/// of every so many of them.
const SAMPLE_EVERY: u32 = 83;

/// Chooses the bodies that a unit's dictionary is made of.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    seen: u32,
    samples: Vec<SharedObject>,
    /// The dictionary that no batch has written yet.
    unwritten: Option<Vec<u8>>,
}

impl Sampler {
    /// A unit that has its dictionary samples no more.
    pub(super) fn done() -> Self {
        Self { seen: SAMPLED, ..Self::default() }
    }

    /// Looks at a body, and chooses a dictionary once it has seen enough of them.
    fn offer(&mut self, object: &SharedObject) -> Option<Vec<u8>> {
        if self.seen >= SAMPLED {
            return None;
        }
        if self.seen.is_multiple_of(SAMPLE_EVERY) {
            self.samples.push(Arc::clone(object));
        }
        self.seen += 1;
        if self.seen < SAMPLED {
            return None;
        }
        let samples: Vec<_> = mem::take(&mut self.samples).iter().map(|object| object.json().into_owned()).collect();
        Dictionary::choose(&samples)
    }
}

/// The number of the dictionary in use. There is one a unit; there may be more when a form comes that makes new ones.
const DICTIONARY: u8 = 1;

/// The key of a unit's dictionary.
pub(super) fn dictionary_key(unit: UnitId, number: u8) -> [u8; 5] {
    let [a, b, c, d] = unit.0.to_be_bytes();
    [a, b, c, d, number]
}

pub(super) fn append(inner: &Inner, files: &Files, append: &Append<'_>) -> Result<(), Fault> {
    let first = append.first.0;
    let end = first + append.changes.len() as u64;
    let is_again = !append.changes.is_empty() && first <= inner.last.load(SeqCst);
    if is_again && files.records.contains_key(sequence_key(first))? {
        return Ok(());
    }
    let unit = inner.unit(append.unit);
    let mut sampler = lock(&unit.sampler);
    for object in append.changes.iter().filter_map(Change::object) {
        if let Some(bytes) = sampler.offer(object)
            && let Some(dictionary) = Dictionary::new(&bytes)
        {
            unit.dictionaries.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(dictionary));
            sampler.unwritten = Some(bytes);
        }
    }
    let mut writer = Writer::new(files, append, &unit);
    if let Some(bytes) = &sampler.unwritten {
        let key = dictionary_key(append.unit, DICTIONARY);
        writer.batch.insert(&files.dictionaries, key, bytes.as_slice());
    }
    for (change, sequence) in append.changes.iter().zip(first..) {
        writer.put(change, sequence)?;
    }
    if let Some(reached) = append.reached {
        writer.batch.insert(&files.units, state::reached_key(append.unit), state::encode_reached(reached));
    }
    if !append.changes.is_empty() {
        let mark = Mark { synced: inner.synced.load(SeqCst), first, last: end - 1 };
        writer.batch.insert(&files.meta, MARK_KEY, mark.encode());
    }
    files.commit(writer.batch)?;
    sampler.unwritten = None;
    if !append.changes.is_empty() {
        inner.last.fetch_max(end - 1, SeqCst);
    }
    Ok(())
}

/// Makes the batch of one append.
struct Writer<'a> {
    files: &'a Files,
    append: &'a Append<'a>,
    batch: OwnedWriteBatch,
    dictionary: Option<Arc<Dictionary>>,
    /// States that this append has changed.
    changed: HashMap<Vec<u8>, Option<Pointer>, RandomState>,
}

impl<'a> Writer<'a> {
    fn new(files: &'a Files, append: &'a Append<'a>, unit: &Unit) -> Self {
        let batch = OwnedWriteBatch::with_capacity(files.db.clone(), append.changes.len() * 3 + 3);
        let dictionaries = unit.dictionaries.read().unwrap_or_else(PoisonError::into_inner);
        let dictionary = dictionaries.last().cloned();
        Self { files, append, batch, dictionary, changed: HashMap::default() }
    }

    fn put(&mut self, change: &Change, sequence: u64) -> Result<(), Fault> {
        let Append { unit, time_micros, only, .. } = *self.append;
        let mut head = StoredHead::of(change, unit, sequence, time_micros, only);
        if let Some(object) = change.object() {
            self.put_object(change, object, &mut head)?;
        }
        self.batch.insert(&self.files.records, sequence_key(sequence), head.encode());
        Ok(())
    }

    /// Writes the bodies that the store has not, and where the state of the object lies from now on.
    fn put_object(&mut self, change: &Change, object: &Object, head: &mut StoredHead<'_>) -> Result<(), Fault> {
        let key = object_key(head.unit, object.key());
        let state = self.state(&key)?;
        let may_differ = head.cause == Some(Cause::Reload);
        head.body = match &state {
            Some(state) if state.is(object) && !may_differ => Body::At(state.sequence),
            _ => Body::Own,
        };
        if head.body == Body::Own {
            self.put_body(&sequence_key(head.sequence), object);
        }
        head.old = match (change.old(), &state) {
            (None, _) => Old::None,
            (Some(old), Some(state)) if !head.is_addressed() && head.body == Body::Own && state.is(old) => {
                Old::Superseded
            }
            (Some(old), _) => {
                self.put_body(&old_key(head.sequence), old);
                Old::Own
            }
        };
        if head.is_addressed() {
            return Ok(());
        }
        if matches!(head.kind, ChangeKind::Deleted | ChangeKind::Removed) {
            head.supersedes = state.map(|state| state.sequence);
            self.batch.remove(&self.files.objects, key.as_slice());
            self.changed.insert(key, None);
        } else if head.body == Body::Own {
            head.supersedes = state.map(|state| state.sequence);
            let state = Pointer::to(head.sequence, object);
            self.batch.insert(&self.files.objects, key.as_slice(), state.encode());
            self.changed.insert(key, Some(state));
        }
        Ok(())
    }

    fn put_body(&mut self, key: &[u8], object: &Object) {
        let body = encode_body(object, self.dictionary.as_deref().map(|dictionary| (DICTIONARY, dictionary)));
        self.batch.insert(&self.files.bodies, key, body);
    }

    /// Returns where the state of an object lies.
    fn state(&self, key: &[u8]) -> Result<Option<Pointer>, Fault> {
        if let Some(changed) = self.changed.get(key) {
            return Ok(changed.clone());
        }
        let Some(value) = self.files.objects.get(key)? else { return Ok(None) };
        let unreadable = || {
            let what = format!("where {} lies is unreadable", String::from_utf8_lossy(key));
            Fault::damaged(self.files.objects.path().to_owned(), what)
        };
        Pointer::decode(&value).map(Some).ok_or_else(unreadable)
    }
}
