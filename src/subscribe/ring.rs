//! The newest events, for all subscribers: bounded, each encoded once, when the first one wants it.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
};

use super::frame::{Frame, StreamFormat};
use crate::{cloud_event::Encoder, journal::Sequence, notification::Event};

/// What an entry takes beside its bodies, about.
const ENTRY_BYTES: usize = 1024;

/// How much a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBounds {
    /// Events.
    pub max_events: usize,
    /// Bytes of their bodies and of their encoded form, about. One event alone is never too much.
    pub max_bytes: usize,
}

/// One event, shared by all who get it.
#[derive(Debug)]
pub struct Entry {
    event: Event,
    is_initial: bool,
    frame: OnceLock<Frame>,
}

impl Entry {
    /// Makes an entry; `is_initial`: it existed before the engine did, and is no news.
    pub fn new(event: Event, is_initial: bool) -> Self {
        Self { event, is_initial, frame: OnceLock::new() }
    }

    /// Returns the event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns whether it tells of an object that existed before the engine did.
    pub fn is_initial(&self) -> bool {
        self.is_initial
    }

    /// Returns its place.
    pub fn place(&self) -> Sequence {
        self.event.record.sequence
    }

    /// Returns its bytes as a stream has them; they are made once, for every format.
    ///
    /// `is_place` says whether a stream may be resumed behind it.
    pub fn bytes(&self, encoder: &Encoder, journal: &str, format: StreamFormat, is_place: bool) -> bytes::Bytes {
        let frame = self.frame.get_or_init(|| Frame::of_event(encoder, journal, &self.event));
        if is_place { frame.bytes(format) } else { frame.unplaced_bytes(format) }
    }

    /// Returns what it takes in memory once it is encoded, about.
    fn cost(&self) -> usize {
        let bodies = [self.event.record.object(), self.event.record.old()];
        let body = |object: &crate::object::Object| object.size_bytes() + object.json_bytes();
        ENTRY_BYTES + bodies.into_iter().flatten().map(body).sum::<usize>()
    }
}

/// The newest events of a journal.
///
/// **Invariant:** every event of the stream that lies behind [`floor`](Ring::floor) and not behind [`head`](Ring::head)
/// is here, in order.
#[derive(Debug)]
pub struct Ring {
    floor: Sequence,
    floor_micros: i64,
    head: Sequence,
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    bounds: RingBounds,
}

impl Ring {
    /// Makes an empty ring that begins behind `place`, now.
    pub fn new(place: Sequence, now_micros: i64, bounds: RingBounds) -> Self {
        Self { floor: place, floor_micros: now_micros, head: place, entries: VecDeque::new(), bytes: 0, bounds }
    }

    /// Returns the place behind which everything is here.
    pub fn floor(&self) -> Sequence {
        self.floor
    }

    /// Returns the place up to which everything is here.
    pub fn head(&self) -> Sequence {
        self.head
    }

    /// Takes the next event; the oldest go where there are too many.
    pub fn push(&mut self, entry: Arc<Entry>) {
        debug_assert!(entry.place() > self.head, "a journal is read in order");
        self.head = entry.place();
        self.bytes += entry.cost();
        self.entries.push_back(entry);
        while self.entries.len() > self.bounds.max_events.max(1)
            || (self.bytes > self.bounds.max_bytes && self.entries.len() > 1)
        {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.cost();
            (self.floor, self.floor_micros) = (oldest.place(), oldest.event.record.time_micros);
        }
    }

    /// Notes that there is nothing more up to `place`.
    pub fn reach(&mut self, place: Sequence) {
        self.head = self.head.max(place);
    }

    /// Notes that something was lost before `place`: what is here is no unbroken row any more, and goes.
    pub fn cut(&mut self, place: Sequence, now_micros: i64) {
        self.entries.clear();
        self.bytes = 0;
        (self.floor, self.floor_micros) = (place.max(self.head), now_micros);
        self.head = self.floor;
    }

