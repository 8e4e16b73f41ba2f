//! Where the cache lives: one map for objects and all indexes, published as a whole (D5, I-9, D-12).
//!
//! [`EvmapStore`] is the write half and the only place that names evmap; [`StoreReader`] reads the version published
//! last, without a lock. An object is found by the 64-bit hash of its key, a posting by that of its index and value;
//! what shares a hash lies in one slot and is told apart on reading.
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
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::{Arc, Mutex, OnceLock},
};

use foldhash::quality::FixedState;

use super::{
    index_func::{IndexFunc, IndexSet},
    posting::Posting,
};
use crate::{
    mutex::lock,
    object::{KeyRef, Object, ResourceVersion},
};

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
    /// Visits every object once, in no order.
    fn for_each(&self, visit: &mut dyn FnMut(&Object));
    /// Visits every object that has `value` in the index, once, in no order.
    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object));
    /// Visits every value with an object in the index, in no order. Looks at the whole map.
    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str));
}

/// Passes a hash on that was made before.
#[derive(Clone, Copy, Debug, Default)]
struct HashOfHash(u64);

impl Hasher for HashOfHash {
    /// Not called: what is hashed are hashes, and addresses.
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Zero bytes, unlike the usual one: evmap keeps it in every value.
type NoHash = BuildHasherDefault<HashOfHash>;
type WriteHandle = evmap::handles::WriteHandle<u64, Slot, Arc<Meta>, NoHash>;
type ReadHandle = evmap::handles::ReadHandle<u64, Slot, Arc<Meta>, NoHash>;
type MapRef<'a> = evmap::refs::MapReadRef<'a, u64, Slot, Arc<Meta>, NoHash>;

/// What one hash leads to.
#[derive(Clone)]
enum Slot {
    Object(Object),
    Posting(Arc<Posting>),
    /// At least two objects or postings whose hashes are equal. One pointer wide, as the others: there are two slots an
    /// object.
    Collision(Arc<Vec<Slot>>),
}

impl Slot {
    fn members(&self) -> &[Slot] {
        match self {
            Self::Collision(members) => members,
            single => std::slice::from_ref(single),
        }
    }

    fn objects(&self) -> impl Iterator<Item = &Object> {
        self.members().iter().filter_map(|member| match member {
            Self::Object(object) => Some(object),
            _ => None,
        })
    }

    fn postings(&self) -> impl Iterator<Item = &Arc<Posting>> {
        self.members().iter().filter_map(|member| match member {
            Self::Posting(posting) => Some(posting),
            _ => None,
        })
    }

    fn object(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.objects().find(|object| object.key() == key)
    }

    fn posting(&self, index: u32, value: &str) -> Option<&Arc<Posting>> {
        self.postings().find(|posting| posting.index == index && *posting.value == *value)
    }

    fn address(&self) -> usize {
        match self {
            Self::Object(object) => object.address(),
            Self::Posting(posting) => Arc::as_ptr(posting).addr(),
            Self::Collision(members) => Arc::as_ptr(members).addr(),
        }
    }

    /// Joins what shares a hash.
    fn join(mut members: Vec<Slot>) -> Option<Slot> {
        match members.len() {
            0 | 1 => members.pop(),
            _ => Some(Self::Collision(Arc::new(members))),
        }
    }
}

// evmap asks for these to find a value in a bag; a bag never holds more than one here
impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Slot {}

impl Hash for Slot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.address() as u64);
    }
}

fn hash_of_key(hasher: &impl BuildHasher, key: KeyRef<'_>) -> u64 {
    hasher.hash_one((0_u8, key.namespace, key.name))
}

fn hash_of_value(hasher: &impl BuildHasher, index: u32, value: &str) -> u64 {
    hasher.hash_one((1_u8, index, value))
}

/// Returns whether `object` has `value` in `index`.
fn has_value(index: &IndexFunc, object: &Object, value: &str) -> bool {
    index.values(object).is_some_and(|values| values.iter().any(|found| *found == *value))
}

/// The write half over evmap: see the module.
///
/// Staged changes lie beside the map until they are published, each key and each posting once however often a batch
/// touched it.
pub struct EvmapStore<H = FixedState> {
    writer: WriteHandle,
    staged: HashMap<u64, Option<Slot>, NoHash>,
    meta: Meta,
    published: Arc<Meta>,
    successor: Successor<H>,
    pub(super) hasher: H,
}

/// Where the readers of a store go on once it is replaced; shared by all of them.
type Successor<H> = Arc<OnceLock<ReaderFactory<H>>>;

/// A hasher of keys; its seed keeps names chosen by others from colliding.
pub trait KeyHasher: BuildHasher + Clone + Send + 'static {}

impl<H: BuildHasher + Clone + Send + 'static> KeyHasher for H {}

impl EvmapStore {
    /// Makes an empty store with `indexes` and, before them, the index of namespaces; `seed` shall be random for each
    /// process. Of indexes of one name the first stays.
    pub fn new(seed: u64, indexes: impl IntoIterator<Item = IndexFunc>) -> Self {
        Self::with_hasher(FixedState::with_seed(seed), indexes)
    }
}

