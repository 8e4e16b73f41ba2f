//! The journal against a naive model: random appends, releases, crashes and slow readers of every policy.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Mutex,
};

use proptest::{prelude::*, test_runner::TestRunner};

use super::{memory::MemoryJournal, testing::*, *};

const UNITS: u32 = 3;
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
}

fn op() -> impl Strategy<Value = Op> {
    let changes = proptest::collection::vec((0..NAMES.len(), 0..16_u8), 0..6);
    prop_oneof![
        8 => (0..UNITS, changes).prop_map(|(unit, changes)| Op::Append { unit, changes }),
        6 => (0..UNITS).prop_map(|unit| Op::Release { unit }),
        1 => (0..UNITS).prop_map(|unit| Op::Withdraw { unit }),
        1 => (0..UNITS).prop_map(|unit| Op::LateAppend { unit }),
        4 => (0..5_usize, 1..6_usize, 1..2000_usize).prop_map(|(reader, events, bytes)| Op::Read { reader, events, bytes }),
        4 => (0..5_usize, any::<u8>()).prop_map(|(reader, part)| Op::Ack { reader, part }),
        1 => (0..5_usize).prop_map(|reader| Op::Rewind { reader }),
    ]
}

/// The caches of a few units, as far as the journal hears of them.
#[derive(Clone, Default)]
struct World {
    objects: BTreeMap<(u32, usize), (String, u64)>,
    removed: BTreeMap<(u32, usize), (String, u64)>,
    synced: BTreeSet<u32>,
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
            7 => {
                let next = format!("{unit}{label}{version}");
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

/// What a consumer of one reader knows.
#[derive(Default)]
struct Consumer {
    shown: HashMap<(u32, String), (String, u64)>,
    synced: BTreeSet<u32>,
    in_flight: Vec<Record>,
    again: Vec<u64>,
    last: u64,
    /// Names of which something was lost: nothing is promised of them.
    lossy: BTreeSet<(u32, String)>,
    accounted: BTreeSet<u64>,
}

impl Consumer {
    /// Checks I2 and I3 of one record that was never shown before.
    fn take(&mut self, record: &Record, strict: bool) {
        let sequence = record.sequence.0;
        if self.again.first() == Some(&sequence) {
            self.again.remove(0);
            return;
        }
        assert!(self.again.is_empty(), "what was in flight comes again first");
        assert!(sequence > self.last, "I3: sequences increase");
        self.last = sequence;
        assert!(self.accounted.insert(sequence));
        let Some(object) = record.object() else {
            assert!(self.synced.insert(record.unit.0));
            return;
        };
        let key = (record.unit.0, object.name().to_owned());
        let now = (object.uid().to_owned(), object.resource_version().parse::<u64>().unwrap());
        let shown = self.shown.get(&key).cloned();
        let promised = strict && !self.lossy.contains(&key);
        match &record.change {
            Change::Added { cause, .. } => {
                assert!(!promised || shown.is_none(), "I2: {} while {shown:?} is shown", brief(record));
                assert!(*cause != Cause::Initial || !self.synced.contains(&record.unit.0), "initial after synced");
                self.shown.insert(key, now);
            }
            Change::Updated { .. } => {
                if let (true, Some(old)) = (promised, record.old()) {
                    let old = (old.uid().to_owned(), old.resource_version().parse().unwrap());
                    assert_eq!(shown, Some(old), "I2: the old state is the one shown before");
                }
                assert!(!promised || shown.is_some());
                self.shown.insert(key, now);
            }
            Change::Unchanged { .. } => assert!(!promised || shown == Some(now)),
            Change::Deleted { .. } | Change::Removed { .. } => {
                assert!(!promised || shown.is_some_and(|(uid, _)| uid == now.0), "I2: {} unseen", brief(record));
                self.shown.remove(&key);
            }
            Change::Synced { .. } => {}
        }
    }
}

/// How often something was tried that matters; the test fails if one never was.
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
}

struct Run {
    journal: MemoryJournal,
    world: World,
    /// The world as each unit's outstanding append found it.
    before: BTreeMap<u32, (World, Ticket)>,
    readers: Vec<(ReaderId, Consumer, Interest, WhenFull)>,
    released: Vec<Record>,
    epoch: u64,
    hits: Hits,
}

impl Run {
    fn new() -> Self {
        let mut journal = MemoryJournal::default();
        let size = pod("a", "0a100", 100).size_bytes();
        let changes = ChangeSet::ADDED.with(ChangeSet::INITIAL).with(ChangeSet::UPDATED);
        let readers = [
            (Bounds::default(), everything()),
            (Bounds { max_events: 4, max_bytes: 1 << 20, when_full: WhenFull::Coalesce }, everything()),
            (
                Bounds { max_events: 8, max_bytes: size * 3, when_full: WhenFull::Coalesce },
                Interest { changes, ..everything() },
            ),
            (Bounds { max_events: 5, max_bytes: size * 6, when_full: WhenFull::DropOldest }, everything()),
            (Bounds { max_events: 5, max_bytes: 1 << 20, when_full: WhenFull::DropNewest }, everything()),
            // Never reads.
            (Bounds { max_events: 6, max_bytes: size * 4, when_full: WhenFull::Coalesce }, everything()),
        ];
        let readers = readers
            .into_iter()
            .map(|(bounds, interest)| {
                let options = ReaderOptions { bounds, interest: interest.clone() };
                let id = journal.open_reader(Start::Next, options).unwrap();
                (id, Consumer::default(), interest, bounds.when_full)
            })
            .collect();
        let (world, before) = (World::default(), BTreeMap::new());
        Self { journal, world, before, readers, released: Vec::new(), epoch: 1, hits: Hits::default() }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Append { unit, changes } if !self.before.contains_key(unit) => {
                let before = self.world.clone();
                let changes: Vec<_> =
                    changes.iter().map(|(name, dice)| self.world.change(*unit, *name, *dice)).collect();
                let ticket = self.journal.append(UnitId(*unit), self.epoch, &changes, 1).unwrap();
                assert_eq!(ticket.last.0 + 1 - ticket.first.0, changes.len() as u64);
                for (sequence, change) in (ticket.first.0..).zip(changes) {
                    let record = Record {
                        sequence: Sequence(sequence),
                        unit: UnitId(*unit),
                        time_micros: 1,
                        change,
                        old_lost: false,
                    };
                    self.released.push(record);
                }
                if ticket.first <= ticket.last {
                    self.before.insert(*unit, (before, ticket));
                }
            }
            Op::Append { unit, .. } => {
                // A crash between append and release: the next actor finds the ticket and releases it.
                let found = self.journal.outstanding(UnitId(*unit)).expect("it was appended");
                assert_eq!(found, self.before[unit].1);
                self.hits.crashed += 1;
                self.release(*unit);
            }
            Op::Release { unit } => self.release(*unit),
            Op::Withdraw { unit } => {
                let Some((before, ticket)) = self.before.remove(unit) else { return };
                self.hits.withdrawn += self.journal.withdraw(UnitId(*unit)).0 as u64;
                self.released.retain(|record| record.sequence < ticket.first || record.sequence > ticket.last);
                let mine = |key: &(u32, usize)| key.0 == *unit;
                self.world.objects.retain(|key, _| !mine(key));
                self.world.objects.extend(before.objects.into_iter().filter(|(key, _)| mine(key)));
                self.world.removed.retain(|key, _| !mine(key));
                self.world.removed.extend(before.removed.into_iter().filter(|(key, _)| mine(key)));
                if !before.synced.contains(unit) {
                    self.world.synced.remove(unit);
                }
            }
            Op::LateAppend { unit } => {
                self.epoch += 1;
                self.journal.fence(UnitId(*unit), self.epoch);
                assert!(self.journal.append(UnitId(*unit), self.epoch - 1, &[synced(9)], 1).is_err());
            }
            Op::Read { reader, events, bytes } => self.read(*reader, *events, *bytes),
            Op::Ack { reader, part } => self.ack(*reader, *part),
            Op::Rewind { reader } => {
                let (id, consumer, ..) = &mut self.readers[*reader];
                self.journal.rewind(*id);
                self.hits.rewound += consumer.in_flight.len() as u64;
                let again = consumer.in_flight.drain(..).map(|record| record.sequence.0);
                let rest = std::mem::take(&mut consumer.again);
                consumer.again = again.chain(rest).collect();
            }
        }
        self.journal.check();
        self.collect_losses();
    }

