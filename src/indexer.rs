//! The cache of one unit: key → object and named indexes, one published version for readers (D5, rules I).
//!
//! [`Indexer`] turns [`Deltas`] into a [`Transaction`] of [`Change`]s, and applies it.
//! `indexer/store.rs` holds the map readers see, `indexer/actor.rs` the order append → publish → release.

pub mod actor;
pub mod index_func;
#[cfg(test)]
mod model_test;
mod posting;
mod repacking;
pub mod siblings;
pub(crate) mod slot;
pub mod store;
pub mod union;
pub(crate) mod view;
pub(crate) mod writer;
#[cfg(test)]
mod tests;

use std::{
    hash::BuildHasher,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use foldhash::{fast::RandomState, quality::FixedState};
use hashbrown::HashTable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    index_func::IndexFunc,
    repacking::Repacking,
    store::{EvmapStore, IndexExists, KeyHasher, ReadStore as _},
};
use crate::{
    change::{Cause, Change, Reached},
    delta_fifo::{Delta, DeltaKind, Deltas, Repacked, is_same_state},
    object::{IgnoredPaths, Keep, KeyRef, Object, ResourceVersion},
};

/// What a known name with a new uid means in a list (D-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recreated {
    /// The old object was deleted, the new one added.
    #[default]
    DeleteAdd,
    /// The object was updated.
    Update,
}

/// How a unit's indexer reads deltas.
#[derive(Clone, Debug, Default)]
pub struct IndexerOptions {
    /// The unit watches through a label or field selector: what is absent may live on, so it is
    /// [`Change::Removed`] and not [`Change::Deleted`].
    pub selective: bool,
    /// See [`Recreated`].
    pub recreated: Recreated,
    /// An update that touches nothing but these is [`Change::Refreshed`], whoever tells of it: a watch, a later list, or one
    /// after a restart. Without effect where no bodies are kept.
    pub ignored: Option<Arc<IgnoredPaths>>,
    /// What the cache keeps of an object. Where that is no body, an update has no `old`, a tombstone's object is the stub,
    /// and only the index `namespace` finds what it should: all others are made of the stub.
    pub keep: Keep,
}

/// What the first list is compared with, and what its differences are called.
///
/// It matters until that list is applied, over any number of restarts: a cache that is synced has none ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstList {
    /// [`Cause::Initial`] where there was nothing before it. With any other cause the cache continues another one, in
    /// which the bodies may be cut in another way: they are replaced even where the version is the same.
    pub cause: Cause,
    /// The cache that is continued has bodies, not stubs.
    pub bodies: bool,
    /// It is complete for the scope of this one, if fetched in another way: it can be read until the list has come.
    pub complete: bool,
}

impl Default for FirstList {
    fn default() -> Self {
        Self { cause: Cause::Initial, bodies: true, complete: false }
    }
}

/// The time between what a saved cache knows and the first word of the server: a list that is compared meanwhile finds
/// what happened while nobody looked ([`Cause::Downtime`], D7).
///
/// It ends for good with the first event or bookmark of a watch, or with the list. The unit and its indexer share it, over
/// all restarts of the actors; the default is over from the beginning.
#[derive(Clone, Debug, Default)]
pub struct Absence(Arc<AbsenceState>);

#[derive(Debug, Default)]
struct AbsenceState {
    lasts: AtomicBool,
    /// Somebody does not want to hear of it.
    is_named: AtomicBool,
    /// Where the server was when it was asked, if it is named.
    until: OnceLock<ResourceVersion>,
}

impl Absence {
    /// Makes that of a unit that begins with a saved cache.
    pub fn begun() -> Self {
        Self(Arc::new(AbsenceState { lasts: AtomicBool::new(true), ..AbsenceState::default() }))
    }

    /// Returns whether it lasts.
    pub fn lasts(&self) -> bool {
        self.0.lasts.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.0.lasts.store(false, Ordering::Release);
    }

    /// Has what a watch brings that happened meanwhile be [`Cause::Downtime`] too: for who does not want to hear of it.
    pub fn be_named(&self) {
        self.0.is_named.store(true, Ordering::Release);
    }

    /// Notes the version at which the server is, asked before it said anything else: what is not newer happened meanwhile.
    pub(crate) fn server_is_at(&self, version: &ResourceVersion) {
        if self.lasts() && self.0.is_named.load(Ordering::Acquire) {
            let _noted_before = self.0.until.set(version.clone());
        }
    }

