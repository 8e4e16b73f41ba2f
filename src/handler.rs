//! The traits of handlers: a [`Handler`] delivers one batch at a time, an [`AsyncHandler`] several.
//!
//! [`delivery`](crate::delivery) calls them. The files of this folder are the built-in sinks.

pub(crate) mod client_tls;
pub(crate) mod exec;
pub(crate) mod file;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod replaced;
pub(crate) mod stdout;
mod template;
pub(crate) mod webhook;

use std::time::Duration;

use futures_util::future::BoxFuture;

pub use crate::cloud_event::Form;
use crate::{cloud_event::FormatError, notification::Notification};

/// Maximum capacity of the buffer that is kept after a batch, in bytes.
const BUFFER_KEPT_MAX: usize = 4 << 20;

/// A sink of events. Its methods may block, because each handler has its own thread. A handler that never blocks can also run
/// without a thread of its own (`Sink::InPlace`).
///
/// Any closure `FnMut(&Notification) -> Result<(), HandlerError>` is a handler.
pub(crate) trait Handler: Send + 'static {
    /// Delivers a batch. `Ok` means: stored as safely as this sink promises. After `Ok` and a clean stop, the batch is not sent
    /// again. After an error, a panic or a crash, the whole batch may be sent again (E4: at least once).
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError>;

    /// Returns the interval between two calls of [`Handler::tick`]; `None`: `tick` is never called.
    fn tick_interval(&self) -> Option<Duration> {
        None
    }

    /// Does periodic work, for example an fsync.
    fn tick(&mut self) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Flushes and syncs all delivered events. It is the last call.
    fn close(&mut self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<F: FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static> Handler for F {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        self(notification)
    }
}

/// A handler that never blocks its thread. Several of its batches may be in delivery at the same time. The engine
/// cancels a delivery by dropping its future.
///
/// Events of one object are never in two batches that are in delivery at the same time, unless `order` is `none`.
pub trait AsyncHandler: Send + Sync + 'static {
    /// Delivers a batch in the given form. The promises of `Handler::deliver` hold here too.
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Closes open connections. It is the last call.
    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Reason why a batch was not delivered. The variant decides whether the batch is retried, split or given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// Temporary failure: retried with backoff.
    #[error("{0}")]
    Failed(String),
    /// Temporary failure; the sink asked for a delay.
    #[error("{reason}; the sink asked to retry in {retry_after:?}")]
    Busy {
        /// Message of the sink.
        reason: String,
        /// Delay that the sink asked for.
        retry_after: Duration,
    },
    /// The message is too large for the sink. The batch is halved until one event is left. An [`AsyncHandler`] then gets this event
    /// in smaller [`Form`]s. If all forms are too large, the event is dead-lettered.
    #[error("{0}")]
    TooLarge(String),
    /// The sink will never accept one of these events. That event is found by halving the batch, then dead-lettered.
    #[error("{0}")]
    Rejected(String),
    /// The sink is closed for good. The handler stops; the engine keeps running.
    #[error("{0}")]
    Closed(String),
}

impl From<FormatError> for HandlerError {
    /// Turns `NoSmaller` into `TooLarge`, and any other error into `Rejected`, because a second encoding would fail too.
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::NoSmaller(_) => Self::TooLarge(error.to_string()),
            _ => Self::Rejected(error.to_string()),
        }
    }
}
