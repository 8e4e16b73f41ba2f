//! Who gets what: routes from the journal to handlers, one lane a handler with its own position.
//!
//! [`Dispatcher`] is the pure table: which lane wants which records, and what a batch of them says to a handler.
//! [`Schedule`](schedule::Schedule) says which events go out together, and which wait for others.
//! `dispatcher/lanes.rs` moves the batches, `dispatcher/actor.rs` sees that it does. A lane that fails, hangs or panics is felt by no other (I7): they share
//! nothing but this table.

pub mod actor;
pub mod lane;
pub mod lanes;
pub mod schedule;
mod traffic;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    journal::{ChangeSet, Interest, Record, RecordFilter, Sequence, TypeNumber, UnitId, UnitInterest, UnitTerms},
    object::ResourceType,
    rules::Rules,
    trace::TraceContext,
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

/// What a unit is to those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitOptions {
    /// Its type was found after the first discovery: nothing of it existed at the very first start, so its first list
    /// is wanted by handlers that skip initial objects too.
    pub late: bool,
    /// `[resources.*] resync`: how often it makes a resync; zero is never (S-10).
    pub resync_period: Duration,
    /// The cache holds bodies: `cache = "full"`.
    pub cached: bool,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self { late: false, resync_period: Duration::ZERO, cached: true }
    }
}

/// Which events a handler gets; `[handlers.*]` has the words.
#[derive(Clone, Debug)]
pub struct Route {
    resources: GlobSet,
    changes: ChangeSet,
    resync: Duration,
    rules: Option<RecordFilter>,
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
    /// Also what happened while the process was down, of what `on` has.
    pub catch_up: bool,
    /// A relist redelivers unchanged objects, as updates, where `on` has updated (S-4, D-8).
    pub deliver_unchanged: bool,
    /// How often it takes resync events, where `on` has updated: zero is never, and less than a second is a second
    /// (S-10). Rounded up to a multiple of the unit's own period (S-11).
    pub resync: Duration,
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            resources: vec!["*".to_owned()],
            on: ChangeSet::ADDED.with(ChangeSet::UPDATED).with(ChangeSet::DELETED).with(ChangeSet::REMOVED),
            initial: false,
            catch_up: true,
            deliver_unchanged: false,
            resync: Duration::ZERO,
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
        let switched = [ChangeSet::INITIAL, ChangeSet::UNCHANGED, ChangeSet::RESYNC, ChangeSet::DOWNTIME];
        let mut changes = switched.into_iter().fold(options.on, ChangeSet::without);
        if options.initial && changes.has(ChangeSet::ADDED) {
            changes = changes.with(ChangeSet::INITIAL);
        }
        if options.catch_up {
            changes = changes.with(ChangeSet::DOWNTIME);
        }
        if options.deliver_unchanged && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::UNCHANGED);
        }
        if !options.resync.is_zero() && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::RESYNC);
        }
        Ok(Self { resources: resources.build()?, changes, resync: options.resync, rules: None })
    }

    /// Lets only what these rules say be on the route.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        let rules = (!rules.is_empty()).then(|| RecordFilter::new(Arc::new(rules)));
        Self { rules, ..self }
    }

    /// Returns whether units of this `[resources.*]` entry are on the route.
    pub fn takes(&self, entry: &str) -> bool {
        self.resources.is_match(entry)
    }

    /// Returns the changes on the route.
    pub fn changes(&self) -> ChangeSet {
        self.changes
    }

    /// Returns how many resyncs of a unit with this period make one for this route; zero means that it takes none.
    pub fn resync_every(&self, period: Duration) -> u32 {
        if self.resync.is_zero() || period.is_zero() || !self.changes.has(ChangeSet::RESYNC) {
            return 0;
        }
        let wanted = self.resync.max(RESYNC_MIN).as_nanos();
        u32::try_from(wanted.div_ceil(period.as_nanos())).unwrap_or(u32::MAX)
    }
}

/// Shortest resync period of a handler (S-10).
const RESYNC_MIN: Duration = Duration::from_secs(1);

