//! Batches of a handler's events, and the order between them (`[handlers.*] order`, `concurrency`, `batch`).
//!
//! [`Schedule`] takes events in the order of the handler's reader and makes batches of them, several of which may be in
//! delivery at a time. A batch that is repeated holds up the objects that are in it and nobody else, until
//! [`ScheduleOptions::window_events`] are held: then nothing more is read, and what waits is merged in the journal.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::journal::Sequence;

/// Which events are never in two deliveries at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DeliveryOrder")]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryOrder {
    /// Those of one object (type, namespace and name).
    #[default]
    PerObject,
    /// Any: all events go out in sequence.
    Total,
    /// None.
    None,
}

/// Options of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// What must not be in two batches at a time.
    pub order: DeliveryOrder,
    /// Batches in delivery at a time; one of them means [`DeliveryOrder::Total`].
    pub concurrency: usize,
    /// A batch has one event of an object at most: for sinks that store the events of a batch side by side.
    pub distinct: bool,
    /// Largest batch: events.
    pub batch_events: usize,
    /// Largest batch: bytes of bodies, unless one event has more.
    pub batch_bytes: usize,
    /// How long an event waits for a batch to become full.
    pub linger: Duration,
    /// Events held at most, those in delivery included.
    pub window_events: usize,
    /// Bytes of bodies held at most, but for the last event.
    pub window_bytes: usize,
}

/// An event as a [`Schedule`] sees it.
#[derive(Clone, Debug)]
pub struct ScheduledEvent<T> {
    /// Its place in the journal.
    pub sequence: Sequence,
    /// Hash of its resource type.
    pub resource: u64,
    /// Hash of the object that it is about; `None` for the end of a type's initial state. Two objects of one hash wait
    /// for each other, which costs a round trip and nothing else.
    pub object: Option<u64>,
    /// The object is gone: the next one of its name is not sent before that is acknowledged (D7).
    pub gone: bool,
    /// Bytes of its bodies.
    pub bytes: usize,
    /// The event.
    pub content: T,
}

/// Names a batch in delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(u64);

/// How much may be read for a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Events, at least one.
    pub events: usize,
    /// Bytes of bodies, unless one event has more.
    pub bytes: usize,
}

/// What is never in two batches at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    All,
    Object(u64),
    /// By arrival: shared with nothing.
    Alone(u64),
}

#[derive(Debug)]
struct Waiting<T> {
    arrival: u64,
    since: Duration,
    item: ScheduledEvent<T>,
}

/// What waits of one key, in order of arrival.
#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: usize,
    /// It is in a batch in delivery, or waits for others to be done.
    held: bool,
}

/// What a batch in delivery holds.
#[derive(Clone, Copy, Debug)]
struct Sent {
    arrival: u64,
    sequence: Sequence,
    resource: u64,
    key: Key,
    bytes: usize,
}

/// The end of a type's initial state, which waits for what arrived before it.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    arrival: u64,
    resource: u64,
    waits_for: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    events: usize,
    bytes: usize,
}

/// The machine; the module's documentation says what for. Times are of any one monotonic clock.
///
/// **Invariants:** every event is in one batch. Events of one key go out in order of arrival, and no two batches in
/// delivery share a key. `ready` names the first event of every key that is not held.
#[derive(Debug)]
pub struct Schedule<T> {
    options: ScheduleOptions,
    queues: HashMap<Key, Queue<T>>,
    ready: BTreeMap<u64, Key>,
    /// All that waits of keys that are not held.
    free: Load,
    held: Load,
    in_delivery: HashMap<BatchId, Vec<Sent>>,
    /// Not finished, by type; counted where barriers need it.
    unfinished: HashMap<u64, usize>,
    barriers: Vec<Barrier>,
    arrivals: u64,
    batches: u64,
}

