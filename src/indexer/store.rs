//! Where the cache lives: objects and all indexes in one structure, published as a whole (D5, I-9, D-12).
//!
//! [`LeftRightStore`] is the write half; [`StoreReader`] reads the version published last, without a lock. There are two
//! copies of the tables, which share what they hold: readers are in one, the writer brings the other up to date, and a
//! publish swaps them. This is what evmap is made of; evmap's map of bags takes 57 bytes an entry in each copy, where
//! these tables take 16 to 24 and a look-up one wait for memory (`line_table`).
//!
//! An object is found by a 32-bit hash of its key, a posting by that of its index and value; those that share one are
//! told apart on reading. Of a million objects some hundred pairs do.
//!
//! What this costs, and what it asks of its users:
//! - A reader inside [`ReadStore::read`] holds up the second next publish. Queries copy pointers out and return; what
//!   takes time (selectors, decoding) comes after. Never publish on a thread that is inside `read`: it would wait for
//!   itself. A reader that loses its CPU in there costs the writer that slice, 4 to 16 ms on a crowded machine.
//! - Values that were replaced live until the next publish. Call [`IndexStore::publish_idle`] once when a busy time ends.
//! - **Dropping the store empties every reader**, for good. It is `Send`: whoever owns the unit keeps it while the
//!   actor that writes it is replaced, and calls [`IndexStore::discard`] before the successor goes on. Where a hung
//!   actor never gives it back, [`ReaderFactory::lead_to`] sends its readers on to another store.

use std::{
    cell::OnceCell,
    hash::BuildHasher,
    sync::{Arc, OnceLock},
};

use foldhash::quality::FixedState;

use self::{
    staged::Staged,
    table::{Batch, Change, Table},
};
use super::{
    index_func::{IndexFunc, IndexSet},
    posting::Posting,
};
use crate::{
    line_table,
    object::{KeyRef, Object, ResourceVersion},
};

mod staged;
mod table;

/// For how many keys a large batch leaves room in the store.
const KEPT_ROOM: usize = 1 << 12;

/// What belongs to one published version beside objects and postings.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Counts versions; with `store_version` it names one.
    pub generation: u64,
    /// Version of the last write applied (I-11); unset before the first.
    pub store_version: ResourceVersion,
    /// A watch may be resumed here; unset where it cannot.
    pub resume_version: ResourceVersion,
    /// The initial state is complete.
    pub synced: bool,
    /// Objects in the cache.
    pub objects: u64,
    /// Their size in memory, [`Object::size_bytes`] each.
    pub bytes: u64,
    /// The place in the journal up to which the unit's records are in it; zero before the first.
    pub place: u64,
    /// When it was published, in microseconds since the Unix epoch.
    pub published_micros: i64,
    /// Index functions that panicked (I-8), since the store was made.
    pub index_failures: u64,
    /// The indexes; the place of one is its id.
    pub indexes: IndexSet,
}

impl Meta {
    /// Returns the id of a named index.
    pub fn index_id(&self, name: &str) -> Option<u32> {
        let at = self.indexes.as_slice().iter().position(|index| index.name() == name)?;
        u32::try_from(at).ok()
    }
}

/// How far a transaction brings the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// See [`Meta::generation`].
    pub generation: u64,
    /// See [`Meta::store_version`].
    pub store_version: ResourceVersion,
    /// See [`Meta::resume_version`].
    pub resume_version: ResourceVersion,
    /// See [`Meta::synced`].
    pub synced: bool,
}

/// An index name is in use (I-7).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {0:?} exists")]
pub struct IndexExists(pub String);

