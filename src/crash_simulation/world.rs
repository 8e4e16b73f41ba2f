//! The server, the process, the disk and the sinks, and all events possible between two effects.

mod delivering;
mod ending;
mod resting;
mod running;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use super::{
    HANDLERS, Hits, RecordName, UNITS,
    consumer::{Consumer, Health, Phase, Progress},
    disk::{Disk, Write, head},
    name_of,
    sink::{Known, Sink, Surroundings},
    site::{Site, version_of},
    unit::{Stage, Unit},
};
use crate::{
    change::{Cause, Change, Reached},
    delivery::{
        core::HandlerAction,
        schedule::{DeliveryOrder, EventLoad, ScheduleOptions},
        table::{Route, RouteTable, UnitOptions},
    },
    journal::{
        Bounds, ChangeSet, Fsync, ReaderId, ReaderOptions, Record, Sequence, UnitId, WhenFull,
        compaction::testing::{Merger, Step},
        memory::MemoryJournal,
        store::{StoredReader, StoredUnit},
    },
    notification::UnitInfo,
    object::ResourceType,
    reflector::{ReflectorConfig, StreamingLists},
    simulator::random::Random,
};

/// State that is lost with the process.
struct Process {
    journal_id: u64,
    journal: MemoryJournal,
    table: RouteTable,
    units: Vec<Unit>,
    consumers: Vec<Consumer>,
    /// A sync in progress: its number of writes, and the sequence up to which all is durable after it.
    syncing: Option<(usize, Option<Sequence>)>,
    /// Reader positions being saved, and for each handler the number of acknowledgements that its position includes.
    saving: Option<(Vec<StoredReader>, [usize; HANDLERS])>,
    /// The compaction in progress.
    compacting: Option<Compacting>,
}

/// A step of a compaction.
struct Compacting {
    handler: usize,
    step: Step,
    /// State of the reader after the step; set when the step is written.
    state: Option<StoredReader>,
}

pub(super) struct World<'a> {
    fsync: Fsync,
    config: ReflectorConfig,
    /// Number of versions by which a list may be out of date, if its request allows that.
    lag: u64,
    schedules: [ScheduleOptions; HANDLERS],
    random: Random,
    now: Duration,
    sites: Vec<Site>,
    disk: Disk,
    process: Option<Process>,
    sinks: [Sink; HANDLERS],
    /// Acknowledged records of each handler, in order; after a crash only the saved ones.
    acknowledged: [Vec<RecordName>; HANDLERS],
    /// Records of each handler that were merged into another record.
    merged: [BTreeSet<RecordName>; HANDLERS],
    /// Records that were written and not lost.
    journaled: BTreeMap<RecordName, Record>,
    lost: BTreeSet<RecordName>,
    /// States that a lost record has shown to each handler: unit, uid, and the version of the content.
    shown_and_lost: [BTreeSet<(u32, String, u64)>; HANDLERS],
    listed: BTreeSet<(u32, String)>,
    births: i64,
    steps: u64,
    hits: &'a mut Hits,
    traces: bool,
}

/// Returns a handler's route: the last one takes the changes that the others do not, and the second skips initial objects.
fn route(handler: usize) -> Route {
    let changes = ChangeSet::ALL.without(ChangeSet::UNCHANGED).without(ChangeSet::RESYNC);
    let changes = match handler {
        0 => changes.without(ChangeSet::SYNCED),
        1 => changes.without(ChangeSet::SYNCED).without(ChangeSet::INITIAL),
        _ => changes,
    };
    Route::new(["*"], changes, Duration::ZERO).unwrap()
}

fn bounds(handler: usize) -> Bounds {
    let (max_events, max_bytes) = [(3, 1200), (5, 1 << 20), (1000, 1 << 20)][handler];
    Bounds { max_events, max_bytes, when_full: WhenFull::Coalesce }
}

const HEALTH: [Health; HANDLERS] = [
    Health { fails: 0.05, loses_answers: 0.05 },
    Health { fails: 0.35, loses_answers: 0.15 },
    Health { fails: 0.0, loses_answers: 0.02 },
];
const WELL: Health = Health { fails: 0.0, loses_answers: 0.0 };

fn name_of_handler(handler: usize) -> String {
    format!("handler {handler}")
}

