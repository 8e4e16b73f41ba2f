//! Reading of heads, of records with their bodies, of pages of the log, and of states of objects.

use std::{ops::RangeBounds, sync::atomic::Ordering::SeqCst};

use fjall::{Keyspace, KvPair, UserValue};

use super::{
    Fault, Files, Inner, LogPage, PageSize, Store, StoreError,
    body::{Part, Pointer, body_key, compacted_key, decode_body, old_key, sequence_key, split_object_key},
    compact::decode_entry,
    record::{Head, Old, StoredBody},
};
use crate::{
    journal::{ChangeKind, Record, Sequence, UnitId, timeline::TimelineTail},
    mutex::lock,
    object::{KeyRef, Object, packer::Packer},
};

/// Average gap between requested sequences below which one scan is cheaper than single lookups.
const CLOSE: u64 = 4;
/// Maximum number of heads read for a page.
const PAGE_HEADS_MAX: usize = 4_096;

impl Store {
    /// Reads records with their bodies, in the requested order. Leaves out records that are not kept.
    pub fn load(&self, sequences: &[u64]) -> Result<Vec<Record>, StoreError> {
        self.with("read records", |inner, files| load(inner, files, sequences))
    }

    /// Visits the heads of the records after a position, in order. `visit` must not call the store.
    pub fn heads(&self, after: Sequence, visit: &mut dyn FnMut(&Head<'_>)) -> Result<(), StoreError> {
        self.with("read records", |inner, files| {
            let from = after.0.saturating_add(1).max(inner.first.load(SeqCst));
            for head in heads_in(files, from..) {
                let (sequence, value) = head?;
                visit(&head_of(files, sequence, &value)?);
            }
            Ok(())
        })
    }

    /// Reads the part of the log after `range.0` and up to `range.1`. Leaves out records of unknown units, unchanged objects,
    /// and records for one reader alone.
    pub fn page(
        &self,
        range: (Sequence, Sequence),
        size: PageSize,
        is_known: &dyn Fn(UnitId) -> bool,
    ) -> Result<LogPage, StoreError> {
        self.with("read records", |inner, files| {
            let (after, until) = range;
            let from = after.0.saturating_add(1).max(inner.first.load(SeqCst));
            let (mut wanted, mut bytes, mut missing, mut to) = (Vec::new(), 0, 0, until);
            if from <= until.0 {
                for (looked, head) in heads_in(files, from..=until.0).enumerate() {
                    let (sequence, value) = head?;
                    let head = head_of(files, sequence, &value)?;
                    let is_news = !matches!(head.kind, ChangeKind::Unchanged | ChangeKind::Refreshed);
                    let is_for_all = head.only.is_none() && is_news;
                    let is_full = wanted.len() >= size.max_events.max(1)
                        || (!wanted.is_empty() && bytes + head.json_bytes() > size.max_bytes);
                    if looked >= PAGE_HEADS_MAX || (is_for_all && is_full) {
                        to = Sequence(sequence - 1);
                        break;
                    }
                    if is_for_all && is_known(head.unit) {
                        wanted.push(sequence);
                        bytes += head.json_bytes();
                    } else if is_for_all {
                        missing += 1;
                    }
                }
            }
            let records = load(inner, files, &wanted)?;
            missing += (wanted.len() - records.len()) as u64; // a running retention has removed their bodies
            // A retention may have removed requested records in the meantime. The caller sees that from `first`.
            let first = Sequence(inner.first.load(SeqCst));
            Ok(LogPage { records, to, missing, first })
        })
    }

    /// Visits the states of the objects of a unit, in order of their keys. `visit` must not call the store.
    pub fn objects(&self, unit: UnitId, visit: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        self.with("read objects", |inner, files| {
            for entry in files.objects.prefix(unit.0.to_be_bytes()) {
                let (key, value) = entry.into_inner()?;
                let bad = |what: &str| {
                    let what = format!("the state of {} {what}", String::from_utf8_lossy(&key));
                    Fault::corrupt(files.objects.path(), what)
                };
                let state = Pointer::decode(&value).ok_or_else(|| bad("is unreadable"))?;
                let name = split_object_key(&key).ok_or_else(|| bad("has an unreadable key"))?;
                let object = body(inner, files, unit, name, &sequence_key(state.sequence))?;
                visit(object.ok_or_else(|| bad("is missing"))?);
            }
            Ok(())
        })
    }
}

/// Returns the time of the first record that is kept; 0 if there is none.
pub(super) fn first_micros(files: &Files, first: u64) -> Result<i64, Fault> {
    let Some(head) = heads_in(files, first..).next() else { return Ok(0) };
    let (sequence, value) = head?;
    Ok(head_of(files, sequence, &value)?.time_micros)
}

/// Returns what the heads after a position tell of the timeline.
pub(super) fn timeline_tail(files: &Files, after: u64) -> Result<TimelineTail, Fault> {
    let mut tail = TimelineTail::default();
    for head in heads_in(files, after + 1..) {
        let (sequence, value) = head?;
        let head = head_of(files, sequence, &value)?;
        if !head.is_addressed() {
            tail.add(head.unit, head.time_micros);
        }
    }
    Ok(tail)
}

fn load(inner: &Inner, files: &Files, sequences: &[u64]) -> Result<Vec<Record>, Fault> {
    let first = inner.first.load(SeqCst);
    let asked: Vec<u64> = sequences.iter().copied().filter(|sequence| *sequence >= first).collect();
    let (mut heads, mut bodies) = (Finder::over(&files.records, &asked), Finder::over(&files.bodies, &asked));
    let mut records = Vec::with_capacity(asked.len());
    for sequence in asked {
        let key = sequence_key(sequence);
        let Some(value) = heads.find(&key)? else { continue };
        let head = head_of(files, sequence, &value)?;
        let packer = inner.packer(head.unit);
        let object_of =
            |value: Option<UserValue>| value.map(|value| decode(files, &packer, head.key, &value)).transpose();
        let object = match head.body {
            StoredBody::None => None,
            StoredBody::Own => object_of(bodies.find(&key)?)?,
            StoredBody::At(at) => object_of(files.bodies.get(sequence_key(at))?)?,
        };
        let old = match (head.old, head.supersedes) {
            (Old::Own, _) => object_of(bodies.find(&old_key(sequence))?)?,
            (Old::Superseded, Some(at)) => object_of(files.bodies.get(sequence_key(at))?)?,
            _ => None,
        };
        records.extend(head.record(object, old));
    }
    Ok(records)
}

impl Store {
    /// Reads the records of a reader at these positions, which must be sorted. Leaves out records that are not kept.
    pub fn load_for(&self, reader: &str, sequences: &[u64]) -> Result<Vec<Record>, StoreError> {
        self.with("read records", |inner, files| {
            let (merged, log) = {
                let compacted = lock(&inner.compacted);
                let known = compacted.get(reader);
                let is_merged = |sequence: &u64| known.is_some_and(|known| known.contains(*sequence));
                sequences.iter().copied().partition::<Vec<u64>, _>(is_merged)
            };
            let mut records = load(inner, files, &log)?;
            for sequence in &merged {
                let Some(value) = files.compacted.get(compacted_key(reader, *sequence))? else { continue };
                let (_, head) = decode_entry(files, *sequence, &value)?;
                let of = |part| match body_key(&head, part, Some(reader)) {
                    Some(key) => body(inner, files, head.unit, head.key, &key),
                    None => Ok(None),
                };
                records.extend(head.record(of(Part::Object)?, of(Part::Old)?));
            }
            if !merged.is_empty() {
                records.sort_unstable_by_key(|record| record.sequence);
            }
            Ok(records)
        })
    }
}

/// Lookup of keys in the order of sequences: one by one, or with one scan if they are close to each other.
pub(super) struct Finder<'a> {
    keyspace: &'a Keyspace,
    scan: Option<fjall::Iter>,
    /// Entry that was read from the scan, and may match a later key.
    ahead: Option<KvPair>,
}

