//! Union of the caches of one type (I-9, L-1). Each namespace may have its own unit, and units may be replaced while a reader
//! exists.

use std::{
    cell::{Cell, OnceCell, RefCell},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;

use super::{
    index_func::IndexSet,
    store::{Meta, Published, ReadStore, ReaderFactory, Snapshot, StoreReader},
};
use crate::object::{KeyRef, Object, ResourceVersion};

/// The current caches of one type. All readers share this list, and follow its changes.
#[derive(Default)]
pub(crate) struct Caches {
    factories: ArcSwap<Vec<ReaderFactory>>,
    /// Number of changes to `factories`.
    changes: AtomicU64,
}

impl Caches {
    /// Replaces the caches. Later reads use the new ones. Keep the old caches until this call returns.
    pub(crate) fn set(&self, factories: Vec<ReaderFactory>) {
        self.factories.store(Arc::new(factories));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns a reader. Takes a lock for each cache.
    pub(crate) fn reader(self: &Arc<Self>) -> UnionReader {
        // The counter is read first: a later change of the caches is then noticed by the next read.
        let changes = self.changes.load(Ordering::Acquire);
        let readers = RefCell::new(self.readers());
        UnionReader { caches: Arc::clone(self), changes: Cell::new(changes), readers }
    }

    fn readers(&self) -> Vec<StoreReader> {
        self.factories.load().iter().map(ReaderFactory::reader).collect()
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caches({})", self.factories.load().len())
    }
}

/// Reads all caches of one type as one. It is `Clone` and `Send`, but not `Sync`.
///
/// A read uses one version of each cache. These versions may be from different moments, because each unit has its own stream. If
/// there is only one cache, reads behave like those of a [`StoreReader`]. An index exists if every cache has it.
#[derive(Clone)]
pub struct UnionReader {
    caches: Arc<Caches>,
    changes: Cell<u64>,
    readers: RefCell<Vec<StoreReader>>,
}

impl UnionReader {
    fn is_behind(&self) -> bool {
        self.caches.changes.load(Ordering::Acquire) != self.changes.get()
    }

    /// Switches to the current caches, unless this is a read within a read.
    fn follow(&self) {
        if let Ok(mut readers) = self.readers.try_borrow_mut() {
            self.changes.set(self.caches.changes.load(Ordering::Acquire));
            *readers = self.caches.readers();
        }
    }
}

impl ReadStore for UnionReader {
    fn read<T>(&self, query: impl FnOnce(&dyn Snapshot) -> T) -> T {
        if self.is_behind() {
            self.follow();
        }
        let readers = self.readers.borrow();
        if let [reader] = &readers[..] {
            match reader.enter() {
                Some(published) => return query(&published),
                None if !self.is_behind() => return reader.read(query),
                None => {}
            }
        } else {
            let parts: Vec<_> = readers.iter().filter_map(StoreReader::enter).collect();
            if parts.len() == readers.len() || !self.is_behind() {
                return query(&Union { parts, meta: OnceCell::new() });
            }
        }
        // A cache was replaced and dropped since the check above.
        self.caches.reader().read(query)
    }
}

/// One version of each cache, held open. A union without caches is empty and not synced; readers of a dropped store get it.
#[derive(Default)]
pub(super) struct Union<'a> {
    parts: Vec<Published<'a>>,
    /// Combined metadata of the parts.
    meta: OnceCell<Meta>,
}

impl Union<'_> {
    /// Returns the parts that have this index, each with the id of the index in that part. `index` is the id of the same index
    /// in the combined metadata.
    fn with_index(&self, index: u32) -> impl Iterator<Item = (&Published<'_>, u32)> {
        let index = self.meta().indexes.as_slice().get(index as usize);
        self.parts.iter().filter_map(move |part| Some((part, part.meta().index_id(index?.name())?)))
    }
}

impl Snapshot for Union<'_> {
    fn meta(&self) -> &Meta {
        self.meta.get_or_init(|| merge(&self.parts.iter().map(Snapshot::meta).collect::<Vec<_>>()))
    }

    fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.parts.iter().find_map(|part| part.get(key))
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Object)) {
        self.parts.iter().for_each(|part| part.for_each(visit));
    }

    fn for_each_with(&self, index: u32, value: &str, visit: &mut dyn FnMut(&Object)) {
        self.with_index(index).for_each(|(part, id)| part.for_each_with(id, value, visit));
    }

    fn for_each_value(&self, index: u32, visit: &mut dyn FnMut(&str)) {
        let mut seen = std::collections::BTreeSet::new();
        for (part, id) in self.with_index(index) {
            part.for_each_value(id, &mut |value| {
                seen.insert(value.to_owned());
            });
        }
        for value in &seen {
            visit(value);
        }
    }
}

