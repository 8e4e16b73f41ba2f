//! Data of the API server: objects of every type, one resourceVersion for all, and the history that watches read.
//!
//! [`SimulatorStore`] is pure: time and seed are arguments. [`SharedStore`](super::SharedStore) makes it usable by
//! several threads. Every state is serialised once, so that lists and watches return slices.
//!
//! **Invariants:** every change, of any type, gets a higher version than the changes before it. A type's history is ordered by
//! version, and has all changes after its `compacted` version. To get an old state, later changes are undone in the current one.

mod fields;
mod lifecycle;
pub(super) mod scale;
mod stored;
mod write;

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::json;

use super::{
    ApiError,
    random::Random,
    selector::RequestSelector,
    types::{TypeInfo, builtin},
};
use crate::object::ObjectKey;

use lifecycle::{Holds, Terminating};
pub(crate) use stored::HistoryKind;
pub use stored::RawObject;
pub(crate) use stored::Stored;
pub(crate) use write::Deletion;
pub(crate) use write::{Part, Preconditions, WriteContext};

/// Version of a new store.
const FIRST_VERSION: u64 = 100;

/// Index of a served type in the store; it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeId(usize);

/// One step of a type's history.
#[derive(Clone, Debug)]
pub(crate) struct HistoryStep {
    pub(crate) kind: HistoryKind,
    /// State after the change. For a deletion: the last state, but with the version of the deletion.
    pub(crate) new: Arc<Stored>,
    pub(crate) old: Option<Arc<Stored>>,
}

/// Position in a paged list, after the last object of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    /// Version of the snapshot.
    pub(crate) version: u64,
    pub(crate) after: ObjectKey,
    /// Number of remaining objects, if known.
    pub(crate) remaining: Option<usize>,
}

/// Parameters of a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListQuery {
    pub(crate) namespace: Option<String>,
    pub(crate) selector: RequestSelector,
    pub(crate) limit: Option<usize>,
    /// End of the previous page.
    pub(crate) after: Option<Continue>,
    /// An exact version; `None` for the current one.
    pub(crate) exact: Option<u64>,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub(crate) struct ListedPage {
    /// Objects in key order.
    pub(crate) items: Vec<Arc<Stored>>,
    pub(crate) version: u64,
    /// Position of the next page, if there is one.
    pub(crate) next: Option<Continue>,
}

/// Objects, versions and histories of all served types.
#[derive(Clone, Debug)]
pub(crate) struct SimulatorStore {
    types: Vec<TypeEntry>,
    version: u64,
    random: Random,
    limits: HistoryLimits,
    /// Deleted namespaces and definitions that still exist, because content or finalizers hold them.
    terminating: Vec<Terminating>,
}

/// Limits of the history that each type keeps for watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Maximum number of changes.
    pub changes: usize,
    /// Maximum total size of the states after these changes, in bytes.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { changes: 20_000, bytes: 512 << 20 }
    }
}

#[derive(Clone, Debug)]
struct TypeEntry {
    info: Arc<TypeInfo>,
    removed: bool,
    objects: BTreeMap<ObjectKey, Arc<Stored>>,
    history: VecDeque<HistoryStep>,
    history_bytes: usize,
    /// Version up to which changes were dropped.
    compacted: u64,
}

impl SimulatorStore {
    /// Creates a store with the built-in types and no objects; `seed` determines uids and generated names.
    pub(crate) fn new(seed: u64, limits: HistoryLimits) -> Self {
        let mut store = Self {
            types: Vec::new(),
            version: FIRST_VERSION,
            random: Random::another(seed), // a workload with the same seed must draw other uids
            limits,
            terminating: Vec::new(),
        };
        for info in builtin() {
            store.add_type(info);
        }
        store
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn types(&self) -> impl Iterator<Item = (TypeId, &Arc<TypeInfo>)> {
        self.types.iter().enumerate().filter(|(_, entry)| !entry.removed).map(|(at, entry)| (TypeId(at), &entry.info))
    }

    /// Finds a served type by group, version and plural.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<TypeId> {
        self.types().find_map(|(id, info)| {
            let resource = &info.resource;
            (resource.group == group && resource.version == version && resource.plural == plural).then_some(id)
        })
    }

