//! Times of one watch stream. They show whether a stream was short, is suspiciously silent, or is overdue (R-42, R-44, D-1, D-6).

use std::time::Duration;

use crate::object::ResourceVersion;

/// Minimum age of a normal stream. A younger one is not reopened at once (D-1). If it also had no event, it is
/// *very short* (R-44).
const SHORT: Duration = Duration::from_secs(1);

/// Longest plausible silence: a healthy server sends a bookmark about once a minute. After a longer silence, a check requests
/// the server's version.
const SILENT: Duration = Duration::from_secs(90);

/// One watch, from its request to its end.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Version in the request.
    pub(super) requested: ResourceVersion,
    /// Time of the request.
    pub(super) sent_at: Duration,
    /// Time of the server's answer; `None` before the answer.
    pub(super) opened_at: Option<Duration>,
    /// Time of the last accepted event; `None` before the first.
    pub(super) heard_at: Option<Duration>,
    /// Number of accepted events, bookmarks included.
    pub(super) accepted: u64,
    /// Set while the events come in no order, so that their versions are ignored.
    pub(super) unordered: bool,
    /// Set when the stream has sent an event or an accepted bookmark. The server is then not older than the requested version.
    pub(super) vouched: bool,
    /// Duration after which the server ends the stream, plus the grace period (D-6).
    lifetime: Duration,
}

impl Stream {
    pub(super) fn new(requested: ResourceVersion, now: Duration, lifetime: Duration) -> Self {
        let unordered = !is_usable(&requested);
        Self {
            requested,
            sent_at: now,
            opened_at: None,
            heard_at: None,
            accepted: 0,
            unordered,
            vouched: false,
            lifetime,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.opened_at.is_some()
    }

    /// Returns the time by which the server should have ended the stream.
    pub(super) fn ends_at(&self) -> Duration {
        self.began_at().saturating_add(self.lifetime)
    }

    /// Returns the time at which the stream was opened. If it is not open yet, returns the time of the request.
    pub(super) fn began_at(&self) -> Duration {
        self.opened_at.unwrap_or(self.sent_at)
    }

    /// Returns the time of the last accepted event; before the first event, `began_at`.
    pub(super) fn alive_at(&self) -> Duration {
        self.heard_at.unwrap_or_else(|| self.began_at())
    }

    /// Returns true if the stream is younger than `SHORT`. The next stream must then not follow at once (D-1).
    pub(super) fn is_quick(&self, now: Duration) -> bool {
        now.saturating_sub(self.sent_at) < SHORT
    }

    /// Returns true if the stream was *very short* (R-44).
    pub(super) fn is_short(&self, now: Duration) -> bool {
        self.is_quick(now) && self.accepted == 0
    }

    /// Returns true if the stream is open for at least `SILENT`, and `vouched` is not set. The server may then be older than the
    /// requested version.
    pub(super) fn is_suspicious(&self, now: Duration) -> bool {
        !self.vouched && self.opened_at.is_some_and(|at| now.saturating_sub(at) >= SILENT)
    }

    /// Records accepted events.
    pub(super) fn accept(&mut self, events: u64, now: Duration) {
        if events > 0 {
            self.accepted += events;
            self.heard_at = Some(now);
        }
    }
}

/// Returns true if a watch can resume from `version`: it is neither unset nor `"0"`.
pub(super) fn is_usable(version: &ResourceVersion) -> bool {
    !version.is_unset() && !version.is_any()
}
