//! The NATS handler against a real server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod log_in;
mod rights;

use std::{collections::BTreeMap, fs, time::Duration};

use crate::support::nats::{Keys, NatsServer, added, batch, config_map, deleted, event, stored, stream, updated};
use async_nats::jetstream::{self, context::PublishAckFuture, message::PublishMessage, stream::Config};
use deltabus::internals::{
    change::{Cause, Change},
    cloud_event::{ContentMode, DataFormat, Encoder, Formatter, template::Template as TextTemplate},
    config::ClientTls,
    delivery::attempts::Retry,
    handler::{
        AsyncHandler as _, Form, HandlerError,
        nats::{ExpectLast, JetStreamOptions, NatsAuth, NatsHandler, NatsOptions},
    },
    notification::Event,
    secret::SecretRef,
};
use futures_util::StreamExt as _;
use serde_json::Value;

fn handler(options: NatsOptions) -> NatsHandler {
    NatsHandler::new(options, Encoder::new("prod.eu", "9f2c")).unwrap()
}

/// Returns a handler whose stream has these options.
fn with_stream(server: &NatsServer, change: impl FnOnce(&mut JetStreamOptions)) -> NatsHandler {
    let mut options = server.options();
    change(options.jetstream.as_mut().unwrap());
    handler(options)
}

/// Delivers events in batches with one event per object, like handlers of a stream.
async fn deliver(handler: &NatsHandler, events: &[Event]) -> Result<(), HandlerError> {
    let (mut batches, mut seen) = (Vec::<Vec<Event>>::new(), BTreeMap::new());
    for event in events {
        let object = event.record.object().map(|object| (object.namespace().to_owned(), object.name().to_owned()));
        let at = *seen.entry(object).and_modify(|at| *at += 1).or_insert(0_usize);
        batches.resize_with(batches.len().max(at + 1), Vec::new);
        batches[at].push(event.clone());
    }
    for events in batches {
        handler.deliver(&batch(&events), Form::Whole).await?;
    }
    Ok(())
}

fn ids(messages: &[crate::support::nats::Stored]) -> Vec<String> {
    messages.iter().map(crate::support::nats::Stored::id).collect()
}

fn sentence(result: Result<(), HandlerError>) -> String {
    match result {
        Err(HandlerError::Failed(text)) => text,
        other => panic!("expected a failure that may pass, found {other:?}"),
    }
}

