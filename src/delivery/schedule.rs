//! Batches of a handler's events, and the order between them (`[handlers.*] order`, `concurrency`, `batch`).
//!
//! [`Schedule`] receives events in the order of the handler's reader and forms batches. Several batches may be in delivery at the
//! same time. A batch that is retried blocks only the objects in it. Reading stops when [`ScheduleOptions::window_events`] events
//! wait or are in delivery, or when a batch and [`WAITING_MAX`] more events wait. Meanwhile, the journal can coalesce the unread
//! events.
//!
//! The reasons are in `docs/decisions/0012-order-in-the-delivery-core.md`.

#[cfg(test)]
mod tests;

use std::time::Duration;

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
pub(crate) struct ScheduleOptions {
    /// Events that must not be in delivery in two batches at the same time.
    pub order: DeliveryOrder,
    /// Number of concurrent batches; 1 means [`DeliveryOrder::Total`].
    pub concurrency: usize,
    /// Allows at most one event per object in a batch, for sinks that store the events of a batch concurrently.
    pub distinct: bool,
    /// Maximum number of events in a batch.
    pub batch_events: usize,
    /// Maximum size of the bodies in a batch, in bytes; a single event may exceed it.
    pub batch_bytes: usize,
    /// Maximum time that an event waits for its batch to become full.
    pub linger: Duration,
    /// Maximum number of events that wait or are in delivery.
    pub window_events: usize,
    /// Maximum size, in bytes, of the bodies of events that wait or are in delivery; the last event may exceed it.
    pub window_bytes: usize,
}

/// An event as seen by a [`Schedule`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledEvent {
    /// Position of the event in the journal.
    pub sequence: Sequence,
    /// Hash of the event's resource type.
    pub resource: u64,
    /// Hash of the event's object; `None` for the end of a type's initial state. Objects with the same hash are delivered one after
    /// the other, which only costs time.
    pub object: Option<u64>,
    /// Set for a deletion or removal. Events of a new object with this name must wait until this event is acknowledged, except with
    /// [`DeliveryOrder::None`].
    pub gone: bool,
    /// Size of the event's bodies in bytes.
    pub bytes: usize,
}

/// Id of a delivery: one batch with all its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeliveryId(pub(super) u64);

/// Number of events and size of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventLoad {
    /// Number of events.
    pub events: usize,
    /// Size of their bodies in bytes.
    pub bytes: usize,
}

impl EventLoad {
    fn add(&mut self, bytes: usize) {
        self.events += 1;
        self.bytes += bytes;
    }
}

/// Maximum number of events that wait in addition to a whole batch. A higher maximum lets more events of other objects pass while
/// some objects wait for a retry. But waiting events can no longer be coalesced.
const WAITING_MAX: usize = 1_000;

#[derive(Debug)]
struct Waiting<T> {
    arrival: u64,
    since: Duration,
    /// Number of earlier events of the same type that wait or are in delivery. 0 unless this event is the end of a type's initial
    /// state, and the order is [`DeliveryOrder::PerObject`].
    ahead: usize,
    event: ScheduledEvent,
    content: T,
}

/// State of a handler's batches, see the [module](self). All times are of one monotonic clock.
///
/// **Invariants:** every event is in exactly one batch. With [`DeliveryOrder::PerObject`], events of one object are sent in order
/// of arrival, and no two batches in delivery share an object.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    options: ScheduleOptions,
    /// Waiting events in order of arrival.
    waiting: Vec<Waiting<T>>,
    /// Load of the waiting events that a batch may take. `free_since` is the arrival time of the first of these events.
    free: EventLoad,
    free_since: Option<Duration>,
    /// Load of all events that wait or are in delivery.
    held: EventLoad,
    /// Events in delivery, each with its number in order of arrival.
    in_delivery: HashMap<DeliveryId, Vec<(u64, ScheduledEvent)>>,
    /// Hashes of the objects in delivery. Used only with [`DeliveryOrder::PerObject`].
    busy: HashSet<u64>,
    arrivals: u64,
    last_id: u64,
}

impl<T> Schedule<T> {
    /// Makes an empty schedule.
    pub(crate) fn new(options: ScheduleOptions) -> Self {
        let concurrency = if options.order == DeliveryOrder::Total { 1 } else { options.concurrency.max(1) };
        let order = if concurrency == 1 { DeliveryOrder::Total } else { options.order };
        let batch_events =
            if options.distinct && options.order == DeliveryOrder::Total { 1 } else { options.batch_events };
        Self {
            options: ScheduleOptions { order, concurrency, batch_events: batch_events.max(1), ..options },
            waiting: Vec::new(),
            free: EventLoad::default(),
            free_since: None,
            held: EventLoad::default(),
            in_delivery: HashMap::new(),
            busy: HashSet::new(),
            arrivals: 0,
            last_id: 0,
        }
    }

