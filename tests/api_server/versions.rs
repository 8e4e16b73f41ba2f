//! Versions of a custom type that appear and disappear while `deltabus run` watches the type.

use std::{fs, path::Path, time::Duration};

use crate::support::{
    cluster::Cluster,
    engine::{Engine, text},
};
use serde_json::{Value, json};

/// Time within which the engine has to follow a change of versions. Without a reason, it requests the types every two minutes.
const SOON: Duration = Duration::from_secs(30);

/// Returns a CRD of `PLURAL.acme.example`. Each version has a name, and is set if served; the first one is stored.
fn definition(plural: &str, kind: &str, versions: &[(&str, bool)]) -> Value {
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let version = |(at, (name, served)): (usize, &(&str, bool))| json!({ "name": name, "served": served, "storage": at == 0, "schema": schema });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.acme.example") },
        "spec": {
            "group": "acme.example", "scope": "Namespaced",
            "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
            "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
    })
}

fn object(kind: &str, version: &str, name: &str) -> Value {
    let metadata = json!({ "name": name, "namespace": "default" });
    json!({ "apiVersion": format!("acme.example/{version}"), "kind": kind, "metadata": metadata })
}

fn config(cluster: &Cluster, dir: &Path, rest: &str) -> String {
    format!(
        "[kube]\nkubeconfig = \"{}\"\n[handlers.out]\ntype = \"file\"\npath = \"{}\"\ninitial = \"send\"\n{rest}",
        cluster.kubeconfig().display(),
        text(dir, "out.jsonl"),
    )
}

/// Returns the row of a type, or of a waiting pattern, in `/v1/resources`.
fn row(engine: &Engine, plural: &str) -> Value {
    let rows = engine.json("/v1/resources");
    let rows = rows["resources"].as_array().expect("rows").iter();
    rows.clone().find(|row| row["plural"] == plural).cloned().unwrap_or_default()
}

fn watches(engine: &Engine, plural: &str, version: &str) -> bool {
    let row = row(engine, plural);
    (&row["state"], &row["apiVersion"]) == (&json!("watching"), &json!(format!("acme.example/{version}")))
}

/// Rule: X-5.
#[test]
fn removed_version_is_replaced_by_served_one() {
    let Some(cluster) = Cluster::start_or_skip("removed_version_is_replaced_by_served_one", &[]) else { return };
    cluster.apply(&definition("movers", "Mover", &[("v1alpha1", true)]));
    cluster.apply(&object("Mover", "v1alpha1", "one"));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let rest = "[resources.movers]\nmatch = [\"movers.acme.example\"]\n\
                [resources.later]\nmatch = [\"waiters.v2.acme.example\"]\n";
    cluster.apply(&definition("waiters", "Waiter", &[("v1", true)]));
    let engine = Engine::run(dir.path(), &config(&cluster, dir.path(), rest));
    engine.wait_ready(Duration::from_mins(1));
    assert!(watches(&engine, "movers", "v1alpha1"), "{}", row(&engine, "movers"));
    assert_eq!(row(&engine, "waiters.v2.acme.example")["state"], "waiting");

    cluster.apply(&definition("movers", "Mover", &[("v1", true), ("v1alpha1", true)]));
    cluster.apply(&definition("movers", "Mover", &[("v1", true), ("v1alpha1", false)]));
    engine.wait_for("movers in v1", SOON, || watches(&engine, "movers", "v1"));
    cluster.apply(&object("Mover", "v1", "two"));
    let sent = || fs::read_to_string(dir.path().join("out.jsonl")).unwrap_or_default();
    engine.wait_for("an event of the new version", SOON, || sent().contains("\"name\":\"two\""));
    let (_, list) = engine.get("/apis/acme.example/v1/movers").expect("the type is readable in its new version");
    assert!(list.contains("\"one\"") && !list.contains("v1alpha1"), "{list}");
    assert!(!sent().contains("resource.deleted"), "{}", sent());

    cluster.apply(&definition("waiters", "Waiter", &[("v1", true), ("v2", true)]));
    engine.wait_for("waiters in v2", SOON, || watches(&engine, "waiters", "v2"));
}

/// Rules: T-1, X-5.
#[test]
fn dead_conversion_webhook_is_shown_at_first_answer() {
    let Some(cluster) = Cluster::start_or_skip("dead_conversion_webhook_is_shown_at_first_answer", &[]) else { return };
    cluster.apply(&definition("brokens", "Broken", &[("v1alpha1", true)]));
    cluster.apply(&object("Broken", "v1alpha1", "one"));
    let mut converted = definition("brokens", "Broken", &[("v1", true), ("v1alpha1", true)]);
    converted["spec"]["conversion"] = json!({
        "strategy": "Webhook",
        "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": { "url": "https://127.0.0.1:9/" } },
    });
    // Not `apply`: it would wait until the type can be listed.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokens.acme.example";
    let (code, answer) = cluster.request("PATCH", path, Some(&json!({ "spec": converted["spec"] })));
    assert_eq!(code, 200, "{answer}");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let rest = "[resources.all]\nmatch = [\"*.acme.example\"]\nexclude = [\"movers.acme.example\", \"waiters.acme.example\"]\n\
                [supervision]\nready_after = \"10s\"\n";
    let engine = Engine::run(dir.path(), &config(&cluster, dir.path(), rest));
    engine.wait_for("shown", SOON, || row(&engine, "brokens")["lastError"].is_string());
    engine.wait_for_log("retrying");
    engine.wait_ready(SOON);
    let (_, said) = engine.get("/readyz").expect("it answers");
    assert!(said.contains("[!]resource/all/brokens not required any more"), "{said}");
    cluster.delete(path);
}
