//! Panics and hangs in each actor in turn, on a live cluster: other actors are unaffected, the caches are readable, and
//! the stream is correct (E1 … E4, E7).

use std::{collections::BTreeMap, time::Duration};

use crate::support::{
    latch::Latch,
    sabotaged::{HANDLERS, Scene},
};
use deltabus::internals::{
    delivery::status::HandlerState,
    engine::Spot,
    indexer::index_func::IndexFunc,
    simulator::Random,
    status::UnitState,
    supervisor::fault::{Harm, Moment},
};

/// Supervision settings with nearly immediate restarts.
const QUICK: &str = r#"
    hung_after = "20s"
    backoff = { initial = "20ms", factor = 1.0, jitter = 0.5, max = "20ms", reset_after = "2m" }
    degraded_after = 1000
"#;

/// Returns the same settings with a shorter `hung_after`.
fn soon_hung(after: &str) -> String {
    QUICK.replace("20s", after)
}

/// Steps per second; the number of events is two to three times as high.
const RATE: f64 = 200.0;

const STAGES: [&str; 3] = ["reflector", "DeltaFIFO", "indexer"];

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

/// Asserts that only `whom` was restarted.
fn others_unaffected(scene: &Scene, whom: &str) {
    for (name, restarts) in scene.restarts() {
        assert!(name == whom || restarts == 0, "{name} was restarted {restarts} times because of {whom}");
    }
}

async fn panic_of_a_unit(actor: usize, moment: Moment) {
    let scene = Scene::start(10 + actor as u64, QUICK, RATE).await;
    for round in 1..=3 {
        scene.engine.sabotage_unit("pods", actor, Harm::Panic, moment);
        scene.wait_for("restarted", |scene| scene.unit("pods").restarts == round).await;
        let error = scene.unit("pods").last_error.unwrap_or_default();
        assert!(error.starts_with(STAGES[actor]) && error.contains("injected"), "{error}");
        scene.events_flow(&[]).await;
    }
    others_unaffected(&scene, "pods");
    scene.finish().await;
}

#[test]
fn reflector_panic_is_survived() {
    run(panic_of_a_unit(0, Moment::Now));
}

/// Rule: I-7.
#[test]
fn run_time_index_outlives_its_indexer() {
    run(async {
        let scene = Scene::start(9, QUICK, RATE).await;
        let index = || vec![IndexFunc::parse("spec.nodeName").expect("a path")];
        let mut listers = scene.engine.listers("all").into_iter();
        let lister = listers.find(|lister| lister.resource().plural == "pods").expect("pods are watched");
        assert!(lister.by_index("spec.nodeName", "x").is_err(), "it is not there yet");
        scene.engine.add_indexers("all", index()).await.expect("the name is free");
        let pods_by_node = || {
            lister.snapshot(|view| {
                let nodes = view.index_values("spec.nodeName");
                let pods = nodes.iter().map(|node| view.by_index("spec.nodeName", node).map(|pods| pods.len()));
                (pods.sum::<Result<usize, _>>().expect("the index is there"), view.list().len(), nodes.len())
            })
        };
        let (indexed, cached, nodes) = pods_by_node();
        assert!(nodes > 1 && indexed > 0 && indexed <= cached, "{indexed} of {cached} pods on {nodes} nodes");
        assert!(scene.engine.add_indexers("all", index()).await.is_err(), "its name is taken");

        scene.engine.sabotage_unit("pods", 2, Harm::Panic, Moment::Now);
        scene.wait_for("restarted", |scene| scene.unit("pods").restarts == 1).await;
        scene.events_flow(&[]).await;
        assert!(pods_by_node().0 > 0);
        scene.finish().await;
    });
}

#[test]
fn delta_fifo_panic_is_survived() {
    run(panic_of_a_unit(1, Moment::Now));
}

#[test]
fn indexer_panic_is_survived() {
    run(panic_of_a_unit(2, Moment::Now));
}

#[test]
fn indexer_panic_before_append_is_survived() {
    run(panic_of_a_unit(2, Moment::BeforeAppend));
}

#[test]
fn indexer_panic_between_append_and_publish_is_survived() {
    run(panic_of_a_unit(2, Moment::BeforePublish));
}

#[test]
fn indexer_panic_between_publish_and_release_is_survived() {
    run(panic_of_a_unit(2, Moment::BeforeRelease));
}