    fn release(&mut self, unit: u32) {
        if let Some((_, ticket)) = self.before.remove(&unit) {
            let mark = self.journal.released();
            self.journal.release(ticket);
            self.hits.out_of_order += u64::from(self.journal.released() == mark);
        }
    }

    fn read(&mut self, reader: usize, events: usize, bytes: usize) {
        self.collect_losses();
        let (id, consumer, interest, when_full) = &mut self.readers[reader];
        // A consumer that does not hear of deletions cannot tell lives apart.
        let strict = *when_full == WhenFull::Coalesce && interest.changes == ChangeSet::ALL;
        let batch = self.journal.read(*id, events, bytes);
        assert!(batch.len() <= events);
        self.hits.held_back += u64::from(batch.is_empty() && self.journal.stats(*id).queued > 0);
        for record in batch {
            assert!(record.sequence <= self.journal.released(), "I3: nothing above the release mark");
            let uid = record.object().map(|object| object.uid().to_owned());
            let same_name = |gone: &&Record| {
                gone.is_gone()
                    && gone.unit == record.unit
                    && gone.object().map(|o| o.key()) == record.object().map(|o| o.key())
            };
            if let Some(gone) = consumer.in_flight.iter().find(same_name) {
                panic!("{uid:?} is sent while {} is in flight", brief(gone));
            }
            consumer.take(&record, strict);
            consumer.in_flight.push(record);
        }
    }

