//! Tests of single rules, and a model test of the schedule.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;

fn options() -> ScheduleOptions {
    ScheduleOptions {
        order: DeliveryOrder::PerObject,
        concurrency: 3,
        distinct: false,
        batch_events: 2,
        batch_bytes: 100,
        linger: Duration::ZERO,
        window_events: 8,
        window_bytes: 1_000,
    }
}

fn item(sequence: u64, object: u64) -> ScheduledEvent {
    ScheduledEvent { sequence: Sequence(sequence), resource: 1, object: Some(object), gone: false, bytes: 1 }
}

fn schedule(options: ScheduleOptions, items: impl IntoIterator<Item = ScheduledEvent>) -> Schedule<u64> {
    let mut schedule = Schedule::new(options);
    for item in items {
        push(&mut schedule, item, Duration::ZERO);
    }
    schedule
}

/// Adds an event whose content is its sequence.
fn push(schedule: &mut Schedule<u64>, item: ScheduledEvent, now: Duration) {
    schedule.push(item, item.sequence.0, now);
}

/// Takes all batches that are due now.
fn batches(schedule: &mut Schedule<u64>) -> Vec<Vec<u64>> {
    std::iter::from_fn(|| schedule.next(Duration::ZERO, false)).map(|(_, batch)| batch).collect()
}

#[test]
fn other_objects_overtake_object_in_delivery() {
    let items = [(1, 7), (2, 7), (3, 7), (4, 8), (5, 9)].map(|(sequence, object)| item(sequence, object));
    let mut schedule = schedule(options(), items);
    let (first, batch) = schedule.next(Duration::ZERO, false).unwrap();
    assert_eq!(batch, [1, 2]);
    assert_eq!(batches(&mut schedule), [[4, 5]]);
    assert_eq!(schedule.finished(first), [Sequence(1), Sequence(2)]);
    assert_eq!(batches(&mut schedule), [[3]]);
}

#[test]
fn blocked_object_stops_reading_at_limit() {
    let items = (1..3).map(|sequence| item(sequence, 7));
    let mut schedule = schedule(ScheduleOptions { window_events: 100_000, window_bytes: 100_000, ..options() }, items);
    let (first, _) = schedule.next(Duration::ZERO, false).unwrap();
    for sequence in 3.. {
        let Some(room) = schedule.room() else { break };
        assert!(room.events > 0 && sequence < 10_000);
        push(&mut schedule, item(sequence, 7), Duration::ZERO);
    }
    assert_eq!(schedule.waiting.len(), options().batch_events + WAITING_MAX);
    schedule.finished(first);
    assert_eq!(schedule.next(Duration::ZERO, false).unwrap().1, [3, 4]);
}

#[test]
fn total_order_has_one_batch_in_delivery() {
    for (order, concurrency) in [(DeliveryOrder::Total, 8), (DeliveryOrder::PerObject, 1), (DeliveryOrder::None, 1)] {
        let items = (1..5).map(|sequence| item(sequence, sequence));
        let mut schedule = schedule(ScheduleOptions { order, concurrency, ..options() }, items);
        let (first, batch) = schedule.next(Duration::ZERO, false).unwrap();
        assert_eq!((batch, batches(&mut schedule)), (vec![1, 2], Vec::new()));
        assert_eq!(schedule.room(), None, "unread events can be coalesced");
        schedule.finished(first);
        assert_eq!(batches(&mut schedule), [[3, 4]]);
    }
}

#[test]
fn unordered_object_may_be_in_several_batches() {
    let items = (1..6).map(|sequence| item(sequence, 7));
    let mut schedule = schedule(ScheduleOptions { order: DeliveryOrder::None, ..options() }, items);
    assert_eq!(batches(&mut schedule), [vec![1, 2], vec![3, 4], vec![5]]);
}

#[test]
fn distinct_batch_has_one_event_per_object() {
    let items = || [(1, 7), (2, 7), (3, 8), (4, 7)].map(|(sequence, object)| item(sequence, object));
    let distinct = ScheduleOptions { distinct: true, batch_events: 9, ..options() };
    let mut per_object = schedule(distinct, items());
    let (first, batch) = per_object.next(Duration::ZERO, false).unwrap();
    assert_eq!((batch, batches(&mut per_object)), (vec![1, 3], Vec::new()));
    per_object.finished(first);
    assert_eq!(batches(&mut per_object), [[2]]);
    let mut total = schedule(ScheduleOptions { order: DeliveryOrder::Total, ..distinct }, items());
    assert_eq!(batches(&mut total), [[1]]);
    let mut without = schedule(ScheduleOptions { order: DeliveryOrder::None, ..distinct }, items());
    assert_eq!(batches(&mut without), [vec![1], vec![2, 3], vec![4]]);
}

