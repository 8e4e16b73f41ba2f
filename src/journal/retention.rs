//! Retention of records that no reader needs.

use std::{collections::VecDeque, time::Duration};

use super::Sequence;

/// Number of points in time that are remembered within the retention time.
const MOMENTS: u32 = 64;
/// Number of parts into which the unneeded records are divided. If the state directory is too large, one part is removed at a time.
const PARTS: u64 = 8;

/// The last record at some points in time. It shows which records are older than the retention time.
#[derive(Debug)]
pub(super) struct Retention {
    keep: Duration,
    /// Time in microseconds since the Unix epoch, and the last record at that time; oldest first.
    moments: VecDeque<(i64, Sequence)>,
    /// Groups of given-up records that are kept for a replay, oldest first. For each group: the latest possible time at which its
    /// records were given up, and the lowest of their positions.
    given_up: VecDeque<(i64, Sequence)>,
}

impl Retention {
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, moments: VecDeque::new(), given_up: VecDeque::new() }
    }

    fn step_micros(&self) -> i64 {
        i64::try_from((self.keep / MOMENTS).as_micros()).unwrap_or(i64::MAX)
    }

    /// Notes that `last` is the last record at this time. If the clock is set back, records are kept longer.
    pub(super) fn note(&mut self, now_micros: i64, last: Sequence) {
        let step = self.step_micros();
        if self.moments.back().is_none_or(|(at, _)| now_micros.saturating_sub(*at) >= step) {
            self.moments.push_back((now_micros, last));
        }
    }

    /// Notes that records were given up at `now_micros`; `first` is their lowest position. The retention time of these records starts
    /// again.
    pub(super) fn note_given_up(&mut self, now_micros: i64, first: Sequence) {
        match self.given_up.back_mut().filter(|(until, _)| now_micros <= *until) {
            Some((_, known)) => *known = first.min(*known),
            None => self.given_up.push_back((now_micros.saturating_add(self.step_micros()), first)),
        }
    }

    /// Returns the first record to keep. All records before it are known to be old, and none of them was given up recently.
    pub(super) fn keep_from(&mut self, now_micros: i64) -> Sequence {
        let keep = i64::try_from(self.keep.as_micros()).unwrap_or(i64::MAX);
        let is_old = |(at, _): &(i64, Sequence)| now_micros.saturating_sub(*at) > keep;
        let mut from = Sequence(0);
        // The newest of the old moments stays: it still marks the limit of the old records.
        while self.moments.get(1).is_some_and(is_old) {
            self.moments.pop_front();
        }
        if let Some((_, last)) = self.moments.front().filter(|moment| is_old(moment)) {
            from = Sequence(last.0 + 1);
        }
        while self.given_up.pop_front_if(|group| is_old(group)).is_some() {}
        self.given_up.iter().map(|(_, first)| *first).fold(from, Sequence::min)
    }
}

/// Divides the records from `first` up to but not including `needed` into `PARTS` parts. Returns the position after the first part.
pub(super) fn make_room(first: Sequence, needed: Sequence) -> Sequence {
    let spare = needed.0.saturating_sub(first.0);
    Sequence(first.0 + spare.div_ceil(PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn record_age_counts_from_its_group_end() {
        let mut retention = Retention::new(Duration::from_secs(64));
        retention.note(0, Sequence(10));
        retention.note(SECOND / 2, Sequence(11));
        retention.note(SECOND, Sequence(20));
        assert_eq!(retention.keep_from(64 * SECOND), Sequence(0));
        assert_eq!(retention.keep_from(64 * SECOND + 1), Sequence(11));
        assert_eq!(retention.keep_from(65 * SECOND + 1), Sequence(21));
        assert_eq!(retention.keep_from(1000 * SECOND), Sequence(21), "what came later is not known to be old");
    }

    #[test]
    fn given_up_records_age_from_give_up() {
        let mut retention = Retention::new(Duration::from_secs(64));
        retention.note(0, Sequence(10));
        retention.note(2 * SECOND, Sequence(20));
        retention.note_given_up(90 * SECOND, Sequence(5));
        retention.note_given_up(90 * SECOND + 1, Sequence(3));
        retention.note_given_up(100 * SECOND, Sequence(7));
        assert_eq!(retention.keep_from(91 * SECOND), Sequence(3));
        assert_eq!(retention.keep_from(155 * SECOND), Sequence(3), "its group ends a second later");
        assert_eq!(retention.keep_from(155 * SECOND + 1), Sequence(7));
        assert_eq!(retention.keep_from(165 * SECOND + 1), Sequence(21));
    }

    #[test]
    fn backward_clock_removes_nothing_early() {
        let mut retention = Retention::new(Duration::from_secs(64));
        retention.note(100 * SECOND, Sequence(10));
        assert_eq!(retention.keep_from(0), Sequence(0));
        retention.note(50 * SECOND, Sequence(20));
        assert_eq!(retention.keep_from(120 * SECOND), Sequence(0));
    }

    #[test]
    fn room_is_made_in_parts_up_to_need() {
        assert_eq!(make_room(Sequence(1), Sequence(81)), Sequence(11));
        assert_eq!(make_room(Sequence(80), Sequence(81)), Sequence(81));
        assert_eq!(make_room(Sequence(81), Sequence(81)), Sequence(81));
        assert_eq!(make_room(Sequence(90), Sequence(81)), Sequence(90));
    }
}
