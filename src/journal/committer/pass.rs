//! A pass of a compaction. It coalesces records that wait in the store for slow readers, step by step.

use std::time::{Duration, Instant};

use tracing::info;

use super::now;
use crate::{
    journal::{
        Held, ReaderId, Sequence,
        disk::Disk,
        inner::Inner,
        reader::JournalReader,
        store::{Compactor, StoreError},
    },
    mutex::lock,
};

/// Limits of the number of records per step.
const POSITIONS_MIN: usize = 8;
const POSITIONS_MAX: usize = 4096;
/// Number of records in the first step for a reader. The time per record is known only after that step.
const POSITIONS_FIRST: usize = 256;
/// Target duration of a step: the committer has other work too.
const STEP: Duration = Duration::from_millis(20);

/// A pass over the waiting records of all readers that need records of the log.
#[derive(Debug)]
pub(super) struct Pass {
    until: Sequence,
    /// The reader that is being compacted.
    current: Option<(ReaderId, Compactor)>,
    /// Number of records in the next step.
    positions: usize,
    /// Due time of the next step. The pause between two steps is as long as the last step. During the pause readers can load
    /// records.
    pub(super) due: Instant,
    written: u64,
    merged: u64,
}

impl Pass {
    /// Starts a pass over all records up to a position.
    pub(super) fn new(until: Sequence) -> Self {
        Self { until, current: None, positions: POSITIONS_FIRST, due: now(), written: 0, merged: 0 }
    }

    /// Takes the next step. Returns true after the last one. An error ends the pass.
    pub(super) fn step(&mut self, inner: &Inner, disk: &Disk) -> Result<bool, StoreError> {
        let begin = now();
        let Some((reader, compactor)) = self.current.as_mut() else {
            let core = inner.core();
            let Some((reader, name)) = core.compactable(self.until) else {
                info!(written = self.written, merged = self.merged, "coalesced records that wait for slow handlers");
                return Ok(true);
            };
            self.current = Some((reader, Compactor::new(name)));
            self.positions = POSITIONS_FIRST;
            return Ok(false);
        };
        if compactor.scan_from.is_some() {
            disk.store.scan_compacted(compactor)?;
        } else {
            let next = inner.with(*reader, |reader| reader.hold(self.positions, self.until));
            let Some(mut records) = next else {
                self.current = None;
                return Ok(false);
            };
            judge(inner, disk, *reader, &mut records)?;
            if records.positions.is_empty() {
                release(inner, *reader); // the filter refused all records of the step
            } else {
                let step = disk.store.plan_compaction(compactor, &records)?;
                self.written += step.written.len();
                self.merged += step.superseded.len();
                inner.put_compacted(disk, *reader, step)?;
            }
            let positions = if begin.elapsed() > STEP { self.positions / 2 } else { self.positions * 2 };
            self.positions = positions.clamp(POSITIONS_MIN, POSITIONS_MAX);
        }
        self.due = now() + begin.elapsed();
        Ok(false)
    }

    /// Ends the pass after a failed step. If the step failed before its write, its reader may load records again. If the write
    /// failed, the step may be on disk: the reader waits until the step is written again.
    pub(super) fn cancel(self, inner: &Inner, disk: &Disk) {
        if let Some((reader, _)) = self.current.filter(|_| lock(&disk.saving).is_none()) {
            release(inner, reader);
        }
    }
}

/// Judges records before they are coalesced. Refused records no longer wait.
fn judge(inner: &Inner, disk: &Disk, reader: ReaderId, held: &mut Held) -> Result<(), StoreError> {
    let Some((filter, positions)) = held.to_judge.take() else { return Ok(()) };
    let judged = filter.judge_all(&disk.store.load(&positions)?);
    held.leave_out(&inner.with(reader, |reader| reader.refuse(&judged)));
    Ok(())
}

/// Lets a reader load records again.
fn release(inner: &Inner, reader: ReaderId) {
    inner.with(reader, JournalReader::release);
    inner.wake(&[reader]);
}
