//! Whole units over a [`FakeApiServer`]: how they start, replace each other and end, and what they append to the journal.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
};

use actix::{Actor as _, System};

use super::{testing::options, *};
use crate::{
    change::Cause,
    indexer::{Retirement, actor::AttachReader, retirement},
    informer::actor::{RunningIndexer, Sabotage, StopUnit, UnitSupervisor},
    journal::{
        Attachment, AttachmentKind, Bounds, ChangeKind, ChangeSet, Interest, ReaderId, ReaderOptions, Record, Sequence,
        UnitInterest,
    },
    list_watch::{Failure, Status, WatchEvent, transform::Transform},
    object::{
        Keep, KeyRef,
        packer::{Compression, Packer, testing as packing},
        scan::TypeMeta,
    },
    scope::Namespaces,
    status::UnitState,
    supervisor::{
        Supervision,
        arbiters::Arbiters,
        fault::{Fault, Harm, Moment},
    },
    testing::{FakeApiServer, Request, expired, object_with_uid, status},
};

/// One server for each unit, by its id.
#[derive(Default)]
struct Sources(Mutex<BTreeMap<UnitId, FakeApiServer>>);

impl SourceFactory for Sources {
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String> {
        let servers = self.0.lock().unwrap();
        Ok(Rc::new(servers.get(&informer.id).ok_or("no server")?.clone()))
    }
}

/// Units and a journal without an engine, with one reader of everything.
struct Bench {
    sources: Arc<Sources>,
    shared: Shared,
    siblings: Arc<Siblings>,
    reader: ReaderId,
    seen: RefCell<Vec<Record>>,
}

type Running = (Arc<Informer>, actix::Addr<UnitSupervisor>);

fn stubs() -> InformerOptions {
    let keep = Keep::Stub(Arc::new(TypeMeta::new("v1", "ConfigMap")));
    InformerOptions { indexer: IndexerOptions { keep, ..IndexerOptions::default() }, ..options() }
}

/// Returns the seed of a unit of another scope.
fn relist(old: &Informer) -> Seed {
    let first_list = FirstList { cause: Cause::Reload, bodies: old.has_bodies(), complete: old.is_readable() };
    Seed::Relist { objects: old.objects(), version: old.meta().store_version, first_list }
}

fn config_maps() -> Arc<ResourceType> {
    Arc::new(ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
    })
}

/// Returns the options of a reader of all units, which may have to be attached to them first.
fn everything(attaches: bool) -> ReaderOptions {
    let units = (0..8).map(|unit| (UnitId(unit), UnitInterest { attaches, resync_every: 1 })).collect();
    let bounds = Bounds { max_events: 1 << 20, ..Bounds::default() };
    ReaderOptions { bounds, interest: Interest { units, changes: ChangeSet::ALL, filter: None }, name: None }
}

/// Formats a record as `+a101 Watch`, like the tests of the indexer; a unit other than 0 precedes it.
fn brief(record: &Record) -> String {
    let unit = if record.unit.0 == 0 { String::new() } else { format!("{}:", record.unit.0) };
    let change = crate::indexer::testing::show(std::slice::from_ref(&record.change));
    format!("{unit}{change}")
}