/// Returns the indexes that every part has. Usually all parts have the same ones.
fn common_indexes(metas: &[&Meta]) -> IndexSet {
    let Some((first, others)) = metas.split_first() else { return IndexSet::default() };
    let has = |meta: &Meta, name: &str| meta.index_id(name).is_some();
    let common = |name: &str| others.iter().all(|meta| has(meta, name));
    let mut indexes = first.indexes.as_slice().to_vec();
    let all = indexes.len();
    indexes.retain(|index| common(index.name()));
    if indexes.len() == all { first.indexes.clone() } else { IndexSet::new(indexes) }
}

/// Combines the metadata of several caches: adds up the counts, and takes the newest version. So a client that waits for the
/// version of its own write does not wait for units without changes. But the unit of the written object may still be behind this
/// version.
fn merge(metas: &[&Meta]) -> Meta {
    let mut merged = Meta { synced: !metas.is_empty(), indexes: common_indexes(metas), ..Meta::default() };
    for meta in metas {
        merged.generation += meta.generation;
        merged.objects += meta.objects;
        merged.bytes += meta.bytes;
        merged.index_failures += meta.index_failures;
        merged.synced &= meta.synced;
    }
    merged.store_version = ResourceVersion::newest(metas.iter().map(|meta| meta.store_version.clone()));
    merged
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        change::Reached,
        delta_fifo::tests::object,
        indexer::{index_func::IndexFunc, store::EvmapStore},
        lister::Lister,
        object::{Object, ResourceType},
    };

    /// Returns a store with these keys and indexes. Each index has the object names as values.
    fn store(keys: &[&str], version: &str, synced: bool, indexes: &[&str]) -> EvmapStore {
        let by_name = |o: &Object| vec![o.name().to_owned()];
        let mut store = EvmapStore::new(1, indexes.iter().map(|name| IndexFunc::custom(name, by_name)));
        for key in keys {
            store.put(&object(key, key, "1"));
        }
        let reached = Reached { generation: 3, store_version: version.into(), synced, ..Reached::default() };
        store.reach(reached);
        store.publish();
        store
    }

    fn caches(stores: &[&EvmapStore]) -> Arc<Caches> {
        let caches = Arc::new(Caches::default());
        caches.set(stores.iter().map(|store| store.reader_factory()).collect());
        caches
    }

    fn pods(reader: UnionReader) -> Lister {
        let text = |text: &str| text.to_owned();
        let resource = ResourceType {
            group: text(""),
            version: text("v1"),
            kind: text("Pod"),
            plural: text("pods"),
            namespaced: true,
        };
        Lister::new(reader, Arc::new(resource))
    }

    fn names(objects: &[Object]) -> BTreeSet<String> {
        objects.iter().map(|object| object.key().to_string()).collect()
    }

    fn set(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|&key| key.to_owned()).collect()
    }

    /// Rules: I-6, L-1.
    #[test]
    fn several_caches_read_as_one() {
        let stores = [
            store(&["a/x", "a/y"], "9", true, &["one", "two"]),
            store(&["b/x"], "10", true, &["two"]),
            store(&["c/z"], "8", true, &["three", "two"]),
        ];
        let lister = pods(caches(&stores.each_ref()).reader());
        assert_eq!(names(&lister.list(&<_>::default())), set(&["a/x", "a/y", "b/x", "c/z"]));
        assert_eq!(names(&lister.namespace("a").list(&<_>::default())), set(&["a/x", "a/y"]));
        assert!(lister.namespace("b").get("x").is_ok() && lister.namespace("b").get("y").is_err());
        let found = lister.by_index("two", "x").unwrap();
        assert_eq!(names(&found), set(&["a/x", "b/x"]), "its place is another one in each cache");
        assert_eq!(lister.list_index_values("two"), ["x", "y", "z"], "each value once");
        assert!(lister.by_index("one", "x").is_err(), "not every cache has it: the answer would not be complete");
        let meta = lister.meta();
        assert_eq!((meta.objects, meta.generation, meta.synced), (4, 9, true));
        assert_eq!(
            meta.bytes,
            lister.list(&<_>::default()).iter().map(|object| object.size_bytes() as u64).sum::<u64>()
        );
        assert_eq!(lister.version().resource_version.as_str(), "10", "the greatest by A-1");
    }

    /// Rule: I-8.
    #[test]
    fn panicked_index_functions_add_up() {
        let stores = ["a/x", "b/x"].map(|key| {
            let mut store = EvmapStore::new(1, [IndexFunc::custom("bad", |_| panic!("on purpose"))]);
            store.put(&object(key, key, "1"));
            store.publish();
            store
        });
        let caches = caches(&stores.each_ref());
        assert_eq!(pods(caches.reader()).meta().index_failures, 2);
        assert_eq!(format!("{caches:?}"), "Caches(2)");
    }

    /// Rule: F-50.
    #[test]
    fn type_is_synced_when_every_cache_is() {
        let synced = |stores: &[&EvmapStore]| pods(caches(stores).reader()).has_synced();
        let (yes, no) = (store(&[], "1", true, &[]), store(&[], "", false, &[]));
        assert!(synced(&[&yes]) && synced(&[&yes, &yes]));
        assert!(!synced(&[&yes, &no]) && !synced(&[&no]) && !synced(&[]));
        let version = |stores: &[&EvmapStore]| pods(caches(stores).reader()).version().resource_version.to_string();
        assert_eq!(version(&[&yes, &no]), "1", "an unset one is none");
        let odd = store(&[], "x", true, &[]);
        assert_eq!((version(&[&yes, &odd]), version(&[&odd, &yes])), ("x".to_owned(), "1".to_owned()));
    }

    #[test]
    fn reader_follows_replaced_units() {
        let (old, new) = (store(&["a/x"], "1", true, &[]), store(&["a/x", "a/y"], "2", true, &[]));
        let all = caches(&[&old]);
        let (lister, second) = (pods(all.reader()), store(&["b/z"], "3", true, &[]));
        assert_eq!(lister.len(), 1);
        all.set(vec![new.reader_factory(), second.reader_factory()]);
        drop(old);
        assert_eq!(lister.len(), 3);
        all.set(vec![new.reader_factory()]);
        let clone = lister.clone();
        assert_eq!((lister.len(), clone.len()), (2, 2));
        all.set(Vec::new());
        assert_eq!((lister.len(), lister.has_synced()), (0, false));
        all.set(vec![new.reader_factory()]);
        assert_eq!(lister.len(), 2, "a type may come back");
    }

    #[test]
    fn dropped_caches_read_as_empty() {
        let (one, other) = (store(&["a/x"], "1", true, &[]), store(&["b/y"], "2", true, &[]));
        let (both, single) = (pods(caches(&[&one, &other]).reader()), pods(caches(&[&one]).reader()));
        assert_eq!((both.len(), single.len()), (2, 1));
        drop(one);
        assert_eq!((both.len(), single.len(), single.has_synced()), (1, 0, false));
    }

    #[test]
    fn nested_read_keeps_outer_snapshot() {
        let (old, new) = (store(&["a/x"], "1", true, &[]), store(&["a/x", "a/y"], "2", true, &[]));
        let all = caches(&[&old]);
        let lister = pods(all.reader());
        lister.snapshot(|outer| {
            all.set(vec![new.reader_factory()]);
            assert_eq!((lister.len(), outer.meta().objects), (1, 1));
        });
        assert_eq!(lister.len(), 2);
    }

    #[test]
    fn reads_never_miss_objects_during_unit_replacement() {
        let mut current = store(&["a/x"], "1", true, &[]);
        let all = caches(&[&current]);
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let reads = [(); 2].map(|()| Arc::new(std::sync::atomic::AtomicU64::new(0)));
        let threads = reads.each_ref().map(|reads| {
            let (reader, stop, reads) = (all.reader(), Arc::clone(&stop), Arc::clone(reads));
            std::thread::spawn(move || {
                let lister = pods(reader);
                while !stop.load(Ordering::Relaxed) {
                    assert!(lister.has_synced() && !lister.is_empty() && lister.namespace("a").get("x").is_ok());
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        // A loaded machine may start the readers late. So the loop continues until each has read while units were replaced.
        let is_read = || reads.iter().all(|reads| reads.load(Ordering::Relaxed) > 100);
        let is_wrong = || threads.iter().any(std::thread::JoinHandle::is_finished);
        let mut round = 0;
        while round < 300 || !(is_read() || is_wrong()) {
            let next = store(&["a/x"], "1", true, &[]);
            let second = store(&["b/y"], "1", true, &[]);
            let mut factories = vec![next.reader_factory()];
            if round % 2 == 0 {
                factories.push(second.reader_factory());
            }
            all.set(factories);
            current = next; // the previous store is dropped here
            all.set(vec![current.reader_factory()]);
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().expect("no read was wrong");
        }
    }
}
