//! Which entry watches which type: patterns held against what is served (D12).

use std::collections::{HashMap, HashSet};

use super::{
    catalog::{Catalog, Resolution, ServedType, TypeIdentity, identity},
    pattern::Pattern,
};
use crate::{object::ResourceType, scope::Namespaces};

/// What one entry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedEntry {
    /// Its name.
    pub entry: String,
    /// Its `match`.
    pub patterns: Vec<Pattern>,
    /// Its `exclude`.
    pub exclude: Vec<Pattern>,
    /// Its `namespaces`.
    pub namespaces: Namespaces,
}

/// A pattern of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternPlace {
    /// Name of the entry.
    pub entry: String,
    /// Position in the entry's `match` or `exclude`, from 0.
    pub pattern: usize,
}

/// A type and the entry that watches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Name of the entry.
    pub entry: String,
    /// Position in `match` of the pattern that brought the type, from 0.
    pub pattern: usize,
    /// The type, in the version that the pattern means.
    pub resource: ResourceType,
}

/// A pattern that brings no type now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// Name of the entry.
    pub entry: String,
    /// Position in `match`, from 0.
    pub pattern: usize,
    /// What it means instead of a type.
    pub resolution: Resolution,
}

/// Two patterns that are equally specific and name one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The type, as the first pattern has it.
    pub resource: ResourceType,
    /// The pattern that named it first, and keeps it.
    pub first: PatternPlace,
    /// The other one.
    pub second: PatternPlace,
}

/// Who watches what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The types to watch: by entry in the order given, then by pattern, then in the catalog's order. A type stands here
    /// more than once only for entries whose namespaces are disjoint.
    pub owned: Vec<Owned>,
    /// Patterns without a type, in the order given.
    pub unmatched: Vec<Unmatched>,
    /// Types that a second entry names just as well: the first keeps them.
    pub conflicts: Vec<Conflict>,
    /// Types that two names within one entry mean; the first is enough.
    pub repeated: Vec<Conflict>,
    /// Elements of `exclude` that keep nothing out now.
    pub unused_excludes: Vec<PatternPlace>,
}

/// How closely a pattern names a type; the greater wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    All,
    Group,
    Name,
}

/// A type as one pattern has it.
struct Claim<'a> {
    wanted: usize,
    pattern: usize,
    specificity: Specificity,
    served: &'a ServedType,
}

/// Decides which entry watches which type.
///
/// Of the patterns that hit one type the most specific wins: a name, then `*.GROUP`, then `*`. Of equally specific ones
/// the first wins, and the others too where their namespaces are disjoint. Versions of a type are one type, and so are
/// the `events` of the core group and of `events.k8s.io`. A wildcard takes each type once, in the group's preferred
/// version, if it can be listed and watched. What an entry excludes it does not take, however it names it.
pub fn select(catalog: &Catalog, wanted: &[WantedEntry]) -> Selection {
    let mut selection = Selection::default();
    let mut claims: Vec<Claim<'_>> = Vec::new();
    for (index, entry) in wanted.iter().enumerate() {
        claims.extend(claims_of(catalog, index, entry, &mut selection));
    }
    settle(wanted, &claims, &mut selection);
    selection
}

/// Returns what one entry asks for, without what it excludes.
fn claims_of<'a>(
    catalog: &'a Catalog,
    wanted: usize,
    entry: &WantedEntry,
    selection: &mut Selection,
) -> Vec<Claim<'a>> {
    let candidates: Vec<Vec<&ServedType>> = entry.patterns.iter().map(|pattern| catalog.matching(pattern)).collect();
    let mut excluded: HashSet<TypeIdentity<'_>> = HashSet::new();
    for (position, pattern) in entry.exclude.iter().enumerate() {
        let found = excluded_by(catalog, pattern, candidates.iter().flatten());
        if found.is_empty() {
            selection.unused_excludes.push(PatternPlace { entry: entry.entry.clone(), pattern: position });
        }
        excluded.extend(found);
    }
    let mut claims = Vec::new();
    for (position, (pattern, types)) in entry.patterns.iter().zip(candidates).enumerate() {
        let (out, taken): (Vec<_>, Vec<_>) =
            types.into_iter().partition(|served| excluded.contains(&identity(&served.resource)));
        if taken.is_empty() {
            let resolution = match out.first() {
                Some(first) => Resolution::Excluded { first: first.resource.clone(), count: out.len() },
                None => catalog.resolve(pattern),
            };
            selection.unmatched.push(Unmatched { entry: entry.entry.clone(), pattern: position, resolution });
        }
        let specificity = Specificity::of(pattern);
        claims.extend(taken.into_iter().map(|served| Claim { wanted, pattern: position, specificity, served }));
    }
    claims
}

