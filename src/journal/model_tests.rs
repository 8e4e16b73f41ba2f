//! Compares the journal with a simple model: random appends, releases, crashes, and slow readers with all policies.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Mutex,
};

use proptest::{prelude::*, test_runner::TestRunner};

use super::{filter::Judged, memory::MemoryJournal, reader::Next, testing::*, *};
use crate::change::{Change, Reached};

/// Number of units at a time; each may be replaced by another unit of its type.
const UNITS: u32 = 3;
/// Unit whose first list is also wanted by readers that want no initial objects.
const LATE: u32 = 2;
/// Unit whose cache holds no bodies.
const UNCACHED: u32 = 1;
const READERS: usize = 8;
/// First reader with a filter.
const FILTERED: usize = 6;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[derive(Clone, Debug)]
enum Op {
    Append { unit: u32, changes: Vec<(usize, u8)> },
    Release { unit: u32 },
    Withdraw { unit: u32 },
    LateAppend { unit: u32 },
    Read { reader: usize, events: usize, bytes: usize },
    Ack { reader: usize, part: u8 },
    Rewind { reader: usize },
    Attach { reader: usize, unit: u32, silent: bool },
    Detach { reader: usize, unit: u32 },
    Resync { unit: u32 },
    Succeed { unit: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let reading = || prop::sample::select(vec![0, 1, 2, 3, 4, 6, 7]);
    let changes = proptest::collection::vec((0..NAMES.len(), 0..18_u8), 0..6);
    prop_oneof![
        8 => (0..UNITS, changes).prop_map(|(unit, changes)| Op::Append { unit, changes }),
        6 => (0..UNITS).prop_map(|unit| Op::Release { unit }),
        1 => (0..UNITS).prop_map(|unit| Op::Withdraw { unit }),
        1 => (0..UNITS).prop_map(|unit| Op::LateAppend { unit }),
        4 => (reading(), 1..6_usize, 1..2000_usize).prop_map(|(reader, events, bytes)| Op::Read { reader, events, bytes }),
        4 => (reading(), any::<u8>()).prop_map(|(reader, part)| Op::Ack { reader, part }),
        1 => reading().prop_map(|reader| Op::Rewind { reader }),
        2 => (0..READERS, 0..UNITS, any::<bool>()).prop_map(|(reader, unit, silent)| Op::Attach { reader, unit, silent }),
        1 => (0..READERS, 0..UNITS).prop_map(|(reader, unit)| Op::Detach { reader, unit }),
        1 => (0..UNITS).prop_map(|unit| Op::Resync { unit }),
        1 => (0..UNITS).prop_map(|unit| Op::Succeed { unit }),
    ]
}

/// Caches of a few units, as the journal sees them.
#[derive(Clone, Default)]
struct World {
    objects: BTreeMap<(u32, usize), (String, u64)>,
    removed: BTreeMap<(u32, usize), (String, u64)>,
    synced: BTreeSet<u32>,
    /// Uids that replaced another uid in an update, so they have no Added.
    replacing: BTreeSet<String>,
    /// Refreshed version → the version before. Readers of changes treat both as equal.
    refreshed: BTreeMap<u64, u64>,
    version: u64,
}

impl World {
    fn change(&mut self, unit: u32, name: usize, dice: u8) -> Change {
        self.version += 1;
        let (key, version) = ((unit, name), self.version);
        let label = NAMES[name];
        if dice == 0 && self.synced.insert(unit) {
            return synced(0);
        }
        let Some((uid, before)) = self.objects.get(&key).cloned() else {
            let back = self.removed.remove(&key).filter(|_| dice.is_multiple_of(2));
            let uid = back.map_or_else(|| format!("{unit}{label}{version}"), |(uid, _)| uid);
            self.objects.insert(key, (uid.clone(), version));
            return if self.synced.contains(&unit) {
                added(label, &uid, version)
            } else {
                initial(label, &uid, version)
            };
        };
        match dice {
            1..4 => {
                self.objects.remove(&key);
                deleted(label, &uid, version)
            }
            4..6 => {
                self.objects.remove(&key);
                self.removed.insert(key, (uid.clone(), before));
                removed(label, &uid, before)
            }
            6 => Change::Unchanged { object: pod(label, &uid, before), cause: Cause::Relist },
            16.. => {
                self.objects.insert(key, (uid.clone(), version));
                self.refreshed.insert(version, before);
                Change::Refreshed { object: pod(label, &uid, version) }
            }
            7 => {
                let next = format!("{unit}{label}{version}");
                self.replacing.insert(next.clone());
                self.objects.insert(key, (next.clone(), version));
                Change::Updated {
                    old: pod(label, &uid, before),
                    object: pod(label, &next, version),
                    cause: Cause::Relist,
                }
            }
            _ => {
                self.objects.insert(key, (uid.clone(), version));
                updated(label, &uid, before, version)
            }
        }
    }
}

/// Returns the last delivered version of a state that may have been refreshed since.
fn told(refreshed: &BTreeMap<u64, u64>, (uid, mut version): (String, u64)) -> (String, u64) {
    while let Some(before) = refreshed.get(&version) {
        version = *before;
    }
    (uid, version)
}

/// Object that a reader was attached to without a record: unit and name, position of the attachment, uid and version.
type Assumed = ((u32, String), u64, (String, u64));

/// Knowledge of the consumer of one reader.
#[derive(Default)]
struct Consumer {
    shown: HashMap<(u32, String), (String, u64)>,
    synced: BTreeSet<u32>,
    in_flight: Vec<Record>,
    again: Vec<u64>,
    last: u64,
    /// Objects of units that it was attached to without records.
    assumed: Vec<Assumed>,
    /// Objects with a lost record. Nothing is guaranteed for them.
    lossy: BTreeSet<(u32, String)>,
    accounted: BTreeSet<u64>,
    /// Uids of objects with an acknowledged record.
    handled: BTreeSet<String>,
    /// Units that it sees, in the order of the journal.
    sees: BTreeSet<u32>,
    /// Units that it must still be attached to.
    awaits: BTreeSet<u32>,
    /// Uids that it gets when it is attached, by unit.
    begins_with: BTreeMap<u32, Vec<(usize, String)>>,
    /// Records that it must get, or whose loss must be reported.
    wanted: BTreeSet<u64>,
    /// Records of its interest that its filter refuses.
    refused: BTreeSet<u64>,
    /// Positions of the wanted records of each object; `told` has the position of the last one shown.
    asked_for: HashMap<(u32, String), BTreeSet<u64>>,
    told: HashMap<(u32, String), u64>,
}

impl Consumer {
    /// Notes a record of its interest.
    fn note(&mut self, sequence: u64, unit: u32, change: &Change, is_filtered: bool) {
        if is_filtered && !ByVersions::passes(change) {
            self.refused.insert(sequence);
            return;
        }
        self.wanted.insert(sequence);
        if let Some(object) = change.object() {
            self.asked_for.entry((unit, object.name().to_owned())).or_default().insert(sequence);
        }
    }

