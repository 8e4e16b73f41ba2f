//! Removal of unneeded records and bodies.
//!
//! A body is stored under the sequence of the record that brought it. The body is the state of its object until a later record
//! supersedes it. The later record may need the body as its `old`; records after it do not. So the removal of a record also removes
//! the body that the record superseded. The record's own body is removed too, if it was never the state of an object.

use std::sync::atomic::Ordering::SeqCst;

use fjall::{AbstractTree, OwnedWriteBatch};

use super::{
    Files, Inner, Retained, Store, StoreError,
    body::{Pointer, old_key, sequence_key},
    read::{head_of, heads_in},
    record::{Head, Old, StoredBody},
    state, timeline,
};
use crate::{
    journal::{Sequence, UnitId},
    mutex::lock,
};

/// Number of records removed per call.
const RECORDS_A_CALL: usize = 4096;

/// Minimum number of records between two removals of whole head files. A file holds about this number of heads. More frequent
/// removals would only write more manifests.
const RECORDS_A_DROP: u64 = 32_768;

/// Number of objects removed per batch.
const OBJECTS_A_BATCH: usize = 4096;

/// Key of the first position that is kept.
pub(super) const FIRST_KEY: &[u8] = b"first";

impl Store {
    /// Removes records before `keep_from`, up to 4,096 per call, and the bodies that no other record needs. A file is removed once
    /// all its records are removed.
    pub fn retain(&self, keep_from: Sequence) -> Result<Retained, StoreError> {
        self.with("remove old records", |inner, files| {
            let _one = lock(&inner.retaining);
            let first = inner.first.load(SeqCst);
            let end = keep_from.0.min(inner.last.load(SeqCst) + 1);
            if end <= first {
                return Ok(Retained { first: Sequence(first), more: false });
            }
            let mut batch = files.db.batch();
            let mut next = end;
            for (removed, head) in heads_in(files, first..end).enumerate() {
                let (sequence, value) = head?;
                if removed == RECORDS_A_CALL {
                    next = sequence;
                    break;
                }
                remove_bodies(inner, files, &head_of(files, sequence, &value)?, &mut batch);
            }
            timeline::remove_before(files, &mut batch, next)?;
            batch.insert(&files.meta, FIRST_KEY, sequence_key(next));
            files.commit(batch)?;
            inner.first.store(next, SeqCst);
            // Heads are removed with their whole files: removing them one by one would cost as much as appending them.
            if next - inner.dropped.load(SeqCst) >= RECORDS_A_DROP {
                files.records.tree.drop_range(..sequence_key(next))?;
                inner.dropped.store(next, SeqCst);
            }
            Ok(Retained { first: Sequence(next), more: next < end })
        })
    }

    /// Removes a unit that every reader has passed, with the states of its objects. From then on its records cannot be loaded.
    /// Its id must not be reused while records of it are kept.
    pub fn forget_unit(&self, unit: UnitId) -> Result<(), StoreError> {
        self.with("forget a unit", |inner, files| {
            let _one = lock(&inner.retaining);
            let first = inner.first.load(SeqCst);
            loop {
                let mut batch = files.db.batch();
                for entry in files.objects.prefix(unit.0.to_be_bytes()).take(OBJECTS_A_BATCH) {
                    let (key, value) = entry.into_inner()?;
                    // The body of a record that is still kept is removed with that record.
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

/// Removes the bodies that only this record needs.
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
