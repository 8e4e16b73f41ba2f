//! A catalog for commands that run without a server: the built-in types, and types deduced from objects.

use std::collections::BTreeMap;

use super::{
    built_in::{built_in, english_plural},
    catalog::Catalog,
    pattern::Pattern,
};
use crate::object::ResourceType;

/// Type of an object, from its `apiVersion` and `kind`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectType {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    pub kind: String,
}

impl ObjectType {
    /// Splits an `apiVersion`.
    pub(crate) fn new(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }
}

/// A catalog made without access to a server, from the built-in types and from given objects. Some of its data are guesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assumed {
    /// The built-in types, and the types of the given objects.
    pub catalog: Catalog,
    /// Maps the type of a given object to its resource type.
    pub types: BTreeMap<ObjectType, ResourceType>,
    /// Types of the given objects that are not built in. Plural and scope of these types are guesses.
    pub guessed: Vec<ResourceType>,
}

impl Assumed {
    /// Creates a catalog of the built-in types and of `types`, the types of the given objects. `types` maps a type to true if its
    /// objects have a namespace.
    ///
    /// A type that is not built in has no short names. Its plural is taken from a pattern with the same group, whose name differs
    /// from the kind only in its ending. Without such a pattern, the plural is the regular English one. The catalog has each of
    /// `types` only in the version that the objects have.
    pub(crate) fn of(types: &BTreeMap<ObjectType, bool>, patterns: &[&Pattern]) -> Self {
        let mut assumed = Self { catalog: Catalog::of(built_in()), ..Self::default() };
        for (named, namespaced) in types {
            let is_it = |known: &&ResourceType| known.group == named.group && known.kind == named.kind;
            let known = assumed.catalog.types().iter().map(|served| &served.resource).find(is_it);
            let resource = match known {
                Some(known) => ResourceType { version: named.version.clone(), ..known.clone() },
                None => ResourceType {
                    group: named.group.clone(),
                    version: named.version.clone(),
                    kind: named.kind.clone(),
                    plural: plural(named, patterns),
                    namespaced: *namespaced,
                },
            };
            if known.is_none() {
                assumed.guessed.push(resource.clone());
            }
            assumed.catalog = assumed.catalog.holding(&resource);
            assumed.types.insert(named.clone(), resource);
        }
        assumed
    }
}

/// Guesses the plural of a kind.
fn plural(of: &ObjectType, patterns: &[&Pattern]) -> String {
    let singular = of.kind.to_ascii_lowercase();
    let regular = english_plural(&singular);
    let versioned = format!("{}.{}", of.version, of.group);
    let of_group = |pattern: &&&Pattern| matches!(pattern, Pattern::Type { rest: Some(rest), .. } if *rest == of.group || *rest == versioned);
    let mut names = patterns.iter().filter(of_group).filter_map(|pattern| match pattern {
        Pattern::Type { name, .. } => Some(name),
        _ => None,
    });
    if names.clone().any(|name| *name == regular || *name == singular) {
        return regular;
    }
    names.find(|name| has_another_ending(name, &singular)).cloned().unwrap_or(regular)
}

/// Returns true if two words differ only in their last letters, such as "indices" and "index".
fn has_another_ending(word: &str, singular: &str) -> bool {
    let common = word.bytes().zip(singular.bytes()).take_while(|(one, other)| one == other).count();
    common + 2 >= singular.len().max(4) && word.len() <= singular.len() + 3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the guessed type for a kind of `acme.io/v1` with these configured patterns.
    fn guessed(kind: &str, patterns: &[&str]) -> String {
        let patterns: Vec<_> = patterns.iter().map(|pattern| Pattern::parse(pattern).unwrap()).collect();
        let types = BTreeMap::from([(ObjectType::new("acme.io/v1", kind), true)]);
        let assumed = Assumed::of(&types, &patterns.iter().collect::<Vec<_>>());
        assert_eq!(assumed.guessed, assumed.types.values().cloned().collect::<Vec<_>>());
        assumed.guessed[0].qualified_name()
    }

    #[test]
    fn plural_is_configured_or_guessed() {
        for (kind, plural) in [
            ("Widget", "widgets"),
            ("Policy", "policies"),
            ("Gateway", "gateways"),
            ("StorageBox", "storageboxes"),
            ("Process", "processes"),
            ("Batch", "batches"),
            ("Index", "indexes"),
        ] {
            assert_eq!(guessed(kind, &["*"]), format!("{plural}.acme.io"));
        }
        assert_eq!(guessed("Index", &["indices.acme.io"]), "indices.acme.io");
        assert_eq!(guessed("Matrix", &["matrices.v1.acme.io"]), "matrices.acme.io");
        assert_eq!(guessed("Index", &["index.acme.io", "indices.acme.io"]), "indexes.acme.io", "the kind is named");
        assert_eq!(guessed("Index", &["indices.other.io"]), "indexes.acme.io");
        assert_eq!(guessed("Certificate", &["certificaterequests.acme.io"]), "certificates.acme.io");
        assert_eq!(guessed("NodePool", &["nodeclaims.acme.io"]), "nodepools.acme.io");
    }

    #[test]
    fn built_in_types_are_known_in_object_version() {
        let types = [("autoscaling/v1", "HorizontalPodAutoscaler"), ("serving.knative.dev/v1", "Service")];
        let types = types.map(|(version, kind)| (ObjectType::new(version, kind), true));
        let assumed = Assumed::of(&types.into(), &[]);
        let found =
            |text: &str| assumed.catalog.find_readable(&Pattern::parse(text).unwrap()).map(|it| it.resource.clone());
        assert_eq!(found("hpa").unwrap().version, "v1");
        assert!(found("hpa.v2.autoscaling").is_err());
        assert_eq!(found("services").unwrap().group, "");
        assert_eq!(found("services.serving.knative.dev").unwrap().kind, "Service");
        assert_eq!(assumed.guessed.len(), 1);
    }
}
