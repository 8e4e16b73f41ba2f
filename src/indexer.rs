//! The cache of one unit: objects by key, and named indexes. Every read sees one published version (rules I-1 … I-13).
//!
//! [`Indexer`] turns [`Deltas`] into a [`Transaction`] of [`Change`]s, and applies the transaction. `indexer/store.rs` defines the
//! map that readers see. `indexer/writer.rs` appends each transaction to the journal, then publishes it to readers, then releases
//! its records.

pub(crate) mod actor;
pub(crate) mod index_func;
#[cfg(test)]
mod model_tests;
mod posting;
pub(crate) mod siblings;
pub(crate) mod slot;
pub(crate) mod store;
pub(crate) mod union;
pub(crate) mod view;
pub(crate) mod writer;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use foldhash::quality::FixedState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    index_func::IndexFunc,
    store::{EvmapStore, IndexExists, KeyHasher, ReadStore as _},
};
use crate::{
    change::{Cause, Change, Reached},
    delta_fifo::{Delta, DeltaKind, Deltas, is_same_state},
    journal::AttachmentKind,
    object::{IgnoredPaths, Keep, KeyRef, Object, ResourceVersion},
};

/// Treatment of an object that has a known name and a new uid (D-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recreated {
    /// The old object is deleted and the new one is added.
    #[default]
    DeleteAdd,
    /// The object is updated.
    Update,
}

/// Options of a unit's indexer.
#[derive(Clone, Debug, Default)]
pub struct IndexerOptions {
    /// Set when the unit watches through a label or field selector. An object that the selector no longer matches may still exist
    /// on the server. Its change is therefore [`Change::Removed`] and not [`Change::Deleted`].
    pub selective: bool,
    /// See [`Recreated`].
    pub recreated: Recreated,
    /// Ignored paths. An update that changes only these paths is [`Change::Refreshed`]. This applies to watches and lists, also
    /// after a restart. The option has no effect if the cache keeps no bodies.
    pub ignored: Option<Arc<IgnoredPaths>>,
    /// Part of each object that the cache keeps. If the cache keeps no bodies, an update has no `old`, and a tombstone contains
    /// only a stub. Only the index `namespace` is then complete: all other indexes are built from the stubs.
    pub keep: Keep,
}

/// Facts for the comparison of the first list with an earlier cache, or with an empty cache.
///
/// Used until the first list is applied, even if the actor restarts meanwhile. Has no effect if the cache is already synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstList {
    /// Cause of the changes that the first list makes. [`Cause::Initial`] if there was no earlier cache. With any other cause,
    /// unchanged objects are stored again, because the earlier cache may have kept other parts of their bodies.
    pub cause: Cause,
    /// Set when the continued cache has bodies, not stubs.
    pub bodies: bool,
    /// Set when the continued cache covers the whole scope of this unit. Clients can then read the cache before the list arrives.
    pub complete: bool,
}

impl Default for FirstList {
    fn default() -> Self {
        Self { cause: Cause::Initial, bodies: true, complete: false }
    }
}

/// Time in which a unit with a saved cache received nothing from the server: from the newest saved state to the first data after
/// the start. If the first data is a list, its changes have the cause [`Cause::Downtime`].
///
/// The absence ends with the first watch event, bookmark or list, and never begins again. The unit and its indexer share one
/// `Absence`, also after restarts of the actors. The default is an absence that has already ended.
#[derive(Clone, Debug, Default)]
pub struct Absence(Arc<AbsenceState>);

#[derive(Debug, Default)]
struct AbsenceState {
    lasts: AtomicBool,
    /// Set when a handler rejects changes that were made during the absence.
    is_named: AtomicBool,
    /// Version of the server at the end of the absence. Stored only if `is_named` is set.
    until: OnceLock<ResourceVersion>,
}

impl Absence {
    /// Returns the absence of a unit that starts with a saved cache.
    pub fn begun() -> Self {
        Self(Arc::new(AbsenceState { lasts: AtomicBool::new(true), ..AbsenceState::default() }))
    }

    /// Returns true until the absence ends.
    pub fn lasts(&self) -> bool {
        self.0.lasts.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.0.lasts.store(false, Ordering::Release);
    }

    /// Gives watch events the cause [`Cause::Downtime`] if their changes were made during the absence. Call this function if a
    /// handler rejects changes with this cause.
    pub fn be_named(&self) {
        self.0.is_named.store(true, Ordering::Release);
    }

    /// Notes the current version of the server, read before any other data. Changes up to this version happened during the
    /// absence.
    pub(crate) fn server_is_at(&self, version: &ResourceVersion) {
        if self.lasts() && self.0.is_named.load(Ordering::Acquire) {
            let _noted_before = self.0.until.set(version.clone());
        }
    }

