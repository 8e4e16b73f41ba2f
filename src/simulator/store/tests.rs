use serde_json::{Value, json};

use super::*;
use crate::simulator::patch::PatchKind;

const NOW: &str = "2026-01-02T03:04:05Z";

fn context(part: Part) -> WriteContext<'static> {
    WriteContext { time: NOW, manager: "test", part }
}

struct Fixture {
    store: SimulatorStore,
    id: TypeId,
}

fn fixture(resource: &str) -> Fixture {
    let store = SimulatorStore::new(1, HistoryLimits::default());
    let id = store.find_name(resource).unwrap();
    Fixture { store, id }
}

impl Fixture {
    fn create(&mut self, name: &str, labels: &Value) -> Arc<Stored> {
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "n1"}});
        self.store.create(self.id, "default", object, &context(Part::Main)).unwrap()
    }

    fn patch(&mut self, name: &str, patch: Value, part: Part) -> Result<Arc<Stored>, ApiError> {
        let key = ObjectKey::new("default", name);
        self.store.patch(self.id, &key, patch, PatchKind::Merge, &context(part))
    }

    fn delete(&mut self, name: &str) -> Result<Deletion, ApiError> {
        let key = ObjectKey::new("default", name);
        self.store.delete(self.id, &key, &Preconditions::default(), &context(Part::Main))
    }

    fn page(&self, limit: usize, after: Option<Continue>) -> Result<ListedPage, ApiError> {
        self.store.list(self.id, &ListQuery { limit: Some(limit), after, ..ListQuery::default() })
    }
}

fn names(page: &ListedPage) -> Vec<String> {
    page.items.iter().map(|object| object.key().as_ref().name.to_owned()).collect()
}

#[test]
fn create_fills_in_server_fields() {
    let mut fixture = fixture("pods");
    let pod = fixture.create("a", &json!({"app": "web"})).value();
    let metadata = &pod["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["creationTimestamp"], NOW);
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert_eq!(metadata["resourceVersion"], fixture.store.version().to_string());
    assert_eq!(pod["status"]["phase"], "Pending");
    let managed = &metadata["managedFields"][0];
    assert_eq!(managed["manager"], "test");
    assert_eq!(managed["fieldsV1"]["f:metadata"], json!({"f:labels": {}}));
    assert_eq!(managed["fieldsV1"]["f:spec"], json!({}));
}

#[test]
fn later_writer_takes_fields_from_earlier_one() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({"app": "web"}));
    let pod = json!({"metadata": {"name": "a", "labels": {"app": "api"}}, "spec": {"nodeName": "n1"}});
    let context = WriteContext { manager: "other", ..context(Part::Main) };
    let key = ObjectKey::new("default", "a");
    let pod = fixture.store.update(fixture.id, &key, pod, &context).unwrap().value();
    let owns_labels =
        |at: usize| pod["metadata"]["managedFields"][at]["fieldsV1"]["f:metadata"].get("f:labels").is_some();
    assert_eq!((owns_labels(0), owns_labels(1)), (false, true), "{pod}");
}

#[test]
fn taken_name_fails_and_generated_name_is_unique() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({}));
    let object = json!({"metadata": {"name": "a"}});
    let error = fixture.store.create(fixture.id, "default", object, &context(Part::Main)).unwrap_err();
    assert_eq!((error.code, error.reason), (409, "AlreadyExists"));
    let object = json!({"metadata": {"generateName": "a-"}});
    let pod = fixture.store.create(fixture.id, "default", object, &context(Part::Main)).unwrap();
    assert_eq!(pod.key().as_ref().name.len(), 7);
    let error = fixture.store.create(fixture.id, "default", json!({}), &context(Part::Main)).unwrap_err();
    assert_eq!(error.code, 422);
}