/// Returns which of the candidates a pattern of `exclude` means, in whatever version: the one that the same text in
/// `match` would mean if there were no others, or all of a wildcard.
fn excluded_by<'a, 'b: 'a>(
    catalog: &'b Catalog,
    pattern: &Pattern,
    candidates: impl Iterator<Item = &'a &'b ServedType>,
) -> Vec<TypeIdentity<'b>> {
    let mut candidates: Vec<TypeIdentity<'b>> = candidates.map(|served| identity(&served.resource)).collect();
    candidates.sort_unstable();
    candidates.dedup();
    match pattern {
        Pattern::All => candidates,
        Pattern::Group(_) => {
            let meant: HashSet<TypeIdentity<'b>> =
                catalog.matching(pattern).iter().map(|served| identity(&served.resource)).collect();
            candidates.retain(|candidate| meant.contains(candidate));
            candidates
        }
        Pattern::Type { .. } => {
            let is_candidate =
                |served: &ServedType| candidates.iter().any(|candidate| *candidate == identity(&served.resource));
            catalog.find_among(pattern, is_candidate).map(|served| identity(&served.resource)).into_iter().collect()
        }
    }
}

/// Gives every type to the most specific claim.
fn settle(wanted: &[WantedEntry], claims: &[Claim<'_>], selection: &mut Selection) {
    let mut closest: HashMap<TypeIdentity<'_>, Specificity> = HashMap::new();
    for claim in claims {
        let specificity = closest.entry(identity(&claim.served.resource)).or_insert(claim.specificity);
        *specificity = claim.specificity.max(*specificity);
    }
    let place = |claim: &Claim<'_>| PatternPlace { entry: wanted[claim.wanted].entry.clone(), pattern: claim.pattern };
    let mut owners: HashMap<TypeIdentity<'_>, Vec<&Claim<'_>>> = HashMap::new();
    for claim in claims {
        let resource = &claim.served.resource;
        if closest.get(&identity(resource)).is_some_and(|closest| *closest > claim.specificity) {
            continue;
        }
        let owners = owners.entry(identity(resource)).or_default();
        let rival = owners.iter().find(|owner| !can_share(wanted, owner, claim));
        let Some(first) = rival else {
            owners.push(claim);
            let PatternPlace { entry, pattern } = place(claim);
            selection.owned.push(Owned { entry, pattern, resource: resource.clone() });
            continue;
        };
        let overlap = Conflict { resource: first.served.resource.clone(), first: place(first), second: place(claim) };
        if first.wanted == claim.wanted {
            selection.repeated.push(overlap);
        } else {
            selection.conflicts.push(overlap);
        }
    }
}

/// Whether two claims on one type can stand beside each other.
fn can_share(wanted: &[WantedEntry], first: &Claim<'_>, second: &Claim<'_>) -> bool {
    let namespaced = first.served.resource.namespaced && second.served.resource.namespaced;
    let [first, second] = [first, second].map(|claim| claim.wanted);
    namespaced && first != second && wanted[first].namespaces.is_disjoint_from(&wanted[second].namespaces)
}

/// Groups of the API server itself whose names a CRD's group could have.
const BUILT_IN: [&str; 18] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// Returns whether CRDs that come or go can change the selection: there is a `*`, the wildcard of a group that CRDs can
/// have, a type of such a group, or a name without a type that may come to be one.
pub fn depends_on_crds(wanted: &[WantedEntry], selection: &Selection) -> bool {
    // a CRD's group has a dot
    let is_custom = |group: &str| group.contains('.') && !BUILT_IN.contains(&group);
    let pattern = |unmatched: &Unmatched| {
        let entry = wanted.iter().find(|wanted| wanted.entry == unmatched.entry)?;
        entry.patterns.get(unmatched.pattern)
    };
    let is_version =
        |text: &str| text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let may_come = |pattern: &Pattern| match pattern {
        Pattern::Type { rest: Some(rest), .. } => match rest.split_once('.') {
            Some((version, group)) if is_version(version) => is_custom(group),
            _ => is_custom(rest),
        },
        Pattern::Type { rest: None, .. } => true,
        Pattern::Group(_) | Pattern::All => false,
    };
    let grows = |pattern: &Pattern| match pattern {
        Pattern::All => true,
        Pattern::Group(group) => is_custom(group),
        Pattern::Type { .. } => false,
    };
    let missing = |unmatched: &&Unmatched| matches!(unmatched.resolution, Resolution::Missing { .. });
    wanted.iter().flat_map(|entry| &entry.patterns).any(grows)
        || selection.owned.iter().any(|owned| is_custom(&owned.resource.group))
        || selection.unmatched.iter().filter(missing).filter_map(pattern).any(may_come)
}

impl Specificity {
    fn of(pattern: &Pattern) -> Self {
        match pattern {
            Pattern::All => Self::All,
            Pattern::Group(_) => Self::Group,
            Pattern::Type { .. } => Self::Name,
        }
    }
}

#[cfg(test)]
mod tests;
