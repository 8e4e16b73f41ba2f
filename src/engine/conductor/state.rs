//! State of the conductor. It survives every run of the conductor, so a panic affects no unit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use actix::Addr;
use educe::Educe;
use tokio::time::Instant;

use crate::engine::{
    plan::presence::{Presence, Served},
    plan::reconcile::{First, History, Occasion, RunningSpec},
    plan::rediscovery::Rediscovery,
    plan::{Allowed, KnownNamespaces, Outlook, Plan, SpecDifference, TypeName, UnitSpec},
};
use crate::{
    backoff::{Backoff, BackoffConfig},
    config::{Config, OnRemoved},
    discovery::{Catalog, Owned},
    indexer::siblings::Siblings,
    informer::{Informer, actor::UnitSupervisor},
    journal::{Attachment, UnitId},
    object::ResourceType,
    registry::WaitingRows,
    status::UnitState,
};

/// Question to the server about the namespaces in which a type may be listed and watched.
pub(in crate::engine) struct Inquiry {
    /// Set while a request is in progress.
    pub(in crate::engine) asking: bool,
    /// Time at which all rights are asked for again, including the known ones.
    pub(in crate::engine) again_at: Instant,
    /// Time before which nothing is asked, because the last request failed.
    pub(in crate::engine) not_before: Option<Instant>,
}

/// Unit, from its creation until its replacement.
#[derive(Clone)]
pub(in crate::engine) struct Unit {
    pub(in crate::engine) spec: UnitSpec,
    pub(in crate::engine) informer: Arc<Informer>,
    /// `None` until the unit is started.
    pub(in crate::engine) supervisor: Option<Addr<UnitSupervisor>>,
    pub(in crate::engine) first: First,
    /// Set when the unit was asked to stop.
    pub(in crate::engine) stopping: bool,
    /// Set if the unit is from an earlier run, and was not started in this one.
    pub(in crate::engine) saved: bool,
}

/// Units of one type.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(in crate::engine) struct TypeState {
    pub(in crate::engine) units: Vec<Unit>,
    pub(in crate::engine) presence: Presence,
    /// Set while the server answers 404 to a unit.
    pub(in crate::engine) missing: bool,
    /// Set while a task changes the units.
    pub(in crate::engine) busy: bool,
    /// Reason for the next reconciliation of the units, if one is due.
    pub(in crate::engine) due: Option<Occasion>,
    /// Time before which the units are not reconciled, because the last change failed.
    pub(in crate::engine) not_before: Option<Instant>,
    pub(in crate::engine) failures: Option<Backoff>,
    /// Version in which each entry watches the type. A reload clears the map.
    pub(in crate::engine) versions: BTreeMap<String, ResourceType>,
    /// See [`History::late`].
    pub(in crate::engine) late: bool,
    /// See [`History::settled`].
    pub(in crate::engine) settled: bool,
    /// Pending attachments: readers that units still have to add or drop, in this order.
    pub(in crate::engine) attachments: Vec<(UnitId, Attachment)>,
    /// Attachments that add readers to units. A unit makes such an attachment after its first list, or before it stops.
    pub(in crate::engine) after_first_list: Vec<(UnitId, Attachment)>,
    /// State that the units share. It decides when the type is synced.
    pub(in crate::engine) siblings: Arc<Siblings>,
}

impl Unit {
    /// Returns true if the server answers 404 to the running unit.
    pub(in crate::engine) fn is_missing(&self) -> bool {
        self.supervisor.is_some() && self.informer.status.lock().state == UnitState::Waiting
    }
}

impl TypeState {
    /// Returns true if the server answers 404 to a unit, although `catalog` contains the type in the version of the unit.
    pub(in crate::engine) fn is_missed(&self, catalog: &Catalog) -> bool {
        let in_catalog = |unit: &Unit| catalog.types().iter().any(|served| served.resource == unit.spec.resource);
        self.units.iter().any(|unit| unit.is_missing() && in_catalog(unit))
    }
}

