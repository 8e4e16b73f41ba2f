//! Configuration changes of a running engine: only the differences take effect.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, fs};

use crate::support::live::{Live, parse, text};
use deltabus::internals::config::Config;

const MAPS: &str = "[resources.maps]\nmatch = [\"configmaps\"]\n";
const BOTS: &str = "[resources.bots]\nmatch = [\"serviceaccounts\"]\n";
const PATH: &str = "/api/v1/configmaps";

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

/// Returns a configuration with two entries; the lines are added to the first.
fn with(lines: &str) -> String {
    format!("{MAPS}{lines}\n{BOTS}")
}

/// Returns units, lists and restarts of the entry that no test changes.
fn untouched(live: &Live) -> (Vec<u32>, usize, Vec<u64>) {
    let units = live.engine.registry().informers().into_iter().filter(|unit| unit.entry == "bots");
    let restarts = live.rows("serviceaccounts").iter().map(|row| row.restarts).collect();
    (units.map(|unit| unit.id.0).collect(), live.lists("/api/v1/serviceaccounts"), restarts)
}

/// Starts with `before`, applies `after`, and returns at least `count` events; checks that the other entry is not
/// touched.
async fn change(before: &str, after: &str, count: usize) -> (Live, Vec<String>) {
    let live = Live::start(&with(before)).await;
    live.settled().await;
    let before = untouched(&live);
    live.apply(&with(after));
    let ready = || live.engine.registry().views().iter().filter(|view| view.name == "bots").all(|view| view.synced);
    assert!(ready(), "the other type stays ready");
    let said = live.settled_with(count).await;
    assert_eq!(untouched(&live), before, "units, lists and restarts of the other entry");
    (live, said)
}

#[test]
fn narrower_selection_removes_and_wider_one_adds() {
    run(async {
        let (live, said) = change("", "namespaces = [\"a\"]", 2).await;
        assert_eq!(said, ["removed reload configmaps/b/one", "removed reload configmaps/c/one"]);
        assert_eq!((live.watched("configmaps"), live.cached("configmaps")), (vec!["a".into()], vec!["a/one".into()]));
        live.apply(&with("namespaces = [\"a\", \"b\"]"));
        assert_eq!(live.settled_with(1).await, ["added reload configmaps/b/one"]);
        live.apply(&with("namespaces = [\"*\", \"!b\"]"));
        assert_eq!(live.settled_with(2).await, ["added reload configmaps/c/one", "removed reload configmaps/b/one"]);
        live.apply(&with("labels = \"app=a\""));
        assert_eq!(live.settled_with(1).await, ["removed reload configmaps/c/one"]);
        live.apply(&with(""));
        assert_eq!(live.settled_with(2).await, ["added reload configmaps/b/one", "added reload configmaps/c/one"]);
        live.stop().await;
    });
}

#[test]
fn demand_for_changed_by_relists_objects() {
    run(async {
        let asks = "[handlers.asks]\ntype = \"blackhole\"\nresources = [\"maps\"]\nwhen = 'changed_by != null'";
        let (live, said) = change("", asks, 0).await;
        assert!(said.is_empty(), "{said:?}");
        let manager = |live: &Live, plural: &str, namespace: &str, name: &str| {
            let key = deltabus::internals::object::KeyRef { namespace, name };
            let object = live.engine.lister(plural).unwrap().get(key).unwrap();
            object.changed_by().map(|who| who.manager.into_owned())
        };
        assert_eq!(manager(&live, "configmaps", "a", "one").as_deref(), Some("simulator"));
        live.apply(&with(""));
        assert!(live.settled().await.is_empty());
        assert_eq!(manager(&live, "configmaps", "a", "one"), None);
        live.stop().await;
    });
}

#[test]
fn changed_body_options_relist_without_events() {
    run(async {
        let (live, said) = change("", "drop = [\"data\"]", 0).await;
        assert!(said.is_empty(), "{said:?}");
        let data = |live: &Live| {
            let object = live
                .engine
                .lister("configmaps")
                .unwrap()
                .get(deltabus::internals::object::KeyRef { namespace: "a", name: "one" });
            object.unwrap().value().unwrap()["data"].is_object()
        };
        assert_eq!((data(&live), live.lists(PATH)), (false, 2), "the new bodies are cached");
        live.apply(&with(""));
        assert!(live.settled().await.is_empty());
        assert!(data(&live));
        live.apply(&with("mode = \"metadata\""));
        assert!(live.settled().await.is_empty());
        assert!(!data(&live));
        live.stop().await;
    });
}

