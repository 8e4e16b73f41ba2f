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

/// How streams are served; `[subscribe]` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// How many subscribers there may be at a time.
    pub max_subscribers: usize,
    /// How long nothing is sent at most.
    pub heartbeat: Duration,
    /// How much is kept for all of them.
    pub bounds: ring::RingBounds,
    /// Clients may send expressions (`when`).
    pub when: bool,
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
