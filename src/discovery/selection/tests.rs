//! Tests of the selection: each rule of [`select`] by example, and all of them against a model that works type by type.

use proptest::prelude::*;

use super::*;
use crate::discovery::documents::GroupVersion;

/// A served type: group, version, plural and special property.
type Row = (&'static str, &'static str, &'static str, Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Namespaced,
    Cluster,
    /// A type without watch.
    Unwatchable,
}
use Kind::{Cluster, Namespaced, Unwatchable};

const SERVED: [Row; 15] = [
    ("", "v1", "pods", Namespaced),
    ("", "v1", "secrets", Namespaced),
    ("", "v1", "nodes", Cluster),
    ("", "v1", "events", Namespaced),
    ("", "v1", "bindings", Unwatchable),
    ("apps", "v1", "deployments", Namespaced),
    ("apps", "v1", "daemonsets", Namespaced),
    ("autoscaling", "v2", "scalers", Namespaced),
    ("autoscaling", "v1", "scalers", Namespaced),
    ("autoscaling", "v1", "olds", Namespaced),
    ("events.k8s.io", "v1", "events", Namespaced),
    ("cert-manager.io", "v1", "certificates", Namespaced),
    ("cert-manager.io", "v1", "issuers", Cluster),
    ("cert-manager.io", "v1", "pods", Namespaced),
    ("metrics.k8s.io", "v1", "pods", Unwatchable),
];

fn catalog(rows: &[Row]) -> Catalog {
    let served = |(group, version, plural, kind): &Row| {
        let verbs = if *kind == Unwatchable { &["list"][..] } else { &["list", "watch"] };
        let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        let namespaced = *kind != Cluster;
        let [group, version, plural] = [group, version, plural].map(|text| (*text).to_owned());
        let resource = ResourceType { group, version, kind: format!("Kind{plural}"), plural, namespaced };
        of_version(ServedType { verbs, ..ServedType::unnamed(resource) })
    };
    Catalog::new(rows.iter().map(served).collect())
}

fn of_version(served: ServedType) -> GroupVersion {
    let ResourceType { group, version, .. } = served.resource.clone();
    GroupVersion { group, version, types: vec![served], error: None }
}

fn wanted(entry: &str, patterns: &[&str], exclude: &[&str], namespaces: &[&str]) -> WantedEntry {
    let parse = |texts: &[&str]| texts.iter().map(|text| Pattern::parse(text).unwrap()).collect();
    WantedEntry {
        entry: entry.to_owned(),
        patterns: parse(patterns),
        exclude: parse(exclude),
        namespaces: Namespaces::parse(namespaces).unwrap(),
    }
}

/// Formats the owned types of a selection as `entry[pattern] plural.version.group`.
fn owned(selection: &Selection) -> Vec<String> {
    let tell = |Owned { entry, pattern, resource }: &Owned| {
        format!("{entry}[{pattern}] {}.{}.{}", resource.plural, resource.version, resource.group)
    };
    selection.owned.iter().map(tell).collect()
}

fn overlaps(conflicts: &[Conflict]) -> Vec<String> {
    let place = |PatternPlace { entry, pattern }: &PatternPlace| format!("{entry}[{pattern}]");
    let tell = |conflict: &Conflict| {
        format!("{} {} {}", conflict.resource.plural, place(&conflict.first), place(&conflict.second))
    };
    conflicts.iter().map(tell).collect()
}

fn of(wanted: &[WantedEntry]) -> Selection {
    select(&catalog(&SERVED), wanted)
}

#[test]
fn most_specific_pattern_owns_type() {
    let selection = of(&[
        wanted("all", &["*"], &[], &[]),
        wanted("apps", &["*.apps"], &[], &[]),
        wanted("mine", &["deployments.apps", "pods"], &[], &[]),
    ]);
    assert_eq!(
        owned(&selection),
        [
            "all[0] secrets.v1.",
            "all[0] nodes.v1.",
            "all[0] events.v1.",
            "all[0] scalers.v2.autoscaling",
            "all[0] olds.v1.autoscaling",
            "all[0] certificates.v1.cert-manager.io",
            "all[0] issuers.v1.cert-manager.io",
            "all[0] pods.v1.cert-manager.io",
            "apps[0] daemonsets.v1.apps",
            "mine[0] deployments.v1.apps",
            "mine[1] pods.v1.",
        ]
    );
    assert_eq!((selection.conflicts, selection.unmatched, selection.repeated), (vec![], vec![], vec![]));
    // also within one entry: the most specific pattern is shown
    assert_eq!(
        owned(&of(&[wanted("a", &["*.apps", "deployments"], &["daemonsets"], &[])])),
        ["a[1] deployments.v1.apps"]
    );
}