    /// Returns whether an object of this version is from then.
    fn saw_nothing_of(&self, version: &str) -> bool {
        self.0.until.get().and_then(|until| until.compare_text(version)).is_some_and(std::cmp::Ordering::is_ge)
    }
}

/// A batch, planned: what to append to the journal, then to commit.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// In the order of the deltas; [`Change::Synced`] last.
    pub changes: Vec<Change>,
    /// Where the store is once it is committed.
    pub reached: Reached,
    /// Deletions of keys that were not in the cache, left out (D-10).
    pub suppressed: u64,
    /// Objects in the cache once it is committed.
    pub objects: u64,
    /// What is unchanged has another body, to be stored.
    replaces_bodies: bool,
    /// The server said something: an event, a bookmark or a list.
    heard: bool,
}

impl Transaction {
    /// Returns whether the initial state of the unit is complete with it.
    pub fn completes_initial(&self) -> bool {
        matches!(self.changes.last(), Some(Change::Synced { .. }))
    }

    /// Makes the last change say how many objects all units of the type have; leaves it out where others are not synced.
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
/// A batch goes **plan → append (elsewhere) → commit → publish**. `commit` sets the state of every key it names, so
/// doing it again after a crash between append and publish changes nothing more.
///
/// After a crash: keep the store (dropping it empties its readers), [`Indexer::discard`] what may be half staged,
/// commit again what was appended and not published, publish.
pub struct Indexer<H = FixedState> {
    store: EvmapStore<H>,
    options: IndexerOptions,
    first_list: FirstList,
    absence: Absence,
    repacking: Repacking,
}

impl<H: KeyHasher> Indexer<H> {
    /// Makes an indexer over what `store` holds.
    pub fn new(store: EvmapStore<H>, options: IndexerOptions) -> Self {
        let (first_list, absence, repacking) = <_>::default();
        Self { store, options, first_list, absence, repacking }
    }

    /// Says what the first list is compared with: see [`FirstList`].
    #[must_use]
    pub fn with_first_list(self, first_list: FirstList) -> Self {
        Self { first_list, ..self }
    }

    /// Says that the store holds a saved cache, until the server was heard: see [`Absence`].
    #[must_use]
    pub fn with_absence(self, absence: Absence) -> Self {
        Self { absence, ..self }
    }

    /// Returns what `deltas` change, and changes nothing (C-2, C-3, I-2, I-3, D-7, D-10, S-4, I-11).
    pub fn plan(&self, deltas: Deltas) -> Transaction {
        let meta = self.store.meta();
        let store_version = match deltas.store_version {
            None => deltas.deltas.last().and_then(version_reached),
            version => version.filter(|version| !version.is_unset()),
        };
        let store_version = store_version.unwrap_or_else(|| meta.store_version.clone());
        let cached = self.store.get_all(deltas.deltas.iter().map(|delta| delta.object.key()));
        let told = |delta: &Delta| !matches!(delta.kind, DeltaKind::Sync { .. });
        let heard = deltas.resume_version.is_some() || deltas.deltas.iter().any(told);
        let mut plan = Plan::over(self, deltas.deltas.len(), deltas.initial);
        for (delta, cached) in deltas.deltas.into_iter().zip(cached) {
            plan.add(delta, cached);
        }
        let Plan { mut changes, objects, suppressed, replaces_bodies, .. } = plan;
        if deltas.completes_initial && !meta.synced {
            changes.push(Change::Synced { objects, resource_version: store_version.clone() });
        }
        let reached = Reached {
            generation: meta.generation + 1,
            store_version,
            resume_version: deltas.resume_version.unwrap_or_else(|| meta.resume_version.clone()),
            synced: meta.synced || deltas.completes_initial,
        };
        Transaction { changes, reached, suppressed, objects, replaces_bodies, heard }
    }

    /// Stages a transaction. Idempotent.
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

    /// Stages the place in the journal up to which the unit's records are committed.
    pub fn reach_place(&mut self, place: u64) {
        self.store.reach_place(place);
    }

    fn put(&mut self, object: &Object) {
        put_kept(&mut self.store, &self.options.keep, object);
    }

    /// Shows what is committed to readers; see [`EvmapStore::publish`] for what it waits for.
    pub fn publish(&mut self, at_micros: i64) {
        self.store.publish(at_micros);
    }

