//! Streams of events for whoever asks: `/v1/events`, `deltabus tail`.
//!
//! ```text
//! journal ─one reader─▶ feed ─▶ Ring (each event once, encoded once) ─▶ Cursor a subscriber ─▶ frames
//! store ───pages, where a cursor is older than the ring──────────────▶
//! caches ──what exists, where that is asked for─────────────────────▶
//! ```
//!
//! [`Ring`](ring::Ring) holds the newest events for all, [`SubscriberCursor`](cursor::SubscriberCursor) says what one subscriber is due next,
//! [`SubscriberFilter`](filter::SubscriberFilter) which events it asked for, [`query`] reads what it asked, [`frame`] writes how it looks: all
//! pure. `judge` evaluates expressions, on its own thread. [`Hub`](hub::Hub) feeds the ring and counts, [`Subscriber`](subscriber::Subscriber) carries frames out.
//!
//! **Invariants:** a subscriber that is slow or stuck holds its place and nothing else; what it misses it is told
//! ([`StreamGap`](gap::StreamGap)), nothing is skipped in silence (I6). Without a subscriber nothing is encoded, and a few minutes
//! after the last one nothing is read.

pub mod cursor;
mod feed;
pub mod filter;
pub mod frame;
pub mod gap;
pub mod hub;
mod judge;
pub mod query;
pub mod replay;
pub mod ring;
pub mod subscriber;

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::Text;

/// Streams of events over HTTP: `/v1/events`.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(rename = "Subscribe")]
pub struct SubscribeOptions {
    /// Subscribers at a time; more are refused with 429.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub max_subscribers: u32,
    /// CEL expressions that clients send (`when`) are evaluated. `false`: such a request is answered with 403.
    #[educe(Default = true)]
    pub when: bool,
    /// How long a stream is silent at most. At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(15))]
    pub heartbeat: Duration,
    /// Events that are kept in memory for all subscribers together: one that is further behind reads them from `[state] dir`,
    /// and without it is told that it misses some.
    #[schemars(range(min = 1))]
    #[educe(Default = 10_000)]
    pub buffer_events: u32,
    /// And how large these are at most, encoded forms included, about.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 64 << 20)]
    pub buffer_bytes: u64,
}

impl SubscribeOptions {
    /// Returns how much is kept for all subscribers.
    fn bounds(&self) -> ring::RingBounds {
        ring::RingBounds {
            max_events: self.buffer_events as usize,
            max_bytes: usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX),
        }
    }
}

/// What there is to see of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeCounts {
    /// Subscribers now.
    pub subscribers: u64,
    /// Events sent, one to each subscriber is one.
    pub events: u64,
    /// Gaps that were told.
    pub gaps: u64,
    /// Subscribers refused because there were as many as may be.
    pub refused: u64,
}
