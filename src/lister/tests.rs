use std::sync::Arc;

use super::{FieldSelector, LabelSelector, Lister, ReadError, Selector};
use crate::{
    delta_fifo::{Delta, DeltaKind, Deltas, tests::object_with},
    indexer::{Indexer, index_func::IndexFunc, store::EvmapStore, store::StoreReader},
    object::{Identity, KeyRef, Object, ObjectKey, ResourceType},
};

fn pod(namespace: &str, name: &str, node: &str, app: &str) -> Object {
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"app":"{app}"}}}},"spec":{{"nodeName":"{node}"}}}}"#
    );
    let identity = Identity { namespace, name, uid: name, resource_version: "1" };
    Object::assemble(identity, &[json.as_bytes()])
}

fn filled() -> (Indexer, Lister<StoreReader>) {
    let functions = ["spec.nodeName", "labels['app']"].map(|index| IndexFunc::parse(index).unwrap());
    let either = IndexFunc::custom("either", |o| vec![o.name().to_owned(), o.namespace().to_owned()]);
    let mut indexer = Indexer::new(EvmapStore::new(1, functions.into_iter().chain([either])), <_>::default());
    let pods = [pod("a", "x", "n1", "web"), pod("a", "y", "n2", "db"), pod("b", "x", "n1", "db")];
    let deltas = pods.map(|object| Delta { kind: DeltaKind::Replaced, object }).into();
    let batch =
        Deltas { deltas, store_version: Some("9".into()), initial: true, completes_initial: true, ..<_>::default() };
    let transaction = indexer.plan(batch);
    indexer.commit(&transaction);
    indexer.publish();
    let resource = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Pod".into(),
        plural: "pods".into(),
        namespaced: true,
    };
    let lister = Lister::new(indexer.store().reader(), Arc::new(resource));
    (indexer, lister)
}

fn names(mut objects: Vec<Object>) -> Vec<String> {
    objects.sort_by(|a, b| a.key().cmp(&b.key()));
    objects.iter().map(|object| object.key().to_string()).collect()
}

fn labels(selector: &str) -> Selector {
    LabelSelector::parse(selector).unwrap().into()
}

/// Rules: I-5, L-1.
#[test]
fn missing_object_is_named() {
    let (_indexer, lister) = filled();
    assert_eq!(lister.get(KeyRef { namespace: "a", name: "x" }).unwrap().name(), "x");
    assert_eq!(lister.namespace("b").get("x").unwrap().namespace(), "b");
    let error = lister.namespace("b").get("y").unwrap_err();
    assert_eq!(error.to_string(), r#"pods "b/y" not found"#);
}

/// Rule: L-1.
#[test]
fn several_keys_are_answered_in_their_order() {
    let (_indexer, lister) = filled();
    let keys = ["b/x", "a/z", "a/x", "b/x"].map(|key| ObjectKey::parse(key).unwrap());
    let found = lister.get_all(keys.iter().map(ObjectKey::as_ref));
    let found: Vec<_> = found.iter().map(|object| object.as_ref().map(|object| object.key().to_string())).collect();
    assert_eq!(found, [Some("b/x".to_owned()), None, Some("a/x".to_owned()), Some("b/x".to_owned())]);
    assert!(lister.get_all([]).is_empty());
    lister.snapshot(|query| {
        for (key, expected) in keys.iter().zip(found) {
            assert_eq!(query.find(key.as_ref()).map(|object| object.key().to_string()), expected);
        }
    });
}

/// Rule: L-2.
#[test]
fn selectors_filter_and_empty_namespace_means_all() {
    let (_indexer, lister) = filled();
    assert_eq!(names(lister.list(&Selector::all())), ["a/x", "a/y", "b/x"]);
    assert_eq!(names(lister.list(&labels("app=db"))), ["a/y", "b/x"]);
    assert_eq!(names(lister.list(&labels("app=db,app=web"))), [""; 0]);
    assert_eq!(names(lister.namespace("").list(&labels("app!=db"))), ["a/x"]);
    let fields = |selector: &str| Selector::from(FieldSelector::parse(selector).unwrap());
    assert_eq!(names(lister.list(&fields("metadata.namespace=b"))), ["b/x"]);
    assert_eq!(names(lister.list(&fields("spec.nodeName=n1,metadata.namespace!=b"))), ["a/x"]);
}

/// Rule: L-3.
#[test]
fn namespace_is_listed_by_its_index() {
    let (_indexer, lister) = filled();
    assert_eq!(names(lister.namespace("a").list(&Selector::all())), ["a/x", "a/y"]);
    assert_eq!(names(lister.namespace("a").list(&labels("app in (db)"))), ["a/y"]);
    assert_eq!(names(lister.namespace("none").list(&Selector::all())), [""; 0]);
}

/// Rule: I-6.
#[test]
fn indexes_return_objects_sorted_keys_and_values() {
    let (_indexer, lister) = filled();
    assert_eq!(names(lister.by_index("spec.nodeName", "n1").unwrap()), ["a/x", "b/x"]);
    assert_eq!(names(lister.by_index("spec.nodeName", "n9").unwrap()), [""; 0]);
    let keys = lister.index_keys("labels['app']", "db").unwrap();
    assert_eq!(keys, [ObjectKey::new("a", "y"), ObjectKey::new("b", "x")]);
    assert_eq!(lister.list_index_values("spec.nodeName"), ["n1", "n2"]);
    assert_eq!(lister.list_index_values("none"), [""; 0]);
    let x = lister.get(KeyRef { namespace: "a", name: "x" }).unwrap();
    assert_eq!(names(lister.index("either", &x).unwrap()), ["a/x", "a/y", "b/x"]);
    let error = lister.by_index("none", "n1").unwrap_err();
    assert_eq!(error.to_string(), r#"pods has no index "none", only namespace, spec.nodeName, labels['app'], either"#);
    assert!(lister.index_keys("none", "").is_err() && lister.index("none", &x).is_err());
}

/// Rule: D-12.
#[test]
fn snapshot_reads_see_one_version() {
    let (mut indexer, lister) = filled();
    let (version, list, count) =
        lister.snapshot(|query| (query.version(), query.list(), query.by_index("spec.nodeName", "n1").unwrap().len()));
    assert_eq!((version.generation, version.resource_version.as_str(), list.len(), count), (1, "9", 3, 2));
    assert!(lister.has_synced());
    let deltas = vec![Delta { kind: DeltaKind::Updated, object: object_with("a/x", "x", "10", "") }];
    let transaction = indexer.plan(Deltas { deltas, ..<_>::default() });
    indexer.commit(&transaction);
    assert_eq!(lister.version(), version);
    indexer.publish();
    assert_eq!((lister.version().generation, lister.version().resource_version.as_str(), lister.len()), (2, "10", 3));
}

#[test]
fn objects_are_decoded_on_demand() {
    #[derive(serde::Deserialize)]
    struct Pod {
        spec: Spec,
    }
    #[derive(serde::Deserialize)]
    struct Spec {
        #[serde(rename = "nodeName")]
        node_name: String,
    }
    let (_indexer, lister) = filled();
    let pod: Pod = lister.namespace("a").get_as("y").unwrap();
    assert_eq!(pod.spec.node_name, "n2");
    assert_eq!(lister.list_as::<Pod>(&Selector::all()).unwrap().len(), 3);
    let error = lister.get_as::<String>(KeyRef { namespace: "a", name: "y" }).unwrap_err();
    assert!(matches!(error, ReadError::Undecodable { .. }), "{error}");
}