impl<T> Schedule<T> {
    /// Makes an empty schedule.
    pub fn new(options: ScheduleOptions) -> Self {
        let concurrency = if options.order == DeliveryOrder::Total { 1 } else { options.concurrency.max(1) };
        let order = if concurrency == 1 { DeliveryOrder::Total } else { options.order };
        let batch_events =
            if options.distinct && options.order == DeliveryOrder::Total { 1 } else { options.batch_events };
        Self {
            options: ScheduleOptions { order, concurrency, batch_events: batch_events.max(1), ..options },
            queues: HashMap::new(),
            ready: BTreeMap::new(),
            free: Load::default(),
            held: Load::default(),
            in_delivery: HashMap::new(),
            unfinished: HashMap::new(),
            barriers: Vec::new(),
            arrivals: 0,
            batches: 0,
        }
    }

    /// Returns whether nothing waits and nothing is in delivery.
    pub fn is_empty(&self) -> bool {
        self.held.events == 0
    }

    /// Returns how much may be read now: what the next batch lacks. `None` while none could go out, or the window is
    /// full: what is not read can still be merged.
    pub fn room(&self) -> Option<Room> {
        let ScheduleOptions { concurrency, batch_events, batch_bytes, window_events, window_bytes, .. } = self.options;
        if self.in_delivery.len() >= concurrency {
            return None;
        }
        let events = batch_events.saturating_sub(self.free.events);
        let events = events.min(window_events.max(1).saturating_sub(self.held.events));
        let bytes = batch_bytes.saturating_sub(self.free.bytes).min(window_bytes.saturating_sub(self.held.bytes));
        (events > 0 && (bytes > 0 || self.is_empty())).then_some(Room { events, bytes })
    }