    /// Checks that a shown record results from at least one wanted record.
    fn justify(&mut self, record: &Record, unit: u32) {
        let Some(object) = record.object() else { return };
        let (key, until) = ((unit, object.name().to_owned()), record.sequence.0);
        let from = self.told.get(&key).map_or(0, |last| last + 1);
        let asked_for = self.asked_for.get(&key).is_some_and(|places| places.range(from..=until).next().is_some());
        assert!(asked_for, "{} was refused, and is shown", brief(record));
        self.told.insert(key, until);
    }
}

impl Consumer {
    /// Checks E2 and E3 for one record that was not shown before.
    fn take(&mut self, record: &Record, unit: u32, refreshed: &BTreeMap<u64, u64>, strict: bool) {
        let sequence = record.sequence.0;
        if self.again.first() == Some(&sequence) {
            self.again.remove(0);
            return;
        }
        assert!(self.again.is_empty(), "what was in flight comes again first");
        assert!(sequence > self.last, "E3: sequences increase");
        self.last = sequence;
        assert!(self.accounted.insert(sequence));
        let Some(object) = record.object() else {
            assert!(self.synced.insert(unit));
            return;
        };
        let key = (unit, object.name().to_owned());
        let now = (object.uid().to_owned(), object.resource_version().parse::<u64>().unwrap());
        let now = told(refreshed, now);
        let before = self.assumed.iter().rfind(|(of, place, _)| *of == key && *place < sequence);
        let assumed = before.map(|(.., object)| told(refreshed, object.clone()));
        let shown = self.shown.get(&key).cloned().or(assumed);
        self.assumed.retain(|(of, place, _)| *of != key || *place >= sequence);
        let promised = strict && !self.lossy.contains(&key);
        match &record.change {
            Change::Added { cause, .. } => {
                assert!(!promised || shown.is_none(), "E2: {} while {shown:?} is shown", brief(record));
                assert!(*cause != Cause::Initial || !self.synced.contains(&unit), "initial after synced");
                self.shown.insert(key, now);
            }
            Change::Updated { .. } => {
                if let (true, Some(old)) = (promised, record.old()) {
                    let old = (old.uid().to_owned(), old.resource_version().parse().unwrap());
                    assert_eq!(shown, Some(told(refreshed, old)), "E2: the old state is the one shown before");
                }
                assert!(!promised || shown.is_some());
                self.shown.insert(key, now);
            }
            Change::Unchanged { .. } => {
                assert!(!promised || shown.as_ref() == Some(&now));
                self.shown.insert(key, now);
            }
            Change::Deleted { .. } | Change::Removed { .. } => {
                assert!(!promised || shown.is_some_and(|(uid, _)| uid == now.0), "E2: {} unseen", brief(record));
                self.shown.remove(&key);
            }
            Change::Refreshed { .. } => panic!("{} is no event", brief(record)),
            Change::Synced { .. } => {}
        }
    }
}

/// Number of times that each important case occurred. The test fails if one never did.
#[derive(Debug, Default)]
struct Hits {
    coalesced: u64,
    dropped: u64,
    olds_given_up: u64,
    withdrawn: u64,
    out_of_order: u64,
    crashed: u64,
    rewound: u64,
    held_back: u64,
    attached: u64,
    left: u64,
    rounds_skipped: u64,
    rounds: u64,
    succeeded: u64,
    had_synced: u64,
    late: u64,
    filtered: u64,
    filtered_and_merged: u64,
    overtaken: u64,
}

struct Run {
    journal: MemoryJournal,
    /// Active unit at each index; `places` has the index of each unit.
    at_work: [UnitId; UNITS as usize],
    places: HashMap<UnitId, u32>,
    rounds: [u32; UNITS as usize],
    retired: Vec<(UnitId, Sequence)>,
    world: World,
    /// State of the world before each unit's outstanding append.
    before: BTreeMap<u32, (World, Ticket)>,
    readers: Vec<(ReaderId, Consumer, Interest, WhenFull)>,
    /// Judgements that a reader has not applied yet.
    judging: Option<(usize, Vec<Judged>)>,
    generation: u64,
    hits: Hits,
}

fn terms(unit: u32) -> UnitTerms {
    UnitTerms { resource: TypeNumber(unit), late: unit == LATE, cached: unit != UNCACHED }
}

impl Run {
    fn new() -> Self {
        let mut journal = MemoryJournal::default();
        journal.discovered = true;
        (0..UNITS).for_each(|unit| journal.add_unit(UnitId(unit), terms(unit)));
        let size = pod("a", "0a100", 100).size_bytes();
        let changes = ChangeSet::ADDED.with(ChangeSet::UPDATED).with(ChangeSet::RESYNC);
        let every = |resync_every| {
            let seen = UnitInterest { attaches: false, resync_every };
            let units = (0..UNITS).map(|unit| (UnitId(unit), seen)).collect();
            Interest { units, changes: ChangeSet::ALL, filter: None }
        };
        let filtered = |resync_every| Interest { filter: Some(ByVersions::shared()), ..every(resync_every) };
        let readers = [
            (Bounds::default(), every(2)),
            (Bounds { max_events: 4, max_bytes: 1 << 20, when_full: WhenFull::Coalesce }, every(0)),
            (
                Bounds { max_events: 8, max_bytes: size * 3, when_full: WhenFull::Coalesce },
                Interest { changes, ..every(3) },
            ),
            (Bounds { max_events: 5, max_bytes: size * 6, when_full: WhenFull::DropOldest }, every(3)),
            (Bounds { max_events: 5, max_bytes: 1 << 20, when_full: WhenFull::DropOldest }, every(2)),
            // This reader never reads.
            (Bounds { max_events: 6, max_bytes: size * 4, when_full: WhenFull::Coalesce }, every(0)),
            (Bounds { max_events: 3, max_bytes: size * 6, when_full: WhenFull::Coalesce }, filtered(2)),
            (Bounds { max_events: 4, max_bytes: 1 << 20, when_full: WhenFull::DropOldest }, filtered(0)),
        ];
        let readers = readers
            .into_iter()
            .map(|(bounds, interest)| {
                let options = ReaderOptions { bounds, interest: interest.clone(), name: None };
                let id = journal.open_reader(options);
                let sees = (0..UNITS).collect();
                (id, Consumer { sees, ..Consumer::default() }, interest, bounds.when_full)
            })
            .collect();
        Self {
            journal,
            at_work: [UnitId(0), UnitId(1), UnitId(2)],
            places: (0..UNITS).map(|unit| (UnitId(unit), unit)).collect(),
            rounds: [0; UNITS as usize],
            retired: Vec::new(),
            world: World::default(),
            before: BTreeMap::new(),
            readers,
            judging: None,
            generation: 1,
            hits: Hits::default(),
        }
    }