fn run(test: impl Future<Output = ()>) {
    System::new().block_on(test);
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..40_000 {
        if condition() {
            return;
        }
        actix_rt::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {what}");
}

impl Bench {
    fn new() -> Self {
        let (journal, sources) = (Journal::in_memory(), Arc::<Sources>::default());
        let reader = journal.open_reader(everything(false)).unwrap();
        let list_permits = Arc::new(Semaphore::new(8));
        let shared = Shared {
            journal,
            sources: Arc::clone(&sources) as _,
            list_permits,
            timings: Arc::default(),
            arbiters: Arc::new(Arbiters::new(2)),
            supervision: Supervision {
                backoff: options().reflector.backoff,
                hung_after: Duration::from_secs(3),
                ..Supervision::default()
            },
        };
        Self { sources, shared, siblings: Arc::default(), reader, seen: RefCell::default() }
    }

    fn make(&self, id: u32, server: &FakeApiServer, options: InformerOptions, seed: Option<Seed>) -> Arc<Informer> {
        let id = UnitId(id);
        self.sources.0.lock().unwrap().insert(id, server.clone());
        Arc::new(Informer::new(id, "things", config_maps(), options, Arc::clone(&self.siblings), seed))
    }

    fn supervise(&self, informer: Arc<Informer>) -> Running {
        let supervisor = UnitSupervisor::new(Arc::clone(&informer), self.shared.clone());
        (informer, supervisor.start())
    }

    fn start(&self, id: u32, server: &FakeApiServer, options: InformerOptions, seed: Option<Seed>) -> Running {
        self.supervise(self.make(id, server, options, seed))
    }

    /// Waits until the indexer answers messages. Moving a reader that already sees the unit has no effect.
    async fn running(&self, supervisor: &actix::Addr<UnitSupervisor>) {
        moved(supervisor, self.reader, AttachmentKind::Attach(None)).await;
    }

    fn records(&self) -> Vec<Record> {
        let mut seen = self.seen.borrow_mut();
        let batch = self.shared.journal.read(self.reader, usize::MAX, usize::MAX);
        if let Some(last) = batch.last() {
            self.shared.journal.ack(self.reader, last.sequence);
        }
        seen.extend(batch);
        seen.clone()
    }

    fn said(&self) -> Vec<String> {
        self.records().iter().map(brief).collect()
    }

    /// Waits until the journal has got the `expected` records, and no others, since the last call.
    #[track_caller]
    fn says(&self, expected: &str) -> impl Future<Output = ()> {
        let expected = expected.to_owned();
        let place = std::panic::Location::caller();
        async move {
            let count = expected.split(", ").filter(|word| !word.is_empty()).count();
            for _ in 0..20_000 {
                if self.said().len() >= count {
                    break;
                }
                actix_rt::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(self.said().join(", "), expected, "{place}");
            self.seen.borrow_mut().clear();
        }
    }

    /// Runs a unit over `server` until it is synced, and stops it.
    async fn ran(&self, server: &FakeApiServer, options: InformerOptions) -> Arc<Informer> {
        let (unit, supervisor) = self.start(0, server, options, None);
        until("synced", || unit.meta().synced).await;
        supervisor.send(StopUnit).await.unwrap();
        self.records();
        self.seen.borrow_mut().clear();
        unit
    }
}

fn names(unit: &Informer) -> String {
    let mut objects = unit.objects();
    objects.sort_by(|one, other| one.key().cmp(&other.key()));
    objects.iter().map(|o| format!("{}{}", o.name(), o.resource_version())).collect::<Vec<_>>().join(" ")
}

#[test]
fn successor_of_hung_indexer_keeps_position_of_cache() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
        let unit = bench.ran(&server, options()).await;
        let before = unit.meta();
        assert!(before.position > 0);
        let hung = unit.slot.load().lease().expect("no actor runs");
        unit.take_over(100, &bench.shared.journal);
        let after = unit.meta();
        assert_eq!((after.generation, after.position), (before.generation + 1, before.position));
        drop(hung);
    });
}

