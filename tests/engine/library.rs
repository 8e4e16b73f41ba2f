//! The running library: adding and removing types and handlers, and reads of a whole type (S, X, L, D-9).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use crate::support::live::{Live, Notes, Said, cluster, everything, parse, put, say, skipping};
use actix::Actor;
use deltabus::internals::{
    config::HandlerOptions,
    engine::EngineError,
    indexer::index_func::IndexFunc,
    list_watch::transform::Transform,
    lister::{ReadError, Selector},
    object::KeyRef,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use serde_json::json;
use tokio::time::sleep;

const MAPS: &str = "[resources.maps]\nmatch = [\"configmaps\"]\n";

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

#[test]
fn program_can_request_changed_by() {
    run(async {
        let builder =
            |builder: deltabus::internals::engine::EngineBuilder| builder.watch::<ConfigMap>().noting_who_changed();
        let live = Live::start_over(cluster(), builder).await;
        let who = |plural: &str| {
            let objects = live.engine.lister(plural).unwrap().list(&Selector::default());
            let who: Vec<_> =
                objects.iter().map(|object| object.changed_by().map(|who| who.manager.into_owned())).collect();
            assert!(!who.is_empty());
            who.iter().all(|who| who.as_deref() == Some("simulator"))
        };
        assert!(who("configmaps"));
        live.apply("[resources.bots]\nmatch = [\"serviceaccounts\"]\n");
        live.settled().await;
        assert!(who("configmaps") && who("serviceaccounts"));
        live.stop().await;
    });
}

/// Adds a handler that records its events.
fn listen(live: &Live, name: &str, skip: bool) -> Said {
    let said = Said::default();
    let options = if skip { skipping() } else { everything() };
    live.engine.add_handler(name, options, Notes(Arc::clone(&said)).start().recipient()).unwrap();
    said
}

fn sorted(said: &Said) -> Vec<String> {
    let mut said = said.lock().unwrap().clone();
    said.sort();
    said
}

/// Rows 4 and 30 of the users' requests: a thousand watches that expire under load.
///
/// Rules: S-1, X-1.
#[test]
fn handlers_and_entries_share_one_list_and_watch() {
    run(async {
        let live = Live::start_over(cluster(), |builder| {
            builder
                .config(parse(MAPS))
                .watch::<ConfigMap>()
                .watch_type("cm", |_| {})
                .watch_type("configmaps.v1.", |_| {})
        })
        .await;
        assert_eq!(live.engine.watch::<ConfigMap>().unwrap(), "maps");
        let _second = listen(&live, "second", false);
        live.settled().await;
        assert_eq!(live.lists("/api/v1/configmaps"), 1);
        assert_eq!(live.watched("configmaps"), ["*"]);
        live.stop().await;
    });
}

/// Rule: S-5.
#[test]
fn late_handler_gets_cache_once_then_changes() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        let (late, skips) = (listen(&live, "late", false), listen(&live, "skips", true));
        let synced = |name| move |live: &Live| live.engine.handler_synced(name).unwrap();
        live.wait_for("late synced", synced("late")).await;
        live.wait_for("skips synced", synced("skips")).await;
        put(&live.simulator, "configmaps", "b", "two", json!({}));
        live.hears("added watch configmaps/b/two").await;
        live.settled().await;
        let replayed = ["a", "b", "c"].map(|namespace| format!("added replay configmaps/{namespace}/one"));
        assert_eq!(sorted(&late)[..3], replayed);
        assert_eq!(sorted(&late).len(), 4, "{late:?}");
        assert_eq!(sorted(&skips), ["added watch configmaps/b/two"]);
        live.stop().await;
    });
}

/// Rule: S-5.
#[test]
fn late_handler_misses_nothing_during_changes() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        let mut late = Vec::new();
        for round in 0..5 {
            put(&live.simulator, "configmaps", "a", &format!("round-{round}"), json!({}));
            late.push(listen(&live, &format!("late-{round}"), false));
            let lines = if round % 2 == 0 { "order = \"per-key\"" } else { "drop = []" };
            live.apply(&format!("{MAPS}{lines}"));
        }
        live.wait_for("all cached", |live| live.cached("configmaps").len() == 8).await;
        let added = |said: &Said| sorted(said).into_iter().filter(|said| said.starts_with("added")).collect::<Vec<_>>();
        live.wait_for("all told", |_| late.iter().all(|said| added(said).len() >= 8)).await;
        live.settled().await;
        let cached = live.cached("configmaps");
        assert_eq!(cached.len(), 8);
        for said in late {
            let added = added(&said);
            let mut keys: Vec<_> =
                added.iter().map(|said| said.rsplit("configmaps/").next().unwrap().to_owned()).collect();
            keys.sort();
            assert_eq!(keys, cached, "each once: {added:?}");
        }
        live.stop().await;
    });
}