#[test]
fn update_of_old_version_conflicts() {
    let mut fixture = fixture("pods");
    let old = fixture.create("a", &json!({})).value();
    fixture.patch("a", json!({"metadata": {"labels": {"x": "y"}}}), Part::Main).unwrap();
    let key = ObjectKey::new("default", "a");
    let error = fixture.store.update(fixture.id, &key, old, &context(Part::Main)).unwrap_err();
    assert_eq!((error.code, error.reason), (409, "Conflict"));
    let error = fixture.store.update(fixture.id, &ObjectKey::new("default", "b"), json!({}), &context(Part::Main));
    assert_eq!(error.unwrap_err().code, 404);
}

#[test]
fn generation_follows_spec_and_status_is_subresource() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({}));
    let pod = fixture.patch("a", json!({"metadata": {"labels": {"x": "y"}}}), Part::Main).unwrap().value();
    assert_eq!(pod["metadata"]["generation"], 1);
    let pod = fixture.patch("a", json!({"spec": {"x": 1}, "status": {"phase": "Failed"}}), Part::Main).unwrap().value();
    assert_eq!((&pod["metadata"]["generation"], &pod["status"]["phase"]), (&json!(2), &json!("Pending")));
    let pod = fixture.patch("a", json!({"spec": {"x": 2}, "status": {"phase": "Running"}}), Part::Status).unwrap();
    let pod = pod.value();
    assert_eq!((&pod["spec"]["x"], &pod["status"]["phase"]), (&json!(1), &json!("Running")));
    assert_eq!(pod["metadata"]["generation"], 2);
    let version = fixture.store.version();
    fixture.patch("a", json!({"status": {"phase": "Running"}}), Part::Status).unwrap();
    assert_eq!(fixture.store.version(), version, "a write that changes nothing makes no version");
}

#[test]
fn finalizers_delay_deletion() {
    let mut fixture = fixture("configmaps");
    fixture.create("a", &json!({}));
    fixture.patch("a", json!({"metadata": {"finalizers": ["x/y"]}}), Part::Main).unwrap();
    let Deletion::Waiting(held) = fixture.delete("a").unwrap() else { panic!("held") };
    assert_eq!(held.value()["metadata"]["deletionTimestamp"], NOW);
    let version = fixture.store.version();
    fixture.patch("a", json!({"metadata": {"finalizers": null}}), Part::Main).unwrap();
    let mut changes = Vec::new();
    fixture.store.read(fixture.id, version, 10, &mut changes).unwrap();
    assert_eq!(changes.iter().map(|change| change.kind).collect::<Vec<_>>(), [HistoryKind::Deleted]);
    assert_eq!(fixture.store.len(fixture.id), 0);
    assert_eq!(fixture.delete("a").unwrap_err().code, 404);
}

#[test]
fn deletion_shows_last_state_with_new_version() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({"app": "web"}));
    let before = fixture.store.version();
    let Deletion::Done(gone) = fixture.delete("a").unwrap() else { panic!("gone") };
    assert_eq!(gone.version(), before + 1);
    assert_eq!(gone.value()["metadata"]["resourceVersion"], (before + 1).to_string());
    assert_eq!(gone.value()["metadata"]["labels"]["app"], "web");
    assert!(gone.json().starts_with(br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a""#));
}

#[test]
fn pages_come_from_one_snapshot() {
    let mut fixture = fixture("pods");
    for name in ["a", "b", "c", "d", "e"] {
        fixture.create(name, &json!({}));
    }
    let first = fixture.page(2, None).unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first.next.as_ref().unwrap().remaining, Some(3));
    let token = first.next.unwrap().to_token();
    fixture.delete("d").unwrap();
    fixture.create("bb", &json!({}));
    fixture.patch("c", json!({"metadata": {"labels": {"late": "yes"}}}), Part::Main).unwrap();
    let second = fixture.page(2, Some(Continue::parse(&token).unwrap())).unwrap();
    assert_eq!(names(&second), ["c", "d"]);
    assert!(second.items[0].value()["metadata"]["labels"].get("late").is_none());
    assert_eq!(second.version, first.version);
    let third = fixture.page(2, second.next).unwrap();
    assert_eq!((names(&third), third.next.is_none()), (vec!["e".to_owned()], true));
}

