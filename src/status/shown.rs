//! The part of a unit's view that comes from its reflector and its cache.

use super::{CHECKING, UNAUTHORIZED, UnitState, UnitView, confirming, forbidden, missing};
use crate::{
    indexer::{Change, store::Meta},
    object::ResourceType,
    reflector::{Availability, Reflector, ReflectorState},
};

impl UnitView {
    /// Takes state, message and counters from the reflector of `resource`.
    pub(crate) fn show_reflector(&mut self, reflector: &Reflector, resource: &ResourceType) {
        let (availability, state) = (reflector.availability(), reflector.state());
        let namespace = self.namespace.as_deref();
        (self.state, self.message) = match (availability, state) {
            (_, ReflectorState::Stopped) => (UnitState::Stopped, None),
            (Availability::Forbidden(verb), _) => {
                (UnitState::Forbidden, Some(forbidden(verb.as_str(), resource, namespace)))
            }
            (Availability::Unauthorized, _) => (UnitState::Forbidden, Some(UNAUTHORIZED.to_owned())),
            (Availability::Missing, _) => (UnitState::Waiting, Some(missing(resource, namespace))),
            (_, ReflectorState::Watching) => (UnitState::Watching, None),
            (_, ReflectorState::Waiting { .. }) => (UnitState::BackingOff, None),
            (_, ReflectorState::Checking) => (UnitState::Listing, Some(CHECKING.to_owned())),
            (_, ReflectorState::Confirming(lacks)) => {
                (UnitState::Listing, Some(confirming(lacks.missing, lacks.known)))
            }
            _ => (UnitState::Listing, None),
        };
        let counters = reflector.counters();
        self.lists = counters.lists + counters.streaming_lists + counters.checks;
        self.confirmations = counters.confirmations;
        self.watches = counters.watches;
        self.skipped = counters.skipped + counters.rejected;
        self.transform_failures = counters.transform_failures;
        self.stalls = counters.stalls;
        self.unreadable = counters.undecodable + counters.frames_too_long;
    }

    /// Counts changes that were applied.
    pub(crate) fn count(&mut self, changes: &[Change]) {
        let events = &mut self.events;
        for change in changes {
            match change {
                Change::Added { .. } => events.added += 1,
                Change::Updated { .. } => events.updated += 1,
                Change::Deleted { tombstone, .. } => {
                    events.deleted += 1;
                    events.tombstones += u64::from(*tombstone);
                }
                Change::Removed { .. } => events.removed += 1,
                Change::Refreshed { .. } => events.ignored += 1,
                Change::Synced { .. } | Change::Unchanged { .. } => {}
            }
        }
    }

    /// Takes what the cache holds.
    pub(crate) fn show_cache(&mut self, meta: &Meta) {
        self.synced = meta.synced;
        self.objects = meta.objects;
        self.bytes = meta.bytes;
        meta.store_version.as_str().clone_into(&mut self.resource_version);
    }
}
