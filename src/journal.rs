//! The ordered stream of changes of all units: sequences, watermarks, cursors.
//!
//! A batch is handled in the order **append → publish → release**. Readers see only records up to the released watermark, so
//! an event never arrives before the cache shows its change (E3). With a [`Store`](store::Store) the order is **append → write
//! → publish → release**. The committer thread makes written records durable, in groups. By default readers get durable
//! records only.
//!
//! | file | content |
//! |---|---|
//! | `handle` | [`Journal`], the shared handle: one short lock per call; calls to the store run outside the lock |
//! | `memory` | the pure core: batches that are not visible yet, units, readers |
//! | `record`, `change_set` | records, and sets of kinds of changes |
//! | `interest` | which records a reader gets: one rule for live records and for those missed before a restart |
//! | `filter` | filters of readers; a refused record is not delivered |
//! | `reader` | records that wait for one reader (`waiting`: in memory, or in the store), and those in flight |
//! | `recovery` | selection of the records that a reader has missed, after a restart |
//! | `store`, `disk`, `committer` | the state on disk, and the thread that syncs, saves, removes and repairs |
//! | `coalesce` | the rules for coalescing waiting records, in memory and in the state |
//! | `timeline` | the position of each version of a unit, and of each time |
//! | `room` | what to do when the state is full |
//! | `compaction`, `retention` | coalescing records of the state, and removing old ones |
//!
//! Reasons: `docs/decisions/0010-journal-as-buffer.md`.

mod change_set;
mod coalesce;
#[cfg(feature = "state")]
mod committer;
#[cfg(not(feature = "state"))]
#[path = "journal/committer/none.rs"]
mod committer;
#[cfg(feature = "state")]
pub(crate) mod compaction;
mod disk;
pub(crate) mod filter;
#[cfg(test)]
mod filter_tests;
mod handle;
mod inner;
pub(crate) mod interest;
#[cfg(test)]
mod judging_tests;
pub(crate) mod memory;
#[cfg(test)]
mod model_tests;
mod reader;
mod record;
pub(crate) mod recovery;
mod retention;
#[cfg(feature = "state")]
mod room;
#[cfg(test)]
mod room_tests;
#[cfg(feature = "state")]
pub(crate) mod store;
#[cfg(not(feature = "state"))]
#[path = "journal/store/none.rs"]
pub mod store;
#[cfg(test)]
mod stored_model_tests;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
#[cfg(test)]
mod timeline_tests;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    change_set::ChangeSet,
    filter::{ReaderFilter, RecordFilter},
    handle::Journal,
    interest::{Interest, UnitInterest},
    record::{EventName, Record},
};
pub(crate) use self::{
    disk::{Fsync, JournalHealth, JournalOptions, NotWritable, OnFull, OpenJournalError},
    reader::{Held, ToLoad},
};
#[cfg(test)]
pub(crate) use self::{
    handle::{AfterError, TimedPosition},
    timeline::{Epoch, OutOfReach, UnitVersion},
};
use crate::change::Cause;
pub(crate) use crate::change::ChangeKind;
/// Id of a unit (a resource type in one scope) within an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub u32);

impl UnitId {
    /// Returns the writer of this unit in a generation.
    pub fn writer(self, generation: u64) -> UnitWriter {
        UnitWriter { unit: self, generation }
    }
}

/// Position in the journal. Strictly increasing within one journal id; gaps have no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sequence(pub u64);

/// Range of the records of one append; empty when `last` is below `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// First record.
    pub first: Sequence,
    /// Last record.
    pub last: Sequence,
}

/// Writer of a unit: its indexer actor of one generation. The journal refuses the appends of a writer once it has seen a later
/// generation of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitWriter {
    /// Unit of the writer.
    pub unit: UnitId,
    /// Number of the generation. A start of the unit's actors begins a new one.
    pub generation: u64,
}

/// Error: the appending actor was replaced in the meantime. No reader of this run gets the records. If the store has written them,
/// a reader may get them after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {} may not append to unit {}: generation {current} owns it", writer.generation, writer.unit.0)]
pub struct Fenced {
    /// Replaced writer.
    pub writer: UnitWriter,
    /// Generation of the current writer.
    pub current: u64,
}