impl<'a> Finder<'a> {
    pub(super) fn over(keyspace: &'a Keyspace, asked: &[u64]) -> Self {
        let ends = asked.first().zip(asked.last()).filter(|_| asked.is_sorted());
        let close = ends.filter(|(from, to)| *to - *from < asked.len() as u64 * CLOSE);
        let scan = |(from, to): (&u64, &u64)| keyspace.range::<&[u8], _>(&sequence_key(*from)[..]..=&old_key(*to)[..]);
        Self { keyspace, scan: close.map(scan), ahead: None }
    }

    /// Returns the value of a key. With a scan, keys must be requested in order.
    pub(super) fn find(&mut self, key: &[u8]) -> Result<Option<UserValue>, Fault> {
        let Some(scan) = &mut self.scan else { return Ok(self.keyspace.get(key)?) };
        loop {
            if let Some((_, value)) = self.ahead.take_if(|(found, _)| **found == *key) {
                return Ok(Some(value));
            }
            if self.ahead.as_ref().is_some_and(|(found, _)| **found > *key) {
                return Ok(None);
            }
            let Some(entry) = scan.next() else { return Ok(None) };
            let (found, value) = entry.into_inner_if(|found| **found >= *key)?;
            self.ahead = value.map(|value| (found, value));
        }
    }
}

/// Reads one body.
fn body(inner: &Inner, files: &Files, unit: UnitId, name: KeyRef<'_>, key: &[u8]) -> Result<Option<Object>, Fault> {
    let Some(value) = files.bodies.get(key)? else { return Ok(None) };
    Ok(Some(decode(files, &inner.packer(unit), name, &value)?))
}

fn decode(files: &Files, packer: &Packer, name: KeyRef<'_>, value: &[u8]) -> Result<Object, Fault> {
    decode_body(name, value, packer)
        .map_err(|error| Fault::corrupt(files.bodies.path(), format!("a body of {name} is unreadable: {error}")))
}

/// Decodes the sequence in the key of a record.
pub(super) fn sequence_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}

/// Returns the encoded heads of the records in a range, with their sequences.
pub(super) fn heads_in(
    files: &Files,
    range: impl RangeBounds<u64>,
) -> impl Iterator<Item = Result<(u64, UserValue), Fault>> {
    let [start, end] = [range.start_bound(), range.end_bound()].map(|bound| bound.map(|at| sequence_key(*at)));
    files.records.range((start, end)).map(move |entry| {
        let (key, value) = entry.into_inner()?;
        let sequence = sequence_of(&key).ok_or_else(|| unreadable(files, &key))?;
        Ok((sequence, value))
    })
}

pub(super) fn head_of<'a>(files: &Files, sequence: u64, value: &'a [u8]) -> Result<Head<'a>, Fault> {
    Head::decode(sequence, value).ok_or_else(|| unreadable(files, &sequence_key(sequence)))
}

/// Returns the error of an unreadable record.
pub(super) fn unreadable(files: &Files, key: &[u8]) -> Fault {
    let name = sequence_of(key).map_or_else(|| format!("{key:02x?}"), |sequence| sequence.to_string());
    Fault::corrupt(files.records.path(), format!("the record {name} is unreadable"))
}
