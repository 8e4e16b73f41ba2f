//! What a reader wants of records that it has not seen: after a restart, or when it begins in the past.

use std::collections::HashMap;

use super::{
    ChangeKind, ChangeSet, Interest, Sequence, UnitId,
    memory::Lane,
    store::{Head, StoredReader},
};
use crate::indexer::Cause;

/// Decides record by record, by their heads, what a reader wants.
///
/// Joins and leaves take effect where their records are: these alone are addressed to one reader. Resyncs are over.
#[derive(Debug)]
pub struct Judge {
    state: StoredReader,
    changes: ChangeSet,
    /// Of each unit its lane, and whether its first list is wanted by those who want no initial objects.
    units: HashMap<UnitId, (Lane, bool)>,
}

impl Judge {
    /// Makes the judge of a reader that goes on where `state` is; one that `begins` there sees all of its interest.
    pub(super) fn new(
        mut state: StoredReader,
        units: HashMap<UnitId, (Lane, bool)>,
        interest: &Interest,
        begins: bool,
    ) -> Self {
        if begins {
            let seen = interest.units.iter().filter(|(_, unit)| !unit.joins);
            state.joined = seen.map(|(unit, _)| *unit).collect();
        }
        state.pending.get_or_insert_default();
        Self { state, changes: interest.changes, units }
    }

    /// Returns the place up to which everything is decided.
    pub fn position(&self) -> Sequence {
        self.state.position
    }

    /// Decides on the next record.
    pub fn visit(&mut self, head: &Head<'_>) {
        let Some((of_type, late)) = self.units.get(&head.unit).copied() else { return };
        let wanted = match head.only {
            Some(name) if name == self.state.name && head.kind == ChangeKind::Added => {
                self.state.joined.insert(head.unit);
                true
            }
            Some(name) if name == self.state.name => {
                self.state.joined.remove(&head.unit);
                true
            }
            Some(_) => false,
            None if head.kind == ChangeKind::Synced => {
                // It speaks of the type, whichever of its units says so last.
                self.state.joined.iter().any(|unit| self.units.get(unit).is_some_and(|(of, _)| *of == of_type))
            }
            None => self.state.joined.contains(&head.unit),
        };
        if wanted && self.is_of_interest(head.kind, head.cause, late) {
            self.state.pending.get_or_insert_default().insert(head.sequence.0);
        }
    }

    fn is_of_interest(&self, kind: ChangeKind, cause: Option<Cause>, late: bool) -> bool {
        let set = ChangeSet::of(kind, cause);
        set != ChangeSet::RESYNC
            && (self.changes.has(set) || (late && set == ChangeSet::INITIAL && self.changes.has(ChangeSet::ADDED)))
    }

    /// Notes that everything up to `place` is decided.
    #[must_use]
    pub fn up_to(mut self, place: Sequence) -> Self {
        self.state.position = place;
        self
    }

    pub(super) fn into_state(self) -> StoredReader {
        self.state
    }
}
