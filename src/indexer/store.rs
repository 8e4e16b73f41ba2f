//! Storage of the cache: one evmap map with objects and index postings, published as a whole (I-9, D-12).
//!
//! [`EvmapStore`] is the write half. [`StoreReader`] reads the version published last, without a lock. No other module uses evmap.
//! Objects and postings share one map, because two maps could not be published together.
//!
//! evmap keeps two copies of the map. Readers use one copy, the writer updates the other, and a publish swaps them. A key of
//! the map takes 49 bytes in each copy, and the map never frees that memory. So the key is only the first 17 bits of a 32-bit
//! hash. All values whose hashes start with these bits are in one bag of evmap. Each value carries its full hash. Values with
//! the same full hash are compared by name when they are read: of a million objects, some hundred pairs have the same hash.
//!
//! Costs and duties:
//! - A reader inside [`ReadStore::read`] does not block the next publish. It blocks the publish after that. So a query only copies
//!   pointers; slow work (selectors, decoding) comes after the query. Never publish on a thread that is inside `read`: it would
//!   wait for itself. A reader that loses its CPU inside `read` delays the writer by a time slice, 4 to 16 ms on a loaded machine.
//! - Replaced values live until the next publish. Call [`EvmapStore::publish_idle`] once when a busy time ends.
//! - **Dropping the store empties every reader** permanently. The store is `Send`: the owner of the unit keeps it while the
//!   actor that writes it is replaced, and calls [`EvmapStore::discard`] before the next actor continues. If a hung actor
//!   never returns the store, [`ReaderFactory::lead_to`] redirects its readers to another store.
//!
//! Reasons: `docs/decisions/0007-one-snapshot.md` and `docs/decisions/0008-evmap.md`.

use std::{
    cell::OnceCell,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::{Arc, Mutex, OnceLock},
};

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use super::{
    index_func::{IndexFunc, IndexSet},
    posting::Posting,
    union::Union,
};
use crate::{
    change::Reached,
    mutex::lock,
    object::{KeyRef, Object, ResourceVersion},
};

/// Number of hash bits that form a key of the map. There are at most 131,072 keys; with a million objects, eight share a key
/// on average.
const BAG_BITS: u32 = 17;
/// Number of staged changes for which memory is kept after a large batch.
const KEPT_ROOM: usize = 1 << 12;

/// Metadata of one published version.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Number of the published version. The number alone is not unique: a version is identified by `generation` and `store_version`
    /// together.
    pub generation: u64,
    /// Resource version of the last applied write (I-11); unset before the first write.
    pub store_version: ResourceVersion,
    /// Version from which a watch can be resumed; unset if there is none.
    pub resume_version: ResourceVersion,
    /// Set when the initial state is complete.
    pub synced: bool,
    /// Number of objects in the cache.
    pub objects: u64,
    /// Size of the objects in memory, as the sum of [`Object::size_bytes`].
    pub bytes: u64,
    /// Journal position up to which the cache contains the records of the unit; zero before the first record.
    pub position: u64,
    /// Number of panics in index functions since the store was created (I-8).
    pub index_failures: u64,
    /// Indexes; the id of an index is its position.
    pub indexes: IndexSet,
}

impl Meta {
    /// Returns the versions that the store has reached.
    pub fn reached(self) -> Reached {
        let Self { generation, store_version, resume_version, synced, .. } = self;
        Reached { generation, store_version, resume_version, synced }
    }

    /// Returns the id of a named index.
    pub fn index_id(&self, name: &str) -> Option<u32> {
        let at = self.indexes.as_slice().iter().position(|index| index.name() == name)?;
        u32::try_from(at).ok()
    }
}

/// Error: the index name is in use (I-7).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {0:?} already exists")]
pub struct IndexExists(pub String);

/// Read half of a cache. It is `Clone` and `Send`, but not `Sync`: use one per thread.
pub trait ReadStore: Clone + Send + 'static {
    /// Calls `query` with one published version (I-9). If the store was dropped, that version is empty and not synced.
    ///
    /// `query` must be short, and must not publish: see the module documentation.
    fn read<T>(&self, query: impl FnOnce(&dyn Snapshot) -> T) -> T;
}

