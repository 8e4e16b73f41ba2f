//! The age of one watch stream: what makes it short, late or stalled (R-42, R-44, D-1, D-6).

use std::time::Duration;

use crate::object::ResourceVersion;

/// A stream that ends sooner, and without an event, is *very short* (R-44); one that ends sooner at all is not reopened
/// at once (D-1).
const SHORT: Duration = Duration::from_secs(1);

/// A healthy server sends a bookmark within about a minute; one that was silent for so long is asked for its version.
const SILENT: Duration = Duration::from_secs(90);

/// One watch, from the request to its end.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// The version of the request.
    pub(super) requested: ResourceVersion,
    /// When the request was given out.
    pub(super) sent_at: Duration,
    /// When the server had answered.
    pub(super) opened_at: Option<Duration>,
    /// When the last accepted event came, if there was one.
    pub(super) heard_at: Option<Duration>,
    /// Accepted events, bookmarks included.
    pub(super) accepted: u64,
    /// Versions of events do not count yet: they come in no order.
    pub(super) unordered: bool,
    /// It has shown an event, or a bookmark that was not refused: the server is as new as what was asked for.
    pub(super) vouched: bool,
    /// The server's own end of it, and the grace on top (D-6).
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

    /// Returns when the server should have ended it.
    pub(super) fn ends_at(&self) -> Duration {
        self.began_at().saturating_add(self.lifetime)
    }

    /// Returns when it was opened, or asked for.
    pub(super) fn began_at(&self) -> Duration {
        self.opened_at.unwrap_or(self.sent_at)
    }

    /// Returns when the last sign of life came.
    pub(super) fn alive_at(&self) -> Duration {
        self.heard_at.unwrap_or_else(|| self.began_at())
    }

    /// Returns whether it was too quick to be followed by another at once (D-1).
    pub(super) fn is_quick(&self, now: Duration) -> bool {
        now.saturating_sub(self.sent_at) < SHORT
    }

    /// Returns whether it was *very short* (R-44).
    pub(super) fn is_short(&self, now: Duration) -> bool {
        self.is_quick(now) && self.accepted == 0
    }

    /// Returns whether it was open for so long, and said so little, that the server may be older than what was asked for.
    pub(super) fn is_suspicious(&self, now: Duration) -> bool {
        !self.vouched && self.opened_at.is_some_and(|at| now.saturating_sub(at) >= SILENT)
    }

    /// Notes accepted events.
    pub(super) fn accept(&mut self, events: u64, now: Duration) {
        if events > 0 {
            self.accepted += events;
            self.heard_at = Some(now);
        }
    }
}

/// Returns whether a watch from `version` continues where another ended: neither unset nor `"0"`.
pub(super) fn is_usable(version: &ResourceVersion) -> bool {
    !version.is_unset() && !version.is_any()
}