/// Reason why an append was refused. No reader of this run gets the records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another actor owns the unit now; do not retry.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The store takes no appends now; retry after [`Journal::writable`].
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
}

/// Id of a reader of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u32);

/// Reason why a reader was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenReaderError {
    /// A reader with this name is already open.
    #[error("reader {0:?} is already open")]
    Taken(String),
    /// The store could not be read or written.
    #[error("cannot read the records of the reader: {0}")]
    Store(String),
}

/// Policy when the buffer of a handler is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenFull {
    /// The newest state of each object is kept.
    #[default]
    Coalesce,
    /// The oldest event is dropped.
    DropOldest,
}

/// Limits of the memory for records that wait for one reader. For a named reader of a journal with a store, further records
/// wait on disk: none are coalesced or dropped in memory.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default)]
pub struct Bounds {
    /// Maximum number of events. Once a buffer with [`WhenFull::Coalesce`] is full, the maximum applies only to events whose object
    /// is not in the cache, for example deletions. In addition, one or two events may wait for each cached object.
    #[educe(Default = 10_000)]
    pub max_events: usize,
    /// Maximum size of the bodies, in bytes. Once a buffer with [`WhenFull::Coalesce`] is full, the maximum applies only to bodies
    /// that the cache does not hold. `old`s are discarded while these bodies and the records themselves together exceed the
    /// maximum. Records are dropped only while these bodies alone exceed it.
    #[educe(Default = 64 << 20)]
    pub max_bytes: usize,
    /// Policy at the limit.
    pub when_full: WhenFull,
}

/// Properties of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitTerms {
    /// Resource type of the unit.
    pub resource: TypeNumber,
    /// Set when the type was found after the first discovery. Its initial objects then also go to readers that want only added
    /// objects.
    pub late: bool,
    /// Set when the cache of the unit holds the bodies of its objects.
    pub cached: bool,
}

/// Id of a resource type within an engine. In memory, records of one object are coalesced across all units of the type. A
/// [`Change::Synced`] covers all units of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TypeNumber(pub u32);

/// Options of a new reader.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// Limits of the memory for waiting records.
    pub bounds: Bounds,
    /// Wanted records.
    pub interest: Interest,
    /// Name of the reader. With a store, a reader resumes at the cursor that the reader of this name had in the last run. With
    /// `None`, the reader's state is not saved.
    pub name: Option<String>,
}

/// Request to a unit to attach one reader, or to detach it: the unit starts or stops showing its records to the reader. The indexer
/// executes the request between two batches, because only then does the cache match the journal position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The reader.
    pub reader: ReaderId,
    /// Requested action.
    pub kind: AttachmentKind,
}

/// Kind of an [`Attachment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentKind {
    /// The reader gets one [`Change::Added`] per cached object, with this cause. With `None` the reader gets no objects at the
    /// attachment, and later only those that change.
    Attach(Option<Cause>),
    /// The reader gets one [`Change::Removed`] per cached object, with the cause [`Cause::Reload`].
    Detach,
}

/// Figures about a reader.
///
/// **Invariant:** `wanted = acknowledged + in_flight + queued + coalesced + dropped + filtered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Released records that match the interest.
    pub wanted: u64,
    /// Wanted records that wait to be read. The filter may still refuse some of them.
    pub queued: u64,
    /// Queued records that are only in the store.
    pub spilled: u64,
    /// Records that were read and not acknowledged.
    pub in_flight: u64,
    /// Acknowledged records.
    pub acknowledged: u64,
    /// Records that were coalesced into others.
    pub coalesced: u64,
    /// Records that were dropped at the limit.
    pub dropped: u64,
    /// Updates that lost their `old` at the limit.
    pub olds_given_up: u64,
    /// Records that the filter refused. They need no acknowledgement, and do not count in `acknowledged`.
    pub filtered: u64,
    /// Refused records for which the filter failed. They count in `filtered` too.
    pub filter_errors: u64,
    /// Given-up records that [`Journal::replay`] would queue again. They count in `acknowledged` too. Always 0 for a reader without
    /// a name or a store.
    pub given_up: u64,
    /// Cursor: every wanted record up to here is acknowledged, filtered, coalesced or dropped.
    pub position: Sequence,
    /// Time of the oldest record that waits or is in flight, in microseconds since the Unix epoch. `None` if there is no such
    /// record, or if its time is not known.
    pub oldest_micros: Option<i64>,
}