/// Everything that the conductor knows.
#[derive(Educe)]
#[educe(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(in crate::engine) struct State {
    pub(in crate::engine) config: Arc<Config>,
    /// Types that the server serves; `None` before its first answer.
    pub(in crate::engine) catalog: Option<Arc<Catalog>>,
    pub(in crate::engine) namespaces: KnownNamespaces,
    /// Types that are refused in the whole cluster.
    pub(in crate::engine) refused: BTreeMap<TypeName, Allowed>,
    /// Plan made from the fields above; `None` after a change that can require another plan.
    outlook: Option<Arc<Outlook>>,
    /// Number of plans that were made.
    #[cfg(any(test, feature = "testing"))]
    pub(in crate::engine) plans: u64,
    /// Groups that did not answer at the first discovery. Types of these groups do not count as late.
    pub(in crate::engine) unasked_at_start: BTreeSet<String>,
    #[educe(Default = Rediscovery::new(BackoffConfig::default()))]
    pub(in crate::engine) rediscovery: Rediscovery,
    /// Set while a discovery is in progress.
    pub(in crate::engine) discovering: bool,
    pub(in crate::engine) types: BTreeMap<TypeName, TypeState>,
    /// Most important occasion since the last check for new types. The next check reconciles new types for this occasion.
    pub(in crate::engine) pending: Option<Occasion>,
    /// Entries that the last run watched; `None` without a last run. See [`State::take_in`].
    pub(in crate::engine) entries_of_last_run: Option<BTreeSet<String>>,
    /// Set when the types of the first discovery are known. Types that are found later count as late.
    pub(in crate::engine) begun: bool,
    /// Rows of `/v1/resources` without a unit.
    pub(in crate::engine) waiting: WaitingRows,
    /// Entries, with the type, pattern or conflict about which a message was logged.
    pub(in crate::engine) told: BTreeSet<(String, String)>,
    /// Set if a pattern matches no type now.
    pub(in crate::engine) patterns_wait: bool,
    /// Set when the CRDs are watched and listed.
    pub(in crate::engine) definitions_seen: bool,
    /// Questions about types that are refused in the whole cluster.
    pub(in crate::engine) inquiries: BTreeMap<TypeName, Inquiry>,
    pub(in crate::engine) next_unit: u32,
}

impl State {
    /// Creates the state for a configuration, without knowledge about the server.
    pub(in crate::engine) fn new(config: Config) -> Self {
        let rediscovery = Rediscovery::new(config.kube.backoff);
        Self { config: Arc::new(config), rediscovery, ..Self::default() }
    }

    /// Returns the plan; `None` before the server's first answer.
    pub(in crate::engine) fn outlook(&mut self) -> Option<Arc<Outlook>> {
        if self.outlook.is_none() {
            let (config, catalog) = (&self.config, self.catalog.as_deref()?);
            let watched = |owned: &Owned| self.types.get(&TypeName::of(&owned.resource))?.versions.get(&owned.entry);
            self.outlook = Some(Arc::new(Outlook::new(config, catalog, watched, &self.namespaces, &self.refused)));
            #[cfg(any(test, feature = "testing"))]
            {
                self.plans += 1;
            }
        }
        self.outlook.clone()
    }

    /// Schedules a reconciliation of a type with a new plan. If one is already due, keeps the more important occasion.
    pub(in crate::engine) fn due(&mut self, name: &TypeName, occasion: Occasion) {
        self.outlook = None;
        let kept = self.types.entry(name.clone()).or_default();
        kept.due = kept.due.max(Some(occasion));
    }

    /// Schedules a reconciliation of all types with a new plan. A reload also forgets the watched versions, so the new plan may
    /// choose other versions.
    pub(in crate::engine) fn all_due(&mut self, occasion: Occasion) {
        self.outlook = None;
        self.pending = self.pending.max(Some(occasion));
        for kept in self.types.values_mut() {
            kept.due = kept.due.max(Some(occasion));
            if occasion == Occasion::Reload {
                kept.versions.clear();
            }
        }
    }

    /// Stores the namespaces that the informer of namespaces reports. If they have changed, schedules a reconciliation of all
    /// types.
    pub(in crate::engine) fn see_namespaces(&mut self, seen: KnownNamespaces) {
        // Namespaces from an earlier list are better than none.
        let is_better = matches!(seen, KnownNamespaces::Known(_)) || self.namespaces == KnownNamespaces::Unknown;
        if is_better && self.namespaces != seen {
            self.namespaces = seen;
            self.all_due(Occasion::Scope);
        }
    }

    fn units_of(&self, name: &TypeName) -> &[Unit] {
        self.types.get(name).map_or(&[][..], |kept| &kept.units)
    }