/// The write half of a cache. Changes are staged, seen by [`IndexStore::get`] and by no reader, and become visible
/// together by one [`IndexStore::publish`].
pub trait IndexStore: Send + 'static {
    /// The read half.
    type Reader: ReadStore;

    /// Returns the staged state of `key`.
    fn get(&self, key: KeyRef<'_>) -> Option<Object> {
        self.get_all(std::iter::once(key)).pop()?
    }
    /// Returns the staged states of several keys, in their order.
    fn get_all<'a>(&self, keys: impl Iterator<Item = KeyRef<'a>>) -> Vec<Option<Object>>;
    /// Returns the staged meta.
    fn meta(&self) -> &Meta;
    /// Stages `object` as the state of its key (I-2).
    fn put(&mut self, object: Object) {
        let read = object.clone();
        self.put_as(object, &read);
    }
    /// Stages `object` as the state of its key; what its indexes are of is read of `read`, the same state in another form.
    fn put_as(&mut self, object: Object, read: &Object);
    /// Stages another form of the state of its key: what its indexes are of is the same.
    fn replace(&mut self, object: Object);
    /// Stages that `key` is absent (I-3).
    fn remove(&mut self, key: KeyRef<'_>);
    /// Stages how far the store has come.
    fn reach(&mut self, reached: Reached);
    /// Stages the place in the journal up to which the unit's records are staged; one before the last has no effect.
    fn reach_place(&mut self, place: u64);
    /// Stages new indexes over all objects (I-7). Adds none if one of the names exists.
    fn add_indexes(&mut self, indexes: Vec<IndexFunc>) -> Result<(), IndexExists>;
    /// Shows what is staged to readers. Waits for readers that are inside a version older than the one shown now.
    fn publish(&mut self, at_micros: i64);
    /// Lets go of values replaced before the last publish. Waits as `publish` does, changes nothing readers see.
    fn publish_idle(&mut self);
    /// Forgets what is staged.
    fn discard(&mut self);
    /// Makes a reader; takes a lock for a moment.
    fn reader(&self) -> Self::Reader;
}

/// The read half of a cache: `Clone` and `Send` but not `Sync`; one a thread.
pub trait ReadStore: Clone + Send + 'static {
    /// Answers from one published version (I-9). Once the store was dropped it is an empty, unsynced one.
    ///
    /// `query` must be short, and must not publish: see the module's documentation.
    fn read<T>(&self, query: impl FnOnce(&dyn Snapshot) -> T) -> T;
}

/// One published version.
pub trait Snapshot {
    /// Returns what belongs to the version.
    fn meta(&self) -> &Meta;
    /// Returns the object of `key`.
    fn get(&self, key: KeyRef<'_>) -> Option<&Object>;
    /// Returns the objects of several keys, in their order.
    fn get_all(&self, keys: &mut dyn Iterator<Item = KeyRef<'_>>) -> Vec<Option<&Object>> {
        keys.map(|key| self.get(key)).collect()
    }
    /// Visits every object once, in no order.
    fn for_each(&self, visit: &mut dyn FnMut(&Object));
    /// Visits every object that has `value` in the index, once, in no order.
    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object));
    /// Visits every value with an object in the index, in no order. Looks at the values of all indexes.
    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str));
}

fn hash_of_key(hasher: &impl BuildHasher, key: KeyRef<'_>) -> u32 {
    line_table::hash_of(hasher.hash_one((key.namespace, key.name)))
}

fn hash_of_value(hasher: &impl BuildHasher, index: u32, value: &str) -> u32 {
    line_table::hash_of(hasher.hash_one((index, value)))
}

/// Returns whether `object` has `value` in `index`.
fn has_value(index: &IndexFunc, object: &Object, value: &str) -> bool {
    index.values(object).is_some_and(|values| values.iter().any(|found| *found == *value))
}

/// The write half over [`left_right`]: see the module.
///
/// Staged changes lie beside the tables until they are published, each key and each posting once however often a batch
/// touched it.
pub struct LeftRightStore<H = FixedState> {
    writer: left_right::WriteHandle<Table, Batch>,
    objects: Staged<Change>,
    postings: Staged<Arc<Posting>>,
    meta: Meta,
    published: Arc<Meta>,
    successor: Successor<H>,
    pub(super) hasher: H,
}

/// Where the readers of a store go on once it is replaced; shared by all of them.
type Successor<H> = Arc<OnceLock<ReaderFactory<H>>>;

/// A hasher of keys; its seed keeps names chosen by others from colliding.
pub trait KeyHasher: BuildHasher + Clone + Send + Sync + 'static {}

impl<H: BuildHasher + Clone + Send + Sync + 'static> KeyHasher for H {}

impl LeftRightStore {
    /// Makes an empty store with `indexes` and, before them, the index of namespaces; `seed` shall be random for each
    /// process. Of indexes of one name the first stays.
    pub fn new(seed: u64, indexes: impl IntoIterator<Item = IndexFunc>) -> Self {
        Self::with_hasher(FixedState::with_seed(seed), indexes)
    }
}

