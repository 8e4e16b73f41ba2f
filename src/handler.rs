//! The contract of a handler: a [`Handler`] takes a batch or fails, an [`AsyncHandler`] takes several at a time.
//!
//! [`delivery`](crate::delivery) calls them. The files here are the sinks.

pub mod blackhole;
pub mod client_tls;
pub mod exec;
pub mod file;
pub mod kafka;
pub(crate) mod left_behind;
pub mod nats;
pub mod stdout;
pub mod webhook;

use std::time::Duration;

use futures_util::future::BoxFuture;

pub use crate::cloud_event::Form;
use crate::{cloud_event::FormatError, notification::Notification};

/// Where events go. Its methods may block: each handler has a thread of its own, but for those that never do.
///
/// A closure `FnMut(&Notification) -> Result<(), HandlerError>` is one.
pub trait Handler: Send + 'static {
    /// Delivers a batch. `Ok` means: as safe as this sink promises, and never sent again after a clean stop. After an
    /// error, a panic or a crash all of it may be sent again (I4: at least once).
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError>;

    /// Returns how often [`Handler::tick`] shall be called between batches.
    fn tick_interval(&self) -> Option<Duration> {
        None
    }

    /// Does what is due by time: an fsync at an interval.
    fn tick(&mut self) -> Result<(), HandlerError> {
        Ok(())
    }

    /// Flushes and syncs everything delivered; nothing comes afterwards.
    fn close(&mut self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<F: FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static> Handler for F {
    fn deliver(&mut self, notification: &Notification) -> Result<(), HandlerError> {
        self(notification)
    }
}

/// A handler that waits without blocking. It may have several batches in delivery at a time, and is told of each when
/// to give up waiting by being dropped.
///
/// Events of one object are never in two of these batches, where `order` is not `none`.
pub trait AsyncHandler: Send + Sync + 'static {
    /// Delivers a batch, in a form: what [`Handler::deliver`] says holds here too.
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>>;

    /// Ends what is open; nothing comes afterwards.
    fn close(&self) -> BoxFuture<'_, Result<(), HandlerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Why a batch was not delivered, sorted by what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// Temporary failure: repeated, with backoff.
    #[error("{0}")]
    Failed(String),
    /// Temporary failure; the sink asked for a delay.
    #[error("{reason}, asked to come again in {retry_after:?}")]
    Busy {
        /// What it said.
        reason: String,
        /// What it asked for.
        retry_after: Duration,
    },
    /// The sink takes no message so large: halved, then sent in ever smaller [`Form`]s where it is an [`AsyncHandler`],
    /// then dead-lettered.
    #[error("{0}")]
    TooLarge(String),
    /// One of these events will never be accepted: found by halving, then dead-lettered.
    #[error("{0}")]
    Rejected(String),
    /// The sink is closed for good. The handler stops; the engine keeps running.
    #[error("{0}")]
    Closed(String),
}

impl From<FormatError> for HandlerError {
    /// What cannot be written never will be.
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::NoSmaller(_) => Self::TooLarge(error.to_string()),
            FormatError::Undecodable(_) | FormatError::Template(_) | FormatError::NoJson(_) => {
                Self::Rejected(error.to_string())
            }
        }
    }
}