    /// Finds a served type by kubectl's name: `pods`, `deployments.apps`.
    pub(crate) fn find_name(&self, name: &str) -> Option<TypeId> {
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        self.types()
            .find_map(|(id, info)| (info.resource.plural == plural && info.resource.group == group).then_some(id))
    }

    /// Returns a type's description, even if the type is no longer served.
    pub(crate) fn info(&self, id: TypeId) -> &Arc<TypeInfo> {
        &self.types[id.0].info
    }

    /// Returns true if the type was removed with its definition.
    pub(crate) fn is_removed(&self, id: TypeId) -> bool {
        self.types[id.0].removed
    }

    /// Returns true if the type's definition was deleted, so that its objects can no longer be created or changed.
    pub(crate) fn is_terminating(&self, id: TypeId) -> bool {
        self.terminating.iter().any(|thing| thing.holds == Holds::Type(Some(id)))
    }

    pub(crate) fn get(&self, id: TypeId, key: &ObjectKey) -> Option<&Arc<Stored>> {
        self.types[id.0].objects.get(key)
    }

    pub(crate) fn len(&self, id: TypeId) -> usize {
        self.types[id.0].objects.len()
    }

    /// Lists one page. 410 if its snapshot is older than the history.
    pub(crate) fn list(&self, id: TypeId, query: &ListQuery) -> Result<ListedPage, ApiError> {
        let entry = &self.types[id.0];
        let version = query.after.as_ref().map(|after| after.version).or(query.exact).unwrap_or(self.version);
        let objects = entry.objects_at(version).map_err(|oldest| match query.after {
            Some(_) => ApiError::expired_token(),
            None => ApiError::too_old(version, oldest),
        })?;
        let namespace = query.namespace.as_deref();
        let start = match (&query.after, namespace) {
            (Some(after), _) => Bound::Excluded(after.after.clone()),
            (None, Some(namespace)) => Bound::Included(ObjectKey::new(namespace, "")),
            (None, None) => Bound::Unbounded,
        };
        let limit = query.limit.unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let mut more = false;
        for object in objects.range((start, Bound::Unbounded)).map(|(_, object)| object) {
            if namespace.is_some_and(|namespace| object.key().as_ref().namespace != namespace) {
                break;
            }
            if !query.selector.matches(object.key().as_ref(), || object.facts(&entry.info)) {
                continue;
            }
            if items.len() == limit {
                more = true;
                break;
            }
            items.push(Arc::clone(object));
        }
        let whole = namespace.is_none() && query.selector.is_empty() && matches!(objects, Cow::Borrowed(_));
        let total = query.after.as_ref().map_or(whole.then_some(entry.objects.len()), |after| after.remaining);
        let remaining = total.and_then(|total| total.checked_sub(items.len()));
        let position = |last: &Arc<Stored>| Continue { version, after: last.key().clone(), remaining };
        let next = items.last().filter(|_| more).map(position);
        Ok(ListedPage { items, version, next })
    }

    /// Checks that a watch can start after `version`.
    pub(crate) fn check_watch(&self, id: TypeId, version: u64) -> Result<(), ApiError> {
        let oldest = self.types[id.0].compacted;
        if version < oldest { Err(ApiError::too_old(version, oldest)) } else { Ok(()) }
    }

    /// Copies up to `limit` changes after `version` into `into`. Returns the version from which the next read continues. 410 if
    /// changes after `version` were already dropped.
    pub(crate) fn read(
        &self,
        id: TypeId,
        version: u64,
        limit: usize,
        into: &mut Vec<HistoryStep>,
    ) -> Result<u64, ApiError> {
        self.check_watch(id, version)?;
        let history = &self.types[id.0].history;
        let start = history.partition_point(|change| change.new.version() <= version);
        into.extend(history.range(start..).take(limit).cloned());
        let read_all = history.len() - start <= limit;
        let last = into.last().map_or(version, |change| change.new.version());
        Ok(if read_all { self.version.max(version) } else { last })
    }

    /// Drops the history of every type up to `version`: watches and snapshots of earlier versions are then expired.
    pub(crate) fn compact(&mut self, version: u64) {
        let version = version.min(self.version);
        for entry in &mut self.types {
            while entry.history.front().is_some_and(|change| change.new.version() <= version) {
                entry.forget_oldest();
            }
            entry.compacted = entry.compacted.max(version);
        }
    }

