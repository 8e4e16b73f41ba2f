//! Selection of the records that a reader wants and has not seen, after a restart.

use std::borrow::Cow;

use super::{
    ChangeKind, ChangeSet,
    interest::{sees, wants},
    memory::units::Units,
    store::{Head, StoredReader},
};
use crate::{change::Change, object::ResourceVersion};

/// Returns the records of an attachment for a store. Without an object there is one record, a mark that its reader does not get. So
/// every attachment is at its place in the log. After a crash, the reader sees the records of the unit after it is attached and before
/// it is detached, and no others. A mark is a `Synced` with one object to attach, and with none to detach.
pub(crate) fn with_marker(attaches: bool, changes: &[Change]) -> Cow<'_, [Change]> {
    if changes.is_empty() {
        let (objects, resource_version) = (u64::from(attaches), ResourceVersion::default());
        return Cow::Owned(vec![Change::Synced { objects, resource_version }]);
    }
    Cow::Borrowed(changes)
}

impl StoredReader {
    /// Adds the record of `head` to the pending records if the reader sees the unit, and `changes` contains the change.
    ///
    /// A record that is addressed to this reader belongs to an attachment. At that record the reader starts or stops seeing the
    /// unit. Records of resyncs are not added.
    pub(super) fn select(&mut self, head: &Head<'_>, changes: ChangeSet, units: &Units) {
        let Some(unit) = units.get(&head.unit) else { return };
        let sees = match head.only {
            Some(name) if name != self.name => false,
            Some(_) => {
                let is_mark = head.kind == ChangeKind::Synced;
                if head.kind == ChangeKind::Added || is_mark && head.objects() > 0 {
                    self.attached.insert(head.unit);
                } else {
                    self.attached.remove(&head.unit);
                }
                !is_mark
            }
            None => sees(head.kind, unit, units, |unit| self.attached.contains(&unit)),
        };
        let no_resync = |_| false;
        if sees && wants(changes, head.kind, head.cause, unit, no_resync) {
            self.pending.insert(head.sequence);
        }
    }
}