#[test]
fn new_index_is_available_without_list() {
    run(async {
        let (live, said) = change("", "index = [\"labels['app']\"]", 0).await;
        assert!(said.is_empty(), "{said:?}");
        let lister = live.engine.lister("configmaps").unwrap();
        assert_eq!(lister.by_index("labels['app']", "b").unwrap().len(), 1);
        assert_eq!(live.lists(PATH), 1);
        for lines in ["order = \"per-key\"", "fifo_max_bytes = \"1MiB\"", "resync = \"1h\""] {
            live.apply(&with(lines));
            assert!(live.settled().await.is_empty(), "{lines}");
        }
        assert_eq!(live.lists(PATH), 1);
        crate::support::live::put(&live.simulator, "configmaps", "a", "two", serde_json::json!({}));
        live.hears("added watch configmaps/a/two").await;
        live.stop().await;
    });
}

#[test]
fn entries_come_go_and_exchange_types() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        live.apply(&with(""));
        let added = ["a", "b", "c"].map(|namespace| format!("added reload serviceaccounts/{namespace}/bot"));
        let said = live.settled_with(3).await;
        assert_eq!(said[..3], added, "{said:?}");
        live.apply(MAPS);
        let removed = ["a", "b", "c"].map(|namespace| format!("removed reload serviceaccounts/{namespace}/bot"));
        assert_eq!(live.settled_with(3).await, removed);
        live.wait_for("gone", |live| live.rows("serviceaccounts").is_empty()).await;
        live.apply("[resources.other]\nmatch = [\"configmaps\"]\nnamespaces = [\"a\"]");
        let said = live.settled_with(2).await;
        assert_eq!(said, ["removed reload configmaps/b/one", "removed reload configmaps/c/one"]);
        assert_eq!(live.cached("configmaps"), ["a/one"]);
        live.stop().await;
    });
}

#[test]
fn moved_type_follows_handler_subscriptions() {
    run(async {
        let bots = "[resources.new_bots]\nmatch = [\"serviceaccounts\"]\n";
        let unmoved = format!("{bots}[resources.old]\nmatch = [\"configmaps\", \"endpoints\"]\n");
        let moved = format!(
            "{bots}[resources.old]\nmatch = [\"endpoints\"]\n\
             [resources.new_maps]\nmatch = [\"configmaps\"]\ndrop = [\"data\"]\n"
        );
        let live = Live::start(&unmoved).await;
        live.settled().await;
        let handlers: String = [("of_both", "[\"*\"]"), ("of_old", "[\"old\"]"), ("of_new", "[\"new*\"]")]
            .map(|(name, resources)| {
                let path = text(live.dir.path(), name);
                format!(
                    "[handlers.{name}]\ntype = \"file\"\npath = {path:?}\ninitial = \"send\"\nresources = {resources}\n"
                )
            })
            .concat();
        // Returns each handler's new events of the type, at least `count`, once no more are written.
        let seen = std::cell::RefCell::new(BTreeMap::<&str, usize>::new());
        let names = ["of_both", "of_old", "of_new"];
        let of_maps = |name: &str| -> Vec<String> {
            in_order(&live, name).into_iter().filter(|said| said.contains("configmaps")).collect()
        };
        let heard = async |count: usize| {
            let least = count + seen.borrow().values().sum::<usize>();
            live.wait_for("written", |_| names.map(|name| of_maps(name).len()).iter().sum::<usize>() >= least).await;
            live.settled().await;
            names.map(|name| {
                let all = of_maps(name);
                let from = seen.borrow_mut().insert(name, all.len()).unwrap_or_default();
                let mut new = all[from..].to_vec();
                new.sort();
                new
            })
        };
        let each = |kind: &str| ["a", "b", "c"].map(|namespace| format!("{kind} configmaps/{namespace}/one")).to_vec();

        live.apply(&format!("{unmoved}{handlers}"));
        assert_eq!(heard(6).await, [each("added replay"), each("added replay"), vec![]]);
        let shows_data = |name: &str| {
            let lines = fs::read_to_string(live.dir.path().join(name)).unwrap();
            lines.lines().rfind(|line| line.contains("configmaps")).unwrap().contains("\"data\":{\"version\"")
        };
        assert!(shows_data("of_both"));
        // The new entry stores bodies in another form; handlers that move to it receive that form.
        live.apply(&format!("{moved}{handlers}"));
        assert_eq!(heard(6).await, [vec![], each("removed reload"), each("added reload")]);
        assert!(!shows_data("of_new"));
        live.simulator.store().delete("configmaps", "b", "one").unwrap();
        let deleted = vec!["deleted watch configmaps/b/one".to_owned()];
        assert_eq!(heard(2).await, [deleted.clone(), vec![], deleted]);
        // Now back, while the old entry is removed.
        live.apply(&format!("{unmoved}{handlers}"));
        let left = |kind: &str| ["a", "c"].map(|namespace| format!("{kind} configmaps/{namespace}/one")).to_vec();
        assert_eq!(heard(4).await, [vec![], left("added reload"), left("removed reload")]);
        live.stop().await;
    });
}

