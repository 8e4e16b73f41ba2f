//! `format`, from the configuration to the received events.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use crate::support::{
    receiver::{Seen, Server},
    scripted::PATIENCE,
    simulated::{Simulated, row, wait_all},
};
use http::Response;
use serde_json::{Value, json};

/// Template of the handler `deploy_hook` in the reference configuration.
const DEPLOY_HOOK: &str = r#"
template = '''
{ "text": "{{ cluster }}: {{ object.kind }} {{ object.metadata.namespace }}/{{ object.metadata.name }}", "changes": {{ changes | tojson }} }
'''
"#;

fn lines(cluster: &Simulated, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(cluster.dir().join(name)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into())).collect()
}

/// Returns the data of each event in a file, with its kind and content type.
fn data(cluster: &Simulated, name: &str) -> Vec<(String, String, Value)> {
    let of = |event: Value| {
        let text = |name: &str| event[name].as_str().unwrap().rsplit('.').next().unwrap().to_owned();
        (text("type"), text("datacontenttype"), event["data"].clone())
    };
    lines(cluster, name).into_iter().map(of).collect()
}

#[test]
fn each_handler_gets_changes_in_its_own_format() {
    let mut cluster = Simulated::start();
    let dir = cluster.dir().to_owned();
    let file = |name: &str, options: &str| {
        format!("[handlers.{name}]\ntype = \"file\"\npath = {:?}\n{options}\n", dir.join(name))
    };
    // unset options are inherited
    let config = [
        format!("type = \"file\"\npath = {:?}", dir.join("diff")),
        "[defaults.handlers]\nformat = \"diff\"".to_owned(),
        file("events", "format = \"cloudevents\""),
        file("object", "format = \"object\""),
        file("patch", "format = \"patch\""),
        file("merge", "format = \"merge_patch\""),
        file("references", "format = \"ref\""),
        file("texts", "format = \"template\"\ntemplate = \"{{ type }} {{ object.metadata.name }}\\n\""),
        "[handlers.null]\ntype = \"blackhole\"".to_owned(),
    ];
    let engine = cluster.run(&config.join("\n"));
    cluster.put("a", "1");
    cluster.put("a", "2");
    cluster.delete("a");
    engine.wait_for("three events everywhere", PATIENCE, || {
        let rows = engine.json("/v1/handlers");
        rows["handlers"].as_array().unwrap().iter().all(|row| row["delivered"] == 3)
    });
    assert!(engine.terminate().success());

    let events = data(&cluster, "events");
    let [first, second, last] = [0, 1, 2].map(|at| events[at].2["object"].clone());
    assert_eq!(events[1].2["old"], first);
    let json_type = "application/json";
    let check = |name: &str, expected: [(&str, Value); 3]| {
        let expected: Vec<_> = ["added", "updated", "deleted"]
            .into_iter()
            .zip(expected)
            .map(|(kind, (content_type, data))| (kind.to_owned(), content_type.to_owned(), data))
            .collect();
        assert_eq!(data(&cluster, name), expected, "{name}");
    };
    check("object", [(json_type, first.clone()), (json_type, second.clone()), (json_type, last.clone())]);
    check("references", [(json_type, json!({})), (json_type, json!({})), (json_type, json!({}))]);

    // old + patch = new
    let patching = data(&cluster, "patch");
    let mut by_patch = patching[0].2.clone();
    assert_eq!((patching[1].1.as_str(), &by_patch), ("application/json-patch+json", &first));
    let patch: json_patch::Patch = serde_json::from_value(patching[1].2.clone()).unwrap();
    json_patch::patch(&mut by_patch, &patch).unwrap();
    assert_eq!(by_patch, second);
    assert_eq!(patching[2].2, Value::Null);
    let merging = data(&cluster, "merge");
    let mut by_merge = merging[0].2.clone();
    json_patch::merge(&mut by_merge, &merging[1].2);
    assert_eq!((merging[1].1.as_str(), by_merge), ("application/merge-patch+json", second));
    assert_eq!(merging[1].2["data"], json!({ "x": "2" }));
    assert_eq!(merging[2].2, Value::Null);

    let differences = data(&cluster, "diff");
    assert_eq!([&differences[0].2["object"], &differences[2].2["object"]], [&first, &last]);
    let changes = differences[1].2["changes"].as_array().unwrap();
    assert!(changes.contains(&json!({ "path": "data.x", "old": "1", "new": "2" })), "{changes:?}");
    assert_eq!(lines(&cluster, "texts"), ["added a", "updated a", "deleted a"]);
}

/// A template that fails for one event does not stop other events.
#[test]
fn event_that_fails_template_is_dead_lettered_alone() {
    let mut cluster = Simulated::start();
    let dir = cluster.dir().to_owned();
    let config = format!(
        "type = \"file\"\npath = {:?}\nformat = \"template\"\ntemplate = \"{{{{ object.data.x }}}} {{{{ 6 / object.data.x | int }}}}\"\n\
         dead_letter = \"dlq\"\n[handlers.dlq]\ntype = \"file\"\nresources = []\npath = {:?}",
        dir.join("out"),
        dir.join("dlq")
    );
    let engine = cluster.run(&config);
    for x in ["1", "nothing", "2", "3"] {
        cluster.put(&format!("of-{x}"), x);
    }
    wait_all(&engine, 4);
    let row = row(&engine);
    assert_eq!((&row["delivered"], &row["deadLettered"]), (&json!(3), &json!(1)), "{row}");
    engine.wait_for("the dead letter", PATIENCE, || lines(&cluster, "dlq").len() == 1);
    assert_eq!(lines(&cluster, "dlq")[0]["name"], "of-nothing");
    assert_eq!(lines(&cluster, "out"), ["1 6.0", "2 3.0", "3 2.0"]);
    engine.wait_for_log("the template failed: line 1");
    assert!(engine.terminate().success());
}