#[test]
fn recreated_object_is_not_batched_with_deletion() {
    for order in [DeliveryOrder::PerObject, DeliveryOrder::Total] {
        let items = [ScheduledEvent { gone: true, ..item(1, 7) }, item(2, 7), item(3, 7)];
        let mut schedule = schedule(ScheduleOptions { order, batch_events: 9, ..options() }, items);
        let (first, batch) = schedule.next(Duration::ZERO, false).unwrap();
        assert_eq!((batch, batches(&mut schedule)), (vec![1], Vec::new()));
        schedule.finished(first);
        assert_eq!(batches(&mut schedule), [[2, 3]]);
    }
}

#[test]
fn synced_event_waits_for_all_of_its_type() {
    let synced = ScheduledEvent { object: None, ..item(3, 0) };
    let other = ScheduledEvent { resource: 2, ..item(4, 9) };
    let items = [item(1, 7), item(2, 8), synced, other, item(5, 6)];
    let mut schedule = schedule(ScheduleOptions { batch_events: 1, ..options() }, items);
    let mut under_way: Vec<_> = std::iter::from_fn(|| schedule.next(Duration::ZERO, false)).collect();
    assert_eq!(under_way.iter().map(|(_, batch)| batch[0]).collect::<Vec<_>>(), [1, 2, 4]);
    schedule.finished(under_way.remove(0).0);
    assert_eq!(batches(&mut schedule), [[5]], "2 is not finished");
    schedule.finished(under_way.remove(0).0);
    assert_eq!(batches(&mut schedule), [[3]]);
}

#[test]
fn batch_lingers_no_longer_than_allowed() {
    let at = Duration::from_millis;
    let mut schedule = Schedule::new(ScheduleOptions { linger: at(50), ..options() });
    push(&mut schedule, item(1, 1), at(10));
    assert_eq!((schedule.due(), schedule.next(at(59), false)), (Some(at(60)), None));
    assert_eq!(schedule.next(at(59), true).map(|(_, batch)| batch), Some(vec![1]), "a stop does not wait");
    push(&mut schedule, item(2, 2), at(70));
    push(&mut schedule, item(3, 3), at(80));
    assert_eq!(schedule.next(at(80), false).map(|(_, batch)| batch), Some(vec![2, 3]), "full");
    push(&mut schedule, item(4, 4), at(90));
    assert_eq!(schedule.next(at(140), false).map(|(_, batch)| batch), Some(vec![4]));
}

#[test]
fn byte_limit_ends_batch_but_admits_large_event() {
    let sized = |sequence, bytes| ScheduledEvent { bytes, ..item(sequence, sequence) };
    let many = ScheduleOptions { batch_events: 9, concurrency: 9, ..options() };
    let mut schedule = schedule(many, [sized(1, 60), sized(2, 40), sized(3, 1), sized(4, 500), sized(5, 1)]);
    assert_eq!(batches(&mut schedule), [vec![1, 2], vec![3], vec![4], vec![5]]);
}

#[test]
fn window_full_of_one_object_reads_no_further() {
    let mut schedule = schedule(options(), (1..8).map(|sequence| item(sequence, 7)));
    let (first, _) = schedule.next(Duration::ZERO, false).unwrap();
    assert_eq!(schedule.room(), Some(EventLoad { events: 1, bytes: 100 }));
    push(&mut schedule, item(8, 7), Duration::ZERO);
    assert_eq!(schedule.room(), None);
    schedule.finished(first);
    assert_eq!(schedule.room(), None, "the next batch is full");
}

/// Next action of the model.
#[derive(Clone, Debug)]
enum Act {
    /// Read events of these objects, as many as there is room for; `None` is the end of an initial state.
    Read(Vec<(Option<u64>, bool, usize)>),
    Next {
        flush: bool,
    },
    Finish(usize),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let object = (proptest::option::weighted(0.9, 0..5_u64), proptest::bool::weighted(0.2), 0..60_usize);
    prop_oneof![
        4 => proptest::collection::vec(object, 1..6).prop_map(Act::Read),
        4 => any::<bool>().prop_map(|flush| Act::Next { flush }),
        4 => (0..8_usize).prop_map(Act::Finish),
        1 => (0..30_u64).prop_map(Act::Wait),
    ]
}

/// Properties of every history.
struct Model {
    options: ScheduleOptions,
    schedule: Schedule<u64>,
    now: Duration,
    read: BTreeMap<u64, (ScheduledEvent, Duration)>,
    in_delivery: Vec<(DeliveryId, Vec<u64>)>,
    sent: HashSet<u64>,
    finished: HashSet<u64>,
}

impl Model {
    fn read(&mut self, objects: &[(Option<u64>, bool, usize)]) {
        let Some(room) = self.schedule.room() else { return };
        assert!(self.in_delivery.len() < self.options.concurrency);
        let (mut bytes, first) = (0, self.read.len() as u64 + 1);
        for (sequence, (object, gone, size)) in (first..).zip(objects.iter().take(room.events)) {
            bytes += size;
            if bytes > room.bytes && bytes > *size {
                break;
            }
            let resource = object.map_or(sequence % 2, |object| object % 2);
            let gone = *gone && object.is_some();
            let item = ScheduledEvent { object: *object, resource, gone, bytes: *size, ..item(sequence, 0) };
            self.read.insert(sequence, (item, self.now));
            push(&mut self.schedule, item, self.now);
        }
        let held = self.read.len() - self.finished.len();
        assert!(held <= self.options.window_events, "the window is bounded");
    }