    /// Returns true if `version` is not newer than `until`. The change that made `version` then happened during the absence.
    fn saw_nothing_of(&self, version: &str) -> bool {
        self.0.until.get().and_then(|until| until.compare_text(version)).is_some_and(std::cmp::Ordering::is_ge)
    }
}

/// A planned batch: its changes are appended to the journal, and then committed.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Changes in the order of the deltas; a [`Change::Synced`] is last.
    pub changes: Vec<Change>,
    /// Versions that the store reaches with the commit.
    pub reached: Reached,
    /// Number of objects in the cache after the commit.
    pub objects: u64,
    /// Set when unchanged objects must be stored too, because their bodies may differ from the cached bodies.
    replaces_bodies: bool,
    /// Set when the server sent data: an event, a bookmark or a list.
    heard: bool,
}

impl Transaction {
    /// Returns true if the batch completes the initial state of the unit.
    pub fn completes_initial(&self) -> bool {
        matches!(self.changes.last(), Some(Change::Synced { .. }))
    }

    /// Sets the number of objects in the last change to `total`, the number for all units of the type. If `total` is `None`, removes
    /// this change: another unit is not synced, or the type was synced before. Does nothing if it is not a [`Change::Synced`].
    pub fn set_total(&mut self, total: Option<u64>) {
        match (self.changes.last_mut(), total) {
            (Some(Change::Synced { objects, .. }), Some(total)) => *objects = total,
            (Some(Change::Synced { .. }), None) => drop(self.changes.pop()),
            _ => {}
        }
    }
}

/// The cache of one unit.
///
/// Each batch is processed in the order **plan → append → commit → publish**; `IndexerWriter` appends it to the journal. `commit`
/// sets the state of every key in the batch. So after a crash between append and publish, `commit` can be repeated: the result is
/// the same.
///
/// After a crash, keep the store: readers of a dropped store find no objects. Call [`Indexer::discard`] to remove staged changes.
/// If a transaction was appended but not published, commit it again and publish.
pub struct Indexer<H = FixedState> {
    store: EvmapStore<H>,
    options: IndexerOptions,
    first_list: FirstList,
    absence: Absence,
}

impl<H: KeyHasher> Indexer<H> {
    /// Returns an indexer over the content of `store`.
    pub fn new(store: EvmapStore<H>, options: IndexerOptions) -> Self {
        Self { store, options, first_list: FirstList::default(), absence: Absence::default() }
    }

    /// Sets the comparison base of the first list; see [`FirstList`].
    #[must_use]
    pub fn with_first_list(self, first_list: FirstList) -> Self {
        Self { first_list, ..self }
    }

    /// Sets the absence, for a store with a saved cache; see [`Absence`].
    #[must_use]
    pub fn with_absence(self, absence: Absence) -> Self {
        Self { absence, ..self }
    }

    /// Returns the changes that `deltas` make, without applying them (C-2, C-3, I-2, I-3, D-7, D-10, S-4, I-11).
    pub fn plan(&self, deltas: Deltas) -> Transaction {
        let meta = self.store.meta();
        let store_version = match deltas.store_version {
            None => deltas.deltas.last().and_then(version_reached),
            version => version.filter(|version| !version.is_unset()),
        };
        let store_version = store_version.unwrap_or_else(|| meta.store_version.clone());
        let cached = self.store.get_all(deltas.deltas.iter().map(|delta| delta.object.key()));
        let heard = deltas.resume_version.is_some() || deltas.deltas.iter().any(|delta| !delta.kind.is_sync());
        let mut plan = Plan::over(self, deltas.deltas.len(), deltas.initial);
        for (delta, cached) in deltas.deltas.into_iter().zip(cached) {
            plan.add(delta, cached);
        }
        let Plan { mut changes, objects, replaces_bodies, .. } = plan;
        if deltas.completes_initial && !meta.synced {
            changes.push(Change::Synced { objects, resource_version: store_version.clone() });
        }
        let reached = Reached {
            generation: meta.generation + 1,
            store_version,
            resume_version: deltas.resume_version.unwrap_or_else(|| meta.resume_version.clone()),
            synced: meta.synced || deltas.completes_initial,
        };
        Transaction { changes, reached, objects, replaces_bodies, heard }
    }

    /// Stages a transaction. May be repeated.
    pub fn commit(&mut self, transaction: &Transaction) {
        for change in &transaction.changes {
            match change {
                Change::Added { object, .. } | Change::Updated { object, .. } | Change::Refreshed { object } => {
                    self.put(object);
                }
                Change::Deleted { object, .. } | Change::Removed { object, .. } => self.store.remove(object.key()),
                Change::Unchanged { object, .. } if transaction.replaces_bodies => self.put(object),
                Change::Unchanged { .. } | Change::Synced { .. } => {}
            }
        }
        self.store.reach(transaction.reached.clone());
        if transaction.heard {
            self.absence.end();
        }
    }