/// Names a lane within a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub usize);

/// The table of lanes and units.
#[derive(Debug, Default)]
pub struct Dispatcher {
    lanes: BTreeMap<LaneId, Lane>,
    next_lane: usize,
    units: HashMap<UnitId, Unit>,
    /// By group and plural: two versions of a type are the same objects.
    types: HashMap<(String, String), TypeNumber>,
    next_type: u32,
}

#[derive(Debug)]
struct Lane {
    route: Route,
    /// Units that were at work before the lane took them: it hears of them once they have introduced it.
    joins: HashSet<UnitId>,
}

#[derive(Debug)]
struct Unit {
    info: Arc<UnitInfo>,
    options: UnitOptions,
    /// Set when it has ended: where its last record is.
    retired: Option<Sequence>,
}

/// What another route changes for a lane; units that have ended are in neither.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rerouted {
    /// Units that have to introduce it.
    pub joins: Vec<UnitId>,
    /// Units that have to dismiss it.
    pub leaves: Vec<UnitId>,
}

impl Dispatcher {
    /// Adds a lane that sees all units from their first record on, or from now on.
    pub fn add_lane(&mut self, route: Route) -> LaneId {
        let id = LaneId(self.next_lane);
        self.next_lane += 1;
        self.lanes.insert(id, Lane { route, joins: HashSet::new() });
        id
    }

    /// Adds a lane to units that are at work, and returns those that have to introduce it (S-5).
    pub fn add_late_lane(&mut self, route: Route) -> (LaneId, Vec<UnitId>) {
        let joins = self.taken(&route);
        let id = self.add_lane(route);
        self.lanes.get_mut(&id).expect("just added").joins.extend(&joins);
        (id, joins)
    }

    /// Gives a lane another route.
    pub fn reroute(&mut self, lane: LaneId, route: Route) -> Rerouted {
        let Some(before) = self.lanes.get(&lane) else { return Rerouted::default() };
        let (had, has) = (self.taken(&before.route), self.taken(&route));
        let joins: Vec<_> = has.iter().copied().filter(|unit| !had.contains(unit)).collect();
        let leaves = had.into_iter().filter(|unit| !has.contains(unit)).collect();
        let lane = self.lanes.get_mut(&lane).expect("just seen");
        lane.route = route;
        lane.joins.extend(&joins);
        Rerouted { joins, leaves }
    }

    /// Removes a lane.
    pub fn remove_lane(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    /// Adds a unit and returns what the journal has to know of it, and the lanes that now want more. To be called
    /// before the unit appends anything.
    pub fn add_unit(&mut self, unit: UnitId, info: UnitInfo, options: UnitOptions) -> (UnitTerms, Vec<LaneId>) {
        let next = TypeNumber(self.next_type);
        let resource = *self.types.entry(type_of(&info.resource)).or_insert(next);
        self.next_type += u32::from(resource == next);
        let takes = |(lane, state): (&LaneId, &Lane)| state.route.takes(&info.entry).then_some(*lane);
        let changed = self.lanes.iter().filter_map(takes).collect();
        self.units.insert(unit, Unit { info: Arc::new(info), options, retired: None });
        (UnitTerms { resource, late: options.late, cached: options.cached }, changed)
    }

    /// As [`Dispatcher::add_unit`], for a unit that goes on with what units of the entry `before` have shown: returns also
    /// the lanes that did not take those. It has to introduce them (S-5).
    pub fn add_heir(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        before: &str,
    ) -> (UnitTerms, Vec<LaneId>, Vec<LaneId>) {
        let (terms, changed) = self.add_unit(unit, info, options);
        let mut strangers = changed.clone();
        strangers.retain(|id| self.lanes.get(id).is_some_and(|lane| !lane.route.takes(before)));
        for (_, lane) in self.lanes.iter_mut().filter(|(id, _)| strangers.contains(id)) {
            lane.joins.insert(unit);
        }
        (terms, changed, strangers)
    }

    /// Adds a unit of an earlier run, which has a number and may have ended; returns the lanes that take it.
    pub fn restore_unit(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        number: TypeNumber,
        retired: Option<Sequence>,
    ) -> Vec<LaneId> {
        self.types.insert(type_of(&info.resource), number);
        self.next_type = self.next_type.max(number.0 + 1);
        let (_, takers) = self.add_unit(unit, info, options);
        self.units.get_mut(&unit).expect("just added").retired = retired;
        takers
    }

    /// Returns whether a lane that takes this entry is not told what happened while the process was down.
    pub fn skips_downtime(&self, entry: &str) -> bool {
        let mut takers = self.lanes.values().filter(|lane| lane.route.takes(entry));
        takers.any(|lane| !lane.route.changes().has(ChangeSet::DOWNTIME))
    }

    /// Notes that a unit has to introduce a lane, which takes it and saw nothing of it in an earlier run.
    pub fn will_join(&mut self, lane: LaneId, unit: UnitId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.joins.insert(unit);
        }
    }

