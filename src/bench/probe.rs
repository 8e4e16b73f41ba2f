//! The measured engine, and a handler that observes its events.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{
    figures::{Reads, per_second},
    measure::{cpu, monotonic, resident, resident_peak, written},
    orders::{EngineOptions, EventsCost, Stamp, Synced},
    reads::Reading,
};
use crate::{
    config::{Config, ConfigErrors, EventType, HandlerOptions},
    engine::{Engine, EngineError, RunningEngine},
    list_watch::kube::{AccessError, ClusterAccess},
    lister::{Lister, Selector},
    notification::Notification,
    object::Object,
    status::UnitView,
};

/// Delay before CPU time and memory are read. During this delay, the engine becomes idle.
const REST: Duration = Duration::from_secs(2);
/// Time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(150);
/// Time after which a sync is aborted if it makes no progress and the engine hears nothing from the server.
const PATIENCE: Duration = Duration::from_mins(1);

/// Reason why a measurement is impossible.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The options are not a valid configuration.
    #[error("invalid engine configuration: {0}")]
    Configuration(#[from] ConfigErrors),
    /// No access to the server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The engine could not start, or has stopped.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The first sync did not complete.
    #[error("the first sync did not complete: {0}")]
    NotSynced(String),
    /// The cache is empty.
    #[error("there are no objects of this type, so there is nothing to measure")]
    Empty,
}

/// Events that the handler has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Number of events that contain an object. The event that reports the complete sync contains none.
    events: u64,
    /// Version of the last event.
    version: u64,
    /// Time at which the handler saw the first object of this phase.
    first: Option<u64>,
    /// Time at which the handler last saw an object.
    last: u64,
    /// Time at which the first sync was complete.
    synced: Option<u64>,
    /// Version that a task waits for. Events of earlier versions do not wake the task, because each wake-up costs CPU.
    awaited: u64,
    /// Arrivals, if they are recorded.
    noted: Option<Vec<Stamp>>,
}

impl Seen {
    /// Adds events; returns true if the waiting task has to wake up.
    fn see(&mut self, notification: &Notification) -> bool {
        let now = monotonic();
        for event in notification.events() {
            let Some(object) = event.record.object() else {
                self.synced = Some(now);
                continue;
            };
            self.events += 1;
            self.version = object.resource_version().parse().unwrap_or_default();
            self.first.get_or_insert(now);
            self.last = now;
            self.noted.as_mut().into_iter().for_each(|noted| noted.push((self.version, now)));
        }
        self.synced == Some(now) || self.version >= self.awaited
    }
}

/// Resource usage at the start of a phase.
#[derive(Clone, Copy, Debug)]
struct Begun {
    cpu: u64,
    written: u64,
    events: u64,
}

/// A measured engine and its handler. Must be used inside an actix `System`.
pub struct Probe {
    engine: RunningEngine,
    seen: Arc<watch::Sender<Seen>>,
    /// Start time.
    start: u64,
    phase: Begun,
}

impl Probe {
    /// Starts an engine like `deltabus run`, without HTTP and with one handler.
    ///
    /// # Errors
    /// Fails if the engine cannot start with these options.
    pub async fn start(options: &EngineOptions) -> Result<Self, ProbeError> {
        let (cpu_before, written_before) = (cpu(), written());
        let config = config(options)?;
        let access = ClusterAccess::without_credentials(&options.server, "bench")?;
        let seen = Arc::new(watch::Sender::new(Seen::default()));
        let of_handler = Arc::clone(&seen);
        let on = vec![EventType::Added, EventType::Updated, EventType::Deleted, EventType::Removed, EventType::Synced];
        let handler = HandlerOptions { on, ..HandlerOptions::default() };
        let start = monotonic();
        let builder = Engine::builder().config(config).cluster(access);
        let builder = builder.on_change("bench", handler, move |notification| {
            of_handler.send_if_modified(|seen| seen.see(notification));
            Ok(())
        });
        let engine = builder.start().await?;
        let phase = Begun { cpu: cpu_before, written: written_before, events: 0 };
        Ok(Self { engine, seen, start, phase })
    }