#[test]
fn library_handler_has_rules_and_validation() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        let said = Said::default();
        let add = |name: &str, when: &str| {
            let options = HandlerOptions { when: Some(when.to_owned()), ..everything() };
            live.engine.add_handler(name, options, Notes(Arc::clone(&said)).start().recipient())
        };
        add("ruled", "type == 'synced' || object.metadata.namespace == 'b'").unwrap();
        live.wait_for("ruled synced", |live| live.engine.handler_synced("ruled").unwrap()).await;
        put(&live.simulator, "configmaps", "a", "two", json!({}));
        put(&live.simulator, "configmaps", "b", "two", json!({}));
        live.wait_for("told", |_| sorted(&said).len() == 2).await;
        live.settled().await;
        assert_eq!(sorted(&said), ["added replay configmaps/b/one", "added watch configmaps/b/two"]);
        let error = add("wrong", "ns == 'b'").unwrap_err();
        assert!(error.to_string().contains("`when`: line 1, column 1: unknown variable `ns`"), "{error}");
        live.stop().await;
    });
}

/// Rule: S-7.
#[test]
fn removed_handler_gets_nothing_more() {
    run(async {
        let live = Live::start(MAPS).await;
        let gone = listen(&live, "gone", false);
        live.wait_for("gone synced", |live| live.engine.handler_synced("gone").unwrap()).await;
        live.settled().await;
        live.engine.remove_handler("gone").unwrap();
        live.engine.remove_handler("gone").unwrap();
        live.engine.remove_handler("never").unwrap();
        let before = gone.lock().unwrap().len();
        put(&live.simulator, "configmaps", "b", "two", json!({}));
        assert_eq!(live.settled_with(1).await, ["added watch configmaps/b/two"]);
        assert_eq!(gone.lock().unwrap().len(), before);
        let again = listen(&live, "gone", false);
        live.wait_for("gone synced again", |live| live.engine.handler_synced("gone").unwrap()).await;
        live.settled().await;
        assert_eq!(again.lock().unwrap().len(), 4, "its name is free");
        live.stop().await;
    });
}

/// Rule: S-8.
#[test]
fn handler_syncs_after_acknowledging_initial_state() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        assert!(live.engine.handler_synced("notes").unwrap());
        let (go, wait) = mpsc::channel::<()>();
        let said = Said::default();
        let copy = Arc::clone(&said);
        let function = move |notification: &deltabus::internals::notification::Notification| {
            wait.recv().unwrap_err();
            copy.lock().unwrap().extend(say(notification));
            Ok(())
        };
        live.engine.on_change("slow", everything(), function).unwrap();
        sleep(Duration::from_millis(300)).await;
        assert!(!live.engine.handler_synced("slow").unwrap());
        drop(go);
        live.wait_for("synced", |live| live.engine.handler_synced("slow").unwrap()).await;
        assert_eq!(said.lock().unwrap().len(), 3);
        assert!(matches!(live.engine.handler_synced("nobody"), Err(EngineError::UnknownHandler(_))));
        live.stop().await;
    });
}

/// Rules, D-9.
#[test]
fn single_types_start_and_stop_independently() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        let entry = live.engine.watch::<ServiceAccount>().unwrap();
        assert_eq!(live.engine.watch_type("serviceaccounts", |_| {}).unwrap(), entry);
        let said = live.settled_with(3).await;
        assert_eq!(said[0], "added reload serviceaccounts/a/bot", "{said:?}");
        assert_eq!(live.engine.lister_of::<ServiceAccount>().unwrap().list(&Selector::all()).unwrap().len(), 3);

        live.apply(&format!("{MAPS}labels = \"app=a\""));
        assert_eq!(live.settled_with(2).await, ["removed reload configmaps/b/one", "removed reload configmaps/c/one"]);
        assert_eq!(live.watched("serviceaccounts"), ["*"], "what the program added stays");

        assert!(live.engine.unwatch(&entry).unwrap());
        assert!(!live.engine.unwatch(&entry).unwrap());
        assert!(!live.engine.unwatch("maps").unwrap(), "that is the configuration's");
        let said = live.settled_with(3).await;
        assert_eq!(
            said.iter().filter(|said| said.starts_with("removed reload serviceaccounts")).count(),
            3,
            "{said:?}"
        );
        assert!(live.engine.lister_of::<ServiceAccount>().is_none());
        assert_eq!((live.lists("/api/v1/configmaps"), live.lists("/api/v1/serviceaccounts")), (2, 1));
        live.stop().await;
    });
}

