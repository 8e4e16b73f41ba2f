//! Model of one collection of an API server.

use std::collections::{BTreeMap, VecDeque};

use super::{expired, status, too_large};
use crate::{
    list_watch::{Failure, ListPage, ListRequest, WatchEvent, WatchRequest},
    object::{Identity, Object, ResourceVersion},
};

/// A collection with its history, like etcd and the watch cache. Pure: no clock, no I/O.
///
/// Versions begin at 100 and increase by one with each change. The collection behaves correctly; its users add faults.
#[derive(Clone, Debug)]
pub(crate) struct Collection {
    version: u64,
    /// State at the oldest available version.
    base: BTreeMap<String, Object>,
    compacted: u64,
    history: VecDeque<Entry>,
    objects: BTreeMap<String, Object>,
    created: u64,
    /// Namespaces of objects outside of `default`, by the name of the object.
    namespaces: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Entry {
    version: u64,
    event: WatchEvent,
}

/// Position of a watch of a [`Collection`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Undelivered initial events: synthetic events and the marker.
    pub(crate) initial: VecDeque<WatchEvent>,
    /// Version after which the watch continues when all initial events are delivered.
    pub(crate) version: u64,
}

impl Default for Collection {
    fn default() -> Self {
        Self {
            version: 100,
            base: BTreeMap::new(),
            compacted: 100,
            history: VecDeque::new(),
            objects: BTreeMap::new(),
            created: 0,
            namespaces: BTreeMap::new(),
        }
    }
}

impl Collection {
    /// Returns a collection in which the objects with these names are in `namespace`. All others are in `default`.
    pub(crate) fn with_namespace(mut self, namespace: &str, names: &[&str]) -> Self {
        self.namespaces.extend(names.iter().map(|name| ((*name).to_owned(), namespace.to_owned())));
        self
    }

    /// Returns the namespace of the objects with this name.
    pub(crate) fn namespace(&self, name: &str) -> &str {
        self.namespaces.get(name).map_or("default", String::as_str)
    }

    /// Returns the version of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the current state: name → version.
    pub(crate) fn state(&self) -> BTreeMap<String, String> {
        self.objects.values().map(|object| (object.name().to_owned(), object.resource_version().to_owned())).collect()
    }

    /// Creates or changes an object.
    pub(crate) fn put(&mut self, name: &str) {
        self.version += 1;
        let event = if let Some(old) = self.objects.get(name) {
            WatchEvent::Modified(self.object(name, old.uid(), self.version))
        } else {
            self.created += 1;
            WatchEvent::Added(self.object(name, &format!("uid-{}", self.created), self.version))
        };
        self.push(event);
    }

    /// Writes an existing object again: only its version changes.
    pub(crate) fn touch(&mut self, name: &str) {
        let Some(old) = self.objects.get(name) else { return };
        self.version += 1;
        let event = WatchEvent::Modified(self.object(name, old.uid(), changed_at(old)));
        self.push(event);
    }

    /// Deletes an object if it exists.
    pub(crate) fn delete(&mut self, name: &str) {
        let Some(old) = self.objects.get(name) else { return };
        self.version += 1;
        let event = WatchEvent::Deleted(self.object(name, old.uid(), changed_at(old)));
        self.push(event);
    }

    /// Increases the version without a change here, as if another collection had changed.
    pub(crate) fn advance(&mut self) {
        self.version += 1;
    }

    /// Drops the history: every version except the newest is expired.
    pub(crate) fn compact(&mut self) {
        self.base.clone_from(&self.objects);
        self.compacted = self.version;
        self.history.clear();
    }

    /// Answers a list (A-2). If the request accepts an older state, the list is out of date by up to `lag` versions.
    pub(crate) fn list(&self, request: &ListRequest, lag: u64, watch_cache: bool) -> Result<ListPage, Failure> {
        let (version, offset) = match &request.continue_token {
            Some(token) => parse_token(token).ok_or_else(|| status(400))?,
            None => (self.version_to_list(request, lag, watch_cache)?, 0),
        };
        if version < self.compacted {
            return Err(expired());
        }
        let state: Vec<_> = self.state_at(version).into_values().collect();
        let unpaged = watch_cache && request.resource_version.is_any();
        let limit = request.limit.filter(|_| !unpaged).map_or(usize::MAX, |limit| limit as usize);
        let items: Vec<_> = state.iter().skip(offset).take(limit).cloned().collect();
        let end = offset + items.len();
        Ok(ListPage {
            resource_version: version.to_string().as_str().into(),
            continue_token: (end < state.len()).then(|| format!("{version}/{end}")),
            items,
            rejected: 0,
        })
    }

