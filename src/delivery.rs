//! Delivery of events to handlers, from the journal's readers to the sinks.
//!
//! ```text
//! journal reader ─▶ HandlerLoop ─▶ Worker ─▶ Handler
//!                     HandlerCore
//! ```
//!
//! [`table`] maps records to readers; [`router`] applies it to the journal. [`core`](mod@core) decides for one handler:
//! [`schedule`] forms its batches, [`attempts`] retries or gives up, [`pace`] limits the rate, [`throttle`] suppresses
//! events of a key that had one recently. [`handler_loop`] executes these decisions, and [`worker`] is the thread of a sink. [`handlers`]
//! adds, replaces and removes handlers, and restarts their loops. A handler that fails, hangs or panics affects no other (E7).

pub(crate) mod attempts;
pub(crate) mod core;
pub(crate) mod handler_loop;
pub(crate) mod handlers;
mod log;
pub(crate) mod pace;
pub(crate) mod router;
pub(crate) mod schedule;
pub(crate) mod sink;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod throttle;
pub(crate) mod worker;
#[cfg(test)]
mod async_tests;
#[cfg(test)]
mod run_time_tests;
#[cfg(test)]
mod tests;
