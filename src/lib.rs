//! deltabus: an actor-based multi-resource aggregation engine for Kubernetes.
//!
//! Every watched resource type has a **reflector**, a **DeltaFIFO** and an **indexer**: three actors, supervised as one
//! unit. The indexers write their changes to one ordered stream. **Handler** actors and readers consume this stream,
//! each at its own pace.
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
//! Each stage is one file; its actor is beside it (`x/actor.rs`). This file lists the stages in the order of the data.
//! A stage defines the types that it emits, and uses only stages above it in this file:
//!
//! | stage | emits | decides |
//! |---|---|---|
//! | [`list_watch`] | [`WatchEvent`](list_watch::WatchEvent), [`ListPage`](list_watch::ListPage) | decoding of bytes |
//! | [`reflector`] | [`ReflectorEvent`](reflector::ReflectorEvent) | list, stream or watch; time of the next request |
//! | [`delta_fifo`] | [`Deltas`](delta_fifo::Deltas) | order, tombstones, boundaries of transactions |
//! | [`indexer`] | [`Change`](change::Change) | differences from the cache |
//! | [`journal`] | [`Record`](journal::Record) | sequence; watermarks; events kept for a slow reader |
//! | [`rules`] | [`RuleVerdict`](rules::RuleVerdict) | further filters of a handler, beside `on` |
//! | [`delivery`] | [`Notification`](notification::Notification) | batches, order, retries, dead letters |
//! | [`handler`] | – | the sinks |
//!
//! `docs/architecture.md` follows one event through these stages, and lists the file to open for each kind of change.
//!
//! [`object`] has the objects, [`scope`] the namespaces that they come from. [`redact`] removes confidential values.
//! [`secret`] reads the engine's own secrets. With `[state] dir`, the journal writes its events to [`journal::store`],
//! and a slow reader uses disk instead of memory. [`informer`] connects the stages of one type in one scope,
//! [`supervisor`] restarts it, [`engine`] runs everything. [`engine::dry_run`] tries a configuration on two states of
//! an object. [`lister`], [`registry`] and [`serve`] answer reads; [`subscribe`] streams events. [`work_queue`] is for
//! controllers: it holds the keys that need work, each once. [`simulator`] is an API server in this process, for the
//! demo, tests and benchmarks. [`bench`](mod@bench) measures an engine against a server that generates its objects.
//!
//! # Invariants
//!
//! - A core (the file of a stage) has no async code, actor, clock, random source, I/O or logging. An actor decides
//!   nothing.
//! - A batch is appended, then published, then released: no event overtakes the read that it announces.
//! - Objects are the server's bytes, shared and never changed. Only rules decode them, and only the fields that they
//!   name.
//! - Every queue has a bound and an owner.
//! - No type, handler or request can stop another one.

// `internals`, which needs the feature `testing`, makes `pub` items of private modules reachable, and uses their re-exports.
#![cfg_attr(not(feature = "testing"), allow(unreachable_pub, unused_imports))]

mod build_info;
mod histogram;
mod mutex;
mod failures;
mod trace;
mod private_dir;
mod process;
mod regular_file;
mod secret;
mod text;
mod object;
mod scope;

mod backoff;
mod client_error;
mod status;
mod supervisor;
mod discovery;
mod list_watch;
mod change;
mod reflector;
mod delta_fifo;
mod journal;
mod indexer;
mod lister;
mod rules;
mod redact;
mod notification;
mod cloud_event;
mod handler;
mod work_queue;

mod delivery;
mod informer;
mod registry;
mod subscribe;
mod config;
mod metrics;
mod serve;
mod engine;

mod simulator;
mod bench;
#[doc(hidden)]
pub mod cli;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod crash_simulation;
#[cfg(test)]
mod fuzz;

pub use backoff::BackoffConfig;
pub use change::{Cause, Change};
pub use config::{Config, ConfigErrors, HandlerDefaults, Initial, Mode, ResourceConfig};
pub use engine::{Applied, Engine, EngineBuilder, EngineError, EngineHandle, RunningEngine, TypedLister};
pub use handler::{AsyncHandler, HandlerError};
pub use indexer::index_func::{IndexFunc, IndexNameError};
pub use list_watch::{
    kube::{AccessError, ClusterAccess},
    transform::Transform,
};
pub use lister::{
    FieldSelector, LabelSelector, Lister, NamespaceLister, Query, ReadError, Selector, SelectorError, Version,
};
pub use notification::{Event, Notification, Stopped};
pub use object::{FieldPath, FieldPathError, KeyError, KeyRef, Object, ObjectKey, ResourceType, ResourceVersion};
pub use simulator::{Simulator, SimulatorOptions, Sizes, Workload};
pub use work_queue::{
    Exponential, FastSlow, MaxOf, MaxWait, RateLimiter, Stats, TokenBucket, WorkItem, WorkQueue,
    default_controller_limiter, default_item_limiter,
};

/// Parts of the engine that the tests and benches of this repository use. They are no part of the API.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod internals {
    macro_rules! reexport {
        ($($module:ident)*) => { $(pub mod $module { pub use crate::$module::*; })* };
    }
    reexport! {
        build_info histogram trace secret object scope backoff status
        supervisor discovery list_watch change reflector delta_fifo journal indexer
        lister rules redact notification cloud_event handler work_queue delivery
        informer registry subscribe config metrics serve engine simulator
        bench
    }
}

/// The examples of the README, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