#[test]
fn equally_specific_patterns_need_disjoint_namespaces() {
    let both = |left: &[&str], right: &[&str], pattern: &str| {
        let selection = of(&[wanted("a", &[pattern], &[], left), wanted("b", &[pattern], &[], right)]);
        (owned(&selection).len(), selection.conflicts.len())
    };
    assert_eq!(both(&[], &[], "pods"), (1, 1));
    assert_eq!(both(&["x"], &["y"], "pods"), (2, 0));
    assert_eq!(both(&["x", "y"], &["y"], "pods"), (1, 1));
    assert_eq!(both(&["*", "!x"], &["x"], "pods"), (2, 0));
    assert_eq!(both(&["x"], &["y"], "*.apps"), (4, 0));
    // namespaces do not matter for a cluster-scoped type
    assert_eq!(both(&["x"], &["y"], "nodes"), (1, 1));
    assert_eq!(both(&["x"], &["y"], "*.cert-manager.io"), (5, 1));
    // the first wins, also with other patterns in between
    let selection = of(&[
        wanted("a", &["pods"], &[], &["x"]),
        wanted("b", &["*.apps", "pods"], &[], &["x", "y"]),
        wanted("c", &["pods"], &[], &["y"]),
    ]);
    assert_eq!(overlaps(&selection.conflicts), ["pods a[0] b[1]"]);
    assert_eq!(owned(&selection).iter().filter(|row| row.contains("pods")).count(), 2);
}

#[test]
fn versions_and_both_event_groups_are_one_type() {
    let selection = of(&[wanted("a", &["scalers.v1.autoscaling"], &[], &[]), wanted("b", &["scalers"], &[], &[])]);
    assert_eq!(owned(&selection), ["a[0] scalers.v1.autoscaling"]);
    assert_eq!(overlaps(&selection.conflicts), ["scalers a[0] b[0]"]);
    // a named type is not taken by a wildcard, in either group
    let selection = of(&[wanted("all", &["*"], &[], &[]), wanted("warnings", &["events.events.k8s.io"], &[], &[])]);
    let events: Vec<_> = owned(&selection).into_iter().filter(|row| row.contains(" events.")).collect();
    assert_eq!(events, ["warnings[0] events.v1.events.k8s.io"]);
    let selection = of(&[wanted("a", &["events"], &[], &[]), wanted("b", &["events.events.k8s.io"], &[], &[])]);
    assert_eq!(overlaps(&selection.conflicts), ["events a[0] b[0]"]);
    // two names for a type within one entry are unusual but valid
    let selection = of(&[wanted("a", &["pods", "Kindpods", "*"], &[], &[])]);
    assert_eq!((overlaps(&selection.repeated), selection.conflicts), (vec!["pods a[0] a[1]".to_owned()], vec![]));
}

#[test]
fn exclude_works_in_every_spelling() {
    #[track_caller]
    fn check(patterns: &[&str], exclude: &[&str], left: &[&str], unused: &[usize]) {
        let selection = of(&[wanted("a", patterns, exclude, &[])]);
        let names: Vec<_> = selection.owned.iter().map(|owned| owned.resource.qualified_name()).collect();
        assert_eq!(names, left, "{patterns:?} {exclude:?}");
        let found: Vec<_> = selection.unused_excludes.iter().map(|place| place.pattern).collect();
        assert_eq!(found, unused, "{patterns:?} {exclude:?}");
    }
    check(&["*.apps"], &["daemonsets.apps"], &["deployments.apps"], &[]);
    check(&["*.apps"], &["KindDaemonsets.v1.apps"], &["deployments.apps"], &[]);
    check(&["*.apps"], &["pods", "daemonsets"], &["deployments.apps"], &[0]);
    check(&["*.autoscaling"], &["scalers.v1.autoscaling"], &["olds.autoscaling"], &[]);
    // among types with the same name, the one selected by this entry is meant
    check(&["*.cert-manager.io"], &["pods"], &["certificates.cert-manager.io", "issuers.cert-manager.io"], &[]);
    check(
        &["pods", "*.cert-manager.io"],
        &["pods", "issuers"],
        &["certificates.cert-manager.io", "pods.cert-manager.io"],
        &[],
    );
    check(&["*.apps", "nodes"], &["*.apps"], &["nodes"], &[]);
    check(&["nodes", "events"], &["*.events.k8s.io", "*.gone.io"], &["nodes"], &[1]);
    check(&["nodes"], &["*"], &[], &[]);
}