#[test]
fn cache_none_drops_bodies_and_can_be_reverted() {
    run(async {
        let (live, said) = change("", "cache = \"none\"", 0).await;
        assert!(said.is_empty(), "{said:?}");
        assert!(live.rows("configmaps")[0].bytes < 1_000);
        live.simulator.store().delete("configmaps", "b", "one").unwrap();
        crate::support::live::put(&live.simulator, "configmaps", "a", "one", serde_json::json!({}));
        assert_eq!(live.settled_with(2).await, ["deleted watch configmaps/b/one", "updated watch configmaps/a/one"]);
        live.apply(&with(""));
        assert!(live.settled().await.is_empty());
        let object = live.engine.lister("configmaps").unwrap();
        let object = object.get(deltabus::internals::object::KeyRef { namespace: "a", name: "one" }).unwrap();
        assert!(object.value().unwrap()["data"].is_object());
        live.stop().await;
    });
}

#[test]
fn overlapping_changes_are_all_applied() {
    run(async {
        let live = Live::start(&with("")).await;
        live.settled().await;
        for lines in ["namespaces = [\"a\"]", "drop = []", "labels = \"app=b\"", "namespaces = [\"c\"]"] {
            live.apply(&with(lines));
            tokio::task::yield_now().await;
        }
        live.wait_for("the last one", |live| live.cached("configmaps") == ["c/one"]).await;
        let said = live.settled().await;
        let mut shown: BTreeMap<String, i32> = ["a", "b", "c"].map(|name| (format!("configmaps/{name}/one"), 1)).into();
        for event in &said {
            let (kind, key) = (event.split(' ').next().unwrap(), event.rsplit(' ').next().unwrap());
            *shown.entry(key.to_owned()).or_default() += if kind == "added" { 1 } else { -1 };
        }
        assert_eq!(shown.into_values().collect::<Vec<_>>(), [0, 0, 1], "{said:?}");
        assert_eq!(live.cached("configmaps"), ["c/one"]);
        live.stop().await;
    });
}

#[test]
fn hung_unit_delays_only_its_own_type() {
    use deltabus::internals::supervisor::fault::{Harm, Moment};
    run(async {
        let live = Live::start(&with("")).await;
        live.settled().await;
        live.engine.sabotage_unit("configmaps", 2, Harm::Hang(std::time::Duration::from_secs(3)), Moment::Now);
        live.apply("[resources.maps]\nmatch = [\"configmaps\"]\ndrop = []\n[resources.more]\nmatch = [\"namespaces\"]");
        live.hears("added reload namespaces/a").await;
        live.wait_for("through", |live| live.lists(PATH) == 2).await;
        live.stop().await;
    });
}

