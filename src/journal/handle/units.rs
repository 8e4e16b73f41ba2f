//! Units of a journal.

use std::sync::Arc;

use super::Journal;
use crate::{
    change::Reached,
    journal::{
        ReaderId, Sequence, UnitId, UnitTerms,
        store::{StoreError, StoredUnit},
    },
    mutex::lock,
    object::{
        Object,
        packer::{Compression, Packer},
    },
};

impl Journal {
    /// Sets the terms of a unit. Call it before the first append of the unit. May block on the disk.
    pub fn add_unit(&self, unit: UnitId, terms: UnitTerms) {
        self.inner.core().add_unit(unit, terms);
        self.update_unit(unit, |stored| stored.terms = terms);
    }

    /// Stores the description of a unit, which the engine needs after a restart. Call it after [`Journal::add_unit`]. Has no
    /// effect without a store. May block on the disk.
    pub fn describe_unit(&self, unit: UnitId, description: serde_json::Value) {
        self.update_unit(unit, |stored| stored.description = description);
    }

    /// Returns the units in the store, retired ones included.
    pub fn units(&self) -> Vec<StoredUnit> {
        self.inner.disk().map(|disk| lock(&disk.units).values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the packer of a unit's bodies, and sets its compression. A store writes bodies in the form that this packer
    /// produces.
    pub fn packer(&self, unit: UnitId, compression: Compression) -> Arc<Packer> {
        let Some(disk) = self.inner.disk() else { return Arc::new(Packer::new(compression)) };
        let packer = disk.store.packer(unit);
        packer.set_compression(compression);
        packer
    }

    /// Returns an id above those of all units of this run and the last run.
    pub fn next_unit(&self) -> UnitId {
        UnitId(self.inner.core().next_unit)
    }

    /// Returns the terms set by [`Journal::add_unit`]; `None` before that call.
    pub fn terms(&self, unit: UnitId) -> Option<UnitTerms> {
        self.inner.core().terms(unit)
    }

    /// Visits the objects of a unit, as its last append left them, in the order of their keys. Blocks on the disk.
    pub fn objects(&self, unit: UnitId, visit: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        self.inner.disk().map_or(Ok(()), |disk| disk.store.objects(unit, visit))
    }

    /// Notes that a unit appends no more records. Its earlier records are still delivered. The unit can be forgotten once
    /// every reader has passed the returned position. May block on the disk.
    pub fn retire_unit(&self, unit: UnitId) -> Sequence {
        let last = self.inner.advance(|core| core.retire_unit(unit));
        self.update_unit(unit, |stored| stored.retired = Some(last));
        last
    }

    /// Forgets a retired unit that every reader has passed. May block on the disk.
    pub fn forget_unit(&self, unit: UnitId) {
        let mut core = self.inner.core();
        core.forget_unit(unit);
        let is_last = unit.0 + 1 == core.next_unit;
        drop(core);
        // The unit with the highest id stays for now: its id shows which ids were used.
        let Some(disk) = self.inner.disk().filter(|_| !is_last) else { return };
        let _gate = disk.shut();
        lock(&disk.units).remove(&unit);
        disk.note(disk.store.forget_unit(unit)); // after an error the unit stays retired, and the next run forgets it
    }

    fn update_unit(&self, unit: UnitId, change: impl FnOnce(&mut StoredUnit)) {
        let Some(disk) = self.inner.disk() else { return };
        let Some(terms) = self.inner.core().terms(unit) else { return };
        let _gate = disk.shut(); // keeps appends out: they change `reached` of the unit
        let mut units = lock(&disk.units);
        let (description, reached) = (serde_json::Value::Null, Reached::default());
        let new = || StoredUnit { id: unit, description, terms, reached, retired: None };
        let stored = units.entry(unit).or_insert_with(new);
        change(stored);
        disk.note(disk.store.put_unit(stored)); // after an error the repair writes all units again
    }

    /// Returns true once the reader has acknowledged all records up to the end of the initial state of its units (S-8). The initial
    /// state of a type ends with the first [`Synced`](crate::change::Change::Synced) of any of its units. Returns false for all
    /// readers before [`Journal::set_discovered`]. If the interest grows, the result is false again until the reader has
    /// acknowledged the initial state of the new units.
    pub fn has_synced(&self, reader: ReaderId) -> bool {
        self.inner.core().has_synced(reader)
    }

    /// Notes that all units of the first discovery are known.
    pub fn set_discovered(&self) {
        self.inner.core().discovered = true;
    }

    /// Returns true if some reader is due for the `round`-th resync of `unit` (S-11). The first `round` is 1.
    pub fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.inner.core().is_resync_due(unit, round)
    }
}
