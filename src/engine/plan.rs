//! Plan of the units that should run, from the configuration, the served types, the namespaces and the rights.
//!
//! Each type of an entry becomes units as follows:
//!
//! - a cluster-scoped type, or all namespaces: one unit over the whole cluster
//! - only literal names: one unit per namespace; this needs the fewest rights
//! - all but some names: one unit over the cluster; the server leaves the named namespaces out
//! - other globs: one unit over the cluster, filtered when objects arrive
//! - `namespace_selector`: one unit per matching namespace, added and removed with the namespace
//! - the server refuses the whole cluster: one unit per matching namespace in which the type may be watched

pub(crate) mod presence;
pub(crate) mod reconcile;
pub(crate) mod rediscovery;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    config::{Config, ResourceConfig},
    discovery::{Catalog, Owned, Selection, depends_on_crds, select},
    lister::LabelSelector,
    notification::UnitInfo,
    object::ResourceType,
    redact::Redaction,
    reflector::ReflectorConfig,
    scope::Namespaces,
};

/// Page size of client-go, and default of `[kube] page_size`. If `page_size` has this value, the reflector chooses the page size
/// itself.
const PAGE_SIZE_DEFAULT: u32 = 500;

/// Resource type without its version: all versions show the same objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TypeName {
    /// API group; empty for the core group.
    pub group: String,
    /// Lower-case plural.
    pub plural: String,
}

impl TypeName {
    /// Returns the name of a type.
    pub(crate) fn of(resource: &ResourceType) -> Self {
        Self { group: resource.group.clone(), plural: resource.plural.clone() }
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if self.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.group) }
    }
}

/// Unit that should run: one type in one scope, for one entry. The spec is stored in the state directory. A later run recreates the
/// unit from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct UnitSpec {
    /// Name of the `[resources.*]` entry.
    pub entry: String,
    /// Type of the objects.
    pub resource: ResourceType,
    /// The only namespace that the unit watches; `None` for the whole cluster.
    pub namespace: Option<String>,
    /// Field selector with which the server excludes namespaces; may be empty.
    pub namespace_fields: String,
    /// Namespaces whose objects the unit keeps; it drops all other arriving objects. Set if the server cannot select these
    /// namespaces.
    pub filter: Option<Namespaces>,
    /// Configuration of the entry.
    pub options: Arc<ResourceConfig>,
    /// Options for lists and watches. They are not stored: a unit of an earlier run gets the present options.
    #[serde(skip)]
    pub reflector: ReflectorConfig,
    /// Redaction of values, and its key.
    pub redaction: Arc<Redaction>,
    /// Set if a handler or the program needs to know who changed the objects.
    #[serde(default)]
    pub notes_who_changed: bool,
    /// Set if objects may hide themselves by an annotation. Units of releases up to 0.2 always let them.
    #[serde(default = "hidden_by_earlier_releases")]
    pub heeds_opt_out: bool,
}

fn hidden_by_earlier_releases() -> bool {
    true
}

/// Difference between two specs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpecDifference {
    /// Both specs describe the same unit.
    Nothing,
    /// The objects are the same, but are kept differently. The new unit can take over the cache and continue the watch.
    Keeping,
    /// The two units fetch different objects, or different parts of objects. The new unit needs a list.
    Fetching,
}

impl UnitSpec {
    /// Returns the name of the type.
    pub(crate) fn type_name(&self) -> TypeName {
        TypeName::of(&self.resource)
    }

    /// Returns the description of the unit for handlers.
    pub(crate) fn info(&self) -> UnitInfo {
        UnitInfo { entry: self.entry.clone(), resource: self.resource.clone(), namespace: self.namespace.clone() }
    }

    /// Returns true if the unit watches a namespaced type in the whole cluster. If the server refuses that, it may still allow
    /// single namespaces.
    pub(crate) fn is_whole_of_namespaces(&self) -> bool {
        self.resource.namespaced && self.namespace.is_none()
    }

    /// Returns true if the unit watches objects of `namespace`. Always true for a cluster-scoped type.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        if !self.resource.namespaced {
            return true;
        }
        self.namespace.as_deref().is_none_or(|own| own == namespace) && self.options.namespaces.matches(namespace)
    }

    /// Returns true if both units may show the same object.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        match (&self.namespace, &other.namespace) {
            (Some(a), Some(b)) => a == b,
            (Some(namespace), None) => other.covers(namespace),
            (None, Some(namespace)) => self.covers(namespace),
            (None, None) => true,
        }
    }

    /// Returns true if this unit certainly watches every namespace of `other`.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let (own, others) = (&self.options.namespaces, &other.options.namespaces);
        let wider = !self.resource.namespaced || own.is_all() || own == others;
        match (&self.namespace, &other.namespace) {
            (None, None) => wider,
            (None, Some(namespace)) => self.covers(namespace),
            (own, other) => own == other,
        }
    }

    /// Compares this spec with another.
    pub(crate) fn difference(&self, other: &Self) -> SpecDifference {
        let (a, b) = (&self.options, &other.options);
        let fetching = self.entry == other.entry
            && self.resource == other.resource
            && self.namespace == other.namespace
            && self.namespace_fields == other.namespace_fields
            && self.filter == other.filter
            && (&a.labels, &a.fields, &a.options.drop) == (&b.labels, &b.fields, &b.options.drop)
            && (a.mode, a.cache) == (b.mode, b.cache)
            && self.redaction == other.redaction
            && (self.notes_who_changed, self.heeds_opt_out) == (other.notes_who_changed, other.heeds_opt_out);
        let keeping = self.reflector == other.reflector
            && (&a.index, a.options.order, a.options.fifo_max_bytes)
                == (&b.index, b.options.order, b.options.fifo_max_bytes)
            && (a.options.recreated, a.options.compression) == (b.options.recreated, b.options.compression)
            && a.options.ignore_changes == b.options.ignore_changes;
        match (fetching, keeping) {
            (true, true) => SpecDifference::Nothing,
            (true, false) => SpecDifference::Keeping,
            (false, _) => SpecDifference::Fetching,
        }
    }
}

