//! What can be read from an engine at work, and changed in it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use actix::Recipient;
use k8s_openapi::Resource as Typed;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

#[cfg(any(test, feature = "testing"))]
use super::handlers::Spot;
use super::{
    EngineError,
    conductor::Conductor,
    handlers::{Delivery, OwnHandler, OwnSink, Statuses},
    library::Library,
    reconcile::Occasion,
    reload::{keep_until_restart, needs_restart},
    typed::TypedLister,
};
use crate::{
    config::{Config, HandlerDefaults, ResourceConfig},
    delivery::status::{Control, HandlerView},
    handler::HandlerError,
    indexer::{
        actor::{AddIndexers, AddIndexersError},
        index_func::IndexFunc,
    },
    journal::Journal,
    lister::Lister,
    mutex::lock,
    notification::Notification,
    registry::{Registry, WatchedType, why_unready},
};
#[cfg(any(test, feature = "testing"))]
use crate::{
    informer::messages::Sabotage,
    supervisor::fault::{Fault, Harm, Moment},
};

/// How often is looked whether something has come about.
const LOOK: Duration = Duration::from_millis(20);

/// What a new configuration changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Options that differ and take effect only at the next start: `[http]`, `[kube] context`.
    pub needs_restart: Vec<&'static str>,
}

/// Reads from a running engine, and changes it. Clones are handles to the same engine; after its stop changes are errors
/// and reads find what was there.
///
/// Changes are to be made on the thread of the actix `System` that the engine was started in.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) conductor: Arc<Conductor>,
    pub(super) cluster: Arc<str>,
    pub(super) statuses: Statuses,
}

