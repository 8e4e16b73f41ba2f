//! Replay of the existing objects to a subscriber that requests them. Of each unit one version is read, and the stream
//! continues after it.

use std::{sync::Arc, vec};

use jiff::Timestamp;

use super::{cursor::SubscriberCursor, filter::SubscriberFilter};
use crate::{
    change::{Cause, Change},
    delivery::router::Router,
    indexer::store::{ReadStore as _, Snapshot},
    informer::Informer,
    journal::{ChangeKind, Record, Sequence, UnitId},
    notification::{Event, UnitInfo},
    object::{Object, ResourceVersion},
    registry::{Registry, WatchedType},
};

/// Replay of the existing objects, type by type.
pub struct Replay {
    place: Sequence,
    types: vec::IntoIter<Arc<WatchedType>>,
    of_type: Option<OfType>,
    of_unit: Option<OfUnit>,
}

/// State of the type that is being replayed.
struct OfType {
    units: vec::IntoIter<Arc<Informer>>,
    synced: bool,
    objects: u64,
    version: ResourceVersion,
    last: Option<(UnitId, Arc<UnitInfo>)>,
}

/// State of the unit that is being replayed. It holds one pointer to each of the unit's remaining objects.
struct OfUnit {
    id: UnitId,
    info: Arc<UnitInfo>,
    objects: vec::IntoIter<Object>,
}

/// One step of a replay.
pub enum Shown {
    /// An existing object, or the end of a type.
    Event(Event),
    /// Nothing to send: the event is filtered out, or the next unit was opened.
    Nothing,
    /// The replay is complete.
    End,
}

impl Replay {
    /// Starts a replay of the current caches. They are at least as new as `place`, a released watermark that was read
    /// before.
    pub fn new(registry: &Registry, place: Sequence) -> Self {
        Self { place, types: registry.types().into_iter(), of_type: None, of_unit: None }
    }

    /// Returns the next event; records in `cursor` the position of each unit that was read.
    pub fn next(&mut self, router: &Router, filter: &SubscriberFilter, cursor: &mut SubscriberCursor) -> Shown {
        if let Some(unit) = &mut self.of_unit {
            if let Some(object) = unit.objects.next() {
                let change = Change::Added { object, cause: Cause::Replay };
                let event = self.event(change);
                return event.filter(|event| filter.wants_event(event)).map_or(Shown::Nothing, Shown::Event);
            }
            self.of_unit = None;
        }
        if let Some(of_type) = &mut self.of_type {
            match of_type.units.next() {
                Some(informer) => self.open(&informer, router, filter, cursor),
                None => return self.close_type(filter),
            }
            return Shown::Nothing;
        }
        let Some(watched) = self.types.next() else { return Shown::End };
        self.of_type = Some(OfType {
            units: watched.units.clone().into_iter(),
            synced: true,
            objects: 0,
            version: ResourceVersion::unset(),
            last: None,
        });
        Shown::Nothing
    }

    /// Reads one version of a unit.
    fn open(&mut self, informer: &Informer, router: &Router, filter: &SubscriberFilter, cursor: &mut SubscriberCursor) {
        let Some(of_type) = &mut self.of_type else { return };
        // A unit that is not known yet sends its objects later as events. A unit that was removed has none.
        let Some(info) = router.table().unit(informer.id) else { return of_type.synced = false };
        if !filter.wants_unit(&info) {
            return;
        }
        let shows = filter.wants_kind(ChangeKind::Added) && informer.options.indexer.keep.is_whole();
        let take = |snapshot: &dyn Snapshot| {
            let mut objects = Vec::new();
            if shows {
                snapshot.for_each(&mut |object| objects.push(object.clone()));
            }
            (snapshot.meta().clone(), objects)
        };
        let (meta, objects) = informer.reader_factory().reader().read(take);
        if shows {
            cursor.saw(informer.id, Sequence(meta.place)); // else the events before are still to be sent
        }
        of_type.synced &= meta.synced;
        of_type.objects += meta.objects;
        if of_type.version.is_unset() || of_type.version.compare(&meta.store_version) == Some(std::cmp::Ordering::Less)
        {
            of_type.version = meta.store_version;
        }
        of_type.last = Some((informer.id, Arc::clone(&info)));
        self.of_unit = Some(OfUnit { id: informer.id, info, objects: objects.into_iter() });
    }

    /// Returns the event that marks a type as complete. A type that is not yet synced emits this event itself, later.
    fn close_type(&mut self, filter: &SubscriberFilter) -> Shown {
        let Some(OfType { synced: true, objects, version, last: Some((id, info)), .. }) = self.of_type.take() else {
            return Shown::Nothing;
        };
        let change = Change::Synced { objects, resource_version: version };
        let event = Event { unit: info, record: self.record(id, change) };
        if filter.wants_event(&event) { Shown::Event(event) } else { Shown::Nothing }
    }

    fn event(&self, change: Change) -> Option<Event> {
        let OfUnit { id, info, .. } = self.of_unit.as_ref()?;
        Some(Event { unit: Arc::clone(info), record: self.record(*id, change) })
    }

    /// Makes a record at the position after which the stream continues.
    fn record(&self, unit: UnitId, change: Change) -> Record {
        let time_micros = Timestamp::now().as_microsecond();
        Record { sequence: self.place, unit, time_micros, change, old_lost: false }
    }
}
