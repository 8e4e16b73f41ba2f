//! Which records a reader gets. [`wants`] and [`sees`] are the only rules: for records that become visible, and for the heads of
//! records that a reader has missed before a restart.

use std::{borrow::Cow, collections::HashMap};

use super::{
    ChangeSet, UnitId,
    filter::RecordFilter,
    memory::units::{JournalUnit, Units},
};
use crate::change::{Cause, Change, ChangeKind};

/// Conditions for the records that a reader gets: unit, kind of change, and filter.
#[derive(Clone, Debug, Default)]
pub struct Interest {
    /// Wanted units.
    pub units: HashMap<UnitId, UnitInterest>,
    /// Wanted kinds of changes.
    pub changes: ChangeSet,
    /// Filter for the records of the wanted units and kinds; `None` passes all. A new filter also judges waiting records that were
    /// not judged yet.
    pub filter: Option<RecordFilter>,
}

/// Interest of a reader in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitInterest {
    /// Set when the reader sees the unit only once it is attached ([`Journal::attach`]). Has no effect if the reader sees the unit
    /// already, or if the reader's previous interest contains the unit. Must be set while an attachment is pending, unless the
    /// previous interest contains the unit.
    pub attaches: bool,
    /// The reader gets every nth resync; 0 means none (S-11).
    pub resync_every: u32,
}

/// Returns true if a reader wants a record of a unit that it [sees]. `is_resync_due` tells whether the reader is due for the
/// resync of a round.
pub(super) fn wants(
    changes: ChangeSet,
    kind: ChangeKind,
    cause: Option<Cause>,
    unit: &JournalUnit,
    is_resync_due: impl Fn(u32) -> bool,
) -> bool {
    match cause {
        Some(Cause::Resync { round }) => is_resync_due(round),
        _ => changes.takes(kind, cause, unit.terms.late),
    }
}

/// Returns true if a reader sees the records of a kind that a unit appends for all readers. `is_attached` tells whether the reader has
/// been attached to a unit.
pub(super) fn sees(kind: ChangeKind, unit: &JournalUnit, units: &Units, is_attached: impl Fn(UnitId) -> bool) -> bool {
    if kind != ChangeKind::Synced {
        return is_attached(unit.id);
    }
    // A `Synced` concerns the whole type, not only the unit that reports it.
    units.values().any(|of| of.terms.resource == unit.terms.resource && is_attached(of.id))
}

/// Leaves out the unchanged objects of a relist, unless a reader of the unit wants them. Asks for that only if there are any.
pub(crate) fn worth_recording(changes: &[Change], is_wanted: impl FnOnce() -> bool) -> Cow<'_, [Change]> {
    let is_repeated = |change: &Change| matches!(change, Change::Unchanged { cause: Cause::Relist, .. });
    if !changes.iter().any(is_repeated) || is_wanted() {
        return Cow::Borrowed(changes);
    }
    changes.iter().filter(|change| !is_repeated(change)).cloned().collect()
}
