//! Interest of a reader: the units that it sees, the changes that it wants, and its synced state.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use super::JournalReader;
use crate::{
    change::Change,
    journal::{
        ChangeKind, ChangeSet, Interest, Record, Sequence, TypeNumber, UnitId,
        filter::RecordFilter,
        interest::{sees, wants},
        memory::units::{JournalUnit, Units},
    },
};

/// Interest of a reader, and the units that it sees.
#[derive(Debug, Default)]
pub(super) struct ReaderInterest {
    pub(super) changes: ChangeSet,
    pub(super) filter: Option<RecordFilter>,
    pub(super) units: HashMap<UnitId, ReaderUnit>,
    /// Last position of the reader's initial state, for each type. Added records up to this position belong to the initial state
    /// (S-8).
    pub(super) marks: HashMap<TypeNumber, Sequence>,
}

/// A reader's view of one unit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReaderUnit {
    /// Position after which the reader sees the records of the unit; `None` before it is attached.
    attached: Option<Sequence>,
    /// Set while the unit is part of the interest. If not set, the reader is about to be detached.
    wanted: bool,
    /// The reader gets every nth resync of the unit; 0 means none (S-11).
    resync_every: u32,
}

impl ReaderInterest {
    /// Returns the interest of a reader that was attached to these units in the last run. It is replaced before the first append.
    pub(super) fn of_last_run(attached: BTreeSet<UnitId>, units: &Units) -> Self {
        let is_known = |unit: &UnitId| units.get(unit).is_some_and(|unit| !unit.retired);
        let seen = ReaderUnit { attached: Some(Sequence(0)), ..ReaderUnit::default() };
        Self { units: attached.into_iter().filter(is_known).map(|unit| (unit, seen)).collect(), ..Self::default() }
    }

    /// Returns true if the reader is attached to a unit.
    fn is_attached(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|of_unit| of_unit.attached.is_some())
    }

    fn wants(&self, change: &Change, unit: &JournalUnit) -> bool {
        let is_resync_due = |round| self.is_resync_due(unit.id, round);
        wants(self.changes, ChangeKind::of(change), change.cause(), unit, is_resync_due)
    }

    fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        let is_due = |of_unit: &ReaderUnit| of_unit.attached.is_some() && round.is_multiple_of(of_unit.resync_every);
        self.changes.has(ChangeSet::RESYNC) && self.units.get(&unit).is_some_and(is_due)
    }

    fn mark(&mut self, resource: TypeNumber, position: Sequence) {
        let mark = self.marks.entry(resource).or_insert(position);
        *mark = position.max(*mark);
    }
}

impl JournalReader {
    /// Forgets a unit. If `resource` is set, also forgets this type, because it has no unit any more.
    pub(crate) fn forget_unit(&mut self, unit: UnitId, resource: Option<TypeNumber>) {
        self.interest.units.remove(&unit);
        if let Some(resource) = resource {
            self.interest.marks.remove(&resource);
        }
    }

    /// Replaces the interest. A unit that the reader sees and no longer wants stays visible until the reader is detached.
    pub(crate) fn set_interest(
        &mut self,
        interest: &Interest,
        units: &Units,
        synced: &HashMap<TypeNumber, Sequence>,
        last: Sequence,
    ) {
        if self.abandoned {
            return;
        }
        self.interest.changes = interest.changes;
        self.interest.filter.clone_from(&interest.filter);
        self.interest.units.retain(|unit, of_unit| interest.units.contains_key(unit) || of_unit.attached.is_some());
        for (unit, of_unit) in &mut self.interest.units {
            of_unit.wanted = interest.units.contains_key(unit);
            of_unit.resync_every = interest.units.get(unit).map_or(of_unit.resync_every, |wanted| wanted.resync_every);
        }
        self.touch();
        for (id, wanted) in &interest.units {
            let unit = &units[id];
            let attached = (!wanted.attaches).then_some(last);
            let of_unit = ReaderUnit { attached, wanted: true, resync_every: wanted.resync_every };
            self.interest.units.entry(*id).or_insert(of_unit);
            if let Some(synced) = synced.get(&unit.terms.resource) {
                self.interest.mark(unit.terms.resource, *synced);
            }
        }
    }

