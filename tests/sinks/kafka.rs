//! The Kafka handler against a real broker.

#![cfg(feature = "kafka")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod log_in;

use std::{collections::BTreeMap, time::Duration};

use crate::support::{
    kafka::{Broker, Stored, compacted},
    nats::{added, batch, config_map, deleted, event, updated},
};
use deltabus::internals::{
    change::{Cause, Change},
    cloud_event::{ContentMode, Encoder},
    handler::{
        AsyncHandler as _, Form, HandlerError,
        kafka::{Acks, KafkaCompression, KafkaHandler, KafkaOptions},
    },
    notification::Event,
};

const TOPIC: &str = "k8s.configmaps";

fn options(address: String) -> KafkaOptions {
    KafkaOptions { brokers: vec![address], ..KafkaOptions::default() }
}

fn handler(options: KafkaOptions) -> KafkaHandler {
    with_timeout(options, Duration::from_secs(30))
}

fn with_timeout(options: KafkaOptions, timeout: Duration) -> KafkaHandler {
    KafkaHandler::new(options, timeout, false, Encoder::new("prod", "9f2c")).unwrap()
}

async fn deliver(handler: &KafkaHandler, events: &[Event]) -> Result<(), HandlerError> {
    handler.deliver(&batch(events), Form::Whole).await
}

fn sentence(result: Result<(), HandlerError>) -> String {
    match result {
        Err(HandlerError::Failed(text)) => text,
        other => panic!("expected a failure that may pass, found {other:?}"),
    }
}