    /// Waits until the first sync is complete and the engine is idle. Meanwhile reports the number of objects, and the last
    /// failure.
    ///
    /// # Errors
    /// Fails if the sync makes no progress, or if there are no objects.
    pub async fn synced(&self, mut tell: impl FnMut(u64, Option<String>)) -> Result<Synced, ProbeError> {
        let (mut told, mut since) = (0, monotonic());
        let mut wait = std::pin::pin!(self.engine.wait_for_sync());
        loop {
            tokio::select! {
                () = &mut wait => break,
                error = self.engine.failed() => return Err(error.into()),
                () = sleep(TELL_EVERY) => {}
            }
            let view = self.view();
            let done = view.as_ref().map_or(0, |view| view.objects + view.queue_length);
            let (heard, wrong) = view.map(|view| (view.last_activity_seconds, view.last_error)).unwrap_or_default();
            let heard = heard.is_some_and(|ago| ago < PATIENCE.as_secs_f64());
            if done != told || heard {
                (told, since) = (done, monotonic());
            }
            if u128::from(monotonic() - since) > PATIENCE.as_nanos() {
                let why = self.engine.registry().unready().into_iter().next().map(|(_, why)| why);
                return Err(ProbeError::NotSynced(why.unwrap_or_else(|| "no reason known".to_owned())));
            }
            tell(done, wrong);
        }
        let view = self.view().filter(|view| view.synced && view.objects > 0).ok_or_else(|| self.nothing())?;
        let mut seen = self.seen.subscribe();
        let synced = seen.wait_for(|seen| seen.synced.is_some()).await.ok().and_then(|seen| seen.synced);
        sleep(REST).await;
        let wall_nanos = synced.map_or(0, |synced| synced.saturating_sub(self.start));
        let (cpu_nanos, resident, resident_peak) = (cpu() - self.phase.cpu, resident(), resident_peak());
        Ok(Synced {
            objects: view.objects,
            wall_nanos,
            cpu_nanos,
            resident,
            resident_peak,
            bodies: view.bytes,
            object_bytes: self.object_bytes(),
        })
    }

    /// Starts a phase: resource usage is measured from this call on.
    pub fn begin(&mut self) {
        self.seen.send_modify(|seen| seen.first = None);
        self.phase = Begun { cpu: cpu(), written: written(), events: self.seen.borrow().events };
    }

    /// Waits until the handler has seen a version and the engine is idle; returns the usage since [`Probe::begin`].
    /// Meanwhile reports the number of events.
    ///
    /// # Errors
    /// Fails if the engine has stopped.
    pub async fn reached(&self, version: u64, mut tell: impl FnMut(u64)) -> Result<EventsCost, ProbeError> {
        if self.version() < version {
            self.meanwhile(self.reach(version), &mut tell).await?;
        }
        sleep(REST).await;
        Ok(self.used())
    }

    /// Waits for the time `within`, and returns the usage since [`Probe::begin`]. Meanwhile reports the number of events.
    ///
    /// # Errors
    /// Fails if the engine has stopped.
    pub async fn follow(&self, within: Duration, mut tell: impl FnMut(u64)) -> Result<EventsCost, ProbeError> {
        self.meanwhile(sleep(within), &mut tell).await?;
        Ok(self.used())
    }

    /// Waits until the handler has seen a version.
    async fn reach(&self, version: u64) {
        self.seen.send_modify(|seen| seen.awaited = version);
        drop(self.seen.subscribe().wait_for(|seen| seen.version >= version).await);
        self.seen.send_modify(|seen| seen.awaited = u64::MAX);
    }