/// A published version.
pub trait Snapshot {
    /// Returns the metadata of the version.
    fn meta(&self) -> &Meta;
    /// Returns the object with this key.
    fn get(&self, key: KeyRef<'_>) -> Option<&Object>;
    /// Returns the objects of several keys, in their order.
    fn get_all(&self, keys: &mut dyn Iterator<Item = KeyRef<'_>>) -> Vec<Option<&Object>> {
        keys.map(|key| self.get(key)).collect()
    }
    /// Visits every object once, in any order.
    fn for_each(&self, visit: &mut dyn FnMut(&Object));
    /// Visits once, in any order, every object that has `value` in the index.
    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object));
    /// Visits, in any order, every value that at least one object has in the index. Scans the whole map.
    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str));
}

/// Name of a map value. The hash of the value is computed from the name.
#[derive(Clone, Copy)]
enum Name<'a> {
    Object(KeyRef<'a>),
    Posting(u32, &'a str),
}

impl Name<'_> {
    #[inline] // for the same reason as `Slot::is_of`
    fn hash_with(self, hasher: &impl BuildHasher) -> u32 {
        let hash = match self {
            Self::Object(key) => hasher.hash_one((key.namespace, key.name)),
            Self::Posting(index, value) => hasher.hash_one((index, value)),
        };
        u32::try_from(hash & u64::from(u32::MAX)).expect("it has 32 bits")
    }
}

/// Map value and the hash of the value's name, in 16 bytes.
#[derive(Clone)]
enum Slot {
    Object(u32, Object),
    Posting(u32, Arc<Posting>),
}

impl Slot {
    fn name_hash(&self) -> u32 {
        match self {
            Self::Object(hash, _) | Self::Posting(hash, _) => *hash,
        }
    }

    #[inline] // the processor overlaps the memory accesses of several reads only if a read has few instructions
    fn is_of(&self, hash: u32, name: Name<'_>) -> bool {
        match (self, name) {
            (Self::Object(own, object), Name::Object(key)) => *own == hash && object.has_key(key),
            (Self::Posting(own, posting), Name::Posting(index, value)) => *own == hash && posting.is_of(index, value),
            _ => false,
        }
    }

    fn object(&self) -> Option<&Object> {
        match self {
            Self::Object(_, object) => Some(object),
            Self::Posting(..) => None,
        }
    }

    fn posting(&self) -> Option<&Posting> {
        match self {
            Self::Object(..) => None,
            Self::Posting(_, posting) => Some(posting),
        }
    }
}

// evmap uses this to find the value to remove in a bag.
impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Object(_, one), Self::Object(_, other)) => one.ptr_eq(other),
            (Self::Posting(_, one), Self::Posting(_, other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for Slot {}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.name_hash());
    }
}

/// Extends a 32-bit hash to 64 bits. hashbrown takes the table position from the low bits, and compares the top seven bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 47 | u64::from(hash)
}

/// Hasher of the map. It takes the hash that a key or slot contains, and extends it with `spread`. The builder of the hasher is
/// zero-sized, because evmap stores a builder in every bag.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys and slots hash one `u32`");
    }

    fn write_u32(&mut self, hash: u32) {
        self.0 = spread(hash);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type WriteHandle = evmap::handles::WriteHandle<u32, Slot, Arc<Meta>, BuildHasherDefault<Spread>>;
type ReadHandle = evmap::handles::ReadHandle<u32, Slot, Arc<Meta>, BuildHasherDefault<Spread>>;
type MapRef<'a> = evmap::refs::MapReadRef<'a, u32, Slot, Arc<Meta>, BuildHasherDefault<Spread>>;

#[expect(unsafe_code, reason = "evmap requires a promise that equality and hashes are stable")]
fn make_map(meta: Arc<Meta>) -> WriteHandle {
    let hasher = BuildHasherDefault::<Spread>::default();
    // SAFETY: evmap frees a value once both copies of the map have removed it. So both must remove the same value, which needs
    // stable equality and hashes. `Spread` has no seed: equal input gives an equal hash. A `u32` and its clones compare and
    // hash by value. A `Slot` compares by the address of an allocation, which its clones share and keep alive. It hashes by a
    // number that it contains. No code changes the address or the number of a slot in the map.
    unsafe { evmap::Options::default().with_meta(meta).with_hasher(hasher).assert_stable() }.0
}

fn bag_of(hash: u32) -> u32 {
    hash >> (u32::BITS - BAG_BITS)
}

/// Returns all values of the map with this hash.
fn sharing<'m>(map: &'m MapRef<'_>, hash: u32) -> impl Iterator<Item = &'m Slot> {
    map.get(&bag_of(hash)).into_iter().flatten().filter(move |slot| slot.name_hash() == hash)
}

fn find<'m>(map: &'m MapRef<'_>, hash: u32, name: Name<'_>) -> Option<&'m Slot> {
    map.get(&bag_of(hash))?.iter().find(|slot| slot.is_of(hash, name))
}

