//! Who gets what: routes from the journal to handlers, one lane a handler with its own position.
//!
//! [`Dispatcher`] is the pure table: which lane wants which records, and what a batch of them says to a handler.
//! `dispatcher/lanes.rs` moves the batches, `dispatcher/actor.rs` sees that it does. A lane that fails, hangs or panics is felt by no other (I7): they share
//! nothing but this table.

pub mod actor;
pub mod lanes;

use std::{collections::HashMap, ops::Range, sync::Arc};

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    journal::{ChangeSet, Interest, Record, UnitId, UnitSet},
    object::ResourceType,
};

/// What is known of a unit beside its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Name of its `[resources.*]` entry.
    pub entry: String,
    /// Its resource type.
    pub resource: ResourceType,
    /// The one namespace it shows; all, or none for cluster-scoped types, when `None`.
    pub namespace: Option<String>,
}

/// Which events a handler gets; `[handlers.*]` has the words.
#[derive(Clone, Debug)]
pub struct Route {
    resources: GlobSet,
    changes: ChangeSet,
}

/// What a route is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Names of `[resources.*]` entries, globs; `["*"]` is everything.
    pub resources: Vec<String>,
    /// Of [`ChangeSet::ADDED`], [`UPDATED`](ChangeSet::UPDATED), [`DELETED`](ChangeSet::DELETED),
    /// [`REMOVED`](ChangeSet::REMOVED) and [`SYNCED`](ChangeSet::SYNCED), those in `on`; others have switches below.
    pub on: ChangeSet,
    /// `initial = "send"`: also objects of the first list, where `on` has added. Skipped ones count as added: the
    /// next thing heard of them is an update or a deletion (I2).
    pub initial: bool,
    /// A relist redelivers unchanged objects, as updates, where `on` has updated (S-4, D-8).
    pub deliver_unchanged: bool,
    /// Takes resync events, where `on` has updated.
    pub resync: bool,
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            resources: vec!["*".to_owned()],
            on: ChangeSet::ADDED.with(ChangeSet::UPDATED).with(ChangeSet::DELETED).with(ChangeSet::REMOVED),
            initial: false,
            deliver_unchanged: false,
            resync: false,
        }
    }
}

impl Route {
    /// Makes a route; fails for a glob that cannot be read.
    pub fn new(options: &RouteOptions) -> Result<Self, globset::Error> {
        let mut resources = GlobSetBuilder::new();
        for pattern in &options.resources {
            resources.add(Glob::new(pattern)?);
        }
        let mut changes = options.on.without(ChangeSet::INITIAL.with(ChangeSet::UNCHANGED).with(ChangeSet::RESYNC));
        if options.initial && changes.has(ChangeSet::ADDED) {
            changes = changes.with(ChangeSet::INITIAL);
        }
        if options.deliver_unchanged && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::UNCHANGED);
        }
        if options.resync && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::RESYNC);
        }
        Ok(Self { resources: resources.build()?, changes })
    }

    /// Returns whether units of this `[resources.*]` entry are on the route.
    pub fn takes(&self, entry: &str) -> bool {
        self.resources.is_match(entry)
    }

    /// Returns the changes on the route.
    pub fn changes(&self) -> ChangeSet {
        self.changes
    }
}

/// Names a lane within a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(pub usize);

/// The table of lanes and units.
#[derive(Debug, Default)]
pub struct Dispatcher {
    lanes: Vec<(Route, UnitSet)>,
    units: HashMap<UnitId, Arc<UnitInfo>>,
}

impl Dispatcher {
    /// Adds a lane.
    pub fn add_lane(&mut self, route: Route) -> LaneId {
        let units = self.units.iter().filter(|(_, info)| route.takes(&info.entry)).map(|(unit, _)| *unit).collect();
        self.lanes.push((route, units));
        LaneId(self.lanes.len() - 1)
    }

    /// Adds a unit and returns the lanes that now want more. To be called before the unit appends anything. What is
    /// known of a unit stays known: its last events may still wait somewhere when it is gone.
    pub fn add_unit(&mut self, unit: UnitId, info: UnitInfo) -> Vec<LaneId> {
        let mut changed = Vec::new();
        for (lane, (route, units)) in self.lanes.iter_mut().enumerate() {
            if route.takes(&info.entry) {
                units.insert(unit);
                changed.push(LaneId(lane));
            }
        }
        self.units.insert(unit, Arc::new(info));
        changed
    }

    /// Returns what a lane wants to read.
    pub fn interest(&self, lane: LaneId) -> Interest {
        let (route, units) = &self.lanes[lane.0];
        Interest { units: units.clone(), changes: route.changes }
    }

    /// Makes the message for a handler; records of units that were never added are left out, which is a mistake of
    /// the caller's.
    pub fn notification(&self, records: Vec<Record>) -> Notification {
        let mut last: Option<(UnitId, &Arc<UnitInfo>)> = None;
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            if last.is_none_or(|(unit, _)| unit != record.unit) {
                last = self.units.get(&record.unit).map(|info| (record.unit, info));
            }
            if let Some((_, unit)) = last {
                events.push(Event { unit: Arc::clone(unit), record });
            }
        }
        Notification::new(events)
    }
}