/// Knowledge about the cluster's namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KnownNamespaces {
    /// The namespaces are not watched, or not listed yet.
    #[default]
    Unknown,
    /// Listing namespaces is not allowed.
    Forbidden,
    Known(NamespaceLabels),
}

/// Labels of namespaces, by name.
pub(crate) type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// Rights on a type that the server refuses in the whole cluster, by the name of the namespace. The value is true if the type may
/// be listed and watched in that namespace, and false if this is refused. A namespace is missing while the right is unknown.
pub(crate) type Allowed = BTreeMap<String, bool>;

/// Reason why a type of an entry has no units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitingReason {
    /// The namespaces are not known yet; running units continue.
    Namespaces,
    /// Listing namespaces is not allowed, but `namespace_selector` needs it.
    NamespacesForbidden,
    /// No namespace matches now.
    NoNamespace,
}

/// Units of one type of one entry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// Name of the `[resources.*]` entry.
    pub entry: String,
    /// Type of the units.
    pub resource: ResourceType,
    /// Set if only a wildcard of the entry selects the type.
    pub by_wildcard: bool,
    /// Units in the order of namespaces.
    pub units: Vec<UnitSpec>,
    /// Reason for having no units; `None` if there are units.
    pub waiting: Option<WaitingReason>,
    /// Namespaces in which the right to watch the type is unknown.
    pub unasked: BTreeSet<String>,
}

/// Units that should run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Planned units by type, in the order of entries.
    pub types: BTreeMap<TypeName, Vec<Planned>>,
    /// Set if the namespaces must be watched.
    pub needs_namespaces: bool,
}

impl Plan {
    /// Returns true unless the units of a type depend on namespaces that are not known yet.
    pub(crate) fn is_decided(&self, name: &TypeName) -> bool {
        let mut planned = self.types.get(name).into_iter().flatten();
        planned.all(|planned| planned.waiting != Some(WaitingReason::Namespaces))
    }

    /// Returns the desired units of a type; `None` if they are not [decided](Self::is_decided). Running units then continue.
    pub(crate) fn desired(&self, name: &TypeName) -> Option<Vec<UnitSpec>> {
        let planned = self.types.get(name).into_iter().flatten();
        self.is_decided(name).then(|| planned.flat_map(|planned| planned.units.iter().cloned()).collect())
    }
}

/// Plan, with the selected types.
pub(crate) struct Outlook {
    /// Units that should run.
    pub plan: Plan,
    /// Assignment of the served types to entries.
    pub selection: Selection,
    /// Set when added or removed CRDs can change the selection.
    pub depends_on_crds: bool,
}

impl Outlook {
    /// Selects the types of the entries, and plans their units; see [`plan`]. `watched` returns the version in which an entry
    /// watches a type. The entry keeps that version as long as the server serves it, because another version needs a new list.
    pub(crate) fn new<'a>(
        config: &Config,
        catalog: &Catalog,
        watched: impl Fn(&Owned) -> Option<&'a ResourceType>,
        namespaces: &KnownNamespaces,
        refused: &BTreeMap<TypeName, Allowed>,
    ) -> Self {
        let wanted = config.wanted();
        let mut selection = select(catalog, &wanted);
        for owned in &mut selection.owned {
            let is_served = |watched: &&ResourceType| {
                catalog.types().iter().any(|served| served.resource == **watched && served.is_watchable())
            };
            if let Some(watched) = watched(owned).filter(is_served) {
                owned.resource.clone_from(watched);
            }
        }
        let depends_on_crds = depends_on_crds(&wanted, &selection);
        Self { plan: plan(config, &selection.owned, namespaces, refused), selection, depends_on_crds }
    }
}

