//! Fault injection for tests: which requests get which faults, and how often.
//!
//! [`Faults`] and [`StreamPlan`] decide on the faults. A layer around the server executes them.

use std::{sync::Mutex, time::Duration};

use globset::{Glob, GlobMatcher};

use super::{
    rights::{Area, Attempt, Refusal},
    server::RequestKind,
};
use crate::mutex::lock;

/// Selection among the requests that match the path and the verb of a fault. The selected requests get the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The next `n` requests.
    Next(u32),
    /// The next `n` requests after the first `skip` requests.
    After {
        /// Number of requests that first pass without the fault.
        skip: u32,
        /// Number of requests that then get the fault.
        n: u32,
    },
    /// All requests until the faults are cleared.
    Always,
}

/// One kind of misbehaviour.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerFault {
    /// Close the connection without an answer.
    Close,
    /// Reset the connection (RST) without an answer.
    Reset,
    /// Accept the request and never answer.
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
    /// Answer a list request with a `Table`, or start a watch with an event that contains a `Table`.
    Table,
    /// Answer a list request with a list of another kind, or start a watch with an event of another kind.
    WrongList,
    /// Answer a list request with an empty list at the current version, or start a watch without initial events.
    EmptyList,
    /// Answer a list, or begin a watch, with an older state: the state this many versions before the current one. The server acts
    /// like a lagging replica that does not wait for the requested version. Requests without a version are not affected.
    Lag(u64),
    /// Cut the body off after this many bytes, without the end that HTTP requires.
    CutAfterBytes(u64),
    /// Like [`ServerFault::CutAfterBytes`], but reset the connection (RST).
    ResetAfterBytes(u64),
    /// Never send the bookmark that ends the initial events of a watch.
    NoMarker,
    /// Execute the fault `what` in a watch that has sent `events` events; 0 means right after the headers.
    At {
        /// Number of events that the watch sends before the fault; bookmarks do not count.
        events: u64,
        /// Fault to execute.
        what: StreamFault,
    },
}

/// A fault in the middle of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The stream ends normally.
    End,
    /// The connection closes without the end that HTTP requires.
    Cut,
    /// The connection is reset (RST).
    Reset,
    /// The stream becomes silent.
    Stall,
    /// Half of the next frame, then the end of the stream.
    Truncate,
    /// An ERROR event with a Status of this code (410, 429, 500 …), then the end.
    Error(u16),
    /// A frame that is not JSON, inserted between two events.
    Malformed,
    /// An incomplete frame that ends with a line break, inserted between two events.
    Unclosed,
    /// An event of another kind, inserted between two events.
    WrongKind,
    /// An event with a `Table`, inserted between two events.
    Table,
    /// A bookmark padded to this many bytes, inserted between two events.
    LongFrame(usize),
    /// The stream omits this number of events, and continues with the events after them.
    Gap(u64),
}

/// A fault with the requests to which it applies.
#[derive(Debug)]
struct Rule {
    path: GlobMatcher,
    verb: RequestKind,
    times: Times,
    fault: ServerFault,
}

/// Action for the next event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Send the event.
    Send,
    /// Do not send the event: the client misses it.
    Skip,
    /// Execute this fault before the event. If the stream continues after the fault, ask again for the same event.
    Do(StreamFault),
}

/// The faults of one watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct StreamPlan {
    pending: Vec<(u64, StreamFault)>,
    sent: u64,
    gap: u64,
    pub(super) no_marker: bool,
    /// Set to send no initial events.
    pub(super) empty: bool,
}

impl StreamPlan {
    /// Extracts the stream faults from the faults of a request.
    pub(super) fn of(faults: &[ServerFault]) -> Self {
        let mut plan = Self::default();
        for fault in faults {
            match fault {
                ServerFault::At { events, what } => plan.pending.push((*events, *what)),
                ServerFault::Table => plan.pending.push((0, StreamFault::Table)),
                ServerFault::WrongList => plan.pending.push((0, StreamFault::WrongKind)),
                ServerFault::NoMarker => plan.no_marker = true,
                ServerFault::EmptyList => plan.empty = true,
                _ => {}
            }
        }
        plan
    }

