use super::*;

fn resource(plural: &str, namespaced: bool) -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: plural.to_uppercase(),
        plural: plural.into(),
        namespaced,
    }
}

fn known(names: &[(&str, &str)]) -> KnownNamespaces {
    let labels = |team: &str| BTreeMap::from([("team".to_owned(), team.to_owned())]);
    KnownNamespaces::Known(names.iter().map(|(name, team)| ((*name).to_owned(), labels(team))).collect())
}

fn allowed(names: &[(&str, bool)]) -> BTreeMap<TypeName, Allowed> {
    let allowed = names.iter().map(|(name, allowed)| ((*name).to_owned(), *allowed)).collect();
    BTreeMap::from([(TypeName::of(&resource("pods", true)), allowed)])
}

/// Plans an entry `a` with these lines and one type.
fn planned(
    options: &str,
    resource: ResourceType,
    namespaces: &KnownNamespaces,
    refused: &BTreeMap<TypeName, Allowed>,
) -> (Planned, bool) {
    let config = Config::from_toml_str(&format!("[resources.a]\nmatch = [\"pods\"]\n{options}")).unwrap();
    let types = [Owned { entry: "a".into(), pattern: 0, resource }];
    let mut plan = plan(&config, &types, namespaces, refused);
    let mut planned = plan.types.pop_first().unwrap().1;
    assert_eq!(planned.len(), 1);
    (planned.pop().unwrap(), plan.needs_namespaces)
}

/// Returns the units in words: namespace, field selector and filter of each.
fn units(planned: &Planned) -> String {
    let said = planned.units.iter().map(|unit| {
        let mut said = unit.namespace.clone().unwrap_or_else(|| "cluster".to_owned());
        if !unit.namespace_fields.is_empty() {
            said.extend([" fields ", &unit.namespace_fields]);
        }
        if let Some(filter) = &unit.filter {
            said.extend([" filter ", &filter.to_string()]);
        }
        said
    });
    said.collect::<Vec<_>>().join("; ")
}

fn check(options: &str, expected: &str) {
    let (planned, needs) = planned(options, resource("pods", true), &KnownNamespaces::Unknown, &BTreeMap::new());
    assert_eq!((units(&planned).as_str(), needs, planned.waiting), (expected, false, None), "{options}");
}

#[test]
fn namespaces_become_as_few_units_as_possible() {
    check("", "cluster");
    check("namespaces = [\"*\"]", "cluster");
    check("namespaces = [\"b\", \"a\", \"b\"]", "a; b");
    check("namespaces = [\"a\", \"b\", \"!b\"]", "a");
    check("namespaces = [\"*\", \"!b\", \"!a\"]", "cluster fields metadata.namespace!=a,metadata.namespace!=b");
    check("namespaces = [\"!b\"]\nfields = \"status.phase!=Failed\"", "cluster fields metadata.namespace!=b");
    check("namespaces = [\"team-*\"]", "cluster filter team-*");
    check("namespaces = [\"a\", \"team-*\", \"!team-x\"]", "cluster filter a, team-*, !team-x");
    check("namespaces = [\"a\"]\nfields = \"spec.nodeName=n\"", "a");
}

#[test]
fn cluster_scoped_type_is_always_one_unit() {
    for options in ["namespaces = [\"a\"]", "namespaces = [\"*\", \"!a\"]", "namespace_selector = \"team=x\""] {
        let nodes = resource("nodes", false);
        let (planned, needs) = planned(options, nodes, &KnownNamespaces::Unknown, &BTreeMap::new());
        assert_eq!((units(&planned).as_str(), needs), ("cluster", false), "{options}");
        assert!(planned.units[0].covers("") && planned.units[0].covers("b"));
    }
}

#[test]
fn namespace_selector_makes_one_unit_per_namespace() {
    let select = |options: &str, namespaces: &KnownNamespaces| {
        let options = format!("namespace_selector = \"team=x\"\n{options}");
        let (planned, needs) = planned(&options, resource("pods", true), namespaces, &BTreeMap::new());
        assert!(needs);
        (units(&planned), planned.waiting)
    };
    let some = known(&[("a", "x"), ("b", "y"), ("c", "x")]);
    assert_eq!(select("", &some), ("a; c".to_owned(), None));
    assert_eq!(select("namespaces = [\"*\", \"!a\"]", &some), ("c".to_owned(), None));
    assert_eq!(select("", &known(&[("b", "y")])), (String::new(), Some(WaitingReason::NoNamespace)));
    assert_eq!(select("", &KnownNamespaces::Unknown), (String::new(), Some(WaitingReason::Namespaces)));
    assert_eq!(select("", &KnownNamespaces::Forbidden), (String::new(), Some(WaitingReason::NamespacesForbidden)));
}

