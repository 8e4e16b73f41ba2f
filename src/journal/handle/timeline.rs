//! Positions of versions and times.

use super::Journal;
use crate::journal::{
    Sequence, UnitId,
    store::StoreError,
    timeline::{OutOfReach, UnitVersion},
};

/// Error of [`Journal::after`].
#[derive(Debug, thiserror::Error)]
pub enum AfterError {
    /// The version has no position.
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A position found by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedPosition {
    /// Position directly before the first kept record at or after the time.
    pub position: Sequence,
    /// Set if records at or after the time are no longer kept, or may no longer be kept.
    pub is_cut: bool,
}

impl Journal {
    /// Returns the version that a unit has reached. `None` before its first list, and for a server whose versions are no numbers.
    pub fn latest(&self, unit: UnitId) -> Option<UnitVersion> {
        self.inner.core().timeline.latest(unit)
    }

    /// Returns a position behind which all changes of a unit after a version are. Some of the changes up to the version may be behind
    /// it too.
    ///
    /// Without a store, only the newest 16,384 appends are known, and the records of the position may be gone. With a store, all
    /// records after the position are kept, unless a removal is running. Reads the disk if the position is older than these appends.
    pub fn after(&self, unit: UnitId, version: UnitVersion) -> Result<Sequence, AfterError> {
        let core = self.inner.core();
        let (recent, kept_from) = (core.timeline.after(unit, version, core.released())?, core.kept_from());
        drop(core);
        let position = match (recent, self.inner.disk()) {
            (None, Some(disk)) => {
                let page = disk.store.timeline_page(&|floor| floor.precedes(unit, version))?;
                page.and_then(|page| page.after(unit, version))
            }
            _ => recent,
        };
        let is_kept = |position: &Sequence| !self.is_stored() || position.0 + 1 >= kept_from.0;
        Ok(position.filter(is_kept).ok_or(OutOfReach::Compacted)?)
    }

    /// Returns the version that a unit had reached at a position: all its changes up to this version are at or before the position.
    /// `None` if it had reached none, or if the position is older than the timeline. Reads the disk for an old position.
    pub fn at(&self, unit: UnitId, position: Sequence) -> Result<Option<UnitVersion>, StoreError> {
        let core = self.inner.core();
        if core.timeline.begins_by(position) {
            return Ok(core.timeline.at(unit, position));
        }
        drop(core);
        let Some(disk) = self.inner.disk() else { return Ok(None) };
        let page = disk.store.timeline_page(&|floor| floor.position <= position)?;
        Ok(page.and_then(|page| page.at(unit, position)))
    }

    /// Finds the first record at or after a time, in microseconds since the Unix epoch. If the clock was set back, its times stand still
    /// until it has caught up: the answer then has more records, never fewer. Reads the disk for an old time.
    pub fn before(&self, micros: i64) -> Result<TimedPosition, StoreError> {
        let core = self.inner.core();
        let (recent, kept_from) = (core.timeline.before(micros, core.released()), core.kept_from());
        drop(core);
        let position = match (recent, self.inner.disk()) {
            (None, Some(disk)) => {
                let page = disk.store.timeline_page(&|floor| floor.micros < micros)?;
                page.map(|page| page.before(micros))
            }
            _ => recent,
        };
        let oldest = Sequence(kept_from.0 - 1);
        let is_cut = position.map_or(oldest > Sequence(0) || !self.is_stored(), |position| position < oldest);
        Ok(TimedPosition { position: position.unwrap_or(oldest).max(oldest), is_cut })
    }
}