    /// Returns the units of a type for reconciliation with `desired`.
    pub(in crate::engine) fn running(&self, name: &TypeName, desired: &[UnitSpec]) -> Vec<RunningSpec> {
        let is_wanted = |namespace: &str| desired.iter().any(|spec| spec.namespace.as_deref() == Some(namespace));
        let is_missing = |namespace: &str| match &self.namespaces {
            KnownNamespaces::Known(known) => !known.contains_key(namespace),
            KnownNamespaces::Unknown | KnownNamespaces::Forbidden => false,
        };
        let is_gone = |namespace: &str| is_missing(namespace) && !is_wanted(namespace);
        let running = self.units_of(name).iter().map(|unit| RunningSpec {
            id: unit.informer.id,
            spec: unit.spec.clone(),
            first: unit.first,
            sound: unit.supervisor.as_ref().map_or(unit.saved, Addr::connected) && !unit.stopping,
            gone: self.is_gone(name) || unit.spec.namespace.as_deref().is_some_and(is_gone),
        });
        running.collect()
    }

    /// Returns true if no change of the units is due or in progress.
    pub(in crate::engine) fn is_settled(&self) -> bool {
        self.pending.is_none() && self.types.values().all(|kept| !kept.busy && kept.due.is_none())
    }

    /// Adds the new types of a plan. If a run precedes this one, types that are new at the start are changes too: a reload has added
    /// their entry, or the server serves them since that run.
    pub(in crate::engine) fn take_in(&mut self, plan: &Plan) {
        let pending = self.pending.take();
        for (name, planned) in &plan.types {
            if self.types.contains_key(name) {
                continue;
            }
            let was_known_at_start = self.begun && !self.unasked_at_start.contains(&name.group);
            let is_of_last_run = |entries: &BTreeSet<String>| planned.iter().any(|of| entries.contains(&of.entry));
            let (late, settled) = match &self.entries_of_last_run {
                _ if was_known_at_start => (true, false),
                None => (false, false),
                Some(entries) if is_of_last_run(entries) => (true, false),
                Some(_) => (false, true),
            };
            let due = pending.or(Some(Occasion::Discovery));
            self.types.insert(name.clone(), TypeState { due, late, settled, ..TypeState::default() });
        }
        self.begun = true;
    }

    /// Returns the desired units of a type; `None` if the running units should continue. Reasons: the type is missing but may still
    /// exist, the entry keeps a removed type (`on_removed = "keep"`), or the namespaces are not known yet.
    pub(in crate::engine) fn desired(&self, name: &TypeName, plan: &Plan) -> Option<Vec<UnitSpec>> {
        let kept = self.units_of(name);
        let keeps = |unit: &Unit| {
            let entry = self.config.resources.get(&unit.spec.entry);
            entry.is_some_and(|entry| entry.options.on_removed == OnRemoved::Keep)
        };
        let stays = self.is_gone(name) && kept.iter().any(keeps);
        if stays || self.is_doubtful(name) { None } else { plan.desired(name) }
    }

    /// Stores the version in which each entry watches the type, from the specs in `desired`. Units that continue get their specs
    /// from `desired` too.
    pub(in crate::engine) fn watch(&mut self, name: &TypeName, desired: &[UnitSpec]) {
        let Some(kept) = self.types.get_mut(name) else { return };
        kept.versions = desired.iter().map(|spec| (spec.entry.clone(), spec.resource.clone())).collect();
        for unit in &mut kept.units {
            if let Some(spec) = desired.iter().find(|spec| unit.spec.difference(spec) == SpecDifference::Nothing) {
                unit.spec = spec.clone();
            }
        }
    }

    /// Compares the running types with a new answer of the server.
    pub(in crate::engine) fn look_for_running(&mut self, catalog: &Catalog) {
        for (name, kept) in &mut self.types {
            kept.presence.answered(if kept.units.is_empty() { Served::Yes } else { served(catalog, name) });
        }
    }

    /// Returns true if a running type was certainly removed.
    fn is_gone(&self, name: &TypeName) -> bool {
        self.types.get(name).is_some_and(|kept| kept.presence.is_gone())
    }

    /// Returns true if a running type is missing, but may exist: its units continue until the next answer.
    pub(in crate::engine) fn is_doubtful(&self, name: &TypeName) -> bool {
        let is_served = |catalog: &Arc<Catalog>| served(catalog, name) == Served::Yes;
        !self.units_of(name).is_empty() && !self.is_gone(name) && !self.catalog.as_ref().is_some_and(is_served)
    }