#[test]
fn refused_type_is_watched_where_allowed() {
    let some = known(&[("a", ""), ("b", ""), ("c", "")]);
    let fall_back = |options: &str, namespaces: &KnownNamespaces, answers: &[(&str, bool)]| {
        let (planned, needs) = planned(options, resource("pods", true), namespaces, &allowed(answers));
        assert!(needs);
        (units(&planned), planned.unasked.into_iter().collect::<Vec<_>>().join(" "))
    };
    let said = |units: &str, unasked: &str| (units.to_owned(), unasked.to_owned());
    assert_eq!(fall_back("", &KnownNamespaces::Unknown, &[]), said("cluster", ""));
    assert_eq!(fall_back("", &KnownNamespaces::Forbidden, &[]), said("cluster", ""));
    assert_eq!(fall_back("", &some, &[]), said("cluster", "a b c"));
    assert_eq!(fall_back("", &some, &[("a", true), ("b", false)]), said("a", "c"));
    assert_eq!(fall_back("", &some, &[("a", false), ("b", false), ("c", false)]), said("cluster", ""));
    assert_eq!(fall_back("namespaces = [\"!a\"]", &some, &[("a", true), ("b", true), ("c", false)]), said("b", ""));
}

#[test]
fn unknown_namespaces_make_nothing_desired() {
    let config = Config::from_toml_str("[resources.a]\nmatch = [\"pods\"]\nnamespace_selector = \"a=b\"").unwrap();
    let types = [Owned { entry: "a".into(), pattern: 0, resource: resource("pods", true) }];
    let refused = BTreeMap::new();
    let plan = plan(&config, &types, &KnownNamespaces::Unknown, &refused);
    assert_eq!(plan.desired(&TypeName::of(&resource("pods", true))), None);
    assert_eq!(plan.desired(&TypeName::of(&resource("nodes", false))), Some(Vec::new()));
}

#[test]
fn two_entries_share_type_in_disjoint_namespaces() {
    let config = "[resources.a]\nmatch = [\"pods\"]\nnamespaces = [\"a\"]\n[resources.b]\nmatch = [\"po\"]\nnamespaces = [\"b\"]";
    let config = Config::from_toml_str(config).unwrap();
    let owned = |entry: &str| Owned { entry: entry.into(), pattern: 0, resource: resource("pods", true) };
    let (types, refused) = ([owned("a"), owned("b")], BTreeMap::new());
    let plan = plan(&config, &types, &KnownNamespaces::Unknown, &refused);
    let desired = plan.desired(&TypeName::of(&resource("pods", true))).unwrap();
    let said: Vec<_> = desired.iter().map(|unit| (unit.entry.as_str(), unit.namespace.as_deref().unwrap())).collect();
    assert_eq!(said, [("a", "a"), ("b", "b")]);
    assert!(!desired[0].may_overlap(&desired[1]));
}

#[test]
fn changed_by_is_recorded_only_on_demand() {
    let notes = |handlers: &str| {
        let (planned, _) = planned(handlers, resource("pods", true), &KnownNamespaces::Unknown, &BTreeMap::new());
        planned.units[0].notes_who_changed
    };
    let out = |options: &str| format!("[handlers.out]\ntype = \"stdout\"\n{options}");
    for options in [
        "format = \"diff\"",
        "format = \"template\"\ntemplate = \"{{ changed_by }}\"",
        "when = 'changed_by.manager == \"x\"'",
        "resources = [\"a\"]\nformat = \"diff\"",
        "[handlers.other]\ntype = \"blackhole\"\nwhen = 'changed_by != null'",
        "[handlers.other]\ntype = \"blackhole\"\nformat = \"diff\"",
        "dead_letter = \"dlq\"\n[handlers.dlq]\ntype = \"stdout\"\nresources = []\nformat = \"diff\"",
        "[defaults.handlers]\nformat = \"diff\"",
    ] {
        assert!(notes(&out(options)), "{options}");
    }
    for options in [
        "",
        "format = \"patch\"",
        "format = \"template\"\ntemplate = \"{{ object.kind }}\"",
        "when = 'object.kind == \"Pod\"'",
        "enabled = false\nformat = \"diff\"",
        "resources = [\"b*\"]\nformat = \"diff\"",
        "enabled = false\ndead_letter = \"dlq\"\n[handlers.dlq]\ntype = \"stdout\"\nresources = []\nformat = \"diff\"",
        "[handlers.dlq]\ntype = \"stdout\"\nresources = []\nformat = \"diff\"",
    ] {
        assert!(!notes(&out(options)), "{options}");
    }
    assert!(!notes(""), "nobody is there to ask");
}
