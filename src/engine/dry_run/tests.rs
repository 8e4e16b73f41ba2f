//! Tests of every reason, and of sent events. `tests/cli/test_command.rs` compares dry runs with a running engine.

use serde_json::{Value, json};

use super::*;
use crate::object::Object;

const PODS: &str = "[resources.pods]\nmatch = [\"pods\"]\n";
const OUT: &str = "[handlers.out]\ntype = \"blackhole\"\n";

fn dry_run(config: &str) -> DryRun {
    let config = Config::from_toml_str(config).unwrap_or_else(|error| panic!("{error}\n{config}"));
    DryRun::new(&config, Some("prod")).unwrap()
}

fn pod(phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "shop", "labels": { "app": "web" } },
        "spec": { "nodeName": "n1" }, "status": { "phase": phase },
    })
}

fn states(objects: &[Value]) -> Vec<DryState> {
    objects.iter().map(|object| DryState::new(object.clone()).unwrap()).collect()
}

fn report(config: &str, old: &[Value], new: &[Value]) -> DryReport {
    dry_run(config).run(states(old), states(new), 1_795_243_203_123_456).unwrap()
}

/// Returns what the handler `out` is sent for one object: kinds of events, or the reasons.
fn out(config: &str, old: &[Value], new: &[Value]) -> Vec<String> {
    let report = report(config, old, new);
    assert_eq!(report.objects.len(), 1);
    let DryOutcome { sent, not_sent } = &report.objects[0].handlers["out"];
    let kind = |line: &String| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["type"].as_str().unwrap().rsplit('.').next().unwrap().to_owned()
    };
    sent.iter().map(kind).chain(not_sent.iter().cloned()).collect()
}

#[track_caller]
fn check(config: &str, old: &[Value], new: &[Value], expected: &[&str]) {
    assert_eq!(out(config, old, new), expected, "{config}");
}

#[test]
fn two_states_are_addition_update_or_deletion() {
    let config = format!("{PODS}{OUT}");
    let [pending, running] = ["Pending", "Running"].map(pod);
    check(&config, &[], std::slice::from_ref(&pending), &["added"]);
    check(&config, std::slice::from_ref(&pending), std::slice::from_ref(&running), &["updated"]);
    check(&config, std::slice::from_ref(&running), &[], &["deleted"]);
    check(&config, std::slice::from_ref(&pending), std::slice::from_ref(&pending), &["both states are the same"]);
    let with_uid = |uid: &str| {
        let mut pod = pending.clone();
        pod["metadata"]["uid"] = uid.into();
        pod
    };
    check(&config, &[with_uid("a")], &[with_uid("b")], &["deleted", "added"]);
    let report = report(&config, &[with_uid("a")], &[with_uid("b")]);
    let deleted: Value = serde_json::from_str(&report.objects[0].handlers["out"].sent[0]).unwrap();
    assert_eq!((&deleted["cause"], &deleted["data"]["finalstateunknown"]), (&json!("watch"), &Value::Null));
    assert_eq!(deleted["data"]["object"]["metadata"]["uid"], "a");
}

#[test]
fn missing_namespace_still_pairs_states() {
    let config = format!("{PODS}[resources.nodes]\nmatch = [\"nodes\"]\n{OUT}");
    let placed = |phase: &str, namespace: Value| {
        let mut pod = pod(phase);
        pod["metadata"]["namespace"] = namespace;
        pod
    };
    let (bare, named) = (placed("Pending", Value::Null), placed("Running", json!("default")));
    check(&config, std::slice::from_ref(&bare), std::slice::from_ref(&named), &["updated"]);
    let error = dry_run(&config).run(states(&[bare, named]), Vec::new(), 0).unwrap_err();
    assert_eq!(error, "Pod default/web is listed twice");
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    assert_eq!(report(&config, &[], &[node]).objects[0].object, "Node n1", "it lives in none");
    let custom =
        |version: &str, metadata: Value| json!({ "apiVersion": version, "kind": "Widget", "metadata": metadata });
    let of_one_version = custom("acme.io/v1", json!({ "name": "w" }));
    let of_another = custom("acme.io/v2", json!({ "name": "w", "namespace": "default" }));
    let report = report(&config, &[of_one_version], &[of_another]);
    assert_eq!(report.objects.iter().map(|it| &*it.object).collect::<Vec<_>>(), ["Widget default/w"]);
}