impl EngineHandle {
    /// Returns the cluster's name, as events carry it.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns what is watched, and what waits to be.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.conductor.registry
    }

    /// Returns the stream of changes.
    pub fn journal(&self) -> &Journal {
        &self.conductor.shared.journal
    }

    /// Returns the handlers' state.
    pub fn handlers(&self) -> Vec<HandlerView> {
        (self.statuses)()
    }

    /// Returns the configuration that is in force, with what the program added.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.conductor.lock().known.config)
    }

    /// Applies another configuration: handlers and types that differ change, all else goes on untouched. What objects
    /// come into view are `added`, what leaves is `removed`, with cause `reload`. What the program added by itself
    /// stays. It returns when the handlers are changed; types follow, each as soon as it can.
    ///
    /// # Errors
    /// When a handler cannot be made, or the engine was stopped. Nothing has changed then.
    pub fn apply(&self, config: Config) -> Result<Applied, EngineError> {
        let applied = self.conductor.reconfigure(|library| {
            library.base = config;
            Ok(())
        });
        let reloads = self.registry().reloads();
        if applied.is_ok() {
            reloads.applied();
        } else {
            reloads.refused();
        }
        applied
    }

    /// Watches a type from now on; returns the name of its entry, which may be there already.
    ///
    /// # Errors
    /// When the engine was stopped.
    pub fn watch<K: Typed>(&self) -> Result<String, EngineError> {
        self.watch_type(&super::typed::pattern_of::<K>(), |_| {})
    }

    /// Watches a type by its name, as `match` of a configuration spells it, from now on; `options` may say how. Returns
    /// the name of its entry, which may be there already. What exists is `added`, cause `reload`.
    ///
    /// # Errors
    /// When that is no name of a type, the options are wrong, or the engine was stopped.
    pub fn watch_type(&self, pattern: &str, options: impl FnOnce(&mut ResourceConfig)) -> Result<String, EngineError> {
        let mut name = String::new();
        self.conductor.reconfigure(|library| {
            name = library.watch(pattern, options)?;
            Ok(())
        })?;
        Ok(name)
    }

    /// Stops watching an entry that the program added: its objects are `removed`, cause `reload` (D-9). Returns whether
    /// there was one of this name.
    ///
    /// # Errors
    /// When the engine was stopped.
    pub fn unwatch(&self, entry: &str) -> Result<bool, EngineError> {
        let mut found = false;
        self.conductor.reconfigure(|library| {
            found = library.entries.remove(entry).is_some();
            Ok(())
        })?;
        Ok(found)
    }

    /// Adds a handler while the engine runs (S-5): with `initial = "send"` it is shown what is cached, cause `replay`, and
    /// then what changes; nothing is missed, nothing comes twice. Each unit lets it in between two batches: until
    /// [`EngineHandle::handler_synced`] what appears belongs to what is cached.
    ///
    /// # Errors
    /// When the name is taken, or the engine was stopped (S-6).
    pub fn add_handler(
        &self,
        name: &str,
        options: HandlerDefaults,
        actor: Recipient<Notification>,
    ) -> Result<(), EngineError> {
        self.add(OwnHandler::new(name, options, OwnSink::Actor(actor)))
    }

    /// Adds a function as a handler while the engine runs: see [`EngineHandle::add_handler`] and
    /// [`EngineBuilder::on_change`](super::EngineBuilder::on_change).
    ///
    /// # Errors
    /// When the name is taken, or the engine was stopped (S-6).
    pub fn on_change(
        &self,
        name: &str,
        options: HandlerDefaults,
        function: impl FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static,
    ) -> Result<(), EngineError> {
        self.add(OwnHandler::new(name, options, OwnSink::Closure(Box::new(function))))
    }

    fn add(&self, handler: OwnHandler) -> Result<(), EngineError> {
        let moves = self.conductor.with_delivery(|delivery| delivery.add_own(handler))??;
        self.conductor.queue_moves(moves);
        self.conductor.poke();
        Ok(())
    }

    /// Removes a handler that the program added: its call in flight ends, what waits is forgotten. A name that is not
    /// there has no effect (S-7).
    ///
    /// # Errors
    /// When the engine was stopped.
    pub fn remove_handler(&self, name: &str) -> Result<(), EngineError> {
        self.conductor.with_delivery(|delivery| delivery.remove_own(name))
    }

    /// Asks something of a handler, by its name: to pause, to go on, to deliver again what it gave up. Returns how many
    /// events it will deliver again.
    ///
    /// # Errors
    /// When there is no handler of this name, or the engine was stopped.
    pub fn control_handler(&self, name: &str, control: Control) -> Result<u64, EngineError> {
        let answer = self.conductor.with_delivery(|delivery| delivery.board.control(name, control))?;
        answer.map(|(replayed, _)| replayed).ok_or_else(|| EngineError::UnknownHandler(name.to_owned()))
    }

    /// Returns whether a handler has seen the initial state of all that it takes, and has acknowledged it (S-8).
    ///
    /// # Errors
    /// When there is no handler of this name, or the engine was stopped.
    pub fn handler_synced(&self, name: &str) -> Result<bool, EngineError> {
        let synced = self.conductor.with_delivery(|delivery| delivery.has_synced(name))?;
        synced.ok_or_else(|| EngineError::UnknownHandler(name.to_owned()))
    }

    /// Returns a reader for each type that the entry `[resources.<name>]` matched and that was found so far. Readers
    /// follow when units are replaced.
    pub fn listers(&self, entry: &str) -> Vec<Lister> {
        let of_entry = |watched: &&Arc<WatchedType>| watched.units.iter().any(|informer| informer.entry == entry);
        self.registry().types().iter().filter(of_entry).map(|watched| watched.lister()).collect()
    }

    /// Returns a reader of a type that is watched, by its qualified name: `pods`, `deployments.apps`.
    pub fn lister(&self, qualified_name: &str) -> Option<Lister> {
        let types = self.registry().types();
        let found = types.iter().find(|watched| watched.resource.qualified_name() == qualified_name);
        found.map(|watched| watched.lister())
    }

    /// Returns a reader that decodes, of a type that is watched in this version; `None` before it was found.
    pub fn lister_of<K: Typed + DeserializeOwned>(&self) -> Option<TypedLister<K>> {
        let watched = self.registry().find_type(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)?;
        Some(TypedLister::new(watched.lister()))
    }

    /// Waits until every configured resource that exists and is allowed is synced (`/readyz`).
    pub async fn wait_for_sync(&self) {
        while !self.conductor.lock().is_settled() || !self.registry().unready().is_empty() {
            sleep(LOOK).await;
        }
    }

    /// Waits as [`EngineHandle::wait_for_sync`], but no longer than `within` and not beyond a stop. Returns for each entry
    /// whether it is synced; it says nothing of handlers (S-8).
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
        // An entry without a row has nothing to wait for, once that is decided.
        let decided = self.registry().is_discovered() && self.conductor.lock().is_settled();
        let views = self.registry().views();
        let synced = |entry: &String| {
            let mut rows = views.iter().filter(|view| view.name == *entry).peekable();
            (decided || rows.peek().is_some()) && rows.all(|view| why_unready(view).is_none())
        };
        self.config().resources.keys().map(|entry| (entry.clone(), synced(entry))).collect()
    }

    /// Adds indexes to every type of the entry `[resources.<name>]`, each over the objects that are cached already (I-7);
    /// types that it matches later have them too. When this returns, [`Lister::by_index`] knows them.
    ///
    /// # Errors
    /// When a type has an index of one of the names, or its unit is being restarted. Types before it have them then.
    pub async fn add_indexers(&self, entry: &str, indexers: Vec<IndexFunc>) -> Result<(), AddIndexersError> {
        let supervisors: Vec<_> = {
            let mut state = self.conductor.lock();
            let units = state.units();
            state.indexes.entry(entry.to_owned()).or_default().extend(indexers.iter().cloned());
            units.into_iter().filter(|unit| unit.spec.entry == entry).map(|unit| unit.supervisor).collect()
        };
        for supervisor in supervisors {
            let supervisor = supervisor.ok_or(AddIndexersError::NotRunning)?;
            let answer = supervisor.send(AddIndexers(indexers.clone())).await;
            answer.unwrap_or(Err(AddIndexersError::NotRunning))?;
        }
        Ok(())
    }

    /// Does harm to an actor of a unit, counted from 0 in the order of the data.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_unit(&self, plural: &str, actor: usize, harm: Harm, moment: Moment) {
        for unit in self.conductor.lock().units() {
            if let Some(supervisor) = unit.supervisor.filter(|_| unit.spec.resource.plural == plural) {
                drop(supervisor.try_send(Sabotage(actor, Fault::new(harm, moment))));
            }
        }
    }

    /// How often the conductor has looked at everything, and how many plans it has made for that.
    #[cfg(any(test, feature = "testing"))]
    pub fn looks_and_plans(&self) -> (u64, u64) {
        let plans = self.conductor.lock().known.plans();
        (self.conductor.looks.load(std::sync::atomic::Ordering::Relaxed), plans)
    }

    /// The conductor panics.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_conductor(&self) {
        self.conductor.fault.put(Harm::Panic);
        self.conductor.poke();
    }

    /// Does harm to a handler.
    #[cfg(any(test, feature = "testing"))]
    pub fn sabotage_handler(&self, name: &str, spot: Spot, harm: Harm) {
        drop(self.conductor.with_delivery(|delivery| delivery.sabotage_handler(name, spot, harm)));
    }
}