/// Losses of a reader since the last [`Journal::take_losses`] (E6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Names of lost events, in the order of their loss.
    pub named: Vec<EventName>,
    /// Number of further lost events, which were only counted.
    pub unnamed: u64,
}

#[cfg(test)]
pub(crate) mod testing {
    //! Test data: changes and interests.

    use std::sync::Arc;

    use super::*;
    use crate::{
        change::Change,
        object::{Identity, Object},
    };

    /// Returns a pod of namespace `ns`.
    pub(crate) fn pod(name: &str, uid: &str, version: u64) -> Object {
        let version = version.to_string();
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#
        );
        let identity = Identity { namespace: "ns", name, uid, resource_version: &version };
        Object::assemble(identity, &[json.as_bytes()])
    }

    pub(crate) fn added(name: &str, uid: &str, version: u64) -> Change {
        Change::Added { object: pod(name, uid, version), cause: Cause::Watch }
    }

    pub(crate) fn initial(name: &str, uid: &str, version: u64) -> Change {
        Change::Added { object: pod(name, uid, version), cause: Cause::Initial }
    }

    pub(crate) fn updated(name: &str, uid: &str, from: u64, to: u64) -> Change {
        Change::Updated { old: pod(name, uid, from), object: pod(name, uid, to), cause: Cause::Watch }
    }

    pub(crate) fn deleted(name: &str, uid: &str, version: u64) -> Change {
        Change::Deleted { object: pod(name, uid, version), tombstone: false, cause: Cause::Watch }
    }

    pub(crate) fn removed(name: &str, uid: &str, version: u64) -> Change {
        Change::Removed { object: pod(name, uid, version), cause: Cause::Watch }
    }

    pub(crate) fn synced(objects: u64) -> Change {
        Change::Synced { objects, resource_version: "77".into() }
    }

    /// Returns an interest in all records of the units 0 to 7.
    pub(crate) fn everything() -> Interest {
        let all = UnitInterest { attaches: false, resync_every: 1 };
        Interest { units: (0..8).map(|unit| (UnitId(unit), all)).collect(), changes: ChangeSet::ALL, filter: None }
    }

    /// Filter that refuses a third of all records, depending on the versions of object and previous object. Coalescing changes
    /// these versions, so it can change the judgement.
    #[derive(Debug)]
    pub(crate) struct ByVersions;

    impl ByVersions {
        pub(crate) fn shared() -> RecordFilter {
            RecordFilter::new(Arc::new(Self))
        }

        pub(crate) fn passes(change: &Change) -> bool {
            let version = |object: &Object| object.resource_version().parse::<u64>().expect("a number");
            let object = change.object().map_or(1, version);
            !(object + change.old().map_or(0, version)).is_multiple_of(3)
        }
    }

    impl ReaderFilter for ByVersions {
        fn judge(&self, record: &Record) -> Result<bool, String> {
            let passes = Self::passes(&record.change);
            if passes || record.sequence.0.is_multiple_of(2) { Ok(passes) } else { Err("on purpose".to_owned()) }
        }
    }

    /// Returns a short text such as `added a/7` or, with a previous object, `updated a/7<3`.
    pub(crate) fn brief(record: &Record) -> String {
        let kind = ChangeKind::of(&record.change).as_str();
        let Some(object) = record.object() else { return kind.to_owned() };
        let old = record.old().map_or(String::new(), |old| format!("<{}", old.resource_version()));
        format!("{kind} {}/{}{old}", object.uid(), object.resource_version())
    }
}
