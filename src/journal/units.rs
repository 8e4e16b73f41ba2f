//! Units as the journal and its readers know them.

use std::collections::HashMap;

use super::{TypeNumber, UnitId, UnitTerms};

pub(crate) type Units = HashMap<UnitId, JournalUnit>;

/// One unit as the journal knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalUnit {
    pub(crate) id: UnitId,
    pub(crate) terms: UnitTerms,
    /// Set when the unit appends no more records, and no reader sees it.
    pub(crate) retired: bool,
    pub(in crate::journal) epoch: u64,
}

impl JournalUnit {
    pub(super) fn new(id: UnitId) -> Self {
        // Before its terms are set, a unit shares its type with no other unit.
        let terms = UnitTerms { resource: TypeNumber(u32::MAX - id.0), late: false, cached: true };
        Self { id, terms, retired: false, epoch: 0 }
    }
}
