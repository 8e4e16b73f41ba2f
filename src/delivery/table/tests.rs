use super::*;
use crate::{change::Change, journal::testing::*, notification::Notification};

fn info(entry: &str) -> UnitInfo {
    let (group, version, kind) = (String::new(), "v1".into(), "Pod".into());
    UnitInfo {
        entry: entry.into(),
        resource: ResourceType { group, version, kind, plural: "pods".into(), namespaced: true },
        namespace: None,
    }
}

fn add(table: &mut RouteTable, unit: u32, entry: &str) -> Vec<ReaderId> {
    let (_, interests, attachments) = table.add_unit(UnitId(unit), info(entry), UnitOptions::default(), None);
    assert!(attachments.is_empty());
    interests.into_iter().map(|(reader, _)| reader).collect()
}

/// Returns each reader of a new unit, with a flag that is true if the unit must add the reader.
fn attaches(interests: &[(ReaderId, Interest)], unit: u32) -> Vec<(ReaderId, bool)> {
    interests.iter().map(|(reader, interest)| (*reader, interest.units[&UnitId(unit)].attaches)).collect()
}

/// Returns the units on the route of a reader.
fn units(table: &RouteTable, reader: ReaderId) -> BTreeSet<UnitId> {
    table.interest(&table.routes[&reader].route, |_| false).units.into_keys().collect()
}

fn add_route(table: &mut RouteTable, route: Route) -> ReaderId {
    let reader = ReaderId(u32::try_from(table.routes.len()).unwrap());
    table.routes.insert(reader, Routed { name: None, route });
    reader
}

fn record(unit: u32, change: Change) -> Record {
    Record { sequence: Sequence(1), unit: UnitId(unit), time_micros: 0, change, old_lost: false }
}

/// Rule: S-5.
#[test]
fn successor_adds_new_readers_and_drops_old_ones() {
    let mut table = RouteTable::default();
    let [both, old, new] = ["*", "old", "new"].map(|entry| add_route(&mut table, with(entry, Duration::ZERO)));
    add(&mut table, 1, "old");
    let (_, interests, attachments) = table.add_unit(UnitId(2), info("new"), UnitOptions::default(), Some("old"));
    assert_eq!(attaches(&interests, 2), [(both, false), (new, true)]);
    assert!(!interests[0].1.units[&UnitId(1)].attaches);
    let detach = Attachment { reader: old, kind: AttachmentKind::Detach };
    assert_eq!(attachments, [detach, Attachment { reader: new, kind: RouteTable::ATTACH_ON_RELOAD }]);
}

#[test]
fn units_of_one_type_share_a_number() {
    let mut table = RouteTable::default();
    let mut number = |unit, group: &str, plural: &str| {
        let (group, plural) = (group.to_owned(), plural.to_owned());
        let info = UnitInfo { resource: ResourceType { group, plural, ..info("all").resource }, ..info("all") };
        table.add_unit(UnitId(unit), info, UnitOptions::default(), None).0.resource
    };
    let types = [("", "pods"), ("", "jobs"), ("batch", "jobs")];
    let numbers: Vec<_> = (1..).zip(types).map(|(unit, (group, plural))| number(unit, group, plural)).collect();
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[2] != numbers[0]);
    assert_eq!(number(4, "", "pods"), numbers[0]);

    table.retire_unit(UnitId(1), Sequence(5));
    assert_eq!(table.forget_units(Sequence(5)), [UnitId(1)]);
    assert_eq!(add_numbered(&mut table, 5), numbers[0], "the type had a unit all the time");
    for unit in [4, 5] {
        table.retire_unit(UnitId(unit), Sequence(6));
    }
    assert_eq!(table.forget_units(Sequence(6)).len(), 2);
    assert!(!numbers.contains(&add_numbered(&mut table, 6)), "a number is used once");
}

fn add_numbered(table: &mut RouteTable, unit: u32) -> TypeNumber {
    table.add_unit(UnitId(unit), info("all"), UnitOptions::default(), None).0.resource
}

#[test]
fn routes_take_units_by_entry_in_any_order() {
    let mut table = RouteTable::default();
    add(&mut table, 0, "pods");
    let [some, all] = ["work*", "*"].map(|entry| add_route(&mut table, with(entry, Duration::ZERO)));
    assert_eq!(add(&mut table, 70, "workloads"), [some, all]);
    assert_eq!(add(&mut table, 71, "workloads"), [some, all]);
    let wants = |reader, unit| units(&table, reader).contains(&UnitId(unit));
    assert_eq!([0, 70, 71, 72].map(|unit| wants(some, unit)), [false, true, true, false]);
    assert_eq!([0, 70, 71, 72].map(|unit| wants(all, unit)), [true, true, true, false]);
    assert!(Route::new(["a["], ChangeSet::ALL, Duration::ZERO).is_err());
}

