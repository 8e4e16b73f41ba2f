//! deltabus: an actor-based multi-resource aggregation engine for Kubernetes.
//!
//! Every watched resource type has a **reflector**, a **DeltaFIFO** and an **indexer**, three actors that are
//! supervised as one unit; what the indexers apply becomes one ordered stream of changes, which **handler** actors and
//! readers consume at their own pace.
//!
//! ```text
//! API server ─list/watch─▶ Reflector ─▶ DeltaFifo ─▶ Indexer ─▶ (evmap: lock-free reads) ─▶ serve, Lister
//!                          per resource type, one supervised unit   │
//!                                                                   ▼
//!                                                    Journal (sequence, watermarks, cursors)
//!                                                                   ▼
//!                                                    HandlerActor ─▶ Worker ─▶ Handler
//! ```
//!
//! # Finding your way
//!
//! A stage is a file, its shell lies beside it (`x/actor.rs`), in the order of the data. A stage defines what it sends, and
//! names only what stands before it in this file:
//!
//! | stage | emits | decides |
//! |---|---|---|
//! | [`list_watch`] | [`WatchEvent`](list_watch::WatchEvent), [`ListPage`](list_watch::ListPage) | what bytes mean |
//! | [`reflector`] | [`ReflectorEvent`](reflector::ReflectorEvent) | list, stream or watch; when to ask again |
//! | [`delta_fifo`] | [`Deltas`](delta_fifo::Deltas) | order, tombstones, what is one transaction |
//! | [`indexer`] | [`Change`](change::Change) | what differs from the cache |
//! | [`journal`] | [`Record`](journal::Record) | sequence; what may be read; what a slow reader keeps |
//! | [`rules`] | [`RuleVerdict`](rules::RuleVerdict) | which changes a handler wants beside what `on` says |
//! | [`delivery`] | [`Notification`](notification::Notification) | batches, order, retries, dead letters |
//! | [`handler`] | – | the sinks |
//!
//! `docs/architecture.md` has the walk of one event through these stages, and which file to open for which change.
//!
//! [`object`] is what travels, [`scope`] where from, [`redact`] what must not travel; [`secret`] is where the engine's own
//! secrets are. Where `[state] dir` is set the journal writes what it holds to [`journal::store`], and a slow reader
//! costs disk instead of memory. [`informer`] wires one type in one scope, [`supervisor`] keeps it
//! alive, [`engine`] runs the whole; [`engine::dry_run`] tries a configuration on two states of an object. [`lister`],
//! [`registry`] and [`serve`] read; [`subscribe`] streams. [`work_queue`] is for handlers of controllers: what is to be
//! done, each key once. [`simulator`] is an API server in this process for the demo, tests and
//! benchmarks; [`bench`](mod@bench) measures an engine against a server that makes up its objects.
//!
//! # Invariants
//!
//! - A core (the file of a stage) has no async, actor, clock, random source, I/O or log. A shell decides nothing.
//! - A batch is appended, then published, then released: no event overtakes the read that it announces.
//! - Objects are the server's bytes, shared and never changed; nobody on the way decodes them but rules, and those only
//!   what they name.
//! - Every queue has a bound and an owner.
//! - Nothing that one type, handler or request does stops another.
pub mod build_info;
pub mod histogram;
mod mutex;
mod failures;
pub mod trace;
mod private_dir;
mod process;
mod regular_file;
pub mod secret;
mod text;
pub mod object;
pub mod scope;

pub mod backoff;
mod client_error;
pub mod status;
pub mod supervisor;
pub mod discovery;
pub mod list_watch;
pub mod change;
pub mod reflector;
pub mod delta_fifo;
pub mod journal;
pub mod indexer;
pub mod lister;
pub mod rules;
pub mod redact;
pub mod notification;
pub mod cloud_event;
pub mod handler;
pub mod work_queue;

pub mod delivery;
pub mod informer;
pub mod registry;
pub mod subscribe;
pub mod config;
pub mod metrics;
pub mod serve;
pub mod engine;

pub mod simulator;
pub mod bench;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod crash_simulation;
#[cfg(test)]
mod fuzz;

/// What the README shows is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