    /// Frees what the last publishes replaced; call it once when a busy time ends.
    pub fn publish_idle(&mut self) {
        self.store.publish_idle();
    }

    /// Packs some of the objects anew that a dictionary packs which is on its way out, and publishes them; call it while
    /// nothing is committed that is not published. Readers see the same version of the same states.
    pub fn repack(&mut self) -> Repacked {
        let Some(packer) = self.options.keep.packer() else { return Repacked::default() };
        let all = |visit: &mut dyn FnMut(&Object)| self.store.reader().read(|snapshot| snapshot.for_each(visit));
        self.repacking.begin(packer.retirements(), packer.retiring().as_ref(), all);
        let (mut objects, done) = self.repacking.next_step();
        let states = self.store.get_all(objects.iter().map(|object| object.key()));
        let mut states = states.into_iter();
        // what has changed since, or is gone, uses another dictionary
        objects.retain(|object| states.next().flatten().is_some_and(|state| state.ptr_eq(object)));
        for object in &mut objects {
            *object = packer.repack(object);
            self.store.replace(object);
        }
        if !objects.is_empty() {
            self.store.publish(self.store.meta().published_micros);
        }
        Repacked { objects, done }
    }

    /// Forgets what was committed and not published.
    pub fn discard(&mut self) {
        self.store.discard();
    }

    /// Adds indexes over what the cache holds and publishes them before it returns (I-7). Adds none if a name exists.
    pub fn add_indexers(&mut self, indexes: Vec<IndexFunc>, at_micros: i64) -> Result<(), IndexExists> {
        self.store.add_indexes(indexes)?;
        self.store.publish(at_micros);
        Ok(())
    }

    /// Returns whether the cache keeps bodies.
    pub fn keeps_bodies(&self) -> bool {
        self.options.keep.is_whole()
    }

    /// Returns every object that readers see, in the order of keys.
    pub fn objects(&self) -> Vec<Object> {
        let mut objects = Vec::new();
        self.store.reader().read(|snapshot| snapshot.for_each(&mut |object| objects.push(object.clone())));
        objects.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
        objects
    }

    /// Returns the store, to make readers of it.
    pub fn store(&self) -> &EvmapStore<H> {
        &self.store
    }
}

/// Stages as much of an object as `keep` says. Indexes are read of what was handed over, which nobody has to unpack, but
/// where they would say of a stub what it does not.
pub(crate) fn put_kept<H: KeyHasher>(store: &mut EvmapStore<H>, keep: &Keep, object: &Object) {
    match keep.of(object) {
        kept if keep.is_whole() => store.put_as(&kept, object),
        stub => store.put(&stub),
    }
}

/// Changes as far as they are planned, and the cache as they leave it.
struct Plan<'a, H> {
    indexer: &'a Indexer<H>,
    changes: Vec<Change>,
    /// The newest change of every key, by place in `changes`; not kept for a single delta.
    newest: HashTable<usize>,
    hasher: RandomState,
    single: bool,
    objects: u64,
    suppressed: u64,
    /// What lists are called.
    listed: Cause,
    /// What is unchanged is stored all the same.
    replaces_bodies: bool,
    /// What is cached has no bodies to be shown as `old`.
    hides_olds: bool,
}

