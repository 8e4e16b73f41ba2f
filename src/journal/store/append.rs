//! One append is one batch of fjall: heads, bodies, states of objects, versions reached.

use std::{collections::HashMap, sync::atomic::Ordering::SeqCst};

use fjall::OwnedWriteBatch;
use foldhash::fast::RandomState;

use super::{
    Append, Fault, Files, Inner,
    body::{Pointer, encode_body, object_key, old_key, sequence_key},
    record::{Body, Old, StoredHead},
    state,
    tail::{MARK_KEY, Mark},
};
use crate::{
    indexer::{Cause, Change},
    journal::{ChangeKind, UnitId},
    object::{Object, packer::Packer},
};

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
    let packer = inner.packer(append.unit);
    packer.look_at(append.changes.iter().filter_map(Change::object));
    let mut writer = Writer::new(files, append, &packer);
    let dictionaries = packer.unwritten();
    for (number, bytes) in &dictionaries {
        writer.batch.insert(&files.dictionaries, dictionary_key(append.unit, *number), bytes.as_slice());
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
    if let Some((number, _)) = dictionaries.last() {
        packer.written(*number);
    }
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
    packer: &'a Packer,
    /// States that this append has changed.
    changed: HashMap<Vec<u8>, Option<Pointer>, RandomState>,
}

impl<'a> Writer<'a> {
    fn new(files: &'a Files, append: &'a Append<'a>, packer: &'a Packer) -> Self {
        let batch = OwnedWriteBatch::with_capacity(files.db.clone(), append.changes.len() * 3 + 3);
        Self { files, append, batch, packer, changed: HashMap::default() }
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
        // Of an equal version: what is kept of it may have changed with the configuration.
        let may_differ = matches!(head.cause, Some(Cause::Reload | Cause::Downtime));
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
        let body = encode_body(object, self.packer);
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
