//! Figures of the cache in the view of its unit.

use super::store::Meta;
use crate::{
    change::Change,
    status::{EventCounts, UnitView},
};

/// Counts applied changes.
pub(super) fn count(events: &mut EventCounts, changes: &[Change]) {
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

/// Writes figures of the cache into the view of its unit.
pub(crate) fn show(view: &mut UnitView, meta: &Meta) {
    view.synced = meta.synced;
    view.objects = meta.objects;
    view.bytes = meta.bytes;
    meta.store_version.as_str().clone_into(&mut view.resource_version);
}