    fn put(&mut self, object: &Object) {
        put_kept(&mut self.store, &self.options.keep, object);
    }

    /// Shows committed changes to readers. May wait for a reader; see [`EvmapStore::publish`].
    pub fn publish(&mut self) {
        self.store.publish();
    }

    /// Frees the values that the last call of `publish` replaced. Call this function when no further batch has come for a while.
    pub fn publish_idle(&mut self) {
        self.store.publish_idle();
    }

    /// Replaces cached objects with `forms`, other encodings of the same states, and publishes the forms. Call it while there are
    /// no unpublished commits. For readers nothing changes: neither the states nor the version of the cache.
    pub fn replace(&mut self, forms: &[Object]) {
        let states = self.store.get_all(forms.iter().map(Object::key));
        for (form, state) in forms.iter().zip(states) {
            if state.is_some_and(|state| is_same_state(&state, form)) {
                self.store.replace(form);
            }
        }
        self.store.publish();
    }

    /// Discards commits that are not published.
    pub fn discard(&mut self) {
        self.store.discard();
    }

    /// Adds indexes over the content of the cache, and publishes them before it returns (I-7). Adds none if a name exists
    /// already.
    pub fn add_indexers(&mut self, indexes: Vec<IndexFunc>) -> Result<(), IndexExists> {
        self.store.add_indexes(indexes)?;
        self.store.publish();
        Ok(())
    }

    /// Returns all objects that readers see, in the order of keys.
    pub fn objects(&self) -> Vec<Object> {
        let mut objects = Vec::new();
        self.store.reader().read(|snapshot| snapshot.for_each(&mut |object| objects.push(object.clone())));
        objects.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
        objects
    }

    /// Returns the store, from which readers can be made.
    pub fn store(&self) -> &EvmapStore<H> {
        &self.store
    }
}

/// Stages the part of `object` that `keep` selects. For a whole body, the index values are read from `object`, because the stored
/// form may be packed. For a stub, the index values are read from the stub, so that index and stub match.
pub(crate) fn put_kept<H: KeyHasher>(store: &mut EvmapStore<H>, keep: &Keep, object: &Object) {
    match keep.of(object) {
        kept if keep.is_whole() => store.put_as(&kept, object),
        stub => store.put(&stub),
    }
}

/// Changes planned so far, and the resulting state of the cache.
struct Plan<'a, H> {
    indexer: &'a Indexer<H>,
    changes: Vec<Change>,
    objects: u64,
    /// Cause of changes found by a list.
    listed: Cause,
    /// Set when unchanged objects are stored too.
    replaces_bodies: bool,
    /// Set when the cached objects have no bodies that can be shown as `old`.
    hides_olds: bool,
}

impl<'a, H: KeyHasher> Plan<'a, H> {
    fn over(indexer: &'a Indexer<H>, deltas: usize, initial: bool) -> Self {
        let objects = indexer.store.meta().objects;
        let changes = Vec::with_capacity(deltas + 1);
        let first = indexer.first_list;
        let listed = match initial {
            true => first.cause,
            false if indexer.absence.lasts() => Cause::Downtime,
            false => Cause::Relist,
        };
        Self {
            indexer,
            changes,
            objects,
            listed,
            replaces_bodies: initial && first.cause != Cause::Initial,
            hides_olds: !indexer.options.keep.is_whole() || initial && !first.bodies,
        }
    }

    /// Plans a `delta`. `cached` is the state of its key before the batch.
    fn add(&mut self, delta: Delta, cached: Option<Object>) {
        let cause = self.cause_of(delta.kind, &delta.object);
        let object = delta.object;
        let Some(old) = self.state_of(object.key(), cached) else {
            // An object that is not cached was never shown as added, so its deletion is not shown (D-10).
            if !delta.kind.is_deletion() {
                self.push(Change::Added { object, cause });
            }
            return;
        };
        let recreated = self.indexer.options.recreated == Recreated::DeleteAdd && is_another(&old, &object);
        if matches!(delta.kind, DeltaKind::OptedOut { .. }) && !recreated {
            self.push(Change::Removed { object: old, cause });
        } else if delta.kind.is_deletion() {
            let change = match self.indexer.options.selective {
                // `old` may be a stub: the object of the event has more data.
                true if self.hides_olds && !recreated && !object.is_unread() => Change::Removed { object, cause },
                true => Change::Removed { object: old, cause },
                // The deleted object was never shown. The shown object `old` no longer exists either, so the deletion of `old` is
                // reported.
                false if recreated => Change::Deleted { object: old, tombstone: true, cause },
                // The final state cannot be read.
                false if object.is_unread() => Change::Deleted { object: old, tombstone: true, cause },
                false => Change::Deleted { object, tombstone: delta.kind == DeltaKind::Tombstone, cause },
            };
            self.push(change);
        } else if is_same_state(&old, &object) {
            let object = if self.replaces_bodies || self.hides_olds { object } else { old };
            self.push(Change::Unchanged { object, cause });
        } else if recreated {
            self.push(Change::Deleted { object: old, tombstone: true, cause });
            self.push(Change::Added { object, cause });
        } else if self.is_ignored(&old, &object) {
            self.push(Change::Refreshed { object });
        } else {
            let old = if self.hides_olds { object.clone() } else { old };
            self.push(Change::Updated { old, object, cause });
        }
    }

