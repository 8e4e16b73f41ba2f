//! Reading the log itself, for who has no place of its own in it: a page behind a place, and the place of a time.

use std::sync::atomic::Ordering::SeqCst;

use super::{
    Fault, Files, Inner,
    body::sequence_key,
    read::{head_of, load, sequence_of, unreadable},
};
use crate::journal::{ChangeKind, Record, Sequence, UnitId};

/// How much of the log is looked at in one call, at most.
const HEADS_MAX: usize = 4_096;

/// What a page may hold. One record alone is never too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// Records.
    pub max_events: usize,
    /// Bytes of their objects' JSON.
    pub max_bytes: u64,
}

/// A part of the log, as every reader is shown it.
#[derive(Clone, Debug)]
pub struct Page {
    /// The records, in order; unchanged objects and what is for one reader alone are left out.
    pub records: Vec<Record>,
    /// Everything up to here was looked at.
    pub to: Sequence,
    /// How many more there were of units that are forgotten: nobody can read them any more.
    pub missing: u64,
    /// The first place whose record is kept; what was asked for before it is gone.
    pub first: Sequence,
}

/// Reads behind `after`, up to `until` at most.
pub(super) fn page(
    inner: &Inner,
    files: &Files,
    (after, until): (Sequence, Sequence),
    size: PageSize,
    is_known: &dyn Fn(UnitId) -> bool,
) -> Result<Page, Fault> {
    let from = after.0.saturating_add(1).max(inner.first.load(SeqCst));
    let (mut wanted, mut bytes, mut missing, mut to) = (Vec::new(), 0, 0, until);
    if from <= until.0 {
        let range = files.records.range(sequence_key(from)..=sequence_key(until.0));
        for (looked, entry) in range.enumerate() {
            let (key, value) = entry.into_inner()?;
            let sequence = sequence_of(&key).ok_or_else(|| unreadable(files, &key))?;
            let stored = head_of(files, sequence, &value)?;
            let head = stored.shown();
            let is_news = !matches!(head.kind, ChangeKind::Unchanged | ChangeKind::Refreshed);
            let is_for_all = head.only.is_none() && is_news;
            let is_full = wanted.len() >= size.max_events.max(1)
                || (!wanted.is_empty() && bytes + head.json_bytes > size.max_bytes);
            if looked >= HEADS_MAX || (is_for_all && is_full) {
                to = Sequence(sequence - 1);
                break;
            }
            if is_for_all && is_known(head.unit) {
                wanted.push(sequence);
                bytes += head.json_bytes;
            } else if is_for_all {
                missing += 1;
            }
        }
    }
    let records = load(inner, files, &wanted)?;
    missing += (wanted.len() - records.len()) as u64; // a retention under way has taken their bodies
    // Retention may have passed meanwhile: what it took is not here, and who asked is to know.
    let first = Sequence(inner.first.load(SeqCst));
    Ok(Page { records, to, missing, first })
}

/// Returns the place behind which lies what was appended at a time or later; the records before it are older.
pub(super) fn place_at(inner: &Inner, files: &Files, micros: i64, last: Sequence) -> Result<Sequence, Fault> {
    let (mut low, mut high) = (inner.first.load(SeqCst), last.0.saturating_add(1));
    // The first place from which on records are as new; times go up as places do, but for a clock that was set back.
    while low < high {
        let middle = low + (high - low) / 2;
        let next = files.records.range(sequence_key(middle)..sequence_key(high)).next();
        let Some(entry) = next else {
            high = middle;
            continue;
        };
        let (key, value) = entry.into_inner()?;
        let sequence = sequence_of(&key).ok_or_else(|| unreadable(files, &key))?;
        if head_of(files, sequence, &value)?.shown().time_micros < micros {
            low = sequence + 1;
        } else {
            high = middle;
        }
    }
    Ok(Sequence(low.saturating_sub(1)))
}
