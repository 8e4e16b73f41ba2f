//! Registry of the running informers, and of the patterns that match no served type yet. Also stores the start-up progress.
//!
//! The engine updates the registry; a read clones an `Arc`. Changes are rare (a type appears or disappears), so each one replaces
//! the whole list.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;

use crate::{
    discovery::{Catalog, ServedType},
    indexer::union::Caches,
    informer::Informer,
    journal::UnitId,
    lister::Lister,
    mutex::lock,
    object::ResourceType,
    redact::is_secrets,
    status::{ReloadCounts, Timings, UnitState, UnitStatus, UnitView},
};

/// Rows of `/v1/resources` without a unit. A key consists of the name of the `[resources.*]` entry, and the pattern or the type.
pub(crate) type WaitingRows = BTreeMap<(String, String), Arc<UnitStatus>>;

/// One type with the units that watch it: one unit, or one for each watched namespace.
#[derive(Debug)]
pub struct WatchedType {
    /// The type.
    pub resource: Arc<ResourceType>,
    /// Units of the type; no object is in the scope of two of them.
    pub units: Vec<Arc<Informer>>,
    caches: Arc<Caches>,
}

impl WatchedType {
    /// Returns a reader of all units of the type. The reader follows replacements of the units. Each thread needs its own reader:
    /// clone this one, or call `lister` again.
    pub fn lister(&self) -> Lister {
        Lister::new(self.caches.reader(), Arc::clone(&self.resource))
    }

    /// Returns the type with only one of its units; `None` if it has no such unit.
    pub fn only(&self, unit: UnitId) -> Option<Arc<Self>> {
        let unit = self.units.iter().find(|known| known.id == unit)?;
        let caches = Arc::new(Caches::default());
        caches.set(vec![unit.reader_factory()]);
        Some(Arc::new(Self { resource: Arc::clone(&self.resource), units: vec![Arc::clone(unit)], caches }))
    }

    /// Returns the warnings for readers of the whole type, each once.
    pub fn warnings(&self) -> Vec<&str> {
        let mut warnings = Vec::new();
        for warning in self.units.iter().flat_map(|unit| &unit.options.warnings) {
            if !warnings.contains(&warning.as_str()) {
                warnings.push(warning);
            }
        }
        warnings
    }

    /// Returns true if reads return only metadata because values are confidential.
    pub fn hides_values(&self) -> bool {
        is_secrets(&self.resource)
    }

    /// Returns true if only metadata is kept, for any reason.
    pub fn is_metadata_only(&self) -> bool {
        self.units.iter().any(|unit| unit.options.scope.metadata_only)
    }

    /// Returns true if the caches of all units keep bodies. With `cache = "none"` they do not.
    pub fn keeps_bodies(&self) -> bool {
        self.units.iter().all(|unit| unit.options.indexer.keep.is_whole())
    }

    /// Returns true if reads can be answered: each unit has synced, or has taken over the cache of a previous unit.
    pub fn is_readable(&self) -> bool {
        !self.units.is_empty() && self.units.iter().all(|unit| unit.is_readable())
    }
}

/// Watched types, and waiting patterns.
#[derive(Debug, Default)]
struct Content {
    types: Vec<Arc<WatchedType>>,
    waiting: WaitingRows,
}

impl Content {
    fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.types.iter().flat_map(|watched| &watched.units)
    }
}

/// The engine's informers.
#[derive(Debug, Default)]
pub struct Registry {
    content: ArcSwap<Content>,
    /// Caches of every type that was ever watched. They stay, because a reader of a removed type continues if the type returns.
    caches: Mutex<BTreeMap<ResourceType, Arc<Caches>>>,
    catalog: ArcSwap<Catalog>,
    discovered: AtomicBool,
    /// Counters of the configurations given to the running engine.
    pub reloads: Mutex<ReloadCounts>,
    timings: Arc<Timings>,
}

impl Registry {
    /// Replaces all informers and waiting rows. Existing readers continue with the caches of `informers`. Keep removed informers
    /// alive until this returns.
    pub fn set(&self, informers: Vec<Arc<Informer>>, waiting: WaitingRows) {
        let mut caches = lock(&self.caches);
        let mut types: Vec<WatchedType> = Vec::new();
        for unit in informers {
            match types.iter_mut().find(|watched| watched.resource == unit.resource) {
                Some(watched) => watched.units.push(unit),
                None => types.push(WatchedType {
                    resource: Arc::clone(&unit.resource),
                    caches: Arc::clone(caches.entry(ResourceType::clone(&unit.resource)).or_default()),
                    units: vec![unit],
                }),
            }
        }
        for (resource, caches) in caches.iter() {
            let now = types.iter().find(|watched| *watched.resource == *resource);
            let units = now.map_or(&[][..], |watched| &watched.units);
            caches.set(units.iter().map(|unit| unit.reader_factory()).collect());
        }
        let types = types.into_iter().map(Arc::new).collect();
        self.content.store(Arc::new(Content { types, waiting }));
    }

    /// Returns the histograms shared by all units.
    pub fn timings(&self) -> &Arc<Timings> {
        &self.timings
    }

    /// Marks discovery as successful.
    pub fn set_discovered(&self) {
        self.discovered.store(true, Ordering::Release);
    }

    /// Stores the result of discovery. [`Registry::names`] finds the names of types in this result.
    pub fn set_catalog(&self, catalog: Arc<Catalog>) {
        self.catalog.store(catalog);
    }

