//! Grouping of events into deliveries: their size, their number at a time, and their rate.

use std::time::Duration;

use super::OwnSink;
use crate::{
    config::{self, Batch, DeliveryOrder, HandlerDefaults},
    delivery::{
        pace::Rate,
        schedule::ScheduleOptions,
        worker::{Open, OpenAsync},
    },
    journal::Bounds,
};

/// Number of events that a handler holds in addition to the batches in delivery. While some objects wait for a retry,
/// it delivers the held events of other objects. Held events can no longer be coalesced.
const WINDOW_EVENTS: usize = 1_000;
/// Maximum bytes of bodies that a handler holds, or twice the largest batch if that is more.
const WINDOW_BYTES: usize = 16 << 20;

/// Options of grouping events into deliveries.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::engine) struct Pace {
    pub(in crate::engine) batch: Batch,
    pub(in crate::engine) order: DeliveryOrder,
    /// Maximum number of concurrent deliveries.
    pub(in crate::engine) concurrency: usize,
    /// Set if the sink stores the events of a batch side by side.
    distinct: bool,
    pub(in crate::engine) rate: Option<Rate>,
    /// Time limit for an attempt of a sink that waits for responses.
    pub(in crate::engine) timeout: Duration,
}

impl Pace {
    /// Returns the pace of a handler of the configuration.
    pub(in crate::engine) fn of(handler: &config::HandlerConfig) -> Self {
        let HandlerDefaults { order, timeout, .. } = handler.options;
        let concurrency = handler.concurrency() as usize;
        let distinct = match &handler.sink {
            config::SinkConfig::Nats(nats) => nats.jetstream.is_some(),
            sink => matches!(sink, config::SinkConfig::Kafka(_)),
        };
        Self { batch: handler.batch(), order, concurrency, distinct, rate: handler.rate_limit, timeout }
    }

    /// Returns the pace of a program's handler.
    pub(in crate::engine) fn own(sink: &OwnSink, options: &HandlerDefaults) -> Self {
        let HandlerDefaults { order, timeout, concurrency, .. } = *options;
        let is_concurrent = matches!(sink, OwnSink::Async(_)) && order != DeliveryOrder::Total;
        let concurrency = if is_concurrent { concurrency as usize } else { 1 };
        Self { batch: Batch::WHAT_WAITS, order, concurrency, distinct: false, rate: None, timeout }
    }

    /// Returns the opener of a handler that waits without blocking.
    pub(in crate::engine) fn opens(&self, open: OpenAsync) -> Open {
        Open::Async { open, concurrency: self.concurrency, timeout: self.timeout }
    }

    /// Returns the options of the schedule, within the limits of the buffer.
    pub(in crate::engine) fn schedule(&self, bounds: &Bounds) -> ScheduleOptions {
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let (batch_events, batch_bytes) = (size(self.batch.max_events), size(self.batch.max_bytes));
        let in_delivery = batch_events.saturating_mul(self.concurrency);
        ScheduleOptions {
            order: self.order,
            concurrency: self.concurrency,
            distinct: self.distinct,
            batch_events,
            batch_bytes,
            linger: self.batch.timeout,
            window_events: in_delivery.saturating_add(WINDOW_EVENTS).min(bounds.max_events),
            window_bytes: batch_bytes.saturating_mul(2).max(WINDOW_BYTES),
        }
    }
}