#[test]
fn redact_conditions_know_the_cluster() {
    let with = |cluster: &str| {
        format!("{PODS}{OUT}[redact]\npaths = [{{ path = \"spec.nodeName\", where = \"cluster == '{cluster}'\" }}]\n")
    };
    let node = |cluster: &str| {
        let report = report(&with(cluster), &[], &[pod("Running")]);
        let event: Value = serde_json::from_str(&report.objects[0].handlers["out"].sent[0]).unwrap();
        event["data"]["object"]["spec"]["nodeName"].as_str().unwrap().to_owned()
    };
    assert_eq!(node("test"), "n1");
    assert_ne!(node("prod"), "n1", "a digest stands for it");
}

#[test]
fn hidden_object_names_its_entry_and_reason() {
    let entry = |more: &str| format!("{PODS}{more}\n{OUT}");
    let (old, new) = ([pod("Pending")], [pod("Running")]);
    let not = |config: &str, why: &str| check(config, &old, &new, &[why]);
    not(&format!("[resources.a]\nmatch = [\"nodes\"]\n{OUT}"), "no entry of [resources] selects pods (v1)");
    not(
        &format!("[resources.a]\nmatch = [\"*\"]\nexclude = [\"po\"]\n{OUT}"),
        "`exclude` of [resources.a] matches pods",
    );
    not(&entry("namespaces = [\"prod\"]"), "`namespaces` of [resources.pods] leaves out shop");
    not(&entry("namespaces = [\"*\", \"!sh*\"]"), "`namespaces` of [resources.pods] leaves out shop");
    not(&entry("labels = \"app=db\""), "`labels` of [resources.pods] does not select the object");
    not(&entry("fields = \"spec.nodeName=n2\""), "`fields` of [resources.pods] does not select the object");
    not(&entry("ignore_changes = [\"status\"]"), "`ignore_changes` of [resources.pods] covers every difference");
    not(
        &entry("namespace_selector = \"team=a\""),
        "[resources.pods] has a `namespace_selector`, but the labels of shop are unknown: add the Namespace itself to \
         the file of the object",
    );
    check(&entry("namespaces = [\"shop\", \"prod\"]"), &old, &new, &["updated"]);
    check(&entry("namespaces = [\"sh*\"]\nlabels = \"app\"\nfields = \"spec.nodeName=n1\""), &old, &new, &["updated"]);
    let two = "[resources.b]\nmatch = [\"po\"]\nnamespaces = [\"prod\"]\n";
    not(
        &format!("{two}{PODS}namespaces = [\"dev\"]\n{OUT}"),
        "`namespaces` of [resources.b] and of [resources.pods] leaves out shop",
    );
    check(&format!("{two}{PODS}namespaces = [\"shop\"]\n{OUT}resources = [\"pods\"]"), &old, &new, &["updated"]);
}

#[test]
fn namespaces_in_files_are_matched_by_labels() {
    let namespace = |team: &str| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop", "labels": { "team": team } } });
    let config = format!("{PODS}namespace_selector = \"team=a\"\n{OUT}");
    let of_pod = |team: &str| {
        let report = report(&config, &[], &[namespace(team), pod("Running")]);
        report.objects.iter().find(|object| object.object == "Pod shop/web").unwrap().handlers["out"].clone()
    };
    assert_eq!(of_pod("a").sent.len(), 1);
    assert_eq!(of_pod("b").not_sent, ["`namespace_selector` of [resources.pods] does not match the labels of shop"]);
}

#[test]
fn selection_changes_are_added_and_removed_events() {
    let config = format!("{PODS}fields = \"status.phase=Running\"\n{OUT}");
    let [pending, running] = ["Pending", "Running"].map(pod);
    check(&config, std::slice::from_ref(&pending), std::slice::from_ref(&running), &["added"]);
    check(&config, std::slice::from_ref(&running), std::slice::from_ref(&pending), &["removed"]);
    check(&config, &[running], &[], &["removed"]);
    check(&config, &[pending], &[], &["`fields` of [resources.pods] does not select the object"]);
}

