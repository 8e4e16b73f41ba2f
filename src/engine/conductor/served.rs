//! Requests for the types that the server serves. They are repeated when CRDs are added, changed or deleted, and when the server
//! answers 404 to a unit. An informer of the engine itself watches the CRDs.

use std::sync::{Arc, atomic::Ordering};

use serde::Deserialize;
use tracing::{info, warn};

use super::{
    Conductor, Fatal,
    auxiliary::{self, Auxiliary},
    state::{State, Unit, served},
};
use crate::engine::{
    plan::presence::{Presence, Served},
    plan::reconcile::Occasion,
    plan::rediscovery::{Expected, Need},
    plan::{KnownNamespaces, Outlook, TypeName, auxiliary_reflector},
};
use crate::{
    change::Change,
    config::Rediscover,
    discovery::{self, Catalog},
    journal::Record,
    mutex::lock,
    object::{Object, ResourceType},
};

impl Conductor {
    /// Requests the served types if that is due; the answer arrives later.
    pub(in crate::engine) fn ask_for_types(self: &Arc<Self>) {
        let mut state = self.lock();
        let due = state.rediscovery.next().is_some_and(|at| at <= self.clock.elapsed());
        if !due || state.discovering {
            return;
        }
        state.discovering = true;
        let conductor = Arc::clone(self);
        self.spawn(async move { conductor.discover().await }, |conductor, answer| {
            conductor.lock().discovering = false;
            match answer.unwrap_or_else(|panic| Err(panic.to_string())) {
                Ok(catalog) => conductor.take_catalog(catalog),
                Err(error) => conductor.complain_of_server(&error),
            }
        });
    }

    /// Requests the served types, after checking that the state directory belongs to this cluster.
    async fn discover(&self) -> Result<Catalog, String> {
        let client = self.access.client();
        let journal = &self.shared.journal;
        if journal.is_stored() && !self.bound.load(Ordering::Acquire) {
            if let Some(uid) = discovery::cluster_uid(&client).await.map_err(|error| error.to_string())? {
                if let Err(error) = journal.bind(&uid) {
                    self.failed.send_replace(Some(Fatal::State(error.to_string())));
                    return Err(error.to_string());
                }
            } else {
                warn!(
                    "cannot check that [state] dir belongs to this cluster: no right to read the namespace \
                     kube-system; grant the rights that `deltabus rbac` prints"
                );
            }
            self.bound.store(true, Ordering::Release);
        }
        let wanted = self.lock().config.wanted();
        discovery::discover_for(&client, &wanted).await.map_err(|error| error.to_string())
    }

    fn complain_of_server(&self, error: &str) {
        let mut state = self.lock();
        let delay = state.rediscovery.failed(self.clock.elapsed(), rand::random());
        let again_in = format!("{:.1}s", delay.as_secs_f64());
        let server = self.access.server_url();
        warn!(server, %error, again_in, "cannot get the types of the API server");
        if state.catalog.is_none() {
            for row in state.waiting.values() {
                row.lock().last_error = Some(error.to_owned());
            }
        }
    }

    fn take_catalog(&self, catalog: Catalog) {
        let mut state = self.lock();
        let catalog = Arc::new(catalog);
        self.registry.set_catalog(Arc::clone(&catalog));
        let first = state.catalog.is_none();
        if first {
            let groups = catalog.unavailable().iter().map(|unavailable| unavailable.group.clone());
            state.unasked_at_start = groups.collect();
        }
        state.catalog = Some(Arc::clone(&catalog));
        state.look_for_running(&catalog);
        state.all_due(if first { Occasion::Start } else { Occasion::Discovery });
        state.patterns_wait = state.outlook().is_some_and(|outlook| !outlook.selection.unmatched.is_empty());
        let need = Need {
            doubtful: state.types.keys().any(|name| state.is_doubtful(name)),
            waiting_blindly: state.patterns_wait && (!state.definitions_seen || !catalog.unavailable().is_empty()),
            never_again: state.config.kube.rediscover == Rediscover::Never,
        };
        let now = self.clock.elapsed();
        let State { rediscovery, types, .. } = &mut *state;
        let agrees = |name: &TypeName, expected| match expected {
            Expected::Served => served(&catalog, name) == Served::Yes,
            Expected::Gone => served(&catalog, name) != Served::Yes,
            Expected::Moved => !types.get(name).is_some_and(|kept| kept.is_missed(&catalog)),
            Expected::Changed => false,
        };
        rediscovery.answered(agrees, need, now, rand::random());
    }