impl<H: KeyHasher> LeftRightStore<H> {
    /// Makes an empty store that finds keys by `hasher`.
    pub(crate) fn with_hasher(hasher: H, indexes: impl IntoIterator<Item = IndexFunc>) -> Self {
        let mut distinct = vec![IndexFunc::namespace()];
        for index in indexes {
            if distinct.iter().all(|known| known.name() != index.name()) {
                distinct.push(index);
            }
        }
        let meta = Meta { indexes: IndexSet::new(distinct), ..Meta::default() };
        let published = Arc::new(meta.clone());
        let (mut writer, _) = left_right::new_from_empty(Table::new(Arc::clone(&published)));
        writer.publish();
        let (objects, postings) = Default::default();
        Self { writer, objects, postings, meta, published, successor: Arc::default(), hasher }
    }

    /// Returns something that makes readers on any thread.
    pub fn reader_factory(&self) -> ReaderFactory<H> {
        ReaderFactory {
            handles: self.writer.factory(),
            hasher: self.hasher.clone(),
            successor: Arc::clone(&self.successor),
        }
    }

    /// Stages a change of one posting; an empty one goes (I-3).
    fn stage_posting(&mut self, index: u32, value: &str, change: impl FnOnce(&mut Posting)) {
        let hash = hash_of_value(&self.hasher, index, value);
        let published = || self.writer.enter().and_then(|table| table.posting(hash, index, value).cloned());
        let make = || published().unwrap_or_else(|| Arc::new(Posting::new(index, value)));
        let posting = self.postings.find_or_insert(hash, |posting| posting.is_of(index, value), make);
        change(Arc::make_mut(posting));
    }

    /// Returns whether another object whose key has the hash of `key` has `value` in `index`.
    fn is_shared(&self, hash: u32, key: KeyRef<'_>, index: &IndexFunc, value: &str) -> bool {
        let has = |object: &Object| object.key() != key && has_value(index, object, value);
        let is_current = |object: &&Object| self.staged(hash, object.key()).is_none();
        self.objects.sharing(hash).filter_map(Change::state).any(has)
            || self.writer.enter().is_some_and(|table| table.objects.sharing(hash).filter(is_current).any(has))
    }

    fn staged(&self, hash: u32, key: KeyRef<'_>) -> Option<&Change> {
        self.objects.find(hash, |change| change.key() == key)
    }

    /// Brings the postings from the values of `old` to those of `new`, for the indexes from the id `first` on (I-2).
    fn reindex(&mut self, hash: u32, old: Option<&Object>, new: Option<&Object>, first: u32) {
        let indexes = self.meta.indexes.clone();
        if indexes.is_of_keys() && old.is_some() && new.is_some() {
            return;
        }
        let values = |object: Option<_>| object.map_or_else(Vec::new, |object| indexes.values(object));
        let (mut old_values, mut new_values) = (values(old), values(new));
        for (id, index) in (0_u32..).zip(indexes.as_slice()).skip(first as usize) {
            let mut take = |values: &mut Vec<Option<_>>| {
                let values = values.get_mut(id as usize).map_or_else(|| Some(Vec::new()), Option::take);
                self.meta.index_failures += u64::from(values.is_none());
                values.unwrap_or_default()
            };
            let (before, after) = (take(&mut old_values), take(&mut new_values));
            for value in before.iter().filter(|value| !after.contains(value)) {
                if !old.is_some_and(|old| self.is_shared(hash, old.key(), index, value)) {
                    self.stage_posting(id, value, |posting| posting.remove(hash));
                }
            }
            for value in after.iter().filter(|value| !before.contains(value)) {
                self.stage_posting(id, value, |posting| posting.insert(hash));
            }
        }
    }

    /// Replaces the staged state of one key, which is handed over with what its indexes are read of, and keeps the account.
    fn stage(&mut self, key: KeyRef<'_>, state: Option<(&Object, &Object)>) {
        if let Some((hash, old)) = self.stage_object(key, state.map(|(object, _)| object)) {
            self.reindex(hash, old.as_ref(), state.map(|(_, read)| read), 0);
        }
    }

