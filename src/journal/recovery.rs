//! Selection of the records that a reader wants and has not seen, after a restart.

use super::{
    ChangeKind, ChangeSet, UnitId,
    memory::units::Units,
    store::{Head, StoredReader},
};
use crate::change::Cause;

impl StoredReader {
    /// Adds the record of `head` to the pending records if the reader sees the unit, and `changes` contains the change.
    ///
    /// A record that is addressed to this reader belongs to a join or leave. At that record the reader starts or stops seeing the
    /// unit. Records of resyncs are not added.
    pub(super) fn select(&mut self, head: &Head<'_>, changes: ChangeSet, units: &Units) {
        let Some(unit) = units.get(&head.unit) else { return };
        let sees = match head.only {
            Some(name) if name != self.name => false,
            Some(_) if head.kind == ChangeKind::Added => {
                self.joined.insert(head.unit);
                true
            }
            Some(_) => {
                self.joined.remove(&head.unit);
                true
            }
            // A `Synced` concerns the whole type, not only the unit that reports it.
            None if head.kind == ChangeKind::Synced => {
                let is_of_type = |of: &UnitId| units.get(of).is_some_and(|of| of.terms.resource == unit.terms.resource);
                self.joined.iter().any(is_of_type)
            }
            None => self.joined.contains(&head.unit),
        };
        let is_resync = matches!(head.cause, Some(Cause::Resync { .. }));
        if sees && !is_resync && changes.takes(head.kind, head.cause, unit.terms.late) {
            self.pending.insert(head.sequence);
        }
    }
}
