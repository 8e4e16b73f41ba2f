//! Misbehaviour on demand: which requests are treated badly, how, and how often.
//!
//! [`Faults`] and [`StreamPlan`] decide what goes wrong. The server does it.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use globset::{Glob, GlobMatcher};

use super::{
    random::Random,
    rights::{Area, Attempt, Refusal},
};
use crate::mutex::lock;

/// Which kind of request a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Lists of a collection.
    List,
    /// Watches.
    Watch,
    /// Every request.
    Any,
}

/// How often a fault strikes, of the requests that its path and verb select.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// The next `n` requests.
    Next(u32),
    /// After `skip` requests, the next `n`.
    After {
        /// Requests that pass unharmed.
        skip: u32,
        /// Requests struck after them.
        n: u32,
    },
    /// Each with this probability, by the schedule's seed.
    Chance(f64),
    /// Until cleared.
    Always,
}

/// One way to misbehave.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerFault {
    /// Close the connection without an answer.
    Close,
    /// Reset the connection (RST) without an answer.
    Reset,
    /// Take the request and answer nothing, for ever.
    Stall,
    /// Wait before the headers.
    Delay(Duration),
    /// Answer with an error Status of this code.
    Status {
        /// HTTP status: 401, 403, 404, 410, 429, 500, 503 and so on.
        code: u16,
        /// Seconds of the `Retry-After` header.
        retry_after: Option<u32>,
    },
    /// Answer a list with a `Table`, or put a `Table` into the first watch event.
    Table,
    /// Answer a list with another kind's list.
    WrongList,
    /// Answer a list with no objects, at the present version; the initial events of a watch likewise.
    EmptyList,
    /// Answer a list with the state of so many versions ago, whatever version it asks for, as a replica that lags behind
    /// and does not wait; the initial events of a watch likewise. Who asks for the most recent state gets it.
    Lag(u64),
    /// Break the body off after this many bytes, without the end that HTTP asks for.
    CutAfterBytes(u64),
    /// As [`ServerFault::CutAfterBytes`], with a reset.
    ResetAfterBytes(u64),
    /// In a watch: wait before every event.
    DelayEvents(Duration),
    /// In a watch: send no bookmarks but the one that ends the initial events.
    NoBookmarks,
    /// In a watch: never send the bookmark that ends the initial events.
    NoMarker,
    /// In a watch: do `what` once `events` events were sent; 0 strikes right after the headers.
    At {
        /// Events sent before; bookmarks do not count.
        events: u64,
        /// What happens then.
        what: StreamFault,
    },
}

/// What can happen in the middle of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The stream ends as it should.
    End,
    /// The connection closes without the end that HTTP asks for.
    Cut,
    /// The connection is reset (RST).
    Reset,
    /// Nothing more comes.
    Stall,
    /// Half of the next frame, then the end of the stream.
    Truncate,
    /// An ERROR event with a Status of this code (410, 429, 500 …), then the end.
    Error(u16),
    /// A frame that is not JSON, put between two events.
    Malformed,
    /// A frame without its end, but with its line break, put between two events.
    Unclosed,
    /// An event of a foreign kind, put between two events.
    WrongKind,
    /// An event that carries a Table, put between two events.
    Table,
    /// A bookmark padded to this many bytes, put between two events.
    LongFrame(usize),
    /// This many events are not sent, though the version moves on.
    Gap(u64),
}

/// A fault with the requests it is for.
#[derive(Debug)]
struct Rule {
    path: GlobMatcher,
    verb: RequestKind,
    times: Times,
    fault: ServerFault,
    struck: u64,
}

/// What shall be done with the next event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send it.
    Send,
    /// Do not send it; the version moves on.
    Skip,
    /// Do this first; where the stream goes on, ask again.
    Do(StreamFault),
}

/// The faults of one watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StreamPlan {
    pending: Vec<(u64, StreamFault)>,
    sent: u64,
    gap: u64,
    /// Wait before every event.
    pub(super) delay: Option<Duration>,
    pub(super) no_bookmarks: bool,
    pub(super) no_marker: bool,
    /// No initial events.
    pub(super) empty: bool,
    /// Versions that the initial events are behind.
    pub(super) lag: u64,
}

impl StreamPlan {
    /// Takes what concerns a stream from the faults of a request.
    pub(super) fn of(faults: &[ServerFault]) -> Self {
        let mut plan = Self::default();
        for fault in faults {
            match fault {
                ServerFault::At { events, what } => plan.pending.push((*events, *what)),
                ServerFault::Table => plan.pending.push((0, StreamFault::Table)),
                ServerFault::WrongList => plan.pending.push((0, StreamFault::WrongKind)),
                ServerFault::DelayEvents(delay) => plan.delay = Some(*delay),
                ServerFault::NoBookmarks => plan.no_bookmarks = true,
                ServerFault::NoMarker => plan.no_marker = true,
                ServerFault::EmptyList => plan.empty = true,
                ServerFault::Lag(versions) => plan.lag = *versions,
                _ => {}
            }
        }
        plan
    }

    /// Returns whether events have to be looked at one by one.
    pub(super) fn is_active(&self) -> bool {
        !self.pending.is_empty() || self.gap > 0 || self.delay.is_some()
    }

    /// Returns the fault that is due now, if any, and forgets it.
    pub(super) fn due(&mut self) -> Option<StreamFault> {
        let at =
            self.pending.iter().position(|(events, what)| *events <= self.sent && *what != StreamFault::Truncate)?;
        let (_, what) = self.pending.remove(at);
        if let StreamFault::Gap(events) = what {
            self.gap += events;
            return self.due();
        }
        Some(what)
    }

