//! Interest of a reader: the units that it sees, the changes that it wants, and its synced state.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use super::JournalReader;
use crate::{
    change::{Cause, Change},
    journal::{
        ChangeKind, ChangeSet, Interest, Record, Sequence, TypeNumber, UnitId,
        memory::units::{JournalUnit, Units},
    },
};

/// A reader's view of one unit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// Position after which the reader sees the records of the unit; `None` before the join.
    joined: Option<Sequence>,
    /// Set while the unit is part of the interest. If not set, the reader is about to leave the unit.
    wanted: bool,
    /// The reader gets every nth resync of the unit; 0 means none (S-11).
    resync_every: u32,
}

impl Sight {
    /// Returns the view of a unit that the reader had joined in the last run.
    pub(super) fn of_last_run() -> Self {
        Self { joined: Some(Sequence(0)), ..Self::default() }
    }
}

impl JournalReader {
    /// Forgets a unit. If `resource` is set, also forgets this type, because it has no unit any more.
    pub(crate) fn forget_unit(&mut self, unit: UnitId, resource: Option<TypeNumber>) {
        self.units.remove(&unit);
        if let Some(resource) = resource {
            self.marks.remove(&resource);
        }
    }

    /// Replaces the interest. A unit that the reader sees and no longer wants stays visible until the reader leaves it.
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
        self.changes = interest.changes;
        self.filter.clone_from(&interest.filter);
        self.units.retain(|unit, sight| interest.units.contains_key(unit) || sight.joined.is_some());
        for (unit, sight) in &mut self.units {
            sight.wanted = interest.units.contains_key(unit);
            sight.resync_every = interest.units.get(unit).map_or(sight.resync_every, |wanted| wanted.resync_every);
        }
        self.touch();
        for (id, wanted) in &interest.units {
            let unit = &units[id];
            let joined = (!wanted.joins).then_some(last);
            let sight = Sight { joined, wanted: true, resync_every: wanted.resync_every };
            self.units.entry(*id).or_insert(sight);
            if let Some(synced) = synced.get(&unit.terms.resource) {
                self.mark(unit.terms.resource, *synced);
            }
        }
    }

    /// Starts to see a unit that is not part of the interest, from the position `last` on.
    pub(crate) fn inherit(&mut self, unit: UnitId, last: Sequence) {
        if !self.abandoned {
            self.units.entry(unit).or_insert(Sight { joined: Some(last), ..Sight::default() });
            self.touch();
        }
    }

    /// Takes newly visible records of a unit. Returns true if one of them is wanted.
    pub(crate) fn show(&mut self, records: &[Record], unit: &JournalUnit, units: &Units) -> bool {
        let sees = self.sees(unit.id);
        let before = self.tally.stats.wanted;
        self.touch(); // the watermark moves the position of the reader
        if self.abandoned {
            return false;
        }
        for record in records {
            if matches!(record.change, Change::Synced { .. }) {
                // A `Synced` concerns the whole type, not only the unit that reports it.
                let resource = unit.terms.resource;
                let is_of_type = |id: &UnitId| units.get(id).is_some_and(|unit| unit.terms.resource == resource);
                let mut of_type = self.units.iter().filter(|(id, _)| is_of_type(id)).peekable();
                let wants_type = of_type.peek().is_some();
                let sees_type = of_type.any(|(_, sight)| sight.joined.is_some_and(|joined| joined < record.sequence));
                if wants_type {
                    self.mark(resource, record.sequence);
                }
                if sees_type && self.changes.has(ChangeSet::SYNCED) {
                    self.take(record, unit.terms, true);
                }
            } else if sees {
                self.take(record, unit.terms, self.wants(&record.change, unit));
            }
        }
        self.settle();
        self.tally.stats.wanted > before
    }

    /// Takes the records of a join or a leave. Returns true if one of them is wanted. `join` is `None` for a leave. For a join, it
    /// is the number that [`Self::resync_every`] returned when the join was appended.
    pub(crate) fn cross(&mut self, join: Option<u32>, records: &[Record], last: Sequence, unit: &JournalUnit) -> bool {
        if self.abandoned || self.sees(unit.id) == join.is_some() {
            return false;
        }
        let before = self.tally.stats.wanted;
        self.touch();
        if let Some(resync_every) = join {
            // The interest may no longer contain the unit. A leave then follows.
            let unwanted = Sight { resync_every, ..Sight::default() };
            self.units.entry(unit.id).or_insert(unwanted).joined = Some(last);
            self.mark(unit.terms.resource, last);
        } else if let Entry::Occupied(mut sight) = self.units.entry(unit.id) {
            if sight.get().wanted {
                sight.get_mut().joined = None;
            } else {
                sight.remove();
            }
        }
        let is_mark = |record: &&Record| matches!(record.change, Change::Synced { .. });
        for record in records.iter().filter(|record| !is_mark(record)) {
            self.take(record, unit.terms, self.wants(&record.change, unit));
        }
        self.settle();
        self.tally.stats.wanted > before
    }

    /// Returns true if the reader has joined a unit.
    pub(crate) fn sees(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|sight| sight.joined.is_some())
    }

    fn wants(&self, change: &Change, unit: &JournalUnit) -> bool {
        match change {
            Change::Unchanged { cause: Cause::Resync { round }, .. } => self.is_resync_due(unit.id, *round),
            _ => self.changes.takes(ChangeKind::of(change), change.cause(), unit.terms.late),
        }
    }

    /// Returns n if the reader gets every nth resync of the unit; 0 means none.
    pub(crate) fn resync_every(&self, unit: UnitId) -> u32 {
        self.units.get(&unit).map_or(0, |sight| sight.resync_every)
    }

    pub(crate) fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        let is_due = |sight: &Sight| sight.joined.is_some() && round.is_multiple_of(sight.resync_every);
        self.changes.has(ChangeSet::RESYNC) && self.units.get(&unit).is_some_and(is_due)
    }

    fn mark(&mut self, resource: TypeNumber, position: Sequence) {
        let mark = self.marks.entry(resource).or_insert(position);
        *mark = position.max(*mark);
    }

    pub(crate) fn has_synced(&self, units: &Units, synced: &HashMap<TypeNumber, Sequence>) -> bool {
        let oldest = self.first();
        let is_past = |position: Sequence| oldest.is_none_or(|oldest| oldest > position);
        let is_done = |(id, sight): (&UnitId, &Sight)| {
            let synced = units.get(id).and_then(|unit| synced.get(&unit.terms.resource));
            sight.joined.is_some_and(is_past) && synced.is_some_and(|synced| is_past(*synced))
        };
        !self.abandoned && self.units.iter().all(is_done)
    }

    /// Returns the units that the reader sees.
    pub(crate) fn joined(&self) -> BTreeSet<UnitId> {
        let seen = self.units.iter().filter(|(_, sight)| sight.joined.is_some());
        seen.map(|(unit, _)| *unit).collect()
    }
}