    /// Appends changes, and notes the readers that must see them.
    fn append(&mut self, unit: u32, changes: &[Change]) -> Ticket {
        let ticket = self
            .journal
            .append(self.at_work[unit as usize].writer(self.generation), changes, &Reached::default(), 1)
            .unwrap();
        assert_eq!(ticket.last.0 + 1 - ticket.first.0, changes.len() as u64);
        for (at, change) in changes.iter().enumerate() {
            let sequence = ticket.first.0 + at as u64;
            let is_later = |uid: &str| changes[at..].iter().any(|c| c.object().is_some_and(|o| o.uid() == uid));
            for (number, (_, consumer, interest, _)) in self.readers.iter_mut().enumerate() {
                if !consumer.sees.contains(&unit) {
                    continue;
                }
                let every = interest.units.values().next().unwrap().resync_every;
                let wanted = match change {
                    Change::Added { cause: Cause::Initial, .. } if unit == LATE => {
                        self.hits.late += u64::from(!interest.changes.has(ChangeSet::INITIAL));
                        true // every reader wants added objects
                    }
                    Change::Unchanged { cause: Cause::Resync { round }, .. } => {
                        every > 0 && round.is_multiple_of(every)
                    }
                    _ => interest.changes.contains(change),
                };
                if wanted {
                    consumer.note(sequence, unit, change, number >= FILTERED);
                }
                if matches!(change, Change::Synced { .. }) {
                    let is_first = |uid: &String| !is_later(uid) && !self.world.replacing.contains(uid);
                    let all = self.world.objects.iter().filter(|((of, _), (uid, _))| *of == unit && is_first(uid));
                    let uids = all.map(|((_, name), (uid, _))| (*name, uid.clone())).collect();
                    consumer.begins_with.insert(unit, uids);
                }
            }
        }
        ticket
    }