    /// Returns the known facts about a type, except its units.
    pub(in crate::engine) fn history(&self, name: &TypeName, occasion: Occasion) -> History {
        let kept = self.types.get(name);
        History { occasion, late: kept.is_some_and(|kept| kept.late), settled: kept.is_some_and(|kept| kept.settled) }
    }

    /// Returns all units, in the order of their creation.
    pub(in crate::engine) fn units(&self) -> Vec<Unit> {
        let mut units: Vec<Unit> = self.types.values().flat_map(|kept| kept.units.iter().cloned()).collect();
        units.sort_by_key(|unit| unit.informer.id);
        units
    }
}

/// Looks a type up in a catalog, in any version.
pub(in crate::engine) fn served(catalog: &Catalog, name: &TypeName) -> Served {
    let mut types = catalog.types().iter().map(|served| &served.resource);
    if types.any(|resource| resource.group == name.group && resource.plural == name.plural) {
        Served::Yes
    } else if catalog.unavailable().iter().any(|unavailable| unavailable.group == name.group) {
        Served::Unknown
    } else {
        Served::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::ServedType;

    fn apples(version: &str) -> ResourceType {
        let [group, version, kind, plural] = ["acme.io", version, "Apple", "apples"].map(str::to_owned);
        ResourceType { group, version, kind, plural, namespaced: true }
    }

    fn state() -> State {
        State::new(Config::from_toml_str("[resources.a]\nmatch = [\"apples.acme.io\"]\n").unwrap())
    }

    /// Sets the versions that the server serves, the preferred one first.
    fn serve(state: &mut State, versions: &[&str]) {
        let types = versions.iter().map(|version| ServedType::watchable(apples(version))).collect();
        state.catalog = Some(Arc::new(Catalog::of(types)));
        state.all_due(Occasion::Discovery);
    }

    #[test]
    fn type_keeps_its_version_until_reload() {
        let name = TypeName::of(&apples("v1"));
        let mut state = state();
        serve(&mut state, &["v1"]);
        let plan = state.outlook().unwrap().plan.clone();
        state.take_in(&plan);
        let version = |state: &mut State| {
            let units = state.outlook().unwrap().plan.desired(&name).unwrap();
            state.watch(&name, &units);
            units[0].resource.version.clone()
        };
        assert_eq!(version(&mut state), "v1");
        serve(&mut state, &["v2", "v1"]);
        assert_eq!(version(&mut state), "v1");
        state.all_due(Occasion::Reload);
        assert_eq!(version(&mut state), "v2");
        serve(&mut state, &["v1"]);
        assert_eq!(version(&mut state), "v1", "v2 is not served any more");
    }

    #[test]
    fn types_new_since_last_run_are_changes() {
        let name = TypeName::of(&apples("v1"));
        let history_after = |entries: Option<&[&str]>| {
            let mut state = state();
            state.entries_of_last_run = entries.map(|entries| entries.iter().map(|&entry| entry.to_owned()).collect());
            serve(&mut state, &["v1"]);
            let plan = state.outlook().unwrap().plan.clone();
            state.take_in(&plan);
            let History { late, settled, .. } = state.history(&name, Occasion::Start);
            (late, settled)
        };
        assert_eq!(history_after(None), (false, false), "initial objects");
        assert_eq!(history_after(Some(&["a"])), (true, false), "the server serves the type since that run");
        assert_eq!(history_after(Some(&["b"])), (false, true), "a reload has added the entry");
    }

    #[test]
    fn plan_is_kept_until_an_input_changes() {
        let name = TypeName::of(&apples("v1"));
        let mut state = state();
        assert!(state.outlook().is_none(), "the server has not answered");
        serve(&mut state, &["v1"]);
        let changes: [&dyn Fn(&mut State); 4] = [
            &|state| state.all_due(Occasion::Reload),
            &|state| state.see_namespaces(KnownNamespaces::Forbidden),
            &|state| state.refuse(&name),
            &|state| state.allow(&name),
        ];
        for (count, change) in (1..).zip(changes) {
            let first = state.outlook().unwrap();
            assert_eq!(first.plan.desired(&name).unwrap().len(), 1);
            state.see_namespaces(KnownNamespaces::Unknown);
            assert!(Arc::ptr_eq(&first, &state.outlook().unwrap()), "before change {count}");
            assert_eq!(state.plans, count);
            change(&mut state);
            assert!(!Arc::ptr_eq(&first, &state.outlook().unwrap()), "change {count}");
        }
    }
}
