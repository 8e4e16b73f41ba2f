//! Handle with which a program reads and changes a running engine.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use actix::Recipient;
use k8s_openapi::Resource as Typed;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

#[cfg(any(test, feature = "testing"))]
use super::Spot;
use super::{
    EngineError,
    conductor::Conductor,
    handlers::{OwnHandler, OwnSink},
    library::pattern_of,
};
use crate::{
    config::{Config, HandlerOptions, ResourceConfig},
    delivery::{
        handlers::RunningHandlers,
        status::{Control, HandlerView},
    },
    handler::HandlerError,
    indexer::{
        actor::{AddIndexers, AddIndexersError},
        index_func::IndexFunc,
    },
    informer::actor::RunningIndexer,
    journal::Journal,
    lister::{Lister, TypedLister},
    mutex::lock,
    notification::Notification,
    registry::{Registry, WatchedType, why_unsynced},
};
#[cfg(any(test, feature = "testing"))]
use crate::{
    informer::actor::Sabotage,
    supervisor::fault::{Fault, Harm, Moment},
};

/// Interval between two checks of an awaited condition.
const LOOK: Duration = Duration::from_millis(20);

/// Result of applying a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Options that differ and take effect only after a restart, such as `[http]` and `[kube] context`.
    pub needs_restart: Vec<&'static str>,
}

/// Handle that reads and changes a running engine. Clones are handles to the same engine. After a stop, changes fail, and reads
/// return the last state.
///
/// Make changes on the thread of the actix `System` in which the engine was started.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) conductor: Arc<Conductor>,
    pub(super) cluster: Arc<str>,
    pub(super) handlers: RunningHandlers,
}