    /// Attaches a reader, or detaches it, between two batches of the unit.
    fn attach(&mut self, reader: usize, unit: u32, detaches: bool, silent: bool) {
        self.release(unit);
        let all = self.world.objects.iter().filter(|((of, _), _)| *of == unit);
        let all: Vec<_> = all.map(|((_, name), (uid, version))| (*name, uid.clone(), *version)).collect();
        let change = |(name, uid, version): &(usize, String, u64)| {
            let object = pod(NAMES[*name], uid, *version);
            if detaches {
                Change::Removed { object, cause: Cause::Reload }
            } else {
                Change::Added { object, cause: Cause::Replay }
            }
        };
        let changes: Vec<_> = all.iter().filter(|_| detaches || !silent).map(change).collect();
        let first = self.journal.last().0 + 1;
        if !detaches {
            self.take_interest(reader);
        }
        let (id, consumer, interest, _) = &mut self.readers[reader];
        let at_work = self.at_work[unit as usize];
        let changes_view = consumer.sees.contains(&unit) == detaches;
        if detaches {
            let generation = self.generation;
            self.journal
                .advance(|journal| journal.attach(*id, false, at_work.writer(generation), &changes, 1))
                .0
                .unwrap();
            consumer.sees.remove(&unit);
            consumer.begins_with.remove(&unit);
            self.hits.left += u64::from(changes_view);
            consumer.awaits.insert(unit);
        } else {
            let generation = self.generation;
            self.journal
                .advance(|journal| journal.attach(*id, true, at_work.writer(generation), &changes, 1))
                .0
                .unwrap();
            self.hits.attached += u64::from(changes_view);
            consumer.awaits.remove(&unit);
            if changes_view {
                consumer.sees.insert(unit);
                let begins =
                    if silent { Vec::new() } else { all.iter().map(|(n, uid, _)| (*n, uid.clone())).collect() };
                consumer.begins_with.insert(unit, begins);
            }
            for (name, uid, version) in all.into_iter().filter(|_| silent && changes_view) {
                let key = (unit, NAMES[name].to_owned());
                consumer.assumed.push((key, self.journal.last().0, (uid, version)));
            }
        }
        if changes_view {
            for (sequence, change) in (first..).zip(&changes).filter(|(_, change)| interest.changes.contains(change)) {
                consumer.note(sequence, unit, change, reader >= FILTERED);
            }
        }
    }