impl Conductor {
    /// Does something with the handlers.
    fn with_delivery<T>(&self, act: impl FnOnce(&mut Delivery) -> T) -> Result<T, EngineError> {
        lock(&self.delivery).as_mut().map(act).ok_or(EngineError::Stopped)
    }

    /// Changes what is configured, and has everything follow. All or nothing.
    fn reconfigure(
        &self,
        change: impl FnOnce(&mut Library) -> Result<(), EngineError>,
    ) -> Result<Applied, EngineError> {
        let mut changed = lock(&self.library).clone();
        change(&mut changed)?;
        let mut config = changed.config()?;
        let running = Arc::clone(&self.lock().known.config);
        let needs_restart = needs_restart(&running, &config);
        keep_until_restart(&running, &mut config);
        let moves = self.with_delivery(|delivery| delivery.apply(&config))??;
        *lock(&self.library) = changed;
        self.queue_moves(moves);
        {
            let mut state = self.lock();
            state.known.config = Arc::new(config);
            state.told.clear();
            if state.known.catalog.is_some() {
                state.all_due(Occasion::Reload);
            }
            state.rediscovery.ask_now(self.clock.elapsed());
        }
        if self.lock().known.catalog.is_none() {
            self.show_all_waiting();
        }
        self.poke();
        Ok(Applied { needs_restart })
    }
}