fn info(unit: u32) -> UnitInfo {
    let (kind, plural) = [("ConfigMap", "configmaps"), ("Secret", "secrets")][unit as usize];
    let resource = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: kind.into(),
        plural: plural.into(),
        namespaced: true,
    };
    UnitInfo { entry: plural.into(), resource, namespace: None }
}

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, fsync: Fsync, hits: &'a mut Hits, traces: bool) -> Self {
        let mut random = Random::new(seed);
        let streaming_lists = [StreamingLists::Auto, StreamingLists::Never][random.below(2)];
        let page_size = [None, Some(2)][random.below(2)];
        let config = ReflectorConfig { streaming_lists, page_size, ..ReflectorConfig::default() };
        let schedules = std::array::from_fn(|handler| ScheduleOptions {
            order: if handler == 2 { DeliveryOrder::Total } else { DeliveryOrder::PerObject },
            concurrency: 1 + random.below(3),
            distinct: handler == 0,
            batch_events: 1 + random.below(4),
            batch_bytes: 1 << 20,
            linger: Duration::ZERO,
            window_events: 12,
            window_bytes: 1 << 20,
        });
        let mut sinks: [Sink; HANDLERS] = Default::default();
        sinks[1].skips = true;
        Self {
            fsync,
            config,
            lag: [0, 1, 3, 8][random.below(4)],
            schedules,
            random,
            now: Duration::from_secs(1),
            sites: (0..UNITS).map(|_| Site::new()).collect(),
            disk: Disk::default(),
            process: None,
            sinks,
            acknowledged: Default::default(),
            merged: Default::default(),
            shown_and_lost: Default::default(),
            journaled: BTreeMap::new(),
            lost: BTreeSet::new(),
            listed: BTreeSet::new(),
            births: 0,
            steps: 0,
            hits,
            traces,
        }
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.traces {
            println!("{:4} {}", self.steps, what());
        }
    }

    /// Makes one random step.
    pub(super) fn step(&mut self) {
        self.steps += 1;
        self.now += Duration::from_millis(20);
        let site = self.random.below(self.sites.len());
        if self.process.is_none() {
            return match self.random.below(10) {
                0..5 => self.write(site),
                5 => self.compact(site),
                _ => self.boot(),
            };
        }
        let handler = [0, 1, 1, 2, 2][self.random.below(5)];
        match self.random.below(1000) {
            0..90 => self.write(site),
            90..98 => self.compact(site),
            98..200 => self.advance(site, false),
            200..430 => self.pump(site),
            430..436 => self.restart_unit(site),
            436..480 => self.begin_sync(),
            480..530 => self.end_sync(),
            530..555 => self.begin_save(),
            555..580 => self.end_save(),
            580..660 => self.read(handler),
            660..730 => self.send(handler),
            730..948 => self.deliver(handler, HEALTH[handler]),
            948..955 => self.begin_compaction(),
            955..960 => self.go_on_compacting(),
            960..968 => self.retain(),
            968..972 => self.now += Duration::from_secs(1 + self.random.below(200) as u64),
            972..976 => self.crash(false),
            976..984 => self.crash(true),
            984..988 => self.stop(),
            _ => self.hurry(handler),
        }
        if let Some(process) = &self.process {
            process.journal.check();
        }
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the process runs")
    }

    fn write(&mut self, site: usize) {
        let what = self.sites[site].write(&mut self.random);
        self.trace(|| format!("server {site}: {what}"));
    }

    fn compact(&mut self, site: usize) {
        self.sites[site].compact();
        self.trace(|| format!("server {site}: compacted"));
    }

    /// Starts the process from the store.
    fn boot(&mut self) {
        let journal_id = self.disk.open(self.fsync);
        let recovered = self.disk.now.recovered();
        let mut journal = MemoryJournal::restored(self.fsync, &recovered);
        let mut table = RouteTable::default();
        let mut units = Vec::new();
        for number in 0..UNITS {
            let id = UnitId(number);
            let (terms, _) = table.add_unit(id, info(number), UnitOptions::default(), None);
            journal.add_unit(id, terms);
            let stored = self.disk.now.units.get(&id).cloned().unwrap_or_else(|| {
                let (description, reached) = (serde_json::Value::Null, Reached::default());
                let unit = StoredUnit { id, description, terms, reached, retired: None };
                self.disk.write(Write::Unit(unit.clone()));
                unit
            });
            let mut unit = Unit::restored(id, self.config, &self.disk.now.objects(id), &stored.reached);
            unit.traces = self.traces;
            units.push(unit);
        }
        let settled = self.disk.now.settled;
        let mut consumers = Vec::new();
        for handler in 0..HANDLERS {
            let (name, interest) = (Some(name_of_handler(handler)), table.interest(&route(handler), |_| false));
            let options = ReaderOptions { bounds: bounds(handler), interest, name };
            let reader = self.open_reader(&mut journal, options);
            consumers.push(Consumer::new(reader, self.schedules[handler]));
            let states = journal.save();
            self.disk.write(Write::Readers(states.clone(), settled));
            journal.saved(&states, true);
        }
        let (syncing, saving, compacting) = (None, None, None);
        self.process = Some(Process { journal_id, journal, table, units, consumers, syncing, saving, compacting });
        self.trace(|| format!("start: journal {journal_id}, up to {}", recovered.last.0));
    }

    fn open_reader(&self, journal: &mut MemoryJournal, options: ReaderOptions) -> ReaderId {
        let selected: Result<_, Infallible> = journal.select_missed(&options, |after, visit| {
            self.disk.now.records.range(after.0 + 1..).for_each(|(_, record)| visit(&head(record)));
            Ok(())
        });
        let Ok(()) = selected;
        journal.open_reader(options)
    }
}