    fn resync(&mut self, unit: u32) {
        self.release(unit);
        let round = self.rounds[unit as usize] + 1;
        self.rounds[unit as usize] = round;
        let is_due = |(_, consumer, interest, _): &(_, Consumer, Interest, _)| {
            let every = interest.units.values().next().unwrap().resync_every;
            consumer.sees.contains(&unit) && every > 0 && round.is_multiple_of(every)
        };
        let due = self.readers.iter().any(is_due);
        let said = self.journal.is_resync_due(self.at_work[unit as usize], round);
        assert!(said == due || (said && !self.before.is_empty()), "S-11: round {round}, {due}");
        self.hits.rounds_skipped += u64::from(!due);
        if due {
            let all = self.world.objects.iter().filter(|((of, _), _)| *of == unit);
            let all = all.map(|((_, name), (uid, version))| pod(NAMES[*name], uid, *version));
            let cause = Cause::Resync { round };
            let changes: Vec<_> = all.map(|object| Change::Unchanged { object, cause }).collect();
            let ticket = self.append(unit, &changes);
            self.journal.advance(|journal| journal.release(ticket));
            self.hits.rounds += 1;
        }
    }

    /// Makes a reader interested in all units. It must be attached to those that it does not see.
    fn take_interest(&mut self, reader: usize) {
        let (id, consumer, interest, _) = &mut self.readers[reader];
        let UnitInterest { resync_every, .. } = *interest.units.values().next().unwrap();
        consumer.awaits = (0..UNITS).filter(|unit| !consumer.sees.contains(unit)).collect();
        let wanted = self.at_work.iter().map(|unit| {
            let attaches = consumer.awaits.contains(&self.places[unit]);
            (*unit, UnitInterest { attaches, resync_every })
        });
        interest.units = wanted.collect();
        self.journal.set_interest(*id, interest);
    }