    /// Returns the latest result of discovery; empty before the first one.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// Returns a type with its names. For a type that is no longer served, there are no short names, and the singular is derived
    /// from the kind.
    pub fn names(&self, resource: &ResourceType) -> ServedType {
        let named = self.catalog.load().types().iter().find(|served| served.resource == *resource).cloned();
        named.unwrap_or_else(|| ServedType::unnamed(resource.clone()))
    }

    /// Returns the watched types, in the order of their discovery.
    pub fn types(&self) -> Vec<Arc<WatchedType>> {
        self.content.load().types.clone()
    }

    /// Returns the running informers, by type.
    pub fn informers(&self) -> Vec<Arc<Informer>> {
        self.content.load().informers().cloned().collect()
    }

    /// Returns the rows without a unit.
    pub fn waiting(&self) -> WaitingRows {
        self.content.load().waiting.clone()
    }

    /// Returns a type with its units.
    pub fn find_type(&self, group: &str, version: &str, plural: &str) -> Option<Arc<WatchedType>> {
        let content = self.content.load();
        let is_it = |watched: &&Arc<WatchedType>| {
            let resource = &watched.resource;
            resource.plural == plural && resource.group == group && resource.version == version
        };
        content.types.iter().find(is_it).cloned()
    }

    /// Returns the informer with this id.
    pub fn find_unit(&self, unit: UnitId) -> Option<Arc<Informer>> {
        self.content.load().informers().find(|informer| informer.id == unit).cloned()
    }

    /// Returns every row of `/v1/resources`.
    pub fn views(&self) -> Vec<UnitView> {
        let content = self.content.load();
        let running = content.informers().map(|informer| informer.status.view());
        running.chain(content.waiting.values().map(|row| row.view())).collect()
    }

    /// Returns true if discovery has succeeded.
    pub fn is_discovered(&self) -> bool {
        self.discovered.load(Ordering::Acquire)
    }

    /// Returns the rows that keep the engine from being ready, with the reason: resources that are not synced. Resources that do
    /// not exist, or that the server refuses, do not count. Resources that are no longer [required](UnitView::is_required) do not
    /// count either.
    pub fn unready(&self) -> Vec<(String, String)> {
        if !self.is_discovered() {
            return vec![("discovery".to_owned(), UNDISCOVERED.to_owned())];
        }
        let why = |view: UnitView| why_unsynced(&view).map(|why| (view.plural, why));
        self.views().into_iter().filter(UnitView::is_required).filter_map(why).collect()
    }
}

/// Reason for not being ready before discovery.
pub(crate) const UNDISCOVERED: &str = "the resource types of the API server are not known yet";

/// Returns the reason why the resource of a row of `/v1/resources` is not synced yet. `None` if it is synced, does not exist, or is
/// not allowed.
pub(crate) fn why_unsynced(view: &UnitView) -> Option<String> {
    let settled = view.synced || matches!(view.state, UnitState::Forbidden | UnitState::Waiting);
    let error = view.last_error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    (!settled).then(|| format!("not synced, {}{error}", view.state.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::informer::Seed;

    fn unit(id: u32, plural: &str, names: &[&str]) -> Arc<Informer> {
        let resource = ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: plural.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        let objects = names.iter().map(|name| crate::testing::object(name, "1")).collect();
        let (store_version, resume_version) = ("1".into(), "1".into());
        let seed = Seed::Resume { objects, store_version, resume_version, saved: false };
        let options = crate::informer::testing::options();
        Arc::new(Informer::new(UnitId(id), "all", Arc::new(resource), options, Arc::default(), Some(seed)))
    }

    /// Rule: X-1.
    #[test]
    fn readers_follow_units_of_their_type() {
        let registry = Registry::default();
        let first = unit(0, "pods", &["a"]);
        registry.set(vec![Arc::clone(&first), unit(1, "nodes", &["n"])], WaitingRows::new());
        let pods = || registry.find_type("", "v1", "pods");
        let lister = pods().expect("it is watched").lister();
        assert_eq!(lister.len(), 1);
        registry.set(vec![Arc::clone(&first), unit(2, "pods", &["b", "c"])], WaitingRows::new());
        assert_eq!((lister.len(), pods().expect("it is watched").units.len(), registry.types().len()), (3, 2, 1));
        assert_eq!(registry.find_unit(UnitId(2)).map(|unit| unit.id), Some(UnitId(2)));
        registry.set(Vec::new(), WaitingRows::new());
        assert_eq!((lister.len(), lister.has_synced(), pods().is_none()), (0, false, true));
        registry.set(vec![unit(3, "pods", &["d"])], WaitingRows::new());
        assert_eq!(lister.len(), 1, "an existing lister reads a type that returns");
    }

    #[test]
    fn unlisted_type_keeps_engine_unready() {
        let pods = ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            plural: "pods".to_owned(),
            namespaced: true,
        };
        let unlisted = Arc::new(UnitStatus::new("all", &pods, None));
        assert!(why_unsynced(&unlisted.view()).is_some());
        assert!(why_unsynced(&UnitStatus::waiting("all", "bananas").view()).is_none());
        let registry = Registry::default();
        registry.set(Vec::new(), [(("all".to_owned(), "pods".to_owned()), Arc::clone(&unlisted))].into());
        registry.set_discovered();
        for (limit, is_ready) in [(None, false), (Some(Duration::from_hours(1)), false), (Some(Duration::ZERO), true)] {
            unlisted.require_for(limit);
            assert_eq!(registry.unready().is_empty(), is_ready, "{limit:?}");
        }
    }
}
