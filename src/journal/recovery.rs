//! Selection of the records that a reader wants and has not seen, after a restart.

use super::{
    ChangeKind, ChangeSet, Sequence, UnitId,
    store::{Head, StoredReader},
    units::Units,
};
use crate::change::Cause;

/// Selects records for one reader by their heads.
///
/// Joins and leaves take effect at their records, the only ones that are addressed to one reader. Resyncs are not repeated.
#[derive(Debug)]
pub(crate) struct Judge {
    /// State from which the reader resumes.
    pub(super) state: StoredReader,
    /// Wanted kinds of changes.
    pub(super) changes: ChangeSet,
    pub(super) units: Units,
}

impl Judge {
    /// Returns the position up to which all records are judged.
    pub(crate) fn position(&self) -> Sequence {
        self.state.position
    }

    /// Judges the next record.
    pub(crate) fn visit(&mut self, head: &Head<'_>) {
        let Some(unit) = self.units.get(&head.unit) else { return };
        let joined = &mut self.state.joined;
        let sees = match head.only {
            Some(name) if name != self.state.name => false,
            Some(_) if head.kind == ChangeKind::Added => {
                joined.insert(head.unit);
                true
            }
            Some(_) => {
                joined.remove(&head.unit);
                true
            }
            // A `Synced` concerns the whole type, not only the unit that reports it.
            None if head.kind == ChangeKind::Synced => {
                let is_of_type =
                    |of: &UnitId| self.units.get(of).is_some_and(|of| of.terms.resource == unit.terms.resource);
                joined.iter().any(is_of_type)
            }
            None => joined.contains(&head.unit),
        };
        let is_resync = matches!(head.cause, Some(Cause::Resync { .. }));
        if sees && !is_resync && self.changes.takes(head.kind, head.cause, unit.terms.late) {
            self.state.pending.insert(head.sequence);
        }
    }

    /// Notes that all records up to a position are judged.
    #[must_use]
    pub(crate) fn up_to(mut self, place: Sequence) -> Self {
        self.state.position = place;
        self
    }
}
