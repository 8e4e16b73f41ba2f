use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{config::Config, object::ResourceType, redact::Redaction, reflector::ReflectorConfig, scope::Namespaces};

fn pods() -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Pod".into(),
        plural: "pods".into(),
        namespaced: true,
    }
}

/// Returns a spec of pods; `options` are lines of its entry, and the namespace `*` is the whole cluster.
fn spec(entry: &str, namespace: &str, options: &str) -> UnitSpec {
    let config = Config::from_toml_str(&format!("[resources.{entry}]\nmatch = [\"pods\"]\n{options}")).unwrap();
    let options = config.resources[entry].clone();
    UnitSpec {
        entry: entry.into(),
        resource: pods(),
        namespace: Some(namespace.to_owned()).filter(|name| name != "*"),
        namespace_fields: String::new(),
        filter: Some(options.namespaces.clone()).filter(Namespaces::needs_filter),
        options: Arc::new(options),
        reflector: ReflectorConfig::default(),
        redaction: Arc::default(),
        notes_who_changed: false,
        heeds_opt_out: false,
    }
}

fn running(id: u32, spec: UnitSpec) -> RunningSpec {
    RunningSpec { id: UnitId(id), spec, first: First::Done, sound: true, gone: false }
}

const RELOAD: History = History { occasion: Occasion::Reload, late: false, settled: true };

/// Returns the steps in words: `keep 1, stop 2 removed Reload, start a from …`.
fn told(running: &[RunningSpec], desired: &[UnitSpec], history: History) -> String {
    let steps = reconcile(running, desired, history);
    let mut said: Vec<String> = steps.keep.iter().map(|unit| format!("keep {}", unit.0)).collect();
    said.extend(steps.stop.iter().map(|(unit, fate)| format!("stop {} {fate:?}", unit.0)));
    for start in &steps.start {
        let from: Vec<u32> = start.from.iter().map(|unit| unit.0).collect();
        let from = match (start.first, &from[..]) {
            (First::Initial { late }, []) => format!("nothing{}", if late { ", late" } else { "" }),
            (First::Done, [unit]) => format!("all of {unit}"),
            (First::Compared(cause), _) => format!("{from:?} {cause:?}"),
            (first, _) => panic!("{first:?} with {from:?}"),
        };
        let namespace = start.spec.namespace.as_deref().unwrap_or("*");
        said.push(format!("start {}/{namespace} with {from}", start.spec.entry));
    }
    said.join(", ")
}

#[test]
fn unchanged_unit_continues_on_every_occasion() {
    let unit = running(1, spec("a", "*", ""));
    for occasion in [Occasion::Start, Occasion::Repair, Occasion::Discovery, Occasion::Scope, Occasion::Reload] {
        let history = History { occasion, ..RELOAD };
        assert_eq!(told(std::slice::from_ref(&unit), &[spec("a", "*", "on_missing = \"warn\"")], history), "keep 1");
    }
    let broken = RunningSpec { sound: false, ..unit.clone() };
    let again = "stop 1 Removed(Watch), start a/* with all of 1";
    assert_eq!(told(&[broken], &[spec("a", "*", "")], History { occasion: Occasion::Repair, ..RELOAD }), again);
}