#[test]
fn expired_token_is_410() {
    let mut fixture = fixture("pods");
    for name in ["a", "b", "c"] {
        fixture.create(name, &json!({}));
    }
    let first = fixture.page(1, None).unwrap();
    fixture.create("bb", &json!({}));
    fixture.store.compact(fixture.store.version());
    let error = fixture.page(1, first.next).unwrap_err();
    assert_eq!((error.code, error.reason), (410, "Expired"));
    for token in ["", "zz", "616", "ééé"] {
        assert_eq!(Continue::parse(token).unwrap_err().code, 400, "{token}");
    }
}

#[test]
fn watch_reads_from_version_until_compaction() {
    let mut fixture = fixture("pods");
    let start = fixture.store.version();
    for name in ["a", "b", "c"] {
        fixture.create(name, &json!({}));
    }
    let mut changes = Vec::new();
    let reached = fixture.store.read(fixture.id, start, 2, &mut changes).unwrap();
    assert_eq!((reached, changes.len()), (start + 2, 2));
    let reached = fixture.store.read(fixture.id, reached, 2, &mut changes).unwrap();
    assert_eq!((reached, changes.len()), (start + 3, 3));
    fixture.store.compact(start + 1);
    let error = fixture.store.read(fixture.id, start, 2, &mut changes).unwrap_err();
    assert_eq!(error.message, format!("too old resource version: {start} ({})", start + 1));
    assert!(fixture.store.check_watch(fixture.id, start + 1).is_ok());
}

#[test]
fn history_is_bounded_by_count_and_bytes() {
    for (bytes, kept) in [(usize::MAX, 3), (1, 0)] {
        let mut store = SimulatorStore::new(1, HistoryLimits { changes: 3, bytes });
        let id = store.find_name("configmaps").unwrap();
        for number in 0..10 {
            let object = json!({"metadata": {"name": format!("a{number}")}});
            store.create(id, "default", object, &context(Part::Main)).unwrap();
        }
        assert!(store.check_watch(id, store.version() - kept).is_ok());
        assert_eq!(store.check_watch(id, store.version() - kept - 1).unwrap_err().code, 410);
    }
}

/// Returns the kinds of the changes after `version`, and the result of `of` for each state.
fn told<T>(store: &SimulatorStore, id: TypeId, version: u64, of: impl Fn(&Value) -> T) -> Vec<(HistoryKind, T)> {
    let mut changes = Vec::new();
    store.read(id, version, 100, &mut changes).unwrap();
    changes.iter().map(|change| (change.kind, of(&change.new.value()))).collect()
}

fn book_definition() -> Value {
    json!({
        "metadata": {"name": "books.shop.io"},
        "spec": {"group": "shop.io", "scope": "Namespaced", "names": {"kind": "Book", "plural": "books"},
                 "versions": [{"name": "v1", "served": true, "storage": true}]},
    })
}

