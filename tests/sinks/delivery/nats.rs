//! NATS: a real server and its streams.

use std::{collections::BTreeMap, time::Duration};

use async_nats::jetstream::{self, message::PublishMessage};

use crate::support::{
    engine::Engine,
    nats::{Keys, NatsServer, stored},
    scripted::PATIENCE,
    simulated::{Simulated, count, wait_all},
};

fn handler(server: &NatsServer, stream: &str, more: &str) -> String {
    format!(
        "type = \"nats\"\nservers = [\"nats://{}\"]\n{more}\njetstream = {{ stream = \"K8S\", {stream} }}",
        server.address()
    )
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Returns the stored ids of each object, in order.
fn ids(server: &NatsServer) -> BTreeMap<String, Vec<String>> {
    let messages = block_on(async { stored(&server.client().await, "K8S").await });
    let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages.iter().filter(|message| !message.header("ce-name").is_empty()) {
        assert_eq!(message.subject, format!("k8s.test.core.configmaps.default.{}", message.header("ce-name")));
        assert_eq!(message.id(), message.header("ce-id"));
        ids.entry(message.header("ce-name").to_owned()).or_default().push(message.id());
    }
    ids
}

fn stored_once_though_the_server_is_killed(name: &str, expect_last: &str) {
    const OBJECTS: usize = 20;
    let Some(mut server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let mut cluster = Simulated::start();
    let engine = cluster.run(&handler(&server, &format!("expect_last = \"{expect_last}\""), ""));
    for round in 0..4 {
        // Kill first during deliveries; the later changes then meet a dead engine.
        cluster.churn(OBJECTS, 10);
        engine.wait_for("delivering", PATIENCE, || count(&engine, "delivered") > round * OBJECTS as u64 * 11);
        server.kill();
        cluster.churn(OBJECTS, 2);
        cluster.delete(&format!("o{round}"));
        let retried = count(&engine, "retried");
        engine.wait_for("failing", PATIENCE, || count(&engine, "retried") > retried);
        server.start_again().unwrap();
    }
    cluster.delete("o9");
    wait_all(&engine, cluster.events());
    assert_eq!((count(&engine, "dropped"), count(&engine, "coalesced")), (0, 0));
    assert_eq!(ids(&server), cluster.happened);
    assert!(engine.terminate().success());
}

#[test]
fn nats_stores_changes_once_despite_server_kills() {
    let name = "nats_stores_changes_once_despite_server_kills";
    stored_once_though_the_server_is_killed(name, "off");
}

#[test]
fn expected_last_sequence_stores_changes_once_despite_kills() {
    stored_once_though_the_server_is_killed("expected_last_sequence_stores_changes_once_despite_kills", "per-subject");
}

/// Waits until the server has dropped all ids received before now. The probe's id is a new one.
fn window_passed(server: &NatsServer, id: &str) {
    block_on(async {
        let context = jetstream::new(server.client().await);
        let probe = async || {
            let publish = PublishMessage::build().message_id(id).payload("".into());
            context.send_publish("k8s.a.b.c.d.probe", publish).await.unwrap().await.unwrap().duplicate
        };
        assert!(!probe().await, "the first probe is new: {id}");
        while probe().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// A start sends all events again, because there is no `[state]`.
#[test]
fn change_is_stored_once_across_engine_starts() {
    let name = "change_is_stored_once_across_engine_starts";
    let Some(server) = NatsServer::start_or_skip(name, Keys::jetstream) else { return };
    let mut cluster = Simulated::start();
    cluster.churn(10, 1);
    let stream = "duplicate_window = \"200ms\", expect_last = \"per-subject\"";
    let run = |cluster: &Simulated| cluster.run(&handler(&server, stream, "initial = \"send\""));
    let engine = run(&cluster);
    wait_all(&engine, 10);
    cluster.churn(10, 3);
    wait_all(&engine, 40);
    drop(engine); // SIGKILL
    for (is_clean, probe) in [(true, "probe-1"), (false, "probe-2")] {
        window_passed(&server, probe);
        cluster.put("o1", "meanwhile");
        let engine = run(&cluster);
        wait_all(&engine, 10);
        assert_eq!(ids(&server), cluster.happened, "all was sent, and only what is new was stored");
        cluster.churn(3, 2);
        wait_all(&engine, 16);
        assert_eq!(ids(&server), cluster.happened);
        end(engine, is_clean);
    }
}

fn end(engine: Engine, is_clean: bool) {
    if is_clean {
        assert!(engine.terminate().success());
    }
}