/// Returns true if `object` has `value` in `index`.
fn has_value(index: &IndexFunc, object: &Object, value: &str) -> bool {
    index.values(object).is_some_and(|values| values.iter().any(|found| *found == *value))
}

/// Staged change of one map value, from the state `published` to the state `now`. If both states are `None`, the change has no
/// effect, and `is_of` returns false for every name.
struct Staged {
    hash: u32,
    published: Option<Slot>,
    now: Option<Slot>,
}

impl Staged {
    fn is_of(&self, hash: u32, name: Name<'_>) -> bool {
        self.published.iter().chain(&self.now).any(|slot| slot.is_of(hash, name))
    }
}

/// Write half of a cache, over evmap; see the module documentation. [`EvmapStore::get_all`] sees staged changes, readers do not.
/// [`EvmapStore::publish`] shows all staged changes to readers at once.
///
/// evmap can neither read nor discard unpublished changes. So staged changes are kept outside the map. Each object and each posting
/// has at most one staged change, even if a batch changes the object or posting several times.
pub struct EvmapStore<H = FixedState> {
    writer: WriteHandle,
    staged: HashTable<Staged>,
    meta: Meta,
    published: Arc<Meta>,
    /// Largest number of objects since `publish` last reduced the memory of the bags.
    objects_max: u64,
    successor: Successor<H>,
    pub(super) hasher: H,
}

/// Reader factory of the store that replaces this store. [`ReaderFactory::lead_to`] sets it. All readers of the replaced store
/// share this cell.
type Successor<H> = Arc<OnceLock<ReaderFactory<H>>>;

/// Hasher of keys. Its seed keeps attackers from choosing names with equal hashes.
pub trait KeyHasher: BuildHasher + Clone + Send + Sync + 'static {}

impl<H: BuildHasher + Clone + Send + Sync + 'static> KeyHasher for H {}

impl EvmapStore {
    /// Returns an empty store with the index of namespaces, followed by `indexes`. `seed` must be random for each process. If
    /// several indexes have the same name, only the first is added.
    pub fn new(seed: u64, indexes: impl IntoIterator<Item = IndexFunc>) -> Self {
        Self::with_hasher(FixedState::with_seed(seed), indexes)
    }
}

impl<H: KeyHasher> EvmapStore<H> {
    /// Returns an empty store that hashes keys with `hasher`.
    pub(crate) fn with_hasher(hasher: H, indexes: impl IntoIterator<Item = IndexFunc>) -> Self {
        let mut distinct = vec![IndexFunc::namespace()];
        for index in indexes {
            if distinct.iter().all(|known| known.name() != index.name()) {
                distinct.push(index);
            }
        }
        let meta = Meta { indexes: IndexSet::new(distinct), ..Meta::default() };
        let published = Arc::new(meta.clone());
        let mut writer = make_map(Arc::clone(&published));
        writer.publish();
        let (staged, successor) = Default::default();
        Self { writer, staged, meta, published, objects_max: 0, successor, hasher }
    }

    /// Returns a factory that makes readers on any thread.
    pub fn reader_factory(&self) -> ReaderFactory<H> {
        ReaderFactory {
            handle: Arc::new(Mutex::new(ReadHandle::clone(&self.writer))),
            hasher: self.hasher.clone(),
            successor: Arc::clone(&self.successor),
        }
    }

    /// Returns the staged state of one map value, so that the caller can change it.
    fn stage_slot(&mut self, hash: u32, name: Name<'_>) -> &mut Option<Slot> {
        let make = || {
            let published = self.writer.enter().and_then(|map| find(&map, hash, name).cloned());
            Staged { hash, now: published.clone(), published }
        };
        let entry = self.staged.entry(spread(hash), |staged| staged.is_of(hash, name), |staged| spread(staged.hash));
        &mut entry.or_insert_with(make).into_mut().now
    }