    /// Schedules a request for the types if the server has begun to answer 404 to a unit: it may serve the type in another version.
    pub(in crate::engine) fn see_missing(&self) {
        let mut state = self.lock();
        let follows = state.config.kube.rediscover == Rediscover::CrdWatch;
        let State { rediscovery, types, .. } = &mut *state;
        for (name, kept) in types {
            let missing = kept.units.iter().any(Unit::is_missing);
            if missing && !kept.missing && follows {
                rediscovery.expect(name.clone(), Expected::Moved, self.clock.elapsed());
            }
            kept.missing = missing;
        }
    }

    /// Schedules a request for the types after a CRD was added, changed or deleted, unless the last answer already agrees. A change
    /// matters only to a waiting pattern: a running type keeps its version while the server serves it.
    fn see_definitions(&self, records: &[Record]) {
        let mut state = self.lock();
        let Some(catalog) = state.catalog.clone() else { return };
        let now = self.clock.elapsed();
        // A relist also reports unchanged CRDs. They are no reason for a request.
        let changes = records.iter().map(|record| &record.change);
        for change in changes.filter(|change| !matches!(change, Change::Unchanged { .. })) {
            let Some((plural, group)) = change.object().and_then(|object| object.name().split_once('.')) else {
                continue;
            };
            let name = TypeName { group: group.to_owned(), plural: plural.to_owned() };
            let gone = change.state().is_none();
            if gone {
                info!(definition = %name, "the CRD was deleted");
            } else if let Some(kept) = state.types.get_mut(&name) {
                kept.presence = Presence::default();
            }
            let expected = match (gone, served(&catalog, &name) == Served::Yes) {
                (true, true) => Expected::Gone,
                (false, false) => Expected::Served,
                (false, true) if state.patterns_wait && has_other_spec(change) => Expected::Changed,
                _ => continue,
            };
            state.rediscovery.expect(name, expected, now);
        }
        drop(state);
        self.poke();
    }

    /// Starts the engine's own informers that the plan needs, and stops the others.
    pub(in crate::engine) fn keep_auxiliaries(self: &Arc<Self>, outlook: &Outlook) {
        let (config, catalog) = {
            let state = self.lock();
            (Arc::clone(&state.config), state.catalog.clone().unwrap_or_default())
        };
        let keep = |slot: &mut Option<Auxiliary>, wanted: bool, resource: ResourceType, see: fn(&Self, &[Record])| {
            if !wanted {
                slot.take().into_iter().for_each(|idle| drop(actix_rt::spawn(idle.stop())));
            } else if slot.is_none() {
                let conductor = Arc::downgrade(self);
                let tell = move |records: &[Record]| {
                    if let Some(conductor) = conductor.upgrade() {
                        see(&conductor, records);
                    }
                };
                let reflector = auxiliary_reflector(&config);
                *slot = Some(Auxiliary::start(resource, &self.shared, reflector, tell));
            }
        };
        let (namespaces, definitions) = (auxiliary::namespaces(), auxiliary::definitions());
        let follows_crds = outlook.depends_on_crds
            && config.kube.rediscover == Rediscover::CrdWatch
            && catalog.types().iter().any(|served| served.resource == definitions && served.is_watchable());
        let needs_namespaces = outlook.plan.needs_namespaces;
        let mut running = lock(&self.auxiliaries);
        keep(&mut running.namespaces, needs_namespaces, namespaces, |conductor, _| conductor.poke());
        keep(&mut running.definitions, follows_crds, definitions, Self::see_definitions);
        let definitions_seen = running.definitions.as_ref().is_some_and(Auxiliary::is_synced);
        drop(running);
        let mut state = self.lock();
        state.definitions_seen = definitions_seen;
        state.patterns_wait = !outlook.selection.unmatched.is_empty();
        if !needs_namespaces {
            state.namespaces = KnownNamespaces::Unknown; // no plan needs them
        }
    }
}

/// Returns true if a change is an update that includes the spec of the object.
fn has_other_spec(change: &Change) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Meta {
        metadata: Generation,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Generation {
        generation: u64,
    }
    let generation = |object: &Object| object.decode::<Meta>().map_or(0, |object| object.metadata.generation);
    change.old().is_some_and(|old| change.object().map(generation) != Some(generation(old)))
}
