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
//! adds, replaces and removes handlers, and restarts their loops. A handler that fails, hangs or panics affects no other (I7).

pub mod attempts;
pub mod core;
pub mod handler_loop;
pub mod handlers;
mod log;
pub mod pace;
pub mod router;
pub mod schedule;
pub mod sink;
pub mod status;
pub mod table;
pub mod throttle;
pub mod worker;
#[cfg(test)]
mod async_tests;
#[cfg(test)]
mod run_time_tests;
#[cfg(test)]
mod tests;