    /// Returns the changes that a lane wants.
    pub fn changes(&self, lane: LaneId) -> ChangeSet {
        self.lanes.get(&lane).map(|lane| lane.route.changes()).unwrap_or_default()
    }

    /// Returns the lanes that do not take units of an entry.
    pub fn lanes_without(&self, entry: &str) -> Vec<LaneId> {
        self.lanes.iter().filter(|(_, lane)| !lane.route.takes(entry)).map(|(id, _)| *id).collect()
    }

    /// Notes that a unit appends nothing after `last`. What is known of it stays known: its last events may still wait
    /// somewhere.
    pub fn retire_unit(&mut self, unit: UnitId, last: Sequence) {
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.retired = Some(last);
        }
    }

    /// Forgets the units that have ended, and of which nothing waits above `passed`; returns them.
    pub fn forget_units(&mut self, passed: Sequence) -> Vec<UnitId> {
        let forgotten: Vec<_> = self
            .units
            .extract_if(|_, unit| unit.retired.is_some_and(|last| last <= passed))
            .map(|(unit, _)| unit)
            .collect();
        if !forgotten.is_empty() {
            let units = &self.units;
            self.types.retain(|resource, _| units.values().any(|unit| type_of(&unit.info.resource) == *resource));
            for lane in self.lanes.values_mut() {
                lane.joins.retain(|unit| units.contains_key(unit));
            }
        }
        forgotten
    }

    /// Returns what a lane wants to read.
    pub fn interest(&self, lane: LaneId) -> Interest {
        let Some(Lane { route, joins }) = self.lanes.get(&lane) else { return Interest::default() };
        let taken = self.units.iter().filter(|(_, unit)| route.takes(&unit.info.entry));
        let seen = |(id, unit): (&UnitId, &Unit)| {
            let resync_every = route.resync_every(unit.options.resync_period);
            (*id, UnitInterest { joins: joins.contains(id), resync_every })
        };
        Interest { units: taken.map(seen).collect(), changes: route.changes, filter: route.rules.clone() }
    }

    /// Returns the types at work that a lane takes, as `plural.group`, in order.
    pub fn types(&self, lane: LaneId) -> Vec<String> {
        let Some(Lane { route, .. }) = self.lanes.get(&lane) else { return Vec::new() };
        let resource = |unit: UnitId| &self.units[&unit].info.resource;
        let name = |of: &ResourceType| match of.group.as_str() {
            "" => of.plural.clone(),
            group => format!("{}.{group}", of.plural),
        };
        let names: BTreeSet<_> = self.taken(route).into_iter().map(|unit| name(resource(unit))).collect();
        names.into_iter().collect()
    }

    /// Returns the units at work that a route takes, in order.
    fn taken(&self, route: &Route) -> Vec<UnitId> {
        let is_taken = |unit: &Unit| unit.retired.is_none() && route.takes(&unit.info.entry);
        let mut taken: Vec<_> = self.units.iter().filter(|(_, unit)| is_taken(unit)).map(|(id, _)| *id).collect();
        taken.sort_unstable();
        taken
    }

    /// Makes the message for a handler; records of units that were never added, or are forgotten, are left out, which
    /// is a mistake of the caller's.
    pub fn notification(&self, records: Vec<Record>) -> Notification {
        Notification::new(self.events(records))
    }

    /// Returns what is known of a unit.
    pub fn unit(&self, unit: UnitId) -> Option<Arc<UnitInfo>> {
        self.units.get(&unit).map(|unit| Arc::clone(&unit.info))
    }

    /// As [`Dispatcher::notification`], event by event.
    pub fn events(&self, records: Vec<Record>) -> Vec<Event> {
        let mut last: Option<(UnitId, &Arc<UnitInfo>)> = None;
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            if last.is_none_or(|(unit, _)| unit != record.unit) {
                last = self.units.get(&record.unit).map(|unit| (record.unit, &unit.info));
            }
            if let Some((_, unit)) = last {
                events.push(Event { unit: Arc::clone(unit), record });
            }
        }
        events
    }
}

