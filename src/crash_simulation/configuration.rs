//! Configurations of the engine: entries with their types, and handlers with their resources.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::{HANDLERS, UNITS};
use crate::{
    config::{Config, ResourceConfig},
    engine::plan::UnitSpec,
    object::ResourceType,
    reflector::ReflectorConfig,
    simulator::random::Random,
};

const ENTRIES: [&str; 3] = ["one", "two", "three"];
/// Namespaces of the objects, see [`Site`](super::site::Site).
pub(super) const NAMESPACES: [&str; 2] = ["default", "other"];

/// Set of entries: a bit for each.
pub(super) type Entries = u8;
pub(super) const ALL_ENTRIES: Entries = 0b111;

/// Names of the entries in a set.
pub(super) fn names(entries: Entries) -> Vec<&'static str> {
    (0..).zip(ENTRIES).filter(|(entry, _)| entries & (1 << entry) != 0).map(|(_, name)| name).collect()
}

/// Namespaces and entries of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// No entry has the type.
    Nothing,
    /// One unit over all namespaces.
    Whole(u8),
    /// One unit per namespace.
    Each(u8),
    /// Only the first namespace.
    First(u8),
    /// Each namespace has another entry.
    Divided(u8, u8),
}

/// Units of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    scope: Scope,
    /// Set when a field is dropped. A unit with another setting needs a list.
    drops: bool,
    /// Set when there is an index. A unit with another setting continues the watch.
    indexed: bool,
}

impl Layout {
    fn random(random: &mut Random) -> Self {
        let mut entry = || u8::try_from(random.below(ENTRIES.len())).expect("it is small");
        let (one, another) = (entry(), entry());
        let scope = match random.below(10) {
            0 => Scope::Nothing,
            1..5 => Scope::Whole(one),
            5..7 => Scope::Each(one),
            7 => Scope::First(one),
            _ => Scope::Divided(one, another),
        };
        Self { scope, drops: random.chance(0.3), indexed: random.chance(0.3) }
    }

    /// Returns the desired units of the type.
    pub(super) fn shapes(self, site: usize) -> Vec<Shape> {
        let Self { scope, drops, indexed } = self;
        let shape = |entry, namespace| Shape { site, entry, namespace, drops, indexed };
        match scope {
            Scope::Nothing => Vec::new(),
            Scope::Whole(entry) => vec![shape(entry, None)],
            Scope::Each(entry) => vec![shape(entry, Some(0)), shape(entry, Some(1))],
            Scope::First(entry) => vec![shape(entry, Some(0))],
            Scope::Divided(one, another) => vec![shape(one, Some(0)), shape(another, Some(1))],
        }
    }
}

/// Spec of a unit, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) site: usize,
    pub(super) entry: u8,
    namespace: Option<usize>,
    drops: bool,
    indexed: bool,
}

static OPTIONS: LazyLock<[Arc<ResourceConfig>; 4]> = LazyLock::new(|| {
    ["", "drop = [\"data.k\"]", "index = [\"data.k\"]", "drop = [\"data.k\"]\nindex = [\"data.k\"]"].map(|options| {
        let text = format!("[resources.a]\nmatch = [\"configmaps\"]\n{options}\n");
        Arc::new(Config::from_toml_str(&text).expect("it is valid").resources["a"].clone())
    })
});

impl Shape {
    pub(super) fn spec(self) -> UnitSpec {
        UnitSpec {
            entry: self.entry_name().to_owned(),
            resource: resource(self.site),
            namespace: self.namespace.map(|namespace| NAMESPACES[namespace].to_owned()),
            namespace_fields: String::new(),
            filter: None,
            options: Arc::clone(&OPTIONS[usize::from(self.drops) + 2 * usize::from(self.indexed)]),
            reflector: ReflectorConfig::default(),
            redaction: Arc::default(),
            notes_who_changed: false,
            heeds_opt_out: true,
        }
    }

    pub(super) fn entry_name(self) -> &'static str {
        ENTRIES[usize::from(self.entry)]
    }

    pub(super) fn covers(self, namespace: &str) -> bool {
        self.namespace.is_none_or(|own| NAMESPACES[own] == namespace)
    }
}

fn resource(site: usize) -> ResourceType {
    let (kind, plural) = [("ConfigMap", "configmaps"), ("Secret", "secrets")][site];
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: kind.into(),
        plural: plural.into(),
        namespaced: true,
    }
}

/// Configuration of the engine. It survives crashes.
#[derive(Clone, Debug)]
pub(super) struct Configuration {
    layouts: [Layout; UNITS],
    /// Entries that each handler takes; `None` if the handler is not configured.
    pub(super) handlers: [Option<Entries>; HANDLERS],
}

impl Default for Configuration {
    fn default() -> Self {
        let layout = |entry| Layout { scope: Scope::Whole(entry), drops: false, indexed: false };
        Self { layouts: [layout(0), layout(1)], handlers: [Some(ALL_ENTRIES); HANDLERS] }
    }
}

impl Configuration {
    /// Returns the desired units of a type.
    pub(super) fn shapes(&self, site: usize) -> Vec<Shape> {
        self.layouts[site].shapes(site)
    }

    /// Returns the entries that exist.
    pub(super) fn entries(&self) -> Entries {
        let shapes = (0..UNITS).flat_map(|site| self.shapes(site));
        shapes.fold(0, |all, shape| all | 1 << shape.entry)
    }

    /// Returns the entries on the route of a handler. Entries of `before` that do not exist any more stay on the route.
    pub(super) fn route(&self, handler: usize, before: Entries) -> Option<Entries> {
        let entries = self.entries();
        self.handlers[handler].map(|taken| taken & entries | before & !entries)
    }

    /// Returns true if a handler gets the objects of a namespace.
    pub(super) fn selects(&self, handler: usize, site: usize, namespace: &str) -> bool {
        let taken = self.handlers[handler].unwrap_or_default();
        self.shapes(site).iter().any(|shape| shape.covers(namespace) && taken & (1 << shape.entry) != 0)
    }

    /// Makes a random change.
    pub(super) fn change(&mut self, random: &mut Random) {
        for _ in 0..=random.below(2) {
            if random.chance(0.5) {
                let layout = &mut self.layouts[random.below(UNITS)];
                match random.below(6) {
                    0 => layout.drops = !layout.drops,
                    1 => layout.indexed = !layout.indexed,
                    _ => *layout = Layout::random(random),
                }
            } else {
                let some = 1 + u8::try_from(random.below(usize::from(ALL_ENTRIES))).expect("it is small");
                let handler = &mut self.handlers[random.below(HANDLERS)];
                *handler = match handler {
                    Some(_) if random.chance(0.2) => None,
                    _ => Some(some),
                };
            }
        }
    }
}
