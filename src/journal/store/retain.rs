//! Removal of what is not needed any more.
//!
//! A body is stored under the sequence of the record that brought it, until nothing refers to it. It is the state of its
//! object until another record supersedes it, and then the `old` of that record until that is removed. So a record is removed
//! with the body that it superseded, and with its own where that never was a state.

use std::sync::atomic::Ordering::SeqCst;

use fjall::{AbstractTree, OwnedWriteBatch};

use super::{
    Files, Inner, Retained, Store, StoreError,
    body::{Pointer, old_key, sequence_key},
    read::{head_of, sequence_of, unreadable},
    record::{Head, Old, StoredBody},
    state,
};
use crate::{
    journal::{Sequence, UnitId},
    mutex::lock,
};

/// Records removed a call.
const RECORDS_A_CALL: usize = 4096;

/// Files of heads are looked through after so many records: one holds about as many, and each look writes a manifest.
const RECORDS_A_DROP: u64 = 32_768;

/// Objects removed a batch.
const OBJECTS_A_BATCH: usize = 4096;

/// Key of the first position kept.
pub(super) const FIRST_KEY: &[u8] = b"first";

impl Store {
    /// Removes records before `keep_from`, some thousand a call, with the bodies that nothing else refers to. Files go
    /// when all they hold is removed.
    pub fn retain(&self, keep_from: Sequence) -> Result<Retained, StoreError> {
        self.with("remove old records", |inner, files| {
            let _one = lock(&inner.retaining);
            let first = inner.first.load(SeqCst);
            let end = keep_from.0.min(inner.last.load(SeqCst) + 1);
            if end <= first {
                return Ok(Retained { removed: 0, first: Sequence(first), more: false });
            }
            let mut batch = files.db.batch();
            let mut removed = 0;
            let mut next = end;
            for entry in files.records.range(sequence_key(first)..sequence_key(end)) {
                let (key, value) = entry.into_inner()?;
                let sequence = sequence_of(&key).ok_or_else(|| unreadable(files, &key))?;
                if removed == RECORDS_A_CALL {
                    next = sequence;
                    break;
                }
                remove_bodies(inner, files, &head_of(files, sequence, &value)?, &mut batch);
                removed += 1;
            }
            batch.insert(&files.meta, FIRST_KEY, sequence_key(next));
            files.commit(batch)?;
            inner.first.store(next, SeqCst);
            // the heads go with the files that hold nothing else: one by one they would cost as much as they did to append
            if next - inner.dropped.load(SeqCst) >= RECORDS_A_DROP {
                files.records.tree.drop_range(..sequence_key(next))?;
                inner.dropped.store(next, SeqCst);
            }
            Ok(Retained { removed: removed as u64, first: Sequence(next), more: next < end })
        })
    }

    /// Removes a unit that every reader has passed, and the states of its objects: its records cannot be loaded from
    /// then on. Its id shall not be used again while records of it are kept.
    pub fn forget_unit(&self, unit: UnitId) -> Result<(), StoreError> {
        self.with("forget a unit", |inner, files| {
            let _one = lock(&inner.retaining);
            let first = inner.first.load(SeqCst);
            loop {
                let mut batch = files.db.batch();
                for entry in files.objects.prefix(unit.0.to_be_bytes()).take(OBJECTS_A_BATCH) {
                    let (key, value) = entry.into_inner()?;
                    // a body whose record is kept goes with it
                    if let Some(state) = Pointer::decode(&value).filter(|state| state.sequence < first) {
                        batch.remove(&files.bodies, sequence_key(state.sequence));
                    }
                    batch.remove(&files.objects, key);
                }
                let is_last = batch.len() < OBJECTS_A_BATCH;
                if is_last {
                    for entry in files.dictionaries.prefix(unit.0.to_be_bytes()) {
                        batch.remove(&files.dictionaries, entry.key()?);
                    }
                    state::remove_unit(files, &mut batch, unit);
                }
                files.commit(batch)?;
                if is_last {
                    break;
                }
            }
            lock(&inner.forgotten).insert(unit);
            lock(&inner.recent).remove(&unit);
            Ok(())
        })
    }
}

/// Removes the bodies that go with a record.
fn remove_bodies(inner: &Inner, files: &Files, head: &Head<'_>, batch: &mut OwnedWriteBatch) {
    if let Some(superseded) = head.supersedes {
        batch.remove(&files.bodies, sequence_key(superseded));
    }
    if head.old == Old::Own {
        batch.remove(&files.bodies, old_key(head.sequence));
    }
    if head.body == StoredBody::Own && (!head.is_state() || lock(&inner.forgotten).contains(&head.unit)) {
        batch.remove(&files.bodies, sequence_key(head.sequence));
    }
}