    /// Decides on the next event.
    pub(super) fn next_event(&mut self) -> Next {
        if let Some(what) = self.due() {
            return Next::Do(what);
        }
        if self.gap > 0 {
            self.gap -= 1;
            return Next::Skip;
        }
        if self.pending.iter().any(|(events, _)| *events <= self.sent) {
            return Next::Do(StreamFault::Truncate);
        }
        self.sent += 1;
        Next::Send
    }
}

/// The faults of a running server, to be switched from any thread.
#[derive(Debug)]
pub struct Faults(Mutex<State>);

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    random: Random,
    refusals: Vec<Refusal>,
}

impl Faults {
    /// Makes faults of which none is in force; `seed` decides the chances.
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(State { rules: Vec::new(), random: Random::new(seed), refusals: Vec::new() }))
    }

    /// Adds a fault for paths that match the glob `path` (`*` also matches `/`, so `"*"` is every path).
    ///
    /// A request is struck by every fault that selects it; of two answers the one added first is given.
    pub fn add(&self, path: &str, verb: RequestKind, times: Times, fault: ServerFault) -> Result<(), globset::Error> {
        let path = Glob::new(path)?.compile_matcher();
        self.lock().rules.push(Rule { path, verb, times, fault, struck: 0 });
        Ok(())
    }

    /// Refuses requests for want of rights: 403, and `SelfSubjectAccessReview`s say the same.
    ///
    /// `verb` is RBAC's (`list`, `watch`, `get` …, `*`), `resource` kubectl's (`pods`, `deployments.apps`, `*.apps`, `*`).
    /// Open watches go on, and discovery still tells of the type, as on a real server.
    pub fn forbid(&self, verb: &str, resource: &str, area: Area) {
        self.lock().refusals.push(Refusal::new(verb, resource, area));
    }

    /// Takes back a [`Faults::forbid`] with the same arguments.
    pub fn allow(&self, verb: &str, resource: &str, area: &Area) {
        let allowed = Refusal::new(verb, resource, area.clone());
        self.lock().refusals.retain(|refusal| *refusal != allowed);
    }

    /// Removes all faults, and allows everything. Requests already struck stay so.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.rules.clear();
        state.refusals.clear();
    }

    /// Returns how many times the present faults have struck.
    pub fn struck(&self) -> u64 {
        self.lock().rules.iter().map(|rule| rule.struck).sum()
    }

    /// Returns the faults that strike this request, in the order they were added.
    pub(super) fn decide(&self, path: &str, verb: RequestKind) -> Vec<ServerFault> {
        let State { rules, random, .. } = &mut *self.lock();
        let mut faults = Vec::new();
        for rule in rules {
            if !(rule.verb == RequestKind::Any || rule.verb == verb) || !rule.path.is_match(path) {
                continue;
            }
            let strikes = match &mut rule.times {
                Times::Always => true,
                Times::Chance(probability) => random.chance(*probability),
                Times::After { skip, .. } if *skip > 0 => {
                    *skip -= 1;
                    false
                }
                Times::Next(n) | Times::After { n, .. } => {
                    let left = *n > 0;
                    *n = n.saturating_sub(1);
                    left
                }
            };
            if strikes {
                rule.struck += 1;
                faults.push(rule.fault.clone());
            }
        }
        faults
    }

    pub(super) fn allows(&self, attempt: Attempt<'_>) -> bool {
        !self.lock().refusals.iter().any(|refusal| refusal.concerns(attempt))
    }

    /// Returns whether anything at all is forbidden.
    pub(super) fn is_restricted(&self) -> bool {
        !self.lock().refusals.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_its_path_and_verb_as_often_as_asked() {
        let schedule = Faults::new(1);
        schedule.add("*/pods", RequestKind::List, Times::After { skip: 1, n: 2 }, ServerFault::Close).unwrap();
        let path = "/api/v1/namespaces/default/pods";
        assert!(schedule.decide(path, RequestKind::Watch).is_empty());
        assert!(schedule.decide("/api/v1/nodes", RequestKind::List).is_empty());
        let struck: Vec<_> = (0..5).map(|_| schedule.decide(path, RequestKind::List).len()).collect();
        assert_eq!(struck, [0, 1, 1, 0, 0]);
        assert_eq!(schedule.struck(), 2);
    }

    #[test]
    fn chances_repeat_with_their_seed() {
        let run = || {
            let schedule = Faults::new(7);
            schedule.add("*", RequestKind::Any, Times::Chance(0.3), ServerFault::Reset).unwrap();
            (0..1000).map(|_| schedule.decide("/api", RequestKind::Any).len()).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
        let struck: usize = run().iter().sum();
        assert!((200..400).contains(&struck), "{struck}");
    }

    #[test]
    fn a_stream_plan_acts_between_the_events_it_names() {
        let at = |events, what| ServerFault::At { events, what };
        let mut plan = StreamPlan::of(&[at(1, StreamFault::Gap(2)), at(2, StreamFault::Truncate)]);
        let steps: Vec<_> = (0..5).map(|_| plan.next_event()).collect();
        assert_eq!(steps, [Next::Send, Next::Skip, Next::Skip, Next::Send, Next::Do(StreamFault::Truncate)]);
        let mut plan = StreamPlan::of(&[at(0, StreamFault::End)]);
        assert_eq!(plan.due(), Some(StreamFault::End));
    }
}
