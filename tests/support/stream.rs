//! Reads a file handler's events and checks the guarantees: E2, E3, and the final state.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde_json::Value;

/// `plural.group/namespace/name` → (uid, resourceVersion).
pub(crate) type State = BTreeMap<String, (String, String)>;

/// One stream, replayed from empty.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// State after the last event.
    pub(crate) state: State,
    /// Number of events after deduplication by id, including `synced`.
    pub(crate) events: usize,
    /// Number of events with a repeated id.
    pub(crate) duplicates: usize,
    /// Number of events by (type, cause).
    pub(crate) counts: BTreeMap<(String, String), usize>,
    seen: HashSet<String>,
    last_sequence: BTreeMap<String, String>,
    /// Objects that were `removed`: they may still exist, and be shown again at the same version with the same id.
    hidden: HashSet<String>,
}

/// Replays every line of the file, after its rotated files; panics with the line that breaks a guarantee.
pub(crate) fn replay(path: &Path) -> Replay {
    let mut replay = Replay::default();
    for file in files_of(path) {
        for_each_event(&file, |event| replay.push(event));
    }
    replay
}

/// Reads every line of the file.
pub(crate) fn read_events(path: &Path) -> Vec<Value> {
    let mut events = Vec::new();
    for_each_event(path, |event| events.push(event.clone()));
    events
}

/// Reads one line at a time: minutes of events do not fit into memory as values.
fn for_each_event(path: &Path, mut each: impl FnMut(&Value)) {
    let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let text: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "zst") {
        Box::new(zstd::Decoder::new(file).expect("a frame begins"))
    } else {
        Box::new(file)
    };
    for line in BufReader::new(text).lines() {
        let line = line.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        each(&serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON: {error}: {line}")));
    }
}

/// Returns the files of one handler path, oldest first: `NAME.20261121T064003.123456Z.zst`, …, `NAME`.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let beside = fs::read_dir(path.parent().expect("a file lies in a directory")).expect("the directory is readable");
    let mut files: Vec<PathBuf> = beside.map(|entry| entry.expect("the directory is readable").path()).collect();
    let name = path.file_name().expect("a file has a name").to_string_lossy();
    let rotated = format!("{name}.2");
    files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&rotated)));
    files.sort();
    files.push(path.to_owned());
    files
}

/// Checks the events of one resource type in one run against `docs/formats.md`: attributes, ids, causes, and
/// the position of `synced`.
pub(crate) fn check_events(events: &[Value], cluster: &str) {
    let mut synced_at = None;
    let mut initial = 0;
    for (at, event) in events.iter().enumerate() {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        assert_eq!(text("specversion"), "1.0", "{event}");
        assert_eq!(text("source"), format!("/clusters/{cluster}"), "{event}");
        assert_eq!(text("datacontenttype"), "application/json", "{event}");
        text("time").parse::<jiff::Timestamp>().unwrap_or_else(|error| panic!("{error}: {event}"));
        let kind = text("type").strip_prefix("dev.deltabus.resource.").unwrap_or_else(|| panic!("{event}"));
        if kind == "synced" {
            assert_eq!(synced_at.replace(at), None, "synced comes once: {event}");
            let version = event["data"]["resourceversion"].as_str().unwrap_or_default();
            assert_eq!(text("id"), format!("{}/{}.synced.{version}", text("apiversion"), text("resource")), "{event}");
            assert_eq!(event["data"]["objects"], initial, "synced counts the initial objects: {event}");
            continue;
        }
        match text("cause") {
            "initial" => {
                assert!(synced_at.is_none() && kind == "added", "initial after synced, or not added: {event}");
                initial += 1;
            }
            "watch" | "relist" | "resync" => assert!(synced_at.is_some(), "before synced: {event}"),
            // These depend on the configuration, not on the type: a file may change before the first list is complete.
            "reload" => {}
            "replay" => assert_eq!(kind, "added", "a late handler is shown what there is: {event}"),
            other => panic!("cause {other:?}: {event}"),
        }
        check_id(kind, event);
        check_subject(event);
    }
    assert!(synced_at.is_some(), "synced comes after the last initial event");
}

