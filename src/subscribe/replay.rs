//! Replay of the existing objects to a subscriber that requests them. The replay reads one version of the cache of each unit. The
//! stream continues after this version.

use std::{cmp::Ordering, iter, sync::Arc, vec};

use jiff::Timestamp;

use super::{cursor::SubscriberCursor, filter::SubscriberFilter};
use crate::{
    change::{Cause, Change},
    delivery::router::Router,
    indexer::store::{ReadStore as _, Snapshot},
    journal::{ChangeKind, Record, Sequence, UnitId},
    notification::{Event, UnitInfo},
    object::ResourceVersion,
    registry::{Registry, WatchedType},
};

/// Replay of the existing objects, type by type.
pub(crate) struct Replay {
    position: Sequence,
    types: vec::IntoIter<Arc<WatchedType>>,
    /// Remaining changes of the current type: one for each object, then the change that marks the type as complete.
    changes: Changes,
}

/// Changes of a type, each with its unit.
type Changes = Box<dyn Iterator<Item = (UnitId, Arc<UnitInfo>, Change)> + Send>;

/// One step of a replay.
pub(crate) enum Shown {
    /// An existing object, or the end of a type.
    Event(Event),
    /// Nothing to send: the filter rejects the event, or the next type begins.
    Nothing,
    /// The replay is complete.
    End,
}

impl Replay {
    /// Starts a replay of the current caches. `position` is a released watermark that was read before the caches. So the caches are
    /// at least as new as `position`.
    pub(crate) fn new(registry: &Registry, position: Sequence) -> Self {
        Self { position, types: registry.types().into_iter(), changes: Box::new(iter::empty()) }
    }

    /// Returns the next event; records in `cursor` the position of each unit that was read.
    pub(crate) fn next(&mut self, router: &Router, filter: &SubscriberFilter, cursor: &mut SubscriberCursor) -> Shown {
        let Some((unit, info, change)) = self.changes.next() else {
            let Some(watched) = self.types.next() else { return Shown::End };
            self.changes = changes(&watched, router, filter, cursor);
            return Shown::Nothing;
        };
        // The stream continues after this position.
        let (sequence, time_micros) = (self.position, Timestamp::now().as_microsecond());
        let record = Record { sequence, unit, time_micros, change, old_lost: false };
        let event = Event { unit: info, record };
        if filter.wants_event(&event) { Shown::Event(event) } else { Shown::Nothing }
    }
}

/// Reads one version of the cache of each unit of a type.
fn changes(
    watched: &WatchedType,
    router: &Router,
    filter: &SubscriberFilter,
    cursor: &mut SubscriberCursor,
) -> Changes {
    let (mut is_synced, mut count, mut version, mut units) = (true, 0, ResourceVersion::unset(), Vec::new());
    for informer in &watched.units {
        let id = informer.id;
        // If the unit is not known yet, its objects are sent later, as events. If the unit was removed, it has no objects.
        let Some(info) = router.table().unit(id) else {
            is_synced = false;
            continue;
        };
        if !filter.wants_unit(&info) {
            continue;
        }
        let shows = filter.wants_kind(ChangeKind::Added) && informer.options.indexer.keep.is_whole();
        let (meta, objects) = informer.reader_factory().reader().read(|snapshot: &dyn Snapshot| {
            let mut objects = Vec::new();
            if shows {
                snapshot.for_each(&mut |object| objects.push(object.clone()));
            }
            (snapshot.meta().clone(), objects)
        });
        if shows {
            cursor.saw(id, Sequence(meta.position)); // else the events up to this position must be sent
        }
        is_synced &= meta.synced;
        count += meta.objects;
        if version.is_unset() || version.compare(&meta.store_version) == Some(Ordering::Less) {
            version = meta.store_version;
        }
        units.push((id, info, objects));
    }
    // A type that is not yet synced emits this event itself, later.
    let end = Change::Synced { objects: count, resource_version: version };
    let last = units.last().filter(|_| is_synced).map(|(id, info, _)| (*id, Arc::clone(info), end));
    let added = units.into_iter().flat_map(|(id, info, objects)| {
        let added = |object| Change::Added { object, cause: Cause::Replay };
        objects.into_iter().map(move |object| (id, Arc::clone(&info), added(object)))
    });
    Box::new(added.chain(last))
}