impl<H: KeyHasher> EvmapStore<H> {
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
        let mut writer = make_map(published.clone());
        writer.publish();
        Self { writer, staged: HashMap::default(), meta, published, successor: Arc::default(), hasher }
    }

    /// Returns something that makes readers on any thread.
    pub fn reader_factory(&self) -> ReaderFactory<H> {
        ReaderFactory { reader: Arc::new(Mutex::new(self.reader())) }
    }

    fn slot(&self, hash: u64) -> Option<Slot> {
        match self.staged.get(&hash) {
            Some(staged) => staged.clone(),
            None => self.writer.get_one(&hash).map(|slot| slot.clone()),
        }
    }

    /// Stages a change of one posting; an empty one goes (I-3).
    fn stage_posting(&mut self, index: u32, value: &str, change: impl FnOnce(&mut Posting)) {
        let hash = hash_of_value(&self.hasher, index, value);
        let writer = &self.writer;
        let slot = self.staged.entry(hash).or_insert_with(|| writer.get_one(&hash).map(|slot| slot.clone()));
        if let Some(Slot::Posting(posting)) = slot
            && posting.index == index
            && *posting.value == *value
        {
            let posting = Arc::make_mut(posting);
            change(posting);
            if posting.len() == 0 {
                *slot = None;
            }
            return;
        }
        let members = slot.as_ref().map_or(&[][..], Slot::members);
        let found = slot.as_ref().and_then(|slot| slot.posting(index, value));
        let mut posting = found.map_or_else(|| Posting::new(index, value), |posting| Posting::clone(posting));
        change(&mut posting);
        let is_it = |member: &&Slot| member.posting(index, value).is_some();
        let others = members.iter().filter(|member| !is_it(member)).cloned();
        let changed = (posting.len() > 0).then(|| Slot::Posting(Arc::new(posting)));
        *slot = Slot::join(others.chain(changed).collect());
    }

    /// Brings the postings from the values of `old` to those of `new`, for the indexes from the id `first` on (I-2).
    fn reindex(&mut self, hash: u64, old: Option<&Object>, new: Option<&Object>, first: u32) {
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
                let slot = self.slot(hash);
                let mut sharing = slot.iter().flat_map(Slot::objects).filter(|o| Some(o.key()) != old.map(Object::key));
                if !sharing.any(|other| has_value(index, other, value)) {
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
        if let Some((hash, slot)) = self.stage_object(key, state.map(|(object, _)| object)) {
            let old = slot.as_ref().and_then(|slot| slot.object(key));
            self.reindex(hash, old, state.map(|(_, read)| read), 0);
        }
    }

    /// Replaces the staged object of one key, its indexes left as they are, and keeps the account. Returns where it is
    /// and what was there; none where it was there before.
    fn stage_object(&mut self, key: KeyRef<'_>, new: Option<&Object>) -> Option<(u64, Option<Slot>)> {
        let hash = hash_of_key(&self.hasher, key);
        let slot = self.slot(hash);
        let old = slot.as_ref().and_then(|slot| slot.object(key));
        let is_committed = match (old, new) {
            (Some(old), Some(new)) => old.ptr_eq(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if is_committed {
            return None;
        }
        let staged = match &slot {
            Some(slot) if slot.members().len() > 1 || old.is_none() => {
                let is_it = |member: &Slot| member.object(key).is_some();
                let others = slot.members().iter().filter(|member| !is_it(member)).cloned();
                Slot::join(others.chain(new.cloned().map(Slot::Object)).collect())
            }
            _ => new.cloned().map(Slot::Object),
        };
        self.staged.insert(hash, staged);
        self.meta.objects = self.meta.objects + u64::from(new.is_some()) - u64::from(old.is_some());
        let size = |object: Option<&Object>| object.map_or(0, |object| object.size_bytes() as u64);
        self.meta.bytes = self.meta.bytes + size(new) - size(old);
        Some((hash, slot))
    }

    /// Counts the published slots.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.writer.enter().map_or(0, |map| map.len())
    }

    /// Counts the published slots that hold more than one object or posting.
    #[cfg(test)]
    pub(super) fn collisions(&self) -> usize {
        let is_shared = |slot: &Slot| slot.members().len() > 1;
        self.writer.enter().map_or(0, |map| map.iter().filter(|(_, slots)| slots.iter().any(is_shared)).count())
    }

    /// Returns every staged object with the hash of its key.
    fn all(&self) -> Vec<(u64, Object)> {
        let mut all = Vec::new();
        let mut add = |hash: u64, slot: &Slot| all.extend(slot.objects().map(|object| (hash, object.clone())));
        if let Some(map) = self.writer.enter() {
            for (&hash, values) in map.iter().filter(|(hash, _)| !self.staged.contains_key(*hash)) {
                values.iter().for_each(|slot| add(hash, slot));
            }
        }
        for (&hash, slot) in &self.staged {
            if let Some(slot) = slot {
                add(hash, slot);
            }
        }
        all
    }
}

/// Makes evmap's two halves.
#[expect(unsafe_code, reason = "evmap asks for a promise that hashing is deterministic")]
fn make_map(meta: Arc<Meta>) -> WriteHandle {
    // safety: `NoHash` has no state, so the same key always has the same hash. `u64` and its clones hash and compare by
    // value, `Slot` by the address of an allocation that a clone shares.
    unsafe { evmap::Options::default().with_meta(meta).with_hasher(NoHash::default()).assert_stable() }.0
}

impl<H: KeyHasher> IndexStore for EvmapStore<H> {
    type Reader = StoreReader<H>;

    fn get_all<'a>(&self, keys: impl Iterator<Item = KeyRef<'a>>) -> Vec<Option<Object>> {
        let map = self.writer.enter();
        let find = |key: KeyRef<'_>| -> Option<&Object> {
            let hash = hash_of_key(&self.hasher, key);
            let slot = match self.staged.get(&hash) {
                Some(staged) => staged.as_ref()?,
                None => map.as_ref()?.get_one(&hash)?,
            };
            slot.object(key)
        };
        // all are found before the first is cloned: reading alone, the processor waits for many of them at once
        let found: Vec<_> = keys.map(find).collect();
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
        for (hash, slot) in self.staged.drain() {
            match slot {
                Some(slot) => self.writer.update(hash, slot),
                None => self.writer.remove_entry(hash),
            };
        }
        self.staged.shrink_to(1 << 12);
        self.meta.published_micros = at_micros;
        self.published = Arc::new(self.meta.clone());
        self.writer.set_meta(self.published.clone());
        self.writer.publish();
    }

    fn publish_idle(&mut self) {
        self.writer.publish();
    }

    fn discard(&mut self) {
        self.staged.clear();
        self.meta = Meta::clone(&self.published);
    }

    fn reader(&self) -> StoreReader<H> {
        StoreReader {
            handle: ReadHandle::clone(&self.writer),
            hasher: self.hasher.clone(),
            successor: Arc::clone(&self.successor),
            moved: OnceCell::new(),
        }
    }
}

