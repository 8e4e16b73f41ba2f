//! What an engine is made of, and its start.

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
    conductor::{Auxiliaries, Conductor},
    handle::EngineHandle,
    handlers::{self, OwnHandler, OwnSink, Statuses},
    library::Library,
    options,
    rediscovery::Rediscovery,
    running::RunningEngine,
    sources::KubeSources,
    state::State,
    typed::pattern_of,
};
use crate::{
    config::{Config, HandlerDefaults, ResourceConfig},
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
    serve::{self, ConnectionLimits, HandlerControl, HttpServer, ServeState},
    subscribe::hub::Hub,
    supervisor::{arbiters::Arbiters, fault::SharedFault},
};

/// How long the handlers of an engine that cannot start may take to close.
const FAILED_START_TIMEOUT: Duration = Duration::from_secs(1);

/// What is said of how a type is watched.
type ResourceOptions = Box<dyn FnOnce(&mut ResourceConfig)>;

/// What an engine is made of; every part may be left out, and may also come later: see [`EngineHandle`].
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
        base.http.listen = None; // nobody asked for a server
        let library = Library { base, ..Library::default() };
        Self { library, watched: Vec::new(), access: None, own_handlers: Vec::new(), allow_exec: false }
    }

    /// Takes a configuration, as a file has it. Without one nothing is served over HTTP, and all else has its default.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.library.base = config;
        self
    }

    /// Uses this access to the cluster instead of what `[kube]` says.
    #[must_use]
    pub fn cluster(mut self, access: ClusterAccess) -> Self {
        self.access = Some(access);
        self
    }

    /// Watches a type, in all namespaces; one that the configuration names already is watched as it says.
    #[must_use]
    pub fn watch<K: Typed>(self) -> Self {
        self.watch_type(&pattern_of::<K>(), |_| {})
    }

    /// Watches a type by its name, as `match` of a configuration spells it; `options` may say how. Its entry is called
    /// `pods`, `deployments_apps`: letters, digits and underscores.
    #[must_use]
    pub fn watch_type(mut self, pattern: &str, options: impl FnOnce(&mut ResourceConfig) + 'static) -> Self {
        self.watched.push((pattern.to_owned(), Box::new(options)));
        self
    }

    /// Has it noted who changed objects, of all types: see [`Object::changed_by`](crate::object::Object::changed_by). A
    /// handler of your own needs it for a `when` with `changed_by`, too; those of the configuration see to it themselves.
    #[must_use]
    pub fn noting_who_changed(mut self) -> Self {
        self.library.notes_who_changed = true;
        self
    }

    /// Adds a handler of your own: an actor that takes [`Notification`]s of everything that is watched. It is asked for
    /// the next batch when it has answered the last one.
    #[must_use]
    pub fn handler(mut self, name: &str, options: HandlerDefaults, actor: Recipient<Notification>) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Actor(actor)));
        self
    }

    /// Adds a handler that waits without blocking, as those that ask servers do: on a thread of its own, up to
    /// `concurrency` deliveries at a time, each for no longer than `timeout`.
    #[must_use]
    pub fn async_handler(mut self, name: &str, options: HandlerDefaults, handler: Arc<dyn AsyncHandler>) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Async(handler)));
        self
    }

    /// Adds a handler of your own: a function that is called with everything that changes, batch by batch, on a thread of
    /// its own, where it may block. What it fails is retried as `options` say.
    #[must_use]
    pub fn on_change(
        mut self,
        name: &str,
        options: HandlerDefaults,
        function: impl FnMut(&Notification) -> Result<(), HandlerError> + Send + 'static,
    ) -> Self {
        self.own_handlers.push(OwnHandler::new(name, options, OwnSink::Closure(Box::new(function))));
        self
    }

    /// Lets handlers of the configuration run programs, `type = "exec"`: who can change the configuration then runs what
    /// they like as the user of this process. Without it such a handler is refused.
    #[must_use]
    pub fn allow_exec(mut self, allow: bool) -> Self {
        self.allow_exec = allow;
        self
    }

    /// Adds an index to the types of an entry (I-7): a function of yours.
    #[must_use]
    pub fn index(mut self, entry: &str, index: IndexFunc) -> Self {
        self.library.indexes.entry(entry.to_owned()).or_default().push(index);
        self
    }

    /// Changes every object of an entry as it comes in, before anyone sees it (F-60).
    #[must_use]
    pub fn transform(mut self, entry: &str, transform: Transform) -> Self {
        self.library.transforms.insert(entry.to_owned(), transform);
        self
    }

    /// Starts everything; returns when handlers and HTTP are up. Call it inside an actix `System`; the API server need
    /// not be reachable yet.
    ///
    /// # Errors
    /// When there is no access to a cluster, something cannot be watched as asked, a handler cannot be made, or an
    /// address cannot be bound.
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

        let delivery = handlers::start(&config, &cluster, &journal, own_handlers, allow_exec)?;
        let [board, controlled] = [delivery.board.clone(), delivery.board.clone()];
        let statuses: Statuses = Arc::new(move || board.views());
        let control: HandlerControl = Arc::new(move |name, control| controlled.control(name, control));
        let (router, options) = (delivery.router().clone(), config.subscribe);
        let hub = Hub::new(router, journal.clone(), Arc::clone(&registry), &cluster, options);
        let server = access.server_url();
        let state = |limits: &ConnectionLimits| {
            let (registry, statuses, control) = (Arc::clone(&registry), Arc::clone(&statuses), Arc::clone(&control));
            ServeState::new(registry, statuses, control, journal.clone(), Arc::clone(&hub), &server, limits)
        };
        let servers = match listen(&config, state) {
            Ok(servers) => servers,
            Err(error) => {
                // What was started ends before its runtime does: actix polls an actor once more when it drops it.
                delivery.stop(FAILED_START_TIMEOUT, &registry).await;
                return Err(error);
            }
        };

        let sources = KubeSources { access: access.clone(), limits: options::limits(&config.kube) };
        let list_permits = Arc::new(Semaphore::new(config.kube.max_concurrent_lists as usize));
        let timings = Arc::clone(registry.timings());
        let shared = Shared { journal, sources: Arc::new(sources), list_permits, timings };
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let conductor = Arc::new(Conductor {
            access,
            registry,
            router: delivery.router().clone(),
            shared,
            arbiters: Arc::new(Arbiters::new(cores)),
            supervision: options::supervisor(&config.supervision),
            delivery: Mutex::new(Some(delivery)),
            library: Mutex::new(library),
            auxiliaries: Mutex::new(Auxiliaries::default()),
            clock: Instant::now(),
            poked: Notify::new(),
            rest: Mutex::default(),
            looks: 0.into(),
            failed: watch::Sender::new(None),
            bound: false.into(),
            fault: SharedFault::default(),
            state: Mutex::new(State::new(Arc::new(config.clone()), Rediscovery::new(config.kube.backoff))),
        });
        if let Some(recovered) = recovered {
            take_up(&conductor, &recovered).await?;
        }
        conductor.show_all_waiting();
        hub.open();
        let conducting = conductor.start();
        let handle = EngineHandle { conductor, cluster: cluster.into(), statuses };
        Ok(RunningEngine::new(handle, servers, hub, conducting))
    }
}