    /// Creates or replaces objects exactly as given, without defaults, checks or managed fields. This is fast.
    pub(crate) fn ingest(&mut self, id: TypeId, objects: impl IntoIterator<Item = RawObject>) {
        for raw in objects {
            let kind = match self.get(id, &raw.key) {
                Some(_) => HistoryKind::Modified,
                None => HistoryKind::Added,
            };
            self.commit(id, kind, raw);
        }
    }

    /// Restores `backup` and its version, as if etcd were restored from a snapshot. The generator of uids is not reset, so that no
    /// uid occurs twice.
    pub(crate) fn restore(&mut self, backup: &Self) {
        *self = Self { random: self.random.clone(), ..backup.clone() };
    }

    fn add_type(&mut self, info: TypeInfo) -> TypeId {
        self.types.push(TypeEntry {
            info: Arc::new(info),
            removed: false,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            // watches of an earlier type with this name cannot continue
            compacted: if self.version > FIRST_VERSION { self.version } else { 0 },
        });
        TypeId(self.types.len() - 1)
    }

    fn commit(&mut self, id: TypeId, kind: HistoryKind, raw: RawObject) -> Arc<Stored> {
        self.version += 1;
        let entry = &mut self.types[id.0];
        let new = Arc::new(Stored::new(&entry.info, self.version, raw));
        let old = entry.objects.insert(new.key().clone(), Arc::clone(&new));
        entry.remember(HistoryStep { kind, new: Arc::clone(&new), old }, self.limits);
        new
    }

    /// Removes an object. Watches get `last` as its final state; if `last` is `None`, they get the current state.
    fn remove(&mut self, id: TypeId, key: &ObjectKey, last: Option<RawObject>) -> Option<Arc<Stored>> {
        let entry = &mut self.types[id.0];
        let old = entry.objects.remove(key)?;
        self.version += 1;
        let new = Arc::new(match last {
            Some(raw) => Stored::new(&entry.info, self.version, raw),
            None => old.restamped(self.version),
        });
        let kind = HistoryKind::Deleted;
        let change = HistoryStep { kind, new: Arc::clone(&new), old: Some(old) };
        entry.remember(change, self.limits);
        Some(new)
    }
}

impl TypeEntry {
    fn remember(&mut self, change: HistoryStep, limits: HistoryLimits) {
        self.history_bytes += change.new.size_bytes();
        self.history.push_back(change);
        while self.history.len() > limits.changes || self.history_bytes > limits.bytes {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(change) = self.history.pop_front() {
            self.history_bytes -= change.new.size_bytes();
            self.compacted = change.new.version();
        }
    }

    /// Returns the objects at `version`: the current ones with later changes undone. `Err` holds the oldest available version.
    fn objects_at(&self, version: u64) -> Result<Cow<'_, BTreeMap<ObjectKey, Arc<Stored>>>, u64> {
        if version < self.compacted {
            return Err(self.compacted);
        }
        let mut objects = Cow::Borrowed(&self.objects);
        for change in self.history.iter().rev().take_while(|change| change.new.version() > version) {
            match &change.old {
                Some(old) => objects.to_mut().insert(old.key().clone(), Arc::clone(old)),
                None => objects.to_mut().remove(change.new.key()),
            };
        }
        Ok(objects)
    }
}

impl Continue {
    /// Encodes the position as a token that is opaque to clients and safe in a query.
    pub(crate) fn to_token(&self) -> String {
        let key = self.after.as_ref();
        let plain = json!([self.version, self.remaining, key.namespace, key.name]).to_string();
        URL_SAFE_NO_PAD.encode(plain)
    }

    /// Decodes a token; 400 for a token from another source.
    pub(crate) fn parse(token: &str) -> Result<Self, ApiError> {
        let plain = URL_SAFE_NO_PAD.decode(token).ok();
        let parts = plain.and_then(|plain| serde_json::from_slice::<(_, _, String, String)>(&plain).ok());
        let (version, remaining, namespace, name) =
            parts.ok_or_else(|| ApiError::bad_request("continue key is not valid"))?;
        Ok(Self { version, after: ObjectKey::new(&namespace, &name), remaining })
    }
}

#[cfg(test)]
mod tests;