    /// Returns true if the order of two events matters. The earlier one must then be finished before the other is sent,
    /// or precede it in its batch.
    fn is_bound(&self, earlier: u64, later: u64) -> bool {
        let (earlier, later) = (&self.read[&earlier].0, &self.read[&later].0);
        match self.options.order {
            DeliveryOrder::Total => true,
            DeliveryOrder::None => self.options.concurrency == 1,
            DeliveryOrder::PerObject if self.options.concurrency == 1 => true,
            DeliveryOrder::PerObject if later.object.is_none() => earlier.resource == later.resource,
            DeliveryOrder::PerObject => earlier.object == later.object,
        }
    }

    fn next(&mut self, flush: bool) {
        let due = self.schedule.due();
        let Some((id, batch)) = self.schedule.next(self.now, flush) else {
            assert!(due.is_none_or(|due| due > self.now && !flush), "a due batch is sent");
            return;
        };
        assert!(!batch.is_empty() && batch.len() <= self.options.batch_events && batch.is_sorted());
        let bytes: usize = batch.iter().map(|sequence| self.read[sequence].0.bytes).sum();
        assert!(bytes <= self.options.batch_bytes || batch.len() == 1);
        let oldest = batch.iter().map(|sequence| self.read[sequence].1).min().unwrap();
        let waited = oldest + self.options.linger <= self.now;
        let free: Vec<_> = self.read.keys().filter(|sequence| !self.sent.contains(sequence)).collect();
        let free_bytes: usize = free.iter().map(|sequence| self.read[sequence].0.bytes).sum();
        let is_alone = self.options.distinct && self.options.order == DeliveryOrder::Total;
        let full = is_alone || free.len() >= self.options.batch_events || free_bytes >= self.options.batch_bytes;
        assert!(flush || waited || full, "a batch lingers");
        for sequence in &batch {
            assert!(self.sent.insert(*sequence), "each is sent once");
            for earlier in self.read.keys().take_while(|earlier| *earlier < sequence) {
                if self.is_bound(*earlier, *sequence) {
                    let is_with = batch.contains(earlier);
                    assert!(is_with || self.finished.contains(earlier), "{earlier} before {sequence}");
                    let (before, after) = (&self.read[earlier].0, &self.read[sequence].0);
                    let same = before.object.is_some() && before.object == after.object;
                    assert!(!(is_with && same && before.gone), "a deletion and the next object of its name");
                }
            }
        }
        let mut objects = batch.iter().filter_map(|sequence| self.read[sequence].0.object);
        let mut seen = HashSet::new();
        assert!(!self.options.distinct || objects.all(|object| seen.insert(object)), "one event per object");
        assert!(batch.len() == 1 || !(self.options.distinct && self.options.order == DeliveryOrder::Total));
        self.in_delivery.push((id, batch));
        assert!(self.in_delivery.len() <= self.options.concurrency);
    }

    fn finish(&mut self, which: usize) {
        if self.in_delivery.is_empty() {
            return;
        }
        let (id, batch) = self.in_delivery.remove(which % self.in_delivery.len());
        let acknowledged: Vec<_> = self.schedule.finished(id).iter().map(|sequence| sequence.0).collect();
        self.finished.extend(&acknowledged);
        assert_eq!(acknowledged, batch);
        assert!(self.schedule.finished(id).is_empty(), "a batch ends once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Rule: S-3.
    #[test]
    fn any_history_sends_each_event_once_in_order(
        order in prop_oneof![Just(DeliveryOrder::PerObject), Just(DeliveryOrder::Total), Just(DeliveryOrder::None)],
        (concurrency, distinct) in (1..4_usize, any::<bool>()),
        batch_events in 1..5_usize,
        linger in 0..3_u64,
        acts in proptest::collection::vec(act(), 0..120),
    ) {
        let linger = Duration::from_secs(linger * 10);
        let options = ScheduleOptions { order, concurrency, distinct, batch_events, linger, ..options() };
        let schedule = Schedule::new(options);
        let (read, in_delivery, now) = (BTreeMap::new(), Vec::new(), Duration::ZERO);
        let (sent, finished) = (HashSet::new(), HashSet::new());
        let mut model = Model { options, schedule, now, read, in_delivery, sent, finished };
        for act in acts {
            match act {
                Act::Read(objects) => model.read(&objects),
                Act::Next { flush } => model.next(flush),
                Act::Finish(which) => model.finish(which),
                Act::Wait(seconds) => model.now += Duration::from_secs(seconds),
            }
        }
        // All waiting events are sent in the end.
        while !model.schedule.is_empty() {
            let before = (model.sent.len(), model.in_delivery.len());
            model.next(true);
            model.finish(0);
            prop_assert!(before != (model.sent.len(), model.in_delivery.len()), "there is progress");
        }
        prop_assert_eq!(model.finished.len(), model.read.len());
    }
}