#[test]
fn unit_counts_lists_watches_and_events() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
        let (unit, supervisor) = bench.start(0, &server, options(), None);
        until("synced", || unit.meta().synced).await;
        let timings = &bench.shared.timings;
        until("watched", || timings.watch_open.snapshot().count() > 0).await;
        assert_eq!((timings.event_age.snapshot().count(), timings.batch_events.snapshot().sum()), (0, 2.0));
        server.change(|collection| {
            collection.put("a");
            collection.put("c");
        });
        until("applied", || timings.event_age.snapshot().count() == 2).await;
        let (batched, age) = (timings.batch_events.snapshot().sum(), timings.event_age.snapshot().sum());
        assert!((batched - 4.0).abs() < 0.1, "the list's two and two more: {batched}");
        assert!(age > 0.0 && age < 60.0, "{age} s");
        let lists = unit.status.view().list_duration.snapshot();
        assert_eq!(lists.count(), 1);
        assert!(lists.sum() > 0.0 && lists.sum() < 60.0, "{} s", lists.sum());
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn resuming_unit_continues_without_list_or_events() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
        let old = bench.ran(&server, options()).await;
        let asked = server.requests().len();
        let unit = bench.make(1, &server, InformerOptions { order: QueueOrder::PerKey, ..options() }, Some(old.seed()));
        assert!(unit.is_readable() && unit.status.view().synced && unit.status.view().objects == 2);
        assert_eq!(names(&unit), "a101 b102");
        old.retire(&bench.shared.journal, &[]).unwrap();
        let (_, supervisor) = bench.supervise(unit);
        until("watching", || server.open_streams() == 1).await;
        server.change(|collection| collection.put("a"));
        bench.says("1:a101>a103 Watch").await;
        let requests = server.requests().split_off(asked);
        assert!(
            matches!(&requests[..], [Request::Watch(watch)] if watch.resource_version.as_str() == "102"),
            "{requests:?}"
        );
        supervisor.send(StopUnit).await.unwrap();
    });
}

async fn relisted(selective: bool, expected: &str) {
    let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b", "c"]));
    let old = bench.ran(&server, options()).await;
    server.change(|collection| {
        collection.delete("a");
        collection.put("b");
        collection.put("d");
    });
    let indexer = IndexerOptions { selective, ..IndexerOptions::default() };
    let seed = relist(&old);
    let unit = bench.make(1, &server, InformerOptions { indexer, ..options() }, Some(seed));
    assert!(unit.is_readable() && !unit.meta().synced);
    assert_eq!(names(&unit), "a101 b102 c103");
    old.retire(&bench.shared.journal, &[]).unwrap();
    let (unit, supervisor) = bench.supervise(unit);
    bench.says(expected).await;
    assert_eq!(names(&unit), "b105 c103 d106");
    server.change(|collection| collection.put("d"));
    bench.says("1:d106>d107 Watch").await;
    assert!(unit.status.view().synced, "although the type was synced before and says so once");
    supervisor.send(StopUnit).await.unwrap();
}

#[test]
fn relisting_unit_compares_first_list_with_seed() {
    run(relisted(false, "1:!a101 Reload, 1:b102>b105 Reload, 1:=c103 Reload, 1:+d106 Reload"));
}

#[test]
fn selective_unit_removes_seed_objects_not_found() {
    run(relisted(true, "1:xa101 Reload, 1:b102>b105 Reload, 1:=c103 Reload, 1:+d106 Reload"));
}

#[test]
fn unchanged_object_gets_new_body_after_crash() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let cut = Transform::of_values(|value| {
            value["data"] = "cut in another way".into();
            Ok::<_, String>(())
        });
        let old = bench.ran(&server, options()).await;
        server.hold_lists(true);
        let gate = Gate { transform: Some(cut), ..Gate::default() };
        let options = InformerOptions { gate, ..options() };
        let (unit, supervisor) = bench.start(1, &server, options, Some(relist(&old)));
        for (times, actor) in (1..).zip([0, 1, 2]) {
            bench.running(&supervisor).await;
            supervisor.send(Sabotage(actor, Fault::new(Harm::Panic, Moment::Now))).await.unwrap();
            until("restarted", || unit.status.view().restarts >= times).await;
        }
        assert_eq!(names(&unit), "a101", "the seed outlives its actors");
        server.hold_lists(false);
        bench.says("1:=a101 Reload").await;
        let body = unit.lister().get(KeyRef { namespace: "default", name: "a" }).unwrap().value().unwrap();
        assert_eq!(body["data"], "cut in another way");
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn interrupted_first_list_over_seed_is_completed() {
    for moment in [Moment::BeforeAppend, Moment::BeforePublish, Moment::BeforeRelease] {
        for harm in [Harm::Panic, Harm::Hang(Duration::from_secs(8))] {
            run(async {
                let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
                let old = bench.ran(&server, options()).await;
                server.change(|collection| collection.delete("a"));
                server.hold_lists(true);
                let seed = Some(relist(&old));
                let (unit, supervisor) = bench.start(1, &server, options(), seed);
                bench.running(&supervisor).await;
                supervisor.send(Sabotage(2, Fault::new(harm, moment))).await.unwrap();
                server.hold_lists(false);
                bench.says("1:!a101 Reload, 1:=b102 Reload").await;
                until("restarted", || unit.status.view().restarts > 0 && unit.meta().synced).await;
                server.change(|collection| collection.put("c"));
                bench.says("1:+c104 Watch").await;
                assert_eq!(names(&unit), "b102 c104");
                supervisor.send(StopUnit).await.unwrap();
            });
        }
    }
}