impl<'a, H: KeyHasher> Plan<'a, H> {
    fn over(indexer: &'a Indexer<H>, deltas: usize, initial: bool) -> Self {
        let single = deltas <= 1;
        let newest = HashTable::with_capacity(if single { 0 } else { deltas });
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
            newest,
            hasher: RandomState::default(),
            single,
            objects,
            suppressed: 0,
            listed,
            replaces_bodies: initial && first.cause != Cause::Initial,
            hides_olds: !indexer.options.keep.is_whole() || initial && !first.bodies,
        }
    }

    /// Adds what `delta` means for its key, whose state before the batch was `cached`.
    fn add(&mut self, delta: Delta, cached: Option<Object>) {
        let cause = self.cause_of(delta.kind, &delta.object);
        let object = delta.object;
        let Some(old) = self.state_of(object.key(), cached) else {
            if delta.kind.is_deletion() {
                self.suppressed += u64::from(!matches!(delta.kind, DeltaKind::OptedOut { .. }));
            } else {
                self.push(Change::Added { object, cause });
            }
            return;
        };
        let recreated = self.indexer.options.recreated == Recreated::DeleteAdd && is_another(&old, &object);
        if matches!(delta.kind, DeltaKind::OptedOut { .. }) && !recreated {
            self.push(Change::Removed { object: old, cause });
        } else if delta.kind.is_deletion() {
            let change = match self.indexer.options.selective {
                // a stub would say less than the event
                true if self.hides_olds && !recreated => Change::Removed { object, cause },
                true => Change::Removed { object: old, cause },
                // of the object that was deleted nothing was ever shown; the one shown must be gone too
                false if recreated => Change::Deleted { object: old, tombstone: true, cause },
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

    /// Returns whether one state differs from the other, of the same uid, in nothing that counts.
    fn is_ignored(&self, old: &Object, object: &Object) -> bool {
        let ignored = self.indexer.options.ignored.as_ref().filter(|_| !self.hides_olds && !is_another(old, object));
        ignored.is_some_and(|ignored| ignored.covers_all_between(old, object))
    }

    fn cause_of(&self, kind: DeltaKind, object: &Object) -> Cause {
        match kind {
            DeltaKind::Added
            | DeltaKind::Updated
            | DeltaKind::Deleted
            | DeltaKind::Replaced
            | DeltaKind::OptedOut { listed: false }
                if self.indexer.absence.saw_nothing_of(object.resource_version()) =>
            {
                Cause::Downtime
            }
            DeltaKind::Added | DeltaKind::Updated | DeltaKind::Deleted | DeltaKind::OptedOut { listed: false } => {
                Cause::Watch
            }
            DeltaKind::Replaced | DeltaKind::Tombstone | DeltaKind::OptedOut { listed: true } => self.listed,
            DeltaKind::Sync { round } => Cause::Resync { round },
        }
    }

    fn state_of(&self, key: KeyRef<'_>, cached: Option<Object>) -> Option<Object> {
        if !self.single {
            let is_it = |&at: &usize| self.changes[at].object().is_some_and(|object| object.key() == key);
            if let Some(&at) = self.newest.find(self.hasher.hash_one(key), is_it) {
                return self.changes[at].state().cloned();
            }
        }
        cached
    }

    fn push(&mut self, change: Change) {
        match &change {
            Change::Added { .. } => self.objects += 1,
            Change::Deleted { .. } | Change::Removed { .. } => self.objects -= 1,
            _ => {}
        }
        let at = self.changes.len();
        self.changes.push(change);
        if self.single {
            return;
        }
        let Self { changes, newest, hasher, .. } = self;
        let key = |at: usize| changes[at].object().expect("a planned change has an object").key();
        let hash = hasher.hash_one(key(at));
        let entry = newest.entry(hash, |&known| key(known) == key(at), |&known| hasher.hash_one(key(known)));
        entry.and_modify(|known| *known = at).or_insert(at);
    }
}

/// What becomes of objects that a unit showed and none shows any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// They left what is shown: the configuration changed ([`Cause::Reload`]), or their namespace did
    /// ([`Cause::Watch`]).
    Removed(Cause),
    /// Their type is gone from the server, and they with it; found by asking it again ([`Cause::Relist`]), or after a
    /// restart ([`Cause::Downtime`]).
    Deleted(Cause),
}

/// Returns the last changes of a unit that has ended: what becomes of `objects`, in the order of their keys.
pub fn retirement(mut objects: Vec<Object>, how: Retirement) -> Vec<Change> {
    objects.sort_unstable_by(|one, other| one.key().cmp(&other.key()));
    let change = |object| match how {
        Retirement::Removed(cause) => Change::Removed { object, cause },
        Retirement::Deleted(cause) => Change::Deleted { object, tombstone: true, cause },
    };
    objects.into_iter().map(change).collect()
}

/// Returns whether both have a uid, and not the same.
fn is_another(old: &Object, new: &Object) -> bool {
    !old.uid().is_empty() && !new.uid().is_empty() && old.uid() != new.uid()
}

/// Returns the version a store reaches with its last delta (I-11): what a list or a resync brings says nothing of it.
fn version_reached(delta: &Delta) -> Option<ResourceVersion> {
    let told = matches!(
        delta.kind,
        DeltaKind::Added | DeltaKind::Updated | DeltaKind::Deleted | DeltaKind::OptedOut { listed: false }
    );
    let version = delta.object.resource_version();
    (told && !version.is_empty()).then(|| version.into())
}

#[cfg(test)]
pub(crate) mod testing {
    //! What changes say.

    pub(crate) use super::tests::show;
}