    /// Stages a change of one posting. An empty posting is removed (I-3).
    fn stage_posting(&mut self, index: u32, value: &str, change: impl FnOnce(&mut Posting)) {
        let name = Name::Posting(index, value);
        let hash = name.hash_with(&self.hasher);
        let slot = self.stage_slot(hash, name);
        let make = || Slot::Posting(hash, Arc::new(Posting::new(index, value)));
        if let Slot::Posting(_, posting) = slot.get_or_insert_with(make) {
            let posting = Arc::make_mut(posting);
            change(posting);
            if posting.len() == 0 {
                *slot = None;
            }
        }
    }

    /// Returns the staged changes of all values with this hash.
    fn staged(&self, hash: u32) -> impl Iterator<Item = &Staged> {
        self.staged.iter_hash(spread(hash)).filter(move |staged| staged.hash == hash)
    }

    /// Returns the current objects with their hashes: the objects in `staged`, and the objects in `published` without a staged
    /// change.
    fn objects<'s>(
        &'s self,
        published: impl Iterator<Item = &'s Slot>,
        staged: impl Iterator<Item = &'s Staged>,
    ) -> impl Iterator<Item = (u32, &'s Object)> {
        let is_staged =
            |slot: &Slot| self.staged(slot.name_hash()).any(|staged| staged.published.as_ref() == Some(slot));
        let unchanged = published.filter(move |slot| !is_staged(slot));
        let slots = staged.filter_map(|staged| staged.now.as_ref()).chain(unchanged);
        slots.filter_map(|slot| Some((slot.name_hash(), slot.object()?)))
    }

    /// Returns true if an object with another key than `key` has the hash `hash`, and has `value` in `index`.
    fn is_shared(&self, hash: u32, key: KeyRef<'_>, index: &IndexFunc, value: &str) -> bool {
        let map = self.writer.enter();
        let published = map.iter().flat_map(|map| sharing(map, hash));
        let mut objects = self.objects(published, self.staged(hash));
        objects.any(|(_, object)| object.key() != key && has_value(index, object, value))
    }

    /// Replaces the values of `old` by the values of `new` in the postings (I-2). Changes only indexes whose id is at least
    /// `first`.
    fn reindex(&mut self, hash: u32, old: Option<&Object>, new: Option<&Object>, first: u32) {
        let indexes = self.meta.indexes.clone();
        if indexes.of_keys && old.is_some() && new.is_some() {
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

    /// Stages the state of one key, and updates the counters. `state` has two forms of the object: the form to store, and the form
    /// from which the index values are read. `None` removes the key.
    fn stage(&mut self, key: KeyRef<'_>, state: Option<(&Object, &Object)>) {
        if let Some((hash, old)) = self.stage_object(key, state.map(|(object, _)| object)) {
            self.reindex(hash, old.as_ref(), state.map(|(_, read)| read), 0);
        }
    }

    /// Stages the object of one key without changing its indexes, and updates the counters. Returns the hash and the previous
    /// object; `None` if nothing has changed.
    fn stage_object(&mut self, key: KeyRef<'_>, new: Option<&Object>) -> Option<(u32, Option<Object>)> {
        let name = Name::Object(key);
        let hash = name.hash_with(&self.hasher);
        let slot = self.stage_slot(hash, name);
        let old = std::mem::replace(slot, new.map(|object| Slot::Object(hash, object.clone())));
        if old == *slot {
            return None;
        }
        let old = old.as_ref().and_then(Slot::object).cloned();
        self.meta.objects = self.meta.objects + u64::from(new.is_some()) - u64::from(old.is_some());
        let size = |object: Option<&Object>| object.map_or(0, |object| object.size_bytes() as u64);
        self.meta.bytes = self.meta.bytes + size(new) - size(old.as_ref());
        Some((hash, old))
    }

    /// Returns the states of several keys with the staged changes, in the order of the keys.
    pub fn get_all<'a>(&self, keys: impl Iterator<Item = KeyRef<'a>>) -> Vec<Option<Object>> {
        let map = self.writer.enter();
        let find = |key| -> Option<&Object> {
            let name = Name::Object(key);
            let hash = name.hash_with(&self.hasher);
            match self.staged(hash).find(|staged| staged.is_of(hash, name)) {
                Some(staged) => staged.now.as_ref()?.object(),
                None => find(map.as_ref()?, hash, name)?.object(),
            }
        };
        // The processor fetches many objects in parallel while the code only reads. So no object is cloned before all are found.
        let found: Vec<_> = keys.map(find).collect();
        found.into_iter().map(Option::<&_>::cloned).collect()
    }

    /// Returns the staged metadata.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Stages `object` as the state of its key (I-2).
    pub fn put(&mut self, object: &Object) {
        self.put_as(object, object);
    }

    /// Stages `object` as the state of its key. The index values are read from `read`, another form of the same state.
    pub fn put_as(&mut self, object: &Object, read: &Object) {
        self.stage(object.key(), Some((object, read)));
    }

    /// Stages `object`, another form of the current state of its key. Both forms have the same index values.
    pub fn replace(&mut self, object: &Object) {
        self.stage_object(object.key(), Some(object));
    }

    /// Stages the removal of `key` (I-3).
    pub fn remove(&mut self, key: KeyRef<'_>) {
        self.stage(key, None);
    }

    /// Stages the versions that the store has reached.
    pub fn reach(&mut self, reached: Reached) {
        let Reached { generation, store_version, resume_version, synced } = reached;
        self.meta = Meta { generation, store_version, resume_version, synced, ..std::mem::take(&mut self.meta) };
    }

    /// Stages the journal position up to which the store has the records of the unit. A position lower than the current one has no
    /// effect.
    pub fn reach_position(&mut self, position: u64) {
        self.meta.position = self.meta.position.max(position);
    }

    /// Stages new indexes over all objects (I-7). Adds none if one of the names exists.
    pub fn add_indexes(&mut self, indexes: Vec<IndexFunc>) -> Result<(), IndexExists> {
        let mut all = self.meta.indexes.as_slice().to_vec();
        for index in indexes {
            if all.iter().any(|known| known.name() == index.name()) {
                return Err(IndexExists(index.name().to_owned()));
            }
            all.push(index);
        }
        let first = u32::try_from(self.meta.indexes.as_slice().len()).expect("there are fewer than 2^32 indexes");
        self.meta.indexes = IndexSet::new(all);
        let map = self.writer.enter();
        let published = map.iter().flat_map(|map| map.values().flatten());
        let objects = self.objects(published, self.staged.iter()).map(|(hash, object)| (hash, object.clone()));
        let objects: Vec<_> = objects.collect();
        drop(map);
        for (hash, object) in objects {
            self.reindex(hash, None, Some(&object), first);
        }
        self.meta.generation += 1;
        Ok(())
    }

    /// Shows staged changes to readers. If a reader still reads a version older than the last published one, waits for this reader.
    pub fn publish(&mut self) {
        for Staged { hash, published, now } in self.staged.drain().filter(|staged| staged.published != staged.now) {
            if let Some(slot) = published {
                self.writer.remove_value(bag_of(hash), slot);
            }
            if let Some(slot) = now {
                self.writer.insert(bag_of(hash), slot);
            }
        }
        self.staged.shrink_to(KEPT_ROOM, |staged| spread(staged.hash));
        self.objects_max = self.objects_max.max(self.meta.objects);
        if self.meta.objects < self.objects_max / 8 {
            self.objects_max = self.meta.objects;
            self.writer.fit_all();
        }
        self.published = Arc::new(self.meta.clone());
        self.writer.set_meta(Arc::clone(&self.published));
        self.writer.publish();
    }

    /// Frees the values that the last publish replaced. Waits like `publish`. Readers see no change.
    pub fn publish_idle(&mut self) {
        self.writer.publish();
    }

    /// Discards staged changes.
    pub fn discard(&mut self) {
        self.staged.clear();
        self.meta = Meta::clone(&self.published);
    }

    /// Returns a reader. Takes a lock for a short time.
    pub fn reader(&self) -> StoreReader<H> {
        self.reader_factory().reader()
    }
}