#[test]
fn new_namespace_is_added_with_seed_cause() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let first_list = FirstList { cause: Cause::Relist, ..FirstList::default() };
        let (unit, supervisor) = bench.start(
            0,
            &server,
            options(),
            Some(Seed::Relist { objects: Vec::new(), version: ResourceVersion::unset(), first_list }),
        );
        assert!(!unit.is_readable());
        bench.says("+a101 Relist, synced 1 101").await;
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn unsynced_unit_hands_on_its_first_list() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let first_list = FirstList { cause: Cause::Relist, bodies: false, complete: true };
        let objects = vec![object_with_uid("a", "u", "1")];
        let seed = Seed::Relist { objects, version: "7".into(), first_list };
        let unit = bench.make(1, &server, options(), Some(seed));
        let Seed::Relist { objects, version, first_list: handed_on } = unit.seed() else { panic!("it is not synced") };
        assert_eq!((objects.len(), version.as_str(), handed_on), (1, "7", first_list));
        assert_eq!((unit.has_bodies(), unit.is_readable()), (false, true));
    });
}

#[test]
fn last_records_of_unit_come_by_key() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["b", "a"]));
        let unit = bench.ran(&server, options()).await;
        let journal = &bench.shared.journal;
        unit.retire(journal, &retirement(unit.objects(), Retirement::Removed(Cause::Reload))).unwrap();
        bench.says("xa102 Reload, xb101 Reload").await;
        assert!(unit.launch(1, &bench.shared).is_err(), "no actor of it starts any more");
        assert!(journal.append(unit.id.writer(1), &[], &Reached::default(), Timestamp::now()).is_err(), "nor appends");
    });
    let gone = retirement(vec![object_with_uid("z", "u", "1")], Retirement::Deleted(Cause::Relist));
    assert_eq!(crate::indexer::testing::show(&gone), "!z1 Relist");
    let left = retirement(vec![object_with_uid("z", "u", "1")], Retirement::Removed(Cause::Watch));
    assert_eq!(crate::indexer::testing::show(&left), "xz1 Watch");
}

/// Rule: S-12.
#[test]
fn units_of_one_type_sync_once_together() {
    run(async {
        let bench = Bench::new();
        let servers = [["a", "b"], ["c", "d"]].map(|names| FakeApiServer::with_objects(&names));
        servers[1].hold_lists(true);
        let units = [0, 1].map(|id| bench.make(id, &servers[id as usize], options(), None));
        let running = units.map(|unit| bench.supervise(unit));
        bench.says("+a101 Initial, +b102 Initial").await;
        servers[0].change(|collection| collection.put("e"));
        bench.says("+e103 Watch").await;
        assert!(running[0].0.status.view().synced && !running[1].0.status.view().synced);
        servers[1].hold_lists(false);
        bench.says("1:+c101 Initial, 1:+d102 Initial, 1:synced 5 102").await;
        for (_, supervisor) in &running {
            supervisor.send(StopUnit).await.unwrap();
        }
    });
}

