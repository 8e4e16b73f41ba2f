//! What the conductor knows: it outlives every run of the conductor, so a panic costs no unit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use actix::Addr;
use tokio::time::Instant;

use super::{
    facts::Known,
    plan::{KnownNamespaces, NamespaceLabels, Plan, SpecDifference, TypeName, UnitSpec},
    presence::{Looked, Served},
    reconcile::{First, History, Occasion, RunningSpec},
    rediscovery::Rediscovery,
};
use crate::{
    backoff::Backoff,
    config::{Config, OnRemoved},
    discovery::Catalog,
    indexer::{index_func::IndexFunc, siblings::Siblings},
    informer::{Informer, actor::UnitSupervisor},
    journal::{Move, UnitId},
    status::{UnitState, UnitStatus},
};

/// Question to the server in which namespaces a type may be listed and watched.
pub(super) struct Inquiry {
    /// The server is being asked.
    pub(super) asking: bool,
    /// Time at which all is asked again.
    pub(super) again_at: Instant,
    /// Nothing is asked before: the last question failed.
    pub(super) not_before: Option<Instant>,
}

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
    /// It is from an earlier run, and was not started in this one.
    pub(super) saved: bool,
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
    /// What readers are to be told by units once their first list is there, or before they stop.
    pub(super) arrivals: Vec<(UnitId, Move)>,
    /// Shared by its units: when the type is synced.
    pub(super) siblings: Arc<Siblings>,
}

/// Everything the conductor knows.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct State {
    /// What plans are made of.
    pub(super) known: Known,
    /// Groups that could not be asked at the first discovery: what they bring is not new.
    pub(super) unasked_at_start: BTreeSet<String>,
    pub(super) rediscovery: Rediscovery,
    /// A discovery is under way.
    pub(super) discovering: bool,
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
    /// Namespaces that are gone, and since when: what was deleted in them may still be on its way.
    pub(super) lingering: BTreeMap<String, Instant>,
    /// What is asked about types that are refused in the whole cluster.
    pub(super) inquiries: BTreeMap<TypeName, Inquiry>,
    pub(super) next_unit: u32,
    /// Indexes added at run time, by entry.
    pub(super) indexes: BTreeMap<String, Vec<IndexFunc>>,
}

/// A row of `/v1/resources` for what has no unit.
pub(super) type Row = Arc<UnitStatus>;

/// How long a deleted namespace is kept.
const LINGER: Duration = Duration::from_secs(3);

