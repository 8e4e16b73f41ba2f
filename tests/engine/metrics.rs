//! `/metrics` of a running engine: Prometheus' conventions, the content of `docs/http.md`, and histograms with samples.

#![expect(clippy::float_cmp, reason = "counts are whole numbers")]

use std::{collections::BTreeSet, fs};

use crate::support::{
    engine::{Engine, request, text},
    promtool,
    scripted::PATIENCE,
    simulated::{Simulated, count, wait_all},
};

/// Runs an engine with a state directory, a working handler and a failing one.
fn run(world: &Simulated) -> Engine {
    let config = format!(
        "shutdown_timeout = \"1s\"\n[state]\ndir = {:?}\n{}\n[handlers.failing]\ntype = \"webhook\"\nurl = \"http://127.0.0.1:9/\"\n",
        text(world.dir(), "state"),
        world.config("type = \"blackhole\""),
    );
    let engine = Engine::run(world.dir(), &config);
    engine.wait_ready(PATIENCE);
    engine
}

fn scrape(engine: &Engine) -> String {
    let (code, text) = engine.get("/metrics").expect("it answers");
    assert_eq!(code, 200, "{text}");
    text
}

/// Returns the sum of the samples of one name whose labels contain `labels`.
fn sample(metrics: &str, name: &str, labels: &str) -> f64 {
    let is_it = |sample: &str| sample.split('{').next() == Some(name) && sample.contains(labels);
    let samples = metrics.lines().filter_map(|line| line.rsplit_once(' ')).filter(|(sample, _)| is_it(sample));
    samples.map(|(_, value)| value.parse::<f64>().expect("a number")).sum()
}

/// Runs the engine until every metric family exists.
fn busy() -> (Simulated, Engine) {
    let mut world = Simulated::start();
    let engine = run(&world);
    world.churn(3, 2);
    wait_all(&engine, world.events());
    engine.signal("-HUP");
    engine.wait_for("reloaded", PATIENCE, || scrape(&engine).contains("deltabus_config_last_reload_success"));
    let failed = || sample(&scrape(&engine), "deltabus_handler_call_duration_seconds_count", "outcome=\"failed\"");
    engine.wait_for("failed", PATIENCE, || failed() > 0.0);
    (world, engine)
}

#[test]
fn promtool_accepts_the_metrics() {
    let (_world, engine) = busy();
    let metrics = scrape(&engine);
    let Some(said) = promtool::check_metrics("promtool_accepts_the_metrics", &metrics) else { return };
    assert_eq!(said, "", "{metrics}");
    let broken = "# HELP a_seconds It counts.\n# TYPE a_seconds counter\na_seconds 1\n";
    let said = promtool::check_metrics("promtool_accepts_the_metrics", broken).unwrap_or_default();
    assert!(said.contains("_total"), "it does look: {said}");
}

#[test]
fn documented_metrics_match_running_engine() {
    let (_world, engine) = busy();
    let metrics = scrape(&engine);
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let families: BTreeSet<(String, String)> = families
        .map(|family| family.split_once(' ').expect("a name and a type"))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let docs = fs::read_to_string("docs/http.md").expect("it is there");
    let rows = docs
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter(|row| ["deltabus_", "process_"].iter().any(|prefix| row.starts_with(prefix)));
    let documented: BTreeSet<(String, String)> = rows
        .map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>())
        .map(|cells| (cells[0].clone(), cells[1].clone()))
        .collect();
    assert_eq!(documented.difference(&families).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "not served");
    assert_eq!(families.difference(&documented).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "not documented");
    assert!(families.iter().filter(|(_, kind)| kind == "histogram").count() >= 8, "{families:?}");
}

#[test]
fn running_engine_feeds_every_histogram() {
    let (world, engine) = busy();
    let metrics = scrape(&engine);
    let histograms = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" histogram"));
    for name in histograms {
        let [count, sum] = ["count", "sum"].map(|what| sample(&metrics, &format!("{name}_{what}"), ""));
        let all = sample(&metrics, &format!("{name}_bucket"), "le=\"+Inf\"");
        assert!(count > 0.0 && sum > 0.0, "{name}: {count} values, sum {sum}");
        assert_eq!(count, all, "{name}");
        assert!(!name.ends_with("_seconds") || sum < 3_600.0, "{name}: {sum}");
    }
    let events = u32::try_from(world.events()).map(f64::from).expect("they are few");
    assert_eq!(sample(&metrics, "deltabus_applied_event_age_seconds_count", ""), events);
    assert_eq!(sample(&metrics, "deltabus_handler_event_age_seconds_count", "handler=\"out\""), events);
    assert_eq!(sample(&metrics, "deltabus_handler_batch_events_sum", "handler=\"out\""), events);
    let syncs = sample(&metrics, "deltabus_journal_syncs_total", "");
    assert_eq!(sample(&metrics, "deltabus_journal_fsync_duration_seconds_count", ""), syncs);
    let resident = sample(&metrics, "process_resident_memory_bytes", "");
    assert!(resident > 1e6 && sample(&metrics, "process_virtual_memory_bytes", "") >= resident, "{metrics}");
    assert!(
        sample(&metrics, "process_start_time_seconds", "") > 1e9 && metrics.contains("deltabus_build_info{version=")
    );
}

#[test]
fn event_of_earlier_run_has_no_age() {
    let mut world = Simulated::start();
    let engine = run(&world);
    let pause = request(&engine.http, "POST", "/v1/handlers/out/pause", &[]).expect("it answers");
    assert_eq!(pause.code, 200);
    world.put("a", "1");
    engine.wait_for("queued", PATIENCE, || count(&engine, "queued") == 1);
    assert!(engine.terminate().success());

    let engine = run(&world);
    engine.wait_for("delivered", PATIENCE, || count(&engine, "delivered") == 1);
    let ages = || sample(&scrape(&engine), "deltabus_handler_event_age_seconds_count", "handler=\"out\"");
    assert_eq!(ages(), 0.0);
    world.put("a", "2");
    engine.wait_for("delivered", PATIENCE, || count(&engine, "delivered") == 2);
    assert_eq!(ages(), 1.0);
}
