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
    /// Sets the terms of a unit, before its first append. May block on the disk.
    pub fn add_unit(&self, unit: UnitId, terms: UnitTerms) {
        self.core().add_unit(unit, terms);
        self.update_unit(unit, |stored| stored.terms = terms);
    }

    /// Keeps with a unit what the engine has to know of it after a restart; after [`Journal::add_unit`]. Without a store
    /// it is forgotten. May block on the disk.
    pub fn describe_unit(&self, unit: UnitId, description: serde_json::Value) {
        self.update_unit(unit, |stored| stored.description = description);
    }

    /// Returns the units that the store has, retired ones included.
    pub fn units(&self) -> Vec<StoredUnit> {
        self.disk().map(|disk| lock(&disk.units).values().cloned().collect()).unwrap_or_default()
    }

    /// Returns the packer of a unit's bodies, with this compression. A store takes bodies as it packs them.
    pub fn packer(&self, unit: UnitId, compression: Compression) -> Arc<Packer> {
        let Some(disk) = self.disk() else { return Arc::new(Packer::new(compression)) };
        let packer = disk.store.packer(unit);
        packer.set_compression(compression);
        packer
    }

    /// Returns the first id that is above those of all units of this and the last run.
    pub fn next_unit(&self) -> UnitId {
        UnitId(self.core().next_unit)
    }

    /// Returns the terms set by [`Journal::add_unit`].
    pub fn terms(&self, unit: UnitId) -> Option<UnitTerms> {
        self.core().terms(unit)
    }

    /// Visits the objects of a unit as its last append left them, in order of their keys. Blocks on the disk.
    pub fn objects(&self, unit: UnitId, visit: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        self.disk().map_or(Ok(()), |disk| disk.store.objects(unit, visit))
    }

    /// Notes that a unit appends nothing more. What it appended before is still delivered. Once every reader has passed
    /// the returned position, the unit can be forgotten. May block on the disk.
    pub fn retire_unit(&self, unit: UnitId) -> Sequence {
        let (last, woken) = self.core().retire_unit(unit);
        self.inner().wake(&woken);
        self.update_unit(unit, |stored| stored.retired = Some(last));
        last
    }

    /// Forgets a retired unit that every reader has passed. May block on the disk.
    pub fn forget_unit(&self, unit: UnitId) {
        let mut core = self.core();
        core.forget_unit(unit);
        let is_last = unit.0 + 1 == core.next_unit;
        drop(core);
        // The last one stays for now: it says which ids were used.
        let Some(disk) = self.disk().filter(|_| !is_last) else { return };
        let _gate = disk.shut();
        lock(&disk.units).remove(&unit);
        disk.note(disk.store.forget_unit(unit)); // after an error it is retired still: the next run forgets it
    }

    fn update_unit(&self, unit: UnitId, change: impl FnOnce(&mut StoredUnit)) {
        let Some(disk) = self.disk() else { return };
        let Some(terms) = self.core().terms(unit) else { return };
        let _gate = disk.shut(); // an append moves what it reached
        let mut units = lock(&disk.units);
        let (description, reached) = (serde_json::Value::Null, Reached::default());
        let new = || StoredUnit { id: unit, description, terms, reached, retired: None };
        let stored = units.entry(unit).or_insert_with(new);
        change(stored);
        disk.note(disk.store.put_unit(stored)); // after an error all units are written again
    }

    /// Returns whether every unit that the reader takes has synced, and the reader has acknowledged everything up to
    /// there (S-8). A type has synced with the first [`Synced`](crate::change::Change::Synced) of one of its units. No reader
    /// has before [`Journal::set_discovered`]. A reader that takes more has synced again once it is done with that too.
    pub fn has_synced(&self, reader: ReaderId) -> bool {
        self.core().has_synced(reader)
    }

    /// Notes that all units of the first discovery are known.
    pub fn set_discovered(&self) {
        self.core().set_discovered();
    }

    /// Returns whether some reader is due for the `round`-th resync of `unit` (S-11). Ask before each round: readers count
    /// from the last one asked for.
    pub fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.core().is_resync_due(unit, round)
    }
}
