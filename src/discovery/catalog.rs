//! Catalog of served types, and resolution of patterns.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
};

use super::{built_in::may_be_custom, documents::GroupVersion, pattern::Pattern};
use crate::object::ResourceType;

/// Snapshot of the types that a server serves.
///
/// **Invariant:** the types are in kubectl's order of preference. The core group comes first, then the other groups in the
/// server's order, each with its preferred version first.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    types: Vec<ServedType>,
    unavailable: Vec<Unavailable>,
    /// Names of the CRDs, each `PLURAL.GROUP`; `None` if they are unknown.
    definitions: Option<HashSet<String>>,
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
    /// Groups of types that kubectl reads together, such as `all`.
    pub categories: Vec<String>,
    /// Supported verbs, such as `list`.
    pub verbs: Vec<String>,
    /// Set in the first version that has the type, in the group's order of preference.
    pub preferred: bool,
}

/// An API version with unknown or possibly outdated types.
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

/// Reason why a pattern has no watchable type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// No such type. It may appear with a CRD, or when an unavailable group is available again.
    Missing {
        /// Similar names of served, watchable types, best first; at most three.
        suggestions: Vec<String>,
        /// Groups that may have the type but did not answer.
        unavailable: Vec<Unavailable>,
    },
    /// The pattern names a type that cannot be listed, or cannot be watched.
    Unwatchable {
        resource: ResourceType,
        /// Supported verbs.
        verbs: Vec<String>,
    },
    /// The pattern is a wildcard, and matches no watchable type.
    Empty {
        pattern: Pattern,
        /// Groups that may have such types but did not answer.
        unavailable: Vec<Unavailable>,
    },
    /// The entry itself excludes all types of the pattern.
    Excluded {
        first: ResourceType,
        /// Number of excluded types.
        count: usize,
    },
}

impl Resolution {
    /// Returns the reason as a sentence without a period.
    pub(crate) fn why_not(&self) -> String {
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
            Self::Empty { pattern, unavailable } => {
                let which = match pattern {
                    Pattern::Group(group) => format!(" in the group {group}"),
                    Pattern::Custom => " of a CRD".to_owned(),
                    Pattern::All | Pattern::Type { .. } => String::new(),
                };
                format!("the server serves no type{which} that can be listed and watched{}", not_asked(unavailable))
            }
            Self::Excluded { first, count: 1 } => format!("{first} is excluded by the same entry"),
            Self::Excluded { count, .. } => format!("all of its {count} types are excluded by the same entry"),
        }
    }
}

/// Returns a suffix for a message: the groups that did not answer.
fn not_asked(unavailable: &[Unavailable]) -> String {
    let said = |unavailable: &Unavailable| format!("; discovery of {unavailable} failed: {}", unavailable.error);
    unavailable.iter().map(said).collect::<Vec<_>>().concat()
}

impl ServedType {
    /// Creates a type without short names or verbs. Its singular name is the kind in lower case, which is nearly always correct.
    pub fn unnamed(resource: ResourceType) -> Self {
        let singular = resource.kind.to_ascii_lowercase();
        let (short_names, categories, verbs) = (Vec::new(), Vec::new(), Vec::new());
        Self { resource, singular, short_names, categories, verbs, preferred: true }
    }

    /// Creates a type that supports get, list and watch; see [`ServedType::unnamed`].
    pub fn watchable(resource: ResourceType) -> Self {
        let verbs = ["get", "list", "watch"].map(str::to_owned).to_vec();
        Self { verbs, ..Self::unnamed(resource) }
    }