/// Retries until delivered, like the delivery contract; returns the number of failures.
async fn deliver_at_last(handler: &KafkaHandler, events: &[Event]) -> u32 {
    let mut failures = 0;
    while let Err(error) = deliver(handler, events).await {
        assert!(matches!(error, HandlerError::Failed(_)), "{error}");
        failures += 1;
        assert!(failures < 200, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    failures
}

/// Returns the ids of each object, in order.
fn stories(messages: &[Stored]) -> BTreeMap<String, Vec<String>> {
    let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages {
        stories.entry(message.name()).or_default().push(message.id());
    }
    stories
}

#[tokio::test]
async fn message_key_is_uid_and_deletion_is_tombstone() {
    let name = "message_key_is_uid_and_deletion_is_tombstone";
    let Some(broker) = Broker::start_or_skip(name, |_| {}) else { return };
    let handler = handler(options(broker.address()));
    let left = Change::Removed { object: config_map("c", 6, 10), cause: Cause::Watch };
    let events = [added("a", 1), added("b", 2), updated("a", 3), deleted("b", 4), event(6, left)];
    deliver_at_last(&handler, &events).await; // the broker creates the topic on demand, which takes time
    handler.close().await.unwrap();
    let messages = broker.stored(TOPIC);
    let expected =
        [("a", vec!["uid-a.1", "uid-a.3"]), ("b", vec!["uid-b.2", "uid-b.deleted"]), ("c", vec!["uid-c.6.removed"])];
    let text = |(name, ids): (&str, Vec<&str>)| (name.to_owned(), ids.into_iter().map(str::to_owned).collect());
    assert_eq!(stories(&messages), BTreeMap::from(expected.map(text)));
    for message in &messages {
        assert_eq!(message.key, format!("uid-{}", message.name()));
        let is_gone = message.id().ends_with("deleted") || message.id().ends_with("removed");
        assert_eq!(message.value.is_none(), is_gone, "{message:?}");
        let content_type = message.headers.get("content-type").map(String::as_str);
        assert_eq!(content_type, (!is_gone).then_some("application/cloudevents+json; charset=UTF-8"));
    }
    let update = messages.iter().find(|message| message.id() == "uid-a.3").unwrap().event();
    assert_eq!(update["data"]["old"]["metadata"]["resourceVersion"], "2");
    assert_eq!(compacted(&messages).into_keys().collect::<Vec<_>>(), ["uid-a"], "what lives, and nothing else");
}

#[tokio::test]
async fn each_compression_acknowledgement_and_mode_is_accepted() {
    use KafkaCompression::{Gzip, Lz4, None, Snappy, Zstd};
    let Some(broker) = Broker::start_or_skip("each_compression_acknowledgement_and_mode_is_accepted", |_| {}) else {
        return;
    };
    let mut version = 0;
    for compression in [None, Gzip, Snappy, Lz4, Zstd] {
        for (acks, idempotent) in [(Acks::All, true), (Acks::Leader, false), (Acks::None, false)] {
            version += 1;
            let mode = ContentMode::Binary;
            let options = KafkaOptions { compression, acks, idempotent, mode, ..options(broker.address()) };
            let handler = handler(options);
            deliver_at_last(&handler, &[added("a", version)]).await;
            handler.close().await.unwrap();
        }
    }
    let messages = broker.stored(TOPIC);
    assert_eq!(messages.len() as u64, version);
    assert_eq!(messages[0].headers["ce_type"], "dev.deltabus.resource.added");
    assert_eq!(messages[0].headers["content-type"], "application/json");
    let data: serde_json::Value = serde_json::from_slice(messages[0].value.as_ref().unwrap()).unwrap();
    assert_eq!(data["object"]["metadata"]["name"], "a");
}

#[tokio::test]
async fn missing_topic_is_reported_and_used_once_created() {
    let name = "missing_topic_is_reported_and_used_once_created";
    let no_topics =
        |plan: &mut crate::support::kafka::Plan| plan.properties.push_str("auto.create.topics.enable=false\n");
    let Some(broker) = Broker::start_or_skip(name, no_topics) else { return };
    let handler = handler(options(broker.address()));
    let events = [added("a", 1), updated("a", 2), added("b", 3)];
    for _ in 0..2 {
        let error = sentence(deliver(&handler, &events).await);
        assert!(error.starts_with("topic k8s.configmaps does not exist: create it"), "{error}");
    }
    let broker = tokio::task::spawn_blocking(move || {
        broker.create_topic(TOPIC, &[("cleanup.policy", "compact")]);
        broker
    });
    let broker = broker.await.unwrap();
    deliver_at_last(&handler, &events).await;
    let expected = [("a", vec!["uid-a.1", "uid-a.2"]), ("b", vec!["uid-b.3"])];
    let text = |(name, ids): (&str, Vec<&str>)| (name.to_owned(), ids.into_iter().map(str::to_owned).collect());
    assert_eq!(stories(&broker.stored(TOPIC)), BTreeMap::from(expected.map(text)));
}

#[tokio::test]
async fn oversized_message_is_reported_without_repeating_others() {
    let name = "oversized_message_is_reported_without_repeating_others";
    let Some(broker) = Broker::start_or_skip(name, |_| {}) else { return };
    let handler = handler(KafkaOptions { compression: KafkaCompression::None, ..options(broker.address()) });
    let large = event(2, Change::Added { object: config_map("large", 2, 2 << 20), cause: Cause::Watch });
    let events = [added("small", 1), large];
    deliver_at_last(&handler, &events[..1]).await;
    let more = [updated("small", 3), events[1].clone()];
    let error = deliver(&handler, &more).await.unwrap_err();
    assert!(matches!(&error, HandlerError::TooLarge(text) if text.contains("max.message.bytes")), "{error:?}");
    // As in the delivery contract: first halves, then a smaller form of the oversized event.
    deliver(&handler, &more[..1]).await.unwrap();
    handler.deliver(&batch(&more[1..]), Form::Reference).await.unwrap();
    let stories = stories(&broker.stored(TOPIC));
    assert_eq!(
        (&stories["small"][..], &stories["large"][..]),
        (&["uid-small.1".to_owned(), "uid-small.3".to_owned()][..], &["uid-large.2".to_owned()][..])
    );
}

#[tokio::test]
async fn unreachable_brokers_at_start_are_awaited() {
    let name = "unreachable_brokers_at_start_are_awaited";
    let Some(mut broker) = Broker::start_or_skip(name, |_| {}) else { return };
    broker.kill();
    let handler = handler(options(broker.address()));
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    let expected = format!("failed to reach Kafka at {}", broker.address());
    assert!(error.starts_with(&expected) && error.contains("Connection refused"), "{error}");
    broker.start_again().unwrap();
    deliver_at_last(&handler, &[added("a", 1)]).await;
    assert_eq!(stories(&broker.stored(TOPIC))["a"], ["uid-a.1"]);
}

/// Versions of each object per round, so that each version has a waiting successor.
const STEPS: u64 = 3;

fn round(objects: u64, round: u64) -> Vec<Event> {
    let change = |object: u64, version: u64| {
        let name = format!("o{object}");
        if version == 1 { added(&name, version) } else { updated(&name, version) }
    };
    let versions = (0..STEPS).map(|step| round * STEPS + step + 1);
    versions.flat_map(|version| (0..objects).map(move |object| change(object, version))).collect()
}

/// A killed broker with one disk loses no acknowledged message, although it syncs later: the kernel survives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_broker_loses_repeats_and_reorders_nothing() {
    const OBJECTS: u64 = 40;
    const ROUNDS: u64 = 60;
    let name = "killed_broker_loses_repeats_and_reorders_nothing";
    let Some(mut broker) = Broker::start_or_skip(name, |_| {}) else { return };
    let handler = with_timeout(options(broker.address()), Duration::from_secs(2));
    deliver_at_last(&handler, &round(OBJECTS, 0)).await;
    let (progress, mut seen) = tokio::sync::watch::channel(0);
    let delivering = tokio::spawn(async move {
        let mut failures = 0;
        for at in 1..ROUNDS {
            progress.send_replace(at);
            failures += deliver_at_last(&handler, &round(OBJECTS, at)).await;
        }
        failures
    });
    for at in [5, 20, 40] {
        seen.wait_for(|round| *round >= at).await.unwrap();
        let restarting = tokio::task::spawn_blocking(move || {
            broker.kill();
            broker.start_again().unwrap();
            broker
        });
        broker = restarting.await.unwrap();
    }
    let failures = delivering.await.unwrap();
    assert!(failures >= 1, "nothing was in flight at any of the kills");
    let stories = stories(&broker.stored(TOPIC));
    for object in 0..OBJECTS {
        let expected: Vec<_> = (1..=ROUNDS * STEPS).map(|version| format!("uid-o{object}.{version}")).collect();
        assert_eq!(stories[&format!("o{object}")], expected);
    }
}