#[test]
fn cache_options_resume_and_fetch_options_relist() {
    let keeping = [
        "index = [\"spec.nodeName\"]",
        "order = \"per-key\"",
        "fifo_max_bytes = \"1MiB\"",
        "recreated = \"update\"",
        "compression = \"none\"",
        "ignore_changes = [\"status\"]",
    ];
    for options in keeping {
        let said = told(&[running(1, spec("a", "*", ""))], &[spec("a", "*", options)], RELOAD);
        assert_eq!(said, "stop 1 Removed(Reload), start a/* with all of 1", "{options}");
    }
    let resync = UnitSpec {
        reflector: ReflectorConfig { resync_period: std::time::Duration::from_secs(9), ..ReflectorConfig::default() },
        ..spec("a", "*", "")
    };
    assert!(told(&[running(1, spec("a", "*", ""))], &[resync], RELOAD).ends_with("all of 1"));
    let fetching =
        ["labels = \"a=b\"", "fields = \"spec.nodeName=n\"", "drop = []", "mode = \"metadata\"", "cache = \"none\""];
    for options in fetching {
        let said = told(&[running(1, spec("a", "*", ""))], &[spec("a", "*", options)], RELOAD);
        assert_eq!(said, "stop 1 Removed(Reload), start a/* with [1] Reload", "{options}");
    }
    let noting = UnitSpec { notes_who_changed: true, ..spec("a", "*", "") };
    let said = told(&[running(1, spec("a", "*", ""))], std::slice::from_ref(&noting), RELOAD);
    assert_eq!(said, "stop 1 Removed(Reload), start a/* with [1] Reload", "somebody asks now who changed the objects");
    assert_eq!(told(&[running(1, noting)], &[spec("a", "*", "")], RELOAD), said);
    let hiding = UnitSpec { heeds_opt_out: true, ..spec("a", "*", "") };
    assert_eq!(told(&[running(1, hiding)], &[spec("a", "*", "")], RELOAD), said, "hidden objects are unknown");
    let redaction = Arc::new(Redaction { metadata_only: true, ..Redaction::default() });
    let redacted = UnitSpec { redaction, ..spec("a", "*", "") };
    let said = told(&[running(1, spec("a", "*", ""))], &[redacted], RELOAD);
    assert_eq!(said, "stop 1 Removed(Reload), start a/* with [1] Reload", "values may be cached that must not be");
}

#[test]
fn namespace_changes_touch_no_other_namespace() {
    let of = |namespace| spec("a", namespace, "");
    let (one, two) = (running(1, of("one")), running(2, of("two")));
    let scope = History { occasion: Occasion::Scope, ..RELOAD };
    let said = told(&[one.clone(), two.clone()], &[of("two"), of("three")], scope);
    assert_eq!(said, "keep 2, stop 1 Removed(Watch), start a/three with [] Relist");
    let deleted = RunningSpec { gone: true, ..one.clone() };
    assert_eq!(told(&[deleted, two.clone()], &[of("two")], scope), "keep 2, stop 1 Deleted(Relist)");
    let whole = running(3, spec("a", "*", ""));
    assert_eq!(
        told(&[whole], &[of("one"), of("two")], scope),
        "stop 3 Removed(Watch), start a/one with [3] Relist, start a/two with [3] Relist"
    );
    assert_eq!(
        told(&[one, two], &[spec("a", "*", "")], RELOAD),
        "stop 1 Removed(Reload), stop 2 Removed(Reload), start a/* with [1, 2] Reload"
    );
}

#[test]
fn discovery_marks_types_late_and_reload_does_not() {
    let found = |occasion, late, settled| told(&[], &[spec("a", "*", "")], History { occasion, late, settled });
    assert_eq!(found(Occasion::Start, false, false), "start a/* with nothing");
    assert_eq!(found(Occasion::Discovery, true, false), "start a/* with nothing, late");
    assert_eq!(found(Occasion::Scope, false, false), "start a/* with nothing", "the namespaces are known at last");
    assert_eq!(found(Occasion::Scope, false, true), "start a/* with [] Relist", "a first namespace matches");
    assert_eq!(found(Occasion::Reload, false, false), "start a/* with [] Reload");
    assert_eq!(found(Occasion::Start, false, true), "start a/* with [] Reload", "an entry is new since the last run");
}

#[test]
fn unlisted_unit_stays_initial_or_compared() {
    let with = |first| RunningSpec { first, ..running(1, spec("a", "*", "")) };
    let other = [spec("a", "*", "labels = \"a=b\"")];
    let same = [spec("a", "*", "order = \"per-key\"")];
    let initial = [with(First::Initial { late: false })];
    assert!(told(&initial, &other, RELOAD).ends_with("with nothing"));
    assert!(told(&initial, &same, RELOAD).ends_with("with nothing"));
    let compared = [with(First::Compared(Cause::Relist))];
    assert!(told(&compared, &other, RELOAD).ends_with("with [1] Reload"));
    assert!(told(&compared, &same, RELOAD).ends_with("with [1] Relist"));
}