    /// Replaces a unit by another one of its type, which continues with the cache.
    fn succeed(&mut self, unit: u32) {
        self.release(unit);
        let next = UnitId(u32::try_from(self.places.len()).unwrap());
        self.journal.add_unit(next, terms(unit));
        self.places.insert(next, unit);
        let before = std::mem::replace(&mut self.at_work[unit as usize], next);
        self.rounds[unit as usize] = 0;
        for reader in 0..READERS {
            self.take_interest(reader);
        }
        let (last, _) = self.journal.advance(|journal| journal.retire_unit(before));
        self.retired.push((before, last));
        self.hits.succeeded += 1;
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { unit, changes } if !self.before.contains_key(unit) => {
                let before = self.world.clone();
                let made: Vec<_> = changes.iter().map(|(name, dice)| self.world.change(*unit, *name, *dice)).collect();
                let ticket = self.append(*unit, &made);
                if ticket.first <= ticket.last {
                    self.before.insert(*unit, (before, ticket));
                }
            }
            Op::Append { unit, .. } => {
                // After a crash between append and release, the next actor finds the ticket and releases it.
                let found = self.journal.outstanding(self.at_work[*unit as usize]).expect("it was appended");
                assert_eq!(found, self.before[unit].1);
                self.hits.crashed += 1;
                self.release(*unit);
            }
            Op::Release { unit } => self.release(*unit),
            Op::Withdraw { unit } => {
                let Some((before, ticket)) = self.before.remove(unit) else { return };
                self.journal.advance(|journal| journal.take_back(ticket));
                self.hits.withdrawn += ticket.last.0 + 1 - ticket.first.0;
                for (_, consumer, ..) in &mut self.readers {
                    let stays = |sequence: &u64| *sequence < ticket.first.0 || *sequence > ticket.last.0;
                    consumer.wanted.retain(stays);
                    consumer.refused.retain(stays);
                    consumer.asked_for.values_mut().for_each(|places| places.retain(stays));
                }
                let mine = |key: &(u32, usize)| key.0 == *unit;
                self.world.objects.retain(|key, _| !mine(key));
                self.world.objects.extend(before.objects.into_iter().filter(|(key, _)| mine(key)));
                self.world.removed.retain(|key, _| !mine(key));
                self.world.removed.extend(before.removed.into_iter().filter(|(key, _)| mine(key)));
                if !before.synced.contains(unit) {
                    self.world.synced.remove(unit);
                }
            }
            Op::Attach { reader, unit, silent } => self.attach(*reader, *unit, false, *silent),
            Op::Detach { reader, unit } => self.attach(*reader, *unit, true, false),
            Op::Resync { unit } => self.resync(*unit),
            Op::Succeed { unit } => self.succeed(*unit),
            Op::LateAppend { unit } => {
                self.generation += 1;
                let unit = self.at_work[*unit as usize];
                self.journal.fence(unit.writer(self.generation));
                assert!(
                    self.journal
                        .append(unit.writer(self.generation - 1), &[synced(9)], &Reached::default(), 1)
                        .is_err()
                );
                assert!(
                    self.journal
                        .attach(self.readers[0].0, true, unit.writer(self.generation - 1), &[synced(9)], 1)
                        .is_err()
                );
            }
            Op::Read { reader, events, bytes } => self.read(*reader, *events, *bytes),
            Op::Ack { reader, part } => self.ack(*reader, *part),
            Op::Rewind { reader } => {
                let (id, consumer, ..) = &mut self.readers[*reader];
                self.journal[*id].rewind();
                self.hits.rewound += consumer.in_flight.len() as u64;
                let again = consumer.in_flight.drain(..).map(|record| record.sequence.0);
                let rest = std::mem::take(&mut consumer.again);
                consumer.again = again.chain(rest).collect();
            }
        }
        self.journal.check();
        self.collect_losses();
        self.forget_retired();
        self.check_synced();
    }

    fn forget_retired(&mut self) {
        let passed = self.journal.passed();
        for (unit, _) in self.retired.extract_if(.., |(_, last)| *last <= passed) {
            self.journal.forget_unit(unit);
        }
    }

    /// Checks S-8: a synced reader has acknowledged all objects that it starts with.
    fn check_synced(&mut self) {
        for (id, consumer, interest, when_full) in &self.readers {
            if !self.journal.has_synced(*id) {
                continue;
            }
            self.hits.had_synced += u64::from(!consumer.sees.is_empty());
            for unit in &consumer.sees {
                assert!(self.world.synced.contains(unit), "S-8: unit {unit} has not");
                for (name, uid) in consumer.begins_with.get(unit).into_iter().flatten() {
                    let is_there = self.world.objects.get(&(*unit, *name)).is_some_and(|(now, _)| now == uid);
                    let is_lost = consumer.lossy.contains(&(*unit, NAMES[*name].to_owned()));
                    let is_seen = interest.changes == ChangeSet::ALL
                        && interest.filter.is_none()
                        && *when_full == WhenFull::Coalesce;
                    if is_there && !is_lost && is_seen && self.before.is_empty() {
                        let is_assumed =
                            consumer.assumed.iter().any(|(of, ..)| *of == (*unit, NAMES[*name].to_owned()));
                        assert!(is_assumed || consumer.handled.contains(uid), "S-8: {uid} is not handled");
                    }
                }
            }
        }
    }

    fn release(&mut self, unit: u32) {
        if let Some((_, ticket)) = self.before.remove(&unit) {
            let mark = self.journal.released();
            self.journal.advance(|journal| journal.release(ticket));
            self.hits.out_of_order += u64::from(self.journal.released() == mark);
        }
    }

