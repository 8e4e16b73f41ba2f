//! Appends. Each one is a single batch of fjall with heads, bodies, states of objects, and versions reached.

use std::{collections::HashMap, sync::atomic::Ordering::SeqCst};

use fjall::OwnedWriteBatch;
use foldhash::fast::RandomState;

use super::{
    Append, Fault, Files, Store, StoreError,
    body::{Pointer, encode_body, object_key, old_key, sequence_key},
    recent::{Print, Recent},
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
            // A repair writes appends again that may be stored already.
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
            lock(&inner.recent).insert(append.unit, writer.recent);
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
    /// States that this append has changed.
    changed: HashMap<Vec<u8>, Option<State>, RandomState>,
}

/// Stored state of an object.
#[derive(Clone, Copy, Debug)]
struct State {
    sequence: u64,
    print: Option<Print>,
}

impl State {
    /// Returns true if this is the state with that print. Without a version no two states are equal.
    fn is(&self, print: Option<Print>) -> bool {
        print.is_some() && self.print == print
    }
}

/// Prints of the states in a change.
#[derive(Clone, Copy, Debug)]
struct Prints {
    object: Option<Print>,
    old: Option<Print>,
}

impl<'a> Writer<'a> {
    fn new(files: &'a Files, append: &'a Append<'a>, packer: &'a Packer, recent: Recent) -> Self {
        let batch = OwnedWriteBatch::with_capacity(files.db.clone(), append.changes.len() * 3 + 3);
        Self { files, append, batch, packer, recent, changed: HashMap::default() }
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
        let key = object_key(head.unit, object.key());
        let mut print = |object: &Object| self.recent.print(&key, object.uid(), object.resource_version());
        let prints = Prints { object: print(object), old: change.old().and_then(print) };
        let state = self.state(&key, prints)?;
        // With these causes, the same version may have another body, because the configuration may have changed what is kept.
        let may_differ = matches!(head.cause, Some(Cause::Reload | Cause::Downtime));
        head.body = match &state {
            Some(state) if state.is(prints.object) && !may_differ => StoredBody::At(state.sequence),
            _ => StoredBody::Own,
        };
        if head.body == StoredBody::Own {
            self.put_body(&sequence_key(head.sequence), object);
        }
        head.old = match (change.old(), &state) {
            (None, _) => Old::None,
            (Some(_), Some(state)) if !head.is_addressed() && head.body == StoredBody::Own && state.is(prints.old) => {
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
            self.supersede(key, state, None);
        } else if head.body == StoredBody::Own {
            head.supersedes = state.map(|state| state.sequence);
            let pointer = Pointer::to(head.sequence, object);
            self.batch.insert(&self.files.objects, key.as_slice(), pointer.encode());
            self.supersede(key, state, Some(State { sequence: head.sequence, print: prints.object }));
        }
        Ok(())
    }

    /// Notes the new state of an object.
    fn supersede(&mut self, key: Vec<u8>, before: Option<State>, now: Option<State>) {
        if let Some(print) = before.and_then(|state| state.print) {
            self.recent.remove(print);
        }
        if let Some(State { sequence, print: Some(print) }) = now {
            self.recent.put(print, sequence);
        }
        self.changed.insert(key, now);
    }

    fn put_body(&mut self, key: &[u8], object: &Object) {
        let body = encode_body(object, self.packer);
        self.batch.insert(&self.files.bodies, key, body);
    }

    /// Returns the stored state of an object. In most cases it is one of the states in the change.
    fn state(&mut self, key: &[u8], prints: Prints) -> Result<Option<State>, Fault> {
        for print in [prints.old, prints.object].into_iter().flatten() {
            if let Some(sequence) = self.recent.find(print) {
                return Ok(Some(State { sequence, print: Some(print) }));
            }
        }
        if let Some(changed) = self.changed.get(key) {
            return Ok(*changed);
        }
        let Some(value) = self.files.objects.get(key)? else { return Ok(None) };
        let unreadable = || {
            let what = format!("the location of {} is unreadable", String::from_utf8_lossy(key));
            Fault::corrupt(self.files.objects.path(), what)
        };
        let Pointer { sequence, uid, resource_version } = Pointer::decode(&value).ok_or_else(unreadable)?;
        Ok(Some(State { sequence, print: self.recent.print(key, uid.as_str(), resource_version) }))
    }
}