/// Takes up what an earlier run left; where that cannot be, what was started ends.
async fn take_up(conductor: &Arc<Conductor>, recovered: &Recovered) -> Result<(), EngineError> {
    let Err(error) = conductor.restore(recovered) else { return Ok(()) };
    let delivery = lock(&conductor.delivery).take();
    if let Some(delivery) = delivery {
        delivery.stop(FAILED_START_TIMEOUT, &conductor.registry).await;
    }
    conductor.arbiters.stop();
    Err(EngineError::State(error.to_string()))
}

/// Opens what outlives a restart, where there is a directory for it.
fn open_journal(config: &Config) -> Result<(Journal, Option<Recovered>), EngineError> {
    let Some(dir) = &config.state.dir else { return Ok((Journal::in_memory(), None)) };
    let opened = Journal::open(&Store::home(dir), config.state.journal());
    let (journal, recovered) = opened.map_err(|error| EngineError::State(error.to_string()))?;
    Ok((journal, Some(recovered)))
}

fn listen(config: &Config, state: impl Fn(&ConnectionLimits) -> ServeState) -> Result<Vec<HttpServer>, EngineError> {
    config.http.ready().map_err(EngineError::Configuration)?;
    let mut servers = Vec::new();
    for (key, options) in options::servers(&config.http) {
        let (address, scheme) = (options.listen, if options.tls.is_some() { "https" } else { "http" });
        let state = state(&options.limits);
        let server = serve::start(options, state).map_err(|error| EngineError::Listen { address, key, error })?;
        let what = if key == "listen" { "all" } else { "probes" };
        tracing::info!("serving {scheme}://{} ({what})", server.address());
        servers.push(server);
    }
    Ok(servers)
}
