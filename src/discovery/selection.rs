//! Assignment of types to entries: patterns are matched against the served types.
//!
//! Reasons: `docs/decisions/0013-one-owner-per-type.md`.

use std::collections::{HashMap, HashSet};

use super::{
    built_in::may_be_custom,
    catalog::{Catalog, Resolution, ServedType, TypeIdentity, identity},
    pattern::Pattern,
};
use crate::{object::ResourceType, scope::Namespaces};

/// Requested types of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedEntry {
    /// Name of the entry.
    pub entry: String,
    /// `match` of the entry.
    pub patterns: Vec<Pattern>,
    /// `exclude` of the entry.
    pub exclude: Vec<Pattern>,
    /// `namespaces` of the entry.
    pub namespaces: Namespaces,
}

/// Position of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PatternPlace {
    /// Name of the entry.
    pub entry: String,
    /// Index in the entry's `match` or `exclude`.
    pub pattern: usize,
}

/// A type and the entry that watches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    /// Name of the entry.
    pub entry: String,
    /// Position in the entry's `match`: the pattern there has selected the type.
    pub pattern: usize,
    /// The type, in the version that the pattern selects.
    pub resource: ResourceType,
}

/// A pattern that currently selects no type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unmatched {
    /// Name of the entry.
    pub entry: String,
    /// Position of the pattern in the entry's `match`.
    pub pattern: usize,
    /// Reason.
    pub resolution: Resolution,
}

/// Two equally specific patterns for the same type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The type, in the version of the first pattern.
    pub resource: ResourceType,
    /// The first pattern; it keeps the type.
    pub first: PatternPlace,
    pub second: PatternPlace,
}

/// Result of [`select`]: the assignment of types to entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Types to watch, ordered by entry, then by pattern, then as in the catalog. A type occurs more than once only if entries with
    /// disjoint namespaces share it.
    pub owned: Vec<Owned>,
    /// Patterns without a type, in the given order.
    pub unmatched: Vec<Unmatched>,
    /// Types that two entries select with equally specific patterns. The first entry keeps them.
    pub conflicts: Vec<Conflict>,
    /// Types that two equally specific patterns of the same entry select. The second pattern has no effect on them.
    pub repeated: Vec<Conflict>,
    /// Elements of `exclude` that currently exclude nothing.
    pub unused_excludes: Vec<PatternPlace>,
}

/// Returns the specificity of a pattern; the greater one wins.
fn specificity(pattern: &Pattern) -> u8 {
    match pattern {
        Pattern::All => 0,
        Pattern::Custom => 1,
        Pattern::Group(_) => 2,
        Pattern::Type { .. } => 3,
    }
}

/// A type selected by one pattern.
struct Claim<'a> {
    entry: &'a WantedEntry,
    pattern: usize,
    served: &'a ServedType,
}

impl Claim<'_> {
    fn specificity(&self) -> u8 {
        specificity(&self.entry.patterns[self.pattern])
    }

    fn place(&self) -> PatternPlace {
        PatternPlace { entry: self.entry.entry.clone(), pattern: self.pattern }
    }

    /// Returns true if two entries can both own the type: it is namespaced, and the entries' namespaces are disjoint.
    fn can_share(&self, other: &Self) -> bool {
        let namespaced = self.served.resource.namespaced && other.served.resource.namespaced;
        namespaced
            && self.entry.entry != other.entry.entry
            && self.entry.namespaces.is_disjoint_from(&other.entry.namespaces)
    }
}

/// Assigns types to entries.
///
/// Among the patterns that match a type, the most specific wins: a name, then `*.GROUP`, then `crd:*`, then `*`. If several entries have equally
/// specific patterns, they share a namespaced type if their namespaces are disjoint. Otherwise the first of these entries gets the
/// type. An entry never gets a type that it excludes.
///
/// All versions of a type count as one type. The `events` of the core group and of `events.k8s.io` also count as one type. A
/// wildcard takes each watchable type once, in its first watchable version.
pub(crate) fn select(catalog: &Catalog, wanted: &[WantedEntry]) -> Selection {
    let mut selection = Selection::default();
    let claims: Vec<_> = wanted.iter().flat_map(|entry| claims_of(catalog, entry, &mut selection)).collect();
    settle(&claims, &mut selection);
    selection
}

