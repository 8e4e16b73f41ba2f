//! What the conductor knows: it outlives every run of the conductor, so a panic costs no unit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use actix::Addr;
use tokio::time::Instant;

use super::{
    plan::{Allowed, Difference, KnownNamespaces, Plan, TypeName, UnitSpec},
    presence::{Looked, Presence, Served},
    reconcile::{First, History, Occasion, RunningSpec},
    rediscovery::Rediscovery,
};
use crate::{
    backoff::Backoff,
    config::{Config, OnRemoved},
    discovery::{Catalog, Owned},
    indexer::index_func::IndexFunc,
    informer::Informer,
    journal::{Move, UnitId},
    status::{Siblings, UnitState, UnitStatus},
    supervisor::actor::UnitSupervisor,
};

/// One unit, from its start until it was replaced.
#[derive(Clone)]
pub(super) struct Unit {
    pub(super) spec: UnitSpec,
    pub(super) informer: Arc<Informer>,
    /// `None` until it was started.
    pub(super) supervisor: Option<Addr<UnitSupervisor>>,
    pub(super) first: First,
    /// It was asked to stop.
    pub(super) stopping: bool,
}

/// The units of one type.
#[derive(Default)]
pub(super) struct TypeState {
    pub(super) units: Vec<Unit>,
    /// A task changes the units now.
    pub(super) busy: bool,
    /// They are to be looked at again, and why.
    pub(super) due: Option<Occasion>,
    /// They are not looked at before: the last change failed.
    pub(super) not_before: Option<Instant>,
    pub(super) failures: Option<Backoff>,
    /// See [`History::late`].
    pub(super) late: bool,
    /// See [`History::settled`].
    pub(super) settled: bool,
    /// What readers are still to be told by units, in order.
    pub(super) moves: Vec<(UnitId, Move)>,
    /// Shared by its units: when the type is synced.
    pub(super) siblings: Arc<Siblings>,
}

/// A namespace, and since when it is gone: what was deleted in it may still be on its way.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) gone_since: Option<Instant>,
}

/// Everything the conductor knows.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct State {
    pub(super) config: Arc<Config>,
    /// What the server serves; `None` before its first answer.
    pub(super) catalog: Option<Arc<Catalog>>,
    /// Groups that could not be asked at the first discovery: what they bring is not new.
    pub(super) unasked_at_start: BTreeSet<String>,
    pub(super) rediscovery: Rediscovery,
    /// A discovery is under way.
    pub(super) discovering: bool,
    pub(super) presence: Presence,
    pub(super) looked: Looked,
    pub(super) types: BTreeMap<TypeName, TypeState>,
    /// What types that appear are told to be: the weightiest occasion since some were taken in.
    pub(super) pending: Option<Occasion>,
    /// The types of the first discovery are taken in: others are late.
    pub(super) begun: bool,
    /// What has no unit, by entry and pattern or type.
    pub(super) waiting: BTreeMap<(String, String), Row>,
    /// Of what has none, what was said in the log.
    pub(super) told: BTreeSet<(String, String)>,
    /// Some pattern means no type now.
    pub(super) patterns_wait: bool,
    /// The CRDs are watched, and listed.
    pub(super) definitions_seen: bool,
    pub(super) namespaces: Option<BTreeMap<String, Namespace>>,
    pub(super) namespaces_forbidden: bool,
    pub(super) refused: BTreeMap<TypeName, Refusal>,
    pub(super) next_unit: u32,
    /// Indexes added at run time, by entry.
    pub(super) indexes: BTreeMap<String, Vec<IndexFunc>>,
}

/// A row of `/v1/resources` for what has no unit.
pub(super) type Row = Arc<UnitStatus>;

/// A type that may not be listed and watched in the whole cluster.
pub(super) struct Refusal {
    pub(super) allowed: Allowed,
    /// The server is being asked.
    pub(super) asking: bool,
    /// When all is asked again.
    pub(super) again_at: Instant,
    /// Nothing is asked before: the last question failed.
    pub(super) not_before: Option<Instant>,
}

/// How long a deleted namespace is kept.
const LINGER: Duration = Duration::from_secs(3);