#[test]
fn retired_unsynced_unit_completes_type_sync() {
    run(async {
        let bench = Bench::new();
        let server = FakeApiServer::with_objects(&["a"]);
        let forbidden = bench.make(1, &server, options(), None);
        let (unit, supervisor) = bench.start(0, &server, options(), None);
        bench.says("+a101 Initial").await;
        until("synced itself", || unit.meta().synced).await;
        forbidden.retire(&bench.shared.journal, &[]).unwrap();
        bench.says("1:synced 1 ").await;
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn stub_cache_shows_no_old_state() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
        let (unit, supervisor) = bench.start(0, &server, stubs(), None);
        bench.says("+a101 Initial, +b102 Initial, synced 2 102").await;
        let stub = |name| unit.lister().get(KeyRef { namespace: "default", name }).unwrap();
        let members = stub("a").value().unwrap();
        assert_eq!(members["metadata"].as_object().unwrap().len(), 4, "{members}");
        assert_eq!(members.as_object().unwrap().len(), 3, "{members}");
        server.change(|collection| collection.put("a"));
        bench.says("?>a103 Watch").await;
        server.change(|collection| collection.put("a"));
        until("updated", || !bench.records().is_empty()).await;
        let record = bench.records().remove(0);
        assert!(record.old_lost && record.old().is_none(), "{record:?}");
        assert_eq!(ChangeKind::of(&record.change), ChangeKind::Updated);
        bench.says("?>a104 Watch").await;
        server.change(|collection| collection.delete("b"));
        bench.says("-b105 Watch").await;
        let last = stub("a");
        server.hold_lists(true);
        server.inject(&[WatchEvent::Error(expired().status().unwrap().clone())]);
        until("listing", || unit.status.view().lists == 2).await;
        server.change(|collection| collection.delete("a"));
        server.hold_lists(false);
        until("deleted", || !bench.records().is_empty()).await;
        assert!(bench.records()[0].object().is_some_and(|object| object.json() == last.json()));
        bench.says("!a104 Relist").await;
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn full_bodies_return_after_stub_cache() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a", "b"]));
        let old = bench.ran(&server, stubs()).await;
        server.change(|collection| collection.put("b"));
        let (unit, supervisor) = bench.start(1, &server, options(), Some(relist(&old)));
        bench.says("1:=a101 Reload, 1:?>b103 Reload").await;
        server.change(|collection| collection.put("b"));
        bench.says("1:b103>b104 Watch").await;
        assert!(unit.objects().iter().all(|object| object.uid().starts_with("uid") && !object.json().is_empty()));
        supervisor.send(StopUnit).await.unwrap();
    });
}

/// Rules: R-23, F-61.
#[test]
fn failed_transform_fails_list_and_is_retried() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let fails = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&fails);
        let transform =
            Transform::new(move |_| if asked.load(Ordering::Relaxed) { Err("not now".to_owned()) } else { Ok(None) });
        let gate = Gate { transform: Some(transform), ..Gate::default() };
        let (unit, supervisor) = bench.start(0, &server, InformerOptions { gate, ..options() }, None);
        until("failed", || unit.status.view().lists > 2).await;
        assert_eq!(unit.status.view().last_error.as_deref(), Some("the transform failed: default/a: not now"));
        fails.store(false, Ordering::Relaxed);
        bench.says("+a101 Initial, synced 1 101").await;
        fails.store(true, Ordering::Relaxed);
        server.change(|collection| collection.put("b"));
        until("counted", || unit.status.view().transform_failures == 1).await;
        until("passed", || unit.meta().resume_version.as_str() == "102").await;
        bench.says("").await;
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn hidden_namespaces_move_only_the_version() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let gate = Gate { namespaces: Namespaces::parse(&["team-*"]).unwrap(), ..Gate::default() };
        let (unit, supervisor) = bench.start(0, &server, InformerOptions { gate, ..options() }, None);
        bench.says("synced 0 101").await;
        server.change(|collection| collection.put("b"));
        until("passed", || unit.meta().resume_version.as_str() == "102").await;
        bench.says("").await;
        supervisor.send(StopUnit).await.unwrap();
    });
}