impl State {
    /// Begins with a configuration; nothing is known of the server.
    pub(super) fn new(config: Arc<Config>, rediscovery: Rediscovery) -> Self {
        Self {
            known: Known::new(config),
            rediscovery,
            unasked_at_start: BTreeSet::new(),
            discovering: false,
            looked: Looked::default(),
            types: BTreeMap::new(),
            pending: None,
            begun: false,
            waiting: BTreeMap::new(),
            told: BTreeSet::new(),
            patterns_wait: false,
            definitions_seen: false,
            lingering: BTreeMap::new(),
            inquiries: BTreeMap::new(),
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

    /// Says that all types are to be looked at. A reload may change the version in which they are watched.
    pub(super) fn all_due(&mut self, occasion: Occasion) {
        if occasion == Occasion::Reload {
            self.known.forget_versions();
        }
        self.pending = self.pending.max(Some(occasion));
        for kept in self.types.values_mut() {
            kept.due = kept.due.max(Some(occasion));
        }
    }

    /// Takes in what the namespaces' informer knows. Returns whether that changes anything.
    pub(super) fn see_namespaces(&mut self, seen: KnownNamespaces, now: Instant) -> bool {
        let seen = match seen {
            KnownNamespaces::Known(seen) => KnownNamespaces::Known(self.with_lingering(seen, now)),
            // Those that were listed once are better than none.
            _ if self.known.namespaces != KnownNamespaces::Unknown => return false,
            seen => seen,
        };
        let changed = self.known.namespaces != seen;
        if changed {
            self.known.namespaces = seen;
        }
        changed
    }

    /// Adds the namespaces that have just gone.
    fn with_lingering(&mut self, mut seen: NamespaceLabels, now: Instant) -> NamespaceLabels {
        self.lingering.retain(|name, _| !seen.contains_key(name));
        let KnownNamespaces::Known(known) = &self.known.namespaces else { return seen };
        let gone: Vec<_> = known.iter().filter(|(name, _)| !seen.contains_key(*name)).collect();
        for (name, labels) in gone {
            let since = *self.lingering.entry(name.clone()).or_insert_with(|| {
                tracing::debug!(namespace = name, "the namespace is gone");
                now
            });
            if now < since + LINGER {
                seen.insert(name.clone(), labels.clone());
            } else {
                self.lingering.remove(name);
            }
        }
        seen
    }

    /// Forgets the namespaces: nobody watches them any more.
    pub(super) fn forget_namespaces(&mut self) {
        self.lingering.clear();
        if self.known.namespaces != KnownNamespaces::Unknown {
            self.known.namespaces = KnownNamespaces::Unknown;
        }
    }

    /// Returns when the next namespace that is gone is forgotten.
    pub(super) fn next_to_forget(&self) -> Option<Instant> {
        self.lingering.values().min().map(|since| *since + LINGER)
    }

    /// Returns the units of a type as they are reconciled with `desired`.
    pub(super) fn running(&self, name: &TypeName, desired: &[UnitSpec]) -> Vec<RunningSpec> {
        let Some(kept) = self.types.get(name) else { return Vec::new() };
        let is_wanted = |namespace: &str| desired.iter().any(|spec| spec.namespace.as_deref() == Some(namespace));
        let is_missing = |namespace: &str| match &self.known.namespaces {
            KnownNamespaces::Known(known) => !known.contains_key(namespace),
            KnownNamespaces::Unknown | KnownNamespaces::Forbidden => false,
        };
        let is_gone = |namespace: &str| is_missing(namespace) && !is_wanted(namespace);
        let running = kept.units.iter().map(|unit| RunningSpec {
            id: unit.informer.id,
            spec: unit.spec.clone(),
            first: unit.first,
            sound: unit.supervisor.as_ref().map_or(unit.saved, Addr::connected) && !unit.stopping,
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
            let entry = self.known.config.resources.get(&unit.spec.entry);
            entry.is_some_and(|entry| entry.options.on_removed == OnRemoved::Keep)
        };
        let stays = self.looked.gone.contains(name) && kept.iter().any(keeps);
        if stays || self.looked.doubtful.contains(name) { None } else { plan.desired(name) }
    }

    /// Notes in which versions a type is watched: as `desired`, or as what runs where that goes on.
    pub(super) fn note_versions(&mut self, name: &TypeName, desired: Option<&[UnitSpec]>) {
        let running = self.types.get(name).map_or(&[][..], |kept| &kept.units).iter().map(|unit| &unit.spec);
        if let Some(desired) = desired {
            self.known.watched(name, desired.iter());
        } else {
            self.known.watched(name, running);
        }
    }

    /// Lets units that go on have the entry as it is written now.
    pub(super) fn adopt(&mut self, name: &TypeName, desired: &[UnitSpec]) {
        for unit in self.types.get_mut(name).into_iter().flat_map(|kept| &mut kept.units) {
            if let Some(spec) = desired.iter().find(|spec| unit.spec.difference(spec) == SpecDifference::Nothing) {
                unit.spec = spec.clone();
            }
        }
    }

    /// Holds the running types against a catalog; `is_new` where the server has just answered with it.
    pub(super) fn look_for_running(&mut self, catalog: &Catalog, is_new: bool) {
        let running = self.types.iter().filter(|(_, kept)| !kept.units.is_empty());
        let running: Vec<TypeName> = running.map(|(name, _)| name.clone()).collect();
        let served = |name: &TypeName| served(catalog, name);
        self.looked = if is_new {
            self.known.presence.look(&running, served)
        } else {
            self.known.presence.judge(&running, served)
        };
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
