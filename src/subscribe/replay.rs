//! What exists, object by object, for a subscriber that asks for it: of each unit one version, and where the stream of it
//! goes on.

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

/// What exists, type by type.
pub struct Replay {
    place: Sequence,
    types: vec::IntoIter<Arc<WatchedType>>,
    of_type: Option<OfType>,
    of_unit: Option<OfUnit>,
}

/// A type that is being shown.
struct OfType {
    units: vec::IntoIter<Arc<Informer>>,
    synced: bool,
    objects: u64,
    version: ResourceVersion,
    last: Option<(UnitId, Arc<UnitInfo>)>,
}

/// A unit whose objects are being shown: as many pointers as it has objects, until they are.
struct OfUnit {
    id: UnitId,
    info: Arc<UnitInfo>,
    objects: vec::IntoIter<Object>,
}

/// One step of a replay.
pub enum Shown {
    /// An object that exists, or the end of a type.
    Event(Event),
    /// Something that the subscriber did not ask for.
    Nothing,
    /// Everything was shown.
    End,
}

impl Replay {
    /// Begins with what exists now, which is at least as new as `place`, the release mark seen before.
    pub fn new(registry: &Registry, place: Sequence) -> Self {
        Self { place, types: registry.types().into_iter(), of_type: None, of_unit: None }
    }

    /// Returns what is shown next; `cursor` learns what was seen.
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

    /// Takes one version of a unit.
    fn open(&mut self, informer: &Informer, router: &Router, filter: &SubscriberFilter, cursor: &mut SubscriberCursor) {
        let Some(of_type) = &mut self.of_type else { return };
        // One that is not known yet shows its objects as they come, one that is forgotten has none.
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
            cursor.saw(informer.id, Sequence(meta.place)); // else what led there is still to be shown
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

    /// Says that a type is complete. One that is not says so by itself, later.
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

    /// All of it has the place that the stream goes on behind.
    fn record(&self, unit: UnitId, change: Change) -> Record {
        let time_micros = Timestamp::now().as_microsecond();
        Record { sequence: self.place, unit, time_micros, change, old_lost: false }
    }
}