    /// Returns the events behind `place`, at most `max`; none where it lies before [`Ring::floor`] says nothing.
    pub fn after(&self, place: Sequence, max: usize) -> Vec<Arc<Entry>> {
        let from = self.entries.partition_point(|entry| entry.place() <= place);
        self.entries.range(from..).take(max).cloned().collect()
    }

    /// Returns the place behind which lies what happened at a time or later; `None` where that is too long ago to be
    /// known here.
    pub fn before(&self, micros: i64) -> Option<Sequence> {
        if micros < self.floor_micros {
            return None;
        }
        let at = self.entries.partition_point(|entry| entry.event.record.time_micros < micros);
        Some(at.checked_sub(1).map_or(self.floor, |last| self.entries[last].place()))
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Entries to make rings of.

    use super::*;
    use crate::{
        change::Change,
        journal::{Record, UnitId, testing::added},
        notification::UnitInfo,
        object::ResourceType,
    };

    /// Makes an event of a pod at a place; the time is the place in microseconds.
    pub(in crate::subscribe) fn event(place: u64, change: Change) -> Event {
        let (version, kind, plural) = ("v1".into(), "Pod".into(), "pods".into());
        let resource = ResourceType { group: String::new(), version, kind, plural, namespaced: true };
        let unit = Arc::new(UnitInfo { entry: "all".into(), resource, namespace: None });
        let time_micros = i64::try_from(place).unwrap();
        let record = Record { sequence: Sequence(place), unit: UnitId(0), time_micros, change, old_lost: false };
        Event { unit, record }
    }

    pub(in crate::subscribe) fn entry(place: u64) -> Arc<Entry> {
        Arc::new(Entry::new(event(place, added(&format!("pod-{place}"), &format!("u{place}"), place)), false))
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    fn ring(max_events: usize, max_bytes: usize) -> Ring {
        Ring::new(Sequence(10), 10, RingBounds { max_events, max_bytes })
    }

    fn places(ring: &Ring, after: u64) -> Vec<u64> {
        ring.after(Sequence(after), usize::MAX).iter().map(|entry| entry.place().0).collect()
    }

    #[test]
    fn the_oldest_go_at_the_bound_and_the_floor_says_so() {
        let mut ring = ring(2, usize::MAX);
        for place in [12, 15, 19] {
            ring.push(entry(place));
        }
        assert_eq!((ring.floor(), ring.head()), (Sequence(12), Sequence(19)));
        assert_eq!(places(&ring, 12), [15, 19]);
        assert_eq!(places(&ring, 15), [19]);
        assert_eq!(places(&ring, 17), [19], "holes mean nothing");
        assert_eq!(places(&ring, 19), [0; 0]);
    }

    #[test]
    fn bytes_are_a_bound_too_and_one_event_is_never_too_much() {
        let mut ring = ring(100, 1);
        ring.push(entry(11));
        assert_eq!(places(&ring, 10), [11]);
        ring.push(entry(12));
        assert_eq!((places(&ring, 10), ring.floor()), (vec![12], Sequence(11)));
    }

    #[test]
    fn i6_what_was_lost_leaves_no_row_that_looks_whole() {
        let mut ring = ring(100, usize::MAX);
        ring.push(entry(11));
        ring.cut(Sequence(20), 20);
        assert_eq!((ring.floor(), ring.head(), places(&ring, 0).len()), (Sequence(20), Sequence(20), 0));
        ring.push(entry(21));
        assert_eq!(places(&ring, 20), [21]);
    }

    #[test]
    fn a_time_is_a_place_as_far_back_as_the_ring_reaches() {
        let mut ring = ring(3, usize::MAX);
        assert_eq!((ring.before(9), ring.before(10)), (None, Some(Sequence(10))));
        for place in [12, 15, 19, 30] {
            ring.push(entry(place));
        }
        let before = |micros| ring.before(micros).map(|place| place.0);
        assert_eq!(before(11), None, "what happened then is gone");
        assert_eq!(
            [before(12), before(13), before(15), before(16), before(99)],
            [Some(12), Some(12), Some(12), Some(15), Some(30)]
        );
    }

    #[test]
    fn an_event_is_encoded_once_for_all() {
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
