//! `[subscribe]`: streams of events over HTTP.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::AsText;
use crate::subscribe::{SubscribeOptions, ring::RingBounds};

/// Streams of events over HTTP: `/v1/events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Subscribe {
    /// Subscribers at a time; more are refused with 429.
    #[schemars(range(min = 1))]
    pub max_subscribers: u32,
    /// CEL expressions that clients send (`when`) are evaluated. `false`: such a request is answered with 403.
    pub when: bool,
    /// How long a stream is silent at most. At least "1s".
    #[serde(with = "AsText::<Duration>")]
    pub heartbeat: Duration,
    /// Events that are kept in memory for all subscribers together: one that is further behind reads them from `[state] dir`,
    /// and without it is told that it misses some.
    #[schemars(range(min = 1))]
    pub buffer_events: u32,
    /// And how large these are at most, encoded forms included, about.
    #[serde(with = "AsText::<u64>")]
    pub buffer_bytes: u64,
}

impl Default for Subscribe {
    fn default() -> Self {
        Self {
            max_subscribers: 10_000,
            when: true,
            heartbeat: Duration::from_secs(15),
            buffer_events: 10_000,
            buffer_bytes: 64 << 20,
        }
    }
}

impl Subscribe {
    /// Returns how streams are served.
    pub fn options(&self) -> SubscribeOptions {
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        SubscribeOptions {
            max_subscribers: size(self.max_subscribers),
            heartbeat: self.heartbeat,
            when: self.when,
            bounds: RingBounds {
                max_events: size(self.buffer_events),
                max_bytes: usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX),
            },
        }
    }
}
