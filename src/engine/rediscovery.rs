//! When to ask the server again which types it serves.
//!
//! - until it has answered once: with backoff
//! - a CRD was seen to come or go: at growing intervals, until the answer agrees with what was seen
//! - a running type is missing: soon, a second time
//! - a pattern waits and no CRD can be watched: every ten seconds
//! - otherwise: every two minutes or so, for aggregated APIs

use std::{collections::BTreeMap, time::Duration};

use super::plan::TypeName;
use crate::backoff::{Backoff, BackoffConfig};

/// First and longest interval after a CRD was seen.
const CHASE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// How long an answer may disagree with what was seen of a CRD before it is believed.
const CHASE_LONGEST: Duration = Duration::from_mins(2);
/// How soon a missing type is looked for a second time.
const DOUBT: Duration = Duration::from_secs(1);
/// How often a missing type is looked for whose CRD cannot be seen to come.
const WAITING: Duration = Duration::from_secs(10);
/// How often is looked in any case, half of it more by chance.
const REGULAR: Duration = Duration::from_mins(2);

/// What is to be had from the next answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// A running type was missing, which may be a mistake.
    pub doubtful: bool,
    /// A pattern waits, and no CRD tells when its type comes.
    pub waiting_blindly: bool,
    /// `[kube] rediscover = "never"`: what was found at the start is all.
    pub never_again: bool,
}

/// The timetable. Times are on one clock.
#[derive(Debug)]
pub struct Rediscovery {
    backoff: Backoff,
    answered: bool,
    /// Types whose CRD was seen to come (`true`) or go, and until when that is believed against the answers.
    chased: BTreeMap<TypeName, (bool, Duration)>,
    interval: Duration,
    next: Option<Duration>,
}

impl Rediscovery {
    /// Begins: the server is to be asked at once.
    pub fn new(backoff: BackoffConfig) -> Self {
        Self {
            backoff: Backoff::new(backoff),
            answered: false,
            chased: BTreeMap::new(),
            interval: CHASE.0,
            next: Some(Duration::ZERO),
        }
    }

    /// Returns when to ask next; `None`: not by itself.
    pub fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Asks at once: the configuration has changed.
    pub fn ask_now(&mut self, now: Duration) {
        self.next = Some(now);
    }

    /// A CRD was seen: its type shall be served, or not any more.
    pub fn saw_definition(&mut self, name: TypeName, served: bool, now: Duration) {
        self.chased.insert(name, (served, now + CHASE_LONGEST));
        self.interval = CHASE.0;
        if self.answered {
            let soon = now + self.interval;
            self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// The server could not be asked. Returns how long to wait; `random` is uniform in [0, 1).
    pub fn failed(&mut self, now: Duration, random: f64) -> Duration {
        let delay = self.backoff.fail(now, random);
        self.next = Some(now + delay);
        delay
    }

    /// The server has answered; `serves` says what. `random` is uniform in [0, 1).
    pub fn answered(&mut self, serves: impl Fn(&TypeName) -> bool, need: Need, now: Duration, random: f64) {
        self.answered = true;
        self.chased.retain(|name, (served, until)| serves(name) != *served && now < *until);
        let regular = (!need.never_again).then(|| REGULAR.mul_f64(1.0 + random / 2.0));
        let wants = [
            (!self.chased.is_empty()).then_some(self.interval),
            (need.doubtful && !need.never_again).then_some(DOUBT),
            (need.waiting_blindly && !need.never_again).then_some(WAITING),
            regular,
        ];
        self.next = wants.into_iter().flatten().min().map(|delay| now + delay);
        self.interval = if self.chased.is_empty() { CHASE.0 } else { CHASE.1.min(self.interval * 2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(plural: &str) -> TypeName {
        TypeName { group: "acme.io".into(), plural: plural.into() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn answered_once() -> Rediscovery {
        let mut table = Rediscovery::new(BackoffConfig::default());
        assert_eq!(table.next(), Some(Duration::ZERO));
        table.answered(|_| false, Need::default(), seconds(1), 0.0);
        table
    }

    #[test]
    fn a_server_that_cannot_be_asked_is_asked_again_with_backoff() {
        let mut table = Rediscovery::new(BackoffConfig::default());
        let first = table.failed(seconds(1), 0.0);
        let second = table.failed(seconds(3), 0.0);
        assert!(second > first && table.next() == Some(seconds(3) + second));
    }

    #[test]
    fn a_definition_that_was_seen_is_looked_for_at_growing_intervals_until_it_is_there() {
        let mut table = answered_once();
        assert_eq!(table.next(), Some(seconds(121)));
        let mut now = seconds(10);
        table.saw_definition(name("apples"), true, now);
        let mut asked = Vec::new();
        while asked.len() < 9 {
            let next = table.next().unwrap();
            asked.push(next.saturating_sub(now).as_millis());
            now = next;
            table.answered(|_| false, Need::default(), now, 0.0);
        }
        assert_eq!(asked, [100, 100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        table.answered(|_| true, Need::default(), now, 0.5);
        assert_eq!(table.next(), Some(now + seconds(150)), "it is there");
        table.saw_definition(name("apples"), false, now);
        assert_eq!(table.next(), Some(now + CHASE.0), "and goes");
        table.answered(|_| false, Need::default(), now, 0.0);
        assert_eq!(table.next(), Some(now + REGULAR));
    }

    #[test]
    fn an_answer_that_never_agrees_is_believed_in_the_end() {
        let mut table = answered_once();
        table.saw_definition(name("apples"), true, seconds(10));
        table.answered(|_| false, Need::default(), seconds(130), 0.0);
        assert_eq!(table.next(), Some(seconds(250)));
    }

    #[test]
    fn what_is_doubtful_or_waited_for_is_asked_for_sooner_and_never_means_never() {
        let next = |need: Need| {
            let mut table = answered_once();
            table.answered(|_| false, need, seconds(0), 0.0);
            table.next()
        };
        assert_eq!(next(Need { doubtful: true, waiting_blindly: true, never_again: false }), Some(DOUBT));
        assert_eq!(next(Need { waiting_blindly: true, ..Need::default() }), Some(WAITING));
        assert_eq!(next(Need { doubtful: true, waiting_blindly: true, never_again: true }), None);
    }
}
