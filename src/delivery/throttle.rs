//! `once_per`: at most one event of a key within a period.
//!
//! The time of an event is that of its change, not that of its delivery. So a backlog is judged as it would have been without
//! delay, and a restart does not change a decision.

pub(crate) mod state;

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::journal::Sequence;

/// Maximum number of keys that a handler remembers. Beyond it the oldest ones are forgotten.
const KEYS_MAX: usize = 100_000;
/// Share of the keys that are forgotten at the maximum, so that this does not happen for each new key.
const FORGOTTEN: usize = 10;

/// Digest of a key. Names come from the cluster, so two keys of one digest must not be constructible: such an object could
/// suppress the events of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ThrottleKey(u64, u64);

impl ThrottleKey {
    /// Makes the digest of some parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let [high, low, ..] = digest.as_chunks().0 else { unreachable!("SHA-256 has four chunks") };
        Self(u64::from_le_bytes(*high), u64::from_le_bytes(*low))
    }
}

/// Last event of a key that was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Passed {
    time_micros: i64,
    sequence: u64,
}

/// Keys of a handler, with the last event of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    passed: HashMap<ThrottleKey, Passed, RandomState>,
    /// Number of events that were let through for the first time.
    admitted: u64,
    /// Number of keys that were forgotten before their period was over, since the last report.
    pub forgotten: u64,
}

impl Throttle {
    /// Returns true if the handler gets an event of this key, and remembers it.
    ///
    /// An event that is not newer than the last one of its key was let through before. It is here again after a failure or a
    /// restart, and must not be lost. If the clock was set back by more than the period, the next event is let through.
    pub(crate) fn admits(&mut self, period: Duration, key: ThrottleKey, time_micros: i64, sequence: Sequence) -> bool {
        let period = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        match self.passed.get(&key) {
            Some(last) if sequence.0 <= last.sequence => return true,
            Some(last) if time_micros.abs_diff(last.time_micros) < period => return false,
            Some(_) => {}
            None => self.make_room(period, time_micros),
        }
        self.admitted += 1;
        self.passed.insert(key, Passed { time_micros, sequence: sequence.0 });
        true
    }

    /// Forgets keys whose period is over, and if that is not enough the oldest ones.
    fn make_room(&mut self, period: u64, now_micros: i64) {
        if self.passed.len() < KEYS_MAX {
            return;
        }
        self.passed.retain(|_, last| now_micros.abs_diff(last.time_micros) < period);
        if self.passed.len() >= KEYS_MAX {
            let mut times: Vec<_> = self.passed.values().map(|last| (last.time_micros, last.sequence)).collect();
            let (_, &mut newest, _) = times.select_nth_unstable(KEYS_MAX / FORGOTTEN);
            let before = self.passed.len();
            self.passed.retain(|_, last| (last.time_micros, last.sequence) > newest);
            self.forgotten += (before - self.passed.len()) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn minutes(minutes: i64) -> i64 {
        minutes * 60_000_000
    }

    fn key(name: &str) -> ThrottleKey {
        ThrottleKey::of(&["apps", name])
    }

    #[test]
    fn one_event_of_a_key_passes_within_the_period() {
        let mut throttle = Throttle::default();
        let mut admits = |name, at, sequence| throttle.admits(HOUR, key(name), minutes(at), Sequence(sequence));
        assert!(admits("a", 0, 1));
        assert!(!admits("a", 59, 2));
        assert!(admits("b", 59, 3));
        assert!(admits("a", 60, 4), "the suppressed event did not extend the period");
        assert!(!admits("a", 119, 5));
    }

    #[test]
    fn event_that_passed_passes_again() {
        let mut throttle = Throttle::default();
        assert!(throttle.admits(HOUR, key("a"), 0, Sequence(7)));
        assert!(throttle.admits(HOUR, key("a"), 0, Sequence(7)), "delivered again after a failure");
        assert!(throttle.admits(HOUR, key("a"), minutes(90), Sequence(9)));
        assert!(throttle.admits(HOUR, key("a"), 0, Sequence(7)), "replayed");
        assert!(!throttle.admits(HOUR, key("a"), minutes(91), Sequence(10)), "the replay changed nothing");
    }

    #[test]
    fn clock_set_back_suppresses_at_most_one_period() {
        let mut throttle = Throttle::default();
        assert!(throttle.admits(HOUR, key("a"), minutes(600), Sequence(1)));
        assert!(!throttle.admits(HOUR, key("a"), minutes(590), Sequence(2)));
        assert!(throttle.admits(HOUR, key("a"), minutes(500), Sequence(3)));
        assert!(!throttle.admits(HOUR, key("a"), minutes(510), Sequence(4)));
    }

    #[test]
    fn number_of_keys_is_bounded() {
        let mut throttle = Throttle::default();
        let keys = 2 * KEYS_MAX as u64;
        for n in 0..keys {
            let admitted = throttle.admits(HOUR, key(&n.to_string()), n.cast_signed(), Sequence(n));
            assert!(admitted && throttle.passed.len() <= KEYS_MAX);
        }
        assert_eq!(throttle.forgotten + throttle.passed.len() as u64, keys);
        let newest = key(&(keys - 1).to_string());
        assert!(!throttle.admits(HOUR, newest, keys.cast_signed(), Sequence(keys)), "the newest keys are known");
        // Keys whose period is over make room first.
        let late = throttle.admits(HOUR, key("late"), minutes(600), Sequence(keys + 1));
        assert!(late && throttle.passed.len() <= KEYS_MAX);
    }

    #[test]
    fn parts_of_keys_do_not_run_together() {
        assert_ne!(ThrottleKey::of(&["ab", "c"]), ThrottleKey::of(&["a", "bc"]));
        assert_eq!(ThrottleKey::of(&["ab", "c"]), ThrottleKey::of(&["ab", "c"]));
    }
}
