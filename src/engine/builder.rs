//! Builder that configures and starts an engine.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use actix::Recipient;
use k8s_openapi::Resource as Typed;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::Instant,
};

use super::{
    EngineError,
    conductor::{Auxiliaries, Conductor, restore::LastRun, state::State},
    handle::EngineHandle,
    handlers::{ConfiguredHandlers, OwnHandler, OwnSink},
    library::{Library, pattern_of},
    options,
    running::RunningEngine,
    sources::KubeSources,
};
use crate::{
    config::{Config, HandlerOptions, Http, ResourceConfig},
    delivery::router::Router,
    handler::{AsyncHandler, HandlerError},
    indexer::index_func::IndexFunc,
    informer::Shared,
    journal::{
        Journal,
        store::{Recovered, Store},
    },
    list_watch::{kube::ClusterAccess, transform::Transform},
    mutex::lock,
    notification::Notification,
    registry::Registry,
    serve::{self, HttpServer, ServeState, Surface},
    subscribe::hub::Hub,
    supervisor::{arbiters::Arbiters, fault::SharedFault},
};

/// Time limit for closing the handlers of an engine that cannot start.
const FAILED_START_TIMEOUT: Duration = Duration::from_secs(1);

/// Function that sets the options of a watched type.
type ResourceOptions = Box<dyn FnOnce(&mut ResourceConfig)>;

/// Builder of an engine. Every part is optional and can also be added later: see [`EngineHandle`].
pub struct EngineBuilder {
    library: Library,
    watched: Vec<(String, ResourceOptions)>,
    access: Option<ClusterAccess>,
    own_handlers: Vec<OwnHandler>,
    allow_exec: bool,
}

impl EngineBuilder {
    pub(super) fn new() -> Self {
        let mut base = Config::default();
        base.http.listen = None; // no server by default
        let library = Library { base, ..Library::default() };
        Self { library, watched: Vec::new(), access: None, own_handlers: Vec::new(), allow_exec: false }
    }