    /// Reads. The judgements of a small read are applied before the next read only, as if the filter took that long.
    fn read(&mut self, reader: usize, events: usize, bytes: usize) {
        if let Some((of, judged)) = self.judging.take() {
            self.take(of, &judged);
        }
        let id = self.readers[reader].0;
        let next = self.journal[id].read(events, bytes);
        let stats = self.journal.stats(id);
        match next {
            Next::Read(batch) => {
                assert!(batch.len() <= events);
                self.hits.held_back += u64::from(batch.is_empty() && stats.queued > 0);
                self.consume(reader, batch);
            }
            Next::Judge(filter, records) => {
                assert!(!records.is_empty() && records.len() <= events);
                let judged = filter.judge_all(&records);
                if events < 6 {
                    self.judging = Some((reader, judged));
                } else {
                    self.take(reader, &judged);
                }
            }
        }
    }

    fn take(&mut self, reader: usize, judged: &[Judged]) {
        let id = self.readers[reader].0;
        let handled = |stats: ReaderStats| stats.filtered + stats.in_flight;
        let before = handled(self.journal.stats(id));
        let batch = self.journal[id].take(judged);
        self.hits.overtaken += u64::from(handled(self.journal.stats(id)) - before < judged.len() as u64);
        self.consume(reader, batch);
    }

    fn consume(&mut self, reader: usize, batch: Vec<Record>) {
        self.collect_losses();
        let (_, consumer, interest, when_full) = &mut self.readers[reader];
        // A consumer without deletions cannot distinguish objects of one name.
        let is_full = interest.changes == ChangeSet::ALL && interest.filter.is_none();
        let strict = *when_full == WhenFull::Coalesce && is_full;
        for record in batch {
            assert!(record.sequence <= self.journal.released(), "E3: nothing above the release mark");
            if consumer.again.first() != Some(&record.sequence.0) {
                consumer.justify(&record, self.places[&record.unit]);
            }
            consumer.take(&record, self.places[&record.unit], &self.world.refreshed, strict);
            consumer.in_flight.push(record);
        }
    }

    fn ack(&mut self, reader: usize, part: u8) {
        let (id, consumer, ..) = &mut self.readers[reader];
        if !consumer.in_flight.is_empty() {
            let until = usize::from(part) % consumer.in_flight.len();
            self.journal[*id].ack(consumer.in_flight[until].sequence);
            let done = consumer.in_flight.drain(..=until);
            consumer.handled.extend(done.filter_map(|record| Some(record.object()?.uid().to_owned())));
        }
    }

    fn collect_losses(&mut self) {
        for (id, consumer, _, when_full) in &mut self.readers {
            let losses = self.journal[*id].take_losses();
            assert_eq!(losses.unnamed, 0);
            for event in losses.named {
                self.hits.dropped += 1;
                consumer.lossy.insert((self.places[&event.unit], event.key.as_ref().name.to_owned()));
                assert!(*when_full == WhenFull::Coalesce || consumer.accounted.insert(event.sequence.0), "lost once");
            }
        }
    }

