//! The whole: discovery, informers, journal, dispatcher, handlers and HTTP, started and stopped in the right order.
//!
//! ```text
//! start:  journal → dispatcher and handlers → HTTP → discovery ─ finds a type ─▶ dispatcher knows it → its unit starts
//! stop:   units (what was read is applied and journaled) → dispatcher (what was journaled is delivered) → HTTP
//! ```

pub mod arbiters;
mod handlers;
mod options;
mod resolver;

use std::{
    net::SocketAddr,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use actix::{Addr, Recipient};
use tokio::{sync::Semaphore, time::timeout};

use crate::{
    config::Config,
    dispatcher::Notification,
    handler::status::HandlerView,
    indexer::{
        actor::{AddIndexers, AddIndexersError},
        index_func::IndexFunc,
    },
    informer::{Informer, Shared, SourceFactory},
    journal::Journal,
    list_watch::{
        ListWatch,
        kube::{AccessError, ClusterAccess, KubeListWatch, Limits},
    },
    lister::Lister,
    registry::Registry,
    serve::{self, ServeState, Server, Surface},
    supervisor::{
        actor::{Sabotage, StopUnit, UnitSupervisor},
        child::{Harm, Inject, Moment},
    },
};
use arbiters::Arbiters;
pub use handlers::{OwnHandler, Spot};
use resolver::Resolver;

/// How long the handlers of an engine that cannot start may take to close.
const FAILED_START_TIMEOUT: Duration = Duration::from_secs(1);

/// Why an engine did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no way to the API server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A handler cannot be made.
    #[error("failed to start handler {name}: {error}")]
    Handler {
        /// `[handlers.<name>]`.
        name: String,
        /// What it said.
        error: String,
    },
    /// An HTTP address cannot be bound.
    #[error("failed to listen on {address} ([http] {key}): {error}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The option.
        key: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// An entry with `on_missing = "fail"` names a type that the server does not serve.
    #[error("{0}")]
    Missing(String),
}

/// What a stop left undelivered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// By handler: how many events, and the first of them by name.
    pub undelivered: Vec<(String, u64, Vec<String>)>,
}

/// An engine that has not been started.
///
/// ```no_run
/// use deltabus::{config::Config, engine::Engine};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::from_toml_str("[resources.pods]\nmatch = [\"pods\"]")?;
/// actix::System::new().block_on(async {
///     let engine = Engine::builder(config).start().await?;
///     engine.wait_for_sync().await;
///     for lister in engine.listers("pods") {
///         println!("{} pods", lister.len());
///     }
///     engine.stop().await;
///     Ok(())
/// })
/// # }
/// ```
pub struct Engine;

impl Engine {
    /// Begins an engine with a configuration.
    pub fn builder(config: Config) -> EngineBuilder {
        EngineBuilder { config, access: None, own_handlers: Vec::new() }
    }
}

/// What an engine is made of.
pub struct EngineBuilder {
    config: Config,
    access: Option<ClusterAccess>,
    own_handlers: Vec<OwnHandler>,
}

impl EngineBuilder {
    /// Uses this access to the cluster instead of what `[kube]` says.
    #[must_use]
    pub fn cluster(mut self, access: ClusterAccess) -> Self {
        self.access = Some(access);
        self
    }

    /// Adds a handler of your own: an actor that takes [`Notification`]s. It is asked for the next batch when it has
    /// answered the last one.
    #[must_use]
    pub fn handler(
        mut self,
        name: &str,
        options: crate::config::HandlerOptions,
        actor: Recipient<Notification>,
    ) -> Self {
        self.own_handlers.push(OwnHandler { name: name.to_owned(), resources: vec!["*".to_owned()], options, actor });
        self
    }