    /// Sets the configuration, which has the same options as a configuration file. Without a configuration, HTTP is off, and all
    /// other options have their defaults.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.library.base = config;
        self
    }

    /// Sets the access to the cluster, instead of the access that `[kube]` configures.
    #[must_use]
    pub fn cluster(mut self, access: ClusterAccess) -> Self {
        self.access = Some(access);
        self
    }

    /// Watches a type in all namespaces. If the configuration already has an entry for the type, that entry applies
    ///
    #[must_use]
    pub fn watch<K: Typed>(self) -> Self {
        self.watch_type(&pattern_of::<K>(), |_| {})
    }

    /// Watches a type by its name, spelled as in `match` of a configuration; `options` can set its options. The name of the
    /// entry consists of letters, digits and underscores: `pods`, `deployments_apps`.
    #[must_use]
    pub fn watch_type(mut self, pattern: &str, options: impl FnOnce(&mut ResourceConfig) + 'static) -> Self {
        self.watched.push((pattern.to_owned(), Box::new(options)));
        self
    }

    /// Stores in each object who changed it, for all types: see [`Object::changed_by`](crate::object::Object::changed_by). Call
    /// this if your own handlers use `changed_by` in `when`. Handlers of the configuration need no call.
    #[must_use]
    pub fn noting_who_changed(mut self) -> Self {
        self.library.notes_who_changed = true;
        self
    }

    /// Adds your own handler: an actor that gets [`Notification`]s of everything that is watched. The actor gets the next batch
    /// after its response to the previous batch.
    #[must_use]
    pub fn handler(mut self, name: &str, options: HandlerOptions, actor: Recipient<Notification>) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Actor(actor)));
        self
    }

    /// Adds a handler that waits without blocking, such as a client of a server. The handler runs on a separate thread, with up to
    /// `concurrency` deliveries at a time. Each delivery has the time limit `timeout`.
    #[must_use]
    pub fn async_handler(mut self, name: &str, options: HandlerOptions, handler: Arc<dyn AsyncHandler>) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Async(handler)));
        self
    }

    /// Adds your own handler: a function that gets each batch of changes of all watched types. The function runs on its own
    /// thread, so it may block. Failed calls are retried as `options` say.
    #[must_use]
    pub fn on_change(
        mut self,
        name: &str,
        options: HandlerOptions,
        function: impl FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static,
    ) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Closure(Box::new(function))));
        self
    }

    /// Allows the configuration to contain handlers with `type = "exec"`, which run programs. Anyone who can change the
    /// configuration can then run any program as the user of this process. By default, such a handler is refused.
    #[must_use]
    pub fn allow_exec(mut self, allow: bool) -> Self {
        self.allow_exec = allow;
        self
    }

    /// Adds your own function as an index to the types of an entry (I-7).
    #[must_use]
    pub fn index(mut self, entry: &str, index: IndexFunc) -> Self {
        self.library.indexes.entry(entry.to_owned()).or_default().push(index);
        self
    }

    /// Sets a function that changes every arriving object of an entry (F-60). The function gets objects after the redaction.
    #[must_use]
    pub fn transform(mut self, entry: &str, transform: Transform) -> Self {
        self.library.transforms.insert(entry.to_owned(), transform);
        self
    }

    /// Starts the engine; returns when handlers and HTTP are up. Call it inside an actix `System`. The API server need
    /// not be reachable yet.
    ///
    /// # Errors
    /// Fails if there is no access to a cluster, or a type cannot be watched as requested. Also fails if a handler cannot be
    /// created, or an address cannot be bound.
    pub async fn start(self) -> Result<RunningEngine, EngineError> {
        let Self { mut library, watched, access, own_handlers, allow_exec } = self;
        for (pattern, options) in watched {
            library.watch(&pattern, options)?;
        }
        let mut config = library.config()?;
        let access = access.map_or_else(|| ClusterAccess::load(&config.kube.access()), Ok)?;
        let cluster = options::cluster_name(&config, &access);
        library.name_cluster(&cluster, &mut config);
        let (journal, recovered) = open_journal(&config)?;
        let registry = Arc::new(Registry::default());

        let router = Router::new(journal.clone());
        let last = recovered.map(|recovered| LastRun::read(&recovered, &router));
        let attached = last.as_ref().map(|last| last.attached.clone()).unwrap_or_default();
        let (delivery, attachments) =
            ConfiguredHandlers::start(&config, &cluster, router, attached, own_handlers, allow_exec)?;
        let handlers = delivery.handlers.clone();
        let hub = Hub::new(handlers.router.clone(), Arc::clone(&registry), &cluster, config.subscribe);
        let http = Http { max_connections: options::max_connections(&config.http), ..config.http.clone() };
        let servers = listen(&http, &ServeState::new(Arc::clone(&hub), handlers.clone(), &access.server_url(), &http));

        let sources = KubeSources { access: access.clone(), limits: options::limits(&config.kube) };
        let list_permits = Arc::new(Semaphore::new(config.kube.max_concurrent_lists as usize));
        let timings = Arc::clone(registry.timings());
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shared = Shared {
            journal,
            sources: Arc::new(sources),
            list_permits,
            timings,
            arbiters: Arc::new(Arbiters::new(cores)),
            supervision: config.supervision,
        };
        let conductor = Arc::new(Conductor {
            access,
            registry,
            router: delivery.handlers.router.clone(),
            shared,
            delivery: Mutex::new(Some(delivery)),
            library: Mutex::new(library),
            auxiliaries: Mutex::new(Auxiliaries::default()),
            clock: Instant::now(),
            poked: Notify::new(),
            looks: 0.into(),
            failed: watch::Sender::new(None),
            bound: false.into(),
            fault: SharedFault::default(),
            state: Mutex::new(State::new(config)),
        });
        let restored = servers.and_then(|servers| match last {
            Some(last) => conductor.restore(last, attachments).map(|()| servers).map_err(EngineError::State),
            None => Ok(servers),
        });
        let servers = match restored {
            Ok(servers) => servers,
            Err(error) => {
                // Stop the started handlers while their runtime exists. When actix drops an actor, it polls the actor once more.
                let delivery = lock(&conductor.delivery).take().expect("only a stop takes it");
                delivery.stop(FAILED_START_TIMEOUT, &conductor.registry).await;
                conductor.shared.arbiters.stop();
                return Err(error);
            }
        };
        conductor.show_all_waiting(&mut conductor.lock());
        hub.open();
        let conducting = conductor.start();
        let handle = EngineHandle { conductor, cluster: cluster.into(), handlers };
        Ok(RunningEngine { handle, servers, hub, conducting })
    }
}

/// Opens the stored journal if there is a state directory, or else a journal in memory.
fn open_journal(config: &Config) -> Result<(Journal, Option<Recovered>), EngineError> {
    let Some(dir) = &config.state.dir else { return Ok((Journal::in_memory(), None)) };
    let opened = Journal::open(&Store::home(dir), config.state.journal);
    let (journal, recovered) = opened.map_err(|error| EngineError::State(error.to_string()))?;
    Ok((journal, Some(recovered)))
}

fn listen(http: &Http, state: &ServeState) -> Result<Vec<HttpServer>, EngineError> {
    http.ready().map_err(EngineError::Configuration)?;
    let mut servers = Vec::new();
    let scheme = if http.tls.files().is_some() { "https" } else { "http" };
    for (key, address, surface, scheme, what) in [
        ("listen", http.listen, Surface::Full, scheme, "all"),
        ("probe_listen", http.probe_listen, Surface::Probes, "http", "probes"),
    ] {
        let Some(address) = address else { continue };
        let server = serve::start(address, surface, state.clone());
        let server = server.map_err(|error| EngineError::Listen { address, key, error })?;
        tracing::info!("serving {scheme}://{} ({what})", server.address());
        servers.push(server);
    }
    Ok(servers)
}
