//! Access to the log for callers without a cursor: a page after a position, and the position of a time.

use std::sync::atomic::Ordering::SeqCst;

use super::{
    LogPage, PageSize, Store, StoreError,
    read::{head_of, heads_in, load},
};
use crate::journal::{ChangeKind, Sequence, UnitId};

/// Maximum number of heads read per call.
const HEADS_MAX: usize = 4_096;

impl Store {
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
                    if looked >= HEADS_MAX || (is_for_all && is_full) {
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

    /// Returns the position before the records that were appended at or after a time, up to `last`. Reads only some heads.
    pub fn place_at(&self, micros: i64, last: Sequence) -> Result<Sequence, StoreError> {
        self.with("read records", |inner, files| {
            let (mut low, mut high) = (inner.first.load(SeqCst), last.0.saturating_add(1));
            // Binary search: times grow with positions, unless a clock was set back.
            while low < high {
                let middle = low + (high - low) / 2;
                let next = heads_in(files, middle..high).next().transpose()?;
                match next {
                    Some((sequence, value)) if head_of(files, sequence, &value)?.time_micros < micros => {
                        low = sequence + 1;
                    }
                    _ => high = middle,
                }
            }
            Ok(Sequence(low.saturating_sub(1)))
        })
    }
}
