//! Units as the journal and its readers know them.

use std::collections::HashMap;

use super::UnitId;

/// Number that the units of one type share. An object is in one of these units at a time, and may move to another.
pub(crate) type Lane = u64;

pub(crate) type Units = HashMap<UnitId, JournalUnit>;

/// Facts about the unit of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordOrigin {
    pub(crate) lane: Lane,
    /// Set when the cache of the unit holds the bodies of living objects.
    pub(crate) cached: bool,
}

/// One unit as the journal knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalUnit {
    pub(crate) id: UnitId,
    pub(crate) origin: RecordOrigin,
    /// Set when the type was found after the first discovery.
    pub(crate) late: bool,
    /// Number of the last resync.
    pub(crate) round: u32,
    /// Set when the unit appends no more records, and no reader sees it.
    pub(crate) retired: bool,
    pub(in crate::journal) epoch: u64,
}

impl JournalUnit {
    pub(super) fn new(id: UnitId) -> Self {
        // A unit without terms shares its lane with no other unit.
        let origin = RecordOrigin { lane: u64::MAX - u64::from(id.0), cached: true };
        Self { id, origin, late: false, round: 0, retired: false, epoch: 0 }
    }
}

/// Start or end of a reader's view of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    Join,
    Leave,
}
