//! Sets of kinds of changes.

use crate::change::{Cause, Change, ChangeKind};

/// Set of kinds of changes. It is finer than [`ChangeKind`]: it separates initial from added objects, and relists from resyncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet(u16);

impl ChangeSet {
    /// New objects, except those of the first list.
    pub const ADDED: Self = Self(1);
    /// Objects of the first list.
    pub const INITIAL: Self = Self(1 << 1);
    /// Objects with a new version.
    pub const UPDATED: Self = Self(1 << 2);
    /// Deleted objects.
    pub const DELETED: Self = Self(1 << 3);
    /// Objects that left the selection.
    pub const REMOVED: Self = Self(1 << 4);
    /// The end of the initial state.
    pub const SYNCED: Self = Self(1 << 5);
    /// Unchanged objects of a relist.
    pub const UNCHANGED: Self = Self(1 << 6);
    /// Unchanged objects of a resync.
    pub const RESYNC: Self = Self(1 << 7);
    /// Changes made during downtime ([`Cause::Downtime`]). A set contains such a change only if it has both this flag and the kind
    /// of the change.
    pub const DOWNTIME: Self = Self(1 << 8);
    /// All kinds of events.
    pub const ALL: Self = Self(0x1ff);
    /// Refreshed objects, which are not events. The journal stores them so that waiting records get the new state.
    const REFRESHED: Self = Self(1 << 9);

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns this set without the kinds in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if the set contains all of `other`.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set contains the change.
    pub fn contains(self, change: &Change) -> bool {
        self.has(Self::of(ChangeKind::of(change), change.cause()))
    }

    /// Returns true if the set contains a change of this kind and cause. Initial objects of a `late` unit also match
    /// [`Self::ADDED`].
    pub(super) fn takes(self, kind: ChangeKind, cause: Option<Cause>, late: bool) -> bool {
        let set = Self::of(kind, cause);
        self.has(set) || (late && set == Self::INITIAL && self.has(Self::ADDED))
    }

    /// Returns the set that contains exactly this kind of change.
    pub fn of(kind: ChangeKind, cause: Option<Cause>) -> Self {
        let set = match (kind, cause) {
            (ChangeKind::Added, Some(Cause::Initial)) => Self::INITIAL,
            (ChangeKind::Added, _) => Self::ADDED,
            (ChangeKind::Updated, _) => Self::UPDATED,
            (ChangeKind::Deleted, _) => Self::DELETED,
            (ChangeKind::Removed, _) => Self::REMOVED,
            (ChangeKind::Refreshed, _) => Self::REFRESHED,
            (ChangeKind::Synced, _) => Self::SYNCED,
            (ChangeKind::Unchanged, Some(Cause::Resync { .. })) => Self::RESYNC,
            (ChangeKind::Unchanged, _) => Self::UNCHANGED,
        };
        if cause == Some(Cause::Downtime) { set.with(Self::DOWNTIME) } else { set }
    }
}
