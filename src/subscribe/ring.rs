//! The newest events for all subscribers: bounded; each event is encoded once, on first use.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use super::frame::{Frame, StreamFormat};
use crate::{
    cloud_event::Encoder,
    journal::{Bounds, Sequence},
    notification::Event,
};

/// Approximate overhead of an entry, without its bodies.
const ENTRY_BYTES: usize = 1024;

/// One event, shared by all its subscribers.
#[derive(Debug)]
pub struct Entry {
    /// The event.
    pub event: Event,
    /// Set if the event's object existed before the engine started.
    pub is_initial: bool,
    frame: OnceLock<Frame>,
}

impl Entry {
    /// Makes an entry that is not encoded yet.
    pub fn new(event: Event, is_initial: bool) -> Self {
        Self { event, is_initial, frame: OnceLock::new() }
    }

    /// Returns the position of the event in the journal.
    pub fn position(&self) -> Sequence {
        self.event.record.sequence
    }

    /// Returns the bytes of the event in `format`. The event is encoded once for all formats.
    ///
    /// `is_position` means that a stream can resume after this event.
    pub fn bytes(&self, encoder: &Encoder, journal: &str, format: StreamFormat, is_position: bool) -> bytes::Bytes {
        self.frame.get_or_init(|| Frame::of_event(encoder, journal, &self.event)).bytes(format, is_position)
    }

    /// Returns the approximate size of the entry in memory, including the encoded event.
    fn cost(&self) -> usize {
        let bodies = [self.event.record.object(), self.event.record.old()];
        let body = |object: &crate::object::Object| object.size_bytes() + object.json_bytes();
        ENTRY_BYTES + bodies.into_iter().flatten().map(body).sum::<usize>()
    }
}

/// The newest events of a journal.
///
/// **Invariant:** all events of the stream after `floor` and up to `head` are here, in order.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(super) floor: Sequence,
    pub(super) head: Sequence,
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    bounds: Bounds,
}

impl Ring {
    /// Makes an empty ring that starts after `position`. If one event alone exceeds `bounds.max_bytes`, the ring
    /// still holds this event.
    pub(crate) fn new(position: Sequence, bounds: Bounds) -> Self {
        Self { floor: position, head: position, entries: VecDeque::new(), bytes: 0, bounds }
    }

    /// Adds the next event; evicts the oldest events if a bound is exceeded.
    pub(crate) fn push(&mut self, entry: Arc<Entry>) {
        debug_assert!(entry.position() > self.head, "a journal is read in order");
        self.head = entry.position();
        self.bytes += entry.cost();
        self.entries.push_back(entry);
        while self.entries.len() > self.bounds.max_events
            || (self.bytes > self.bounds.max_bytes && self.entries.len() > 1)
        {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.cost();
            self.floor = oldest.position();
        }
    }

    /// Moves the head to `position`. The stream has no further events up to `position`.
    pub(crate) fn reach(&mut self, position: Sequence) {
        self.head = self.head.max(position);
    }

    /// Empties the ring, so that it starts again after `position`. Events up to `position` were lost, and a ring must have no holes.
    pub(crate) fn cut(&mut self, position: Sequence) {
        self.entries.clear();
        self.bytes = 0;
        self.floor = position.max(self.head);
        self.head = self.floor;
    }

    /// Returns up to `max` events after `position`. The ring has no events up to `floor`.
    pub(crate) fn after(&self, position: Sequence, max: usize) -> Vec<Arc<Entry>> {
        let from = self.entries.partition_point(|entry| entry.position() <= position);
        self.entries.range(from..).take(max).cloned().collect()
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Entries for tests of the ring.

    use super::*;
    use crate::{
        change::Change,
        journal::{Record, UnitId, testing::added},
        notification::UnitInfo,
        object::ResourceType,
    };

    /// Makes an event of a pod at a position; its time in microseconds equals the position.
    pub(in crate::subscribe) fn event(position: u64, change: Change) -> Event {
        let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
        let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "all".into(), resource, namespace: None });
        let time_micros = i64::try_from(position).unwrap();
        let record = Record { sequence: Sequence(position), unit: UnitId(0), time_micros, change, old_lost: false };
        Event { unit, record }
    }

    pub(in crate::subscribe) fn entry(position: u64) -> Arc<Entry> {
        Arc::new(Entry::new(
            event(position, added(&format!("pod-{position}"), &format!("u{position}"), position)),
            false,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    fn ring(max_events: usize, max_bytes: usize) -> Ring {
        Ring::new(Sequence(10), Bounds { max_events, max_bytes, ..Bounds::default() })
    }

    fn positions(ring: &Ring, after: u64) -> Vec<u64> {
        ring.after(Sequence(after), usize::MAX).iter().map(|entry| entry.position().0).collect()
    }

    #[test]
    fn bound_evicts_oldest_events_and_raises_floor() {
        let mut ring = ring(2, usize::MAX);
        for position in [12, 15, 19] {
            ring.push(entry(position));
        }
        assert_eq!((ring.floor, ring.head), (Sequence(12), Sequence(19)));
        assert_eq!(positions(&ring, 12), [15, 19]);
        assert_eq!(positions(&ring, 15), [19]);
        assert_eq!(positions(&ring, 17), [19], "sequences may have holes");
        assert_eq!(positions(&ring, 19), [0; 0]);
    }

    #[test]
    fn byte_bound_always_admits_one_event() {
        let mut ring = ring(100, 1);
        ring.push(entry(11));
        assert_eq!(positions(&ring, 10), [11]);
        ring.push(entry(12));
        assert_eq!((positions(&ring, 10), ring.floor), (vec![12], Sequence(11)));
    }

    #[test]
    fn cut_leaves_no_hidden_hole() {
        let mut ring = ring(100, usize::MAX);
        ring.push(entry(11));
        ring.cut(Sequence(20));
        assert_eq!((ring.floor, ring.head, positions(&ring, 0).len()), (Sequence(20), Sequence(20), 0));
        ring.push(entry(21));
        assert_eq!(positions(&ring, 20), [21]);
    }

    #[test]
    fn event_is_encoded_once_for_all_subscribers() {
        let entry = entry(11);
        let encoder = Encoder::new("c", "j");
        let sse = entry.bytes(&encoder, "j", StreamFormat::Sse, true);
        let again = entry.bytes(&encoder, "j", StreamFormat::Sse, true);
        assert_eq!(sse.as_ptr(), again.as_ptr());
        let line = entry.bytes(&encoder, "j", StreamFormat::Ndjson, true);
        let within = sse.as_ptr_range();
        assert!(within.contains(&line.as_ptr()), "both formats share their bytes");
    }
}
