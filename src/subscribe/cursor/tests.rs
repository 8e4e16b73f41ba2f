//! Tests of the cursor, and a model test: each subscriber receives the rest of the stream, or a gap.

use proptest::prelude::*;

use super::{super::ring::testing::entry, *};
use crate::journal::Bounds;

const JOURNAL: &str = "9f2c41d07b6e";

fn ring(floor: u64, max_events: usize) -> Ring {
    Ring::new(Sequence(floor), Bounds { max_events, max_bytes: usize::MAX, ..Bounds::default() })
}

fn position(journal: Option<&str>, sequence: u64) -> Since {
    let text = sequence.to_string();
    Since::Place { journal: journal.map(str::to_owned), sequence: Sequence(sequence), text }
}

fn cursor(since: &Since, wants_state: bool, ring: &Ring) -> SubscriberCursor {
    let facts = JournalFacts { journal: JOURNAL, released: ring.head, time: None };
    SubscriberCursor::new(since, wants_state, ring, &facts)
}

/// Returns the steps of a cursor without a store, in short.
fn told(cursor: &mut SubscriberCursor, ring: &Ring) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        match cursor.step(ring, false) {
            CursorStep::Events(entries) => told.extend(entries.iter().map(|entry| entry.position().0.to_string())),
            CursorStep::Gap(gap) => told.push(format!("{} to {}", gap.reason.as_ref(), gap.to.0)),
            CursorStep::State => {
                told.push("state".to_owned());
                cursor.state_shown();
            }
            CursorStep::Read { .. } => panic!("there is no store"),
            CursorStep::Rest => return told,
        }
    }
}

#[test]
fn new_subscriber_sees_only_later_events() {
    let mut ring = ring(10, 9);
    ring.push(entry(11));
    let mut cursor = cursor(&Since::Now, false, &ring);
    assert_eq!(told(&mut cursor, &ring), [""; 0]);
    ring.push(entry(12));
    assert_eq!(told(&mut cursor, &ring), ["12"]);
}

#[test]
fn resuming_subscriber_sees_exactly_later_events() {
    let mut ring = ring(10, 9);
    for position in [11, 12, 15] {
        ring.push(entry(position));
    }
    assert_eq!(told(&mut cursor(&position(Some(JOURNAL), 11), true, &ring), &ring), ["12", "15"]);
    assert_eq!(told(&mut cursor(&position(None, 10), false, &ring), &ring), ["11", "12", "15"]);
}

#[test]
fn foreign_journal_or_unknown_position_is_gap() {
    let mut ring = ring(10, 9);
    ring.push(entry(11));
    assert_eq!(told(&mut cursor(&position(Some("another"), 11), false, &ring), &ring), ["journal to 11"]);
    assert_eq!(told(&mut cursor(&position(Some("another"), 11), true, &ring), &ring), ["journal to 11", "state"]);
    assert_eq!(told(&mut cursor(&position(Some(JOURNAL), 12), false, &ring), &ring), ["unknown to 11"]);
}

#[test]
fn unretained_requested_position_has_expired() {
    let mut ring = ring(10, 2);
    for position in 11..=14 {
        ring.push(entry(position));
    }
    let mut cursor = cursor(&position(None, 11), false, &ring);
    let CursorStep::Gap(gap) = cursor.step(&ring, false) else { panic!("the position is not kept") };
    assert_eq!((gap.reason, gap.asked.as_deref()), (GapReason::Expired, Some("11")));
}

#[test]
fn slow_subscriber_gets_gap_and_new_state() {
    let mut ring = ring(10, 2);
    let (mut plain, mut with_state) = (cursor(&Since::Now, false, &ring), cursor(&Since::Now, true, &ring));
    assert_eq!(told(&mut with_state, &ring), ["state"]);
    for position in 11..=14 {
        ring.push(entry(position));
    }
    assert_eq!(told(&mut plain, &ring), ["behind to 12", "13", "14"]);
    assert_eq!(told(&mut with_state, &ring), ["behind to 12", "state"]);
    ring.push(entry(15));
    assert_eq!(told(&mut with_state, &ring), ["15"]);
}

#[test]
fn events_shown_from_cache_are_not_repeated() {
    let mut ring = ring(10, 9);
    let mut cursor = cursor(&Since::Now, true, &ring);
    assert!(matches!(cursor.step(&ring, false), CursorStep::State));
    cursor.saw(UnitId(0), Sequence(12)); // published, and not yet read from the journal
    cursor.state_shown();
    assert_eq!(cursor.resumable(), None, "resuming here would show older states again");
    for position in 11..=13 {
        ring.push(entry(position));
    }
    let CursorStep::Events(entries) = cursor.step(&ring, false) else { panic!("there are events") };
    let due: Vec<_> = entries.iter().map(|entry| cursor.is_due(UnitId(0), entry.position())).collect();
    assert_eq!(due, [false, false, true]);
    assert_eq!(cursor.resumable(), Some(Sequence(13)));
    assert!(cursor.is_due(UnitId(1), Sequence(14)));
}