#[test]
fn unmatched_pattern_has_a_reason() {
    let selection = of(&[wanted("a", &["podz", "*.gone.io", "bindings", "pods", "*.apps"], &["pods", "*.apps"], &[])]);
    let said: Vec<_> =
        selection.unmatched.iter().map(|unmatched| (unmatched.pattern, unmatched.resolution.why_not())).collect();
    assert_eq!(
        said,
        [
            (0, "the server serves no such type; did you mean pods or pods.cert-manager.io?".to_owned()),
            (1, "the server serves no type in the group gone.io that can be listed and watched".to_owned()),
            (2, "bindings cannot be listed and watched, it only offers list".to_owned()),
            (3, "pods is excluded by the same entry".to_owned()),
            (4, "all of its 2 types are excluded by the same entry".to_owned()),
        ]
    );
}

#[test]
fn unavailable_group_hides_no_selected_type() {
    let [group, version, error] = ["down.io", "v1", "503"].map(str::to_owned);
    let down = GroupVersion { group, version, types: Vec::new(), error: Some(error) };
    let [group, version, kind, plural] = ["", "v1", "Pod", "pods"].map(str::to_owned);
    let core = of_version(ServedType::watchable(ResourceType { group, version, kind, plural, namespaced: true }));
    let selection = select(&Catalog::new(vec![down, core]), &[wanted("a", &["*", "*.down.io", "x.down.io"], &[], &[])]);
    assert_eq!(owned(&selection), ["a[0] pods.v1."]);
    for unmatched in &selection.unmatched {
        assert!(unmatched.resolution.why_not().ends_with("; discovery of down.io/v1 failed: 503"), "{unmatched:?}");
    }
    assert_eq!(selection.unmatched.len(), 2);
}

#[test]
fn types_of_crds_are_selected_as_a_whole() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let check = |catalog: &Catalog, patterns: &[&str], exclude: &[&str], expected: &[&str]| {
        assert_eq!(
            owned(&select(catalog, &[wanted("a", patterns, exclude, &[])])),
            expected,
            "{patterns:?} {exclude:?}"
        );
    };
    let all =
        ["a[0] certificates.v1.cert-manager.io", "a[0] issuers.v1.cert-manager.io", "a[0] pods.v1.cert-manager.io"];
    let guessed = catalog(&SERVED);
    check(&guessed, &["crd:*"], &[], &all);
    check(&guessed, &["crd:*"], &["issuers"], &[all[0], all[2]]);
    check(&guessed, &["*.cert-manager.io"], &["crd:*"], &[]);
    // The other types belong to an aggregated API server.
    let known = catalog(&SERVED).with_definitions(names(&["issuers.cert-manager.io", "gone.acme.io"]));
    check(&known, &["crd:*"], &[], &[all[1]]);
    check(&known, &["*.cert-manager.io"], &["crd:*"], &[all[0], all[2]]);
    check(
        &known,
        &["crd:*", "*.cert-manager.io"],
        &["pods"],
        &[&*all[0].replace('0', "1"), &*all[1].replace('0', "1")],
    );
    let unmatched =
        select(&catalog(&SERVED).with_definitions(Vec::new()), &[wanted("a", &["crd:*"], &[], &[])]).unmatched;
    assert_eq!(unmatched[0].resolution.why_not(), "the server serves no type of a CRD that can be listed and watched");
}

#[test]
fn crds_matter_only_for_patterns_they_can_affect() {
    for (pattern, expected) in [
        ("pods", false),
        ("deployments.apps", false),
        ("*.apps", false),
        ("*.events.k8s.io", false),
        ("events.events.k8s.io", false),
        ("*", true),
        ("crd:*", true),
        ("*.cert-manager.io", true),
        ("*.gone.io", true),
        ("certificates", true),
        ("certificates.v1.cert-manager.io", true),
        ("gone", true),
        ("gone.acme.io", true),
        ("gone.v1.acme.io", true),
        ("gone.apps", false),
        ("gone.v1.apps", false),
        // the type exists and will not change
        ("bindings", false),
    ] {
        let wanted = [wanted("a", &[pattern], &[], &[])];
        assert_eq!(depends_on_crds(&wanted, &of(&wanted)), expected, "{pattern}");
    }
}

// ── against a model ──

const PATTERNS: [&str; 15] = [
    "*",
    "crd:*",
    "*.apps",
    "*.autoscaling",
    "*.events.k8s.io",
    "*.gone.io",
    "pods",
    "pods.cert-manager.io",
    "deployments",
    "scalers",
    "scalers.v1.autoscaling",
    "nodes",
    "events",
    "events.events.k8s.io",
    "bindings",
];
const NAMESPACES: [&[&str]; 5] = [&[], &["x"], &["y"], &["x", "y"], &["*", "!x"]];

