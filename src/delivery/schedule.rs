//! Batches of a handler's events, and the order between them (`[handlers.*] order`, `concurrency`, `batch`).
//!
//! [`Schedule`] receives events in the order of the handler's reader and forms batches. Several batches may be in
//! delivery at the same time. A batch that is retried blocks only the objects in it. When
//! [`ScheduleOptions::window_events`] are held, nothing more is read, and waiting events are coalesced in the journal.
//!
//! The reasons are in `docs/decisions/0012-order-in-the-delivery-core.md`.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::journal::Sequence;

/// Events that are never in two deliveries at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DeliveryOrder")]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryOrder {
    /// Events of one object (type, namespace and name).
    #[default]
    PerObject,
    /// All events; they are delivered in sequence.
    Total,
    /// No restriction.
    None,
}

/// Options of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// Events that must not be in two batches at the same time.
    pub order: DeliveryOrder,
    /// Number of concurrent batches; 1 means [`DeliveryOrder::Total`].
    pub concurrency: usize,
    /// Allows at most one event per object in a batch, for sinks that store the events of a batch concurrently.
    pub distinct: bool,
    /// Maximum number of events in a batch.
    pub batch_events: usize,
    /// Maximum size of the bodies in a batch, in bytes; a single event may exceed it.
    pub batch_bytes: usize,
    /// Time that an event waits for its batch to become full.
    pub linger: Duration,
    /// Maximum number of events held, including those in delivery.
    pub window_events: usize,
    /// Maximum size of the bodies held, in bytes; the last event may exceed it.
    pub window_bytes: usize,
}

/// An event as seen by a [`Schedule`].
#[derive(Clone, Debug)]
pub struct ScheduledEvent<T> {
    /// Its position in the journal.
    pub sequence: Sequence,
    /// Hash of its resource type.
    pub resource: u64,
    /// Hash of its object; `None` for the end of a type's initial state. Two objects with the same hash wait for each
    /// other, which only costs a round trip.
    pub object: Option<u64>,
    /// Set for a deletion. The next object of this name is not sent before the deletion is acknowledged.
    pub gone: bool,
    /// Bytes of its bodies.
    pub bytes: usize,
    /// The event.
    pub content: T,
}

/// Id of a delivery: one batch with all its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryId(pub(super) u64);

/// Room for events that may be read for a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Maximum number of events, at least one.
    pub events: usize,
    /// Maximum size of bodies in bytes; a single event may exceed it.
    pub bytes: usize,
}

/// Key that is never in two batches at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    All,
    Object(u64),
    /// Arrival number of the only event with this key.
    Alone(u64),
}

#[derive(Debug)]
struct Waiting<T> {
    arrival: u64,
    since: Duration,
    item: ScheduledEvent<T>,
}

/// Waiting events of one key, in order of arrival.
#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: usize,
    /// Set while a batch with this key is in delivery, or the key waits for other events to finish.
    held: bool,
}

/// Event of a batch in delivery.
#[derive(Clone, Copy, Debug)]
struct Sent {
    arrival: u64,
    sequence: Sequence,
    resource: u64,
    key: Key,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    events: usize,
    bytes: usize,
}

/// State of a handler's batches, see the [module](self). All times are of one monotonic clock.
///
/// **Invariants:** every event is in one batch. Events of one key are sent in order of arrival, and no two batches in
/// delivery share a key. `ready` has the first event of every key that is not held.
#[derive(Debug)]
pub struct Schedule<T> {
    options: ScheduleOptions,
    queues: HashMap<Key, Queue<T>>,
    ready: BTreeMap<u64, Key>,
    /// Waiting events of keys that are not held.
    free: Load,
    held: Load,
    in_delivery: HashMap<DeliveryId, Vec<Sent>>,
    /// Arrivals of the unfinished events by type, with [`DeliveryOrder::PerObject`]. The end of a type's initial state waits
    /// until it is the first of them.
    unfinished: HashMap<u64, BTreeSet<u64>>,
    arrivals: u64,
    last_id: u64,
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
            arrivals: 0,
            last_id: 0,
        }
    }

    /// Returns true if no event waits or is in delivery.
    pub fn is_empty(&self) -> bool {
        self.held.events == 0
    }

    /// Returns the room for the next batch. `None` if no batch could start, or the window is full: the journal can
    /// still coalesce unread events.
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

    /// Adds the next event of the reader.
    pub fn push(&mut self, item: ScheduledEvent<T>, now: Duration) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let key = match (self.options.order, item.object) {
            (DeliveryOrder::Total, _) => Key::All,
            (DeliveryOrder::PerObject, Some(object)) => Key::Object(object),
            (DeliveryOrder::PerObject, None) | (DeliveryOrder::None, _) => Key::Alone(arrival),
        };
        let waits = self.options.order == DeliveryOrder::PerObject && {
            let unfinished = self.unfinished.entry(item.resource).or_default();
            unfinished.insert(arrival);
            item.object.is_none() && unfinished.len() > 1
        };
        let bytes = item.bytes;
        self.held.events += 1;
        self.held.bytes += bytes;
        let empty = || Queue { waiting: VecDeque::new(), bytes: 0, held: waits };
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

    /// Returns the next batch, in order of arrival, and its id. The batch is then in delivery. With `flush` it does not
    /// wait to become full.
    pub fn next(&mut self, now: Duration, flush: bool) -> Option<(DeliveryId, Vec<T>)> {
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
        let id = self.new_id();
        self.in_delivery.insert(id, sent);
        Some((id, batch))
    }

    /// Returns the id for a delivery whose events do not come from this schedule.
    pub fn new_id(&mut self) -> DeliveryId {
        self.last_id += 1;
        DeliveryId(self.last_id)
    }

    /// Returns the time of the next batch if nothing else happens; `None` if another event or outcome is needed first.
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

    /// Ends a batch. Returns the positions of its events, in order; they can be acknowledged.
    pub fn finished(&mut self, delivery: DeliveryId) -> Vec<Sequence> {
        let done = self.in_delivery.remove(&delivery).unwrap_or_default();
        for sent in &done {
            self.held.events -= 1;
            self.held.bytes -= sent.bytes;
            self.let_go(sent.key);
            let Some(unfinished) = self.unfinished.get_mut(&sent.resource) else { continue };
            unfinished.remove(&sent.arrival);
            match unfinished.first().copied() {
                Some(first) => self.let_go(Key::Alone(first)),
                None => drop(self.unfinished.remove(&sent.resource)),
            }
        }
        done.iter().map(|sent| sent.sequence).collect()
    }

    /// Removes a batch from the ready events.
    fn take(&mut self) -> (Vec<Sent>, Vec<T>) {
        let ScheduleOptions { batch_events, batch_bytes, distinct, order, .. } = self.options;
        let (mut sent, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        // Objects that must not get another event in this batch.
        let mut closed = HashSet::new();
        while let Some((arrival, key)) = self.ready.first_key_value().map(|(arrival, key)| (*arrival, *key)) {
            let queue = self.queues.get_mut(&key).expect("a ready key has events");
            let next = &queue.waiting.front().expect("a ready key has events").item;
            if batch.len() == batch_events || (bytes + next.bytes > batch_bytes && !batch.is_empty()) {
                break;
            }
            let is_closed = next.object.is_some_and(|object| closed.contains(&object));
            if is_closed && order == DeliveryOrder::None {
                break;
            }
            self.ready.remove(&arrival);
            if is_closed {
                continue; // its key is in the batch, and is ready again when the batch ends
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

    /// Holds the waiting events of a key, if they are not yet held.
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

    /// Releases the waiting events of a key.
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
}