/// Checks that the same change has the same id: from uid and version, or from names if there is no uid.
fn check_id(kind: &str, event: &Value) {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let group = text("apiversion").split_once('/').map_or("", |(group, _)| group);
    let named = format!("{group}/{}/{}/{}", text("resource"), text("namespace"), text("name"));
    let object = if text("uid").is_empty() { named.as_str() } else { text("uid") };
    let expected = match kind {
        "deleted" => format!("{object}.deleted"),
        "removed" => format!("{object}.{}.removed", text("resourceversion")),
        _ => format!("{object}.{}", text("resourceversion")),
    };
    assert_eq!(text("id"), expected, "{event}");
}

/// Checks that the subject is the object's path, and that the object has its type.
fn check_subject(event: &Value) {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let root = if text("apiversion").contains('/') { "apis" } else { "api" };
    let namespace = match text("namespace") {
        "" => String::new(),
        namespace => format!("namespaces/{namespace}/"),
    };
    let subject = format!("/{root}/{}/{namespace}{}/{}", text("apiversion"), text("resource"), text("name"));
    assert_eq!(text("subject"), subject, "{event}");
    assert_eq!(event["data"]["object"]["kind"], event["kind"], "objects carry their kind: {event}");
    assert_eq!(event["data"]["object"]["apiVersion"], event["apiversion"], "objects carry their version: {event}");
    assert_eq!(event["data"]["object"]["metadata"]["managedFields"], Value::Null, "dropped by default: {event}");
}

/// Replays events in the order of delivery.
pub(crate) fn replay_events(events: &[Value]) -> Replay {
    let mut replay = Replay::default();
    for event in events {
        replay.push(event);
    }
    replay
}

impl Replay {
    /// Applies the next delivered event.
    pub(crate) fn push(&mut self, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type").strip_prefix("dev.deltabus.resource.").unwrap_or_default().to_owned();
        let (journal, sequence, cause) = (text("journal"), text("sequence"), text("cause"));
        assert_eq!(sequence.len(), 20, "sequence is padded to 20 digits: {event}");
        let before = self.last_sequence.get(&journal).cloned().unwrap_or_default();
        let again = match kind.as_str() {
            "added" => self.hidden.contains(&key_of(event)),
            "removed" => self.state.contains_key(&key_of(event)),
            _ => false,
        };
        let is_new = self.seen.insert(text("id")) || (again && before < sequence);
        if !is_new {
            self.duplicates += 1;
            return;
        }
        assert!(before < sequence, "E3: sequence {sequence} after {before}: {event}");
        self.last_sequence.insert(journal, sequence);
        self.events += 1;
        *self.counts.entry((kind.clone(), cause)).or_default() += 1;
        if kind == "synced" {
            return;
        }
        apply(&mut self.state, &kind, event);
        match kind.as_str() {
            "removed" => self.hidden.insert(key_of(event)),
            _ => self.hidden.remove(&key_of(event)),
        };
    }
}

/// Returns `plural.group/namespace/name`.
fn key_of(event: &Value) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    let path = format!("{}/{}", text("namespace"), text("name"));
    match text("apiversion").split_once('/') {
        Some((group, _)) => format!("{}.{group}/{path}", text("resource")),
        None => format!("{}/{path}", text("resource")),
    }
}

/// Checks E2: each object is Added, Updated*, Deleted, and possibly added again.
fn apply(state: &mut State, kind: &str, event: &Value) {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let key = key_of(event);
    let known = state.get(&key).cloned();
    let object = &event["data"]["object"]["metadata"];
    assert_eq!(object["name"], event["name"], "the object is the one that the attributes name: {event}");
    let new = (text("uid"), text("resourceversion"));
    match kind {
        "added" => {
            assert!(known.is_none(), "E2: {key} added twice, known as {known:?}: {event}");
            state.insert(key, new);
        }
        "updated" => {
            let (uid, version) = known.unwrap_or_else(|| panic!("E2: {key} updated before it was added: {event}"));
            assert_eq!(uid, new.0, "E2: {key} updated across a re-creation: {event}");
            assert_eq!(event["data"]["old"]["metadata"]["resourceVersion"], version, "old is the state shown before");
            state.insert(key, new);
        }
        "deleted" | "removed" => {
            let (uid, _) = known.unwrap_or_else(|| panic!("E2: {key} {kind} without having been added: {event}"));
            assert_eq!(uid, new.0, "E2: {key}: another object was {kind}: {event}");
            state.remove(&key);
        }
        other => panic!("unexpected type {other:?}: {event}"),
    }
}
