//! What the documents name is there.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use deltabus::simulator::{Simulator, SimulatorOptions};
use support::engine::{Engine, text};

fn sources(dir: &Path, all: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// The words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_the_guarantees_and_the_rules_name_exists() {
    let mut code = String::new();
    for dir in ["src", "tests"] {
        sources(Path::new(dir), &mut code);
    }
    let [text, semantics, state] =
        ["guarantees", "semantics", "state"].map(|name| fs::read_to_string(format!("docs/{name}.md")).unwrap());
    let is_test = |name: &&str| {
        name.len() > 25 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    let named: Vec<&str> = quoted(&text).chain(quoted(&semantics)).chain(quoted(&state)).filter(is_test).collect();
    assert!(named.len() > 200, "{named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for promise in 1..=8 {
        assert!(text.contains(&format!("**I{promise} · ")), "I{promise} is missing");
    }
    for section in ["A", "T", "LW", "P", "R", "F", "K", "I", "C", "S", "X", "L", "H", "Q", "W", "G", "D"] {
        assert!(semantics.contains(&format!("\n## {section} · ")), "section {section} is missing");
    }
}

#[test]
fn every_field_of_the_state_is_documented_and_every_documented_one_is_there() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let kubeconfig = text(dir.path(), "kubeconfig");
    let config = format!(
        "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.pods]\nmatch = [\"pods\"]\n[handlers.null]\ntype = \"blackhole\""
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(Duration::from_secs(20));
    let document = fs::read_to_string("docs/http.md").unwrap();
    for (list, promised) in [
        (
            "resources",
            "name apiVersion kind plural state synced objects bytes resourceVersion queueLength events restarts lastError lagSeconds",
        ),
        (
            "handlers",
            "state queued delivered retried dropped deadLettered position oldestUndeliveredAgeSeconds lastError",
        ),
    ] {
        let answer = engine.json(&format!("/v1/{list}"));
        let there: BTreeSet<&str> = answer[list][0].as_object().unwrap().keys().map(String::as_str).collect();
        for field in promised.split(' ') {
            assert!(there.contains(field), "{list}: {field}");
        }
        let (_, section) = document.split_once(&format!("## `/v1/{list}`")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
        let documented: BTreeSet<&str> =
            rows.flat_map(|(fields, _)| fields.split(", ").map(|field| field.trim_matches('`'))).collect();
        assert_eq!(documented, there, "{list}");
    }
    assert!(engine.terminate().success());
}