    fn version_to_list(&self, request: &ListRequest, lag: u64, watch_cache: bool) -> Result<u64, Failure> {
        let asked = &request.resource_version;
        if asked.is_unset() {
            return Ok(self.version);
        }
        let stale = self.version.saturating_sub(lag).max(self.compacted);
        if asked.is_any() {
            return Ok(if watch_cache { stale } else { self.version });
        }
        let asked: u64 = asked.as_str().parse().map_err(|_| status(400))?;
        match request.limit {
            _ if asked > self.version => Err(too_large()),
            Some(_) => Ok(asked),
            None => Ok(stale.max(asked)),
        }
    }

    /// Opens a watch (A-3, A-4). A streaming list begins with a state that is up to `lag` versions old. The later changes follow
    /// this state. If `marker` is true, the marker follows the changes.
    pub(crate) fn watch(&self, request: &WatchRequest, marker: bool, lag: u64) -> Result<Cursor, Failure> {
        let asked = &request.resource_version;
        let asked_number = match asked.as_str() {
            "" | "0" => 0,
            text => text.parse::<u64>().map_err(|_| status(400))?,
        };
        if asked_number > self.version {
            return Err(too_large());
        }
        if !request.initial_events && asked_number > 0 {
            return if asked_number < self.compacted {
                Err(expired())
            } else {
                Ok(Cursor { initial: VecDeque::new(), version: asked_number })
            };
        }
        let lag = if request.initial_events { lag } else { 0 };
        let from = self.version.saturating_sub(lag).max(self.compacted);
        let mut initial: VecDeque<_> = self.state_at(from).into_values().rev().map(WatchEvent::Added).collect();
        initial.extend(self.history.iter().filter(|entry| entry.version > from).map(|entry| entry.event.clone()));
        if request.initial_events && marker {
            initial.push_back(bookmark(self.version, true));
        }
        Ok(Cursor { initial, version: self.version })
    }

    /// Returns up to `most` events that `cursor` has not seen.
    pub(crate) fn poll(&self, cursor: &mut Cursor, most: usize) -> Vec<WatchEvent> {
        let mut batch: Vec<_> = cursor.initial.drain(..most.min(cursor.initial.len())).collect();
        if !cursor.initial.is_empty() || batch.len() == most {
            return batch;
        }
        if cursor.version < self.compacted {
            batch.extend(expired().status().cloned().map(WatchEvent::Error));
            return batch;
        }
        let from = self.history.partition_point(|entry| entry.version <= cursor.version);
        for entry in self.history.range(from..).take(most - batch.len()) {
            cursor.version = entry.version;
            batch.push(entry.event.clone());
        }
        batch
    }

    /// Moves `cursor` to the current version, and returns a bookmark at this version. `None` if the watch has undelivered events.
    pub(crate) fn bookmark(&self, cursor: &mut Cursor) -> Option<WatchEvent> {
        let pending = !cursor.initial.is_empty()
            || cursor.version < self.compacted
            || self.history.back().is_some_and(|entry| entry.version > cursor.version);
        if pending {
            return None;
        }
        cursor.version = self.version;
        Some(bookmark(self.version, false))
    }

    fn push(&mut self, event: WatchEvent) {
        apply(&mut self.objects, &event);
        self.history.push_back(Entry { version: self.version, event });
    }

    fn state_at(&self, version: u64) -> BTreeMap<String, Object> {
        let mut state = self.base.clone();
        for entry in self.history.iter().take_while(|entry| entry.version <= version) {
            apply(&mut state, &entry.event);
        }
        state
    }

    /// Creates an object with the current version, whose content last changed at version `changed_at`.
    fn object(&self, name: &str, uid: &str, changed_at: u64) -> Object {
        let (namespace, version) = (self.namespace(name), self.version.to_string());
        let identity = Identity { namespace, name, uid, resource_version: &version };
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"namespace":"{namespace}","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}},"data":{{"changedAt":"{changed_at}"}}}}"#
        );
        Object::assemble(identity, &[json.as_bytes()])
    }
}

/// Returns the version at which the content of a [`Collection`]'s object last changed. Writes that only changed the version do not
/// count.
///
/// # Panics
/// If the object is not from a [`Collection`].
pub(crate) fn changed_at(object: &Object) -> u64 {
    let value = object.value().expect("an object is JSON");
    value["data"]["changedAt"].as_str().and_then(|version| version.parse().ok()).expect("it says so")
}

fn apply(state: &mut BTreeMap<String, Object>, event: &WatchEvent) {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            state.insert(object.name().to_owned(), object.clone());
        }
        WatchEvent::Deleted(object) => {
            state.remove(object.name());
        }
        _ => {}
    }
}

fn bookmark(version: u64, initial_events_end: bool) -> WatchEvent {
    WatchEvent::Bookmark { resource_version: ResourceVersion::from(version.to_string().as_str()), initial_events_end }
}

fn parse_token(token: &str) -> Option<(u64, usize)> {
    let (version, offset) = token.split_once('/')?;
    Some((version.parse().ok()?, offset.parse().ok()?))
}
