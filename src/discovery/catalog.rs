//! Catalog of served types, and resolution of patterns.

use std::{collections::HashSet, fmt};

use super::{
    documents::{Group, Type},
    pattern::Pattern,
};
use crate::object::ResourceType;

/// Snapshot of the types that a server serves.
///
/// **Invariant:** the types are in kubectl's order of preference: the core group first, then the groups in the server's
/// order, each with its preferred version first.
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
    /// Singular name, such as `deployment`; may be empty.
    pub singular: String,
    /// Short names, such as `deploy`.
    pub short_names: Vec<String>,
    /// Supported verbs, such as `list`.
    pub verbs: Vec<String>,
    /// Set for the group's preferred version among those that have the type.
    pub preferred: bool,
}

/// A version of a group whose types are unknown or possibly outdated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Reason.
    pub error: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.version),
            group => write!(f, "{group}/{}", self.version),
        }
    }
}

/// Result of resolving a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// One type.
    Found(ResourceType),
    /// No such type. It may appear with a CRD, or when an unavailable group is available again.
    Missing {
        /// Similar names of served, watchable types, best first; at most three.
        suggestions: Vec<String>,
        /// Groups that may have the type but did not answer.
        unavailable: Vec<Unavailable>,
    },
    /// A type without list or without watch.
    Unwatchable {
        /// The type.
        resource: ResourceType,
        /// Supported verbs.
        verbs: Vec<String>,
    },
    /// Types of `*` or `*.GROUP`, each in one version, in order of preference. Never empty.
    Many(Vec<ResourceType>),
    /// No watchable type for `*` or `*.GROUP`.
    Empty {
        /// The group; `None` for `*`.
        group: Option<String>,
        /// Groups that may have such types but did not answer.
        unavailable: Vec<Unavailable>,
    },
    /// The entry itself excludes all types of the pattern.
    Excluded {
        /// The first of the types.
        first: ResourceType,
        /// Number of types.
        count: usize,
    },
}

impl Resolution {
    /// Returns the reason why there is no watchable type, as a sentence without a period.
    pub fn why_not(&self) -> String {
        match self {
            Self::Missing { suggestions, unavailable } => {
                let mut why = "the server serves no such type".to_owned();
                if !suggestions.is_empty() {
                    why.push_str("; did you mean ");
                    why.push_str(&suggestions.join(" or "));
                    why.push('?');
                }
                why.push_str(&not_asked(unavailable));
                why
            }
            Self::Unwatchable { resource, verbs } => {
                format!("{resource} cannot be listed and watched, it only offers {}", verbs.join(", "))
            }
            Self::Found(resource) => format!("{resource} is served"),
            Self::Many(types) => format!("{} types are served", types.len()),
            Self::Empty { group, unavailable } => {
                let place = group.as_ref().map(|group| format!(" in the group {group}")).unwrap_or_default();
                format!("the server serves no type{place} that can be listed and watched{}", not_asked(unavailable))
            }
            Self::Excluded { first, count: 1 } => format!("{first} is excluded by the same entry"),
            Self::Excluded { count, .. } => format!("all of its {count} types are excluded by the same entry"),
        }
    }
}

/// Lists the groups that did not answer, as a suffix.
fn not_asked(unavailable: &[Unavailable]) -> String {
    let said = |unavailable: &Unavailable| format!("; discovery of {unavailable} failed: {}", unavailable.error);
    unavailable.iter().map(said).collect::<Vec<_>>().concat()
}

impl ServedType {
    /// Creates a type with unknown properties; the singular is the kind in lower case, as is nearly always correct.
    pub fn unnamed(resource: ResourceType) -> Self {
        let singular = resource.kind.to_ascii_lowercase();
        Self { resource, singular, short_names: Vec::new(), verbs: Vec::new(), preferred: true }
    }

    /// Creates a type with get, list and watch; see [`ServedType::unnamed`].
    pub fn watchable(resource: ResourceType) -> Self {
        let verbs = ["get", "list", "watch"].map(str::to_owned).to_vec();
        Self { verbs, ..Self::unnamed(resource) }
    }

