//! Appends. Each one is a single batch of fjall with heads, bodies, states of objects, and versions reached.

use std::{num::NonZero, sync::atomic::Ordering::SeqCst};

use fjall::OwnedWriteBatch;

use super::{
    Append, Fault, Files, Store, StoreError,
    body::{Pointer, encode_body, object_key, old_key, sequence_key},
    recent::{ObjectState, Recent},
    record::{Head, Old, StoredBody},
    state,
    tail::{MARK_KEY, Mark},
};
use crate::{
    change::{Cause, Change},
    journal::{ChangeKind, UnitId},
    mutex::lock,
    object::{Object, packer::Packer},
};

/// Returns the key of a unit's dictionary.
pub(super) fn dictionary_key(unit: UnitId, number: u8) -> [u8; 5] {
    let [a, b, c, d] = unit.0.to_be_bytes();
    [a, b, c, d, number]
}

impl Store {
    /// Appends records, states of objects and the versions reached, atomically. They are durable after the next
    /// [`Store::sync`]. An append whose sequences are stored already is ignored: its content is the same.
    ///
    /// Waits while the disk is too slow.
    pub fn append(&self, append: &Append<'_>) -> Result<(), StoreError> {
        self.with("append", |inner, files| {
            let first = append.first.0;
            let end = first + append.changes.len() as u64;
            // A repair writes appends again. Some of these may be stored already.
            let is_again = !append.changes.is_empty() && first <= inner.last.load(SeqCst);
            if is_again && files.records.contains_key(sequence_key(first))? {
                return Ok(());
            }
            let packer = inner.packer(append.unit);
            packer.look_at(append.changes.iter().filter_map(Change::object));
            // If the append fails, these known states are not put back. Later appends then read the files.
            let recent = lock(&inner.recent).remove(&append.unit).unwrap_or_default();
            let mut writer = Writer::new(files, append, &packer, recent);
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
            writer.recent.shrink(&writer.removed);
            let mut recent = lock(&inner.recent);
            // If another append of the unit ran meanwhile, the known states of both may be outdated.
            recent.entry(append.unit).and_modify(|known| *known = Recent::default()).or_insert(writer.recent);
            drop(recent);
            if let Some((number, _)) = dictionaries.last() {
                packer.written(*number);
            }
            if !append.changes.is_empty() {
                inner.last.fetch_max(end - 1, SeqCst);
            }
            Ok(())
        })
    }
}

/// Builder of the batch of one append.
struct Writer<'a> {
    files: &'a Files,
    append: &'a Append<'a>,
    batch: OwnedWriteBatch,
    packer: &'a Packer,
    recent: Recent,
    /// Objects that this append removed, as keys of `recent`.
    removed: Vec<u128>,
}

impl<'a> Writer<'a> {
    fn new(files: &'a Files, append: &'a Append<'a>, packer: &'a Packer, recent: Recent) -> Self {
        let batch = OwnedWriteBatch::with_capacity(files.db.clone(), append.changes.len() * 3 + 3);
        Self { files, append, batch, packer, recent, removed: Vec::new() }
    }

    fn put(&mut self, change: &Change, sequence: u64) -> Result<(), Fault> {
        let Append { unit, time_micros, only, .. } = *self.append;
        let mut head = Head::of(change, unit, sequence, time_micros, only);
        if let Some(object) = change.object() {
            self.put_object(change, object, &mut head)?;
        }
        self.batch.insert(&self.files.records, sequence_key(sequence), head.encode());
        Ok(())
    }

    /// Writes the bodies that the store does not have yet, and the new location of the object's state.
    fn put_object(&mut self, change: &Change, object: &Object, head: &mut Head<'_>) -> Result<(), Fault> {
        let object_key = object_key(head.unit, object.key());
        let (key, print) = (self.recent.key(&object_key), self.recent.print_of(object));
        let state = self.state(&object_key, key)?;
        // With these causes, the same version may have another body, because a new configuration may keep other parts of the
        // object.
        let may_differ = matches!(head.cause, Some(Cause::Reload | Cause::Downtime));
        head.body = match state {
            Some(state) if state.is(print) && !may_differ => StoredBody::At(state.sequence.get()),
            _ => StoredBody::Own,
        };
        if head.body == StoredBody::Own {
            self.put_body(&sequence_key(head.sequence), object);
        }
        let brings_state = !head.is_addressed() && head.body == StoredBody::Own;
        head.old = match change.old() {
            None => Old::None,
            Some(old) if brings_state && state.is_some_and(|state| state.is(self.recent.print_of(old))) => {
                Old::Superseded
            }
            Some(old) => {
                self.put_body(&old_key(head.sequence), old);
                Old::Own
            }
        };
        if head.is_addressed() {
            return Ok(());
        }
        if matches!(head.kind, ChangeKind::Deleted | ChangeKind::Removed) {
            head.supersedes = state.map(|state| state.sequence.get());
            self.batch.remove(&self.files.objects, object_key.as_slice());
            self.recent.put(key, None);
            self.removed.push(key);
        } else if brings_state {
            head.supersedes = state.map(|state| state.sequence.get());
            let pointer = Pointer::to(head.sequence, object);
            self.batch.insert(&self.files.objects, object_key.as_slice(), pointer.encode());
            self.recent.put(key, NonZero::new(head.sequence).map(|sequence| ObjectState { sequence, print }));
        }
        Ok(())
    }

    fn put_body(&mut self, key: &[u8], object: &Object) {
        let body = encode_body(object, self.packer);
        self.batch.insert(&self.files.bodies, key, body);
    }

    /// Returns the stored state of an object.
    fn state(&self, object_key: &[u8], key: u128) -> Result<Option<ObjectState>, Fault> {
        self.recent.state(key, || {
            let Some(value) = self.files.objects.get(object_key)? else { return Ok(None) };
            let state = Pointer::decode(&value).and_then(|Pointer { sequence, uid, resource_version }| {
                let print = self.recent.print(uid.as_str(), resource_version);
                NonZero::new(sequence).map(|sequence| ObjectState { sequence, print })
            });
            state.map(Some).ok_or_else(|| {
                let what = format!("the location of {} is unreadable", String::from_utf8_lossy(object_key));
                Fault::corrupt(self.files.objects.path(), what)
            })
        })
    }
}
