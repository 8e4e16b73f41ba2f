//! What the conductor asks the server: which types it serves, and what may be watched where.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    auxiliary::{self, Auxiliary, Sighting},
    conductor::Conductor,
    plan::{Allowed, Plan, TypeName},
    presence::Served,
    reconcile::Occasion,
    rediscovery::Need,
    state::{Refusal, State, served},
};
use crate::{
    config::{Config, Rediscover},
    discovery::{self, Catalog, Selection},
    mutex::lock,
    object::ResourceType,
};

/// How many questions about rights are under way at a time.
const QUESTIONS: usize = 8;

impl Conductor {
    /// Asks which types are served, if it is time; the answer comes by itself.
    pub(super) fn ask_for_types(self: &Arc<Self>) {
        let mut state = self.lock();
        let due = state.rediscovery.next().is_some_and(|at| at <= self.clock.elapsed());
        if !due || state.discovering {
            return;
        }
        state.discovering = true;
        let conductor = Arc::clone(self);
        actix_rt::spawn(async move {
            let asking = AskingTypes(Arc::clone(&conductor));
            let answer = match conductor.access.client() {
                Ok(client) => discovery::discover(&client).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match answer {
                Ok(catalog) => conductor.take_catalog(catalog),
                Err(error) => conductor.complain_of_server(&error),
            }
            drop(asking);
        });
    }

    fn complain_of_server(&self, error: &str) {
        let mut state = self.lock();
        let delay = state.rediscovery.failed(self.clock.elapsed(), rand::random());
        let again_in = format!("{:.1}s", delay.as_secs_f64());
        let server = self.access.server_url();
        warn!(server, %error, again_in, "failed to ask the API server for its types");
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
        state.look_for_running(&catalog, true);
        state.all_due(if first { Occasion::Start } else { Occasion::Discovery });
        let need = Need {
            doubtful: !state.looked.doubtful.is_empty(),
            waiting_blindly: state.patterns_wait && !state.definitions_seen,
            never_again: state.config.kube.rediscover == Rediscover::Never,
        };
        let now = self.clock.elapsed();
        state.rediscovery.answered(|name| served(&catalog, name) == Served::Yes, need, now, rand::random());
    }

    /// Takes in what was seen of CRDs.
    fn see_definitions(&self, seen: &[Sighting]) {
        let mut state = self.lock();
        let Some(catalog) = state.catalog.clone() else { return };
        let now = self.clock.elapsed();
        for Sighting { name, gone, .. } in seen {
            let Some((plural, group)) = name.split_once('.') else { continue };
            let name = TypeName { group: group.to_owned(), plural: plural.to_owned() };
            if *gone {
                info!(definition = %name, "the CRD was deleted");
                state.presence.definition_deleted(name.clone());
            } else {
                state.presence.definition_seen(&name);
            }
            if (served(&catalog, &name) == Served::Yes) == *gone {
                state.rediscovery.saw_definition(name.clone(), !gone, now);
            }
            state.look_for_running(&catalog, false);
            state.due_if_known(&name, Occasion::Discovery);
        }
        drop(state);
        self.poke();
    }

    /// Starts the informers that the plan needs, and stops the others.
    pub(super) fn keep_auxiliaries(self: &Arc<Self>, plan: &Plan, selection: &Selection, depends_on_crds: bool) {
        let (config, catalog) = {
            let state = self.lock();
            (Arc::clone(&state.config), state.catalog.clone().unwrap_or_default())
        };
        let offers = |resource: &ResourceType| {
            catalog.types().iter().any(|served| served.resource == *resource && served.is_watchable())
        };
        let definitions =
            depends_on_crds && config.kube.rediscover == Rediscover::CrdWatch && offers(&auxiliary::definitions());
        let namespaces = plan.needs_namespaces;
        let mut running = lock(&self.auxiliaries);
        if namespaces && running.namespaces.is_none() {
            let conductor = Arc::downgrade(self);
            let tell = move |_: Vec<Sighting>| conductor.upgrade().iter().for_each(|conductor| conductor.poke());
            running.namespaces = Some(Auxiliary::start(auxiliary::namespaces(), self.parts(&config), tell));
        }
        if definitions && running.definitions.is_none() {
            let conductor = Arc::downgrade(self);
            let tell = move |seen: Vec<Sighting>| {
                conductor.upgrade().iter().for_each(|conductor| conductor.see_definitions(&seen));
            };
            running.definitions = Some(Auxiliary::start(auxiliary::definitions(), self.parts(&config), tell));
        }
        let idle = [running.namespaces.take_if(|_| !namespaces), running.definitions.take_if(|_| !definitions)];
        let definitions_seen = running.definitions.as_ref().is_some_and(Auxiliary::is_synced);
        drop(running);
        for idle in idle.into_iter().flatten() {
            actix_rt::spawn(idle.stop());
        }
        let mut state = self.lock();
        state.definitions_seen = definitions_seen;
        state.patterns_wait = !selection.unmatched.is_empty();
        if !namespaces {
            state.namespaces = None;
            state.namespaces_forbidden = false;
        }
    }

    /// Asks about rights that are not known, and again about all that were refused some time ago.
    pub(super) fn ask_for_rights(self: &Arc<Self>, plan: &Plan) {
        let mut state = self.lock();
        let now = Instant::now();
        let mut questions = Vec::new();
        let of_type = |name: &TypeName| plan.types.get(name).map_or(&[][..], Vec::as_slice);
        let askable = |refusal: &Refusal| !refusal.asking && refusal.not_before.is_none_or(|at| at <= now);
        for (name, refusal) in state.refused.iter_mut().filter(|(_, refusal)| askable(refusal)) {
            let Some(resource) = of_type(name).first().map(|planned| planned.resource.clone()) else { continue };
            let again = refusal.again_at <= now;
            let mut namespaces: BTreeSet<String> =
                of_type(name).iter().flat_map(|planned| planned.unasked.iter().cloned()).collect();
            if again {
                namespaces.extend(refusal.allowed.keys().cloned());
            }
            if again || !namespaces.is_empty() {
                refusal.asking = true;
                questions.push((name.clone(), resource, namespaces, again));
            }
        }
        drop(state);
        for (name, resource, namespaces, again) in questions {
            let conductor = Arc::clone(self);
            actix_rt::spawn(async move {
                let mut asking = AskingRights { conductor, name, failed: true, again };
                match asking.conductor.rights(&resource, namespaces, again).await {
                    Ok(answer) => {
                        asking.conductor.take_rights(&asking.name, answer);
                        asking.failed = false;
                    }
                    Err(error) => warn!(%resource, %error, "failed to ask what may be watched"),
                }
            });
        }
    }

    /// Asks about the whole cluster, if `again`, and if that is refused about namespaces. `None`: the cluster is allowed.
    async fn rights(
        &self,
        resource: &ResourceType,
        namespaces: BTreeSet<String>,
        again: bool,
    ) -> Result<Option<Allowed>, String> {
        let client = self.access.client().map_err(|error| error.to_string())?;
        let ask = async |namespace: Option<&str>| {
            let access = discovery::allowed(&client, resource, namespace).await;
            access.map(|access| access.list && access.watch).map_err(|error| error.to_string())
        };
        if again && ask(None).await? {
            return Ok(None);
        }
        let answers = stream::iter(namespaces).map(|namespace| async {
            let allowed = ask(Some(&namespace)).await?;
            Ok::<_, String>((namespace, allowed))
        });
        let answers: Vec<_> = answers.buffer_unordered(QUESTIONS).collect().await;
        answers.into_iter().collect::<Result<Allowed, String>>().map(Some)
    }

    fn take_rights(&self, name: &TypeName, answer: Option<Allowed>) {
        let mut state = self.lock();
        match answer {
            None => {
                info!(resource = %name, "allowed in the whole cluster now");
                state.refused.remove(name);
            }
            Some(allowed) => {
                if let Some(refusal) = state.refused.get_mut(name) {
                    refusal.allowed.extend(allowed);
                }
            }
        }
        state.due(name, Occasion::Scope);
    }
}

/// Notes whether a type is refused in the whole cluster.
pub(super) fn note_refusal(state: &mut State, name: &TypeName, refused: bool) {
    match (state.refused.get(name), refused) {
        (None, true) => {
            info!(resource = %name, "not allowed in the whole cluster, looking for namespaces in which it is");
            let again_at = ask_again_at(&state.config);
            let refusal = Refusal { allowed: Allowed::new(), asking: false, again_at, not_before: None };
            state.refused.insert(name.clone(), refusal);
            state.due(name, Occasion::Scope);
        }
        (Some(refusal), false) if !refusal.asking && state.is_watched_as_a_whole(name) => {
            state.refused.remove(name);
            state.due(name, Occasion::Scope);
        }
        _ => {}
    }
}

/// Whoever asks for types, however that ends.
struct AskingTypes(Arc<Conductor>);

impl Drop for AskingTypes {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.discovering = false;
        if std::thread::panicking() {
            state.rediscovery.failed(self.0.clock.elapsed(), 0.0);
        }
        drop(state);
        self.0.poke();
    }
}

/// Whoever asks for rights, however that ends.
struct AskingRights {
    conductor: Arc<Conductor>,
    name: TypeName,
    failed: bool,
    again: bool,
}

impl Drop for AskingRights {
    fn drop(&mut self) {
        let mut state = self.conductor.lock();
        let (again_at, pause) = (ask_again_at(&state.config), state.config.kube.backoff.max);
        if let Some(refusal) = state.refused.get_mut(&self.name) {
            refusal.asking = false;
            if self.again {
                refusal.again_at = again_at;
            }
            if self.failed {
                refusal.not_before = Some(Instant::now() + pause);
            }
        }
        drop(state);
        self.conductor.poke();
    }
}

/// Refused rights are asked for again after four times the longest backoff, by default two minutes, and a part more by
/// chance.
fn ask_again_at(config: &Config) -> Instant {
    let period = config.kube.backoff.max * 4;
    Instant::now() + period.mul_f64(1.0 + rand::random::<f64>() / 4.0).max(Duration::from_millis(100))
}