/// Waits until the server has dropped all ids received before now.
async fn window_passed(client: &async_nats::Client) {
    let context = jetstream::new(client.clone());
    let probe = || async {
        let publish = PublishMessage::build().message_id("probe").payload("".into());
        let sent: PublishAckFuture = context.send_publish("k8s.a.b.c.d.probe", publish).await.unwrap();
        sent.await.unwrap().duplicate
    };
    assert!(!probe().await, "the first probe is new");
    while probe().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Row 20 of the users' requests: NATS.
#[tokio::test]
async fn events_are_stored_in_order_with_attributes() {
    let name = "events_are_stored_in_order_with_attributes";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = handler(server.options());
    deliver(&handler, &[added("a", 1), added("b", 2), updated("a", 3), deleted("b", 4)]).await.unwrap();
    let messages = stored(&server.client().await, "K8S").await;
    let mut of_objects: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for message in &messages {
        of_objects.entry(&message.subject).or_default().push(message.id());
    }
    let expected = [
        ("k8s.prod%2Eeu.core.configmaps.default.a", vec!["uid-a.1".to_owned(), "uid-a.3".to_owned()]),
        ("k8s.prod%2Eeu.core.configmaps.default.b", vec!["uid-b.2".to_owned(), "uid-b.deleted".to_owned()]),
    ];
    assert_eq!(of_objects, BTreeMap::from(expected));
    let update = messages.iter().find(|message| message.id() == "uid-a.3").unwrap();
    for (header, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "uid-a.3"),
        ("ce-source", "/clusters/prod.eu"),
        ("ce-type", "dev.deltabus.resource.updated"),
        ("ce-subject", "/api/v1/namespaces/default/configmaps/a"),
        ("ce-sequence", "00000000000000000003"),
        ("ce-name", "a"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(update.header(header), value, "{header}");
    }
    let data: Value = serde_json::from_slice(&update.payload).unwrap();
    assert_eq!(data["object"]["metadata"]["resourceVersion"], "3");
    assert_eq!(data["old"]["metadata"]["resourceVersion"], "2");
    handler.close().await.unwrap();
}

#[tokio::test]
async fn structured_mode_is_one_json_object() {
    let Some(server) = NatsServer::start_or_skip("structured_mode_is_one_json_object", Keys::jetstream) else { return };
    let options = NatsOptions { mode: ContentMode::Structured, ..server.options() };
    deliver(&handler(options), &[added("a", 1)]).await.unwrap();
    let messages = stored(&server.client().await, "K8S").await;
    assert_eq!(messages[0].header("content-type"), "application/cloudevents+json");
    let value: Value = serde_json::from_slice(&messages[0].payload).unwrap();
    assert_eq!((&value["id"], &value["data"]["object"]["metadata"]["name"]), (&"uid-a.1".into(), &"a".into()));
}

#[tokio::test]
async fn format_is_payload_with_its_content_type() {
    let name = "format_is_payload_with_its_content_type";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let template = TextTemplate::compile("{{ type }} {{ object.metadata.name }}").unwrap();
    let encoder = || Encoder::new("prod.eu", "9f2c");
    for (formatter, sequence) in [
        (Formatter::new(encoder(), DataFormat::Patch), 1),
        (Formatter::new(encoder(), DataFormat::MergePatch), 2),
        (Formatter::of_template(encoder(), template), 3),
    ] {
        let handler = NatsHandler::new(server.options(), formatter).unwrap();
        deliver(&handler, &[updated("a", sequence)]).await.unwrap();
    }
    let messages = stored(&server.client().await, "K8S").await;
    let types: Vec<_> = messages.iter().map(|message| message.header("content-type")).collect();
    assert_eq!(types, ["application/json-patch+json", "application/merge-patch+json", "text/plain; charset=utf-8"]);
    let [patch, merge] = [0, 1].map(|at| serde_json::from_slice::<Value>(&messages[at].payload).unwrap());
    assert_eq!(
        (&patch[0]["path"], &merge["metadata"]["resourceVersion"]),
        (&"/metadata/resourceVersion".into(), &"2".into())
    );
    assert_eq!((&*messages[2].payload, messages[2].header("ce-id")), (&b"updated a"[..], "uid-a.3"));
}

#[tokio::test]
async fn server_drops_duplicates_within_its_window() {
    let name = "server_drops_duplicates_within_its_window";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let events = [added("a", 1), updated("a", 2), added("b", 3)];
    deliver(&handler(server.options()), &events).await.unwrap();
    deliver(&handler(server.options()), &events).await.unwrap();
    assert_eq!(stored(&server.client().await, "K8S").await.len(), 3);
}

#[tokio::test]
async fn change_is_stored_once_outside_duplicate_window() {
    let name = "change_is_stored_once_outside_duplicate_window";
    let Some(mut server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let make = |server: &NatsServer, expect_last| {
        with_stream(server, |stream| {
            stream.duplicate_window = Duration::from_millis(200);
            stream.expect_last = expect_last;
        })
    };
    let events = [added("a", 1), updated("a", 2), updated("a", 3), added("b", 4)];
    deliver(&make(&server, ExpectLast::PerSubject), &events).await.unwrap();
    window_passed(&server.client().await).await;
    server.kill();
    server.start_again().unwrap();
    // The first event is no longer the last of its subject, so the handler must search for it.
    let second = make(&server, ExpectLast::PerSubject);
    deliver(&second, &events).await.unwrap();
    deliver(&second, &[updated("a", 5), deleted("b", 6)]).await.unwrap();
    let messages = stored(&server.client().await, "K8S").await;
    let changes = |object: &str| {
        let of_object: Vec<_> = messages.iter().filter(|message| message.subject.ends_with(object)).cloned().collect();
        ids(&of_object)
    };
    assert_eq!(changes(".a"), ["uid-a.1", "uid-a.2", "uid-a.3", "uid-a.5"]);
    assert_eq!(changes(".b"), ["uid-b.4", "uid-b.deleted"]);
    // The duplicate window has passed: without the condition the events would have been stored again.
    let before = messages.len();
    deliver(&make(&server, ExpectLast::Off), &events).await.unwrap();
    assert_eq!(stored(&server.client().await, "K8S").await.len(), before + events.len());
}

/// A retry does not store again what a failed attempt stored. A repeated event is not stored again either, nor one that is replayed
/// after a later event.
#[tokio::test]
async fn same_handler_stores_change_once_outside_duplicate_window() {
    let name = "same_handler_stores_change_once_outside_duplicate_window";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = with_stream(&server, |stream| {
        stream.duplicate_window = Duration::from_millis(200);
        stream.expect_last = ExpectLast::PerSubject;
    });
    let events = [added("a", 1), added(&"é".repeat(400), 2)];
    let client = server.client().await;
    let replayed = [updated("c", 4), updated("c", 5)];
    deliver(&handler, &replayed).await.unwrap();
    deliver(&handler, &[updated("b", 3)]).await.unwrap();
    let is_rejected = async || matches!(deliver(&handler, &events).await, Err(HandlerError::Rejected(_)));
    assert!(is_rejected().await);
    window_passed(&client).await;
    assert!(is_rejected().await);
    deliver(&handler, &[updated("b", 3), updated("a", 4), replayed[0].clone()]).await.unwrap();
    let stored = ids(&stored(&client, "K8S").await);
    assert_eq!(
        stored.iter().filter(|id| id.starts_with("uid-")).collect::<Vec<_>>(),
        ["uid-c.4", "uid-c.5", "uid-b.3", "uid-a.1", "uid-a.4"]
    );
}

#[tokio::test]
async fn foreign_message_under_subject_is_adopted() {
    let name = "foreign_message_under_subject_is_adopted";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = with_stream(&server, |stream| stream.expect_last = ExpectLast::PerSubject);
    deliver(&handler, &[added("a", 1)]).await.unwrap();
    let client = server.client().await;
    let foreign = jetstream::new(client.clone()).publish("k8s.prod%2Eeu.core.configmaps.default.a", "x".into()).await;
    foreign.unwrap().await.unwrap();
    deliver(&handler, &[updated("a", 2), updated("a", 3)]).await.unwrap();
    assert_eq!(ids(&stored(&client, "K8S").await), ["uid-a.1", "", "uid-a.2", "uid-a.3"]);
}

#[tokio::test]
async fn unreachable_nats_server_at_start_is_awaited() {
    let name = "unreachable_nats_server_at_start_is_awaited";
    let Some(mut server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    server.kill();
    let handler = handler(server.options());
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    assert!(error.starts_with(&format!("failed to connect to NATS at nats://{}", server.address())), "{error}");
    server.start_again().unwrap();
    deliver(&handler, &[added("a", 1)]).await.unwrap();
    assert_eq!(ids(&stored(&server.client().await, "K8S").await), ["uid-a.1"]);
}

/// Retries until delivered, like the delivery contract; returns the number of failures.
async fn deliver_at_last(handler: &NatsHandler, events: &[Event]) -> u32 {
    let policy = Retry { initial: Duration::from_millis(10), ..Retry::default() };
    let mut failures = 0;
    while let Err(error) = deliver(handler, events).await {
        assert!(matches!(error, HandlerError::Failed(_)), "{error}");
        failures += 1;
        assert!(failures < 100, "{error}");
        tokio::time::sleep(policy.delay(failures.min(6), 0.5)).await;
    }
    failures
}

async fn killed_amid_deliveries(name: &str, expect_last: ExpectLast) {
    const OBJECTS: u64 = 40;
    const KILLS: u64 = 10;
    let Some(mut server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = with_stream(&server, |stream| stream.expect_last = expect_last);
    // Three versions of each object per batch, so that each version has a waiting successor.
    let versions = move |round: u64| (0..3).map(move |step| round * 3 + step + 1);
    let change = |object: u64, version| {
        let name = format!("o{object}");
        if version == 1 { added(&name, version) } else { updated(&name, version) }
    };
    let round = move |round| {
        let of_version = move |version| (0..OBJECTS).map(move |object| change(object, version));
        versions(round).flat_map(of_version).collect::<Vec<_>>()
    };
    deliver(&handler, &round(0)).await.unwrap();
    let (progress, mut seen) = tokio::sync::watch::channel((0, 0));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let delivering = tokio::spawn(async move {
        let (mut rounds, mut failures) = (1, 0);
        while !*stopped.borrow() {
            progress.send_replace((rounds, failures));
            failures += deliver_at_last(&handler, &round(rounds)).await;
            rounds += 1;
        }
        (rounds, failures)
    });
    // On a slow machine, a kill may hit the time between two batches.
    for kill in 1..=10 * KILLS {
        let (now, failures) = *seen.borrow();
        if kill > KILLS && failures > 0 {
            break;
        }
        seen.wait_for(|(round, _)| *round > now + 1).await.unwrap();
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.start_again().unwrap();
            server
        })
        .await
        .unwrap();
    }
    stop.send_replace(true);
    let (rounds, failures) = delivering.await.unwrap();
    assert!(failures >= 1, "nothing was in flight at any of the kills");
    let mut of_objects: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in stored(&server.client().await, "K8S").await {
        of_objects.entry(message.header("ce-name").to_owned()).or_default().push(message.id());
    }
    for object in 0..OBJECTS {
        let expected: Vec<_> = (1..=rounds * 3).map(|version| format!("uid-o{object}.{version}")).collect();
        assert_eq!(of_objects[&format!("o{object}")], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_nats_server_loses_and_reorders_nothing() {
    killed_amid_deliveries("killed_nats_server_loses_and_reorders_nothing", ExpectLast::Off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_nothing_with_expected_last_sequence() {
    let name = "killed_server_loses_nothing_with_expected_last_sequence";
    killed_amid_deliveries(name, ExpectLast::PerSubject).await;
}

#[tokio::test]
async fn stream_is_created_as_configured_and_recreated() {
    let name = "stream_is_created_as_configured_and_recreated";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = with_stream(&server, |stream| {
        stream.max_age = Duration::from_hours(24);
        stream.duplicate_window = Duration::from_mins(3);
    });
    deliver(&handler, &[added("a", 1)]).await.unwrap();
    let context = jetstream::new(server.client().await);
    let config = context.get_stream("K8S").await.unwrap().cached_info().config.clone();
    assert_eq!(config.subjects, ["k8s.*.*.*.*.*"]);
    assert_eq!((config.max_age, config.duplicate_window), (Duration::from_hours(24), Duration::from_mins(3)));
    context.delete_stream("K8S").await.unwrap();
    let error = sentence(deliver(&handler, &[added("b", 2)]).await);
    assert!(error.starts_with("no stream takes k8s.prod%2Eeu.core.configmaps.default.b"), "{error}");
    deliver(&handler, &[added("b", 2)]).await.unwrap();
}

#[tokio::test]
async fn existing_stream_is_checked_and_missing_one_reported() {
    let name = "existing_stream_is_checked_and_missing_one_reported";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let error = sentence(deliver(&with_stream(&server, |stream| stream.create = false), &[added("a", 1)]).await);
    assert_eq!(error, "stream K8S does not exist: create it, or set create = true");
    let context = jetstream::new(server.client().await);
    let config = |name: &str, max_age| Config {
        name: name.to_owned(),
        subjects: vec!["k8s.>".to_owned()],
        max_age,
        ..Config::default()
    };
    context.create_stream(config("K8S", Duration::from_hours(1))).await.unwrap();
    let handler = with_stream(&server, |_| {});
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    assert!(error.starts_with("stream K8S has `max_age: 3600s`, which is less than 604800s"), "{error}");
    // The stream is changed while the handler runs. Until then its short duplicate window is an error too.
    let better = Config { duplicate_window: Duration::from_mins(10), ..config("K8S", Duration::ZERO) };
    context.update_stream(better).await.unwrap();
    deliver(&handler, &[added("a", 1)]).await.unwrap();
    let given = with_stream(&server, |stream| stream.create = false);
    deliver(&given, &[added("b", 2)]).await.unwrap();
    // Another stream already has these subjects.
    let error =
        sentence(deliver(&with_stream(&server, |stream| stream.stream = "X".to_owned()), &[added("c", 3)]).await);
    assert!(error.starts_with("failed to create the stream X: ") && error.contains("overlap"), "{error}");
}

#[tokio::test]
async fn message_that_no_stream_acknowledges_fails() {
    let Some(server) = NatsServer::start_or_skip("message_that_no_stream_acknowledges_fails", Keys::jetstream) else {
        return;
    };
    let client = server.client().await;
    let subject = |name| format!("k8s.prod%2Eeu.core.configmaps.default.{name}");
    let (name, subjects) = ("K8S".to_owned(), vec![subject("a")]);
    let config = Config { name, subjects, duplicate_window: Duration::from_mins(10), ..Config::default() };
    jetstream::new(client.clone()).create_stream(config).await.unwrap();
    let mut silent = client.subscribe(subject("b")).await.unwrap();
    client.flush().await.unwrap();
    let handler = with_stream(&server, |stream| stream.create = false);
    let both = [added("a", 1), added("b", 2)];
    assert_eq!(sentence(deliver(&handler, &both).await), format!("no acknowledgement for {} within 6s", subject("b")));
    silent.unsubscribe().await.unwrap();
    client.flush().await.unwrap();
    let error = sentence(deliver(&handler, &both).await);
    assert_eq!(error, format!("no stream takes {}: check that the stream exists and has this subject", subject("b")));
    deliver(&handler, &[updated("a", 3)]).await.unwrap();
    assert_eq!(ids(&stored(&client, "K8S").await), ["uid-a.1", "uid-a.3"]);
}

#[tokio::test]
async fn server_without_jetstream_is_reported() {
    let Some(server) = NatsServer::start_or_skip("server_without_jetstream_is_reported", |_| String::new()) else {
        return;
    };
    let error = sentence(deliver(&with_stream(&server, |_| {}), &[added("a", 1)]).await);
    assert!(error.contains("JetStream"), "{error}");
}

#[tokio::test]
async fn odd_names_have_valid_subjects() {
    let Some(server) = NatsServer::start_or_skip("odd_names_have_valid_subjects", Keys::jetstream) else { return };
    let subject = "k8s.{group}.{resource}.{namespace}.{name}.{kind}.{version}.{event}".to_owned();
    let handler = handler(NatsOptions { subject, ..server.options() });
    let names = ["a.b", "a%2Eb", "*", ">", "größe", "system:node:x", "_", "$JS", "a b"];
    let events: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(name, at)| event(at, Change::Added { object: config_map(name, at, 1), cause: Cause::Watch }))
        .collect();
    deliver(&handler, &events).await.unwrap();
    let found: BTreeMap<_, _> = stored(&server.client().await, "K8S")
        .await
        .into_iter()
        .map(|message| {
            let data: Value = serde_json::from_slice(&message.payload).unwrap();
            (message.subject, data["object"]["metadata"]["name"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(found.len(), names.len());
    for (subject, name) in found {
        let token = subject.split('.').nth(4).unwrap();
        assert_eq!(percent_encoding::percent_decode_str(token).decode_utf8().unwrap(), name, "{subject}");
        assert!(subject.ends_with(".ConfigMap.v1.added"), "{subject}");
    }
}

#[tokio::test]
async fn oversized_subject_is_rejected() {
    let name = "oversized_subject_is_rejected";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let handler = handler(server.options());
    match deliver(&handler, &[added("a", 1), added(&"é".repeat(400), 1)]).await {
        Err(HandlerError::Rejected(error)) => assert!(error.ends_with("the limit is 2048"), "{error}"),
        other => panic!("{other:?}"),
    }
    deliver(&handler, &[added(&"x".repeat(1900), 1)]).await.unwrap();
}

#[tokio::test]
async fn oversized_message_is_sent_in_smaller_form() {
    let name = "oversized_message_is_sent_in_smaller_form";
    let small = |keys: &Keys| format!("{}max_payload: 4096", keys.jetstream());
    let Some(server) = NatsServer::start_or_skip(name, small) else { return };
    let large = |name: &str, size| {
        let (old, object) = (config_map(name, 1, size), config_map(name, 2, size));
        event(2, Change::Updated { old, object, cause: Cause::Watch })
    };
    let too_large = |result| match result {
        Err(HandlerError::TooLarge(text)) => text,
        other => panic!("{other:?}"),
    };
    for jetstream in [Some(stream()), None] {
        let handler = handler(NatsOptions { jetstream, ..server.options() });
        let events = [added("a", 1), large("big", 2000)];
        let error = too_large(deliver(&handler, &events).await);
        assert!(error.contains("configmaps.default.big has") && error.ends_with("the limit is 4096"), "{error}");
        handler.deliver(&batch(&events), Form::WithoutOld).await.unwrap();
        let events = [large("huge", 9000)];
        too_large(handler.deliver(&batch(&events), Form::WithoutOld).await);
        handler.deliver(&batch(&events), Form::Reference).await.unwrap();
    }
    let context = jetstream::new(server.client().await);
    let mut config = context.get_stream("K8S").await.unwrap().cached_info().config.clone();
    config.max_message_size = 1500;
    context.update_stream(config).await.unwrap();
    let handler = handler(server.options());
    let error = too_large(deliver(&handler, &[large("c", 1000)]).await);
    assert!(error.ends_with("the limit is 1500"), "{error}");
}

#[tokio::test]
async fn plain_nats_subscribers_get_events() {
    let Some(server) = NatsServer::start_or_skip("plain_nats_subscribers_get_events", |_| String::new()) else {
        return;
    };
    let client = server.client().await;
    let mut listening = client.subscribe("k8s.>").await.unwrap();
    client.flush().await.unwrap();
    let handler = handler(NatsOptions { jetstream: None, ..server.options() });
    deliver(&handler, &[added("a", 1), updated("a", 2)]).await.unwrap();
    for id in ["uid-a.1", "uid-a.2"] {
        let message = listening.next().await.unwrap();
        assert_eq!(message.headers.unwrap().get("ce-id").unwrap().as_str(), id);
    }
}