    /// Removes and returns the next due fault.
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

    /// Decides the action for the next event.
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

/// Faults of a running server; they can be changed from any thread.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    refusals: Mutex<Vec<Refusal>>,
}

impl Faults {
    /// Adds a fault for paths that match the glob `path` (`*` also matches `/`, so `"*"` is every path).
    ///
    /// All matching faults apply to a request; if two define the answer, the first one added wins.
    pub fn add(&self, path: &str, verb: RequestKind, times: Times, fault: ServerFault) -> Result<(), globset::Error> {
        let path = Glob::new(path)?.compile_matcher();
        lock(&self.rules).push(Rule { path, verb, times, fault });
        Ok(())
    }

    /// Answers the matching requests with 403. `SelfSubjectAccessReview`s report the right as missing too.
    ///
    /// `verb` is a verb of RBAC (`list`, `watch`, `get` …, `*`). `resource` is a name as in kubectl (`pods`, `deployments.apps`,
    /// `*.apps`, `*`). As on a real server, open watches continue, and discovery still lists the type.
    pub fn forbid(&self, verb: &str, resource: &str, area: Area) {
        lock(&self.refusals).push(Refusal::new(verb, resource, area));
    }

    /// Reverts a [`Faults::forbid`] with the same arguments.
    pub fn allow(&self, verb: &str, resource: &str, area: &Area) {
        let allowed = Refusal::new(verb, resource, area.clone());
        lock(&self.refusals).retain(|refusal| *refusal != allowed);
    }

    /// Removes all faults, and allows everything. Requests in progress keep their faults.
    pub fn clear(&self) {
        lock(&self.rules).clear();
        lock(&self.refusals).clear();
    }

    /// Returns the faults for this request, in the order in which they were added.
    pub(super) fn decide(&self, path: &str, verb: RequestKind) -> Vec<ServerFault> {
        let mut faults = Vec::new();
        for rule in lock(&self.rules).iter_mut() {
            if !(rule.verb == RequestKind::Any || rule.verb == verb) || !rule.path.is_match(path) {
                continue;
            }
            let strikes = match &mut rule.times {
                Times::Always => true,
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
                faults.push(rule.fault.clone());
            }
        }
        faults
    }

    pub(super) fn allows(&self, attempt: Attempt<'_>) -> bool {
        !lock(&self.refusals).iter().any(|refusal| refusal.concerns(attempt))
    }

    /// Returns true if any request is forbidden.
    pub(super) fn is_restricted(&self) -> bool {
        !lock(&self.refusals).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_strikes_its_path_and_verb_as_scheduled() {
        let schedule = Faults::default();
        schedule.add("*/pods", RequestKind::List, Times::After { skip: 1, n: 2 }, ServerFault::Close).unwrap();
        let path = "/api/v1/namespaces/default/pods";
        assert!(schedule.decide(path, RequestKind::Watch).is_empty());
        assert!(schedule.decide("/api/v1/nodes", RequestKind::List).is_empty());
        let struck: Vec<_> = (0..5).map(|_| schedule.decide(path, RequestKind::List).len()).collect();
        assert_eq!(struck, [0, 1, 1, 0, 0]);
    }

    #[test]
    fn stream_plan_acts_between_named_events() {
        let at = |events, what| ServerFault::At { events, what };
        let mut plan = StreamPlan::of(&[at(1, StreamFault::Gap(2)), at(2, StreamFault::Truncate)]);
        let steps: Vec<_> = (0..5).map(|_| plan.next_event()).collect();
        assert_eq!(steps, [Next::Send, Next::Skip, Next::Skip, Next::Send, Next::Do(StreamFault::Truncate)]);
        let mut plan = StreamPlan::of(&[at(0, StreamFault::End)]);
        assert_eq!(plan.due(), Some(StreamFault::End));
    }
}