impl State {
    /// Begins with a configuration; nothing is known of the server.
    pub(super) fn new(config: Arc<Config>, rediscovery: Rediscovery) -> Self {
        Self {
            config,
            rediscovery,
            catalog: None,
            unasked_at_start: BTreeSet::new(),
            discovering: false,
            presence: Presence::default(),
            looked: Looked::default(),
            types: BTreeMap::new(),
            pending: None,
            begun: false,
            waiting: BTreeMap::new(),
            told: BTreeSet::new(),
            patterns_wait: false,
            definitions_seen: false,
            namespaces: None,
            namespaces_forbidden: false,
            refused: BTreeMap::new(),
            next_unit: 0,
            indexes: BTreeMap::new(),
        }
    }

    /// Says that a type is to be looked at; the weightiest occasion counts.
    pub(super) fn due(&mut self, name: &TypeName, occasion: Occasion) {
        let kept = self.types.entry(name.clone()).or_default();
        kept.due = kept.due.max(Some(occasion));
    }

    /// Says that a type is to be looked at, if it is one of ours.
    pub(super) fn due_if_known(&mut self, name: &TypeName, occasion: Occasion) {
        if self.types.contains_key(name) {
            self.due(name, occasion);
        }
    }

    /// Says that all types are to be looked at.
    pub(super) fn all_due(&mut self, occasion: Occasion) {
        self.pending = self.pending.max(Some(occasion));
        for kept in self.types.values_mut() {
            kept.due = kept.due.max(Some(occasion));
        }
    }

    /// Returns the namespaces for a plan; those that have just gone are among them.
    pub(super) fn known_namespaces(&self) -> KnownNamespaces {
        match &self.namespaces {
            Some(known) => {
                KnownNamespaces::Known(known.iter().map(|(name, kept)| (name.clone(), kept.labels.clone())).collect())
            }
            None if self.namespaces_forbidden => KnownNamespaces::Forbidden,
            None => KnownNamespaces::Unknown,
        }
    }

    /// Takes in what the namespaces' informer knows. Returns whether that changes anything.
    pub(super) fn see_namespaces(&mut self, seen: KnownNamespaces, now: Instant) -> bool {
        let seen = match seen {
            KnownNamespaces::Unknown => return false,
            KnownNamespaces::Forbidden => {
                return self.namespaces.is_none() && !std::mem::replace(&mut self.namespaces_forbidden, true);
            }
            KnownNamespaces::Known(seen) => seen,
        };
        self.namespaces_forbidden = false;
        let mut changed = self.namespaces.is_none();
        let known = self.namespaces.get_or_insert_default();
        for (name, kept) in known.iter_mut().filter(|(name, _)| !seen.contains_key(*name)) {
            tracing::debug!(namespace = name, "the namespace is gone");
            kept.gone_since.get_or_insert(now);
        }
        known.retain(|_, kept| {
            let stays = kept.gone_since.is_none_or(|since| now < since + LINGER);
            changed |= !stays;
            stays
        });
        for (name, labels) in seen {
            changed |= known.get(&name).is_none_or(|kept| kept.labels != labels);
            known.insert(name, Namespace { labels, gone_since: None });
        }
        changed
    }

    /// Returns when the next namespace that is gone is forgotten.
    pub(super) fn next_to_forget(&self) -> Option<Instant> {
        let gone = self.namespaces.iter().flat_map(BTreeMap::values).filter_map(|kept| kept.gone_since);
        gone.min().map(|since| since + LINGER)
    }

    /// Returns the refusals as a plan takes them.
    pub(super) fn refused(&self) -> BTreeMap<TypeName, Allowed> {
        self.refused.iter().map(|(name, refusal)| (name.clone(), refusal.allowed.clone())).collect()
    }

    /// Returns the units of a type as they are reconciled with `desired`.
    pub(super) fn running(&self, name: &TypeName, desired: &[UnitSpec]) -> Vec<RunningSpec> {
        let Some(kept) = self.types.get(name) else { return Vec::new() };
        let is_wanted = |namespace: &str| desired.iter().any(|spec| spec.namespace.as_deref() == Some(namespace));
        let is_gone = |namespace: &str| {
            self.namespaces.as_ref().is_some_and(|known| !known.contains_key(namespace)) && !is_wanted(namespace)
        };
        let running = kept.units.iter().map(|unit| RunningSpec {
            id: unit.informer.id,
            spec: unit.spec.clone(),
            first: unit.first,
            sound: unit.supervisor.as_ref().is_some_and(Addr::connected) && !unit.stopping,
            gone: self.looked.gone.contains(name) || unit.spec.namespace.as_deref().is_some_and(is_gone),
        });
        running.collect()
    }