fn type_of(resource: &ResourceType) -> (String, String) {
    (resource.group.clone(), resource.plural.clone())
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
    trace: Option<TraceContext>,
}

impl Notification {
    /// Makes a notification of events in order.
    pub fn new(events: Vec<Event>) -> Self {
        Self { range: 0..events.len(), events: Arc::new(events), trace: None }
    }

    /// Returns the events.
    pub fn events(&self) -> &[Event] {
        &self.events[self.range.clone()]
    }

    /// Returns the part from `range.start` to before `range.end`, which lie within the events.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = self.range.start + range.start;
        Self {
            events: Arc::clone(&self.events),
            range: start..(start + range.len()).min(self.range.end),
            trace: self.trace,
        }
    }

    /// Returns the trace context of their delivery, if spans are recorded: the value of the header `traceparent`.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Makes them part of a delivery.
    #[must_use]
    pub(crate) fn traced(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
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

    fn add(table: &mut Dispatcher, unit: u32, entry: &str) -> Vec<LaneId> {
        table.add_unit(UnitId(unit), info(entry), UnitOptions::default()).1
    }

    fn record(unit: u32, change: Change) -> Record {
        Record { sequence: Sequence(1), unit: UnitId(unit), time_micros: 0, change, old_lost: false }
    }

    #[test]
    fn s5_an_heir_of_another_entry_introduces_the_lanes_that_did_not_take_that_one() {
        let mut table = Dispatcher::default();
        let lane = |table: &mut Dispatcher, entries: &[&str]| {
            let resources = entries.iter().map(ToString::to_string).collect();
            table.add_lane(Route::new(&RouteOptions { resources, ..RouteOptions::default() }).unwrap())
        };
        let (both, old, new) = (lane(&mut table, &["*"]), lane(&mut table, &["old"]), lane(&mut table, &["new"]));
        add(&mut table, 1, "old");
        let (_, changed, strangers) = table.add_heir(UnitId(2), info("new"), UnitOptions::default(), "old");
        assert_eq!((changed, strangers), (vec![both, new], vec![new]));
        assert_eq!(table.lanes_without("new"), [old]);
        let joins = |lane| table.interest(lane).units.get(&UnitId(2)).map(|interest| interest.joins);
        assert_eq!([both, old, new].map(joins), [Some(false), None, Some(true)]);
    }

    #[test]
    fn d7_units_of_one_type_share_a_number_until_none_of_it_is_left() {
        let mut table = Dispatcher::default();
        let mut number = |unit, group: &str, plural: &str| {
            let (group, plural) = (group.to_owned(), plural.to_owned());
            let info = UnitInfo { resource: ResourceType { group, plural, ..info("all").resource }, ..info("all") };
            table.add_unit(UnitId(unit), info, UnitOptions::default()).0.resource
        };
        let types = [("", "pods"), ("", "jobs"), ("batch", "jobs")];
        let numbers: Vec<_> = (1..).zip(types).map(|(unit, (group, plural))| number(unit, group, plural)).collect();
        assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[2] != numbers[0]);
        assert_eq!(number(4, "", "pods"), numbers[0]);

        table.retire_unit(UnitId(1), Sequence(5));
        assert_eq!(table.forget_units(Sequence(5)), [UnitId(1)]);
        assert_eq!(add_numbered(&mut table, 5), numbers[0], "there was a unit of the type all the time");
        for unit in [4, 5] {
            table.retire_unit(UnitId(unit), Sequence(6));
        }
        assert_eq!(table.forget_units(Sequence(6)).len(), 2);
        assert!(!numbers.contains(&add_numbered(&mut table, 6)), "a number is used once");
    }

    fn add_numbered(table: &mut Dispatcher, unit: u32) -> TypeNumber {
        table.add_unit(UnitId(unit), info("all"), UnitOptions::default()).0.resource
    }

    /// Says which of all kinds of changes a route takes.
    fn taken(options: &RouteOptions) -> String {
        let unchanged = |cause| Change::Unchanged { object: pod("a", "a", 1), cause };
        let missed = Change::Deleted { object: pod("a", "a", 1), tombstone: true, cause: Cause::Downtime };
        let changes = [
            ('a', added("a", "a", 1)),
            ('i', initial("a", "a", 1)),
            ('u', updated("a", "a", 1, 2)),
            ('d', deleted("a", "a", 1)),
            ('r', removed("a", "a", 1)),
            ('m', missed),
            ('s', synced(1)),
            ('=', unchanged(Cause::Relist)),
            ('~', unchanged(Cause::Resync { round: 1 })),
        ];
        let route = Route::new(options).unwrap();
        changes.into_iter().filter(|(_, change)| route.changes().contains(change)).map(|(sign, _)| sign).collect()
    }

    #[test]
    fn a_route_takes_what_on_and_the_switches_say() {
        let with = RouteOptions::default;
        assert_eq!(taken(&with()), "audrm");
        assert_eq!(taken(&RouteOptions { initial: true, ..with() }), "aiudrm");
        assert_eq!(taken(&RouteOptions { initial: true, on: ChangeSet::DELETED, ..with() }), "dm");
        assert_eq!(taken(&RouteOptions { on: ChangeSet::ADDED.with(ChangeSet::SYNCED), ..with() }), "as");
        assert_eq!(taken(&RouteOptions { deliver_unchanged: true, ..with() }), "audrm=");
        assert_eq!(taken(&RouteOptions { catch_up: false, ..with() }), "audr");
        assert_eq!(taken(&RouteOptions { resync: RESYNC_MIN, ..with() }), "audrm~");
        assert_eq!(
            taken(&RouteOptions { resync: RESYNC_MIN, deliver_unchanged: true, on: ChangeSet::ADDED, ..with() }),
            "a"
        );
        assert_eq!(taken(&RouteOptions { on: ChangeSet::ALL, ..with() }), "audrms");
    }

    #[test]
    fn lanes_take_units_by_the_name_of_their_entry_in_whatever_order_both_come() {
        let mut table = Dispatcher::default();
        add(&mut table, 0, "pods");
        let route = |pattern: &str| {
            Route::new(&RouteOptions { resources: vec![pattern.into()], ..RouteOptions::default() }).unwrap()
        };
        let (some, all) = (table.add_lane(route("work*")), table.add_lane(route("*")));
        assert_eq!(add(&mut table, 70, "workloads"), [some, all]);
        assert_eq!(add(&mut table, 71, "workloads"), [some, all]);
        let wants = |lane, unit| table.interest(lane).units.contains_key(&UnitId(unit));
        assert_eq!([0, 70, 71, 72].map(|unit| wants(some, unit)), [false, true, true, false]);
        assert_eq!([0, 70, 71, 72].map(|unit| wants(all, unit)), [true, true, true, false]);
        assert!(Route::new(&RouteOptions { resources: vec!["a[".into()], ..RouteOptions::default() }).is_err());
    }

    #[test]
    fn a_notification_knows_its_units_and_can_be_cut() {
        let mut table = Dispatcher::default();
        add(&mut table, 1, "pods");
        add(&mut table, 2, "jobs");
        let records =
            vec![record(1, added("a", "a", 1)), record(9, synced(0)), record(2, synced(0)), record(1, synced(0))];
        let all = table.notification(records);
        let entries =
            |part: &Notification| part.events().iter().map(|event| event.unit.entry.clone()).collect::<Vec<_>>();
        assert_eq!(entries(&all), ["pods", "jobs", "pods"]);
        assert_eq!(entries(&all.slice(1..3)), ["jobs", "pods"]);
        assert_eq!(entries(&all.slice(1..3).slice(1..2)), ["pods"]);
    }

    fn with(resources: &str, resync: Duration) -> Route {
        Route::new(&RouteOptions { resources: vec![resources.into()], resync, ..RouteOptions::default() }).unwrap()
    }

    #[test]
    fn s10_s11_a_period_is_at_least_a_second_and_a_multiple_of_the_units_own() {
        let every =
            |wanted: u64, own: u64| with("*", Duration::from_millis(wanted)).resync_every(Duration::from_millis(own));
        assert_eq!(every(0, 1_000), 0, "never");
        assert_eq!(every(5_000, 0), 0, "the unit makes none");
        assert_eq!(every(10, 1_000), 1);
        assert_eq!(every(10, 400), 3, "a second, rounded up");
        assert_eq!(every(5_000, 1_000), 5);
        assert_eq!(every(5_001, 1_000), 6);
        assert_eq!(every(1_000, 60_000), 1);
        let only_added = RouteOptions { on: ChangeSet::ADDED, resync: RESYNC_MIN, ..RouteOptions::default() };
        assert_eq!(Route::new(&only_added).unwrap().resync_every(RESYNC_MIN), 0);
    }

    #[test]
    fn s5_a_late_lane_is_introduced_by_the_units_at_work_and_sees_later_ones_itself() {
        let mut table = Dispatcher::default();
        add(&mut table, 0, "pods");
        add(&mut table, 1, "jobs");
        add(&mut table, 2, "pods");
        table.retire_unit(UnitId(2), Sequence(9));
        let (lane, joins) = table.add_late_lane(with("pods", Duration::ZERO));
        assert_eq!(joins, [UnitId(0)]);
        assert_eq!(add(&mut table, 3, "pods"), [lane]);
        let rerouted = table.reroute(lane, with("jobs", Duration::ZERO));
        assert_eq!(rerouted, Rerouted { joins: vec![UnitId(1)], leaves: vec![UnitId(0), UnitId(3)] });
        let rerouted = table.reroute(lane, with("*", Duration::ZERO));
        assert_eq!(rerouted, Rerouted { joins: vec![UnitId(0), UnitId(3)], leaves: vec![] });
        let joins = |unit| table.interest(lane).units[&UnitId(unit)].joins;
        assert_eq!([0, 1, 3].map(joins), [true; 3]);
        assert_eq!(table.types(lane), ["pods"]);
        table.remove_lane(lane);
        assert_eq!(table.interest(lane), Interest::default());
    }

    #[test]
    fn a_unit_that_has_ended_is_forgotten_once_nothing_of_it_waits() {
        let mut table = Dispatcher::default();
        let lane = table.add_lane(with("*", Duration::ZERO));
        for round in 0..100 {
            add(&mut table, round, "pods");
            table.retire_unit(UnitId(round), Sequence(u64::from(round)));
            assert_eq!(table.notification(vec![record(round, synced(0))]).events().len(), 1);
            assert_eq!(table.forget_units(Sequence(u64::from(round))), [UnitId(round)]);
        }
        assert_eq!((table.units.len(), table.types.len(), table.interest(lane).units.len()), (0, 0, 0));
        add(&mut table, 200, "pods");
        table.retire_unit(UnitId(200), Sequence(300));
        assert!(table.forget_units(Sequence(299)).is_empty());
    }
}
