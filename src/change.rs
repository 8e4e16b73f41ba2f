//! The record of what changed in a cache: the indexer makes changes, the journal keeps them, handlers receive them.

use crate::object::{Object, ResourceVersion};

/// Source of a change; `cause` of `interfaces.md` §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The first list of this resource.
    Initial,
    /// The watch said so.
    Watch,
    /// Found by comparing a later list with the cache.
    Relist,
    /// Redelivered from the cache, in the unit's `round`-th resync: says which handlers it is for (S-11).
    Resync {
        /// Counts the resyncs of the unit.
        round: u32,
    },
    /// Found by comparing a list with what was known before a restart of the process, see [`Absence`](crate::indexer::Absence).
    Downtime,
    /// The configuration changed.
    Reload,
    /// Shown to a handler that joined late.
    Replay,
}

/// Difference between two versions of a cache, as the indexer emits it.
#[derive(Clone, Debug)]
pub enum Change {
    /// The key was not in the cache.
    Added {
        /// The new object.
        object: Object,
        /// Its source.
        cause: Cause,
    },
    /// The key was in the cache with another version.
    Updated {
        /// The object before; the very same pointer as `object` where it is not known: see [`Change::old`].
        old: Object,
        /// The object now.
        object: Object,
        /// Its source.
        cause: Cause,
    },
    /// The server said that the object is gone.
    Deleted {
        /// Its final state, or the last one known where `tombstone`.
        object: Object,
        /// The deletion was found by a list: the final state was never seen.
        tombstone: bool,
        /// Its source.
        cause: Cause,
    },
    /// It left what this unit is configured to show, and may live on: units with a selector, objects that opt out.
    Removed {
        /// The last state shown.
        object: Object,
        /// Its source.
        cause: Cause,
    },
    /// A list or a resync delivered the version that the cache had already (S-4, D-8).
    Unchanged {
        /// The cached object.
        object: Object,
        /// [`Cause::Relist`], [`Cause::Downtime`] or [`Cause::Resync`]; [`Cause::Watch`] where a watch repeats itself; [`Cause::Reload`]
        /// where the body may be another one, cut in another way.
        cause: Cause,
    },
    /// An update touched nothing but what the configuration ignores ([`IndexerOptions::ignored`](crate::indexer::IndexerOptions::ignored)): the cache has the new
    /// object, and it is no event. The next update has it as `old`.
    Refreshed {
        /// The object now.
        object: Object,
    },
    /// The initial state is complete; comes once, after the last change with [`Cause::Initial`].
    Synced {
        /// Objects in the cache.
        objects: u64,
        /// Version of the list.
        resource_version: ResourceVersion,
    },
}

impl Change {
    /// Returns the object it is about; `None` for [`Change::Synced`].
    pub fn object(&self) -> Option<&Object> {
        match self {
            Self::Added { object, .. }
            | Self::Updated { object, .. }
            | Self::Deleted { object, .. }
            | Self::Removed { object, .. }
            | Self::Unchanged { object, .. }
            | Self::Refreshed { object } => Some(object),
            Self::Synced { .. } => None,
        }
    }

    /// Returns its source; `None` for a [`Change::Synced`] and for changes that are not delivered.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Added { cause, .. }
            | Self::Updated { cause, .. }
            | Self::Deleted { cause, .. }
            | Self::Removed { cause, .. }
            | Self::Unchanged { cause, .. } => Some(*cause),
            Self::Refreshed { .. } | Self::Synced { .. } => None,
        }
    }

    /// Returns the state before an update; `None` where it is not known, because the cache keeps no bodies.
    pub fn old(&self) -> Option<&Object> {
        match self {
            Self::Updated { old, object, .. } if !old.ptr_eq(object) => Some(old),
            _ => None,
        }
    }

    /// Returns the same of packed objects, as far as they were packed before.
    pub(crate) fn packed(&self) -> Self {
        let mut change = self.clone();
        match &mut change {
            Self::Updated { old, object, .. } => [old, object].into_iter().for_each(pack),
            Self::Added { object, .. }
            | Self::Deleted { object, .. }
            | Self::Removed { object, .. }
            | Self::Unchanged { object, .. }
            | Self::Refreshed { object } => pack(object),
            Self::Synced { .. } => {}
        }
        change
    }

    /// Returns whether it is an update from a state that is not known.
    pub fn lacks_old(&self) -> bool {
        matches!(self, Self::Updated { .. }) && self.old().is_none()
    }

    /// Returns the state it leaves its key in; `None` where the key is absent then.
    pub(crate) fn state(&self) -> Option<&Object> {
        match self {
            Self::Deleted { .. } | Self::Removed { .. } => None,
            change => change.object(),
        }
    }
}

fn pack(object: &mut Object) {
    if let Some(packed) = object.packed_before() {
        *object = packed;
    }
}

/// Position of a cache once a batch is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Counts versions; with `store_version` it names one.
    pub generation: u64,
    /// Version of the last write applied (I-11); unset before the first.
    pub store_version: ResourceVersion,
    /// A watch may be resumed here; unset where it cannot.
    pub resume_version: ResourceVersion,
    /// The initial state is complete.
    pub synced: bool,
}
