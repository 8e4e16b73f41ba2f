//! Store for several threads: a lock, a clock, and a signal to the watches.

use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    ApiError,
    patch::PatchKind,
    store::{
        Deletion, HistoryLimits, ListQuery, Part, Preconditions, RawObject, SimulatorStore, Stored, TypeId,
        WriteContext,
    },
    types::TypeInfo,
};
use crate::{mutex::lock, object::ObjectKey};

/// Manager name in `managedFields` for writes from within the process.
const MANAGER: &str = "simulator";

/// Namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Objects of a simulated cluster, for reads and writes from any thread without HTTP; clones share the objects.
///
/// Types have kubectl's names, such as `pods` or `deployments.apps`. Writes also set the status, and do not require that
/// the namespace exists. Every call takes one short lock; none waits for a client.
#[derive(Clone, Debug)]
pub struct SharedStore {
    store: Arc<Mutex<SimulatorStore>>,
    changed: watch::Sender<u64>,
}

/// A saved state of a cluster: see [`SharedStore::backup`].
#[derive(Clone, Debug)]
pub struct Backup(SimulatorStore);

impl SharedStore {
    /// Creates a store with the four namespaces that every cluster has.
    pub fn new(seed: u64, limits: HistoryLimits) -> Self {
        let store = SimulatorStore::new(seed, limits);
        let changed = watch::Sender::new(store.version());
        let shared = Self { store: Arc::new(Mutex::new(store)), changed };
        for name in NAMESPACES {
            let created = shared.create("namespaces", json!({"metadata": {"name": name}}));
            debug_assert!(created.is_ok(), "a new store has no namespaces");
        }
        shared
    }

    /// Creates an object; its namespace is `metadata.namespace`, by default `default`.
    pub fn create(&self, resource: &str, object: Value) -> Result<Arc<Stored>, ApiError> {
        self.write(resource, |store, id, context| {
            let key = key_of(store.info(id), &object);
            store.create(id, key.as_ref().namespace, object, context)
        })
    }

    /// Replaces an object; 409 if it has a resourceVersion other than the current one.
    pub fn update(&self, resource: &str, object: Value) -> Result<Arc<Stored>, ApiError> {
        self.write(resource, |store, id, context| {
            let key = key_of(store.info(id), &object);
            store.update(id, &key, object, context)
        })
    }

    /// Creates or replaces an object, whatever its version.
    pub fn put(&self, resource: &str, mut object: Value) -> Result<Arc<Stored>, ApiError> {
        self.write(resource, |store, id, context| {
            let key = key_of(store.info(id), &object);
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("resourceVersion");
            }
            match store.get(id, &key) {
                Some(_) => store.update(id, &key, object, context),
                None => store.create(id, key.as_ref().namespace, object, context),
            }
        })
    }

    /// Creates or replaces the objects of YAML manifests.
    pub(super) fn apply(&self, manifests: &str) -> Result<(), ApiError> {
        let invalid = |error: serde_saphyr::Error| ApiError::bad_request(error.to_string());
        for object in serde_saphyr::from_multiple::<Value>(manifests).map_err(invalid)? {
            let is_it = |info: &&Arc<TypeInfo>| {
                object["kind"] == *info.resource.kind && object["apiVersion"] == *info.resource.api_version()
            };
            let resource =
                self.lock().types().map(|(_, info)| info).find(is_it).map(|info| info.resource.qualified_name());
            self.put(&resource.ok_or_else(ApiError::no_such_path)?, object)?;
        }
        Ok(())
    }

    /// Merges `patch` (RFC 7386) into an object, status included.
    pub fn patch(&self, resource: &str, namespace: &str, name: &str, patch: Value) -> Result<Arc<Stored>, ApiError> {
        let key = ObjectKey::new(namespace, name);
        self.write(resource, |store, id, context| store.patch(id, &key, patch, PatchKind::Merge, context))
    }

    /// Deletes an object; if it has finalizers, only marks it for deletion.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<Deletion, ApiError> {
        let key = ObjectKey::new(namespace, name);
        self.write(resource, |store, id, context| store.delete(id, &key, &Preconditions::default(), context))
    }

    /// Returns one object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Stored>> {
        let store = self.lock();
        store.get(store.find_name(resource)?, &ObjectKey::new(namespace, name)).map(Arc::clone)
    }

    /// Returns all objects of a type, in key order; empty for a type that is not served.
    pub fn list(&self, resource: &str) -> Vec<Arc<Stored>> {
        let store = self.lock();
        let page = store.find_name(resource).map(|id| store.list(id, &ListQuery::default()));
        page.and_then(Result::ok).map_or_else(Vec::new, |page| page.items)
    }

    /// Returns the number of objects of a type; 0 for a type that is not served.
    pub fn len(&self, resource: &str) -> usize {
        let store = self.lock();
        store.find_name(resource).map_or(0, |id| store.len(id))
    }

    /// Returns the version of the last change.
    pub fn version(&self) -> u64 {
        self.lock().version()
    }

    /// Creates or replaces objects exactly as given, under one lock. This is a fast path for benches.
    pub fn ingest(&self, resource: &str, objects: impl IntoIterator<Item = RawObject>) -> Result<(), ApiError> {
        self.change(|store| {
            let id = store.find_name(resource).ok_or_else(ApiError::no_such_path)?;
            store.ingest(id, objects);
            Ok(())
        })
    }

    /// Drops the history: every version except the current one is expired (410).
    pub fn compact(&self) {
        self.change(|store| store.compact(store.version()));
    }

    /// Saves the current state for [`SharedStore::restore`].
    pub fn backup(&self) -> Backup {
        Backup(self.lock().clone())
    }

    /// Restores a saved state and its version, as if etcd were restored from a snapshot. Open watches stay open. A watch receives
    /// no events until the version of the store exceeds the last version that the watch has read.
    pub fn restore(&self, Backup(backup): &Backup) {
        self.change(|store| store.restore(backup));
    }

    /// Takes the lock. After a write, the caller passes the guard to [`SharedStore::announce`].
    pub(super) fn lock(&self) -> MutexGuard<'_, SimulatorStore> {
        // a panic in a writer leaves a consistent state, because each commit is one step
        lock(&self.store)
    }

    /// Wakes the watches after a write.
    pub(super) fn announce(&self, store: MutexGuard<'_, SimulatorStore>) {
        let version = store.version();
        drop(store);
        self.changed.send_replace(version);
    }

    /// Returns a signal that fires after every write.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn write<T>(
        &self,
        resource: &str,
        act: impl FnOnce(&mut SimulatorStore, TypeId, &WriteContext<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let time = now();
        self.change(|store| {
            let id = store.find_name(resource).ok_or_else(ApiError::no_such_path)?;
            act(store, id, &WriteContext { time: &time, manager: MANAGER, part: Part::Whole })
        })
    }

    /// Changes the store under its lock, and wakes the watches.
    fn change<T>(&self, change: impl FnOnce(&mut SimulatorStore) -> T) -> T {
        let mut store = self.lock();
        let changed = change(&mut store);
        self.announce(store);
        changed
    }
}

/// Returns the current time in the API server's format.
pub(super) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn key_of(info: &TypeInfo, object: &Value) -> ObjectKey {
    let text = |name: &str| object["metadata"][name].as_str();
    let namespace = if info.resource.namespaced { text("namespace").unwrap_or("default") } else { "" };
    ObjectKey::new(namespace, text("name").unwrap_or_default())
}
