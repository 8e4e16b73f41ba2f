//! Files of fjall: the keyspaces and their limits.

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

/// Size of fjall's cache of blocks, in bytes. It is small, because the page cache of the system holds the files too.
const CACHE_BYTES: u64 = 8 << 20;

/// Limit of fjall's journal files, in bytes. Beyond it fjall flushes keyspaces even if they have little data in memory. This is the
/// smallest value that fjall allows.
const JOURNALS_BYTES: u64 = 64 << 20;

/// Number of threads that flush and compact. Not two: fjall would reserve one for flushes, and that thread would poll without a
/// pause while the other one compacts.
const WORKERS: usize = 1;

/// Maximum number of open files.
const OPEN_FILES: usize = 64;

/// Number of full write buffers per keyspace. At this number, appends wait for the disk.
const FULL_BUFFERS: usize = 2;

/// Number of uncompacted tables per keyspace. At this number, appends wait for the disk.
const LOOSE_TABLES: usize = 16;

/// Size of a write buffer, in bytes, beyond which an append starts a new buffer. Usually fjall's thread does that earlier, but not
/// while it compacts.
const BUFFER_BYTES_MAX: u64 = 6 << 20;

/// Keyspace that was added with the second format.
pub(super) const COMPACTED: &str = "compacted";

/// Open files of a store.
pub(super) struct Files {
    pub(super) db: Database,
    /// Single values by name.
    pub(super) meta: Keyspace,
    /// Unit → description, versions reached.
    pub(super) units: Keyspace,
    /// Sequence → head. Old heads are removed as whole files, so there are no tombstones.
    pub(super) records: Keyspace,
    /// Sequence → body. Values are stored apart from the tree, so a compaction does not copy them.
    pub(super) bodies: Keyspace,
    /// Unit, namespace, name → location of the state.
    pub(super) objects: Keyspace,
    /// Name → position of a reader.
    pub(super) readers: Keyspace,
    /// Unit, number → dictionary.
    pub(super) dictionaries: Keyspace,
    /// Name of a reader, sequence → head of a coalesced record that waits for the reader.
    pub(super) compacted: Keyspace,
    /// Position → page of the timeline. A state of a version without this keyspace gets it empty.
    pub(super) timeline: Keyspace,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

/// Returns options for a keyspace with a write buffer of this size, in bytes, and blocks of 4 KiB. Blocks are not compressed,
/// because the bodies are packed already.
fn keyspace(buffer_bytes: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(buffer_bytes)
        .data_block_size_policy(BlockSizePolicy::all(4 << 10))
        .data_block_compression_policy(CompressionPolicy::disabled())
}

impl Files {
    /// Opens fjall's directory, which is created if absent. First cuts a torn tail off the journal file.
    ///
    /// Worst-case memory is the sum of the cache and the write buffers. The keyspaces of records, bodies and objects each have
    /// one active buffer and two that wait for the disk: 9 × 6 MiB = 54 MiB. A compaction of the state adds three buffers of
    /// 1 MiB. One large append can exceed this for a short time.
    pub(super) fn open(dir: &Path) -> Result<Self, Fault> {
        if dir.is_dir()
            && let Some(journal) = tail::active_journal(dir)?
            && let Tail::Damaged(at) = tail::cut(&journal)?
        {
            return Err(Fault::corrupt(journal, format!("synced data is unreadable from byte {at} on")));
        }
        // fjall panics on some inconsistencies in its files
        let opened = panic::catch_unwind(AssertUnwindSafe(|| Self::open_database(dir)));
        opened.unwrap_or_else(|_| Err(Fault::corrupt(dir.to_owned(), "its files are inconsistent".to_owned())))
    }

    fn open_database(dir: &Path) -> Result<Self, Fault> {
        let builder = Database::builder(dir).cache_size(CACHE_BYTES).max_journaling_size(JOURNALS_BYTES);
        let db = builder.worker_threads(WORKERS).max_cached_files(Some(OPEN_FILES)).open()?;
        // By default a compaction rewrites only the oldest quarter of the eligible files. A quarter of three files is none, so
        // a full state would stay full.
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
            timeline: db.keyspace("timeline", || keyspace(1 << 20))?,
            db,
        })
    }

    pub(super) fn keyspaces(&self) -> [&Keyspace; 9] {
        let Self { meta, units, records, bodies, objects, readers, dictionaries, compacted, timeline, .. } = self;
        [meta, units, records, bodies, objects, readers, dictionaries, compacted, timeline]
    }

    /// Commits a batch and passes it to the system, so that it survives the end of this process. Waits while the disk is too
    /// slow.
    ///
    /// fjall itself waits too, but that wait would never end after a failure of fjall's thread.
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
            // Fails once fjall's thread has failed, which ends the wait.
            self.db.persist(PersistMode::Buffer)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(batch.durability(Some(PersistMode::Buffer)).commit()?)
    }

    /// Writes the in-memory data of all keyspaces to new table files, and syncs these files.
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

    /// Frees the disk space of removed data. By itself fjall does that only when it compacts its tables, after many writes.
    pub(super) fn shrink(&self) -> Result<(), Fault> {
        self.flush()?;
        Ok(self.bodies.major_compact()?)
    }

    /// Returns the size on disk, in bytes. Counts only the written part of the journal files, not the preallocated rest.
    pub(super) fn disk_bytes(&self, dir: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let tables: u64 = self.keyspaces().iter().map(|keyspace| keyspace.disk_space()).sum();
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let journals = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "jnl"));
        tables + journals.filter_map(|entry| entry.metadata().ok()).map(|file| file.blocks() * 512).sum::<u64>()
    }
}