/// One change on its way to a handler.
#[derive(Clone, Debug)]
pub struct Event {
    /// What is known of its unit.
    pub unit: Arc<UnitInfo>,
    /// The change and its place.
    pub record: Record,
}

/// What the dispatcher emits: some events in order, cheap to clone and to cut.
#[derive(Clone, Debug)]
pub struct Notification {
    events: Arc<Vec<Event>>,
    range: Range<usize>,
}

impl Notification {
    /// Makes a notification of events in order.
    pub fn new(events: Vec<Event>) -> Self {
        Self { range: 0..events.len(), events: Arc::new(events) }
    }

    /// Returns the events.
    pub fn events(&self) -> &[Event] {
        &self.events[self.range.clone()]
    }

    /// Returns the part from `range.start` to before `range.end`, which lie within the events.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = self.range.start + range.start;
        Self { events: Arc::clone(&self.events), range: start..(start + range.len()).min(self.range.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        indexer::{Cause, Change},
        journal::{Sequence, testing::*},
    };

    fn info(entry: &str) -> UnitInfo {
        let (group, version, kind) = (String::new(), "v1".into(), "Pod".into());
        UnitInfo {
            entry: entry.into(),
            resource: ResourceType { group, version, kind, plural: "pods".into(), namespaced: true },
            namespace: None,
        }
    }

    fn record(unit: u32, change: Change) -> Record {
        Record { sequence: Sequence(1), unit: UnitId(unit), time_micros: 0, change, old_lost: false }
    }

    /// Says which of all kinds of changes a route takes.
    fn taken(options: &RouteOptions) -> String {
        let unchanged = |cause| Change::Unchanged { object: pod("a", "a", 1), cause };
        let changes = [
            ('a', added("a", "a", 1)),
            ('i', initial("a", "a", 1)),
            ('u', updated("a", "a", 1, 2)),
            ('d', deleted("a", "a", 1)),
            ('r', removed("a", "a", 1)),
            ('s', synced(1)),
            ('=', unchanged(Cause::Relist)),
            ('~', unchanged(Cause::Resync)),
        ];
        let route = Route::new(options).unwrap();
        changes.into_iter().filter(|(_, change)| route.changes().contains(change)).map(|(sign, _)| sign).collect()
    }

    #[test]
    fn a_route_takes_what_on_and_the_switches_say() {
        let with = RouteOptions::default;
        assert_eq!(taken(&with()), "audr");
        assert_eq!(taken(&RouteOptions { initial: true, ..with() }), "aiudr");
        assert_eq!(taken(&RouteOptions { initial: true, on: ChangeSet::DELETED, ..with() }), "d");
        assert_eq!(taken(&RouteOptions { on: ChangeSet::ADDED.with(ChangeSet::SYNCED), ..with() }), "as");
        assert_eq!(taken(&RouteOptions { deliver_unchanged: true, ..with() }), "audr=");
        assert_eq!(taken(&RouteOptions { resync: true, ..with() }), "audr~");
        assert_eq!(taken(&RouteOptions { resync: true, deliver_unchanged: true, on: ChangeSet::ADDED, ..with() }), "a");
        assert_eq!(taken(&RouteOptions { on: ChangeSet::ALL, ..with() }), "audrs");
    }

    #[test]
    fn lanes_take_units_by_the_name_of_their_entry_in_whatever_order_both_come() {
        let mut table = Dispatcher::default();
        table.add_unit(UnitId(0), info("pods"));
        let route = |pattern: &str| {
            Route::new(&RouteOptions { resources: vec![pattern.into()], ..RouteOptions::default() }).unwrap()
        };
        let (some, all) = (table.add_lane(route("work*")), table.add_lane(route("*")));
        assert_eq!(table.add_unit(UnitId(70), info("workloads")), [some, all]);
        assert_eq!(table.add_unit(UnitId(71), info("workloads")), [some, all]);
        let wants = |lane, unit| table.interest(lane).wants(&record(unit, added("a", "a", 1)));
        assert_eq!([0, 70, 71, 72].map(|unit| wants(some, unit)), [false, true, true, false]);
        assert_eq!([0, 70, 71, 72].map(|unit| wants(all, unit)), [true, true, true, false]);
        assert!(Route::new(&RouteOptions { resources: vec!["a[".into()], ..RouteOptions::default() }).is_err());
    }

    #[test]
    fn a_notification_knows_its_units_and_can_be_cut() {
        let mut table = Dispatcher::default();
        table.add_unit(UnitId(1), info("pods"));
        table.add_unit(UnitId(2), info("jobs"));
        let records =
            vec![record(1, added("a", "a", 1)), record(9, synced(0)), record(2, synced(0)), record(1, synced(0))];
        let all = table.notification(records);
        let entries =
            |part: &Notification| part.events().iter().map(|event| event.unit.entry.clone()).collect::<Vec<_>>();
        assert_eq!(entries(&all), ["pods", "jobs", "pods"]);
        assert_eq!(entries(&all.slice(1..3)), ["jobs", "pods"]);
        assert_eq!(entries(&all.slice(1..3).slice(1..2)), ["pods"]);
    }
}