#[test]
fn template_text_is_webhook_body() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let [single, batched] =
        [(), ()].map(|()| runtime.block_on(Server::start(None, |_| Some(Response::new(String::new())))));
    let mut cluster = Simulated::start();
    let config = format!(
        "type = \"webhook\"\nurl = \"http://{}/\"\non = [\"updated\"]\nformat = \"template\"\n{DEPLOY_HOOK}\n\
         [handlers.batched]\ntype = \"webhook\"\nurl = \"http://{}/\"\non = [\"updated\"]\nformat = \"template\"\n{DEPLOY_HOOK}\n\
         batch = {{ max_events = 50, max_bytes = \"512KiB\", timeout = \"100ms\" }}",
        single.address, batched.address
    );
    let engine = cluster.run(&config);
    cluster.put("a", "1");
    cluster.put("a", "2");
    engine.wait_for("both", PATIENCE, || !single.seen().is_empty() && !batched.seen().is_empty());
    assert!(engine.terminate().success());
    let [alone, together] = [single.seen().remove(0), batched.seen().remove(0)];
    for seen in [&alone, &together] {
        assert_eq!((seen.header("content-type"), seen.header("ce-id")), ("application/json", ""));
    }
    assert_eq!(alone.json()["text"], "test: ConfigMap default/a");
    let change = json!({ "path": "data.x", "old": "1", "new": "2" });
    assert!(alone.json()["changes"].as_array().unwrap().contains(&change), "{}", alone.json());
    assert_eq!(together.json(), json!([alone.json()]));
    assert_eq!(alone.header("idempotency-key"), cluster.happened["a"][1]);
}

/// An event without a smaller form is not retried.
#[test]
fn oversized_event_shrinks_where_its_format_allows() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let small = |seen: &Seen| {
        let status = if seen.body.len() < 150 { 200 } else { 413 };
        Some(Response::builder().status(status).body(String::new()).unwrap())
    };
    let mut cluster = Simulated::start();
    for (format, bodies, delivered) in [
        ("cloudevents", &["object old", "object", ""][..], 1),
        ("diff", &["changes changed_by", "changes changed_by", ""], 1),
        ("object", &["object", ""], 1),
        ("template", &["text"], 0),
    ] {
        let server = runtime.block_on(Server::start(None, small));
        let template = if format == "template" { "template = \"{{ object | tojson }}\"" } else { "" };
        let handler = format!(
            "type = \"webhook\"\nurl = \"http://{}/\"\nmode = \"binary\"\non = [\"updated\"]\nformat = \"{format}\"\n{template}",
            server.address
        );
        cluster.put(format, &"1".repeat(150));
        let engine = cluster.run(&handler);
        cluster.put(format, &"2".repeat(150));
        wait_all(&engine, 1);
        let row = row(&engine);
        assert_eq!((&row["delivered"], &row["dropped"]), (&json!(delivered), &json!(1 - delivered)), "{row}");
        assert!(engine.terminate().success());
        let kind = |seen: &Seen| {
            let body = seen.json();
            let names: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
            if !names.contains(&"metadata") {
                return names.join(" ");
            }
            if format == "template" { "text".to_owned() } else { "object".to_owned() }
        };
        assert_eq!(server.seen().iter().map(kind).collect::<Vec<_>>(), bodies, "{format}");
    }
}

#[test]
fn changed_template_is_applied_at_run_time() {
    let mut cluster = Simulated::start();
    let out = cluster.dir().join("out");
    let config = |template: &str| {
        cluster.config(&format!("type = \"file\"\npath = {out:?}\nformat = \"template\"\ntemplate = \"{template}\""))
    };
    let configs = ["1 {{ object.metadata.name }}", "2 {{ objekt }}", "3 {{ object.metadata.name }}"].map(config);
    let engine = crate::support::engine::Engine::run(cluster.dir(), &configs[0]);
    engine.wait_ready(PATIENCE);
    cluster.put("a", "1");
    wait_all(&engine, 1);
    crate::support::engine::Engine::configure(cluster.dir(), &configs[1]);
    engine.signal("-HUP");
    engine.wait_for_log("unknown name `objekt`; did you mean `object`?");
    crate::support::engine::Engine::configure(cluster.dir(), &configs[2]);
    engine.signal("-HUP");
    engine.wait_for("reloaded", PATIENCE, || engine.log().contains("was replaced"));
    cluster.put("b", "1");
    engine.wait_for("the second", PATIENCE, || lines(&cluster, "out").len() == 2);
    assert_eq!(lines(&cluster, "out"), ["1 a", "3 b"]);
    assert!(engine.terminate().success());
}