/// Returns the types that one entry requests, without those that it excludes.
fn claims_of<'a>(catalog: &'a Catalog, entry: &'a WantedEntry, selection: &mut Selection) -> Vec<Claim<'a>> {
    let candidates: Vec<Vec<&ServedType>> = entry.patterns.iter().map(|pattern| catalog.matching(pattern)).collect();
    let identities: HashSet<_> = candidates.iter().flatten().map(|served| identity(&served.resource)).collect();
    let mut excluded: HashSet<TypeIdentity<'_>> = HashSet::new();
    for (position, pattern) in entry.exclude.iter().enumerate() {
        let found = excluded_by(catalog, pattern, &identities);
        if found.is_empty() {
            selection.unused_excludes.push(PatternPlace { entry: entry.entry.clone(), pattern: position });
        }
        excluded.extend(found);
    }
    let mut claims = Vec::new();
    for (pattern, types) in candidates.into_iter().enumerate() {
        let (out, taken): (Vec<_>, Vec<_>) =
            types.into_iter().partition(|served| excluded.contains(&identity(&served.resource)));
        if taken.is_empty() {
            let resolution = match out.first() {
                Some(first) => Resolution::Excluded { first: first.resource.clone(), count: out.len() },
                None => catalog.why_unmatched(&entry.patterns[pattern]),
            };
            selection.unmatched.push(Unmatched { entry: entry.entry.clone(), pattern, resolution });
        }
        claims.extend(taken.into_iter().map(|served| Claim { entry, pattern, served }));
    }
    claims
}

/// Returns the candidates that a pattern of `exclude` removes. All versions of a type are one candidate. A name removes one
/// candidate: the type that the name would find if the candidates were the only types. A wildcard removes all candidates that it
/// matches.
fn excluded_by<'a>(
    catalog: &'a Catalog,
    pattern: &Pattern,
    candidates: &HashSet<TypeIdentity<'_>>,
) -> Vec<TypeIdentity<'a>> {
    let is_candidate = |served: &ServedType| candidates.contains(&identity(&served.resource));
    let mut meant = match pattern {
        Pattern::Type { .. } => catalog.find_among(pattern, is_candidate).into_iter().collect(),
        Pattern::All | Pattern::Custom | Pattern::Group(_) => catalog.matching(pattern),
    };
    meant.retain(|served| is_candidate(served));
    meant.into_iter().map(|served| identity(&served.resource)).collect()
}

/// Assigns every type to its most specific claim, or to several equally specific claims that can share the type.
fn settle(claims: &[Claim<'_>], selection: &mut Selection) {
    let mut closest: HashMap<TypeIdentity<'_>, u8> = HashMap::new();
    for claim in claims {
        let specificity = closest.entry(identity(&claim.served.resource)).or_default();
        *specificity = claim.specificity().max(*specificity);
    }
    let mut owners: HashMap<TypeIdentity<'_>, Vec<&Claim<'_>>> = HashMap::new();
    for claim in claims {
        let resource = &claim.served.resource;
        if closest[&identity(resource)] > claim.specificity() {
            continue;
        }
        let owners = owners.entry(identity(resource)).or_default();
        let rival = owners.iter().find(|owner| !owner.can_share(claim));
        let Some(first) = rival else {
            owners.push(claim);
            let PatternPlace { entry, pattern } = claim.place();
            selection.owned.push(Owned { entry, pattern, resource: resource.clone() });
            continue;
        };
        let (first, resource) = (first.place(), first.served.resource.clone());
        let overlap = Conflict { resource, first, second: claim.place() };
        if overlap.first.entry == overlap.second.entry {
            selection.repeated.push(overlap);
        } else {
            selection.conflicts.push(overlap);
        }
    }
}

/// Returns true if the selection can change when CRDs are added or removed. This holds for `*` and `crd:*`, and for `*.GROUP` with a custom
/// group. It also holds if a type of a custom group is selected, or if a CRD could define a type that a pattern names in vain.
pub(crate) fn depends_on_crds(wanted: &[WantedEntry], selection: &Selection) -> bool {
    let pattern = |unmatched: &Unmatched| {
        let entry = wanted.iter().find(|wanted| wanted.entry == unmatched.entry)?;
        entry.patterns.get(unmatched.pattern)
    };
    let is_version =
        |text: &str| text.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let may_come = |pattern: &Pattern| match pattern {
        Pattern::Type { rest: Some(rest), .. } => match rest.split_once('.') {
            Some((version, group)) if is_version(version) => may_be_custom(group),
            _ => may_be_custom(rest),
        },
        Pattern::Type { rest: None, .. } => true,
        Pattern::Group(_) | Pattern::Custom | Pattern::All => false,
    };
    let grows = |pattern: &Pattern| match pattern {
        Pattern::All | Pattern::Custom => true,
        Pattern::Group(group) => may_be_custom(group),
        Pattern::Type { .. } => false,
    };
    let missing = |unmatched: &&Unmatched| matches!(unmatched.resolution, Resolution::Missing { .. });
    wanted.iter().flat_map(|entry| &entry.patterns).any(grows)
        || selection.owned.iter().any(|owned| may_be_custom(&owned.resource.group))
        || selection.unmatched.iter().filter(missing).filter_map(pattern).any(may_come)
}

#[cfg(test)]
mod tests;