#[test]
fn unit_that_listed_before_it_stopped_hands_on_its_objects() {
    let initial = RunningSpec { first: First::Initial { late: false }, ..running(1, spec("a", "*", "")) };
    for (options, first) in [("order = \"per-key\"", First::Done), ("labels = \"a=b\"", First::Compared(Cause::Reload))]
    {
        let mut steps = reconcile(std::slice::from_ref(&initial), &[spec("a", "*", options)], RELOAD);
        assert!(steps.start[0].from.is_empty());
        steps.revise(&[RunningSpec { first: First::Done, sound: false, ..initial.clone() }], RELOAD);
        assert_eq!((steps.start[0].first, &steps.start[0].from[..]), (first, &[UnitId(1)][..]));
    }
}

#[test]
fn moved_type_is_compared_with_previous_entry() {
    let one = running(1, spec("a", "*", ""));
    let told_of =
        |desired: &UnitSpec, history| told(std::slice::from_ref(&one), std::slice::from_ref(desired), history);
    for options in ["", "labels = \"a=b\"", "mode = \"metadata\"", "namespaces = [\"n*\"]"] {
        let said = told_of(&spec("b", "*", options), RELOAD);
        assert_eq!(said, "stop 1 Removed(Reload), start b/* with [1] Reload", "{options}");
    }
    let start = History { occasion: Occasion::Start, ..RELOAD };
    let said = told_of(&spec("b", "*", ""), start);
    assert_eq!(said, "stop 1 Removed(Reload), start b/* with [1] Downtime", "the entry was renamed between two runs");
    let leaves = "stop 1 Removed(Reload), start b/* with [] Reload";
    assert_eq!(told_of(&spec("b", "*", "cache = \"none\""), RELOAD), leaves, "it has nothing to show to who comes");
    let discovery = History { occasion: Occasion::Discovery, ..RELOAD };
    assert_eq!(told_of(&spec("b", "*", ""), discovery), "stop 1 Removed(Watch), start b/* with [] Relist");
    let unlisted = RunningSpec { first: First::Initial { late: false }, ..one.clone() };
    assert_eq!(told(&[unlisted], &[spec("b", "*", "")], RELOAD), leaves, "there is nothing to compare with");
}

#[test]
fn unit_inherits_objects_of_its_own_entry_first() {
    let (one, two) = (running(1, spec("a", "one", "")), running(2, spec("b", "two", "")));
    let stops = "stop 1 Removed(Reload), stop 2 Removed(Reload)";
    let both = [one, two];
    assert_eq!(told(&both, &[spec("b", "*", "")], RELOAD), format!("{stops}, start b/* with [2] Reload"));
    assert_eq!(told(&both, &[spec("c", "*", "")], RELOAD), format!("{stops}, start c/* with [] Reload"));
    assert_eq!(
        told(&both, &[spec("c", "one", ""), spec("c", "two", "")], RELOAD),
        format!("{stops}, start c/one with [1] Reload, start c/two with [2] Reload")
    );
    let (whole, split) = (running(1, spec("a", "*", "")), [spec("a", "one", ""), spec("b", "two", "")]);
    assert_eq!(
        told(&[whole], &split, RELOAD),
        "stop 1 Removed(Reload), start a/one with [1] Reload, start b/two with [1] Reload"
    );
}

#[test]
fn gone_type_is_drained_and_starts_over() {
    let gone = RunningSpec { gone: true, ..running(1, spec("a", "*", "")) };
    let history = History { occasion: Occasion::Discovery, late: true, settled: true };
    assert_eq!(told(std::slice::from_ref(&gone), &[], history), "stop 1 Deleted(Relist)");
    assert_eq!(
        told(&[gone], &[spec("a", "*", "")], history),
        "stop 1 Deleted(Relist), start a/* with [] Relist",
        "deleted and made again between two looks"
    );
}

