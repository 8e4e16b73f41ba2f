//! Replay of the existing objects to a subscriber that requests them. One version of each unit is read, and the stream
//! continues after that version.

use std::{cmp::Ordering, collections::VecDeque, sync::Arc, vec};

use jiff::Timestamp;

use super::{cursor::SubscriberCursor, filter::SubscriberFilter};
use crate::{
    change::{Cause, Change},
    delivery::router::Router,
    indexer::store::{ReadStore as _, Snapshot},
    journal::{ChangeKind, Record, Sequence, UnitId},
    notification::{Event, UnitInfo},
    object::{Object, ResourceVersion},
    registry::{Registry, WatchedType},
};

/// Replay of the existing objects, type by type.
pub struct Replay {
    place: Sequence,
    types: vec::IntoIter<Arc<WatchedType>>,
    /// Rest of the current type.
    units: VecDeque<OfUnit>,
    /// Event that marks the current type as complete.
    end: Option<(UnitId, Arc<UnitInfo>, Change)>,
}

/// A unit that is being replayed. It holds one pointer to each of the unit's remaining objects.
struct OfUnit {
    id: UnitId,
    info: Arc<UnitInfo>,
    objects: vec::IntoIter<Object>,
}

/// One step of a replay.
pub enum Shown {
    /// An existing object, or the end of a type.
    Event(Event),
    /// Nothing to send: the event is filtered out, or the next type was opened.
    Nothing,
    /// The replay is complete.
    End,
}

impl Replay {
    /// Starts a replay of the current caches. They are at least as new as `place`, a released watermark that was read
    /// before.
    pub fn new(registry: &Registry, place: Sequence) -> Self {
        Self { place, types: registry.types().into_iter(), units: VecDeque::new(), end: None }
    }

    /// Returns the next event; records in `cursor` the position of each unit that was read.
    pub fn next(&mut self, router: &Router, filter: &SubscriberFilter, cursor: &mut SubscriberCursor) -> Shown {
        while let Some(OfUnit { id, info, objects }) = self.units.front_mut() {
            if let Some(object) = objects.next() {
                let (id, info) = (*id, Arc::clone(info));
                return self.shown(id, info, Change::Added { object, cause: Cause::Replay }, filter);
            }
            self.units.pop_front();
        }
        if let Some((id, info, end)) = self.end.take() {
            return self.shown(id, info, end, filter);
        }
        let Some(watched) = self.types.next() else { return Shown::End };
        self.open(&watched, router, filter, cursor);
        Shown::Nothing
    }

    /// Reads one version of each unit of a type.
    fn open(
        &mut self,
        watched: &WatchedType,
        router: &Router,
        filter: &SubscriberFilter,
        cursor: &mut SubscriberCursor,
    ) {
        let (mut is_synced, mut count, mut version, mut last) = (true, 0, ResourceVersion::unset(), None);
        for informer in &watched.units {
            let id = informer.id;
            // A unit that is not known yet sends its objects later as events. A unit that was removed has none.
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
                cursor.saw(id, Sequence(meta.place)); // else the earlier events are still to be sent
            }
            is_synced &= meta.synced;
            count += meta.objects;
            if version.is_unset() || version.compare(&meta.store_version) == Some(Ordering::Less) {
                version = meta.store_version;
            }
            last = Some((id, Arc::clone(&info)));
            self.units.push_back(OfUnit { id, info, objects: objects.into_iter() });
        }
        // A type that is not yet synced emits this event itself, later.
        let end = Change::Synced { objects: count, resource_version: version };
        self.end = last.filter(|_| is_synced).map(|(id, info)| (id, info, end));
    }

    /// Makes an event at the position after which the stream continues, if it is wanted.
    fn shown(&self, unit: UnitId, info: Arc<UnitInfo>, change: Change, filter: &SubscriberFilter) -> Shown {
        let time_micros = Timestamp::now().as_microsecond();
        let record = Record { sequence: self.place, unit, time_micros, change, old_lost: false };
        let event = Event { unit: info, record };
        if filter.wants_event(&event) { Shown::Event(event) } else { Shown::Nothing }
    }
}