#[test]
fn definitions_add_and_remove_types_stepwise() {
    let Fixture { mut store, id } = fixture("customresourcedefinitions.apiextensions.k8s.io");
    let before = store.version();
    let created = store.create(id, "", book_definition(), &context(Part::Main)).unwrap().value();
    assert_eq!(created["status"]["conditions"], Value::Null);
    let conditions = |definition: &Value| {
        let conditions = definition["status"]["conditions"].as_array().into_iter().flatten();
        let text = |condition: &Value, name: &str| condition[name].as_str().unwrap().to_owned();
        conditions.map(|condition| text(condition, "reason") + "=" + &text(condition, "status")).collect::<Vec<_>>()
    };
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let expected = [
        (HistoryKind::Added, text(&[])),
        (HistoryKind::Modified, text(&["NoConflicts=True", "Installing=False"])),
        (HistoryKind::Modified, text(&["NoConflicts=True", "InitialNamesAccepted=True"])),
    ];
    assert_eq!(told(&store, id, before, conditions), expected);

    let books = store.find("shop.io", "v1", "books").unwrap();
    let book = json!({"spec": {"z": 1, "a": 2}, "metadata": {"name": "b", "annotations": {"n": "1"}}});
    let book = store.create(books, "default", book, &context(Part::Main)).unwrap();
    let shown = String::from_utf8(book.json().to_vec()).unwrap();
    assert!(shown.starts_with(r#"{"apiVersion":"shop.io/v1","kind":"Book","metadata":{"annotations":"#), "{shown}");

    let before = store.version();
    let key = ObjectKey::new("", "books.shop.io");
    let gone = store.delete(id, &key, &Preconditions::default(), &context(Part::Main)).unwrap();
    assert!(matches!(&gone, Deletion::Done(last) if last.value()["metadata"]["deletionTimestamp"] == NOW));
    assert!(store.find_name("books.shop.io").is_none() && store.is_removed(books));
    let last = |definition: &Value| conditions(definition).pop().unwrap();
    let expected = [
        (HistoryKind::Modified, "InstanceDeletionPending=True".to_owned()),
        (HistoryKind::Modified, "InstanceDeletionInProgress=True".to_owned()),
        (HistoryKind::Deleted, "InstanceDeletionInProgress=True".to_owned()),
    ];
    assert_eq!(told(&store, id, before, last), expected);
    assert_eq!(told(&store, books, before, |_| ()), [(HistoryKind::Deleted, ())]);
    let mut changes = Vec::new();
    store.read(books, before, 1, &mut changes).unwrap();
    assert!(changes[0].new.version() < store.version(), "its objects go before the definition does");

    store.create(id, "", book_definition(), &context(Part::Main)).unwrap();
    let again = store.find_name("books.shop.io").unwrap();
    assert!(again != books && store.len(again) == 0);
    assert_eq!(store.check_watch(again, before).unwrap_err().code, 410, "versions of the type before are of no use");
}

#[test]
fn object_finalizers_delay_definition_removal() {
    let Fixture { mut store, id } = fixture("customresourcedefinitions.apiextensions.k8s.io");
    store.create(id, "", book_definition(), &context(Part::Main)).unwrap();
    let books = store.find_name("books.shop.io").unwrap();
    let book = json!({"metadata": {"name": "b", "finalizers": ["shop.io/lent"]}});
    store.create(books, "default", book, &context(Part::Main)).unwrap();
    let key = ObjectKey::new("", "books.shop.io");
    let deletion = store.delete(id, &key, &Preconditions::default(), &context(Part::Main)).unwrap();
    assert!(matches!(deletion, Deletion::Waiting(_)) && store.is_terminating(books));
    let refused = store.create(books, "default", json!({"metadata": {"name": "c"}}), &context(Part::Main)).unwrap_err();
    assert_eq!(refused.code, 405);
    let released = json!({"metadata": {"finalizers": null}});
    let book = ObjectKey::new("default", "b");
    store.patch(books, &book, released, PatchKind::Merge, &context(Part::Main)).unwrap();
    assert!(store.is_removed(books) && store.get(id, &key).is_none());
}

#[test]
fn namespace_deletes_its_objects_and_goes_last() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({}));
    let Fixture { mut store, id } = fixture;
    let namespaces = store.find_name("namespaces").unwrap();
    let object = json!({"metadata": {"name": "default"}});
    store.create(namespaces, "", object.clone(), &context(Part::Main)).unwrap();
    let held = json!({"metadata": {"name": "held", "finalizers": ["x/y"]}});
    store.create(id, "default", held, &context(Part::Main)).unwrap();
    let before = store.version();
    let key = ObjectKey::new("", "default");
    store.delete(namespaces, &key, &Preconditions::default(), &context(Part::Main)).unwrap();
    assert_eq!(store.len(id), 1);
    let refused = store.create(id, "default", json!({"metadata": {"name": "b"}}), &context(Part::Main)).unwrap_err();
    assert_eq!(refused.details["causes"][0]["reason"], "NamespaceTerminating");
    let pod = ObjectKey::new("default", "held");
    store.patch(id, &pod, json!({"metadata": {"finalizers": null}}), PatchKind::Merge, &context(Part::Main)).unwrap();
    let phase = |namespace: &Value| namespace["status"]["phase"].as_str().unwrap().to_owned();
    let expected =
        [(HistoryKind::Modified, "Terminating".to_owned()), (HistoryKind::Deleted, "Terminating".to_owned())];
    assert_eq!(told(&store, namespaces, before, phase), expected);
    let kinds: Vec<_> = told(&store, id, before, |_| ()).into_iter().map(|(kind, ())| kind).collect();
    assert_eq!(kinds, [HistoryKind::Deleted, HistoryKind::Modified, HistoryKind::Deleted]);
    store.create(namespaces, "", object, &context(Part::Main)).unwrap();
    store.create(id, "default", json!({"metadata": {"name": "b"}}), &context(Part::Main)).unwrap();
}