/// Returns disjoint scopes of one entry: the whole cluster, or some namespaces.
fn scopes() -> impl Strategy<Value = Vec<UnitSpec>> {
    let options =
        prop::sample::select(vec!["", "labels = \"a=b\"", "order = \"per-key\"", "namespaces = [\"n*\", \"!n3\"]"]);
    let entry = prop::sample::select(vec!["a", "b"]);
    let whole = (entry.clone(), options.clone()).prop_map(|(entry, options)| vec![spec(entry, "*", options)]);
    let some = prop::collection::btree_set(0..5_u32, 0..5);
    let named = (entry, some, options).prop_map(|(entry, names, options)| {
        names.into_iter().map(|n| spec(entry, &format!("n{n}"), options)).collect()
    });
    prop_oneof![whole, named]
}

fn firsts() -> impl Strategy<Value = First> {
    prop::sample::select(vec![First::Done, First::Done, First::Initial { late: false }, First::Compared(Cause::Reload)])
}

proptest! {
    #[test]
    fn reconcile_steps_reach_desired_state_without_loss(
        old in scopes(), new in scopes(), firsts in prop::collection::vec((firsts(), any::<bool>(), any::<bool>()), 5),
        occasion in prop::sample::select(vec![Occasion::Start, Occasion::Scope, Occasion::Reload]), settled: bool,
    ) {
        let running: Vec<RunningSpec> = old.into_iter().zip(firsts).enumerate().map(|(id, (spec, (first, sound, gone)))| {
            RunningSpec { id: UnitId(u32::try_from(id).unwrap()), spec, first, sound, gone: gone && !sound }
        }).collect();
        let steps = reconcile(&running, &new, History { occasion, late: false, settled });

        // The units that run afterwards are the desired ones.
        let specs: BTreeMap<UnitId, &UnitSpec> = running.iter().map(|unit| (unit.id, &unit.spec)).collect();
        let kept = steps.keep.iter().map(|unit| specs[unit]);
        let after: Vec<&UnitSpec> = kept.chain(steps.start.iter().map(|start| &start.spec)).collect();
        prop_assert_eq!(after.len(), new.len());
        for spec in &new {
            prop_assert!(after.iter().any(|other| other.difference(spec) == SpecDifference::Nothing));
        }
        // Every unit is kept or stopped; only stopped units pass objects on.
        let stopped: BTreeSet<UnitId> = steps.stop.iter().map(|(unit, _)| *unit).collect();
        prop_assert_eq!(stopped.len() + steps.keep.len(), running.len());

        // Every cached object is seeded or retired, once. Only a changed configuration seeds into another entry. A seed is in its unit's scope.
        let cached: Vec<_> = stopped.iter().map(|unit| {
            let objects = (0..5).map(|n| format!("n{n}")).filter(|name| specs[unit].covers(name));
            (*unit, objects.map(|name| (*unit, name)).collect::<Vec<_>>())
        }).collect();
        let count: usize = cached.iter().map(|(_, objects)| objects.len()).sum();
        let (seeds, left) = distribute(cached, &steps.start, |(_, namespace)| namespace.as_str());
        let dealt: Vec<_> = seeds.iter().chain(&left).flatten().collect();
        prop_assert_eq!(dealt.len(), count);
        prop_assert_eq!(dealt.iter().collect::<BTreeSet<_>>().len(), count);
        for (start, objects) in steps.start.iter().zip(&seeds) {
            for (unit, namespace) in objects {
                let stays = specs[unit].entry == start.spec.entry;
                prop_assert!(start.spec.covers(namespace) && (stays || occasion != Occasion::Scope));
            }
        }
        // Applying the steps again leaves nothing to do.
        let settled_units: Vec<RunningSpec> = after.into_iter().enumerate().map(|(id, spec)| {
            RunningSpec { id: UnitId(u32::try_from(id).unwrap()), spec: spec.clone(), first: First::Done, sound: true, gone: false }
        }).collect();
        prop_assert!(reconcile(&settled_units, &new, RELOAD).is_empty());
    }
}
