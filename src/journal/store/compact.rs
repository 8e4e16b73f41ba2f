//! Coalesced records of one reader. They are stored as separate entries, which do not depend on the original records.
//!
//! The log removes records only from its start, and several of its records can share a body. So each entry has its own copies of
//! head and bodies, still packed, under the name of the reader. One write stores a step of a compaction together with the state of
//! the reader.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
};

use fjall::{OwnedWriteBatch, UserValue};
use roaring::RoaringTreemap;

use super::{
    Fault, Files, Inner, Store, StoreError, StoredReader,
    body::{Part, body_key, compacted_body_key, compacted_key, sequence_key, split_compacted_key},
    read::{Finder, head_of},
    record::{Head, Old, StoredBody},
    state,
    wire::{Wire, put_number},
};
use crate::{
    journal::{
        ChangeKind, Held,
        compaction::{Draft, Lanes, Row, Tail, keeps_its_place},
    },
    mutex::lock,
};

/// Number of entries scanned per call.
const ENTRIES_A_SCAN: usize = 16_384;
/// Number of entries removed per batch.
const ENTRIES_A_BATCH: usize = 4096;

/// Compaction of one reader's records, in steps. Its memory grows with the number of objects.
#[derive(Debug)]
pub(crate) struct Compactor {
    reader: Box<str>,
    hashers: [RandomState; 2],
    lanes: Lanes,
    /// First entry that is not scanned yet; `None` when all are.
    pub(crate) scan_from: Option<u64>,
}

impl Compactor {
    pub(crate) fn new(reader: &str) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self { reader: reader.into(), hashers, lanes: Lanes::default(), scan_from: Some(0) }
    }

    fn row(&self, head: &Head<'_>, last: u64) -> Row {
        let [first, second] = &self.hashers;
        let lane = (head.unit, head.key.namespace, head.key.name);
        let uid = head.uid.as_str();
        // Without a version, no two states are known to be equal.
        let unversioned = head.resource_version.is_empty().then_some(head.sequence);
        let tail = Tail {
            position: head.sequence,
            last,
            uid: first.hash_one(uid),
            state: first.hash_one((uid, head.resource_version, unversioned)),
            kind: head.kind,
            keeps_its_place: keeps_its_place(head.kind, head.cause, head.is_addressed()),
            recreated: head.recreates,
        };
        Row { lane: [first.hash_one(lane), second.hash_one(lane)], cause: head.cause, tail }
    }
}

/// Data that one step writes.
#[derive(Debug)]
pub(crate) struct CompactionStep {
    entries: Vec<Entry>,
    /// Positions that wait as coalesced entries after the step, no longer as records of the log.
    pub(crate) written: RoaringTreemap,
    /// Positions that were coalesced into others, and no longer wait.
    pub(crate) superseded: RoaringTreemap,
}

#[derive(Debug)]
struct Entry {
    position: u64,
    head: Vec<u8>,
    object: Option<UserValue>,
    old: Option<UserValue>,
}

impl Store {
    /// Scans some of the coalesced entries that earlier passes wrote. Call it again while [`Compactor::scan_from`] is set.
    pub(crate) fn scan_compacted(&self, compactor: &mut Compactor) -> Result<(), StoreError> {
        self.with("read coalesced records", |_, files| {
            let Some(from) = compactor.scan_from.take() else { return Ok(()) };
            let reader = compactor.reader.clone();
            let all = compacted_key(&reader, from)..=compacted_key(&reader, u64::MAX);
            for (number, entry) in files.compacted.range(all).enumerate() {
                let (key, value) = entry.into_inner()?;
                let Some((_, position)) = split_compacted_key(&key).filter(|(name, _)| **name == *reader) else {
                    continue;
                };
                if number >= ENTRIES_A_SCAN {
                    compactor.scan_from = Some(position);
                    break;
                }
                let (last, head) = decode_entry(files, position, &value)?;
                let row = compactor.row(&head, last);
                compactor.lanes.note(&row);
            }
            Ok(())
        })
    }