#[test]
fn events_older_than_ring_come_from_store() {
    let mut ring = ring(10, 9);
    ring.push(entry(12));
    let mut cursor = cursor(&position(Some(JOURNAL), 4), false, &ring);
    let CursorStep::Read { after, until } = cursor.step(&ring, true) else {
        panic!("the position is older than the ring")
    };
    assert_eq!((after, until), (Sequence(4), Sequence(10)));
    cursor.read(Sequence(7), 0);
    assert!(matches!(cursor.step(&ring, true), CursorStep::Read { after: Sequence(7), .. }));
    let gap = cursor.read(Sequence(10), 2).unwrap();
    assert_eq!((gap.from, gap.to, gap.events), (Some(Sequence(7)), Sequence(10), Some(2)));
    assert!(matches!(cursor.step(&ring, true), CursorStep::Events(_)));
}

#[test]
fn position_older_than_store_is_gap() {
    let ring = ring(10, 9);
    let mut plain = cursor(&position(Some(JOURNAL), 2), false, &ring);
    plain.expired(Sequence(6));
    let CursorStep::Gap(gap) = plain.step(&ring, true) else { panic!("the events are not kept") };
    assert_eq!((gap.reason, gap.from, gap.to), (GapReason::Expired, Some(Sequence(2)), Sequence(6)));
    assert!(
        matches!(plain.step(&ring, true), CursorStep::Read { after: Sequence(6), .. }),
        "the kept events are shown"
    );
    let mut with_state = cursor(&position(Some(JOURNAL), 2), true, &ring);
    with_state.expired(Sequence(6));
    assert!(matches!(with_state.step(&ring, true), CursorStep::Gap(_)));
    assert!(matches!(with_state.step(&ring, true), CursorStep::State), "the existing objects are sent instead");
}

#[test]
fn time_starts_at_events_of_that_time() {
    let ring = ring(10, 9);
    let since = Since::Time { micros: 5, text: "5m".into() };
    let with = |time| {
        SubscriberCursor::new(&since, false, &ring, &JournalFacts { journal: JOURNAL, released: Sequence(10), time })
    };
    assert_eq!(with(Some((Sequence(7), false))).position(), Sequence(7));
    let mut late = with(Some((Sequence(8), true)));
    let CursorStep::Gap(gap) = late.step(&ring, true) else { panic!("earlier events are not kept") };
    assert_eq!((gap.asked.as_deref(), gap.to), (Some("5m"), Sequence(8)));
}

/// Operations in any order.
#[derive(Clone, Debug)]
enum Operation {
    /// Append an event, some positions later.
    Append(u64),
    /// Pass over events that no reader wants.
    Pass(u64),
    /// Lose events in the feed.
    Lose(u64),
    /// Let a subscriber take a step.
    Step(usize),
    /// Let a subscriber reconnect with its last position.
    Reconnect(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (1..4_u64).prop_map(Operation::Append),
        1 => (1..4_u64).prop_map(Operation::Pass),
        1 => (1..4_u64).prop_map(Operation::Lose),
        4 => (0..3_usize).prop_map(Operation::Step),
        1 => (0..3_usize).prop_map(Operation::Reconnect),
    ]
}

/// A subscriber, with all events up to `sure`.
struct Witness {
    cursor: SubscriberCursor,
    seen: Vec<u64>,
    /// Start and end of each reported gap.
    gaps: Vec<(u64, u64)>,
    last: u64,
}

impl Witness {
    fn step(&mut self, ring: &Ring) -> bool {
        match self.cursor.step(ring, false) {
            CursorStep::Events(entries) => {
                self.seen.extend(entries.iter().map(|entry| entry.position().0));
                self.last = *self.seen.last().unwrap();
            }
            CursorStep::Gap(gap) => {
                self.gaps.push((gap.from.map_or(self.last, |from| from.0), gap.to.0));
                self.last = gap.to.0;
            }
            CursorStep::Rest => return false,
            CursorStep::State | CursorStep::Read { .. } => panic!("neither is requested"),
        }
        true
    }
}

proptest! {
    #[test]
    fn each_subscriber_sees_stream_or_gap(
        operations in prop::collection::vec(operation(), 1..120),
        max_events in 1..6_usize,
    ) {
        let mut ring = ring(0, max_events);
        let mut all: Vec<u64> = Vec::new();
        let begin = |ring: &Ring| cursor(&Since::Now, false, ring);
        let mut witnesses: Vec<_> =
            (0..3).map(|_| Witness { cursor: begin(&ring), seen: Vec::new(), gaps: Vec::new(), last: 0 }).collect();
        for operation in operations {
            match operation {
                Operation::Append(by) => {
                    let next = ring.head.0 + by;
                    all.push(next);
                    ring.push(entry(next));
                }
                Operation::Pass(by) => ring.reach(Sequence(ring.head.0 + by)),
                Operation::Lose(by) => {
                    let to = ring.head.0 + by;
                    all.push(to); // the lost event has happened
                    ring.cut(Sequence(to));
                }
                Operation::Step(who) => drop(witnesses[who].step(&ring)),
                Operation::Reconnect(who) => {
                    let last = witnesses[who].last;
                    witnesses[who].cursor = cursor(&position(Some(JOURNAL), last), false, &ring);
                }
            }
        }
        for witness in &mut witnesses {
            while witness.step(&ring) {}
            prop_assert!(witness.seen.is_sorted_by(|a, b| a < b), "in order, and once: {:?}", witness.seen);
            let is_told = |position: &u64| witness.gaps.iter().any(|(from, to)| from < position && position <= to);
            for position in &all {
                let seen = witness.seen.contains(position);
                prop_assert!(seen || is_told(position), "{position} was neither shown nor reported: {:?}", witness.gaps);
            }
            prop_assert!(witness.seen.iter().all(|position| all.contains(position)));
        }
    }
}