    /// Returns true if it supports list and watch.
    pub fn is_watchable(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.offers(verb))
    }

    /// Returns true if it supports get and list.
    pub fn is_readable(&self) -> bool {
        ["get", "list"].iter().all(|verb| self.offers(verb))
    }

    fn offers(&self, verb: &str) -> bool {
        self.verbs.iter().any(|offered| offered == verb)
    }

    /// Returns the quality of `name`, in lower case, as a name of this type; smaller is better.
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
    /// Creates a catalog of types, in order of preference.
    pub(crate) fn of(types: Vec<ServedType>) -> Self {
        Self { types, unavailable: Vec::new() }
    }

    /// Adds this type in this version, in place of any other version. It counts as watchable, whatever discovery
    /// reports.
    #[must_use]
    pub fn holding(mut self, resource: &ResourceType) -> Self {
        let is_type = |known: &ResourceType| known.group == resource.group && known.plural == resource.plural;
        let exact = self.types.iter().position(|served| served.resource == *resource);
        match exact.or_else(|| self.types.iter().position(|served| is_type(&served.resource))) {
            Some(at) => {
                let ServedType { verbs, .. } = ServedType::watchable(resource.clone());
                let served = &mut self.types[at];
                (served.resource, served.verbs) = (resource.clone(), verbs);
            }
            None => self.types.push(ServedType::watchable(resource.clone())),
        }
        self
    }

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

    /// Returns the groups that did not answer, or answered with stale data.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.unavailable
    }

    /// Resolves a pattern as kubectl does.
    ///
    /// A plural name takes precedence over a short name, then a singular name, then a kind. Among types with the same name,
    /// the first watchable one is used.
    pub fn resolve(&self, pattern: &Pattern) -> Resolution {
        let group = match pattern {
            Pattern::Type { rest, .. } => rest.as_deref(),
            Pattern::Group(group) => Some(&**group),
            Pattern::All => None,
        };
        if pattern.is_wildcard() {
            let types: Vec<_> = self.matching(pattern).into_iter().map(|served| served.resource.clone()).collect();
            let empty =
                || Resolution::Empty { group: group.map(str::to_owned), unavailable: self.unavailable_for(group) };
            return if types.is_empty() { empty() } else { Resolution::Many(types) };
        }
        match self.find_among(pattern, |_| true) {
            Some(served) if served.is_watchable() => Resolution::Found(served.resource.clone()),
            Some(served) => Resolution::Unwatchable { resource: served.resource.clone(), verbs: served.verbs.clone() },
            None => Resolution::Missing {
                suggestions: self.suggest(pattern, ServedType::is_watchable),
                unavailable: self.unavailable_for(group),
            },
        }
    }

    /// Finds the readable type of a pattern. If there is none, returns the nearest names,
    /// best first.
    pub fn find_readable(&self, pattern: &Pattern) -> Result<&ServedType, Vec<String>> {
        let found = self.find_among(pattern, ServedType::is_readable);
        found.ok_or_else(|| self.suggest(pattern, ServedType::is_readable))
    }

    /// Returns the watchable types of a pattern, in order of preference. A wildcard gives each type in its first watchable
    /// version, and only one of the two event types.
    pub(super) fn matching(&self, pattern: &Pattern) -> Vec<&ServedType> {
        let fits = |served: &&ServedType| match pattern {
            Pattern::All => true,
            Pattern::Group(group) => served.resource.group == *group,
            Pattern::Type { .. } => false,
        };
        if !pattern.is_wildcard() {
            return self.find_among(pattern, |_| true).filter(|served| served.is_watchable()).into_iter().collect();
        }
        let mut seen = HashSet::new();
        let watchable = self.types.iter().filter(fits).filter(|served| served.is_watchable());
        watchable.filter(|served| seen.insert(identity(&served.resource))).collect()
    }

    /// Finds the type of a name among those that pass `is_meant`.
    pub(super) fn find_among(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Option<&ServedType> {
        let Pattern::Type { name, rest } = pattern else { return None };
        // like kubectl: first as version and group, then as a group
        let versioned = rest.as_deref().and_then(|rest| rest.split_once('.'));
        versioned
            .and_then(|(version, group)| self.find(name, Some(group), Some(version), &is_meant))
            .or_else(|| self.find(name, rest.as_deref(), None, &is_meant))
    }

    fn find(
        &self,
        name: &str,
        group: Option<&str>,
        version: Option<&str>,
        is_meant: impl Fn(&ServedType) -> bool,
    ) -> Option<&ServedType> {
        let fits = |asked: Option<&str>, served: &str| asked.is_none_or(|asked| asked == served);
        let candidates = self
            .types
            .iter()
            .filter(|served| fits(group, &served.resource.group) && fits(version, &served.resource.version))
            .filter(|served| is_meant(served));
        // of equals, the first is used
        candidates
            .filter_map(|served| Some((served.rank(name)?, !served.is_watchable(), served)))
            .min_by_key(|(rank, unwatchable, _)| (*rank, *unwatchable))
            .map(|(_, _, served)| served)
    }

    /// Returns the nearest names of types that pass `is_meant`.
    fn suggest(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Vec<String> {
        let Pattern::Type { name, rest } = pattern else { return Vec::new() };
        let mut near: Vec<(usize, usize, String)> = Vec::new();
        for served in self.types.iter().filter(|served| is_meant(served) && served.preferred) {
            let resource = &served.resource;
            // short names are too short for a distance
            let names = [&*resource.plural, &*served.singular].into_iter();
            let distance = names.filter(|name| !name.is_empty()).map(|known| strsim::osa_distance(name, known)).min();
            let qualified = resource.qualified_name();
            let group_distance = rest.as_deref().map_or(0, |rest| {
                let with_version = format!("{}.{}", resource.version, resource.group);
                strsim::osa_distance(rest, &resource.group).min(strsim::osa_distance(rest, &with_version))
            });
            if let Some(distance) = distance
                && distance <= 1 + name.len() / 4
                && !near.iter().any(|(.., known)| *known == qualified)
            {
                near.push((distance, group_distance, qualified));
            }
        }
        near.sort();
        // keep only the names with the smallest distance
        let nearest = near.first().map(|(distance, ..)| *distance);
        near.into_iter().filter(|(distance, ..)| Some(*distance) == nearest).take(3).map(|(.., name)| name).collect()
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

/// Key shared by all types of the same objects: group and plural. Both event types use the core group.
pub type TypeIdentity<'a> = (&'a str, &'a str);

/// Returns the identity of a type's objects, independent of the version: types with the same identity are the same.
pub fn identity(resource: &ResourceType) -> TypeIdentity<'_> {
    match (&*resource.group, &*resource.plural) {
        ("events.k8s.io", "events") => ("", "events"),
        identity => identity,
    }
}