/// Plans the units for the types of each entry. `refused` are the types that are refused in the whole cluster.
pub(crate) fn plan(
    config: &Config,
    types: &[Owned],
    namespaces: &KnownNamespaces,
    refused: &BTreeMap<TypeName, Allowed>,
) -> Plan {
    let mut plan = Plan::default();
    let entries: BTreeMap<&str, Arc<ResourceConfig>> =
        config.resources.iter().map(|(name, resource)| (name.as_str(), Arc::new(resource.clone()))).collect();
    for Owned { entry, pattern, resource } in types {
        let Some(options) = entries.get(entry.as_str()) else { continue };
        let whole = in_cluster(config, entry, resource, options);
        let name = whole.type_name();
        let mut planned = Planned {
            entry: entry.clone(),
            resource: resource.clone(),
            by_wildcard: options.patterns.get(*pattern).is_some_and(|pattern| pattern.pattern().is_wildcard()),
            units: Vec::new(),
            waiting: None,
            unasked: BTreeSet::new(),
        };
        let names = options.namespaces.names().filter(|_| resource.namespaced);
        match (names, refused.get(&name)) {
            _ if resource.namespaced && !options.namespace_selector.is_empty() => {
                plan.needs_namespaces = true;
                planned.where_selected(&whole, namespaces);
            }
            (Some(names), _) => planned.units = names.iter().map(|name| in_namespace(&whole, name)).collect(),
            (None, Some(allowed)) => {
                plan.needs_namespaces = true;
                planned.where_allowed(whole, namespaces, allowed);
            }
            (None, None) => planned.units.push(whole),
        }
        plan.types.entry(name).or_default().push(planned);
    }
    plan
}

/// Returns the spec of a unit over the whole cluster. If a field selector can express `namespaces`, the server applies the
/// selector. Otherwise the unit applies `namespaces` to arriving objects.
fn in_cluster(config: &Config, entry: &str, resource: &ResourceType, options: &Arc<ResourceConfig>) -> UnitSpec {
    let pushed = options.namespaces.field_selector().filter(|_| resource.namespaced);
    let filter = (resource.namespaced && options.namespaces.needs_filter()).then(|| options.namespaces.clone());
    UnitSpec {
        entry: entry.to_owned(),
        resource: resource.clone(),
        namespace: None,
        namespace_fields: pushed.unwrap_or_default(),
        filter,
        options: Arc::clone(options),
        reflector: reflector(config, options),
        redaction: Arc::new(config.redact.of(entry, resource, options.mode)),
        notes_who_changed: config.asks_who_changed(entry),
        heeds_opt_out: options.heeds_ignore_annotation(resource),
    }
}

fn in_namespace(whole: &UnitSpec, namespace: &str) -> UnitSpec {
    UnitSpec { namespace: Some(namespace.to_owned()), namespace_fields: String::new(), filter: None, ..whole.clone() }
}

/// Returns the options for lists and watches of an entry's units.
pub(super) fn reflector(config: &Config, entry: &ResourceConfig) -> ReflectorConfig {
    ReflectorConfig { resync_period: entry.options.resync, ..auxiliary_reflector(config) }
}

/// Returns the options for lists and watches of an informer for the engine itself.
pub(super) fn auxiliary_reflector(config: &Config) -> ReflectorConfig {
    let kube = &config.kube;
    ReflectorConfig {
        streaming_lists: kube.streaming_lists,
        page_size: Some(kube.page_size).filter(|size| *size != PAGE_SIZE_DEFAULT),
        watch_timeout: kube.watch_timeout,
        stall_after: kube.stall_after,
        internal_error_retry: kube.internal_error_retry,
        backoff: kube.backoff,
        ..ReflectorConfig::default()
    }
}

impl Planned {
    /// Plans one unit for each namespace whose labels match.
    fn where_selected(&mut self, whole: &UnitSpec, known: &KnownNamespaces) {
        let KnownNamespaces::Known(known) = known else {
            let is_forbidden = *known == KnownNamespaces::Forbidden;
            self.waiting =
                Some(if is_forbidden { WaitingReason::NamespacesForbidden } else { WaitingReason::Namespaces });
            return;
        };
        // Loading the configuration has refused invalid selectors.
        let selector = LabelSelector::parse(&whole.options.namespace_selector).unwrap_or_default();
        let matching = known.iter().filter(|(name, labels)| {
            whole.options.namespaces.matches(name) && selector.matches_labels(|key| labels.get(key).map(String::as_str))
        });
        self.units = matching.map(|(name, _)| in_namespace(whole, name)).collect();
        self.waiting = self.units.is_empty().then_some(WaitingReason::NoNamespace);
    }

    /// Plans one unit for each namespace in which the type may be watched. If there is no such namespace, plans one unit for the
    /// whole cluster. That unit shows the refusal, and works as soon as the server allows the whole cluster.
    fn where_allowed(&mut self, whole: UnitSpec, known: &KnownNamespaces, allowed: &Allowed) {
        if let KnownNamespaces::Known(known) = known {
            for namespace in known.keys().filter(|name| whole.options.namespaces.matches(name)) {
                match allowed.get(namespace) {
                    Some(true) => self.units.push(in_namespace(&whole, namespace)),
                    Some(false) => {}
                    None => drop(self.unasked.insert(namespace.clone())),
                }
            }
        }
        if self.units.is_empty() {
            self.units.push(whole);
        }
    }
}