    /// Returns true if two states of the same uid differ only in ignored paths.
    fn is_ignored(&self, old: &Object, object: &Object) -> bool {
        let ignored = self.indexer.options.ignored.as_ref().filter(|_| !self.hides_olds && !is_another(old, object));
        ignored.is_some_and(|ignored| ignored.covers_all_between(old, object))
    }

    fn cause_of(&self, kind: DeltaKind, object: &Object) -> Cause {
        let is_state = kind.is_watched() || kind == DeltaKind::Replaced;
        match kind {
            DeltaKind::Sync { round } => Cause::Resync { round },
            _ if is_state && self.indexer.absence.saw_nothing_of(object.resource_version()) => Cause::Downtime,
            _ if kind.is_watched() => Cause::Watch,
            _ => self.listed,
        }
    }

    /// Returns the state of `key` after the changes planned so far. The deltas of one key are consecutive. So only the last planned
    /// change can have this key.
    fn state_of(&self, key: KeyRef<'_>, cached: Option<Object>) -> Option<Object> {
        match self.changes.last() {
            Some(change) if change.object().is_some_and(|object| object.key() == key) => change.state().cloned(),
            _ => cached,
        }
    }

    fn push(&mut self, change: Change) {
        match &change {
            Change::Added { .. } => self.objects += 1,
            Change::Deleted { .. } | Change::Removed { .. } => self.objects -= 1,
            _ => {}
        }
        self.changes.push(change);
    }
}

/// Reason why objects of an ended unit are no longer shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retirement {
    /// The objects are no longer selected. Either the configuration changed ([`Cause::Reload`]), or the namespaces, their labels or
    /// the rights changed ([`Cause::Watch`]).
    Removed(Cause),
    /// The server no longer has the type or the namespace of the objects. This was found at run time ([`Cause::Relist`]) or at a
    /// restart ([`Cause::Downtime`]).
    Deleted(Cause),
}

/// Returns the last changes of an ended unit: one for each of its `objects`, in the order of keys.
pub(crate) fn retirement(mut objects: Vec<Object>, how: Retirement) -> Vec<Change> {
    objects.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
    let change = |object| match how {
        Retirement::Removed(cause) => Change::Removed { object, cause },
        Retirement::Deleted(cause) => Change::Deleted { object, tombstone: true, cause },
    };
    objects.into_iter().map(change).collect()
}

/// Returns the records for a reader that is attached to a unit with these objects, or detached from it, in the order of keys (S-5,
/// S-7). A reader that is attached gets none if it wants none, or if the cache keeps no bodies.
pub(crate) fn attachment_changes(
    kind: AttachmentKind,
    keep: &Keep,
    objects: impl FnOnce() -> Vec<Object>,
) -> Vec<Change> {
    match kind {
        AttachmentKind::Attach(Some(cause)) if keep.is_whole() => {
            let mut objects = objects();
            objects.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
            objects.into_iter().map(|object| Change::Added { object, cause }).collect()
        }
        AttachmentKind::Attach(_) => Vec::new(),
        AttachmentKind::Detach => retirement(objects(), Retirement::Removed(Cause::Reload)),
    }
}

/// Returns true if both objects have a uid, and the uids differ.
fn is_another(old: &Object, new: &Object) -> bool {
    !old.uid().is_empty() && !new.uid().is_empty() && old.uid() != new.uid()
}

/// Returns the version that the store reaches if `delta` is the last one of a batch (I-11). `None` for a delta of a list or a
/// resync, and for an object without a version.
fn version_reached(delta: &Delta) -> Option<ResourceVersion> {
    let version = delta.object.resource_version();
    (delta.kind.is_watched() && !version.is_empty()).then(|| version.into())
}

#[cfg(test)]
pub(crate) mod testing {
    //! Text form of changes.

    pub(crate) use super::tests::show;
}
