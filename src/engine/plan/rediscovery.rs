//! Times at which the server is asked again for the types that it serves.
//!
//! - after a failed request: with backoff
//! - after a CRD was added or deleted: at growing intervals, until the answer agrees with the CRD
//! - after a 404 to a unit: at growing intervals, until the answer lacks the unit's version, or the unit works again
//! - after a change of a CRD for which a pattern may wait: some times at growing intervals
//! - if a running type is missing from an answer: after one second
//! - if a pattern matches no type, and CRDs cannot be watched or an API group did not answer: every ten seconds
//! - otherwise: about every two minutes, for aggregated APIs

use std::{collections::BTreeMap, time::Duration};

use super::TypeName;
use crate::backoff::{Backoff, BackoffConfig};

/// First and longest interval between requests after a CRD was added or deleted.
const CHASE_MIN: Duration = Duration::from_millis(100);
const CHASE_MAX: Duration = Duration::from_secs(10);
/// Time limit for repeating the request if the answers disagree with [`Expected`].
const CHASE_LONGEST: Duration = Duration::from_mins(2);
/// Time for which the request is repeated after [`Expected::Changed`].
const CHANGE_LONGEST: Duration = Duration::from_secs(10);
/// Delay before the second request if a running type is missing.
const DOUBT: Duration = Duration::from_secs(1);
/// Interval of requests while a pattern matches no type, if CRDs cannot be watched or an API group did not answer.
const WAITING: Duration = Duration::from_secs(10);
/// Shortest regular interval between requests. A random part of up to half of it is added.
const REGULAR: Duration = Duration::from_mins(2);

/// Expected answer about a type. The request is repeated until the answer agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The type is served: its CRD was added.
    Served,
    /// The type is not served: its CRD was deleted.
    Gone,
    /// The type is not served in the version of a unit: the server answered 404 to this unit.
    Moved,
    /// The type may have other versions: its CRD was changed. Agrees with no answer, because the new versions are not known.
    Changed,
}

/// Facts that decide how soon the next request is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Set if a running type is missing, perhaps by mistake.
    pub doubtful: bool,
    /// Set if a pattern matches no type, and CRDs are not watched or an API group did not answer.
    pub waiting_blindly: bool,
    /// Set for `[kube] rediscover = "never"`: the types of the start are final.
    pub never_again: bool,
}

/// Timetable of the requests. All times are from one clock.
#[derive(Debug)]
pub(crate) struct Rediscovery {
    backoff: Backoff,
    answered: bool,
    /// Expected answers, with the time until which the request is repeated.
    chased: BTreeMap<TypeName, (Expected, Duration)>,
    interval: Duration,
    next: Option<Duration>,
}

impl Rediscovery {
    /// Creates the timetable; the first request is due at once.
    pub(crate) fn new(backoff: BackoffConfig) -> Self {
        Self {
            backoff: Backoff::new(backoff),
            answered: false,
            chased: BTreeMap::new(),
            interval: CHASE_MIN,
            next: Some(Duration::ZERO),
        }
    }