/// Reader of an [`EvmapStore`]. It is `Clone` and `Send`, but not `Sync`. Cloning takes a lock for a short time.
#[derive(Clone)]
pub struct StoreReader<H = FixedState> {
    handle: ReadHandle,
    hasher: H,
    successor: Successor<H>,
    /// Reader of the successor, created on first use.
    moved: OnceCell<Box<Self>>,
}

/// Factory of readers on any thread. It is `Clone`, `Send` and `Sync`. Making a reader takes a lock: make one per thread, not
/// one per read.
#[derive(Clone)]
pub struct ReaderFactory<H = FixedState> {
    /// Handle from which readers are cloned. The handle is not `Sync`, so a mutex guards it. evmap 11 has a factory type for
    /// handles, but exports no way to create a factory.
    handle: Arc<Mutex<ReadHandle>>,
    hasher: H,
    successor: Successor<H>,
}

impl<H: KeyHasher> ReaderFactory<H> {
    /// Returns a reader.
    pub fn reader(&self) -> StoreReader<H> {
        StoreReader {
            handle: lock(&self.handle).clone(),
            hasher: self.hasher.clone(),
            successor: Arc::clone(&self.successor),
            moved: OnceCell::new(),
        }
    }

    /// Redirects every reader of this store, existing ones included, permanently to another store.
    pub fn lead_to(&self, successor: Self) {
        let _led_on_before = self.successor.set(successor);
    }
}

