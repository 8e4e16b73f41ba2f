//! fjall's files: the keyspaces, and their limits.

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    thread,
    time::Duration,
};

use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OwnedWriteBatch, PersistMode,
    config::{BlockSizePolicy, CompressionPolicy},
};

use super::{
    error::Fault,
    tail::{self, Tail},
};

/// Memory for blocks that were read. The system caches the files besides.
const CACHE_BYTES: u64 = 8 << 20;

/// fjall's journal files may occupy this much, its least, before keyspaces with little in memory are flushed for it.
const JOURNALS_BYTES: u64 = 64 << 20;

/// One thread flushes and compacts. Of two, fjall keeps one for flushes, which asks for them without a pause while the
/// other compacts.
const WORKERS: usize = 1;

/// Files kept open.
const OPEN_FILES: usize = 64;

/// Appends wait while this many full write buffers of a keyspace wait for the disk,
const FULL_BUFFERS: usize = 2;

/// or this many tables wait to be compacted.
const LOOSE_TABLES: usize = 16;

/// fjall's thread changes the write buffers, and lets them grow while it compacts; beyond this an append does it.
const BUFFER_BYTES_MAX: u64 = 6 << 20;

/// The keyspace that came with the second format.
pub(super) const COMPACTED: &str = "compacted";

/// The open files of a store.
pub(super) struct Files {
    pub(super) db: Database,
    /// Single values.
    pub(super) meta: Keyspace,
    /// Unit → description, versions reached.
    pub(super) units: Keyspace,
    /// Sequence → head. Cut off at the front by whole files, so it has no tombstones.
    pub(super) records: Keyspace,
    /// Sequence → body. Values lie apart from the tree: compaction does not copy them.
    pub(super) bodies: Keyspace,
    /// Unit, namespace, name → location of the state.
    pub(super) objects: Keyspace,
    /// Name → position.
    pub(super) readers: Keyspace,
    /// Unit, number → bytes.
    pub(super) dictionaries: Keyspace,
    /// Name of a reader, sequence → head of a coalesced record that waits for it.
    pub(super) compacted: Keyspace,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

/// A write buffer of this many bytes, 4 KiB blocks, nothing compressed: bodies are already.
fn keyspace(buffer_bytes: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(buffer_bytes)
        .data_block_size_policy(BlockSizePolicy::all(4 << 10))
        .data_block_compression_policy(CompressionPolicy::disabled())
}

impl Files {
    /// Opens fjall's directory, which is made if absent. A torn tail is cut off first.
    ///
    /// Memory, at the worst: for each of records, bodies and objects one write buffer of 6 MiB being filled and two waiting
    /// for the disk, 54 MiB; three of 1 MiB during a compaction; and the cache. One large append exceeds that for its time.
    pub(super) fn open(dir: &Path) -> Result<Self, Fault> {
        if dir.is_dir()
            && let Some(journal) = tail::active_journal(dir)?
            && let Tail::Damaged(at) = tail::cut(&journal)?
        {
            return Err(Fault::corrupt(journal, format!("what was synced is unreadable from byte {at} on")));
        }
        // fjall asserts some of what it finds in its files
        let opened = panic::catch_unwind(AssertUnwindSafe(|| Self::open_database(dir)));
        opened.unwrap_or_else(|_| Err(Fault::corrupt(dir.to_owned(), "its files contradict each other".to_owned())))
    }

    fn open_database(dir: &Path) -> Result<Self, Fault> {
        let builder = Database::builder(dir).cache_size(CACHE_BYTES).max_journaling_size(JOURNALS_BYTES);
        let db = builder.worker_threads(WORKERS).max_cached_files(Some(OPEN_FILES)).open()?;
        // By default a compaction rewrites the older quarter of the files that are worth it, which of three files is none: a
        // state that is full then stays so.
        let separate =
            KvSeparationOptions::default().separation_threshold(128).file_target_size(32 << 20).age_cutoff(1.0);
        Ok(Self {
            meta: db.keyspace("meta", || keyspace(1 << 20))?,
            units: db.keyspace("units", || keyspace(1 << 20))?,
            records: db.keyspace("records", || keyspace(4 << 20))?,
            bodies: db.keyspace("bodies", || keyspace(4 << 20).with_kv_separation(Some(separate)))?,
            objects: db.keyspace("objects", || keyspace(4 << 20))?,
            readers: db.keyspace("readers", || keyspace(1 << 20))?,
            dictionaries: db.keyspace("dictionaries", || keyspace(1 << 20))?,
            compacted: db.keyspace(COMPACTED, || keyspace(1 << 20))?,
            db,
        })
    }

    pub(super) fn keyspaces(&self) -> [&Keyspace; 8] {
        let Self { meta, units, records, bodies, objects, readers, dictionaries, compacted, .. } = self;
        [meta, units, records, bodies, objects, readers, dictionaries, compacted]
    }

    /// Commits a batch and hands it to the system, so that it outlives this process. Waits while the disk cannot keep
    /// up.
    ///
    /// fjall waits by itself too, but would do so for ever when its thread has failed.
    pub(super) fn commit(&self, batch: OwnedWriteBatch) -> Result<(), Fault> {
        for keyspace in self.keyspaces() {
            if keyspace.tree.active_memtable().size() > BUFFER_BYTES_MAX {
                keyspace.rotate_memtable()?;
            }
        }
        let is_behind = |keyspace: &&Keyspace| {
            keyspace.sealed_memtable_count() >= FULL_BUFFERS || keyspace.l0_table_count() >= LOOSE_TABLES
        };
        while self.keyspaces().iter().any(is_behind) {
            self.db.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(batch.durability(Some(PersistMode::Buffer)).commit()?)
    }

    /// Writes everything that is in memory into files of its own, and syncs them.
    pub(super) fn flush(&self) -> Result<(), Fault> {
        for keyspace in self.keyspaces() {
            keyspace.rotate_memtable()?;
        }
        while self.keyspaces().iter().any(|keyspace| keyspace.sealed_memtable_count() > 0) {
            self.db.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Gives back what was removed. fjall does so only when it compacts its tables, after a number of writes.
    pub(super) fn shrink(&self) -> Result<(), Fault> {
        self.flush()?;
        Ok(self.bodies.major_compact()?)
    }

    /// Returns the bytes on disk; of the journal files those that were written, not those set aside.
    pub(super) fn disk_bytes(&self, dir: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let tables: u64 = self.keyspaces().iter().map(|keyspace| keyspace.disk_space()).sum();
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let journals = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "jnl"));
        tables + journals.filter_map(|entry| entry.metadata().ok()).map(|file| file.blocks() * 512).sum::<u64>()
    }
}