/// Rule: S-11.
#[test]
fn resync_rounds_continue_after_restart() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let reflector = ReflectorConfig { resync_period: Duration::from_millis(30), ..options().reflector };
        let (unit, supervisor) = bench.start(0, &server, InformerOptions { reflector, ..options() }, None);
        let rounds = || -> Vec<u32> {
            let round = |record: &Record| match record.change {
                Change::Unchanged { cause: Cause::Resync { round }, .. } => Some(round),
                _ => None,
            };
            bench.records().iter().filter_map(round).collect()
        };
        until("resynced", || rounds().len() >= 2).await;
        bench.running(&supervisor).await;
        supervisor.send(Sabotage(1, Fault::new(Harm::Panic, Moment::Now))).await.unwrap();
        until("restarted", || unit.status.view().restarts > 0).await;
        let before = rounds().len();
        until("resynced again", || rounds().len() >= before + 2).await;
        let rounds = rounds();
        assert!(rounds.is_sorted_by(|one, other| one < other) && rounds[0] == 1, "{rounds:?}");
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn forbidden_unit_names_missing_right() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        (0..1_000).for_each(|_| server.fail_list(status(403)));
        let scope = Scope { namespace: Some("default".to_owned()), ..Scope::default() };
        let (unit, supervisor) = bench.start(0, &server, InformerOptions { scope, ..options() }, None);
        until("forbidden", || unit.status.view().state == UnitState::Forbidden).await;
        let view = unit.status.view();
        assert_eq!(view.namespace.as_deref(), Some("default"));
        assert_eq!(
            view.message.as_deref(),
            Some(
                "not allowed to list configmaps in namespace default (403): grant the verbs list and watch on \
                 configmaps, with a Role in default"
            )
        );
        supervisor.send(StopUnit).await.unwrap();
    });
}

/// Rule: T-1.
#[test]
fn delayed_list_is_shown_and_frees_its_permit() {
    run(async {
        let mut bench = Bench::new();
        bench.shared.list_permits = Arc::new(Semaphore::new(1));
        let (busy, other) = (FakeApiServer::with_objects(&["a"]), FakeApiServer::with_objects(&["b"]));
        let (code, reason) = (429, "TooManyRequests".to_owned());
        busy.fail_list(Failure::Status(Status {
            code,
            reason,
            retry_after: Some(Duration::from_secs(3)),
            ..Status::default()
        }));
        let (unit, delayed) = bench.start(0, &busy, options(), None);
        until("shown", || unit.status.view().last_error.is_some()).await;
        let view = unit.status.view();
        assert_eq!((view.state, view.synced), (UnitState::BackingOff, false));
        assert_eq!(view.last_error.as_deref(), Some("server answered 429 TooManyRequests"));
        let (second, running) = bench.start(1, &other, options(), None);
        until("listed", || second.status.view().synced).await;
        assert_eq!(busy.requests().len(), 1, "the other unit did not wait for the delayed one");
        until("listed again", || unit.status.view().synced).await;
        assert_eq!(busy.requests()[..2], [busy.requests()[0].clone(), busy.requests()[0].clone()]);
        for supervisor in [delayed, running] {
            supervisor.send(StopUnit).await.unwrap();
        }
    });
}

/// Rule: S-5.
#[test]
fn stopped_unit_moves_no_reader() {
    run(async {
        let bench = Bench::new();
        // it has no server, so it cannot start
        let unit = Informer::new(UnitId(7), "things", config_maps(), options(), Arc::default(), None);
        let (_, supervisor) = bench.supervise(Arc::new(unit));
        assert!(supervisor.send(RunningIndexer).await.unwrap().is_none());
        supervisor.send(StopUnit).await.unwrap();
    });
}

/// Reader that was attached late, with the state that follows from its records.
struct Late {
    reader: ReaderId,
    state: BTreeMap<String, String>,
    left: bool,
}

