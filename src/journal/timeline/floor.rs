//! State of all units directly before a step.

use std::collections::BTreeMap;

use super::{Step, UnitProgress, UnitVersion};
use crate::journal::{Sequence, UnitId};

/// State of all units directly before a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Floor {
    /// Last position before the step.
    pub(crate) position: Sequence,
    /// Time of the last step before it.
    pub(crate) micros: i64,
    pub(crate) units: BTreeMap<UnitId, Known>,
}

/// Version of a unit, and whether later changes may have followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Version that the unit has reached.
    pub(crate) version: UnitVersion,
    /// Position directly before the next append with changes; `None` if there is none. That append has reached no later version, or
    /// the unit would be known by it.
    pub(crate) followed: Option<Sequence>,
}

impl Known {
    /// Advances the knowledge of a step's unit by that step.
    pub(super) fn absorb(known: &mut Option<Self>, step: &Step) {
        match step.progress {
            UnitProgress::Nothing => {}
            UnitProgress::Partial => {
                if let Some(known) = known {
                    known.followed.get_or_insert(step.before());
                }
            }
            UnitProgress::Reached(version) => *known = Some(Self { version, followed: None }),
            UnitProgress::Lost(version) => *known = Some(Self { version, followed: Some(step.before()) }),
        }
    }
}

impl Floor {
    /// Returns a floor without units.
    pub(super) fn at(position: Sequence, micros: i64) -> Self {
        Self { position, micros, units: BTreeMap::new() }
    }

    /// Sets the version of a unit of which no step is known. Later changes may have followed, and may be removed.
    pub(super) fn know_vaguely(&mut self, unit: UnitId, version: UnitVersion) {
        self.units.insert(unit, Known { version, followed: Some(Sequence(0)) });
    }

    /// Moves behind a step.
    pub(super) fn absorb(&mut self, step: &Step) {
        (self.position, self.micros) = (step.last.max(self.position), step.micros);
        let mut known = self.known(step.unit);
        Known::absorb(&mut known, step);
        if let Some(known) = known {
            self.units.insert(step.unit, known);
        }
    }

    pub(super) fn known(&self, unit: UnitId) -> Option<Known> {
        self.units.get(&unit).copied()
    }

    /// Returns the version that a unit has reached.
    pub(crate) fn version(&self, unit: UnitId) -> Option<UnitVersion> {
        self.known(unit).map(|known| known.version)
    }

    /// Returns true if the unit has reached no version after `version` before the step.
    pub(crate) fn precedes(&self, unit: UnitId, version: UnitVersion) -> bool {
        self.version(unit).is_none_or(|known| known <= version)
    }

    pub(super) fn versions(&self) -> impl Iterator<Item = (UnitId, UnitVersion)> {
        self.units.iter().map(|(unit, known)| (*unit, known.version))
    }

    /// Returns the units with later changes than the version that they have reached.
    pub(super) fn partial(&self) -> impl Iterator<Item = UnitId> {
        self.units.iter().filter(|(_, known)| known.followed.is_some()).map(|(unit, _)| *unit)
    }

    pub(super) fn forget(&mut self, unit: UnitId) {
        self.units.remove(&unit);
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(UnitId) -> bool) {
        self.units.retain(|unit, _| keeps(*unit));
    }
}