    /// Starts to see a unit that is not part of the interest, from the position `last` on.
    pub(crate) fn inherit(&mut self, unit: UnitId, last: Sequence) {
        if !self.abandoned {
            self.interest.units.entry(unit).or_insert(ReaderUnit { attached: Some(last), ..ReaderUnit::default() });
            self.touch();
        }
    }

    /// Takes newly visible records of a unit. Returns true if one of them is wanted.
    pub(crate) fn show(&mut self, records: &[Record], unit: &JournalUnit, units: &Units) -> bool {
        let sees_objects = self.sees(unit.id);
        let before = self.tally.stats.wanted;
        self.touch(); // the watermark moves the position of the reader
        if self.abandoned {
            return false;
        }
        for record in records {
            if matches!(record.change, Change::Synced { .. }) {
                if sees(ChangeKind::Synced, unit, units, |unit| self.interest.units.contains_key(&unit)) {
                    self.interest.mark(unit.terms.resource, record.sequence);
                }
                let attached = |unit| self.interest.units.get(&unit)?.attached;
                let is_before = |unit| attached(unit).is_some_and(|attached| attached < record.sequence);
                let sees_type = sees(ChangeKind::Synced, unit, units, is_before);
                if sees_type && self.interest.wants(&record.change, unit) {
                    self.push(record, unit.terms, true);
                }
            } else if sees_objects {
                self.push(record, unit.terms, self.interest.wants(&record.change, unit));
            }
        }
        self.settle();
        self.tally.stats.wanted > before
    }

    /// Takes the records of an attachment. Returns true if one of them is wanted. `attach` is `None` to detach. Else it
    /// is the number that [`Self::resync_every`] returned when the attachment was appended.
    pub(crate) fn attach(
        &mut self,
        attach: Option<u32>,
        records: &[Record],
        last: Sequence,
        unit: &JournalUnit,
    ) -> bool {
        if self.abandoned || self.sees(unit.id) == attach.is_some() {
            return false;
        }
        let before = self.tally.stats.wanted;
        self.touch();
        if let Some(resync_every) = attach {
            // The interest may no longer contain the unit. It is then detached.
            let unwanted = ReaderUnit { resync_every, ..ReaderUnit::default() };
            self.interest.units.entry(unit.id).or_insert(unwanted).attached = Some(last);
            self.interest.mark(unit.terms.resource, last);
        } else if let Entry::Occupied(mut of_unit) = self.interest.units.entry(unit.id) {
            if of_unit.get().wanted {
                of_unit.get_mut().attached = None;
            } else {
                of_unit.remove();
            }
        }
        let is_mark = |record: &&Record| matches!(record.change, Change::Synced { .. });
        for record in records.iter().filter(|record| !is_mark(record)) {
            self.push(record, unit.terms, self.interest.wants(&record.change, unit));
        }
        self.settle();
        self.tally.stats.wanted > before
    }

    /// Returns true if the reader is attached to a unit.
    pub(crate) fn sees(&self, unit: UnitId) -> bool {
        self.interest.is_attached(unit)
    }

    /// Returns true if the reader wants the unchanged objects of a unit's relists.
    pub(crate) fn wants_unchanged(&self, unit: UnitId) -> bool {
        self.interest.changes.has(ChangeSet::UNCHANGED) && self.interest.units.contains_key(&unit)
    }

    /// Returns n if the reader gets every nth resync of the unit; 0 means none.
    pub(crate) fn resync_every(&self, unit: UnitId) -> u32 {
        self.interest.units.get(&unit).map_or(0, |of_unit| of_unit.resync_every)
    }

    pub(crate) fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.interest.is_resync_due(unit, round)
    }

    pub(crate) fn has_synced(&self, units: &Units, synced: &HashMap<TypeNumber, Sequence>) -> bool {
        let oldest = self.first();
        let is_past = |position: Sequence| oldest.is_none_or(|oldest| oldest > position);
        let is_done = |(id, of_unit): (&UnitId, &ReaderUnit)| {
            let synced = units.get(id).and_then(|unit| synced.get(&unit.terms.resource));
            of_unit.attached.is_some_and(is_past) && synced.is_some_and(|synced| is_past(*synced))
        };
        !self.abandoned && self.interest.units.iter().all(is_done)
    }

    /// Returns the units that the reader sees.
    pub(crate) fn attached(&self) -> BTreeSet<UnitId> {
        let seen = self.interest.units.iter().filter(|(_, of_unit)| of_unit.attached.is_some());
        seen.map(|(unit, _)| *unit).collect()
    }
}