    fn ack(&mut self, reader: usize, part: u8) {
        let (id, consumer, ..) = &mut self.readers[reader];
        if !consumer.in_flight.is_empty() {
            let until = usize::from(part) % consumer.in_flight.len();
            self.journal.ack(*id, consumer.in_flight[until].sequence);
            consumer.in_flight.drain(..=until);
        }
    }

    fn collect_losses(&mut self) {
        for (id, consumer, _, when_full) in &mut self.readers {
            let losses = self.journal.take_losses(*id);
            assert_eq!(losses.unnamed, 0);
            for event in losses.named {
                self.hits.dropped += 1;
                consumer.lossy.insert((event.unit.0, event.key.as_ref().name.to_owned()));
                assert!(*when_full == WhenFull::Coalesce || consumer.accounted.insert(event.sequence.0), "lost once");
            }
        }
    }

    /// Releases and reads everything; then what was shown is what there is.
    fn finish(mut self, totals: &Mutex<Hits>) {
        for unit in 0..UNITS {
            self.release(unit);
        }
        for reader in 0..self.readers.len() {
            for _ in 0..10_000 {
                self.read(reader, 100, usize::MAX);
                if self.readers[reader].1.in_flight.is_empty() {
                    break;
                }
                self.ack(reader, u8::try_from(self.readers[reader].1.in_flight.len() - 1).unwrap_or(0));
            }
        }
        self.collect_losses();
        self.journal.check();
        for (id, consumer, interest, when_full) in &self.readers {
            let stats = self.journal.stats(*id);
            let wanted: BTreeSet<_> =
                self.released.iter().filter(|r| interest.wants(r)).map(|r| r.sequence.0).collect();
            assert_eq!(stats.wanted, wanted.len() as u64);
            assert_eq!((stats.queued, stats.in_flight), (0, 0));
            assert_eq!(stats.position, self.journal.released());
            self.hits.coalesced += stats.coalesced;
            self.hits.olds_given_up += stats.olds_given_up;
            if *when_full != WhenFull::Coalesce {
                assert_eq!(consumer.accounted, wanted, "every wanted record is delivered or named as lost");
                continue;
            }
            let full = interest.changes == ChangeSet::ALL;
            for (unit, (number, name)) in (0..UNITS).flat_map(|unit| NAMES.iter().enumerate().map(move |n| (unit, n))) {
                let key = (unit, (*name).to_owned());
                let is = self.world.objects.get(&(unit, number));
                if full && !consumer.lossy.contains(&key) {
                    assert_eq!(consumer.shown.get(&key), is, "I1: {key:?}");
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
    }
}

/// I1, I2, I3, I5, I6 for readers of every policy. `PROPTEST_CASES` sets the number of cases.
#[test]
fn any_history_is_shown_in_order_completely_and_within_bounds() {
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
    let Hits { coalesced, dropped, olds_given_up, withdrawn, out_of_order, crashed, rewound, held_back } = &hits;
    for count in [coalesced, dropped, olds_given_up, withdrawn, out_of_order, crashed, rewound, held_back] {
        assert!(*count > 100, "something was hardly ever tried: {hits:?}");
    }
    println!("{hits:?}");
}