#[test]
fn field_selector_computes_fields_as_api_server() {
    let config = |fields: &str| format!("[resources.nodes]\nmatch = [\"nodes\"]\nfields = \"{fields}\"\n{OUT}");
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n" }, "spec": {} });
    check(&config("spec.unschedulable=false"), &[], std::slice::from_ref(&node), &["added"]);
    let refused = "`fields` of [resources.nodes] does not select the object";
    check(&config("spec.unschedulable=true"), &[], &[node], &[refused]);
}

#[test]
fn annotation_hides_nothing_by_default() {
    let mut hidden = pod("Running");
    hidden["metadata"]["annotations"] = json!({ "deltabus.dev/ignore": "true" });
    check(&format!("{PODS}{OUT}"), &[], &[hidden], &["added"]);
}

#[test]
fn opted_out_object_is_removed_and_comes_back() {
    let config = format!("{PODS}ignore_annotation = true\n{OUT}");
    let mut hidden = pod("Running");
    hidden["metadata"]["annotations"] = json!({ "deltabus.dev/ignore": "true" });
    let (shown, hidden) = ([pod("Running")], [hidden]);
    check(&config, &[], &hidden, &["the annotation deltabus.dev/ignore hides the object"]);
    check(&config, &hidden, &hidden, &["the annotation deltabus.dev/ignore hides the object"]);
    check(&config, &hidden, &[], &["the annotation deltabus.dev/ignore hides the object"]);
    check(&config, &shown, &hidden, &["removed"]);
    check(&config, &hidden, &shown, &["added"]);
}

#[test]
fn each_handler_rule_explains_its_refusal() {
    let with = |more: &str| format!("{PODS}[resources.nodes]\nmatch = [\"no\"]\n{OUT}{more}\n");
    let (old, new) = ([pod("Pending")], [pod("Running")]);
    let not = |more: &str, why: &str| check(&with(more), &old, &new, &[why]);
    not("enabled = false", "it is not enabled");
    not("resources = [\"no*\"]", "`resources` does not include \"pods\"");
    not("resources = [\"!pods\"]", "`resources` does not include \"pods\"");
    not("on = [\"added\", \"deleted\"]", "`on` does not include \"updated\"");
    not("changed = [\"spec\"]", "`changed`: only status.phase differs");
    not("when = 'object.metadata.namespace == \"prod\"'", "`when` is false: object.metadata.namespace == \"prod\"");
    not("when = 'object.spec.replicas > 1'", "`when`: No such key: replicas");
    check(&with("when = 'cluster == \"prod\" && old.status.phase == \"Pending\"'"), &old, &new, &["updated"]);
    check(&with("changed = [\"status.phase\"]"), &old, &new, &["updated"]);
    check(&with("changed = [\"spec\"]"), &[], &new, &["added"]);
    let failing = "format = \"template\"\ntemplate = \"{{ 1 / (object.metadata.name | length - 3) }}\"";
    let said = out(&with(failing), &old, &new);
    assert!(said[0].starts_with("the event is given up: the template failed: line 1"), "{said:?}");
}

