//! The server, the process, the disk and the sinks, and all events possible between two effects.

mod attaching;
mod changing;
mod delivering;
mod ending;
mod reloading;
mod resting;
mod running;
mod starting;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use self::{changing::UnitChange, watching::Watcher};
use super::{
    HANDLERS, Hits, RecordName, UNITS,
    configuration::{Configuration, Entries, Shape, names},
    consumer::{Consumer, Health, Phase, Progress},
    disk::{Disk, Settled, Write, head},
    name_of,
    sink::{Known, Sink, Surroundings},
    site::{Site, version_of},
    unit::{Run, Stage, Unit},
};
use crate::{
    change::{Cause, Change, Reached},
    delivery::{
        core::HandlerAction,
        schedule::{DeliveryOrder, EventLoad, ScheduleOptions},
        table::{Route, RouteTable, UnitOptions},
    },
    engine::plan::reconcile::Occasion,
    indexer::siblings::Siblings,
    journal::{
        Attachment, Bounds, ChangeSet, Fsync, ReaderId, ReaderOptions, Record, Sequence, UnitId, WhenFull,
        compaction::testing::{Merger, Step},
        memory::MemoryJournal,
        store::{StoredReader, StoredUnit},
        timeline::TimelinePage,
    },
    notification::UnitInfo,
    reflector::{ReflectorConfig, StreamingLists},
    simulator::random::Random,
};

/// State that is lost with the process.
struct Process {
    journal_id: u64,
    journal: MemoryJournal,
    table: RouteTable,
    /// Units that were created and not replaced.
    units: Vec<Unit>,
    types: [TypeState; UNITS],
    consumers: [Option<Consumer>; HANDLERS],
    /// Entries on the route of each handler.
    routes: [Entries; HANDLERS],
    next_unit: u32,
    /// Set after the first discovery.
    discovered: bool,
    /// A sync in progress: its number of writes, and the sequence up to which all is durable after it.
    syncing: Option<(usize, Option<Sequence>)>,
    /// Pages of the timeline that are written, and not durable.
    pages: Option<Vec<TimelinePage>>,
    /// Reader positions being saved.
    saving: Option<(Vec<StoredReader>, Settled)>,
    /// The compaction in progress.
    compacting: Option<Compacting>,
}

/// State of one type, like [`TypeState`](crate::engine) of the conductor.
#[derive(Default)]
struct TypeState {
    attachments: Vec<(UnitId, Attachment)>,
    after_first_list: Vec<(UnitId, Attachment)>,
    settled: bool,
    due: Option<Occasion>,
    change: Option<UnitChange>,
    siblings: Arc<Siblings>,
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
    /// Set when the configuration changes.
    reloads: bool,
    configuration: Configuration,
    random: Random,
    now: Duration,
    sites: Vec<Site>,
    disk: Disk,
    process: Option<Process>,
    /// Sinks of all handlers, also of removed ones.
    sinks: Vec<Sink>,
    /// Shape of each unit that was described.
    homes: BTreeMap<UnitId, Shape>,
    /// Records that were written and not lost, with the sinks that want them.
    journaled: BTreeMap<RecordName, (Record, BTreeSet<usize>)>,
    lost: BTreeSet<RecordName>,
    /// Objects of first lists: type and uid.
    listed: BTreeSet<(usize, String)>,
    watchers: Vec<Watcher>,
    births: i64,
    steps: u64,
    hits: &'a mut Hits,
    traces: bool,
}

/// Returns the changes that a handler wants: the last one takes the changes that the others do not, and the second skips initial
/// objects.
fn changes(handler: usize) -> ChangeSet {
    let changes = ChangeSet::ALL.without(ChangeSet::UNCHANGED).without(ChangeSet::RESYNC);
    match handler {
        0 => changes.without(ChangeSet::SYNCED),
        1 => changes.without(ChangeSet::SYNCED).without(ChangeSet::INITIAL),
        _ => changes,
    }
}

fn route(handler: usize, entries: Entries) -> Route {
    Route::new(names(entries), changes(handler), Duration::ZERO).expect("a name is a glob")
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

fn info(shape: Shape) -> UnitInfo {
    shape.spec().info()
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
        Self {
            fsync,
            config,
            lag: [0, 1, 3, 8][random.below(4)],
            schedules,
            reloads: random.chance(0.6),
            configuration: Configuration::default(),
            random,
            now: Duration::from_secs(1),
            sites: (0..UNITS).map(|_| Site::new()).collect(),
            disk: Disk::default(),
            process: None,
            sinks: Vec::new(),
            homes: BTreeMap::new(),
            journaled: BTreeMap::new(),
            lost: BTreeSet::new(),
            listed: BTreeSet::new(),
            watchers: Vec::new(),
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
                6 if self.reloads => self.reload(),
                _ => self.boot(),
            };
        }
        if self.reloads && self.random.chance(0.15) {
            return match self.random.below(100) {
                0..12 => self.reload(),
                12..24 => self.discover(),
                _ => self.tend(site),
            };
        }
        self.step_process(site);
        if let Some(process) = &self.process {
            process.journal.check();
        }
        if self.steps.is_multiple_of(8) {
            self.check_watchers();
        }
    }

    fn step_process(&mut self, site: usize) {
        let handler = [0, 1, 1, 2, 2][self.random.below(5)];
        let unit = self.any_unit();
        match self.random.below(1000) {
            0..90 => self.write(site),
            90..98 => self.compact(site),
            98..200 => unit.into_iter().for_each(|unit| self.advance(unit, false)),
            200..430 => unit.into_iter().for_each(|unit| self.pump(unit)),
            430..436 => unit.into_iter().for_each(|unit| self.restart_unit(unit)),
            436..480 => self.begin_sync(),
            480..530 => self.end_sync(),
            530..550 => self.begin_save(),
            550..570 => self.end_save(),
            570..575 => self.save_timeline(),
            575..580 => self.add_watcher(),
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
    }

    /// Returns the number of a random unit that runs.
    fn any_unit(&mut self) -> Option<usize> {
        let units = &self.process.as_ref().expect("the process runs").units;
        let running: Vec<_> = (0..units.len()).filter(|number| units[*number].runs()).collect();
        self.random.pick(&running).copied()
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
}