#[test]
fn handler_actor_panic_is_survived() {
    run(async {
        let scene = Scene::start(21, QUICK, RATE).await;
        for round in 1..=3 {
            scene.engine.sabotage_handler("out", Spot::Actor, Harm::Panic);
            scene.wait_for("restarted", |scene| scene.handler("out").restarts == round).await;
            scene.events_flow(&[]).await;
        }
        let view = scene.handler("out");
        assert_eq!(view.last_error.as_deref(), Some("handler actor panicked: injected into the handler actor"));
        assert_eq!(view.state, HandlerState::Running);
        others_unaffected(&scene, "out");
        scene.finish().await;
    });
}

#[test]
fn handler_panic_is_survived() {
    run(async {
        let scene = Scene::start(22, QUICK, RATE).await;
        for round in 1..=3 {
            scene.engine.sabotage_handler("out", Spot::Thread, Harm::Panic);
            scene.wait_for("noticed", |scene| scene.handler("out").panics == round).await;
            scene.events_flow(&[]).await;
        }
        let view = scene.handler("out");
        assert_eq!(view.last_error.as_deref(), Some("panicked: injected into the handler"));
        assert_eq!((view.dropped, view.dead_lettered), (0, 0));
        others_unaffected(&scene, "");
        scene.finish().await;
    });
}

async fn hang_of_a_unit(actor: usize, moment: Moment) {
    let scene = Scene::start(30 + actor as u64, &soon_hung("3s"), RATE).await;
    let latches = [Latch::new(), Latch::new()];
    for (round, latch) in (1..).zip(latches) {
        scene.engine.sabotage_unit("pods", actor, latch.harm(), moment);
        scene.wait_for("restarted", |scene| scene.unit("pods").restarts >= round).await;
        let error = scene.unit("pods").last_error.unwrap_or_default();
        assert!(error.ends_with("hung"), "{error}");
        scene.events_flow(&[]).await;
    }
    // Both hung threads return while their successor works. They are fenced off.
    release(&scene, &latches).await;
    scene.events_flow(&[]).await;
    assert_eq!(scene.unit("configmaps").restarts, 0, "it lives on another thread");
    scene.finish().await;
}

/// Lets hung threads continue, and waits until they have ended.
async fn release(scene: &Scene, latches: &[&Latch]) {
    for latch in latches {
        latch.release();
    }
    scene.wait_for("rid of the hung threads", |_| latches.iter().all(|latch| latch.has_ended())).await;
}

#[test]
fn hung_reflector_is_replaced() {
    run(hang_of_a_unit(0, Moment::Now));
}

#[test]
fn indexer_hung_before_append_is_replaced_and_fenced() {
    run(hang_of_a_unit(2, Moment::BeforeAppend));
}

#[test]
fn successor_publishes_records_appended_by_hung_indexer() {
    run(hang_of_a_unit(2, Moment::BeforePublish));
}

#[test]
fn successor_releases_records_published_by_hung_indexer() {
    run(hang_of_a_unit(2, Moment::BeforeRelease));
}

#[test]
fn hung_handler_is_replaced_and_batch_repeated() {
    run(async {
        let scene = Scene::start(40, &soon_hung("3s"), RATE).await;
        let latches = [Latch::new(), Latch::new()];
        for (round, latch) in (1..).zip(latches) {
            scene.engine.sabotage_handler("out", Spot::Thread, latch.harm());
            scene.wait_for("replaced", |scene| scene.handler("out").restarts == round).await;
            let error = scene.handler("out").last_error.unwrap_or_default();
            assert!(error.contains("no answer within"), "{error}");
            scene.events_flow(&[]).await;
        }
        others_unaffected(&scene, "out");
        // Both threads return late: their successors have already written the same batches.
        release(&scene, &latches).await;
        let replays = scene.finish().await;
        assert_eq!((replays["out"].duplicates, replays["other"].duplicates), (0, 0));
    });
}

#[test]
fn hung_handler_abandons_at_most_three_threads() {
    run(async {
        let scene = Scene::start(41, &soon_hung("1s"), RATE).await;
        let latches = [Latch::new(), Latch::new(), Latch::new(), Latch::new()];
        for (round, latch) in (1..).zip(&latches[..3]) {
            scene.engine.sabotage_handler("out", Spot::Thread, latch.harm());
            scene.wait_for("replaced", |scene| scene.handler("out").restarts == round).await;
        }
        scene.engine.sabotage_handler("out", Spot::Thread, latches[3].harm());
        scene.wait_for("stuck", |scene| scene.handler("out").state == HandlerState::Hung).await;
        assert_eq!(scene.handler("out").restarts, 3, "a fourth is waited for");
        assert!(scene.handler("out").last_error.is_some_and(|error| error.contains("too many")));
        scene.events_flow(&["out"]).await;
        latches[0].release();
        scene.wait_for("running again", |scene| scene.handler("out").state == HandlerState::Running).await;
        scene.events_flow(&[]).await;
        release(&scene, &latches).await;
        scene.finish().await;
    });
}