impl<H: KeyHasher> StoreReader<H> {
    /// Returns the version that the store published last, and holds it open. If the store has a successor, uses the successor
    /// instead. Returns `None` if the used store was dropped.
    pub(super) fn enter(&self) -> Option<Published<'_, H>> {
        match self.moved() {
            Some(moved) => moved.enter(),
            None => match self.handle.enter() {
                Some(map) => Some(Published { map, hasher: &self.hasher }),
                // The store was replaced and dropped since the check above.
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
            None => query(&Union::default()),
        }
    }
}

/// A version that is held open.
pub(super) struct Published<'a, H = FixedState> {
    map: MapRef<'a>,
    hasher: &'a H,
}

impl<H: KeyHasher> Snapshot for Published<'_, H> {
    fn meta(&self) -> &Meta {
        self.map.meta()
    }

    fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        let name = Name::Object(key);
        find(&self.map, name.hash_with(self.hasher), name)?.object()
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Object)) {
        self.map.values().flatten().filter_map(Slot::object).for_each(visit);
    }

    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object)) {
        let name = Name::Posting(index, value);
        let slot = find(&self.map, name.hash_with(self.hasher), name);
        let Some(posting) = slot.and_then(Slot::posting) else { return };
        let Some(func) = self.meta().indexes.as_slice().get(index as usize) else { return };
        for hash in posting.iter() {
            let mut sharing = sharing(&self.map, hash).filter_map(Slot::object);
            match (sharing.next(), sharing.next()) {
                (Some(object), None) => visit(object),
                // Several objects share the hash, so the index function decides which of them have the value.
                (first, second) => {
                    let all = first.into_iter().chain(second).chain(sharing);
                    all.filter(|object| has_value(func, object, value)).for_each(&mut *visit);
                }
            }
        }
    }

    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str)) {
        let postings = self.map.values().flatten().filter_map(Slot::posting);
        postings.filter(|posting| posting.index == index).for_each(|posting| visit(&posting.value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<H: KeyHasher> EvmapStore<H> {
        /// Returns the hashes of all published objects and postings, and the capacity of their bags.
        pub(in crate::indexer) fn entries(&self) -> (Vec<u32>, usize) {
            let map = self.writer.enter().expect("it was published");
            let hashes = map.values().flatten().map(Slot::name_hash).collect();
            (hashes, map.values().map(evmap::refs::Values::capacity).sum())
        }

        /// Returns the number of hashes that several published objects or postings share.
        pub(in crate::indexer) fn collisions(&self) -> usize {
            let (mut hashes, _) = self.entries();
            hashes.sort_unstable();
            hashes.chunk_by(u32::eq).filter(|equal| equal.len() > 1).count()
        }

        /// Returns the staged state of a key.
        pub(in crate::indexer) fn get(&self, key: KeyRef<'_>) -> Option<Object> {
            self.get_all(std::iter::once(key)).pop()?
        }
    }

    #[test]
    fn map_key_takes_49_bytes() {
        type Bag = evmap::refs::Values<Slot, BuildHasherDefault<Spread>>;
        assert_eq!((size_of::<Slot>(), size_of::<(u32, Bag)>()), (16, 48), "and hashbrown's control byte");
    }
}