/// Returns the types of one pattern, by checking every row.
fn meant(rows: &[ServedType], pattern: &Pattern) -> Vec<ResourceType> {
    let fits = |row: &ServedType| match pattern {
        Pattern::All => true,
        Pattern::Custom => row.resource.group == "cert-manager.io",
        Pattern::Group(group) => row.resource.group == *group,
        Pattern::Type { name, rest } => {
            let resource = &row.resource;
            let group_fits = rest.as_ref().is_none_or(|rest| {
                *rest == resource.group || *rest == format!("{}.{}", resource.version, resource.group)
            });
            *name == resource.plural && group_fits
        }
    };
    let mut found: Vec<ResourceType> = Vec::new();
    for row in rows.iter().filter(|row| fits(row) && row.is_watchable()) {
        if !found.iter().any(|known| identity(known) == identity(&row.resource)) {
            found.push(row.resource.clone());
        }
    }
    found.truncate(if pattern.is_wildcard() { usize::MAX } else { 1 });
    found
}

/// Computes the owners, type by type.
fn model(rows: &[ServedType], wanted: &[WantedEntry]) -> Vec<(String, usize, ResourceType)> {
    let mut expected = Vec::new();
    let mut identities: Vec<TypeIdentity<'_>> = rows.iter().map(|row| identity(&row.resource)).collect();
    identities.sort_unstable();
    identities.dedup();
    for asked in identities {
        let mut claims = Vec::new();
        for entry in wanted {
            let all: Vec<ResourceType> = entry.patterns.iter().flat_map(|pattern| meant(rows, pattern)).collect();
            let own: Vec<ServedType> = rows
                .iter()
                .filter(|row| all.iter().any(|known| identity(known) == identity(&row.resource)))
                .cloned()
                .collect();
            if entry.exclude.iter().any(|out| meant(&own, out).iter().any(|out| identity(out) == asked)) {
                continue;
            }
            for (position, pattern) in entry.patterns.iter().enumerate() {
                let found = meant(rows, pattern).into_iter().find(|found| identity(found) == asked);
                claims.extend(found.map(|found| (specificity(pattern), entry, position, found)));
            }
        }
        let closest = claims.iter().map(|(specificity, ..)| *specificity).max();
        let mut owners: Vec<(&WantedEntry, ResourceType)> = Vec::new();
        for (specificity, entry, position, resource) in claims {
            let shares = |(owner, _): &(&WantedEntry, ResourceType)| {
                owner.entry != entry.entry
                    && resource.namespaced
                    && owner.namespaces.is_disjoint_from(&entry.namespaces)
            };
            if Some(specificity) == closest && owners.iter().all(shares) {
                owners.push((entry, resource.clone()));
                expected.push((entry.entry.clone(), position, resource));
            }
        }
    }
    expected
}

fn entries() -> impl Strategy<Value = Vec<WantedEntry>> {
    let some = |most: usize| prop::collection::vec(0..PATTERNS.len(), 0..=most);
    let entry = (some(3), some(2), 0..NAMESPACES.len());
    prop::collection::vec(entry, 1..5).prop_map(|entries| {
        let make = |(index, (patterns, exclude, namespaces)): (usize, (Vec<usize>, Vec<usize>, usize))| {
            let [patterns, exclude] =
                [patterns, exclude].map(|list| list.iter().map(|i| PATTERNS[*i]).collect::<Vec<_>>());
            wanted(&format!("e{index}"), &patterns, &exclude, NAMESPACES[namespaces])
        };
        entries.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    #[test]
    fn model_every_type_has_its_expected_owners(
        present in prop::collection::vec(any::<bool>(), SERVED.len()),
        wanted in entries(),
    ) {
        let rows: Vec<Row> = SERVED.iter().zip(&present).filter(|(_, there)| **there).map(|(row, _)| *row).collect();
        let catalog = catalog(&rows);
        let selection = select(&catalog, &wanted);
        let key = |owned: &(String, usize, ResourceType)| (owned.0.clone(), owned.1, owned.2.qualified_name(), owned.2.version.clone());
        let mut found: Vec<_> = selection.owned.iter()
            .map(|owned| key(&(owned.entry.clone(), owned.pattern, owned.resource.clone()))).collect();
        let mut expected: Vec<_> = model(catalog.types(), &wanted).iter().map(key).collect();
        found.sort();
        expected.sort();
        prop_assert_eq!(found, expected);
        // the loser of a conflict does not own the type, and the winner does
        for conflict in &selection.conflicts {
            let owns = |place: &PatternPlace| selection.owned.iter().any(|owned| {
                owned.entry == place.entry && owned.pattern == place.pattern
                    && identity(&owned.resource) == identity(&conflict.resource)
            });
            prop_assert!(owns(&conflict.first) && !owns(&conflict.second), "{:?}", conflict);
        }
    }
}