impl Late {
    /// Reads the next records; each must fit the earlier ones, so that nothing is missing or doubled.
    fn read(&mut self, journal: &Journal) {
        // a batch ends where an object is created again
        while let Some(last) = self.read_batch(journal) {
            journal.ack(self.reader, last);
        }
    }

    fn read_batch(&mut self, journal: &Journal) -> Option<Sequence> {
        let batch = journal.read(self.reader, usize::MAX, usize::MAX);
        for record in &batch {
            let object = record.object().expect("the type was synced before it joined");
            let (name, version) = (object.name().to_owned(), object.resource_version().to_owned());
            let fits = match (&record.change, self.state.get(&name)) {
                (Change::Added { .. }, None) => self.state.insert(name, version).is_none(),
                (Change::Updated { old, .. }, Some(seen)) if old.resource_version() == seen => {
                    self.state.insert(name, version).is_some()
                }
                (Change::Deleted { .. }, Some(_)) => self.state.remove(&name).is_some(),
                (Change::Removed { cause, .. }, Some(seen)) if self.left && *seen == version => {
                    *cause == Cause::Reload && self.state.remove(&name).is_some()
                }
                _ => false,
            };
            assert!(fits, "{} does not fit {:?}", brief(record), self.state);
        }
        batch.last().map(|record| record.sequence)
    }
}

async fn moved(supervisor: &actix::Addr<UnitSupervisor>, reader: ReaderId, kind: AttachmentKind) {
    loop {
        let indexer = supervisor.send(RunningIndexer).await.unwrap();
        if let Some(indexer) = indexer
            && let Ok(Ok(())) = indexer.send(AttachReader(Attachment { reader, kind })).await
        {
            return;
        }
        actix_rt::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Changes objects of a few names on a separate thread, until it is stopped.
fn writer(server: &FakeApiServer) -> (Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let (server, stop) = (server.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let mut dice = 1_u32;
        while !stopped.load(Ordering::Relaxed) {
            for _ in 0..5 {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let name = format!("o{}", dice >> 28);
                server.change(|collection| match dice & 0x300 {
                    0 if collection.state().contains_key(&name) => collection.delete(&name),
                    _ => collection.put(&name),
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    (stop, thread)
}

/// Rules: S-5, S-7.
#[test]
fn moving_readers_miss_and_repeat_nothing() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["o1", "o2", "o3"]));
        let (unit, supervisor) = bench.start(0, &server, options(), None);
        until("synced", || unit.meta().synced).await;
        let (stop, thread) = writer(&server);
        let journal = &bench.shared.journal;
        let mut readers: Vec<Late> = Vec::new();
        for round in 0..60 {
            let reader = journal.open_reader(everything(true)).unwrap();
            moved(&supervisor, reader, AttachmentKind::Attach(Some(Cause::Replay))).await;
            if round % 3 == 0 {
                moved(&supervisor, reader, AttachmentKind::Attach(Some(Cause::Replay))).await; // as after a lost answer
            }
            readers.push(Late { reader, state: BTreeMap::new(), left: false });
            if round % 4 == 1 {
                let late = &mut readers[round / 2];
                moved(&supervisor, late.reader, AttachmentKind::Detach).await;
                late.left = true;
            }
            if round % 15 == 14 {
                supervisor.send(Sabotage(round % 3, Fault::new(Harm::Panic, Moment::Now))).await.unwrap();
            }
            for late in &mut readers {
                if let Some(last) = late.read_batch(journal) {
                    journal.ack(late.reader, last);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        let state = server.collection().state();
        until("quiet", || unit.objects().len() == state.len() && unit.meta().objects == state.len() as u64).await;
        until("up to date", || {
            let now: BTreeMap<_, _> =
                unit.objects().iter().map(|o| (o.name().to_owned(), o.resource_version().to_owned())).collect();
            now == state
        })
        .await;
        // the last changes may not be released yet
        until("released", || unit.status.view().resource_version == unit.meta().store_version.as_str()).await;
        for late in &mut readers {
            late.read(journal);
            let expected = if late.left { BTreeMap::new() } else { state.clone() };
            assert_eq!(late.state, expected, "{:?} left: {}", late.reader, late.left);
        }
        assert!(unit.status.view().restarts > 0 && readers.iter().any(|late| late.left));
        supervisor.send(StopUnit).await.unwrap();
    });
}

/// Rule: S-5.
#[test]
fn late_reader_gets_each_object_once_by_key() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["b", "a"]));
        let journal = &bench.shared.journal;
        let attached = |supervisor: actix::Addr<UnitSupervisor>, cause| async move {
            let reader = journal.open_reader(everything(true)).unwrap();
            moved(&supervisor, reader, AttachmentKind::Attach(cause)).await;
            reader
        };
        let seen = |reader| {
            let words: Vec<_> = journal.read(reader, usize::MAX, usize::MAX).iter().map(brief).collect();
            words.join(", ")
        };
        let (unit, supervisor) = bench.start(0, &server, options(), None);
        until("synced", || unit.meta().synced).await;
        let replayed = attached(supervisor.clone(), Some(Cause::Replay)).await;
        let silent = attached(supervisor.clone(), None).await;
        assert_eq!((seen(replayed).as_str(), seen(silent).as_str()), ("+a102 Replay, +b101 Replay", ""));
        server.change(|collection| collection.put("a"));
        until("updated", || unit.status.view().resource_version == "103").await;
        assert_eq!((seen(replayed).as_str(), seen(silent).as_str()), ("a102>a103 Watch", "a102>a103 Watch"));
        moved(&supervisor, replayed, AttachmentKind::Detach).await;
        assert_eq!(seen(replayed), "xa103 Reload, xb101 Reload");
        supervisor.send(StopUnit).await.unwrap();

        let (unit, supervisor) = bench.start(1, &server, stubs(), None);
        until("synced", || unit.meta().synced).await;
        let reader = attached(supervisor.clone(), Some(Cause::Replay)).await;
        assert_eq!(seen(reader), "", "a cache without bodies has nothing to show");
        moved(&supervisor, reader, AttachmentKind::Detach).await;
        assert_eq!(seen(reader), "1:xa103 Reload, 1:xb101 Reload");
        supervisor.send(StopUnit).await.unwrap();
    });
}