    /// Releases and reads everything, and compares the shown state with the world.
    #[expect(clippy::too_many_lines, reason = "a list of counters")]
    fn finish(mut self, totals: &Mutex<Hits>) {
        for unit in 0..UNITS {
            self.release(unit);
        }
        for reader in 0..self.readers.len() {
            for _ in 0..10_000 {
                self.read(reader, 100, usize::MAX);
                if self.readers[reader].1.in_flight.is_empty() {
                    if self.journal.stats(self.readers[reader].0).queued == 0 {
                        break;
                    }
                    continue; // all records were refused
                }
                self.ack(reader, u8::try_from(self.readers[reader].1.in_flight.len() - 1).unwrap_or(0));
            }
        }
        self.collect_losses();
        self.journal.check();
        self.forget_retired();
        for (id, consumer, interest, when_full) in &self.readers {
            let stats = self.journal.stats(*id);
            assert_eq!(stats.wanted, (consumer.wanted.len() + consumer.refused.len()) as u64);
            assert_eq!(stats.filtered, consumer.refused.len() as u64, "each is judged by itself, and once");
            self.hits.filtered += stats.filtered;
            self.hits.filtered_and_merged += if stats.filtered > 0 { stats.coalesced } else { 0 };
            assert_eq!((stats.queued, stats.in_flight), (0, 0));
            assert_eq!(stats.position, self.journal.released());
            let all_synced =
                consumer.awaits.is_empty() && consumer.sees.iter().all(|unit| self.world.synced.contains(unit));
            assert_eq!(self.journal.has_synced(*id), all_synced, "S-8: everything is handled");
            self.hits.coalesced += stats.coalesced;
            self.hits.olds_given_up += stats.olds_given_up;
            if *when_full != WhenFull::Coalesce {
                assert_eq!(consumer.accounted, consumer.wanted, "every wanted record is delivered or named as lost");
                continue;
            }
            for (key, places) in &consumer.asked_for {
                let (last, told) = (places.last().copied().unwrap_or_default(), consumer.told.get(key));
                let is_told = told.is_some_and(|told| *told >= last) || last == 0 || consumer.lossy.contains(key);
                // The waiting record may be shown with the current body of the cache.
                assert!(is_told || stats.coalesced > 0, "{key:?} was asked for at {last}, told at {told:?}");
            }
            let full = interest.changes == ChangeSet::ALL && interest.filter.is_none();
            for (unit, (number, name)) in (0..UNITS).flat_map(|unit| NAMES.iter().enumerate().map(move |n| (unit, n))) {
                let key = (unit, (*name).to_owned());
                let told = |state: &(String, u64)| told(&self.world.refreshed, state.clone());
                let is = self.world.objects.get(&(unit, number)).filter(|_| consumer.sees.contains(&unit));
                if full && !consumer.lossy.contains(&key) {
                    let assumed = || consumer.assumed.iter().rfind(|(of, ..)| *of == key).map(|(.., object)| object);
                    let shown = consumer.shown.get(&key).or_else(assumed).map(told);
                    assert_eq!(shown, is.map(told), "E1: {key:?}");
                }
            }
        }
        let mut totals = totals.lock().unwrap();
        totals.coalesced += self.hits.coalesced;
        totals.dropped += self.hits.dropped;
        totals.olds_given_up += self.hits.olds_given_up;
        totals.withdrawn += self.hits.withdrawn;
        totals.out_of_order += self.hits.out_of_order;
        totals.crashed += self.hits.crashed;
        totals.rewound += self.hits.rewound;
        totals.held_back += self.hits.held_back;
        totals.attached += self.hits.attached;
        totals.left += self.hits.left;
        totals.rounds += self.hits.rounds;
        totals.rounds_skipped += self.hits.rounds_skipped;
        totals.succeeded += self.hits.succeeded;
        totals.had_synced += self.hits.had_synced;
        totals.late += self.hits.late;
        totals.filtered += self.hits.filtered;
        totals.filtered_and_merged += self.hits.filtered_and_merged;
        totals.overtaken += self.hits.overtaken;
    }
}

/// Checks E1, E2, E3, E5 and E6 for readers with all policies. Also checks that rules see each change before it is coalesced.
/// `PROPTEST_CASES` sets the number of cases.
///
/// Rules: G-5, D-11.
#[test]
fn any_history_is_shown_in_order_and_bounded() {
    let totals = Mutex::new(Hits::default());
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
        .run(&proptest::collection::vec(op(), 200..260), |ops| {
            let mut run = Run::new();
            for op in &ops {
                run.apply(op);
            }
            run.finish(&totals);
            Ok(())
        })
        .unwrap();
    let hits = totals.into_inner().unwrap();
    let Hits { coalesced, dropped, olds_given_up, withdrawn, out_of_order, crashed, rewound, held_back, .. } = &hits;
    let Hits { attached, left, rounds, rounds_skipped, succeeded, had_synced, late, .. } = &hits;
    let Hits { filtered, filtered_and_merged, overtaken, .. } = &hits;
    for count in [coalesced, dropped, olds_given_up, withdrawn, out_of_order, crashed, rewound, held_back] {
        assert!(*count > 100, "something was hardly ever tried: {hits:?}");
    }
    for count in [attached, left, rounds, rounds_skipped, succeeded, had_synced, late, filtered, filtered_and_merged] {
        assert!(*count > 100, "something was hardly ever tried: {hits:?}");
    }
    // Few records wait unjudged for long: more than a handful are judged on arrival.
    assert!(*overtaken > 10, "something was hardly ever tried: {hits:?}");
    println!("{hits:?}");
}