    /// Starts everything; returns when handlers and HTTP are up. Call it inside an actix `System`; the API server need
    /// not be reachable yet.
    ///
    /// # Errors
    /// When there is no access to a cluster, a handler cannot be made, or an address cannot be bound.
    pub async fn start(self) -> Result<RunningEngine, EngineError> {
        let Self { config, access, own_handlers } = self;
        let access = access.map_or_else(|| ClusterAccess::load(&config.kube.access()), Ok)?;
        let cluster = options::cluster_name(&config, &access);
        let journal = Journal::in_memory();
        let registry = Arc::new(Registry::default());

        let delivery = handlers::start(&config, &cluster, &journal, &own_handlers)?;
        let statuses: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync> = {
            let board = delivery.board.clone();
            Arc::new(move || board.views())
        };
        let servers = match listen(&config, &registry, &statuses) {
            Ok(servers) => servers,
            Err(error) => {
                // What was started ends before its runtime does: actix polls an actor once more when it drops it.
                delivery.stop(FAILED_START_TIMEOUT, &registry).await;
                return Err(error);
            }
        };

        let shared = Shared {
            journal: journal.clone(),
            sources: Arc::new(KubeSources { access: access.clone(), limits: options::limits(&config.kube) }),
            list_permits: Arc::new(Semaphore::new(config.kube.max_concurrent_lists as usize)),
        };
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arbiters = Arc::new(Arbiters::new(cores));
        let units = Arc::new(Units::default());
        let resolver = Resolver {
            config: Arc::new(config.clone()),
            access,
            registry: Arc::clone(&registry),
            lanes: delivery.lanes.clone(),
            shared,
            arbiters: Arc::clone(&arbiters),
            units: Arc::clone(&units),
        };
        let resolving = actix_rt::spawn(resolver.run());
        Ok(RunningEngine {
            cluster,
            shutdown_timeout: config.shutdown_timeout,
            journal,
            registry,
            delivery,
            statuses,
            servers,
            arbiters,
            units,
            resolving: Some(resolving),
        })
    }
}

fn listen(
    config: &Config,
    registry: &Arc<Registry>,
    statuses: &Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
) -> Result<Vec<Server>, EngineError> {
    let surfaces =
        [("listen", config.http.listen, Surface::Full), ("probe_listen", config.http.probe_listen, Surface::Probes)];
    let mut servers = Vec::new();
    for (key, address, surface) in surfaces {
        let Some(address) = address else { continue };
        let state = ServeState::new(Arc::clone(registry), Arc::clone(statuses));
        let server =
            serve::start(address, surface, state).map_err(|error| EngineError::Listen { address, key, error })?;
        tracing::info!("serving http://{} ({})", server.address(), if key == "listen" { "all" } else { "probes" });
        servers.push(server);
    }
    Ok(servers)
}

/// The supervisors of the units that were started.
#[derive(Debug, Default)]
struct Units {
    supervisors: Mutex<Vec<(Arc<Informer>, Addr<UnitSupervisor>)>>,
}

impl Units {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Arc<Informer>, Addr<UnitSupervisor>)>> {
        self.supervisors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes kube sources, with one client an arbiter.
struct KubeSources {
    access: ClusterAccess,
    limits: Limits,
}

thread_local! {
    /// The client of this arbiter: its connections live on the arbiter's runtime.
    static CLIENT: std::cell::RefCell<Option<(String, kube::Client)>> = const { std::cell::RefCell::new(None) };
}

impl SourceFactory for KubeSources {
    fn source(&self, informer: &Informer) -> Result<Rc<dyn ListWatch>, String> {
        let server = self.access.server_url();
        let client = CLIENT.with_borrow_mut(|kept| match kept {
            Some((of, client)) if *of == server => Ok(client.clone()),
            _ => {
                let client = self.access.client().map_err(|error| error.to_string())?;
                *kept = Some((server, client.clone()));
                Ok::<_, String>(client)
            }
        })?;
        let (scope, plan) = (informer.options.scope.clone(), informer.options.plan.clone());
        Ok(Rc::new(KubeListWatch::new(client, Arc::clone(&informer.resource), scope, plan, self.limits)))
    }
}

/// An engine at work. Dropping it stops nothing: see [`RunningEngine::stop`].
pub struct RunningEngine {
    cluster: String,
    shutdown_timeout: Duration,
    journal: Journal,
    registry: Arc<Registry>,
    delivery: handlers::Delivery,
    statuses: Arc<dyn Fn() -> Vec<HandlerView> + Send + Sync>,
    servers: Vec<Server>,
    arbiters: Arc<Arbiters>,
    units: Arc<Units>,
    resolving: Option<actix_rt::task::JoinHandle<Result<(), EngineError>>>,
}

impl RunningEngine {
    /// Returns the cluster's name, as events carry it.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns where HTTP is served: `[http] listen` first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Returns what is watched, and what waits to be.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns the stream of changes.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the handlers' state.
    pub fn handlers(&self) -> Vec<HandlerView> {
        (self.statuses)()
    }