#[test]
fn notification_knows_its_units_and_can_be_sliced() {
    let mut table = RouteTable::default();
    add(&mut table, 1, "pods");
    add(&mut table, 2, "jobs");
    let records = vec![record(1, added("a", "a", 1)), record(9, synced(0)), record(2, synced(0)), record(1, synced(0))];
    let all = Notification::new(table.events(records));
    let entries = |part: &Notification| part.events().iter().map(|event| event.unit.entry.clone()).collect::<Vec<_>>();
    assert_eq!(entries(&all), ["pods", "jobs", "pods"]);
    assert_eq!(entries(&all.slice(1..3)), ["jobs", "pods"]);
    assert_eq!(entries(&all.slice(1..3).slice(1..2)), ["pods"]);
}

fn with(resources: &str, resync: Duration) -> Route {
    Route::new([resources], ChangeSet::ALL, resync).unwrap()
}

/// Rules: S-10, S-11.
#[test]
fn resync_period_is_multiple_of_unit_period() {
    let every =
        |wanted: u64, own: u64| with("*", Duration::from_millis(wanted)).resync_every(Duration::from_millis(own));
    assert_eq!(every(0, 1_000), 0, "never");
    assert_eq!(every(5_000, 0), 0, "the unit has no resyncs");
    assert_eq!(every(10, 1_000), 1);
    assert_eq!(every(10, 400), 3, "a second, rounded up");
    assert_eq!(every(5_000, 1_000), 5);
    assert_eq!(every(5_001, 1_000), 6);
    assert_eq!(every(1_000, 60_000), 1);
    assert_eq!(Route::new(["*"], ChangeSet::ADDED, RESYNC_MIN).unwrap().resync_every(RESYNC_MIN), 0);
}

/// Rule: S-5.
#[test]
fn late_reader_joins_running_and_later_units() {
    let mut table = RouteTable::default();
    add(&mut table, 0, "pods");
    add(&mut table, 1, "jobs");
    add(&mut table, 2, "pods");
    table.retire_unit(UnitId(2), Sequence(9));
    let route = with("pods", Duration::ZERO);
    assert_eq!(table.taken(&route), BTreeSet::from([UnitId(0)]));
    let reader = add_route(&mut table, route);
    assert_eq!(add(&mut table, 3, "pods"), [reader]);
    let (attach, detach) = (AttachmentKind::Attach(Some(Cause::Reload)), AttachmentKind::Detach);
    let attachments = |attachments: Vec<(UnitId, Attachment)>| {
        attachments.iter().map(|(unit, asked)| (unit.0, asked.kind)).collect::<Vec<_>>()
    };
    let attaches = |interest: &Interest, unit| interest.units.get(&UnitId(unit)).map(|interest| interest.attaches);
    let (interest, routed) = table.set_route(reader, with("jobs", Duration::ZERO));
    assert_eq!(attachments(routed), [(0, detach), (3, detach), (1, attach)]);
    assert_eq!([0, 1, 2, 3].map(|unit| attaches(&interest, unit)), [None, Some(true), None, None]);
    let (interest, routed) = table.set_route(reader, with("*", Duration::ZERO));
    assert_eq!(attachments(routed), [(0, attach), (3, attach)]);
    assert_eq!([0, 1, 2, 3].map(|unit| attaches(&interest, unit)), [Some(true), Some(false), None, Some(true)]);
    assert_eq!(table.types(reader), ["pods"]);
    table.routes.remove(&reader);
    assert!(table.set_route(reader, with("*", Duration::ZERO)).1.is_empty(), "it is unknown");
}

#[test]
fn ended_unit_is_forgotten_once_drained() {
    let mut table = RouteTable::default();
    let reader = add_route(&mut table, with("*", Duration::ZERO));
    for round in 0..100 {
        add(&mut table, round, "pods");
        table.retire_unit(UnitId(round), Sequence(u64::from(round)));
        assert_eq!(table.events(vec![record(round, synced(0))]).len(), 1);
        assert_eq!(table.forget_units(Sequence(u64::from(round))), [UnitId(round)]);
    }
    assert_eq!((table.units.len(), units(&table, reader).len()), (0, 0));
    add(&mut table, 200, "pods");
    table.retire_unit(UnitId(200), Sequence(300));
    assert!(table.forget_units(Sequence(299)).is_empty());
}
