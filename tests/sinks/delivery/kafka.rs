//! Kafka: a real broker and its topics.

use std::collections::BTreeMap;

use crate::support::{
    engine::{Engine, text},
    kafka::{Broker, Stored, compacted},
    scripted::PATIENCE,
    simulated::{Simulated, count, wait_all},
};

const TOPIC: &str = "k8s.configmaps";

fn handler(broker: &Broker) -> String {
    format!("type = \"kafka\"\nbrokers = [\"{}\"]\ntimeout = \"2s\"", broker.address())
}

/// Returns uid → version of all living objects: of the cluster, and of the compacted topic.
fn living(cluster: &Simulated, broker: &Broker) -> [BTreeMap<String, String>; 2] {
    let of_cluster = cluster.happened.values().filter_map(|story| story.last()?.rsplit_once('.'));
    let of_cluster = of_cluster.filter(|(_, version)| *version != "deleted");
    let of_topic = compacted(&broker.stored(TOPIC)).into_iter().map(|(key, event)| {
        let version = event["data"]["object"]["metadata"]["resourceVersion"].as_str().expect("it has a version");
        (key, version.to_owned())
    });
    [of_cluster.map(|(uid, version)| (uid.to_owned(), version.to_owned())).collect(), of_topic.collect()]
}

/// Returns the ids of each object without repetitions. All messages of an object are in one partition, in order.
fn stories(messages: &[Stored]) -> BTreeMap<String, Vec<String>> {
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages {
        let story = stories.entry(message.key.clone()).or_default();
        if !story.contains(&message.id()) {
            story.push(message.id());
        }
    }
    stories
}

/// Returns the actual ids of each object; each uid is an object.
fn happened(cluster: &Simulated) -> BTreeMap<String, Vec<String>> {
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in cluster.happened.values().flatten() {
        let (uid, _) = id.rsplit_once('.').expect("it ends in a version");
        stories.entry(uid.to_owned()).or_default().push(id.clone());
    }
    stories
}

#[test]
fn topic_reaches_cluster_state_despite_broker_kills() {
    const OBJECTS: usize = 20;
    let name = "topic_reaches_cluster_state_despite_broker_kills";
    let Some(mut broker) = Broker::start_or_skip(name, |_| {}) else { return };
    broker.create_topic(TOPIC, &[("cleanup.policy", "compact")]);
    let mut cluster = Simulated::start();
    let engine = cluster.run(&handler(&broker));
    for round in 0..3 {
        // Kill first during deliveries; the later changes then meet a dead engine.
        cluster.churn(OBJECTS, 10);
        engine.wait_for("delivering", PATIENCE, || count(&engine, "delivered") > round * OBJECTS as u64 * 11);
        broker.kill();
        cluster.churn(OBJECTS, 2);
        cluster.delete(&format!("o{round}"));
        let retried = count(&engine, "retried");
        engine.wait_for("failing", PATIENCE, || count(&engine, "retried") > retried);
        broker.start_again().expect("it has run before");
    }
    cluster.put("o1", "again, under the same name");
    cluster.delete("o9");
    wait_all(&engine, cluster.events());
    assert_eq!((count(&engine, "dropped"), count(&engine, "coalesced")), (0, 0));
    let messages = broker.stored(TOPIC);
    assert_eq!(messages.len(), cluster.events(), "nothing is stored twice");
    assert_eq!(stories(&messages), happened(&cluster));
    let [of_cluster, of_topic] = living(&cluster, &broker);
    assert_eq!(of_topic, of_cluster);
    assert!(engine.terminate().success());
}

/// Unacknowledged events are sent again. Changes of the downtime are found, including deletions of objects in the topic.
#[test]
fn topic_reaches_cluster_state_despite_engine_kills() {
    let name = "topic_reaches_cluster_state_despite_engine_kills";
    let Some(broker) = Broker::start_or_skip(name, |_| {}) else { return };
    let mut cluster = Simulated::start();
    let state = format!("initial = \"send\"\n[state]\ndir = {:?}", text(cluster.dir(), "state"));
    let run = |cluster: &Simulated| cluster.run(&format!("{}\n{state}", handler(&broker)));
    for round in 0..3 {
        let engine: Engine = run(&cluster);
        cluster.churn(10, 10);
        engine.wait_for("delivering", PATIENCE, || count(&engine, "delivered") > 5);
        drop(engine); // SIGKILL
        cluster.churn(5, 1);
        cluster.delete(&format!("o{}", 7 + round));
    }
    let engine = run(&cluster);
    engine.wait_for("the topic equals the cluster", PATIENCE * 2, || {
        let [of_cluster, of_topic] = living(&cluster, &broker);
        of_topic == of_cluster && count(&engine, "queued") == 0
    });
    assert!(engine.terminate().success());
}