    /// Replaces the staged object of one key, its indexes left as they are, and keeps the account. Returns its hash and
    /// what was there; none where it was there before.
    fn stage_object(&mut self, key: KeyRef<'_>, new: Option<&Object>) -> Option<(u32, Option<Object>)> {
        let hash = hash_of_key(&self.hasher, key);
        let old = match self.staged(hash, key) {
            Some(change) => change.state().cloned(),
            None => self.writer.enter().and_then(|table| table.object(hash, key).cloned()),
        };
        let change = match (&old, new) {
            (None, None) => return None,
            (Some(old), Some(new)) if old.ptr_eq(new) => return None,
            (_, Some(new)) => Change::Put(new.clone()),
            (Some(old), None) => Change::Remove(old.clone()),
        };
        self.objects.put(hash, change, |new, change| change.key() == new.key());
        self.meta.objects = self.meta.objects + u64::from(new.is_some()) - u64::from(old.is_some());
        let size = |object: Option<&Object>| object.map_or(0, |object| object.size_bytes() as u64);
        self.meta.bytes = self.meta.bytes + size(new) - size(old.as_ref());
        Some((hash, old))
    }

    /// Counts published objects and postings.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.writer.enter().map_or(0, |table| table.objects.len() + table.postings.len())
    }

    /// Counts hashes that several published objects or several postings share.
    #[cfg(test)]
    pub(super) fn collisions(&self) -> usize {
        self.writer.enter().map_or(0, |table| table.objects.collisions() + table.postings.collisions())
    }

    /// Returns every staged object with the hash of its key.
    fn all(&self) -> Vec<(u32, Object)> {
        let staged = self.objects.iter().filter_map(|(hash, change)| Some((hash, change.state()?.clone())));
        let mut all: Vec<_> = staged.collect();
        if let Some(table) = self.writer.enter() {
            let hashed = table.objects.iter().map(|object| (hash_of_key(&self.hasher, object.key()), object));
            let current = hashed.filter(|(hash, object)| self.staged(*hash, object.key()).is_none());
            all.extend(current.map(|(hash, object)| (hash, object.clone())));
        }
        all
    }
}

impl<H: KeyHasher> IndexStore for LeftRightStore<H> {
    type Reader = StoreReader<H>;

    fn get_all<'a>(&self, keys: impl Iterator<Item = KeyRef<'a>>) -> Vec<Option<Object>> {
        let wanted: Vec<_> = keys.map(|key| (hash_of_key(&self.hasher, key), key)).collect();
        let table = self.writer.enter();
        let mut found = table.as_ref().map_or_else(|| vec![None; wanted.len()], |table| table.objects(&wanted));
        for (found, (hash, key)) in found.iter_mut().zip(&wanted) {
            if let Some(change) = self.staged(*hash, *key) {
                *found = change.state();
            }
        }
        // all are found before the first is counted: see `LineTable::find_all`
        found.into_iter().map(Option::<&_>::cloned).collect()
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn put_as(&mut self, object: Object, read: &Object) {
        self.stage(object.key(), Some((&object, read)));
    }

    fn replace(&mut self, object: Object) {
        self.stage_object(object.key(), Some(&object));
    }

    fn remove(&mut self, key: KeyRef<'_>) {
        self.stage(key, None);
    }

    fn reach(&mut self, reached: Reached) {
        let Reached { generation, store_version, resume_version, synced } = reached;
        self.meta = Meta { generation, store_version, resume_version, synced, ..std::mem::take(&mut self.meta) };
    }

    fn reach_place(&mut self, place: u64) {
        self.meta.place = self.meta.place.max(place);
    }

    fn add_indexes(&mut self, indexes: Vec<IndexFunc>) -> Result<(), IndexExists> {
        let mut all = self.meta.indexes.as_slice().to_vec();
        for index in indexes {
            if all.iter().any(|known| known.name() == index.name()) {
                return Err(IndexExists(index.name().to_owned()));
            }
            all.push(index);
        }
        let first = u32::try_from(self.meta.indexes.as_slice().len()).expect("there are fewer than 2^32 indexes");
        self.meta.indexes = IndexSet::new(all);
        for (hash, object) in self.all() {
            self.reindex(hash, None, Some(&object), first);
        }
        self.meta.generation += 1;
        Ok(())
    }

    fn publish(&mut self, at_micros: i64) {
        self.meta.published_micros = at_micros;
        self.published = Arc::new(self.meta.clone());
        let (objects, postings) = (self.objects.take(KEPT_ROOM), self.postings.take(KEPT_ROOM));
        self.writer.append(Batch { objects, postings, meta: Arc::clone(&self.published) }).publish();
    }

    fn publish_idle(&mut self) {
        self.writer.publish();
    }

    fn discard(&mut self) {
        self.objects.clear();
        self.postings.clear();
        self.meta = Meta::clone(&self.published);
    }

    fn reader(&self) -> StoreReader<H> {
        self.reader_factory().reader()
    }
}