    /// Plans the next step, which coalesces the records in `held` with each other and with those of earlier steps. Writes nothing.
    pub(crate) fn plan_compaction(&self, compactor: &mut Compactor, held: &Held) -> Result<CompactionStep, StoreError> {
        self.with("coalesce records", |_, files| {
            let Held { positions, may_merge, shown, .. } = held;
            let mut log = Vec::with_capacity(positions.len());
            let mut heads = Finder::over(&files.records, positions);
            for &position in positions {
                log.extend(heads.find(&sequence_key(position))?.map(|value| (position, value)));
            }
            let rows =
                log.iter().map(|(position, value)| Ok(compactor.row(&head_of(files, *position, value)?, *position)));
            let rows = rows.collect::<Result<Vec<_>, Fault>>()?;
            let plan = compactor.lanes.plan(&rows, |position| may_merge.contains(position), *shown);
            let sources = Sources { files, reader: &compactor.reader, log: &log };
            let entries = plan.drafts.iter().map(|(position, draft)| sources.entry(*position, *draft));
            let entries = entries.collect::<Result<Vec<_>, Fault>>()?;
            // A missing record counts as written too: it is lost in the log as well as here.
            let mut written: RoaringTreemap = positions.iter().copied().collect();
            written -= &plan.superseded;
            written.extend(plan.drafts.keys());
            Ok(CompactionStep { entries, written, superseded: plan.superseded })
        })
    }
}

/// Sources of new entries: records of the log, and earlier entries.
struct Sources<'a> {
    files: &'a Files,
    reader: &'a str,
    /// Sorted by position.
    log: &'a [(u64, UserValue)],
}

struct Source {
    position: u64,
    value: UserValue,
    is_entry: bool,
}

impl Source {
    /// Returns the head, and the position at which its object was appended.
    fn head(&self, files: &Files) -> Result<(u64, Head<'_>), Fault> {
        if self.is_entry {
            decode_entry(files, self.position, &self.value)
        } else {
            Ok((self.position, head_of(files, self.position, &self.value)?))
        }
    }
}

impl Sources<'_> {
    fn find(&self, position: u64) -> Result<Source, Fault> {
        if let Ok(at) = self.log.binary_search_by_key(&position, |(position, _)| *position) {
            return Ok(Source { position, value: self.log[at].1.clone(), is_entry: false });
        }
        let value = self.files.compacted.get(compacted_key(self.reader, position))?;
        let value = value.ok_or_else(|| unreadable(self.files, position))?;
        Ok(Source { position, value, is_entry: true })
    }

    fn entry(&self, position: u64, draft: Draft) -> Result<Entry, Fault> {
        let files = self.files;
        let [at, shape, object, old] =
            [position, draft.shape, draft.object, draft.old].map(|position| self.find(position));
        let (at, shape, object, old) = (at?, shape?, object?, old?);
        let (_, of_place) = at.head(files)?;
        let (_, of_shape) = shape.head(files)?;
        let (last, of_object) = object.head(files)?;
        let (_, of_old) = old.head(files)?;
        let is_update = of_shape.kind == ChangeKind::Updated;
        let has_old = is_update && of_old.old != Old::None;
        let old = if has_old { self.body(&old, &of_old, Part::Old)? } else { None };
        let head = Head {
            sequence: position,
            time_micros: of_place.time_micros,
            uid: of_object.uid,
            resource_version: of_object.resource_version,
            size: of_object.size,
            body: if of_object.body == StoredBody::None { StoredBody::None } else { StoredBody::Own },
            old: if has_old { Old::Own } else { Old::None },
            supersedes: None,
            recreates: is_update && of_old.recreates,
            ..of_shape
        };
        let mut value = Vec::with_capacity(128);
        put_number(&mut value, last - position);
        value.extend(head.encode());
        Ok(Entry { position, head: value, object: self.body(&object, &of_object, Part::Object)?, old })
    }

    fn body(&self, source: &Source, head: &Head<'_>, part: Part) -> Result<Option<UserValue>, Fault> {
        match body_key(head, part, source.is_entry.then_some(self.reader)) {
            Some(key) => Ok(self.files.bodies.get(key)?),
            None => Ok(None),
        }
    }
}

