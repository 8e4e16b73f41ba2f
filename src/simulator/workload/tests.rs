use serde_json::Value;

use super::{super::store::HistoryLimits, *};
use crate::simulator::store::{HistoryKind, HistoryStep};
use crate::{mutex::lock, object::ResourceType};

fn lived(seed: u64, steps: usize) -> (SharedStore, Vec<String>) {
    let store = SharedStore::new(5, HistoryLimits { changes: usize::MAX, bytes: usize::MAX });
    let mut workload = Workload::new(seed);
    workload.populate(&store, Sizes::default()).unwrap();
    let mut news = Vec::new();
    for step in 0..steps {
        workload.step(&store).unwrap_or_else(|error| panic!("step {step}: {error}"));
        news.extend(lock(&workload.news.0).drain(..));
    }
    (store, news)
}

fn types(store: &SharedStore) -> Vec<ResourceType> {
    store.lock().types().map(|(_, info)| info.resource.clone()).collect()
}

fn history(store: &SharedStore, resource: &str) -> Vec<HistoryStep> {
    let store = store.lock();
    let mut changes = Vec::new();
    store.read(store.find_name(resource).unwrap(), 0, usize::MAX, &mut changes).unwrap();
    changes
}

#[test]
fn same_seed_gives_same_history() {
    let run = |seed| {
        let (store, news) = lived(seed, 2_000);
        let names = |resource: &ResourceType| {
            let name = format!("{}.{}", resource.plural, resource.group);
            let objects = store.list(name.trim_end_matches('.'));
            objects.iter().map(|object| object.key().to_string()).collect::<Vec<_>>()
        };
        (store.version(), types(&store).iter().map(names).collect::<Vec<_>>(), news)
    };
    let first = run(9);
    assert!(first == run(9), "one seed, one history");
    assert!(first.2 != run(10).2, "another seed, another history");
    assert!(first.0 > 2_000, "{}", first.0);
}

#[test]
fn simulated_cluster_stays_bounded_and_varied() {
    let (store, news) = lived(3, 6_000);
    let pods = store.len("pods");
    assert!((150..400).contains(&pods), "{pods}");
    assert!(store.len("events") <= 400, "{}", store.len("events"));
    assert!(store.len("replicasets.apps") <= 40 * 4, "{}", store.len("replicasets.apps"));
    let many = types(&store).into_iter().filter(|resource| {
        let name = format!("{}.{}", resource.plural, resource.group);
        store.len(name.trim_end_matches('.')) > 0
    });
    assert!(many.count() >= 25);
    for part in ["rollout of", "rolled out", "type ", " was deleted", "namespace preview-", "labelled"] {
        assert!(news.iter().any(|news| news.contains(part)), "{part}: {news:?}");
    }
}

#[test]
fn owners_exist_with_the_referenced_uid() {
    let (store, _) = lived(4, 3_000);
    let resource = |kind: &str| match kind {
        "ReplicaSet" => "replicasets.apps",
        "StatefulSet" => "statefulsets.apps",
        "DaemonSet" => "daemonsets.apps",
        "Deployment" => "deployments.apps",
        "CronJob" => "cronjobs.batch",
        "Job" => "jobs.batch",
        "Service" => "services",
        other => panic!("an owner of kind {other}"),
    };
    let mut owned = 0;
    for of in ["pods", "replicasets.apps", "jobs.batch", "endpointslices.discovery.k8s.io"] {
        for object in store.list(of) {
            for owner in object.value()["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
                let text = |field: &str| owner[field].as_str().unwrap();
                let found = store.get(resource(text("kind")), object.key().as_ref().namespace, text("name"));
                let found = found.unwrap_or_else(|| panic!("{} of {}", owner, object.key())).value();
                assert_eq!(found["metadata"]["uid"], owner["uid"], "{of} {}", object.key());
                owned += 1;
            }
        }
    }
    assert!(owned > 250, "{owned}");
}

#[test]
fn rollout_replaces_pods_one_by_one() {
    let (store, _) = lived(1, 3_000);
    let number = |object: &Value, path: &str| object.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let mut ended = 0;
    for change in history(&store, "deployments.apps") {
        let deployment = change.new.value();
        let (wanted, there) = (number(&deployment, "/spec/replicas"), number(&deployment, "/status/replicas"));
        let updated = number(&deployment, "/status/updatedReplicas");
        assert!(there <= wanted + 1 && there + 1 >= wanted && updated <= there, "{deployment:#}");
        let observed = number(&deployment, "/status/observedGeneration");
        let generation = number(&deployment, "/metadata/generation");
        assert!(observed <= generation && observed + 1 >= generation, "{observed} {generation}");
        let was_rolling = change.old.is_some_and(|old| {
            let old = old.value();
            number(&old, "/status/updatedReplicas") < number(&old, "/status/replicas")
        });
        ended += usize::from(was_rolling && updated == there);
    }
    assert!(ended >= 20, "{ended} rollouts came to an end");
}

#[test]
fn custom_types_come_fill_and_go() {
    let (store, _) = lived(2, 2_000);
    let changes = history(&store, DEFINITIONS);
    let count = |kind| changes.iter().filter(|change| change.kind == kind).count();
    assert!(count(HistoryKind::Added) >= 5 && count(HistoryKind::Deleted) >= 4, "{}", changes.len());
    let namespaces = history(&store, "namespaces");
    let gone = namespaces.iter().filter(|change| change.kind == HistoryKind::Deleted).count();
    assert!(gone >= 4, "{gone}");
}
