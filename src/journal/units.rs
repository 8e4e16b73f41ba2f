//! Units as journal and readers know them.

use std::collections::HashMap;

use super::UnitId;

/// The units of one type: an object is in one of them only, and may move to another.
pub(crate) type Lane = u64;

pub(crate) type Units = HashMap<UnitId, JournalUnit>;

/// Facts about the unit of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordOrigin {
    pub(crate) lane: Lane,
    /// Its cache holds the bodies of living objects.
    pub(crate) cached: bool,
}

/// One unit as its journal knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalUnit {
    pub(crate) id: UnitId,
    pub(crate) origin: RecordOrigin,
    /// Nothing of its first list existed at the very first start.
    pub(crate) late: bool,
    /// Its last resync.
    pub(crate) round: u32,
    /// It appends nothing more, and no reader sees it.
    pub(crate) retired: bool,
    pub(in crate::journal) epoch: u64,
}

impl JournalUnit {
    pub(super) fn new(id: UnitId) -> Self {
        // A unit without terms shares its lane with no other.
        let origin = RecordOrigin { lane: u64::MAX - u64::from(id.0), cached: true };
        Self { id, origin, late: false, round: 0, retired: false, epoch: 0 }
    }
}

/// Begin or end of what one reader sees of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossing {
    Join,
    Leave,
}
