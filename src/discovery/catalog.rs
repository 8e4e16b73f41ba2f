//! Every type the server serves, and which of them a pattern means.

use std::{collections::HashSet, fmt};

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

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.group {
            "" => f.write_str(&self.version),
            group => write!(f, "{group}/{}", self.version),
        }
    }
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
    /// `*` or `*.GROUP`: these types, each in one version, in order of preference. Never empty.
    Many(Vec<ResourceType>),
    /// `*` or `*.GROUP`, and nothing that can be watched.
    Empty {
        /// The group; `None` for `*`.
        group: Option<String>,
        /// Groups that may hold some and could not be asked.
        unavailable: Vec<Unavailable>,
    },
    /// All that the pattern means is excluded by its own entry.
    Excluded {
        /// The first of the types.
        first: ResourceType,
        /// How many there are.
        count: usize,
    },
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

/// Names the groups that could not be asked, behind what else is said.
fn not_asked(unavailable: &[Unavailable]) -> String {
    let said = |unavailable: &Unavailable| format!("; {unavailable} could not be asked: {}", unavailable.error);
    unavailable.iter().map(said).collect::<Vec<_>>().concat()
}

impl ServedType {
    /// Makes a type that nothing more is known of: the singular is its kind in lower case, as nearly always.
    pub fn unnamed(resource: ResourceType) -> Self {
        let singular = resource.kind.to_ascii_lowercase();
        Self { resource, singular, short_names: Vec::new(), verbs: Vec::new(), preferred: true }
    }

    /// Makes a type that can be read and watched; else as [`ServedType::unnamed`].
    pub fn watchable(resource: ResourceType) -> Self {
        let verbs = ["get", "list", "watch"].map(str::to_owned).to_vec();
        Self { verbs, ..Self::unnamed(resource) }
    }

    /// Returns whether it can be listed and watched.
    pub fn is_watchable(&self) -> bool {
        ["list", "watch"].iter().all(|verb| self.offers(verb))
    }

    fn is_readable(&self) -> bool {
        ["get", "list"].iter().all(|verb| self.offers(verb))
    }

    fn offers(&self, verb: &str) -> bool {
        self.verbs.iter().any(|offered| offered == verb)
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
    /// Makes a catalog of types, in order of preference.
    pub(crate) fn of(types: Vec<ServedType>) -> Self {
        Self { types, unavailable: Vec::new() }
    }

    /// Returns the same catalog with this type in it, in this version, whatever version of it there was; it can be
    /// watched, whoever says otherwise.
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

    /// Returns what could not be asked, or answered with what it knew once.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.unavailable
    }

    /// Says what a pattern means, as kubectl would.
    ///
    /// A plural name goes before a short name, that before a singular name, that before a kind. Among types of one name,
    /// the first that can be watched is taken.
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

    /// Finds the type that a pattern means to somebody who only reads; what could not be found comes with the nearest
    /// names, best first.
    pub fn find_readable(&self, pattern: &Pattern) -> Result<&ServedType, Vec<String>> {
        let found = self.find_among(pattern, ServedType::is_readable);
        found.ok_or_else(|| self.suggest(pattern, ServedType::is_readable))
    }

    /// Returns the types that a pattern means and that can be watched, in order of preference. A wildcard takes each
    /// type in the first version that can be watched, and of the two kinds of events only one.
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

    /// Finds the type that a name means among those that `is_meant` lets through.
    pub(super) fn find_among(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Option<&ServedType> {
        let Pattern::Type { name, rest } = pattern else { return None };
        // as kubectl: version and group first, then all of it as a group
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
        // of equals the first is taken
        candidates
            .filter_map(|served| Some((served.rank(name)?, !served.is_watchable(), served)))
            .min_by_key(|(rank, unwatchable, _)| (*rank, *unwatchable))
            .map(|(_, _, served)| served)
    }

    /// Returns the nearest names of types that `is_meant` lets through.
    fn suggest(&self, pattern: &Pattern, is_meant: impl Fn(&ServedType) -> bool) -> Vec<String> {
        let Pattern::Type { name, rest } = pattern else { return Vec::new() };
        let mut near: Vec<(usize, usize, String)> = Vec::new();
        for served in self.types.iter().filter(|served| is_meant(served) && served.preferred) {
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
                && !near.iter().any(|(.., known)| *known == qualified)
            {
                near.push((distance, group_distance, qualified));
            }
        }
        near.sort();
        // what is farther than the nearest name is not meant
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

/// Key shared by types of the same objects: group and plural, of both kinds of events the core group's.
pub type TypeIdentity<'a> = (&'a str, &'a str);

/// Returns which objects a type is about, whatever the version: two types with the same identity are one.
pub fn identity(resource: &ResourceType) -> TypeIdentity<'_> {
    match (&*resource.group, &*resource.plural) {
        ("events.k8s.io", "events") => ("", "events"),
        identity => identity,
    }
}
