//! Values that a store takes and returns. They exist in every build.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use roaring::RoaringTreemap;
use serde::{Deserialize, Serialize};

use super::Store;
use crate::{
    change::{Change, Reached},
    journal::{
        Record, Sequence, UnitId, UnitTerms,
        timeline::{TimelinePage, TimelineTail},
    },
    private_dir,
};

/// Name of the file that contains the format number of the directory. The file is read before fjall opens its files.
pub(super) const FORMAT_FILE: &str = "format";

/// Subdirectory for the state in the root of a volume.
const IN_VOLUME: &str = "state";

/// A stored unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredUnit {
    /// Id of the unit.
    #[serde(skip)]
    pub id: UnitId,
    /// Description for the engine: entry, type, scope, shape.
    pub description: serde_json::Value,
    /// Terms of the unit.
    #[serde(flatten)]
    pub terms: UnitTerms,
    /// Versions that the appends of the unit have reached.
    #[serde(skip)]
    pub reached: Reached,
    /// Last position of the unit; set once it is retired.
    pub retired: Option<Sequence>,
}

/// A stored reader.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredReader {
    /// Name of the reader.
    pub name: String,
    /// Position up to which `pending` is complete. After a restart, the wanted records after it are selected by their heads.
    pub position: Sequence,
    /// Unacknowledged wanted records up to the position.
    pub pending: RoaringTreemap,
    /// Units that the reader is attached to.
    pub attached: BTreeSet<UnitId>,
    /// Given-up records, for a later replay.
    pub given_up: RoaringTreemap,
    /// Pending or given-up records that are stored as coalesced entries, and no longer needed in the log. Not saved with the
    /// reader, but recovered from the entries.
    pub compacted: RoaringTreemap,
}

/// Value of [`Append::only`] for records that no reader gets.
pub(crate) const NOBODY: &str = "";

/// Changes of one transaction of one unit, written atomically.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The unit.
    pub unit: UnitId,
    /// Position of the first change. The others follow without gaps.
    pub first: Sequence,
    /// Time of the append, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The changes.
    pub changes: &'a [Change],
    /// Readers that get the records. `None`: all readers. The name of a reader: only this reader, which is attached or detached;
    /// the states of objects do not change. [`NOBODY`]: no reader, because the records are the unit's first state.
    pub only: Option<&'a str>,
    /// Versions that the append reaches; `None` keeps the versions of the unit.
    pub reached: Option<&'a Reached>,
}

/// Content of an opened store.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Journal id: sequences are comparable only within one id. It is new if there was no state. It is also new if the last run
    /// ended uncleanly and may have lost its last records.
    pub journal_id: String,
    /// Last position that was ever used; zero if none.
    pub last: Sequence,
    /// First position whose record is kept; above `last` if no record is kept.
    pub first: Sequence,
    /// The units, by id.
    pub units: Vec<StoredUnit>,
    /// The readers, by name.
    pub readers: Vec<StoredReader>,
    /// Set when the last run ended with [`Store::close`].
    pub clean: bool,
    /// Last page of the timeline.
    pub(crate) timeline: TimelinePage,
    /// The records after that page.
    pub(crate) tail: TimelineTail,
}

/// Result of [`Store::retain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// First position whose record is kept.
    pub first: Sequence,
    /// Set when there is more to remove: call again.
    pub more: bool,
}

/// Limits of a page. A single record may exceed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// Maximum number of records.
    pub max_events: usize,
    /// Maximum size of the objects' JSON, in bytes.
    pub max_bytes: u64,
}

/// Part of the log.
#[derive(Clone, Debug)]
pub struct LogPage {
    /// Records in order, without unchanged objects and without records for one reader alone.
    pub records: Vec<Record>,
    /// Last position that the page covers: the next page starts after it.
    pub to: Sequence,
    /// Number of records that cannot be read any more: their unit was forgotten, or their body was removed.
    pub missing: u64,
    /// First position whose record is kept. Requested records before it are not in the page, and not counted in `missing`.
    pub first: Sequence,
}

impl Store {
    /// Returns the directory to open for the configured `dir`. Usually it is `dir` itself. It is the subdirectory `state` if `dir`
    /// has no store yet and is the root of a volume that a group shares, as with `fsGroup` in Kubernetes. Reads the disk.
    pub fn home(dir: &Path) -> PathBuf {
        let is_taken = dir.join(FORMAT_FILE).exists();
        if !is_taken && private_dir::belongs_to_a_group(dir) { dir.join(IN_VOLUME) } else { dir.to_owned() }
    }
}