impl Store {
    /// Writes a step and the state of its reader, atomically. Writing the same step again changes nothing.
    pub(crate) fn put_compacted(&self, step: &CompactionStep, state: &StoredReader) -> Result<(), StoreError> {
        self.with("write coalesced records", |inner, files| {
            let reader = &*state.name;
            let mut known = known_of(inner, reader);
            let mut batch = OwnedWriteBatch::with_capacity(files.db.clone(), step.entries.len() * 3 + 1);
            for position in &known & &step.superseded {
                remove_entry(files, &mut batch, reader, position);
            }
            known -= &step.superseded;
            // Records that were acknowledged in the meantime are not needed.
            for entry in step.entries.iter().filter(|entry| state.compacted.contains(entry.position)) {
                let Entry { position, head, object, old } = entry;
                batch.insert(&files.compacted, compacted_key(reader, *position), head.as_slice());
                for (part, body) in [(Part::Object, object), (Part::Old, old)] {
                    if let Some(body) = body {
                        batch.insert(&files.bodies, compacted_body_key(reader, *position, part), body.clone());
                    }
                }
                known.insert(*position);
            }
            batch.insert(&files.readers, reader.as_bytes(), state::encode_reader(state));
            files.commit(batch)?;
            lock(&inner.compacted).insert(reader.to_owned(), known);
            forget_all_but(inner, files, reader, &state.compacted)
        })
    }
}

/// Finds the entries of each reader, and sets [`StoredReader::compacted`]. Removes the entries of unknown readers.
pub(super) fn recover(files: &Files, readers: &mut [StoredReader]) -> Result<HashMap<String, RoaringTreemap>, Fault> {
    let mut found: HashMap<String, RoaringTreemap> = HashMap::new();
    for entry in files.compacted.iter() {
        let key = entry.key()?;
        let bad = || Fault::corrupt(files.compacted.path(), format!("the key {key:02x?} is unreadable"));
        let (reader, position) = split_compacted_key(&key).ok_or_else(bad)?;
        match found.get_mut(reader) {
            Some(positions) => drop(positions.insert(position)),
            None => drop(found.insert(reader.to_owned(), [position].into_iter().collect())),
        }
    }
    let is_known = |name: &String| readers.iter().any(|reader| reader.name == *name);
    for (name, positions) in found.extract_if(|name, _| !is_known(name)) {
        remove_entries(files, &name, &positions)?;
    }
    for reader in readers {
        let needed = &reader.pending | &reader.given_up;
        reader.compacted = found.get(&reader.name).map(|positions| positions & needed).unwrap_or_default();
    }
    Ok(found)
}

/// Decodes an entry. Returns its head, and the position at which its object was appended.
pub(super) fn decode_entry<'a>(files: &Files, position: u64, value: &'a [u8]) -> Result<(u64, Head<'a>), Fault> {
    let mut wire = Wire(value);
    let decoded = wire.number().and_then(|behind| Some((position + behind, Head::decode(position, wire.0)?)));
    decoded.ok_or_else(|| unreadable(files, position))
}

fn unreadable(files: &Files, position: u64) -> Fault {
    Fault::corrupt(files.compacted.path(), format!("the coalesced record {position} is unreadable"))
}

/// Removes the entries of a reader that are not in `needed`.
pub(super) fn forget_all_but(inner: &Inner, files: &Files, reader: &str, needed: &RoaringTreemap) -> Result<(), Fault> {
    let known = known_of(inner, reader);
    let stale = &known - needed;
    if !stale.is_empty() {
        remove_entries(files, reader, &stale)?;
        lock(&inner.compacted).insert(reader.to_owned(), known - stale);
        lock(&inner.compacted).retain(|_, known| !known.is_empty());
    }
    Ok(())
}

fn remove_entries(files: &Files, reader: &str, positions: &RoaringTreemap) -> Result<(), Fault> {
    let positions: Vec<u64> = positions.iter().collect();
    for part in positions.chunks(ENTRIES_A_BATCH) {
        let mut batch = files.db.batch();
        for position in part {
            remove_entry(files, &mut batch, reader, *position);
        }
        files.commit(batch)?;
    }
    Ok(())
}

fn remove_entry(files: &Files, batch: &mut OwnedWriteBatch, reader: &str, position: u64) {
    batch.remove(&files.compacted, compacted_key(reader, position));
    for part in [Part::Object, Part::Old] {
        batch.remove(&files.bodies, compacted_body_key(reader, position, part));
    }
}

fn known_of(inner: &Inner, reader: &str) -> RoaringTreemap {
    lock(&inner.compacted).get(reader).cloned().unwrap_or_default()
}