    /// Returns the time of the next request, or `None` if none is planned.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.next
    }

    /// Schedules a request now, because the configuration has changed.
    pub(crate) fn ask_now(&mut self, now: Duration) {
        self.next = Some(now);
    }

    /// Schedules a request soon, because another answer than the last one is expected.
    pub(crate) fn expect(&mut self, name: TypeName, expected: Expected, now: Duration) {
        let longest = if expected == Expected::Changed { CHANGE_LONGEST } else { CHASE_LONGEST };
        if expected == Expected::Changed && self.chased.contains_key(&name) {
            return;
        }
        self.chased.insert(name, (expected, now + longest));
        self.interval = CHASE_MIN;
        if self.answered {
            let soon = now + self.interval;
            self.next = Some(self.next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// Schedules the next request after a failed one. Returns the delay; `random` is uniform in [0, 1).
    pub(crate) fn failed(&mut self, now: Duration, random: f64) -> Duration {
        let delay = self.backoff.fail(now, random);
        self.next = Some(now + delay);
        delay
    }

    /// Schedules the next request after an answer. `agrees` returns true if the answer is the expected one. `random` is uniform in
    /// [0, 1).
    pub(crate) fn answered(
        &mut self,
        agrees: impl Fn(&TypeName, Expected) -> bool,
        need: Need,
        now: Duration,
        random: f64,
    ) {
        self.answered = true;
        self.chased.retain(|name, (expected, until)| !agrees(name, *expected) && now < *until);
        let regular = (!need.never_again).then(|| REGULAR.mul_f64(1.0 + random / 2.0));
        let wants = [
            (!self.chased.is_empty()).then_some(self.interval),
            (need.doubtful && !need.never_again).then_some(DOUBT),
            (need.waiting_blindly && !need.never_again).then_some(WAITING),
            regular,
        ];
        self.next = wants.into_iter().flatten().min().map(|delay| now + delay);
        self.interval = if self.chased.is_empty() { CHASE_MIN } else { CHASE_MAX.min(self.interval * 2) };
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
        table.answered(|_, _| false, Need::default(), seconds(1), 0.0);
        table
    }

    #[test]
    fn unavailable_server_is_asked_again_with_backoff() {
        let mut table = Rediscovery::new(BackoffConfig::default());
        let first = table.failed(seconds(1), 0.0);
        let second = table.failed(seconds(3), 0.0);
        assert!(second > first && table.next() == Some(seconds(3) + second));
    }

    #[test]
    fn new_definition_is_looked_for_at_growing_intervals() {
        let mut table = answered_once();
        assert_eq!(table.next(), Some(seconds(121)));
        let mut now = seconds(10);
        table.expect(name("apples"), Expected::Served, now);
        let mut asked = Vec::new();
        while asked.len() < 9 {
            let next = table.next().unwrap();
            asked.push(next.saturating_sub(now).as_millis());
            now = next;
            table.answered(|_, _| false, Need::default(), now, 0.0);
        }
        assert_eq!(asked, [100, 100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        table.answered(|_, _| true, Need::default(), now, 0.5);
        assert_eq!(table.next(), Some(now + seconds(150)), "it is there");
        table.expect(name("apples"), Expected::Gone, now);
        assert_eq!(table.next(), Some(now + CHASE_MIN), "and goes");
        table.answered(|_, expected| expected == Expected::Gone, Need::default(), now, 0.0);
        assert_eq!(table.next(), Some(now + REGULAR));
    }

    #[test]
    fn persistent_disagreement_is_believed_eventually() {
        let mut table = answered_once();
        table.expect(name("apples"), Expected::Served, seconds(10));
        table.answered(|_, _| false, Need::default(), seconds(130), 0.0);
        assert_eq!(table.next(), Some(seconds(250)));
    }

    #[test]
    fn changed_definition_is_chased_for_ten_seconds() {
        let mut table = answered_once();
        let (mut asked, mut now) = (0, seconds(10));
        while now < seconds(10) + CHANGE_LONGEST {
            table.expect(name("apples"), Expected::Changed, now);
            now = table.next().unwrap();
            table.answered(|_, _| false, Need::default(), now, 0.0);
            asked += 1;
        }
        assert_eq!((asked, table.next()), (8, Some(now + REGULAR)), "a change in between begins nothing again");
        table.expect(name("apples"), Expected::Gone, now);
        table.expect(name("apples"), Expected::Changed, now);
        table.answered(|_, expected| expected == Expected::Gone, Need::default(), now, 0.0);
        assert_eq!(table.next(), Some(now + REGULAR), "what is known about the type stays expected");
    }

    #[test]
    fn doubtful_types_are_asked_for_sooner() {
        let next = |need: Need| {
            let mut table = answered_once();
            table.answered(|_, _| false, need, seconds(0), 0.0);
            table.next()
        };
        assert_eq!(next(Need { doubtful: true, waiting_blindly: true, never_again: false }), Some(DOUBT));
        assert_eq!(next(Need { waiting_blindly: true, ..Need::default() }), Some(WAITING));
        assert_eq!(next(Need { doubtful: true, waiting_blindly: true, never_again: true }), None);
    }
}
