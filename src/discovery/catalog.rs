//! Every type the server serves, and which of them a pattern means.

use super::{
    documents::{Group, Type},
    pattern::Pattern,
};
use crate::object::ResourceType;

/// What a server serves: a snapshot.
///
/// **Invariant:** the types stand in kubectl's order of preference: the core group first, then the groups as the server
/// orders them, each with its preferred version first.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    types: Vec<ServedType>,
    unavailable: Vec<Unavailable>,
}

/// One type in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedType {
    /// The type.
    pub resource: ResourceType,
    /// Singular name, `deployment`; may be empty.
    pub singular: String,
    /// Short names, `deploy`.
    pub short_names: Vec<String>,
    /// What may be done with it, `list`.
    pub verbs: Vec<String>,
    /// Whether this is the group's preferred version of those that have the type.
    pub preferred: bool,
}

/// A version of a group whose types are not known now, or may be outdated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Why.
    pub error: String,
}

/// What a pattern means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// This type.
    Found(ResourceType),
    /// No type. Its CRD, or a group that is unavailable now, may bring it.
    Missing {
        /// The nearest names that are served and can be watched, best first, at most three.
        suggestions: Vec<String>,
        /// Groups that may hold it and could not be asked.
        unavailable: Vec<Unavailable>,
    },
    /// A type that does not offer both list and watch.
    Unwatchable {
        /// The type.
        resource: ResourceType,
        /// What it offers.
        verbs: Vec<String>,
    },
    /// `*` or `*.GROUP`: many types.
    Many,
}

/// Two entries that name one type (D12).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{first} and {second} both match {resource}, a type belongs to one entry")]
pub struct Conflict {
    /// The type, as the first entry has it.
    pub resource: ResourceType,
    /// The entry that named it first.
    pub first: String,
    /// The other one.
    pub second: String,
}

impl Resolution {
    /// Says why this is not a type that can be watched, in a sentence without its end.
    pub fn why_not(&self) -> String {
        match self {
            Self::Missing { suggestions, unavailable } => {
                let mut why = "the server serves no such type".to_owned();
                if !suggestions.is_empty() {
                    why.push_str("; did you mean ");
                    why.push_str(&suggestions.join(" or "));
                    why.push('?');
                }
                for Unavailable { group, version, error } in unavailable {
                    let place = if group.is_empty() { version.clone() } else { format!("{group}/{version}") };
                    why.extend(["; ", &place, " could not be asked: ", error]);
                }
                why
            }
            Self::Unwatchable { resource, verbs } => {
                format!("{resource} cannot be listed and watched, it only offers {}", verbs.join(", "))
            }
            Self::Found(resource) => format!("{resource} is served"),
            Self::Many => "wildcards are not supported yet".to_owned(),
        }
    }
}

impl ServedType {
    /// Returns whether it can be listed and watched.
    pub fn is_watchable(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.verbs.iter().any(|offered| offered == verb))
    }

    /// How well `name`, in lower case, names this type; smaller is better.
    fn rank(&self, name: &str) -> Option<u8> {
        let is_short = || self.short_names.iter().any(|short| short.eq_ignore_ascii_case(name));
        match name {
            _ if self.resource.plural == name => Some(0),
            _ if is_short() => Some(1),
            _ if self.singular.eq_ignore_ascii_case(name) => Some(2),
            _ if self.resource.kind.eq_ignore_ascii_case(name) => Some(3),
            _ => None,
        }
    }
}