#[test]
fn retired_dictionary_is_repacked_at_rest_without_events() {
    run(async {
        let (bench, server) = (Bench::new(), FakeApiServer::with_objects(&["a"]));
        let packer = Arc::new(Packer::new(Compression::Zstd));
        let keep = Keep::Packed(Arc::clone(&packer));
        let options = InformerOptions { indexer: IndexerOptions { keep, ..IndexerOptions::default() }, ..options() };
        packer.learn(100);
        let objects = (0..600).map(|number| packing::object(100, number)).collect();
        let (store_version, resume_version) = ("101".into(), "101".into());
        let unit = bench.make(
            0,
            &server,
            options,
            Some(Seed::Resume { objects, store_version, resume_version, saved: false }),
        );
        let mut others = Vec::new();
        for family in [200, 300, 400, 500] {
            packer.learn(family);
            others.push(packer.pack(&packing::object(family, family)));
        }
        assert_eq!(packer.retiring().map(|dictionary| dictionary.number()), Some(1));
        let (unit, supervisor) = bench.supervise(unit);
        until("watching", || server.open_streams() == 1).await;
        server.change(|collection| collection.put("b"));
        until("all is packed anew, in the cache and in the queue", || packer.retiring().is_none()).await;
        bench.says("+b102 Watch").await;
        let objects = unit.objects();
        assert_eq!((objects.len(), others.len()), (601, 4));
        for object in objects.iter().filter(|object| object.name() != "b") {
            let number = object.resource_version().parse().unwrap();
            assert_eq!(object.json(), packing::object(100, number).json());
        }
        supervisor.send(StopUnit).await.unwrap();
    });
}