#[test]
fn namespace_keeps_its_name_label() {
    let Fixture { mut store, id } = fixture("namespaces");
    let key = ObjectKey::new("", "a");
    let object = |labels: Value| json!({"metadata": {"name": "a", "labels": labels}});
    store.create(id, "", object(json!({"team": "x"})), &context(Part::Whole)).unwrap();
    let updated = store.update(id, &key, object(json!({"team": "y"})), &context(Part::Whole)).unwrap().value();
    assert_eq!(updated["metadata"]["labels"], json!({"team": "y", "kubernetes.io/metadata.name": "a"}));
    assert_eq!(updated["status"]["phase"], "Active");
}

#[test]
fn preconditions_must_hold() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({}));
    let key = ObjectKey::new("default", "a");
    let wrong = Preconditions { uid: Some("other".to_owned()), resource_version: None };
    let error = fixture.store.delete(fixture.id, &key, &wrong, &context(Part::Main)).unwrap_err();
    assert_eq!(error.code, 409);
}

#[test]
fn scale_changes_only_replicas() {
    let mut fixture = fixture("deployments.apps");
    let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]});
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": 2, "selector": selector}});
    let created = fixture.store.create(fixture.id, "default", web, &context(Part::Whole)).unwrap();
    let of_web = scale::of(&created.value());
    assert_eq!((&of_web["kind"], &of_web["spec"]), (&json!("Scale"), &json!({"replicas": 2})));
    assert_eq!(of_web["status"], json!({"replicas": 0, "selector": "app=web,tier"}));
    let patch = json!({"spec": {"replicas": 5, "paused": true}, "status": {"replicas": 9}});
    let scaled = fixture.patch("web", patch, Part::Scale).unwrap().value();
    assert_eq!(scaled["spec"], json!({"replicas": 5, "selector": selector}));
    assert_eq!((&scaled["metadata"]["generation"], &scaled["status"]), (&json!(2), &json!({})));
    let managed = scaled["metadata"]["managedFields"].as_array().unwrap();
    assert!(managed.iter().any(|entry| entry["subresource"] == "scale"), "{managed:?}");
    let key = ObjectKey::new("default", "web");
    let mut put = |scale: Value| {
        let written = fixture.store.update(fixture.id, &key, scale, &context(Part::Scale));
        written.map(|object| object.value()["spec"]["replicas"].clone()).map_err(|error| error.code)
    };
    assert_eq!(put(of_web.clone()), Err(409), "the version is checked");
    assert_eq!(put(json!({"metadata": {"name": "web"}, "spec": {}})), Ok(json!(0)));
    assert_eq!(put(json!({"metadata": {"uid": "other"}, "spec": {}})), Err(409));
    assert_eq!(put(json!({"metadata": {"name": "other"}, "spec": {}})), Err(400));
    assert_eq!(put(json!({"kind": "Deployment", "spec": {"replicas": 1}})), Err(400));
    assert_eq!(put(json!({"spec": {"replicas": -1}})), Err(422));
    assert_eq!(put(json!({"spec": {"replicas": "1"}})), Err(400));
    assert_eq!(put(json!({"spec": {"replicas": 1_u64 << 40}})), Err(400));
    assert_eq!(put(json!([])), Err(400));
}
