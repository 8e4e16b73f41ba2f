//! Watches objects of any type on a Kubernetes API server, keeps them in caches, and gives every change to handlers.
//!
//! deltabus is an engine of actors. Each watched type has a reflector, a DeltaFIFO and an indexer, which are supervised as one
//! unit. The indexers write lock-free caches and one ordered journal; handlers read the journal at their own pace.
//! [`Engine::builder`] returns an [`EngineBuilder`], and [`EngineBuilder::start`] returns a [`RunningEngine`].
//!
//! # A first program
//!
//! ```toml
//! [dependencies]
//! actix = "0.13"
//! tokio = { version = "1", features = ["macros", "signal"] } # for Ctrl-C
//! deltabus = { path = "../deltabus", default-features = false } # a clone of the repository
//! k8s-openapi = { version = "0.29", features = ["latest"] } # only for typed objects
//! ```
//!
//! This program watches pods, counts those in the cache, and prints each change until Ctrl-C. It uses the cluster of the
//! current kubectl context. Pods that exist at the start are not printed, because they are not changes
//! ([`HandlerOptions::initial`]).
//!
//! ```no_run
//! use deltabus::{Engine, HandlerOptions};
//! use k8s_openapi::api::core::v1::Pod;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     actix::System::new().block_on(async {
//!         let engine = Engine::builder()
//!             .watch::<Pod>()
//!             .on_change("print", HandlerOptions::default(), |batch| {
//!                 for event in batch.events() {
//!                     println!("{} {}", event.unit.resource.kind, event.record.event_name());
//!                 }
//!                 Ok(()) // an error makes the engine retry the batch
//!             })
//!             .start()
//!             .await?;
//!         engine.wait_for_sync().await;
//!         let pods = engine.lister_of::<Pod>().ok_or("every server has pods")?;
//!         println!("{} pods", pods.untyped().len());
//!         tokio::select! {
//!             result = tokio::signal::ctrl_c() => result?,
//!             error = engine.failed() => return Err(error.into()),
//!         }
//!         engine.stop().await;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! An actix `System` is a tokio runtime, so `tokio::time` and `tokio::signal` work inside it.
//!
//! # Watching
//!
//! [`EngineBuilder::watch`] takes a type of k8s-openapi. [`EngineBuilder::watch_type`] takes any name that kubectl knows, with the
//! options of a [`ResourceConfig`]. [`EngineBuilder::config`] takes a whole [`Config`], which has the same options as the TOML file
//! of the program `deltabus`. [`EngineHandle::watch_type`] and [`EngineHandle::unwatch`] change a running engine. A type that does
//! not exist yet is watched as soon as the server serves it.
//!
//! # Reading
//!
//! A [`Lister`] reads the cache of one type without locks: by key, by namespace, by [`Selector`] or by an index. Indexes are
//! configured as paths, or are functions ([`IndexFunc`]). [`Lister::snapshot`] runs several reads on the same version of the cache.
//! An [`Object`] holds the JSON from the server. [`Object::decode`] decodes it into a Rust type, and a [`TypedLister`] decodes
//! every object that it returns.
//!
//! # Handling changes
//!
//! A handler is a function ([`EngineBuilder::on_change`]), an [`AsyncHandler`], or an actor ([`EngineBuilder::handler`]). It
//! receives batches: each [`Notification`] has the [`Event`]s of one batch. Delivery is at least once, and in order for each
//! object. Each event has the type of its object ([`UnitInfo`]) and the [`Change`]. [`HandlerOptions`] select the events, and set
//! the retries of failed batches. A controller puts keys in a [`WorkQueue`].
//!
//! # Testing without a cluster
//!
//! A [`Simulator`] is an API server within the process. [`Workload`] fills it with a simulated cluster.
//!
//! # Features
//!
//! Without default features, this is the slim library: the engine, listers, and your own handlers. `state` keeps state across
//! restarts, `rules` adds expressions (`when`), `nats` and `kafka` add the handlers of these names, `otlp` adds OpenTelemetry
//! spans, and `cli` is the program `deltabus`. All but `kafka` are default features. An option that needs a missing feature causes
//! an error with the name of the feature.
//!
//! Hidden items, such as the command line, are not part of the API.

#![cfg_attr(
    not(feature = "testing"),
    allow(
        unreachable_pub,
        unused_imports,
        reason = "with `testing`, `internals` makes them reachable, and uses the re-exports"
    )
)]
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "only the command line uses it; the build with `cli` finds dead code")
)]

mod build_info;
mod histogram;
mod mutex;
mod failures;
mod trace;
mod private_dir;
mod process;
mod regular_file;
mod fresh;
mod secret;
mod suggestion;
mod text;
mod printable;
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
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod crash_simulation;
#[cfg(test)]
mod fuzz;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod internals;

pub use crate::list_watch::{
    kube::{AccessError, ClusterAccess},
    transform::Transform,
};
pub use backoff::BackoffConfig;
pub use change::{Cause, Change};
pub use config::{
    Batch, Buffer, Config, ConfigErrors, EventType, HandlerOptions, Initial, Mode, OnMissing, OnRemoved,
    ResourceConfig, Retry,
};
pub use engine::{Applied, Engine, EngineBuilder, EngineError, EngineHandle, RunningEngine, StopReport};
pub use handler::{AsyncHandler, Form, HandlerError};
pub use indexer::index_func::{IndexFunc, IndexNameError};
pub use journal::{EventName, Record, Sequence, WhenFull};
pub use lister::{
    FieldSelector, LabelSelector, Lister, NamespaceLister, Query, ReadError, Selector, SelectorError, TypedLister,
    Version,
};
pub use notification::{Event, Notification, Stopped, UnitInfo};
pub use object::{FieldPath, FieldPathError, KeyError, KeyRef, Object, ObjectKey, ResourceType, ResourceVersion};
pub use simulator::{Simulator, SimulatorOptions, Sizes, Workload};
pub use work_queue::{
    Exponential, FastSlow, MaxOf, MaxWait, RateLimiter, Stats, TokenBucket, WorkItem, WorkQueue,
    default_controller_limiter, default_item_limiter,
};

/// The examples of the page for users of the library, run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
struct LibraryPage;