#[test]
fn object_is_sent_as_transformed_on_entry() {
    let sent = |config: &str, old: &[Value], new: &[Value]| {
        let report = report(config, old, new);
        serde_json::from_str::<Value>(&report.objects[0].handlers["out"].sent[0]).unwrap()
    };
    let mut managed = pod("Running");
    managed["metadata"]["managedFields"] = json!([{ "manager": "kubelet" }]);
    let event = sent(&format!("{PODS}drop = [\"spec\", \"metadata.managedFields\"]\n{OUT}"), &[], &[managed]);
    let object = &event["data"]["object"];
    assert_eq!((&object["spec"], &object["metadata"]["managedFields"]), (&Value::Null, &Value::Null));
    assert_eq!(event["id"], "00000000-0000-0000-0000-000000000001.1");
    assert_eq!((&event["source"], &event["time"]), (&json!("/clusters/prod"), &json!("2026-11-21T06:40:03.123456Z")));

    let event = sent(&format!("{PODS}mode = \"metadata\"\n{OUT}"), &[pod("Pending")], &[pod("Running")]);
    assert_eq!((&event["data"]["object"]["kind"], &event["data"]["object"]["spec"]), (&json!("Pod"), &Value::Null));
    assert!(event["data"]["old"].is_object());

    let event = sent(&format!("{PODS}cache = \"none\"\n{OUT}"), &[pod("Pending")], &[pod("Running")]);
    assert_eq!((&event["data"]["object"]["status"]["phase"], &event["data"]["old"]), (&json!("Running"), &Value::Null));

    let secret = |value: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "db" }, "data": { "password": value } });
    let config = format!("[resources.secrets]\nmatch = [\"secrets\"]\n{OUT}format = \"diff\"\nchanged = [\"data\"]");
    let event = sent(&config, &[secret("aHVudGVyMg==")], &[secret("aHVudGVyMw==")]);
    assert!(!event.to_string().contains("aHVudGVyM"), "{event}");
    let changes = event["data"]["changes"].as_array().unwrap();
    assert!(changes.iter().any(|change| change["path"] == "data.password"), "{event}");
    assert_eq!(event["namespace"], "default", "a Secret lives in a namespace");
}

#[test]
fn custom_types_take_names_from_configuration() {
    let index = json!({ "apiVersion": "acme.io/v1", "kind": "Index", "metadata": { "name": "i", "namespace": "n" } });
    let config = format!("[resources.a]\nmatch = [\"indices.acme.io\"]\n{OUT}");
    let report = report(&config, &[], &[index]);
    assert_eq!(report.objects[0].handlers["out"].sent.len(), 1);
    assert_eq!(report.guessed[0].qualified_name(), "indices.acme.io");
}

/// Explains a change from an engine's stream with the rules that decide about a handler's events.
#[test]
fn change_reported_by_engine_is_explained() {
    let dry_run = dry_run(&format!(
        "{PODS}namespaces = [\"shop\"]\n[resources.rest]\nmatch = [\"pods\", \"nodes\"]\nnamespaces = [\"!shop\"]\n{OUT}\
         resources = [\"pods\"]\nwhen = 'old == null || old.status.phase == \"Pending\"'\n\
         [handlers.rest]\ntype = \"blackhole\"\nresources = [\"rest\"]\ninitial = \"send\"\n"
    ));
    let resource = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Pod".into(),
        plural: "pods".into(),
        namespaced: true,
    };
    let catalog = Assumed::of(&BTreeMap::new(), &[]).catalog;
    let object = |phase: &str| Object::from_json(pod(phase).to_string().as_bytes()).unwrap();
    let said = |change: Change| {
        let record = Record { sequence: Sequence(1), unit: UnitId(0), time_micros: 0, change, old_lost: false };
        let said = dry_run.explain(&catalog, &resource, &record);
        said.into_values().map(|why| why.unwrap_or("sent".to_owned())).collect::<Vec<_>>()
    };
    let updated = |old: &Object, object: &Object| Change::Updated {
        old: old.clone(),
        object: object.clone(),
        cause: Cause::Watch,
    };
    let [pending, running] = ["Pending", "Running"].map(object);
    let not_rest = "`resources` does not include \"pods\"";
    assert_eq!(said(updated(&pending, &running)), ["sent", not_rest]);
    let why = "`when` is false: old == null || old.status.phase == \"Pending\"";
    assert_eq!(said(updated(&running, &pending)), [why, not_rest]);
    let added = |cause| Change::Added { object: pending.clone(), cause };
    assert_eq!(said(added(Cause::Initial)), ["`initial`: objects that existed before are skipped", not_rest]);
    assert_eq!(said(added(Cause::Replay)), ["existing objects are shown only to this stream", not_rest]);
    assert_eq!(said(Change::Deleted { object: pending, tombstone: false, cause: Cause::Watch }), ["sent", not_rest]);
}