    /// Returns true if the type supports list and watch.
    pub fn is_watchable(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.offers(verb))
    }

    /// Returns true if the type supports get and list.
    pub fn is_readable(&self) -> bool {
        ["get", "list"].iter().all(|verb| self.offers(verb))
    }

    fn offers(&self, verb: &str) -> bool {
        self.verbs.iter().any(|offered| offered == verb)
    }

    /// Returns the rank of a lower-case `name` among the names of this type; a smaller rank is better. `None` if the type has no
    /// such name.
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
        Self { types, ..Self::default() }
    }

    /// Sets the names of the CRDs. Without them, every type of a group that is not the API server's own counts as a type of a CRD.
    #[must_use]
    pub(super) fn with_definitions(self, names: Vec<String>) -> Self {
        Self { definitions: Some(names.into_iter().collect()), ..self }
    }

    /// Returns true if a CRD defines the type.
    fn is_custom(&self, served: &ServedType) -> bool {
        let ResourceType { group, plural, .. } = &served.resource;
        match &self.definitions {
            Some(names) => names.contains(&format!("{plural}.{group}")),
            None => may_be_custom(group),
        }
    }

    /// Adds a type in one version, or replaces the catalog's entry for this type. The type then counts as watchable, whatever
    /// discovery reports.
    #[must_use]
    pub fn holding(mut self, resource: &ResourceType) -> Self {
        let exact = self.types.iter().position(|served| served.resource == *resource);
        match exact.or_else(|| self.types.iter().position(|served| is_same(&served.resource, resource))) {
            Some(at) => {
                let ServedType { verbs, .. } = ServedType::watchable(resource.clone());
                let served = &mut self.types[at];
                (served.resource, served.verbs) = (resource.clone(), verbs);
            }
            None => self.types.push(ServedType::watchable(resource.clone())),
        }
        self
    }

    pub(super) fn new(mut versions: Vec<GroupVersion>) -> Self {
        versions.sort_by_key(|served| !served.group.is_empty());
        let mut catalog = Self::default();
        for GroupVersion { group, version, types, error } in versions {
            for mut served in types {
                let is_known = |known: &ServedType| is_same(&known.resource, &served.resource);
                served.preferred = !catalog.types.iter().any(is_known);
                catalog.types.push(served);
            }
            catalog.unavailable.extend(error.map(|error| Unavailable { group, version, error }));
        }
        catalog
    }

    /// Returns every served type, in order of preference.
    pub fn types(&self) -> &[ServedType] {
        &self.types
    }

    /// Returns the versions of groups that did not answer, or answered with stale data.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.unavailable
    }

    /// Returns the reason why a pattern has no watchable type.
    pub(super) fn why_unmatched(&self, pattern: &Pattern) -> Resolution {
        match pattern {
            Pattern::All | Pattern::Custom | Pattern::Group(_) => {
                let group = if let Pattern::Group(group) = pattern { Some(&**group) } else { None };
                Resolution::Empty { pattern: pattern.clone(), unavailable: self.unavailable_for(group) }
            }
            Pattern::Type { rest, .. } => match self.find_among(pattern, |_| true) {
                Some(ServedType { resource, verbs, .. }) => {
                    Resolution::Unwatchable { resource: resource.clone(), verbs: verbs.clone() }
                }
                None => Resolution::Missing {
                    suggestions: self.suggest(pattern, ServedType::is_watchable),
                    unavailable: self.unavailable_for(rest.as_deref()),
                },
            },
        }
    }

    /// Finds the readable type of a pattern. If there is none, returns the most similar names, best first.
    pub fn find_readable(&self, pattern: &Pattern) -> Result<&ServedType, Vec<String>> {
        let found = self.find_among(pattern, ServedType::is_readable);
        found.ok_or_else(|| self.suggest(pattern, ServedType::is_readable))
    }

    /// Returns the readable types of a category, such as `all`, each in its preferred version.
    pub fn find_category(&self, category: &str) -> impl Iterator<Item = &ServedType> {
        let is_member = move |served: &&ServedType| served.categories.iter().any(|known| known == category);
        self.types.iter().filter(|served| served.preferred && served.is_readable()).filter(is_member)
    }

    /// Returns the watchable types of a pattern, in order of preference. A wildcard gives only the first watchable version of each
    /// type, and only one of the two event types.
    pub(super) fn matching(&self, pattern: &Pattern) -> Vec<&ServedType> {
        let fits = |served: &ServedType| match pattern {
            Pattern::All => true,
            Pattern::Custom => self.is_custom(served),
            Pattern::Group(group) => *group == served.resource.group,
            Pattern::Type { .. } => false,
        };
        if let Pattern::Type { .. } = pattern {
            return self.find_among(pattern, |_| true).filter(|served| served.is_watchable()).into_iter().collect();
        }
        let fitting = self.types.iter().filter(|served| fits(served) && served.is_watchable());
        let mut seen = HashSet::new();
        fitting.filter(|served| seen.insert(identity(&served.resource))).collect()
    }

    /// Finds the type that a pattern names, as kubectl does, among the types that pass `is_meant`. The name is compared with plural
    /// names first, then with short names, singular names and kinds. Of two types that match equally well, a watchable one is
    /// preferred.
    pub(super) fn find_among(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Option<&ServedType> {
        let Pattern::Type { name, rest } = pattern else { return None };
        // like kubectl: `rest` is read first as version and group, then as a group
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
        let is_candidate = |served: &&ServedType| {
            let ResourceType { group: of_group, version: of_version, .. } = &served.resource;
            fits(group, of_group) && fits(version, of_version) && is_meant(served)
        };
        let candidates = self.types.iter().filter(is_candidate);
        // `min_by_key` returns the first of equal candidates
        let ranked = candidates.filter_map(|served| Some(((served.rank(name)?, !served.is_watchable()), served)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, served)| served)
    }

    /// Returns the most similar names of types that pass `is_meant`, at most three.
    fn suggest(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Vec<String> {
        let Pattern::Type { name, rest } = pattern else { return Vec::new() };
        let distances = |served: &ServedType| {
            let resource = &served.resource;
            // short names are left out: between short words, an edit distance says little
            let names = [&*resource.plural, &*served.singular].into_iter().filter(|known| !known.is_empty());
            let distance = names.map(|known| strsim::osa_distance(name, known)).min()?;
            let of_group = rest.as_deref().map_or(0, |rest| {
                let with_version = format!("{}.{}", resource.version, resource.group);
                strsim::osa_distance(rest, &resource.group).min(strsim::osa_distance(rest, &with_version))
            });
            (distance <= 1 + name.len() / 4).then(|| (distance, of_group, resource.qualified_name()))
        };
        let meant = self.types.iter().filter(|served| is_meant(served) && served.preferred);
        let near: BTreeSet<_> = meant.filter_map(distances).collect();
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

/// Returns true if both are the same type, possibly in different versions.
fn is_same(one: &ResourceType, other: &ResourceType) -> bool {
    one.group == other.group && one.plural == other.plural
}

/// Group and plural of a type, without its version. The type `events.events.k8s.io` has the core group here, because it serves the
/// same objects as the core type `events`.
pub(crate) type TypeIdentity<'a> = (&'a str, &'a str);

/// Returns the identity of a type, without its version. Types with the same identity serve the same objects.
pub(crate) fn identity(resource: &ResourceType) -> TypeIdentity<'_> {
    match (&*resource.group, &*resource.plural) {
        ("events.k8s.io", "events") => ("", "events"),
        identity => identity,
    }
}