    /// Waits for a future, and meanwhile reports the number of events.
    async fn meanwhile(&self, end: impl Future<Output = ()>, tell: &mut impl FnMut(u64)) -> Result<(), ProbeError> {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                error = self.engine.failed() => return Err(error.into()),
                () = sleep(TELL_EVERY) => tell(self.events()),
            }
        }
    }

    /// Starts recording the arrival of each event.
    pub fn note(&self) {
        self.seen.send_modify(|seen| seen.noted = Some(Vec::new()));
    }

    /// Waits for a version, and returns the recorded arrivals.
    pub async fn arrivals(&self, version: u64) -> Vec<Stamp> {
        self.reach(version).await;
        let mut arrivals = None;
        self.seen.send_modify(|seen| arrivals = seen.noted.take());
        arrivals.unwrap_or_default()
    }

    /// Reads the cache on a separate thread. Each kind of read lasts for the time `within`. Returns the results, and the number of
    /// events per second during the reads.
    ///
    /// # Errors
    /// Fails if there is nothing to read.
    pub async fn read(&self, within: Duration, by_key_only: bool) -> Result<(Reads, f64), ProbeError> {
        let lister = self.lister().ok_or(ProbeError::Empty)?;
        let seen = Arc::clone(&self.seen);
        let reading = move || {
            let reading = Reading::new(lister)?;
            let (began, before) = (monotonic(), seen.borrow().events);
            let reads = reading.run(within, by_key_only);
            let events = seen.borrow().events - before;
            Some((reads, per_second(events, monotonic() - began)))
        };
        tokio::task::spawn_blocking(reading).await.ok().flatten().ok_or(ProbeError::Empty)
    }

    /// Stops the engine.
    pub async fn stop(self) {
        self.engine.stop().await;
    }

    /// Returns a reader of the cache; `None` until discovery has found the type.
    pub fn lister(&self) -> Option<Lister> {
        self.engine.listers(ENTRY).into_iter().next()
    }

    fn events(&self) -> u64 {
        self.seen.borrow().events - self.phase.events
    }

    fn used(&self) -> EventsCost {
        let (first, last) = {
            let seen = self.seen.borrow();
            (seen.first, seen.last)
        };
        EventsCost {
            delivered: self.events(),
            wall_nanos: first.map_or(0, |first| last.saturating_sub(first)),
            cpu_nanos: cpu() - self.phase.cpu,
            resident: resident(),
            written: written() - self.phase.written,
        }
    }

    fn view(&self) -> Option<UnitView> {
        self.engine.registry().views().into_iter().next()
    }

    /// Returns the version of the cache; 0 if there is no cache, or if the version is not a number.
    fn version(&self) -> u64 {
        self.view().and_then(|view| view.resource_version.parse().ok()).unwrap_or_default()
    }

    /// Returns the reason why there is nothing to measure.
    fn nothing(&self) -> ProbeError {
        let message = self.view().and_then(|view| view.message.filter(|_| !view.synced).or(view.last_error));
        message.map_or(ProbeError::Empty, ProbeError::NotSynced)
    }

    fn object_bytes(&self) -> u64 {
        let Some(lister) = self.lister() else { return 0 };
        let objects = lister.list(&Selector::all());
        let bytes: usize = objects.iter().map(Object::json_bytes).sum();
        (bytes / objects.len().max(1)) as u64
    }
}

/// Name of the one entry of the configuration.
const ENTRY: &str = "measured";

fn config(options: &EngineOptions) -> Result<Config, ConfigErrors> {
    let mut resource = json!({"match": [options.resource], "index": options.indexes});
    if options.keep_all {
        resource["drop"] = json!([]);
    }
    resource["compression"] = json!(options.compression);
    let mut whole = json!({"resources": {ENTRY: resource}});
    if let Some(dir) = &options.state {
        whole["state"] = json!({"dir": dir.to_string_lossy()});
    }
    let text = toml::to_string(&whole).unwrap_or_default(); // this value always converts to TOML
    let mut config = Config::from_toml_str(&text)?;
    config.http.listen = None;
    Ok(config)
}
