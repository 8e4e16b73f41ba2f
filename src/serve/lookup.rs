//! Lookup of types for reads: the only place that queries the registry.

use std::sync::Arc;

use crate::{
    indexer::union::Caches,
    informer::Informer,
    journal::UnitId,
    lister::Lister,
    object::ResourceType,
    redact::is_secrets,
    registry::{Registry, WatchedType},
};

/// Type that can be read: all its units, or one of them.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) resource: Arc<ResourceType>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Type(Arc<WatchedType>),
    Unit(Arc<Informer>, Arc<Caches>),
}

impl Served {
    /// Returns a reader for this thread.
    pub(super) fn lister(&self) -> Lister {
        match &self.source {
            Source::Type(watched) => watched.lister(),
            Source::Unit(_, caches) => Lister::new(caches.reader(), Arc::clone(&self.resource)),
        }
    }

    /// Returns warnings for readers, each once.
    pub(super) fn warnings(&self) -> Vec<&str> {
        match &self.source {
            Source::Type(watched) => watched.warnings(),
            Source::Unit(unit, _) => unit.options.warnings.iter().map(String::as_str).collect(),
        }
    }

    /// Returns true if reads show only metadata because values are redacted.
    pub(super) fn hides_values(&self) -> bool {
        is_secrets(&self.resource)
    }

    /// Returns true if only metadata is kept, for any reason.
    pub(super) fn is_metadata_only(&self) -> bool {
        self.units().iter().any(|unit| unit.options.scope.metadata_only)
    }

    /// Returns true if bodies are kept; not with `cache = "none"`.
    pub(super) fn keeps_bodies(&self) -> bool {
        self.units().iter().all(|unit| unit.options.indexer.keep.is_whole())
    }

    /// Returns true if reads can be answered.
    pub(super) fn is_readable(&self) -> bool {
        match &self.source {
            Source::Type(watched) => watched.is_readable(),
            Source::Unit(unit, _) => unit.is_readable(),
        }
    }

    /// Returns true if this is a single unit.
    pub(super) fn is_unit(&self) -> bool {
        matches!(self.source, Source::Unit(..))
    }

    fn units(&self) -> &[Arc<Informer>] {
        match &self.source {
            Source::Type(watched) => &watched.units,
            Source::Unit(unit, _) => std::slice::from_ref(unit),
        }
    }
}

/// Finds a type, or one unit of it.
pub(super) fn find(
    registry: &Registry,
    group: &str,
    version: &str,
    plural: &str,
    unit: Option<UnitId>,
) -> Option<Served> {
    let watched = registry.find_type(group, version, plural)?;
    let resource = Arc::clone(&watched.resource);
    let source = match unit {
        None => Source::Type(watched),
        Some(id) => {
            let unit = watched.units.iter().find(|unit| unit.id == id)?;
            let caches = Arc::new(Caches::default());
            caches.set(vec![unit.reader_factory()]);
            Source::Unit(Arc::clone(unit), caches)
        }
    };
    Some(Served { resource, source })
}

/// Returns every watched type once.
pub(super) fn types(registry: &Registry) -> Vec<Arc<ResourceType>> {
    registry.types().iter().map(|watched| Arc::clone(&watched.resource)).collect()
}