    /// Takes the next event of the reader.
    pub fn push(&mut self, item: ScheduledEvent<T>, now: Duration) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let key = match (self.options.order, item.object) {
            (DeliveryOrder::Total, _) => Key::All,
            (DeliveryOrder::PerObject, Some(object)) => Key::Object(object),
            (DeliveryOrder::PerObject, None) | (DeliveryOrder::None, _) => Key::Alone(arrival),
        };
        let is_barrier = self.options.order == DeliveryOrder::PerObject && self.arrive_of_type(&item, arrival);
        let bytes = item.bytes;
        self.held.events += 1;
        self.held.bytes += bytes;
        let empty = || Queue { waiting: VecDeque::new(), bytes: 0, held: is_barrier };
        let queue = self.queues.entry(key).or_insert_with(empty);
        if !queue.held {
            self.free.events += 1;
            self.free.bytes += bytes;
            if queue.waiting.is_empty() {
                self.ready.insert(arrival, key);
            }
        }
        queue.bytes += bytes;
        queue.waiting.push_back(Waiting { arrival, since: now, item });
    }

    /// Returns the next batch, in order of arrival, and what names it; it is in delivery from now on. `flush` says that
    /// none waits to become full.
    pub fn next(&mut self, now: Duration, flush: bool) -> Option<(BatchId, Vec<T>)> {
        if self.in_delivery.len() >= self.options.concurrency {
            return None;
        }
        if !flush && self.due()? > now {
            return None;
        }
        let (sent, batch) = self.take();
        if batch.is_empty() {
            return None;
        }
        for key in sent.iter().map(|sent| sent.key) {
            self.hold(key);
        }
        self.batches += 1;
        let id = BatchId(self.batches);
        self.in_delivery.insert(id, sent);
        Some((id, batch))
    }

    /// Returns when there is a batch to go out if nothing else happens; `None` while something else has to.
    pub fn due(&self) -> Option<Duration> {
        let first = self.ready.first_key_value()?;
        if self.in_delivery.len() >= self.options.concurrency {
            return None;
        }
        let is_full = self.free.events >= self.options.batch_events || self.free.bytes >= self.options.batch_bytes;
        let linger = if is_full { Duration::ZERO } else { self.options.linger };
        let queue = &self.queues[first.1];
        Some(queue.waiting.front().map_or(Duration::ZERO, |first| first.since) + linger)
    }

    /// Takes the end of a batch, and returns the places of its events, in order: they can be acknowledged.
    pub fn finished(&mut self, batch: BatchId) -> Vec<Sequence> {
        let done = self.in_delivery.remove(&batch).unwrap_or_default();
        for sent in &done {
            self.held.events -= 1;
            self.held.bytes -= sent.bytes;
            self.finish_of_type(*sent);
            self.let_go(sent.key);
        }
        done.iter().map(|sent| sent.sequence).collect()
    }

    /// Takes a batch out of what is ready.
    fn take(&mut self) -> (Vec<Sent>, Vec<T>) {
        let ScheduleOptions { batch_events, batch_bytes, distinct, order, .. } = self.options;
        let (mut sent, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        // Objects of which nothing more is in this batch.
        let mut closed = HashSet::new();
        while let Some((arrival, key)) = self.ready.first_key_value().map(|(arrival, key)| (*arrival, *key)) {
            let queue = self.queues.get_mut(&key).expect("what is ready waits");
            let next = &queue.waiting.front().expect("what is ready waits").item;
            if batch.len() == batch_events || (bytes + next.bytes > batch_bytes && !batch.is_empty()) {
                break;
            }
            let is_closed = next.object.is_some_and(|object| closed.contains(&object));
            if is_closed && order == DeliveryOrder::None {
                break;
            }
            self.ready.remove(&arrival);
            if is_closed {
                continue; // its key is in the batch, and ready again when that is finished
            }
            let Waiting { item, .. } = queue.waiting.pop_front().expect("just seen");
            bytes += item.bytes;
            queue.bytes -= item.bytes;
            self.free.events -= 1;
            self.free.bytes -= item.bytes;
            closed.extend(item.object.filter(|_| distinct || (item.gone && order != DeliveryOrder::None)));
            let ScheduledEvent { sequence, resource, bytes, content, .. } = item;
            sent.push(Sent { arrival, sequence, resource, key, bytes });
            batch.push(content);
            if let Some(next) = queue.waiting.front() {
                self.ready.insert(next.arrival, key);
            }
        }
        (sent, batch)
    }

    /// Holds back what waits of a key, if it is not held already.
    fn hold(&mut self, key: Key) {
        let queue = self.queues.get_mut(&key).expect("a key in delivery is known");
        if !std::mem::replace(&mut queue.held, true) {
            self.free.events -= queue.waiting.len();
            self.free.bytes -= queue.bytes;
            if let Some(first) = queue.waiting.front() {
                self.ready.remove(&first.arrival);
            }
        }
    }

    /// Lets what waits of a key go on.
    fn let_go(&mut self, key: Key) {
        let Some(queue) = self.queues.get_mut(&key).filter(|queue| queue.held) else { return };
        queue.held = false;
        let Some(first) = queue.waiting.front() else {
            self.queues.remove(&key);
            return;
        };
        self.free.events += queue.waiting.len();
        self.free.bytes += queue.bytes;
        self.ready.insert(first.arrival, key);
    }

    /// Counts an event that has arrived; returns whether it has to wait for others of its type.
    fn arrive_of_type(&mut self, item: &ScheduledEvent<T>, arrival: u64) -> bool {
        let unfinished = self.unfinished.entry(item.resource).or_default();
        let waits_for = std::mem::replace(unfinished, *unfinished + 1);
        let waits = item.object.is_none() && waits_for > 0;
        if waits {
            self.barriers.push(Barrier { arrival, resource: item.resource, waits_for });
        }
        waits
    }

    /// Counts an event that is done, for the ends of initial states that wait for it.
    fn finish_of_type(&mut self, done: Sent) {
        if let Some(unfinished) = self.unfinished.get_mut(&done.resource) {
            *unfinished -= 1;
            if *unfinished == 0 {
                self.unfinished.remove(&done.resource);
            }
        }
        let mut released = Vec::new();
        self.barriers.retain_mut(|barrier| {
            let waited = barrier.resource == done.resource && barrier.arrival > done.arrival;
            barrier.waits_for -= usize::from(waited);
            released.extend((barrier.waits_for == 0).then_some(barrier.arrival));
            barrier.waits_for > 0
        });
        for arrival in released {
            self.let_go(Key::Alone(arrival));
        }
    }
}
