//! From patterns to running units: asks what the server offers, starts what is found, asks again for what is missing.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use actix::Actor;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::{EngineError, Units, arbiters::Arbiters, options};
use crate::{
    backoff::Backoff,
    config::{Config, OnMissing},
    discovery::{self, Catalog, Pattern, Resolution},
    dispatcher::{UnitInfo, actor::Lanes},
    informer::{Informer, Shared},
    journal::UnitId,
    list_watch::kube::ClusterAccess,
    object::ResourceType,
    registry::{Registry, WaitingPattern},
    status::UnitStatus,
    supervisor::actor::UnitSupervisor,
};

/// How often a missing type is looked for.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Turns the patterns of the configuration into units.
pub(super) struct Resolver {
    pub(super) config: Arc<Config>,
    pub(super) access: ClusterAccess,
    pub(super) registry: Arc<Registry>,
    pub(super) lanes: Lanes,
    pub(super) shared: Shared,
    pub(super) arbiters: Arc<Arbiters>,
    pub(super) units: Arc<Units>,
}

/// One `match` pattern of one entry.
struct Wanted {
    entry: String,
    pattern: String,
    meant: Pattern,
    status: Arc<UnitStatus>,
    told: bool,
}

impl Resolver {
    /// Runs until every pattern has become a unit.
    ///
    /// # Errors
    /// When an entry with `on_missing = "fail"` names a type that is not served.
    pub(super) async fn run(self) -> Result<(), EngineError> {
        let mut wanted = self.wanted();
        self.show(&wanted);
        let mut backoff = Backoff::new(options::backoff(&self.config.kube.backoff));
        let started = Instant::now();
        while !wanted.is_empty() {
            let catalog = match self.access.client() {
                Ok(client) => discovery::discover(&client).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            let delay = match catalog {
                Ok(catalog) => {
                    self.resolve(&catalog, &mut wanted)?;
                    self.registry.set_discovered();
                    LOOK_AGAIN_AFTER
                }
                Err(error) => {
                    let delay = backoff.fail(started.elapsed(), rand::random());
                    let seconds = format!("{:.1}s", delay.as_secs_f64());
                    warn!(server = self.access.server_url(), %error, again_in = seconds, "failed to ask the API server for its types");
                    for missing in &wanted {
                        missing.status.lock().last_error = Some(error.clone());
                    }
                    delay
                }
            };
            if !wanted.is_empty() {
                sleep(delay).await;
            }
        }
        Ok(())
    }

    fn wanted(&self) -> Vec<Wanted> {
        let entries = self.config.resources.iter();
        let patterns =
            entries.flat_map(|(entry, resource)| resource.patterns.iter().map(move |pattern| (entry, pattern)));
        patterns
            .map(|(entry, pattern)| Wanted {
                entry: entry.clone(),
                pattern: pattern.to_string(),
                meant: pattern.pattern().clone(),
                status: Arc::new(UnitStatus::waiting(entry, pattern.as_str())),
                told: false,
            })
            .collect()
    }

    /// Starts a unit for every pattern the catalog knows, and leaves those in `wanted` that are waited for.
    fn resolve(&self, catalog: &Catalog, wanted: &mut Vec<Wanted>) -> Result<(), EngineError> {
        // One version of a type is enough (D12): they are the same objects.
        let name = |resource: &ResourceType| (resource.group.clone(), resource.plural.clone());
        let mut taken: BTreeMap<(String, String), String> =
            self.registry.informers().iter().map(|unit| (name(&unit.resource), unit.entry.clone())).collect();
        let mut missing = Vec::new();
        for mut pattern in wanted.drain(..) {
            let resource = match catalog.resolve(&pattern.meant) {
                Resolution::Found(resource) => resource,
                other => {
                    if self.tell_missing(&mut pattern, &other)? {
                        missing.push(pattern);
                    }
                    continue;
                }
            };
            match taken.get(&name(&resource)) {
                Some(entry) if *entry == pattern.entry => {} // two spellings of one type
                Some(entry) => {
                    let (pattern, other) = (&pattern.pattern, &pattern.entry);
                    error!(%resource, pattern, "watched by [resources.{entry}] already, ignored in [resources.{other}]");
                }
                None => {
                    taken.insert(name(&resource), pattern.entry.clone());
                    self.start_unit(&pattern.entry, resource);
                }
            }
        }
        *wanted = missing;
        self.show(wanted);
        Ok(())
    }

    /// Says that a pattern is no unit, once; returns whether it is waited for.
    fn tell_missing(&self, pattern: &mut Wanted, resolution: &Resolution) -> Result<bool, EngineError> {
        let why = resolution.why_not();
        pattern.status.lock().last_error = Some(why.clone());
        let (entry, text) = (&pattern.entry, &pattern.pattern);
        // What could not be asked may serve it: that is no reason to fail or to go on without it.
        let is_certain = !matches!(resolution, Resolution::Missing { unavailable, .. } if !unavailable.is_empty());
        let on_missing = self.config.resources.get(entry).map(|resource| resource.options.on_missing);
        let first = !std::mem::replace(&mut pattern.told, true);
        match on_missing {
            Some(OnMissing::Fail) if is_certain => {
                return Err(EngineError::Missing(format!("[resources.{entry}] match {text:?}: {why}")));
            }
            Some(OnMissing::Warn) if is_certain => {
                warn!(entry, pattern = text, why, "going on without this type");
                return Ok(false);
            }
            _ if !first => {}
            _ if matches!(resolution, Resolution::Unwatchable { .. }) => {
                warn!(entry, pattern = text, why, "this type cannot be watched");
            }
            _ => info!(entry, pattern = text, why, "waiting for the type to be served"),
        }
        Ok(true)
    }

    fn start_unit(&self, entry: &str, resource: ResourceType) {
        let Some(config) = self.config.resources.get(entry) else { return };
        let options = match options::informer(&self.config, config, &resource) {
            Ok(options) => options,
            Err(error) => {
                warn!(%resource, %error, "failed to read the options of the type");
                return;
            }
        };
        let mut informers = self.registry.informers();
        let id = UnitId(u32::try_from(informers.len()).expect("fewer types than 2^32"));
        info!(%resource, version = resource.version, entry, "watching");
        // Before its first append, or handlers would miss it.
        self.lanes.add_unit(id, UnitInfo { entry: entry.to_owned(), resource: resource.clone(), namespace: None });
        let informer = Arc::new(Informer::new(id, entry, Arc::new(resource), options));
        informers.push(Arc::clone(&informer));
        self.registry.set(informers, self.registry.waiting());
        let supervision = options::supervisor(&self.config.supervision);
        let supervisor =
            UnitSupervisor::new(Arc::clone(&informer), self.shared.clone(), Arc::clone(&self.arbiters), supervision);
        self.units.lock().push((informer, supervisor.start()));
    }

    fn show(&self, wanted: &[Wanted]) {
        let waiting = wanted.iter().map(|wanted| WaitingPattern {
            entry: wanted.entry.clone(),
            pattern: wanted.pattern.clone(),
            status: Arc::clone(&wanted.status),
        });
        self.registry.set(self.registry.informers(), waiting.collect());
    }
}