#[test]
fn conductor_panic_loses_nothing() {
    run(async {
        let live = Live::start(&with("")).await;
        live.settled().await;
        let before = untouched(&live);
        live.engine.sabotage_conductor();
        live.apply(&with("namespaces = [\"a\"]"));
        assert_eq!(
            live.settled_after_panic(2).await,
            ["removed reload configmaps/b/one", "removed reload configmaps/c/one"]
        );
        assert_eq!(untouched(&live), before);
        live.stop().await;
    });
}

#[test]
fn unusable_configuration_is_refused_and_engine_continues() {
    run(async {
        let live = Live::start(MAPS).await;
        live.settled().await;
        let wrong = text(live.dir.path(), "missing/dir/out.jsonl");
        let config = format!("{BOTS}[handlers.out]\ntype = \"file\"\npath = {wrong:?}\n");
        fs::write(live.dir.path().join("missing"), "a file where a directory should be").unwrap();
        live.engine.apply(parse(&config)).unwrap_err();
        assert!(live.settled().await.is_empty());
        assert_eq!(live.cached("configmaps").len(), 3);
        assert_eq!(live.engine.registry().reloads.lock().unwrap().refused, 1);
        let mut config = parse(MAPS);
        config.http.probe_listen = Some(([127, 0, 0, 1], 1).into());
        assert_eq!(live.engine.apply(config).unwrap().needs_restart, ["[http]"]);
        assert_eq!(live.engine.config().http, Config { http: parse(MAPS).http, ..Config::default() }.http);
        live.stop().await;
    });
}

/// Returns the events of a file handler: `added replay configmaps/a/one`.
fn in_order(live: &Live, name: &str) -> Vec<String> {
    let lines = fs::read_to_string(live.dir.path().join(name)).unwrap_or_default();
    let lines = lines.split_inclusive('\n').filter(|line| line.ends_with('\n')); // the last line may be incomplete
    let said = lines.map(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type").rsplit('.').next().unwrap_or_default().to_owned();
        format!("{kind} {} {}/{}/{}", text("cause"), text("resource"), text("namespace"), text("name"))
    });
    said.collect()
}

/// Returns the events of a file handler, sorted.
fn written(live: &Live, name: &str) -> Vec<String> {
    let mut said = in_order(live, name);
    said.sort();
    said
}

/// Rules: S-5, S-7.
#[test]
fn handlers_follow_configuration_changes() {
    run(async {
        let live = Live::start(&with("namespaces = [\"a\"]")).await;
        let file = text(live.dir.path(), "out.jsonl");
        let handler = |resources: &str| {
            let out = format!(
                "[handlers.out]\ntype = \"file\"\npath = {file:?}\ninitial = \"send\"\nresources = {resources}"
            );
            format!("{}\n{out}\n", with("namespaces = [\"a\"]"))
        };
        live.settled().await;
        let before = untouched(&live);
        live.apply(&handler("[\"maps\"]"));
        live.wait_for("replay", |live| written(live, "out.jsonl") == ["added replay configmaps/a/one"]).await;
        live.apply(&handler("[\"*\"]"));
        let bots = ["a", "b", "c"].map(|namespace| format!("added reload serviceaccounts/{namespace}/bot"));
        live.wait_for("wider", |live| {
            written(live, "out.jsonl").iter().filter(|said| bots.contains(said)).count() == 3
        })
        .await;
        live.apply(&handler("[\"bots\"]"));
        let removed = "removed reload configmaps/a/one".to_owned();
        live.wait_for("narrower", |live| written(live, "out.jsonl").contains(&removed)).await;
        live.apply(&with("namespaces = [\"a\"]"));
        live.wait_for("gone", |live| live.engine.handlers().iter().all(|view| view.name != "out")).await;
        live.settled().await; // the old entry is drained
        crate::support::live::put(&live.simulator, "serviceaccounts", "b", "late", serde_json::json!({}));
        assert_eq!(
            live.settled_with(1).await,
            ["added watch serviceaccounts/b/late"],
            "others hear what changes, and no more"
        );
        let told = written(&live, "out.jsonl");
        assert_eq!(told.len(), 5, "{told:?}");
        assert_eq!(untouched(&live), before);
        live.stop().await;
    });
}
