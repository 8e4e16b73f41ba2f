//! Units of the core: their terms, generations, resyncs, and synced types.

use std::collections::HashMap;

use super::{Batch, MemoryJournal, Turn};
use crate::journal::{Fenced, ReaderId, Sequence, TypeNumber, UnitId, UnitTerms, UnitWriter};

pub(crate) type Units = HashMap<UnitId, JournalUnit>;

/// One unit as the journal and its readers know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalUnit {
    pub(crate) id: UnitId,
    pub(crate) terms: UnitTerms,
    /// Set when the unit appends no more records, and no reader sees it.
    pub(crate) retired: bool,
    generation: u64,
}

impl JournalUnit {
    fn new(id: UnitId) -> Self {
        // Before its terms are set, a unit shares its type with no other unit.
        let terms = UnitTerms { resource: TypeNumber(u32::MAX - id.0), late: false, cached: true };
        Self { id, terms, retired: false, generation: 0 }
    }
}

impl MemoryJournal {
    pub(super) fn unit(&mut self, id: UnitId) -> &mut JournalUnit {
        self.units.entry(id).or_insert_with(|| JournalUnit::new(id))
    }

    pub(crate) fn add_unit(&mut self, unit: UnitId, terms: UnitTerms) {
        self.next_unit = self.next_unit.max(unit.0 + 1);
        self.unit(unit).terms = terms;
    }

    pub(crate) fn terms(&self, unit: UnitId) -> Option<UnitTerms> {
        let unset = JournalUnit::new(unit).terms.resource;
        self.units.get(&unit).map(|unit| unit.terms).filter(|terms| terms.resource != unset)
    }

    /// Appends an empty batch. When it becomes visible, all readers stop seeing the unit. Returns an upper bound of the unit's
    /// last position.
    pub(crate) fn retire_unit(&mut self, unit: UnitId) -> Sequence {
        self.push(unit, None, &[], 0, Turn::Retire);
        self.last()
    }

    pub(crate) fn forget_unit(&mut self, unit: UnitId) {
        let Some(JournalUnit { terms: UnitTerms { resource, .. }, .. }) = self.units.remove(&unit) else { return };
        self.timeline.forget_unit(unit);
        let is_last = self.units.values().all(|unit| unit.terms.resource != resource);
        if is_last {
            self.synced.remove(&resource);
        }
        for reader in self.readers.values_mut() {
            reader.forget_unit(unit, is_last.then_some(resource));
        }
    }

    pub(crate) fn has_synced(&self, reader: ReaderId) -> bool {
        let reader = self.readers.get(&reader).filter(|_| self.discovered);
        reader.is_some_and(|reader| reader.has_synced(&self.units, &self.synced))
    }

    /// Returns true if a reader is due for a resync of a unit.
    pub(crate) fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        // A reader may be due once its pending attachment takes effect.
        let is_attached = |batch: &Batch| batch.unit == unit && matches!(batch.turn, Turn::Attachment { .. });
        self.readers.values().any(|reader| reader.is_resync_due(unit, round)) || self.pending.iter().any(is_attached)
    }

    /// Returns true if a reader wants the unchanged objects of a unit's relists. A reader of the last run that is not opened yet may
    /// want them.
    pub(crate) fn wants_unchanged(&self, unit: UnitId) -> bool {
        !self.dormant.is_empty() || self.readers.values().any(|reader| reader.wants_unchanged(unit))
    }

    /// Refuses appends with earlier generations.
    pub(crate) fn fence(&mut self, UnitWriter { unit, generation }: UnitWriter) {
        let unit = self.unit(unit);
        unit.generation = generation.max(unit.generation);
    }

    pub(super) fn check_generation(&mut self, writer: UnitWriter) -> Result<(), Fenced> {
        let UnitWriter { unit, generation } = writer;
        let known = self.unit(unit);
        if generation < known.generation {
            return Err(Fenced { writer, current: known.generation });
        }
        known.generation = generation;
        Ok(())
    }
}
