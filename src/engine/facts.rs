//! Facts from which a plan is made, and the current plan. It is made again only after a fact has changed.
//!
//! **Invariant:** a plan depends on [`Facts`] alone. All changes of facts go through [`Known`], which then forgets its
//! plan.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use super::plan::{Allowed, KnownNamespaces, Plan, TypeName, plan};
use crate::{
    config::Config,
    discovery::{self, Catalog, Selection, select},
};

/// Facts that decide which units should run.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) config: Arc<Config>,
    /// Types that the server serves; `None` before its first answer.
    pub(super) catalog: Option<Arc<Catalog>>,
    pub(super) namespaces: KnownNamespaces,
    /// Types that are refused in the whole cluster.
    pub(super) refused: BTreeMap<TypeName, Allowed>,
}

/// Plan that follows from the facts, with the selected types.
pub(super) struct Outlook {
    pub(super) plan: Plan,
    pub(super) selection: Selection,
    /// Set when added or removed CRDs can change the selection.
    pub(super) depends_on_crds: bool,
}

impl Facts {
    /// Makes the plan for the configuration and the served types; returns `None` before the server's first answer.
    fn outlook(&self) -> Option<Outlook> {
        let (config, catalog) = (&*self.config, self.catalog.as_deref()?);
        let wanted = config.wanted();
        let selection = select(catalog, &wanted);
        let depends_on_crds = discovery::depends_on_crds(&wanted, &selection);
        let plan = plan(config, &selection.owned, &self.namespaces, &self.refused);
        Some(Outlook { plan, selection, depends_on_crds })
    }
}

/// Current facts, and the plan that follows from them.
#[derive(Default)]
pub(super) struct Known {
    facts: Facts,
    /// Outlook on these facts; `None` until it is needed.
    outlook: Option<Arc<Outlook>>,
    /// Number of plans that were made.
    #[cfg(any(test, feature = "testing"))]
    plans: u64,
}

impl Known {
    /// Creates the facts for a configuration, without any facts about the server.
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self { facts: Facts { config, ..Facts::default() }, ..Self::default() }
    }

    /// Returns the outlook on the facts; `None` before the server's first answer.
    pub(super) fn outlook(&mut self) -> Option<Arc<Outlook>> {
        if self.outlook.is_none() {
            self.outlook = Some(Arc::new(self.facts.outlook()?));
            #[cfg(any(test, feature = "testing"))]
            {
                self.plans += 1;
            }
        }
        self.outlook.clone()
    }

    /// Returns the number of plans that were made.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn plans(&self) -> u64 {
        self.plans
    }
}

impl Deref for Known {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

/// Mutable access counts as a change of the facts.
impl DerefMut for Known {
    fn deref_mut(&mut self) -> &mut Facts {
        self.outlook = None;
        &mut self.facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{discovery::ServedType, object::ResourceType};

    fn apples(version: &str) -> ResourceType {
        let [group, version, kind, plural] = ["acme.io", version, "Apple", "apples"].map(str::to_owned);
        ResourceType { group, version, kind, plural, namespaced: true }
    }

    /// Returns the catalog of a server that serves apples in these versions, the preferred one first.
    fn catalog(versions: &[&str]) -> Arc<Catalog> {
        let served = versions.iter().map(|version| ServedType {
            verbs: vec!["list".to_owned(), "watch".to_owned()],
            preferred: versions[0] == *version,
            ..ServedType::unnamed(apples(version))
        });
        Arc::new(Catalog::of(served.collect()))
    }

    fn known() -> Known {
        let config = Config::from_toml_str("[resources.a]\nmatch = [\"apples.acme.io\"]\n").unwrap();
        let mut known = Known::new(Arc::new(config));
        assert!(known.outlook().is_none(), "the server has not answered");
        known.catalog = Some(catalog(&["v1"]));
        known
    }

    #[test]
    fn plan_is_cached_until_a_fact_changes() {
        let changes: [fn(&mut Known); 4] = [
            |known| known.config = Arc::new(Config::clone(&known.config)),
            |known| known.catalog = Some(catalog(&["v2"])),
            |known| known.namespaces = KnownNamespaces::Forbidden,
            |known| drop(known.refused.insert(TypeName::of(&apples("v1")), Allowed::new())),
        ];
        let mut known = known();
        for (count, change) in (1..).zip(changes) {
            let first = known.outlook().unwrap();
            assert!(Arc::ptr_eq(&first, &known.outlook().unwrap()), "before change {count}");
            assert_eq!(known.plans(), count);
            change(&mut known);
            assert!(!Arc::ptr_eq(&first, &known.outlook().unwrap()), "change {count}");
        }
    }
}
