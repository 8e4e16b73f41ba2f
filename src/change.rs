//! Changes of a cache. The indexer makes them, the journal keeps them, handlers receive them.

use strum::{EnumDiscriminants, EnumString, IntoStaticStr, VariantNames};

use crate::object::{Object, ResourceVersion};

/// Source of a change: the attribute `cause` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase")]
#[non_exhaustive]
pub enum Cause {
    /// First list of this resource.
    Initial,
    /// Event of a watch.
    Watch,
    /// Difference between a later list and the cache.
    Relist,
    /// Redelivery of a cached object in a resync of the unit. The number of the resync decides which handlers receive the object
    /// (S-11).
    Resync {
        /// Number of the resync, counted per unit.
        round: u32,
    },
    /// Change during the downtime of the engine. The downtime begins with the newest saved state and ends with the first data from
    /// the server.
    Downtime,
    /// Change of the configuration.
    Reload,
    /// Replay to a handler that was added later.
    Replay,
}

/// Difference between two versions of a cache, emitted by the indexer.
#[derive(Clone, Debug, EnumDiscriminants)]
#[strum_discriminants(name(ChangeKind), derive(Hash, PartialOrd, Ord), doc = "A [`Change`] without its content.")]
#[non_exhaustive]
pub enum Change {
    /// New object in the cache.
    Added {
        /// The new object.
        object: Object,
        /// Source of the change.
        cause: Cause,
    },
    /// New version of an object whose key was already in the cache.
    Updated {
        /// The previous object. If it is not known, this is the same pointer as `object`, see [`Change::old`].
        old: Object,
        /// The new object.
        object: Object,
        /// Source of the change.
        cause: Cause,
    },
    /// Deletion of the object on the server.
    Deleted {
        /// Final state of the object; with `tombstone`, the last known state.
        object: Object,
        /// Set when the server did not report the deletion itself: a list revealed it, or a new object with the same name. The
        /// final state was then never received.
        tombstone: bool,
        /// Source of the change.
        cause: Cause,
    },
    /// The object is no longer in the scope of this unit, but may still exist. Reasons: a selector no longer matches,
    /// or the object opts out.
    Removed {
        /// Last known state of the object.
        object: Object,
        /// Source of the change.
        cause: Cause,
    },
    /// A list or a resync delivered the version that was already in the cache (S-4, D-8).
    Unchanged {
        /// The cached object.
        object: Object,
        /// [`Cause::Relist`], [`Cause::Downtime`] or [`Cause::Resync`]. [`Cause::Watch`] if a watch repeats an event.
        /// [`Cause::Reload`] if the configuration now keeps other fields of the body.
        cause: Cause,
    },
    /// An update changed only fields that the configuration ignores (`ignore_changes`). The cache has the new
    /// object, and no event is delivered. The next update has this object as `old`.
    Refreshed {
        /// The new object.
        object: Object,
    },
    /// The initial state is complete. Emitted once, after the last change with [`Cause::Initial`].
    Synced {
        /// Number of objects in the cache.
        objects: u64,
        /// Resource version of the list.
        resource_version: ResourceVersion,
    },
}

impl Change {
    /// Returns the changed object; `None` for [`Change::Synced`].
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

    /// Returns the source; `None` for [`Change::Synced`] and [`Change::Refreshed`].
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

    /// Returns the previous object of an update. `None` for other changes, and if the cache has no body of the previous object.
    pub fn old(&self) -> Option<&Object> {
        match self {
            Self::Updated { old, object, .. } if !old.ptr_eq(object) => Some(old),
            _ => None,
        }
    }

    /// Returns the same change with packed objects. An object that was never packed stays as it is.
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

    /// Returns true for an update whose previous object is not known.
    pub fn lacks_old(&self) -> bool {
        matches!(self, Self::Updated { .. }) && self.old().is_none()
    }

    /// Returns the object after the change; `None` for [`Change::Deleted`], [`Change::Removed`] and [`Change::Synced`].
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

/// Position of a cache after a batch is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Version counter of the cache. Together with `store_version` it identifies a version of the cache.
    pub generation: u64,
    /// Resource version of the last change that the cache applied (I-11); unset before the first change.
    pub store_version: ResourceVersion,
    /// Resource version from which a watch can resume; unset if no watch can resume.
    pub resume_version: ResourceVersion,
    /// Set when the initial state is complete.
    pub synced: bool,
}
