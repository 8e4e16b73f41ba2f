//! `[telemetry]`: export of spans to a collector, and propagation of their context to receivers of events.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]

mod collector;

use std::{
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use http::Response;
use tokio::runtime::Runtime;

use self::collector::{Collector, Span, attribute, header};
use crate::support::{
    engine::Engine,
    nats::{Keys, NatsServer, stored},
    receiver::Server,
    scripted::PATIENCE,
    simulated::{Simulated, wait_all},
};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn telemetry(collector: SocketAddr) -> String {
    format!("\n[telemetry]\notlp_endpoint = \"http://{collector}\"\n")
}

fn run(cluster: &Simulated, handler: &str, collector: SocketAddr) -> Engine {
    // send after 100 ms, not after 5 s
    Engine::configure(cluster.dir(), &cluster.config(&(handler.to_owned() + &telemetry(collector))));
    let engine = Engine::run_again(cluster.dir(), &[("OTEL_BSP_SCHEDULE_DELAY", "100".into())]);
    engine.wait_ready(PATIENCE);
    engine
}

/// Asserts that a delivery is part of the trace of a batch.
fn assert_part_of_a_batch(delivery: &Span, batches: &[Span]) {
    let batch = batches.iter().find(|batch| batch.trace_id == delivery.trace_id);
    let batch = batch.unwrap_or_else(|| panic!("{delivery:#?} is of none of {batches:#?}"));
    assert_eq!(delivery.parent_span_id, batch.span_id);
    let sequence = |span: &Span, which: &str| -> u64 {
        attribute(&span.attributes, &format!("deltabus.sequence.{which}")).unwrap().parse().unwrap()
    };
    assert!(sequence(batch, "first") <= sequence(delivery, "first"));
    assert!(sequence(delivery, "first") <= sequence(batch, "last"));
}

/// The webhook fails once, so that one attempt fails.
#[test]
fn trace_covers_list_to_receiver() {
    let collector = Collector::start(ANY_PORT);
    let runtime = Runtime::new().unwrap();
    let failed = AtomicBool::new(false);
    let hook = runtime.block_on(Server::start(None, move |_| {
        let status = if failed.swap(true, Ordering::Relaxed) { 200 } else { 500 };
        Some(Response::builder().status(status).body(String::new()).unwrap())
    }));
    let mut cluster = Simulated::start();
    let handler = format!("type = \"webhook\"\nurl = \"http://{}/\"", hook.address);
    let engine = run(&cluster, &handler, collector.address);
    for version in ["1", "2", "3"] {
        cluster.put("a", version);
        wait_all(&engine, version.parse().unwrap());
    }
    assert!(engine.terminate().success());

    assert_eq!(collector.resource("service.name").as_deref(), Some("deltabus"));
    let unit = collector.spans("list configmaps").into_iter().chain(collector.spans("watch configmaps"));
    let unit: Vec<_> = unit.collect();
    assert!(!unit.is_empty());
    let batches = collector.spans("apply configmaps");
    for batch in &batches {
        let by = &batch.links.first().expect("it came by a list or a watch").span_id;
        assert!(unit.iter().any(|span| span.span_id == *by));
        assert_eq!(attribute(&batch.attributes, "deltabus.api_version").as_deref(), Some("v1"));
    }
    let deliveries = collector.spans("deliver out");
    for delivery in &deliveries {
        assert_part_of_a_batch(delivery, &batches);
    }
    let failures: Vec<_> = deliveries.iter().flat_map(|delivery| &delivery.events).collect();
    let [failure] = &failures[..] else { panic!("{failures:#?}") };
    assert!(attribute(&failure.attributes, "error").unwrap().contains("500"));
    assert_eq!(attribute(&failure.attributes, "attempt").as_deref(), Some("1"));
    let mut sent: Vec<_> = hook.seen().iter().map(|seen| seen.header("traceparent").to_owned()).collect();
    sent.dedup();
    let mut expected: Vec<_> =
        deliveries.iter().map(|delivery| (delivery.start_time_unix_nano, header(delivery))).collect();
    expected.sort();
    assert_eq!(sent, expected.into_iter().map(|(_, header)| header).collect::<Vec<_>>());
}

#[test]
fn nats_messages_carry_trace_context() {
    let Some(server) = NatsServer::start_or_skip("nats_messages_carry_trace_context", Keys::jetstream) else { return };
    let collector = Collector::start(ANY_PORT);
    let mut cluster = Simulated::start();
    let handler = format!(
        "type = \"nats\"\nservers = [\"{}\"]\njetstream.stream = \"k8s\"\njetstream.create = true",
        server.address()
    );
    let engine = run(&cluster, &handler, collector.address);
    cluster.put("a", "1");
    wait_all(&engine, 1);
    assert!(engine.terminate().success());
    let messages = Runtime::new().unwrap().block_on(async { stored(&server.client().await, "k8s").await });
    let deliveries = collector.spans("deliver out");
    assert!(!messages.is_empty() && !deliveries.is_empty());
    for message in messages {
        assert!(deliveries.iter().any(|delivery| header(delivery) == message.header("traceparent")), "{message:?}");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_messages_carry_trace_context() {
    use crate::support::kafka::Broker;

    let Some(broker) = Broker::start_or_skip("kafka_messages_carry_trace_context", |_| {}) else { return };
    broker.create_topic("k8s.configmaps", &[]);
    let collector = Collector::start(ANY_PORT);
    let mut cluster = Simulated::start();
    let handler = format!("type = \"kafka\"\nbrokers = [\"{}\"]", broker.address());
    let engine = run(&cluster, &handler, collector.address);
    cluster.put("a", "1");
    cluster.delete("a");
    wait_all(&engine, 2);
    assert!(engine.terminate().success());
    let messages = broker.stored("k8s.configmaps");
    let deliveries = collector.spans("deliver out");
    assert_eq!(messages.len(), 2);
    for message in messages {
        assert!(deliveries.iter().any(|delivery| header(delivery) == message.headers["traceparent"]), "{message:?}");
    }
}

#[test]
fn unreachable_collector_delays_nothing() {
    let address = TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let mut cluster = Simulated::start();
    let engine = run(&cluster, "type = \"blackhole\"", address);
    cluster.churn(10, 10);
    wait_all(&engine, 100);
    engine.wait_for_log("failed to send spans");
    std::thread::sleep(Duration::from_secs(1)); // about ten more attempts
    assert_eq!(engine.log().matches("failed to send spans").count(), 1, "{}", engine.log());

    let collector = Collector::start(address);
    cluster.put("late", "1");
    collector.wait("apply configmaps", 1, PATIENCE);
    engine.wait_for_log("the collector accepts spans again");
    drop(collector);
    let begun = Instant::now();
    assert!(engine.terminate().success());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