impl Catalog {
    pub(super) fn new(groups: Vec<Group>) -> Self {
        let mut catalog = Self::default();
        let (core, named): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.name.is_empty());
        for group in core.into_iter().chain(named) {
            let first = catalog.types.len();
            for version in group.versions {
                for served in version.types {
                    let preferred = catalog.types[first..].iter().all(|known| known.resource.plural != served.plural);
                    catalog.types.push(served_type(&group.name, &version.name, served, preferred));
                }
                if let Some(error) = version.error {
                    catalog.unavailable.push(Unavailable { group: group.name.clone(), version: version.name, error });
                }
            }
        }
        catalog
    }

    /// Returns every served type, in order of preference.
    pub fn types(&self) -> &[ServedType] {
        &self.types
    }

    /// Returns what could not be asked, or answered with what it knew once.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.unavailable
    }

    /// Says what a pattern means, as kubectl would.
    ///
    /// A plural name goes before a short name, that before a singular name, that before a kind. Among types of one name,
    /// the first that can be watched is taken.
    pub fn resolve(&self, pattern: &Pattern) -> Resolution {
        let Pattern::Type { name, rest } = pattern else { return Resolution::Many };
        // as kubectl: version and group first, then all of it as a group
        let versioned = rest.as_deref().and_then(|rest| rest.split_once('.'));
        let found = versioned
            .and_then(|(version, group)| self.find(name, Some(group), Some(version)))
            .or_else(|| self.find(name, rest.as_deref(), None));
        match found {
            Some(served) if served.is_watchable() => Resolution::Found(served.resource.clone()),
            Some(served) => Resolution::Unwatchable { resource: served.resource.clone(), verbs: served.verbs.clone() },
            None => Resolution::Missing {
                suggestions: self.suggest(pattern),
                unavailable: self.unavailable_for(rest.as_deref()),
            },
        }
    }

    fn find(&self, name: &str, group: Option<&str>, version: Option<&str>) -> Option<&ServedType> {
        let fits = |asked: Option<&str>, served: &str| asked.is_none_or(|asked| asked == served);
        let candidates = self
            .types
            .iter()
            .filter(|served| fits(group, &served.resource.group) && fits(version, &served.resource.version));
        // of equals the first is taken
        candidates
            .filter_map(|served| Some((served.rank(name)?, !served.is_watchable(), served)))
            .min_by_key(|(rank, unwatchable, _)| (*rank, *unwatchable))
            .map(|(_, _, served)| served)
    }

    /// Returns the nearest names of types that can be watched.
    fn suggest(&self, pattern: &Pattern) -> Vec<String> {
        let Pattern::Type { name, rest } = pattern else { return Vec::new() };
        let mut near: Vec<(usize, String)> = Vec::new();
        for served in self.types.iter().filter(|served| served.is_watchable() && served.preferred) {
            let resource = &served.resource;
            // short names are too short to be near to anything
            let names = [&*resource.plural, &*served.singular].into_iter();
            let distance = names.filter(|name| !name.is_empty()).map(|known| strsim::osa_distance(name, known)).min();
            let qualified = resource.qualified_name();
            let group_distance = rest.as_deref().map_or(0, |rest| {
                let with_version = format!("{}.{}", resource.version, resource.group);
                strsim::osa_distance(rest, &resource.group).min(strsim::osa_distance(rest, &with_version))
            });
            if let Some(distance) = distance
                && distance <= 1 + name.len() / 4
                && !near.iter().any(|(_, known)| *known == qualified)
            {
                near.push((distance * 100 + group_distance, qualified));
            }
        }
        near.sort();
        near.into_iter().take(3).map(|(_, name)| name).collect()
    }

    fn unavailable_for(&self, rest: Option<&str>) -> Vec<Unavailable> {
        let may_hold = |group: &str| {
            rest.is_none_or(|rest| rest == group || rest.split_once('.').is_some_and(|(_, g)| g == group))
        };
        self.unavailable.iter().filter(|unavailable| may_hold(&unavailable.group)).cloned().collect()
    }
}

fn served_type(group: &str, version: &str, served: Type, preferred: bool) -> ServedType {
    let Type { plural, singular, kind, namespaced, short_names, verbs } = served;
    let resource = ResourceType { group: group.to_owned(), version: version.to_owned(), kind, plural, namespaced };
    ServedType { resource, singular, short_names, verbs, preferred }
}

/// Finds the types that more than one entry names, whatever the version (D12). Each claim is an entry, as it is to be
/// named in the error, and one of its types.
pub fn conflicts<'a>(claims: impl IntoIterator<Item = (&'a str, &'a ResourceType)>) -> Vec<Conflict> {
    let mut owners: Vec<(&str, &ResourceType)> = Vec::new();
    let mut found = Vec::new();
    for (entry, resource) in claims {
        let is_same = |other: &ResourceType| other.group == resource.group && other.plural == resource.plural;
        match owners.iter().find(|(_, owned)| is_same(owned)) {
            Some((first, owned)) => found.push(Conflict {
                resource: (*owned).clone(),
                first: (*first).to_owned(),
                second: entry.to_owned(),
            }),
            None => owners.push((entry, resource)),
        }
    }
    found
}
