//! Dashboards and alerts on a real Prometheus that scrapes living engines.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path};

use crate::support::{
    disk::{Disk, Trouble},
    engine::{Engine, text},
    prometheus::Prometheus,
    promtool, receiver,
    sabotaged::Scene,
};
use deltabus::internals::{
    simulator::{Area, RequestKind, Running, ServerFault, Simulator, SimulatorOptions, Sizes, Times, Workload},
    supervisor::fault::{Harm, Moment},
};
use serde_json::Value;

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/deltabus/files");

/// Returns each query of a dashboard with the name of its panel.
fn queries(dashboard: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("{FILES}/dashboards/{dashboard}.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    panels.flat_map(of_panel).collect()
}

/// Starts an engine on a live simulated cluster.
fn living(dir: &Path) -> (Simulator, Running, Engine) {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let mut workload = Workload::new(7);
    workload.populate(simulator.store(), Sizes::default()).unwrap();
    let running = workload.run(simulator.store().clone(), 50.0).unwrap();
    fs::write(dir.join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let engine = Engine::run(
        dir,
        &format!(
            "[kube]\nkubeconfig = {:?}\n[state]\ndir = {:?}\n[resources.work]\nmatch = [\"pods\", \"deployments.apps\"]\n\
             [handlers.out]\ntype = \"file\"\npath = {:?}\ninitial = \"send\"\n",
            text(dir, "kubeconfig"),
            text(dir, "state"),
            text(dir, "out.jsonl")
        ),
    );
    (simulator, running, engine)
}

#[actix::test]
async fn every_query_of_the_dashboards_has_a_result() {
    let name = "every_query_of_the_dashboards_has_a_result";
    let Some(prometheus) = Prometheus::start_or_skip(name, "") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (_simulator, _running, engine) = living(dir.path());
    prometheus.scrape(&[&engine.http]);
    prometheus.wait_for("rate(deltabus_handler_events_total{outcome=\"delivered\"}[5s]) > 0").await;
    let mut count = 0;
    for dashboard in ["deltabus-overview", "deltabus-type", "deltabus-handler"] {
        for (panel, query) in queries(dashboard) {
            let query = [
                ("$instance", &*engine.http),
                ("$entry", "work"),
                ("$resource", "pods"),
                ("$handler", "out"),
                ("$__rate_interval", "30s"),
                ("$__range", "1m"),
            ]
            .into_iter()
            .fold(query, |query, (variable, value)| query.replace(variable, value));
            assert!(!query.contains('$'), "{dashboard}, {panel}: {query}");
            prometheus.wait_for(&query).await;
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn alerts_are_tested_by_promtool() {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/project/alerts.yaml");
    let Some(said) = promtool::test_rules("alerts_are_tested_by_promtool", Path::new(tests)) else { return };
    assert!(said.ends_with("  SUCCESS\n\n"), "{said}");
    let (alerts, tests) =
        (fs::read_to_string(format!("{FILES}/alerts.yaml")).unwrap(), fs::read_to_string(tests).unwrap());
    let operations = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).unwrap();
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(names.len(), 10, "{names:?}");
    for name in names {
        assert!(tests.matches(&format!("alertname: {name}")).count() > 1, "{name} fires, and does not fire");
        assert!(operations.contains(&format!("\n### {name}\n")), "{name} has no action");
        assert!(alerts.contains(&format!("runbook: docs/operations.md#{}\n", name.to_lowercase())), "{name}");
    }
}

/// Returns the alerts with short durations, so that they fire within seconds after their fault.
fn hasty(alerts: &str) -> String {
    let shortened = [
        ("lag_seconds > 300", "lag_seconds > 2"),
        ("age_seconds > 600", "age_seconds > 2"),
        ("[15m]) > 3", "[30s]) > 0"),
        ("[15m]", "[30s]"),
        ("[10m]", "[30s]"),
        ("offset 10m", "offset 30s"),
    ];
    let alerts = shortened.into_iter().fold(alerts.to_owned(), |alerts, (long, short)| {
        assert!(alerts.contains(long), "{long}");
        alerts.replace(long, short)
    });
    alerts.lines().filter(|line| !line.trim().starts_with("for: ")).collect::<Vec<_>>().join("\n")
}

#[actix::test]
async fn each_alert_fires_on_its_fault() {
    let alerts = hasty(&fs::read_to_string(format!("{FILES}/alerts.yaml")).unwrap());
    let Some(prometheus) = Prometheus::start_or_skip("each_alert_fires_on_its_fault", &alerts) else { return };
    let fires = async |alert: &str, labels: &str| {
        prometheus.wait_for(&format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"{labels}}}")).await;
    };
    fires("DeltabusDown", "").await;

    let dir = tempfile::tempdir().unwrap();
    let refusing = receiver::Server::answering(400, &[], "").await;
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    Workload::new(7).populate(simulator.store(), Sizes::default()).unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    fs::create_dir(dir.path().join("state")).unwrap();
    simulator.faults().forbid("*", "secrets", Area::Everywhere);
    let failing = ServerFault::Status { code: 500, retry_after: None };
    simulator.faults().add("**/configmaps", RequestKind::Any, Times::Always, failing).unwrap();
    let hook = |name: &str, port: u16, more: &str| {
        format!(
            "[handlers.{name}]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:{port}/\"\nresources = [\"pods\"]\ninitial = \"send\"\n{more}\n"
        )
    };
    let config = format!(
        "[kube]\nkubeconfig = {:?}\n[state]\ndir = {:?}\n\
         [resources.pods]\nmatch = [\"pods\"]\n[resources.others]\nmatch = [\"secrets\", \"configmaps\"]\n\
         [handlers.drain]\ntype = \"blackhole\"\nresources = []\n{}{}{}",
        text(dir.path(), "kubeconfig"),
        text(dir.path(), "state"),
        hook("late", 1, ""),
        hook("lossy", refusing.address.port(), ""),
        hook("lettered", refusing.address.port(), "dead_letter = \"drain\""),
    );
    let disk = Disk::under(&dir.path().join("state"));
    Engine::configure(dir.path(), &config);
    let engine = Engine::run_again(dir.path(), &disk.environment());
    // A second engine in this process can be made to panic.
    let scene = Scene::start(1, "", 10.0).await;
    let address = scene.engine.addresses()[0].to_string();
    prometheus.scrape(&[&engine.http, &address]);
    let on = format!(",instance=\"{}\"", engine.http);
    fires("DeltabusTypeForbidden", &format!("{on},resource=\"secrets\"")).await;
    fires("DeltabusNotSynced", &format!("{on},resource=\"configmaps\"")).await;
    fires("DeltabusHandlerLate", &format!("{on},handler=\"late\"")).await;
    fires("DeltabusEventsDropped", &format!("{on},handler=\"lossy\"")).await;
    fires("DeltabusDeadLetters", &format!("{on},handler=\"lettered\"")).await;
    fires("DeltabusWatchSilent", &format!("{on},resource=\"pods\"")).await;

    Engine::configure(dir.path(), &format!("{config}[handlers.lossy]\n"));
    fires("DeltabusConfigRefused", &on).await;
    scene.engine.sabotage_unit("pods", 1, Harm::Panic, Moment::Now);
    fires("DeltabusUnitRestarts", &format!(",instance=\"{address}\",resource=\"pods\"")).await;
    disk.set(Trouble::Failing);
    let pods = simulator.store().list("pods");
    let key = pods[0].key().as_ref();
    let patch = serde_json::json!({ "metadata": { "labels": { "touched": "yes" } } });
    simulator.store().patch("pods", key.namespace, key.name, patch).unwrap();
    fires("DeltabusStateNotWritable", &on).await;
}