    /// Returns a reader for each type that the entry `[resources.<name>]` matched and that was found so far.
    pub fn listers(&self, entry: &str) -> Vec<Lister> {
        let of_entry = |informer: &Arc<Informer>| informer.entry == entry;
        self.registry
            .informers()
            .iter()
            .filter(|informer| of_entry(informer))
            .map(|informer| informer.lister())
            .collect()
    }

    /// Waits until every configured resource that exists and is allowed is synced (`/readyz`).
    pub async fn wait_for_sync(&self) {
        while !self.registry.unready().is_empty() {
            actix_rt::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the engine cannot go on; it can as long as no entry has `on_missing = "fail"`. The wait can be given
    /// up and begun again.
    pub async fn failed(&mut self) -> EngineError {
        if let Some(resolving) = self.resolving.as_mut() {
            let ended = resolving.await;
            self.resolving = None;
            match ended {
                Ok(Err(error)) => return error,
                Ok(Ok(())) => {}
                Err(error) => tracing::error!(%error, "discovery ended; types that appear later are not seen"),
            }
        }
        std::future::pending().await
    }

    /// Adds indexes to every type of the entry `[resources.<name>]` that was found so far (I-7), each over the objects
    /// that are cached already; when this returns, [`Lister::by_index`] knows them.
    ///
    /// # Errors
    /// When a type has an index of one of the names, or its unit is being restarted. Types before it have them then.
    pub async fn add_indexers(&self, entry: &str, indexers: Vec<IndexFunc>) -> Result<(), AddIndexersError> {
        let supervisors: Vec<_> = {
            let units = self.units.lock();
            let of_entry = units.iter().filter(|(informer, _)| informer.entry == entry);
            of_entry.map(|(_, supervisor)| supervisor.clone()).collect()
        };
        for supervisor in supervisors {
            let answer = supervisor.send(AddIndexers(indexers.clone())).await;
            answer.unwrap_or(Err(AddIndexersError::NotRunning))?;
        }
        Ok(())
    }

    /// Test hook: does harm to an actor of a unit, counted from 0 in the order of the data.
    #[doc(hidden)]
    pub fn sabotage_unit(&self, plural: &str, actor: usize, harm: Harm, moment: Moment) {
        for (informer, supervisor) in self.units.lock().iter() {
            if informer.resource.plural == plural {
                drop(supervisor.try_send(Sabotage(actor, Inject(harm, moment))));
            }
        }
    }

    /// Test hook: does harm to a handler.
    #[doc(hidden)]
    pub fn sabotage_handler(&self, name: &str, spot: Spot, harm: Harm) {
        self.delivery.sabotage_handler(name, spot, harm);
    }

    /// Test hook: does harm to the dispatcher.
    #[doc(hidden)]
    pub fn sabotage_dispatcher(&self, harm: Harm) {
        self.delivery.sabotage_dispatcher(harm);
    }

    /// Stops: no more requests to the API server, what was read is applied, what was applied is delivered, within
    /// `shutdown_timeout`. What is left is named (I4).
    pub async fn stop(mut self) -> StopReport {
        if let Some(resolving) = self.resolving.take() {
            resolving.abort();
        }
        let supervisors: Vec<_> = self.units.lock().iter().map(|(_, supervisor)| supervisor.clone()).collect();
        let stops = supervisors.iter().map(|supervisor| supervisor.send(StopUnit));
        let started = tokio::time::Instant::now();
        if timeout(self.shutdown_timeout, futures_util::future::join_all(stops)).await.is_err() {
            tracing::error!("units did not stop in time");
        }
        let left = self.shutdown_timeout.saturating_sub(started.elapsed()).max(Duration::from_millis(100));
        let report = self.delivery.stop(left, &self.registry).await;
        self.arbiters.stop();
        report
    }
}