/// Rules: S-12, X-3.
#[test]
fn wait_for_sync_answers_per_entry() {
    run(async {
        let live = Live::start(MAPS).await;
        let fault = deltabus::internals::simulator::ServerFault::Stall;
        let (any, always) =
            (deltabus::internals::simulator::RequestKind::Any, deltabus::internals::simulator::Times::Always);
        live.simulator.faults().add("/api/v1/serviceaccounts", any, always, fault).unwrap();
        let entry = live.engine.watch::<ServiceAccount>().unwrap();
        live.wait_for("begun", |live| !live.rows("serviceaccounts").is_empty()).await;
        let answer = live.engine.wait_for_sync_within(Duration::from_millis(200)).await;
        assert_eq!(answer, [("maps".to_owned(), true), (entry.clone(), false)].into());
        let handle = live.engine.handle();
        let waiting = actix_rt::spawn(async move { handle.wait_for_sync_within(Duration::from_mins(1)).await });
        sleep(Duration::from_millis(50)).await;
        live.stop().await;
        assert!(!waiting.await.unwrap()[&entry]);
    });
}

/// Rules: S-6, X-4.
#[test]
fn stopped_engine_refuses_changes_and_allows_reads() {
    run(async {
        let live = Live::start(MAPS).await;
        let (handle, said) = (live.engine.handle(), Said::default());
        live.stop().await;
        let notes = || Notes(Arc::clone(&said)).start().recipient();
        let stopped = |result: Result<(), EngineError>| assert!(matches!(result, Err(EngineError::Stopped)));
        stopped(handle.apply(parse(MAPS)).map(drop));
        stopped(handle.watch::<Namespace>().map(drop));
        stopped(handle.unwatch("maps").map(drop));
        stopped(handle.add_handler("late", everything(), notes()));
        stopped(handle.on_change("late", everything(), |_| Ok(())));
        stopped(handle.remove_handler("notes"));
        stopped(handle.handler_synced("notes").map(drop));
        assert_eq!(handle.lister_of::<ConfigMap>().unwrap().list(&Selector::all()).unwrap().len(), 3);
    });
}

/// Rule: L-1.
#[test]
fn lister_reads_all_units_and_follows_replacements() {
    run(async {
        let live = Live::start(&format!("{MAPS}namespaces = [\"a\", \"b\"]")).await;
        let typed = live.engine.lister_of::<ConfigMap>().unwrap();
        assert_eq!(typed.list(&Selector::all()).unwrap().len(), 2);
        assert_eq!(typed.get("b", "one").unwrap().metadata.namespace.unwrap(), "b");
        assert!(matches!(typed.get("c", "one"), Err(ReadError::NotFound { .. })));
        assert_eq!(typed.by_index("namespace", "a").unwrap().len(), 1);
        live.apply(MAPS);
        live.settled().await;
        assert_eq!(typed.list(&Selector::all()).unwrap().len(), 3);
        assert!(typed.untyped().get(KeyRef { namespace: "c", name: "one" }).is_ok());
        assert!(live.engine.lister("configmaps.nowhere").is_none());
        assert_eq!(live.engine.listers("maps").len(), 1);
        live.stop().await;
    });
}

/// Rules: F-60, X-6.
#[test]
fn program_functions_index_and_transform_objects() {
    run(async {
        let upper = IndexFunc::custom("upper", |object| vec![object.namespace().to_uppercase()]);
        let cut = Transform::of_values(|value| {
            value["data"] = json!({"cut": true});
            Ok::<_, String>(())
        });
        let live = Live::start_over(cluster(), |builder| {
            builder.config(parse(MAPS)).index("maps", upper).transform("maps", cut)
        })
        .await;
        let read = |live: &Live| {
            let lister = live.engine.lister("configmaps").unwrap();
            let found = lister.by_index("upper", "A").unwrap();
            found.iter().map(|object| object.value().unwrap()["data"]["cut"] == true).collect::<Vec<_>>()
        };
        assert_eq!(read(&live), [true]);
        live.apply(&format!("{MAPS}labels = \"app\""));
        live.settled().await;
        assert_eq!(read(&live), [true], "they outlive a reload");
        live.stop().await;
    });
}

/// Rule: X-5.
#[test]
fn unwatchable_type_is_error_with_reason() {
    run(async {
        let live = Live::start(MAPS).await;
        let error = live.engine.watch_type("po ds", |_| {}).unwrap_err().to_string();
        assert!(error.contains("po ds"), "{error}");
        let odd = live.engine.watch_type("secrets.acme.io", |options| options.labels = "a in (".to_owned());
        assert!(odd.unwrap_err().to_string().contains("labels"), "as a file is checked");
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        live.engine
            .on_change("count", everything(), move |_| {
                *counted.lock().unwrap() += 1;
                Ok(())
            })
            .unwrap();
        live.engine.on_change("count", everything(), |_| Ok(())).unwrap_err();
        live.wait_for("counted", |_| *count.lock().unwrap() > 0).await;
        live.stop().await;
    });
}