impl EngineHandle {
    /// Returns the name of the cluster, as it appears in events.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns the watched types and the waiting patterns.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.conductor.registry
    }

    /// Returns the stream of changes.
    pub fn journal(&self) -> &Journal {
        &self.conductor.shared.journal
    }

    /// Returns the state of the handlers.
    pub fn handlers(&self) -> Vec<HandlerView> {
        self.handlers.views()
    }

    /// Returns the configuration in effect, including what your program has added.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.conductor.lock().config)
    }

    /// Applies another configuration. Changes the handlers and types that differ; all others continue. Newly watched objects
    /// are `added`, and objects that are no longer watched are `removed`, with cause `reload`. What your program has added stays.
    /// The call returns when the handlers are changed; the types change later.
    ///
    /// # Errors
    /// Fails, without any change, if a handler cannot be created or if the engine was stopped.
    pub fn apply(&self, config: Config) -> Result<Applied, EngineError> {
        let applied = self.conductor.reconfigure(|library| {
            library.base = config;
            Ok(())
        });
        let outcome = applied.as_ref().map(drop).map_err(ToString::to_string);
        lock(&self.registry().reloads).count(outcome);
        applied.map(|((), applied)| applied)
    }

    /// Starts watching a type; returns the name of its entry, which may exist already.
    ///
    /// # Errors
    /// Fails if the engine was stopped.
    pub fn watch<K: Typed>(&self) -> Result<String, EngineError> {
        self.watch_type(&pattern_of::<K>(), |_| {})
    }

    /// Starts watching a type by its name, spelled as in `match` of a configuration; `options` can set its options. Returns
    /// the name of its entry, which may exist already. Existing objects are `added`, cause `reload`.
    ///
    /// # Errors
    /// Fails if the name is invalid, if the options are wrong, or if the engine was stopped.
    pub fn watch_type(&self, pattern: &str, options: impl FnOnce(&mut ResourceConfig)) -> Result<String, EngineError> {
        let (name, _) = self.conductor.reconfigure(|library| library.watch(pattern, options))?;
        Ok(name)
    }

    /// Removes an entry that your program has added. The objects of the entry are `removed`, with cause `reload` (D-9). Returns
    /// false if your program has added no such entry.
    ///
    /// # Errors
    /// Fails if the engine was stopped.
    pub fn unwatch(&self, entry: &str) -> Result<bool, EngineError> {
        let (found, _) = self.conductor.reconfigure(|library| Ok(library.entries.remove(entry).is_some()))?;
        Ok(found)
    }

    /// Adds a handler to the running engine (S-5). With `initial = "send"`, the handler first gets the cached objects, with cause
    /// `replay`. It then gets the later changes, without a gap or a repetition. Until [`EngineHandle::handler_synced`] returns
    /// true, `added` events are part of the initial state.
    ///
    /// # Errors
    /// Fails if the name is taken, or if the engine was stopped (S-6).
    pub fn add_handler(
        &self,
        name: &str,
        options: HandlerOptions,
        actor: Recipient<Notification>,
    ) -> Result<(), EngineError> {
        self.add(OwnHandler::new(name, options, OwnSink::Actor(actor)))
    }

    /// Adds a function as a handler to the running engine: see [`EngineHandle::add_handler`] and
    /// [`EngineBuilder::on_change`](super::EngineBuilder::on_change).
    ///
    /// # Errors
    /// Fails if the name is taken, or if the engine was stopped (S-6).
    pub fn on_change(
        &self,
        name: &str,
        options: HandlerOptions,
        function: impl FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static,
    ) -> Result<(), EngineError> {
        self.add(OwnHandler::new(name, options, OwnSink::Closure(Box::new(function))))
    }

    fn add(&self, handler: OwnHandler) -> Result<(), EngineError> {
        let attachments = self.conductor.with_delivery(|delivery| delivery.add_own(handler))??;
        self.conductor.queue_attachments(attachments);
        self.conductor.poke();
        Ok(())
    }

    /// Removes a handler that your program has added. Its current call is the last one, and its waiting events are dropped. An
    /// unknown name has no effect (S-7).
    ///
    /// # Errors
    /// Fails if the engine was stopped.
    pub fn remove_handler(&self, name: &str) -> Result<(), EngineError> {
        self.conductor.with_delivery(|delivery| delivery.remove_own(name))
    }

    /// Pauses a handler, resumes it, or replays the events that it gave up. Returns the number of replayed
    /// events.
    ///
    /// # Errors
    /// Fails if there is no handler of this name, or if the engine was stopped.
    pub fn control_handler(&self, name: &str, control: Control) -> Result<u64, EngineError> {
        let answer = self.conductor.with_delivery(|delivery| delivery.handlers.control(name, control))?;
        answer.map(|(replayed, _)| replayed).ok_or_else(|| EngineError::UnknownHandler(name.to_owned()))
    }

    /// Returns true if a handler has acknowledged the initial state of everything that it takes (S-8).
    ///
    /// # Errors
    /// Fails if there is no handler of this name, or if the engine was stopped.
    pub fn handler_synced(&self, name: &str) -> Result<bool, EngineError> {
        let status = self.conductor.with_delivery(|delivery| delivery.handlers.status(name))?;
        status.map(|status| status.has_synced()).ok_or_else(|| EngineError::UnknownHandler(name.to_owned()))
    }

    /// Returns one reader for each type found so far for the entry `[resources.<name>]`. Readers stay valid when units are
    /// replaced.
    pub fn listers(&self, entry: &str) -> Vec<Lister> {
        let of_entry = |watched: &&Arc<WatchedType>| watched.units.iter().any(|informer| informer.entry == entry);
        self.registry().types().iter().filter(of_entry).map(|watched| watched.lister()).collect()
    }

    /// Returns a reader of a watched type, by its qualified name: `pods`, `deployments.apps`. `None` before the type was found.
    /// A reader stays valid when units are replaced.
    pub fn lister(&self, qualified_name: &str) -> Option<Lister> {
        let types = self.registry().types();
        let found = types.iter().find(|watched| watched.resource.qualified_name() == qualified_name);
        found.map(|watched| watched.lister())
    }

    /// Returns a reader that decodes objects as `K`. Returns `None` before the type was found, or if the type is
    /// watched in another version than that of `K`.
    pub fn lister_of<K: Typed + DeserializeOwned>(&self) -> Option<TypedLister<K>> {
        let watched = self.registry().find_type(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)?;
        Some(TypedLister::new(watched.lister()))
    }

    /// Waits until all configured resources are synced, except those that do not exist or that the server refuses (`/readyz`).
    /// `[supervision] ready_after` limits the wait for a type that only a wildcard selects. Otherwise the wait has no time limit; see
    /// [`EngineHandle::wait_for_sync_within`].
    pub async fn wait_for_sync(&self) {
        while !self.conductor.lock().is_settled() || !self.registry().unready().is_empty() {
            sleep(LOOK).await;
        }
    }

    /// Waits like [`EngineHandle::wait_for_sync`], but at most for `within`. A stop of the engine ends the wait. Returns, for each
    /// entry, true if the entry is synced. The result does not cover handlers (S-8).
    pub async fn wait_for_sync_within(&self, within: Duration) -> BTreeMap<String, bool> {
        let stopped = async {
            while lock(&self.conductor.delivery).is_some() {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            _ = timeout(within, self.wait_for_sync()) => {}
            () = stopped => {}
        }
        // An entry without a row counts as synced once its types are known.
        let decided = self.registry().is_discovered() && self.conductor.lock().is_settled();
        let views = self.registry().views();
        let synced = |entry: &String| {
            let mut rows = views.iter().filter(|view| view.name == *entry).peekable();
            (decided || rows.peek().is_some()) && rows.all(|view| why_unsynced(view).is_none())
        };
        self.config().resources.keys().map(|entry| (entry.clone(), synced(entry))).collect()
    }

    /// Adds indexes to every type of the entry `[resources.<name>]`. The indexes include the objects already cached (I-7). Types
    /// that are found later get the indexes too. When this returns, [`Lister::by_index`] can use the indexes.
    ///
    /// # Errors
    /// Fails if a type already has an index with one of the names, or if a unit is restarting. Types that got the indexes before
    /// the failure keep these indexes. Types that are found later still get the indexes.
    pub async fn add_indexers(&self, entry: &str, indexers: Vec<IndexFunc>) -> Result<(), AddIndexersError> {
        let supervisors: Vec<_> = {
            let state = self.conductor.lock(); // no unit starts meanwhile
            let mut library = lock(&self.conductor.library);
            library.indexes.entry(entry.to_owned()).or_default().extend(indexers.iter().cloned());
            state.units().into_iter().filter(|unit| unit.spec.entry == entry).map(|unit| unit.supervisor).collect()
        };
        for supervisor in supervisors {
            let supervisor = supervisor.ok_or(AddIndexersError::NotRunning)?;
            let indexer = supervisor.send(RunningIndexer).await.ok().flatten().ok_or(AddIndexersError::NotRunning)?;
            let answer = indexer.send(AddIndexers(indexers.clone())).await;
            answer.unwrap_or(Err(AddIndexersError::NotRunning))?;
        }
        Ok(())
    }

    /// Injects a fault into an actor of a unit; actors are counted from 0, the reflector first.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_unit(&self, plural: &str, actor: usize, harm: Harm, moment: Moment) {
        for unit in self.conductor.lock().units() {
            if let Some(supervisor) = unit.supervisor.filter(|_| unit.spec.resource.plural == plural) {
                drop(supervisor.try_send(Sabotage(actor, Fault::new(harm, moment))));
            }
        }
    }

    /// Returns how many times the conductor has checked everything, and how many plans it has made.
    #[cfg(any(test, feature = "testing"))]
    pub fn looks_and_plans(&self) -> (u64, u64) {
        let plans = self.conductor.lock().plans;
        (self.conductor.looks.load(std::sync::atomic::Ordering::Relaxed), plans)
    }

    /// Makes the conductor panic.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_conductor(&self) {
        self.conductor.fault.put(Harm::Panic);
        self.conductor.poke();
    }

    /// Injects a fault into a handler.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_handler(&self, name: &str, spot: Spot, harm: Harm) {
        drop(self.conductor.with_delivery(|delivery| delivery.handlers.sabotage(name, spot, harm)));
    }
}