    /// Returns whether everything runs as it shall, as far as is known.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_none() && self.types.values().all(|kept| !kept.busy && kept.due.is_none())
    }

    /// Takes in types that a plan has and that were not there before.
    pub(super) fn take_in<'a>(&mut self, names: impl Iterator<Item = &'a TypeName>) {
        let pending = self.pending.take();
        for name in names {
            if !self.types.contains_key(name) {
                let late = self.begun && !self.unasked_at_start.contains(&name.group);
                let due = pending.or(Some(Occasion::Discovery));
                self.types.insert(name.clone(), TypeState { due, late, ..TypeState::default() });
            }
        }
        self.begun = true;
    }

    /// Returns the desired units of a type; `None` where what runs shall go on: the type may be there, or its entry says
    /// to keep what it showed.
    pub(super) fn desired(&self, name: &TypeName, plan: &Plan) -> Option<Vec<UnitSpec>> {
        let kept = self.types.get(name).map_or(&[][..], |kept| &kept.units);
        let keeps = |unit: &Unit| {
            let entry = self.config.resources.get(&unit.spec.entry);
            entry.is_some_and(|entry| entry.options.on_removed == OnRemoved::Keep)
        };
        let stays = self.looked.gone.contains(name) && kept.iter().any(keeps);
        if stays || self.looked.doubtful.contains(name) { None } else { plan.desired(name) }
    }

    /// Lets units that go on have the entry as it is written now.
    pub(super) fn adopt(&mut self, name: &TypeName, desired: &[UnitSpec]) {
        for unit in self.types.get_mut(name).into_iter().flat_map(|kept| &mut kept.units) {
            if let Some(spec) = desired.iter().find(|spec| unit.spec.difference(spec) == Difference::Nothing) {
                unit.spec = spec.clone();
            }
        }
    }

    /// Holds the running types against a catalog; `is_new` where the server has just answered with it.
    pub(super) fn look_for_running(&mut self, catalog: &Catalog, is_new: bool) {
        let running = self.types.iter().filter(|(_, kept)| !kept.units.is_empty());
        let running: Vec<TypeName> = running.map(|(name, _)| name.clone()).collect();
        let served = |name: &TypeName| served(catalog, name);
        self.looked = if is_new { self.presence.look(&running, served) } else { self.presence.judge(&running, served) };
    }

    /// Keeps the version in which a type is watched as long as it is served: another preferred one is no reason to list
    /// everything again. A reload may change it.
    pub(super) fn stick_to_versions(&self, owned: &mut [Owned], catalog: &Catalog) {
        for owned in owned {
            let Some(kept) = self.types.get(&TypeName::of(&owned.resource)) else { continue };
            let reload = self.pending.max(kept.due) == Some(Occasion::Reload);
            let running = kept.units.iter().find(|unit| unit.spec.entry == owned.entry).map(|unit| &unit.spec.resource);
            if let Some(running) = running.filter(|_| !reload)
                && catalog.types().iter().any(|served| served.resource == *running && served.is_watchable())
            {
                owned.resource.clone_from(running);
            }
        }
    }

    /// Returns whether a unit over the whole cluster gets answers.
    pub(super) fn is_watched_as_a_whole(&self, name: &TypeName) -> bool {
        let units = self.types.get(name).map_or(&[][..], |kept| &kept.units);
        units.iter().any(|unit| {
            let state = unit.informer.status.lock().state;
            unit.spec.is_whole_of_namespaces() && matches!(state, UnitState::Watching)
        })
    }

    /// Returns what is known of a type beside its units.
    pub(super) fn history(&self, name: &TypeName, occasion: Occasion) -> History {
        let kept = self.types.get(name);
        History { occasion, late: kept.is_some_and(|kept| kept.late), settled: kept.is_some_and(|kept| kept.settled) }
    }

    /// Returns all units, in the order in which they were made.
    pub(super) fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = self.types.values().flat_map(|kept| kept.units.iter().cloned()).collect();
        units.sort_by_key(|unit| unit.informer.id);
        units
    }
}

/// Returns what a catalog says of a type, in whatever version.
pub(super) fn served(catalog: &Catalog, name: &TypeName) -> Served {
    let mut types = catalog.types().iter().map(|served| &served.resource);
    if types.any(|resource| resource.group == name.group && resource.plural == name.plural) {
        Served::Yes
    } else if catalog.unavailable().iter().any(|unavailable| unavailable.group == name.group) {
        Served::Unknown
    } else {
        Served::No
    }
}