    /// Returns true if no event waits or is in delivery.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.events == 0
    }

    /// Returns the maximum number and size of the events of the next read. A single event may exceed the size. Returns `None` if no
    /// more batches may start, a full batch is ready, or too many events wait or are in delivery. Unread events stay in the
    /// journal, which can still coalesce them.
    pub(crate) fn room(&self) -> Option<EventLoad> {
        let ScheduleOptions { concurrency, batch_events, batch_bytes, window_events, window_bytes, .. } = self.options;
        if self.in_delivery.len() >= concurrency {
            return None;
        }
        let events = batch_events.saturating_sub(self.free.events);
        let events = events.min(window_events.max(1).saturating_sub(self.held.events));
        let events = events.min(batch_events.saturating_add(WAITING_MAX).saturating_sub(self.waiting.len()));
        let bytes = batch_bytes.saturating_sub(self.free.bytes).min(window_bytes.saturating_sub(self.held.bytes));
        (events > 0 && (bytes > 0 || self.is_empty())).then_some(EventLoad { events, bytes })
    }

    /// Adds the next event of the reader.
    pub(crate) fn push(&mut self, event: ScheduledEvent, content: T, now: Duration) {
        let is_end = event.object.is_none() && self.options.order == DeliveryOrder::PerObject;
        let ahead = if is_end { self.unfinished(event.resource) } else { 0 };
        self.held.add(event.bytes);
        self.waiting.push(Waiting { arrival: self.arrivals, since: now, ahead, event, content });
        self.arrivals += 1;
        self.count_free(self.waiting.len() - 1);
    }

    /// Returns the next batch, in order of arrival, and its id. The batch is then in delivery. With `flush`, does not wait for a
    /// full batch or for `linger`.
    pub(crate) fn next(&mut self, now: Duration, flush: bool) -> Option<(DeliveryId, Vec<T>)> {
        let due = self.due()?;
        if !flush && due > now {
            return None;
        }
        let (sent, batch) = self.take();
        if self.options.order == DeliveryOrder::PerObject {
            self.busy.extend(sent.iter().filter_map(|(_, event)| event.object));
        }
        let id = self.new_id();
        self.in_delivery.insert(id, sent);
        self.recount_free();
        Some((id, batch))
    }

    /// Returns the id for a delivery whose events do not come from this schedule.
    pub(crate) fn new_id(&mut self) -> DeliveryId {
        self.last_id += 1;
        DeliveryId(self.last_id)
    }

    /// Returns the time at which the next batch may start. `None` if an event must arrive, or a batch must end, before it can
    /// start.
    pub(crate) fn due(&self) -> Option<Duration> {
        let since = self.free_since.filter(|_| self.in_delivery.len() < self.options.concurrency)?;
        let is_full = self.free.events >= self.options.batch_events || self.free.bytes >= self.options.batch_bytes;
        Some(if is_full { since } else { since + self.options.linger })
    }

    /// Ends a batch. Returns the positions of its events, in order; they can be acknowledged.
    pub(crate) fn finished(&mut self, delivery: DeliveryId) -> Vec<Sequence> {
        let done = self.in_delivery.remove(&delivery).unwrap_or_default();
        for (_, event) in &done {
            self.held.events -= 1;
            self.held.bytes -= event.bytes;
            event.object.map(|object| self.busy.remove(&object));
        }
        for end in self.waiting.iter_mut().filter(|waiting| waiting.ahead > 0) {
            let is_ahead = |(arrival, event): &&(u64, ScheduledEvent)| {
                event.resource == end.event.resource && *arrival < end.arrival
            };
            end.ahead -= done.iter().filter(is_ahead).count();
        }
        self.recount_free();
        done.iter().map(|(_, event)| event.sequence).collect()
    }

    /// Returns the number of events of a type that wait or are in delivery.
    fn unfinished(&self, resource: u64) -> usize {
        let sent = self.in_delivery.values().flatten().map(|(_, event)| event);
        let all = self.waiting.iter().map(|waiting| &waiting.event).chain(sent);
        all.filter(|event| event.resource == resource).count()
    }

    fn recount_free(&mut self) {
        (self.free, self.free_since) = (EventLoad::default(), None);
        self.count_free(0);
    }

    /// Adds the free events in `waiting[from..]` to `free`.
    fn count_free(&mut self, from: usize) {
        for waiting in self.waiting[from..].iter().filter(|waiting| waiting.is_free(&self.busy)) {
            self.free.add(waiting.event.bytes);
            self.free_since.get_or_insert(waiting.since);
        }
    }

    /// Removes the next batch from the waiting events, and returns it.
    fn take(&mut self) -> (Vec<(u64, ScheduledEvent)>, Vec<T>) {
        let ScheduleOptions { batch_events, batch_bytes, distinct, order, .. } = self.options;
        let (mut batch, mut is_full) = (EventLoad::default(), false);
        // Objects that must not get another event in this batch.
        let mut closed = HashSet::new();
        let is_taken = |next: &mut Waiting<T>| {
            if is_full || !next.is_free(&self.busy) {
                return false;
            }
            let ScheduledEvent { object, bytes, gone, .. } = next.event;
            let is_closed = object.is_some_and(|object| closed.contains(&object));
            // Events of other objects may overtake only with `PerObject`.
            is_full = batch.events == batch_events
                || (batch.bytes + bytes > batch_bytes && batch.events > 0)
                || (is_closed && order != DeliveryOrder::PerObject);
            if is_full || is_closed {
                return false;
            }
            batch.add(bytes);
            closed.extend(object.filter(|_| distinct || (gone && order != DeliveryOrder::None)));
            true
        };
        self.waiting.extract_if(.., is_taken).map(|taken| ((taken.arrival, taken.event), taken.content)).unzip()
    }
}

impl<T> Waiting<T> {
    /// Returns true if a batch may take the event: its object is not in delivery, and it waits for no earlier events.
    fn is_free(&self, busy: &HashSet<u64>) -> bool {
        self.ahead == 0 && self.event.object.is_none_or(|object| !busy.contains(&object))
    }
}
