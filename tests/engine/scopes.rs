//! Watched scopes: namespaces that are added and removed, rights that are refused and granted, types that appear and
//! disappear.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{cell::Cell, sync::Arc, time::Duration};

use crate::support::live::{Live, Notes, Said, cluster, parse, put, skipping};
use actix::Actor;
use deltabus::internals::{
    simulator::{Area, RequestKind, ServerFault, Simulator, Times},
    status::UnitState,
};
use serde_json::{Value, json};
use tokio::time::Instant;

const MAPS: &str = "[resources.maps]\nmatch = [\"configmaps\"]\n";
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

fn label(simulator: &Simulator, namespace: &str, team: &str) {
    simulator.store().patch("namespaces", "", namespace, json!({"metadata": {"labels": {"team": team}}})).unwrap();
}

/// Returns a CRD of `apples.acme.io`.
pub(crate) fn apples() -> Value {
    json!({
        "metadata": {"name": "apples.acme.io"},
        "spec": {
            "group": "acme.io", "scope": "Namespaced",
            "names": {"kind": "Apple", "listKind": "AppleList", "plural": "apples", "singular": "apple"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

/// Row 14 of the users' requests: namespaces by label.
#[test]
fn namespace_selector_follows_namespace_labels() {
    run(async {
        let live = Live::start(&format!("{MAPS}namespace_selector = \"team=x\"")).await;
        let first = live.settled().await;
        assert_eq!(first, ["added initial configmaps/a/one", "added initial configmaps/c/one", "synced configmaps 2"]);
        assert_eq!(live.watched("configmaps"), ["a", "c"]);

        label(&live.simulator, "b", "x");
        assert_eq!(live.settled_with(1).await, ["added relist configmaps/b/one"]);
        label(&live.simulator, "c", "y");
        assert_eq!(live.settled_with(1).await, ["removed watch configmaps/c/one"]);
        live.wait_for("out of c", |live| live.watched("configmaps") == ["a", "b"]).await;
        assert_eq!(live.cached("configmaps"), ["a/one", "b/one"]);

        put(&live.simulator, "namespaces", "", "d", json!({"labels": {"team": "x"}}));
        put(&live.simulator, "configmaps", "d", "two", json!({}));
        live.wait_for("in d", |live| live.cached("configmaps").contains(&"d/two".to_owned())).await;
        live.settled().await;
        live.simulator.store().delete("configmaps", "d", "two").unwrap();
        live.hears("deleted watch configmaps/d/two").await;
        live.simulator.store().delete("namespaces", "", "d").unwrap();
        live.wait_for("out of d", |live| live.watched("configmaps") == ["a", "b"]).await;
        assert_eq!(live.settled().await, ["deleted watch configmaps/d/two"]);
        assert_eq!(live.lists("/api/v1/namespaces/a/configmaps"), 1, "nothing touched the others");
        live.stop().await;
    });
}

/// Waits until the conductor has checked three times without planning a change.
async fn rests(live: &Live) {
    let seen = Cell::new(live.engine.looks_and_plans());
    let rests = |live: &Live| {
        let (looks, plans) = live.engine.looks_and_plans();
        if plans != seen.get().1 {
            seen.set((looks, plans));
        }
        looks >= seen.get().0 + 3
    };
    live.wait_for("at rest", rests).await;
}

#[test]
fn look_without_changes_makes_no_plan() {
    run(async {
        let simulator = cluster();
        simulator.faults().forbid("*", "serviceaccounts", Area::ClusterWide);
        let config =
            format!("{MAPS}namespace_selector = \"team=x\"\n[resources.r]\nmatch = [\"sa\", \"apples.acme.io\"]");
        let live = Live::start_over(simulator, |builder| builder.config(parse(&config))).await;
        live.wait_for("where it is allowed", |live| live.watched("serviceaccounts").contains(&"a".to_owned())).await;
        rests(&live).await;
        let (_, before) = live.engine.looks_and_plans();
        label(&live.simulator, "b", "x");
        live.hears("added relist configmaps/b/one").await;
        assert!(live.engine.looks_and_plans().1 > before, "a namespace more");
        rests(&live).await;
        live.stop().await;
    });
}

#[test]
fn selector_without_namespace_right_is_forbidden_and_recovers() {
    run(async {
        let simulator = cluster();
        simulator.faults().forbid("*", "namespaces", Area::Everywhere);
        let config = format!("{MAPS}namespace_selector = \"team=x\"");
        let live = Live::start_over(simulator, |builder| builder.config(parse(&config))).await;
        live.wait_for("refused", |live| live.rows("configmaps")[0].state == UnitState::Forbidden).await;
        let row = &live.rows("configmaps")[0];
        assert!(row.message.as_ref().unwrap().contains("namespaces"), "{row:?}");
        live.simulator.faults().clear();
        live.wait_for("in both", |live| live.cached("configmaps").len() == 2).await;
        live.stop().await;
    });
}

/// Row 14 of the users' requests: namespaces by pattern.
///
/// Rules: X-6, H-1.
#[test]
fn globs_filter_locally_and_names_limit_requests() {
    run(async {
        let simulator = cluster();
        put(&simulator, "namespaces", "", "team-a", json!({}));
        put(&simulator, "configmaps", "team-a", "two", json!({}));
        let config = "[resources.maps]\nmatch = [\"configmaps\"]\nnamespaces = [\"team-*\"]\n\
                      [resources.bots]\nmatch = [\"serviceaccounts\"]\nnamespaces = [\"a\", \"b\"]";
        let live = Live::start_over(simulator, |builder| builder.config(parse(config))).await;
        live.settled().await;
        assert_eq!(
            (live.watched("configmaps"), live.cached("configmaps")),
            (vec!["*".into()], vec!["team-a/two".into()])
        );
        assert_eq!(
            (live.watched("serviceaccounts"), live.cached("serviceaccounts").len()),
            (vec!["a".into(), "b".into()], 2)
        );
        put(&live.simulator, "configmaps", "a", "other", json!({}));
        put(&live.simulator, "configmaps", "team-a", "three", json!({}));
        assert_eq!(live.settled_with(1).await, ["added watch configmaps/team-a/three"]);
        assert_eq!(live.lists("/api/v1/serviceaccounts"), 0);
        live.stop().await;
    });
}

/// Row 25 of the users' requests: one missing right stops everything.
#[test]
fn refused_cluster_type_is_watched_per_namespace() {
    run(async {
        let simulator = cluster();
        for area in [Area::ClusterWide, Area::Namespace("b".into())] {
            simulator.faults().forbid("*", "configmaps", area);
        }
        let live = Live::start_over(simulator, |builder| builder.config(parse(MAPS))).await;
        live.wait_for("by namespace", |live| live.cached("configmaps") == ["a/one", "c/one"]).await;
        assert!(!live.watched("configmaps").iter().any(|namespace| namespace == "b" || namespace == "*"));
        put(&live.simulator, "configmaps", "a", "two", json!({}));
        live.hears("added watch configmaps/a/two").await;

        live.simulator.faults().clear();
        live.wait_for("healed", |live| live.watched("configmaps") == ["*"]).await;
        live.wait_for("whole", |live| live.cached("configmaps").len() == 4).await;
        live.hears("added relist configmaps/b/one").await;
        let said = live.settled().await;
        assert!(said.contains(&"added relist configmaps/b/one".to_owned()), "{said:?}");
        assert!(!said.iter().any(|said| said.starts_with("removed")), "{said:?}");
        live.stop().await;
    });
}

#[test]
fn fully_refused_type_is_forbidden_and_recovers() {
    run(async {
        let simulator = cluster();
        simulator.faults().forbid("watch", "configmaps", Area::Everywhere);
        let live = Live::start_over(simulator, |builder| builder.config(parse(MAPS))).await;
        live.wait_for("refused", |live| live.rows("configmaps")[0].state == UnitState::Forbidden).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(live.watched("configmaps"), ["*"]);
        live.simulator.faults().clear();
        live.wait_for("healed", |live| live.cached("configmaps").len() == 3).await;
        live.stop().await;
    });
}

/// Row 24 of the users' requests: custom resources created after the start.
///
/// Rules: X-5, D-9.
#[test]
fn new_crd_is_watched_and_removed_crd_drained() {
    run(async {
        let live = Live::start("[resources.fruit]\nmatch = [\"apples.acme.io\"]").await;
        let late = Said::default();
        live.engine.add_handler("late", skipping(), Notes(Arc::clone(&late)).start().recipient()).unwrap();
        live.wait_for("late synced", |live| live.engine.handler_synced("late").unwrap()).await;
        assert_eq!(live.rows("apples.acme.io")[0].state, UnitState::Waiting);
        live.simulator.store().create(DEFINITIONS, apples()).unwrap();
        put(&live.simulator, "apples.acme.io", "a", "red", json!({}));
        let created = Instant::now();
        live.wait_for("watched", |live| live.cached("apples.acme.io") == ["a/red"]).await;
        assert!(created.elapsed() < Duration::from_secs(30), "{:?}", created.elapsed());
        let said = live.settled_with(2).await;
        assert_eq!(said, ["added initial apples/a/red", "synced apples 1"]);
        assert!(late.lock().unwrap().contains(&said[0]), "nothing of it was there at the very first start");
        live.wait_for("waiting no more", |live| live.rows("apples.acme.io").is_empty()).await;

        live.simulator.store().delete(DEFINITIONS, "", "apples.acme.io").unwrap();
        live.wait_for("drained", |live| live.watched("apples").is_empty()).await;
        let said = live.settled_with(1).await;
        let deleted = ["deleted watch apples/a/red", "tombstone relist apples/a/red"];
        assert!(said.len() == 1 && deleted.contains(&said[0].as_str()), "{said:?}");
        let waits =
            |live: &Live| live.rows("apples.acme.io").first().is_some_and(|row| row.state == UnitState::Waiting);
        live.wait_for("waiting again", waits).await;

        live.simulator.store().create(DEFINITIONS, apples()).unwrap();
        put(&live.simulator, "apples.acme.io", "b", "green", json!({}));
        live.wait_for("back", |live| live.cached("apples.acme.io") == ["b/green"]).await;
        live.stop().await;
    });
}

/// Rule: D-9.
#[test]
fn removed_type_stays_cached_when_kept() {
    run(async {
        let simulator = cluster();
        simulator.store().create(DEFINITIONS, apples()).unwrap();
        put(&simulator, "apples.acme.io", "a", "red", json!({}));
        let config = "[resources.fruit]\nmatch = [\"*.acme.io\"]\non_removed = \"keep\"";
        let live = Live::start_over(simulator, |builder| builder.config(parse(config))).await;
        live.settled().await;
        live.simulator.store().delete(DEFINITIONS, "", "apples.acme.io").unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(live.watched("apples"), ["*"]);
        assert!(!live.settled().await.iter().any(|said| said.starts_with("tombstone relist")));
        live.stop().await;
    });
}

#[test]
fn failed_discovery_changes_nothing() {
    run(async {
        let simulator = cluster();
        simulator.store().create(DEFINITIONS, apples()).unwrap();
        put(&simulator, "apples.acme.io", "a", "red", json!({}));
        let config = format!("{MAPS}[resources.fruit]\nmatch = [\"*.acme.io\"]");
        let live = Live::start_over(simulator, |builder| builder.config(parse(&config))).await;
        live.settled().await;
        let error = ServerFault::Status { code: 500, retry_after: None };
        live.simulator.faults().add("/apis", RequestKind::Any, Times::Always, error).unwrap();
        live.apply(&format!("{config}\nlabels = \"\""));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(live.settled().await.is_empty());
        assert_eq!((live.watched("apples"), live.watched("configmaps")), (vec!["*".into()], vec!["*".into()]));
        live.stop().await;
    });
}

/// Row 24 of the users' requests: all types, or all of a group.
#[test]
fn star_matches_every_type_not_excluded() {
    run(async {
        let config = "[resources.all]\nmatch = [\"*\"]\nexclude = [\"configmaps\", \"*.apps\"]\nmode = \"metadata\"";
        let live = Live::start(config).await;
        live.settled().await;
        assert!(live.watched("configmaps").is_empty() && live.watched("deployments").is_empty());
        assert_eq!(live.watched("serviceaccounts"), ["*"]);
        assert_eq!(live.cached("namespaces").len(), live.simulator.store().len("namespaces"));
        live.simulator.store().create(DEFINITIONS, apples()).unwrap();
        put(&live.simulator, "apples.acme.io", "a", "red", json!({}));
        live.hears("added initial apples/a/red").await;
        live.stop().await;
    });
}

/// Rule: X-4.
#[test]
fn engine_stops_during_many_changes() {
    run(async {
        let live = Live::start(&format!("{MAPS}namespace_selector = \"team=x\"")).await;
        for (round, team) in ["y", "x", "y", "x"].into_iter().enumerate() {
            label(&live.simulator, "a", team);
            live.apply(&format!("{MAPS}namespace_selector = \"team=x\"\nfifo_max_bytes = \"{}MiB\"", round + 1));
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let started = Instant::now();
        live.stop().await;
        assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    });
}