/// Rule: D-14.
#[test]
fn repeatedly_failing_unit_degrades_and_recovers() {
    run(async {
        let supervision = r#"
            backoff = { initial = "10ms", factor = 1.0, jitter = 0.0, max = "10ms", reset_after = "8s" }
            degraded_after = 4
        "#;
        let scene = Scene::start(50, supervision, RATE).await;
        for (round, actor) in (1..).zip([1, 2, 0, 1, 2, 0]) {
            scene.engine.sabotage_unit("pods", actor, Harm::Panic, Moment::Now);
            scene.wait_for("restarted", |scene| scene.unit("pods").restarts == round).await;
            let degraded = scene.unit("pods").state == UnitState::Degraded;
            assert_eq!(degraded, round >= 4, "after {round} failures");
            // the actors of the new instance run when events arrive
            scene.events_flow(&[]).await;
        }
        scene.wait_for("recovered", |scene| scene.unit("pods").state == UnitState::Watching).await;
        others_unaffected(&scene, "pods");
        scene.finish().await;
    });
}

#[test]
fn replaced_actor_leaves_nothing_behind() {
    run(async {
        let scene = Scene::start(51, QUICK, RATE).await;
        let informers = scene.engine.registry().informers();
        let pods = informers.iter().find(|unit| unit.resource.plural == "pods").expect("they are watched");
        scene.events_flow(&[]).await;
        let before = std::sync::Arc::strong_count(&pods.status);
        for (round, actor) in (1..).zip([1, 2, 0, 1, 2, 0, 1, 2, 0, 1]) {
            scene.engine.sabotage_unit("pods", actor, Harm::Panic, Moment::Now);
            scene.wait_for("restarted", |scene| scene.unit("pods").restarts == round).await;
            scene.events_flow(&[]).await;
        }
        let as_before = |_: &Scene| std::sync::Arc::strong_count(&pods.status) == before;
        scene.wait_for("as before: each actor holds one", as_before).await;
        let active = |scene: &Scene| scene.unit("pods").last_activity_seconds.is_some_and(|age| age < 5.0);
        scene.wait_for("active", active).await;
        scene.finish().await;
    });
}

/// Causes random faults in random actors, even before the previous one has been overcome.
async fn any_harm(seed: u64, times: usize) {
    let scene = Scene::start(seed, &soon_hung("300ms"), RATE).await;
    let mut random = Random::new(seed);
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    let moments = [Moment::Now, Moment::BeforeAppend, Moment::BeforePublish, Moment::BeforeRelease];
    for _ in 0..times {
        let hangs = random.below(8) == 0;
        let harm = if hangs { Harm::Hang(Duration::from_millis(200 + random.below(800) as u64)) } else { Harm::Panic };
        let what = match random.below(6) {
            0 | 1 => {
                // this handler runs on the test's thread, which must not hang
                scene.engine.sabotage_handler(HANDLERS[random.below(2)], Spot::Actor, Harm::Panic);
                "handler actor panic".to_owned()
            }
            2 => {
                // the engine gives up an event after three panics, as intended (S-9)
                let name = HANDLERS[random.below(2)];
                if hangs || scene.handler(name).state == HandlerState::Running {
                    scene.engine.sabotage_handler(name, Spot::Thread, harm);
                }
                format!("handler {}", if hangs { "hang" } else { "panic" })
            }
            _ => {
                let (plural, actor) = (["pods", "configmaps", "deployments"][random.below(3)], random.below(3));
                let moment = if actor == 2 { moments[random.below(4)] } else { Moment::Now };
                scene.engine.sabotage_unit(plural, actor, harm, moment);
                format!("{} {moment:?} {}", STAGES[actor], if hangs { "hang" } else { "panic" })
            }
        };
        *done.entry(what).or_default() += 1;
        scene.touch();
        actix_rt::time::sleep(Duration::from_millis(random.below(60) as u64)).await;
    }
    scene.events_flow(&[]).await;
    eprintln!("seed {seed}: {done:?}, restarts {:?}", scene.restarts());
    scene.finish().await;
}

#[test]
fn stream_is_correct_after_any_sabotage() {
    for seed in 1..=3 {
        run(any_harm(seed, 200));
    }
}