/// Reads what an [`EvmapStore`] publishes: `Clone` and `Send`, not `Sync`. Cloning takes a lock for a moment.
#[derive(Clone)]
pub struct StoreReader<H = FixedState> {
    handle: ReadHandle,
    hasher: H,
    successor: Successor<H>,
    /// The reader of the successor, made when it is first needed.
    moved: OnceCell<Box<Self>>,
}

/// Makes readers on any thread; `Clone`, `Send` and `Sync`. It takes a lock: ask once a thread, not once a read.
#[derive(Clone)]
pub struct ReaderFactory<H = FixedState> {
    reader: Arc<Mutex<StoreReader<H>>>,
}

impl<H: KeyHasher> ReaderFactory<H> {
    /// Makes a reader.
    pub fn reader(&self) -> StoreReader<H> {
        lock(&self.reader).clone()
    }

    /// Sends every reader of this store, also those made long ago, on to another one, for good.
    pub fn lead_to(&self, successor: Self) {
        let reader = lock(&self.reader);
        let _led_on_before = reader.successor.set(successor);
    }
}

impl<H: KeyHasher> StoreReader<H> {
    /// Holds the version published last, or that of the successor; `None` once both are dropped.
    pub(super) fn enter(&self) -> Option<Published<'_, H>> {
        match self.moved() {
            Some(moved) => moved.enter(),
            None => match self.handle.enter() {
                Some(map) => Some(Published { map, hasher: &self.hasher }),
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

/// The map, held open.
pub(super) struct Published<'a, H = FixedState> {
    map: MapRef<'a>,
    hasher: &'a H,
}

impl<H: KeyHasher> Snapshot for Published<'_, H> {
    fn meta(&self) -> &Meta {
        self.map.meta()
    }

    fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.map.get_one(&hash_of_key(self.hasher, key))?.object(key)
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Object)) {
        for (_, values) in &self.map {
            values.iter().flat_map(Slot::objects).for_each(&mut *visit);
        }
    }

    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object)) {
        let slot = self.map.get_one(&hash_of_value(self.hasher, index, value));
        let Some(posting) = slot.and_then(|slot| slot.posting(index, value)) else { return };
        let Some(func) = self.meta().indexes.as_slice().get(index as usize) else { return };
        for slot in posting.iter().filter_map(|hash| self.map.get_one(&hash)) {
            match slot {
                Slot::Object(object) => visit(object),
                // one of those that share the hash has the value: which?
                shared => shared.objects().filter(|object| has_value(func, object, value)).for_each(&mut *visit),
            }
        }
    }

    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str)) {
        for (_, values) in &self.map {
            let postings = values.iter().flat_map(Slot::postings);
            postings.filter(|posting| posting.index == index).for_each(|posting| visit(&posting.value));
        }
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