/// Reads what a [`LeftRightStore`] publishes: `Clone` and `Send`, not `Sync`. Cloning takes a lock for a moment.
#[derive(Clone)]
pub struct StoreReader<H = FixedState> {
    handle: left_right::ReadHandle<Table>,
    hasher: H,
    successor: Successor<H>,
    /// The reader of the successor, made when it is first needed.
    moved: OnceCell<Box<Self>>,
}

/// Makes readers on any thread; `Clone`, `Send` and `Sync`. It takes a lock: ask once a thread, not once a read.
#[derive(Clone)]
pub struct ReaderFactory<H = FixedState> {
    handles: left_right::ReadHandleFactory<Table>,
    hasher: H,
    successor: Successor<H>,
}

impl<H: KeyHasher> ReaderFactory<H> {
    /// Makes a reader.
    pub fn reader(&self) -> StoreReader<H> {
        StoreReader {
            handle: self.handles.handle(),
            hasher: self.hasher.clone(),
            successor: Arc::clone(&self.successor),
            moved: OnceCell::new(),
        }
    }

    /// Sends every reader of this store, also those made long ago, on to another one, for good.
    pub fn lead_to(&self, successor: Self) {
        let _led_on_before = self.successor.set(successor);
    }
}

impl<H: KeyHasher> StoreReader<H> {
    /// Holds the version published last, or that of the successor; `None` once both are dropped.
    pub(super) fn enter(&self) -> Option<Published<'_, H>> {
        match self.moved() {
            Some(moved) => moved.enter(),
            None => match self.handle.enter() {
                Some(table) => Some(Published { table, hasher: &self.hasher }),
                // replaced and dropped since the look above
                None => self.moved()?.enter(),
            },
        }
    }

    fn moved(&self) -> Option<&Self> {
        let successor = self.successor.get()?;
        Some(self.moved.get_or_init(|| Box::new(successor.reader())))
    }
}

impl<H: KeyHasher> ReadStore for StoreReader<H> {
    fn read<T>(&self, query: impl FnOnce(&dyn Snapshot) -> T) -> T {
        match self.enter() {
            Some(published) => query(&published),
            None => query(&Dropped(Meta::default())),
        }
    }
}

/// A version, held open.
pub(super) struct Published<'a, H = FixedState> {
    table: left_right::ReadGuard<'a, Table>,
    hasher: &'a H,
}

impl<H: KeyHasher> Snapshot for Published<'_, H> {
    fn meta(&self) -> &Meta {
        &self.table.meta
    }

    fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.table.object(hash_of_key(self.hasher, key), key)
    }

    fn get_all(&self, keys: &mut dyn Iterator<Item = KeyRef<'_>>) -> Vec<Option<&Object>> {
        let wanted: Vec<_> = keys.map(|key| (hash_of_key(self.hasher, key), key)).collect();
        self.table.objects(&wanted)
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Object)) {
        self.table.objects.iter().for_each(visit);
    }

    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object)) {
        let Some(posting) = self.table.posting(hash_of_value(self.hasher, index, value), index, value) else { return };
        let Some(func) = self.meta().indexes.as_slice().get(index as usize) else { return };
        for hash in posting.iter() {
            if let Some(object) = self.table.objects.sole(hash) {
                visit(object);
                continue;
            }
            let mut sharing = self.table.objects.sharing(hash);
            match (sharing.next(), sharing.next()) {
                (Some(object), None) => visit(object),
                // one of those that share the hash has the value: which?
                (first, second) => {
                    let all = first.into_iter().chain(second).chain(sharing);
                    all.filter(|object| has_value(func, object, value)).for_each(&mut *visit);
                }
            }
        }
    }

    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str)) {
        let postings = self.table.postings.iter().filter(|posting| posting.index == index);
        postings.for_each(|posting| visit(&posting.value));
    }
}

/// What is left when the write half is gone.
struct Dropped(Meta);

impl Snapshot for Dropped {
    fn meta(&self) -> &Meta {
        &self.0
    }

    fn get(&self, _: KeyRef<'_>) -> Option<&Object> {
        None
    }

    fn for_each(&self, _: &mut dyn FnMut(&Object)) {}

    fn for_each_with(&self, _: u32, _: &str, _: &mut dyn FnMut(&Object)) {}

    fn for_each_value(&self, _: u32, _: &mut dyn FnMut(&str)) {}
}
