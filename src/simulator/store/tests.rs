use serde_json::json;

use super::*;

const NOW: &str = "2026-01-02T03:04:05Z";

fn context(part: Part) -> WriteContext<'static> {
    WriteContext { time: NOW, manager: "test", part }
}

struct Fixture {
    store: Store,
    id: TypeId,
}

fn fixture(resource: &str) -> Fixture {
    let store = Store::new(1, HistoryLimits::default());
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

    fn page(&self, limit: usize, after: Option<Continue>) -> Result<Page, ApiError> {
        self.store.list(self.id, &ListQuery { limit: Some(limit), after, ..ListQuery::default() })
    }
}

fn names(page: &Page) -> Vec<String> {
    page.items.iter().map(|object| object.key().as_ref().name.to_owned()).collect()
}

#[test]
fn create_fills_in_what_the_server_owns() {
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
    assert_eq!(managed["fieldsV1"]["f:metadata"]["f:labels"]["f:app"], json!({}));
    assert_eq!(managed["fieldsV1"]["f:spec"]["f:nodeName"], json!({}));
}

#[test]
fn a_taken_name_is_already_exists_and_a_generated_name_is_fresh() {
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
fn an_update_of_an_old_version_conflicts() {
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
fn generation_follows_the_spec_and_status_is_a_subresource() {
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
fn finalizers_hold_a_deletion() {
    let mut fixture = fixture("configmaps");
    fixture.create("a", &json!({}));
    fixture.patch("a", json!({"metadata": {"finalizers": ["x/y"]}}), Part::Main).unwrap();
    let Deletion::Waiting(held) = fixture.delete("a").unwrap() else { panic!("held") };
    assert_eq!(held.value()["metadata"]["deletionTimestamp"], NOW);
    let version = fixture.store.version();
    fixture.patch("a", json!({"metadata": {"finalizers": null}}), Part::Main).unwrap();
    let mut changes = Vec::new();
    fixture.store.read(fixture.id, version, 10, &mut changes).unwrap();
    assert_eq!(changes.iter().map(|change| change.kind).collect::<Vec<_>>(), [ChangeKind::Deleted]);
    assert_eq!(fixture.store.len(fixture.id), 0);
    assert_eq!(fixture.delete("a").unwrap_err().code, 404);
}

#[test]
fn a_deletion_shows_the_last_state_under_its_own_version() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({"app": "web"}));
    let before = fixture.store.version();
    let Deletion::Done(gone) = fixture.delete("a").unwrap() else { panic!("gone") };
    assert_eq!(gone.version(), before + 1);
    assert_eq!(gone.value()["metadata"]["resourceVersion"], (before + 1).to_string());
    assert_eq!(gone.value()["metadata"]["labels"]["app"], "web");
    let (prefix, frame) = gone.frame(ChangeKind::Deleted);
    assert!(
        prefix.is_none()
            && frame.starts_with(br#"{"type":"DELETED","object":{"kind":"Pod""#)
            && frame.ends_with(b"}\n")
    );
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
fn an_expired_token_is_410_with_a_fresh_one() {
    let mut fixture = fixture("pods");
    for name in ["a", "b", "c"] {
        fixture.create(name, &json!({}));
    }
    let first = fixture.page(1, None).unwrap();
    fixture.create("bb", &json!({}));
    fixture.store.compact(fixture.store.version());
    let error = fixture.page(1, first.next).unwrap_err();
    assert_eq!((error.code, error.reason), (410, "Expired"));
    let fresh = Continue::parse(&error.continue_token.unwrap()).unwrap();
    let rest = fixture.page(10, Some(fresh)).unwrap();
    assert_eq!(names(&rest), ["b", "bb", "c"]);
    assert_eq!(rest.version, fixture.store.version());
    for token in ["", "zz", "616", "ééé"] {
        assert_eq!(Continue::parse(token).unwrap_err().code, 400, "{token}");
    }
}

#[test]
fn watches_read_on_from_a_version_until_it_is_compacted() {
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
    let limits = HistoryLimits { changes: 3, bytes: usize::MAX };
    let mut store = Store::new(1, limits);
    let id = store.find_name("configmaps").unwrap();
    for number in 0..10 {
        let object = json!({"metadata": {"name": format!("a{number}")}});
        store.create(id, "default", object, &context(Part::Main)).unwrap();
    }
    assert!(store.check_watch(id, store.version() - 3).is_ok());
    assert_eq!(store.check_watch(id, store.version() - 4).unwrap_err().code, 410);
    store.set_history(HistoryLimits { changes: 3, bytes: 1 });
    assert_eq!(store.check_watch(id, store.version() - 1).unwrap_err().code, 410);
    assert!(store.check_watch(id, store.version()).is_ok());
}

#[test]
fn definitions_add_and_remove_types() {
    let mut fixture = fixture("customresourcedefinitions.apiextensions.k8s.io");
    let definition = json!({
        "metadata": {"name": "books.shop.io"},
        "spec": {"group": "shop.io", "scope": "Namespaced", "names": {"kind": "Book", "plural": "books"},
                 "versions": [{"name": "v1", "served": true, "storage": true}]},
    });
    let created = fixture.store.create(fixture.id, "", definition, &context(Part::Main)).unwrap();
    assert_eq!(created.value()["status"]["conditions"][1]["type"], "Established");
    let books = fixture.store.find("shop.io", "v1", "books").unwrap();
    let book = json!({"spec": {"z": 1, "a": 2}, "metadata": {"name": "b", "annotations": {"n": "1"}}});
    let book = fixture.store.create(books, "default", book, &context(Part::Main)).unwrap();
    let text = String::from_utf8(book.json().to_vec()).unwrap();
    assert!(text.starts_with(r#"{"apiVersion":"shop.io/v1","kind":"Book","metadata":{"annotations":"#), "{text}");
    let key = ObjectKey::new("", "books.shop.io");
    fixture.store.delete(fixture.id, &key, &Preconditions::default(), &context(Part::Main)).unwrap();
    assert!(fixture.store.find_name("books.shop.io").is_none());
    assert!(fixture.store.is_removed(books));
    let mut changes = Vec::new();
    fixture.store.read(books, 0, 10, &mut changes).unwrap();
    assert_eq!(changes.last().unwrap().kind, ChangeKind::Deleted);
}

#[test]
fn a_namespace_takes_its_objects_with_it() {
    let mut fixture = fixture("pods");
    fixture.create("a", &json!({}));
    let namespaces = fixture.store.find_name("namespaces").unwrap();
    let object = json!({"metadata": {"name": "default"}});
    fixture.store.create(namespaces, "", object, &context(Part::Main)).unwrap();
    let key = ObjectKey::new("", "default");
    fixture.store.delete(namespaces, &key, &Preconditions::default(), &context(Part::Main)).unwrap();
    assert_eq!(fixture.store.len(fixture.id), 0);
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
