//! Streams of events for clients: `/v1/events`, `deltabus tail`.
//!
//! ```text
//! journal ─one reader─▶ feed ─▶ Ring (each event once, encoded once) ─▶ one Cursor per subscriber ─▶ frames
//! store ───pages, if a cursor is older than the ring──────────────▶
//! caches ──existing objects, on request──────────────────────▶
//! ```
//!
//! [`Ring`](ring::Ring) holds the newest events for all subscribers. [`SubscriberCursor`](cursor::SubscriberCursor) chooses the
//! next step of one subscriber, [`SubscriberFilter`](filter::SubscriberFilter) selects the events that it wants. [`query`] parses
//! the request of a subscriber, [`frame`] formats the output. All of these are pure. [`judge`] evaluates expressions on its own
//! thread, and shares the time of this thread between the clients. [`Hub`](hub::Hub) feeds the ring and keeps the counters.
//! [`Subscriber`](subscriber::Subscriber) returns the frames.
//!
//! **Invariants:** a slow or blocked subscriber only occupies one of the allowed connections; it delays nothing. Events that a
//! subscriber misses are reported to it as a gap ([`StreamGap`](gap::StreamGap)); none is skipped silently (E6). Without a
//! subscriber, nothing is encoded. A few minutes after the last subscriber has left, the journal is no longer read.

pub(crate) mod cursor;
mod fair_queue;
mod feed;
pub(crate) mod filter;
pub(crate) mod frame;
pub(crate) mod gap;
pub(crate) mod hub;
pub(crate) mod judge;
pub(crate) mod query;
pub(crate) mod replay;
pub(crate) mod ring;
pub(crate) mod subscriber;

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    journal::{Bounds, WhenFull},
    text::Text,
};

/// Streams of events over HTTP: `/v1/events`.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "Subscribe")]
pub struct SubscribeOptions {
    /// Maximum number of concurrent subscribers; more are refused with 429.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub max_subscribers: u32,
    /// Set if CEL expressions of clients (`when`) are evaluated. If not, a request with `when` is answered with 403.
    #[educe(Default = true)]
    pub when: bool,
    /// Maximum time without output on a stream. At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(15))]
    pub heartbeat: Duration,
    /// Number of events kept in memory for all subscribers together. A subscriber that is further behind reads older
    /// events from `[state] dir`. Without this directory it receives a gap.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub buffer_events: u32,
    /// Approximate maximum size of the events in memory, encoded forms included.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub buffer_bytes: u64,
}

impl SubscribeOptions {
    /// Returns the limits of the events kept for all subscribers. Above them, the oldest events are dropped. Events are not merged,
    /// because a merged event would differ from the actual events.
    fn bounds(&self) -> Bounds {
        Bounds {
            max_events: self.buffer_events.max(1) as usize,
            max_bytes: usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX),
            when_full: WhenFull::DropOldest,
        }
    }
}

/// Counters of all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeCounts {
    /// Current number of subscribers.
    pub subscribers: u64,
    /// Events sent, counted once per subscriber.
    pub events: u64,
    /// Gaps reported to subscribers.
    pub gaps: u64,
    /// Subscribers refused because the maximum was reached.
    pub refused: u64,
}
