//! The one ordered stream of changes over all units: sequences, watermarks, cursors (D7).
//!
//! A batch is **append → publish → release**: readers see only what is below the released watermark, so no event overtakes
//! the read that it announces (I3). With a [`Store`](store::Store) it is **append → write → publish → release**. A thread of
//! its own makes durable what was written, in groups, and only that is handed out.
//!
//! | file | content |
//! |---|---|
//! | `handle` | [`Journal`], which everything shares: one short lock a call, and calls of the store outside of it |
//! | `memory` | the pure core: batches that are not visible yet, units, readers |
//! | `reader` | records that wait for one reader, coalesced or spilled where it is slow |
//! | `filter`, `recovery` | records that a reader wants: by its filter, and after a restart |
//! | `store`, `disk`, `committer` | the state on disk, and the thread that syncs, saves, removes and repairs |
//! | `compaction`, `retention` | records of the state that are coalesced, or old enough to be removed |

mod committer;
pub(crate) mod compaction;
mod disk;
pub mod filter;
#[cfg(test)]
mod filter_tests;
mod handle;
mod inner;
#[cfg(test)]
mod judging_tests;
pub(crate) mod memory;
#[cfg(test)]
mod model_tests;
mod reader;
pub mod recovery;
mod retention;
#[cfg(test)]
mod room_tests;
pub mod store;
#[cfg(test)]
mod stored_model_tests;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod tests;
mod units;

use std::{collections::HashMap, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    disk::{Fsync, JournalHealth, JournalOptions, NotWritable, OnFull, OpenJournalError},
    filter::{Judgement, ReaderFilter, RecordFilter},
    handle::Journal,
    reader::{Held, ToLoad},
};
use crate::{
    change::{Cause, Change},
    object::{Object, ObjectKey},
};

/// Id of a unit (a resource type in one scope) within an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub u32);

/// Position in the journal. Strictly increasing within one journal id; holes mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sequence(pub u64);

/// One change, numbered: what the journal emits.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its position.
    pub sequence: Sequence,
    /// The unit whose cache it changed.
    pub unit: UnitId,
    /// Time of the append, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The change.
    pub change: Change,
    /// The `old` of a [`Change::Updated`] was given up for memory. It is the `object` now, and must not be shown.
    pub old_lost: bool,
}

impl Record {
    /// Returns the object the change is about; none for [`Change::Synced`].
    pub fn object(&self) -> Option<&Object> {
        self.change.object()
    }

    /// Returns the state before, where it is known and may be shown.
    pub fn old(&self) -> Option<&Object> {
        match &self.change {
            Change::Updated { old, .. } if !self.old_lost => Some(old),
            _ => None,
        }
    }

    /// Returns the name of this record in a report.
    pub fn event_name(&self) -> EventName {
        EventName {
            sequence: self.sequence,
            unit: self.unit,
            kind: ChangeKind::of(&self.change),
            key: self.object().map_or_else(|| ObjectKey::new("", ""), |object| object.key().to_owned()),
            uid: self.object().map_or("", |object| object.uid()).into(),
        }
    }

    /// Returns the bytes of the objects it refers to.
    fn body_bytes(&self) -> usize {
        self.object().map_or(0, Object::size_bytes) + self.old().map_or(0, Object::size_bytes)
    }

    /// Returns the record with packed objects, as far as a cache packed them: it shares them with the cache.
    fn packed(&self) -> Self {
        Self { change: self.change.packed(), ..self.clone() }
    }

    fn is_gone(&self) -> bool {
        matches!(self.change, Change::Deleted { .. } | Change::Removed { .. })
    }
}

/// A [`Change`] without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// [`Change::Added`].
    Added,
    /// [`Change::Updated`].
    Updated,
    /// [`Change::Deleted`].
    Deleted,
    /// [`Change::Removed`].
    Removed,
    /// [`Change::Unchanged`].
    Unchanged,
    /// [`Change::Refreshed`].
    Refreshed,
    /// [`Change::Synced`].
    Synced,
}

impl ChangeKind {
    /// Returns the kind of a change.
    pub fn of(change: &Change) -> Self {
        match change {
            Change::Added { .. } => Self::Added,
            Change::Updated { .. } => Self::Updated,
            Change::Deleted { .. } => Self::Deleted,
            Change::Removed { .. } => Self::Removed,
            Change::Unchanged { .. } => Self::Unchanged,
            Change::Refreshed { .. } => Self::Refreshed,
            Change::Synced { .. } => Self::Synced,
        }
    }

    /// Returns the word an event's `type` ends in; an unchanged object travels as `updated`, a refreshed one does not.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated | Self::Unchanged | Self::Refreshed => "updated",
            Self::Deleted => "deleted",
            Self::Removed => "removed",
            Self::Synced => "synced",
        }
    }
}

/// Name of an event in a report of losses, of leftovers, of poison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventName {
    /// Its position.
    pub sequence: Sequence,
    /// Its unit.
    pub unit: UnitId,
    /// Kind of change.
    pub kind: ChangeKind,
    /// The object; both parts are empty for [`ChangeKind::Synced`].
    pub key: ObjectKey,
    /// Its uid, empty where there is none.
    pub uid: Box<str>,
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (sequence {}", self.kind.as_str(), self.key, self.sequence.0)?;
        if !self.uid.is_empty() {
            write!(f, ", uid {}", self.uid)?;
        }
        f.write_str(")")
    }
}

/// The records of one append; empty when `last` is below `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The first of them.
    pub first: Sequence,
    /// The last of them.
    pub last: Sequence,
}

/// Append by an actor that was replaced meanwhile. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unit {} was taken over by epoch {current}, epoch {epoch} may not append", unit.0)]
pub struct Fenced {
    /// The unit.
    pub unit: UnitId,
    /// The epoch of the late actor.
    pub epoch: u64,
    /// The epoch that owns the unit.
    pub current: u64,
}

/// Refused append. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another actor has taken the unit over: do not try again.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The store takes nothing now: try again after [`Journal::writable`].
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
}

/// Id of a reader of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u32);

/// Begin of a new reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderStart {
    /// The next record to be released.
    Next,
    /// The record after this position.
    After(Sequence),
}

/// The journal no longer has, or never had, the records asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal holds {} to {}, not what follows {}", first.0, last.0, asked.0)]
pub struct Gap {
    /// Position after which the reader wanted to begin.
    pub asked: Sequence,
    /// The oldest record held.
    pub first: Sequence,
    /// The released watermark.
    pub last: Sequence,
}

/// A reader was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenReaderError {
    /// The records asked for are not there.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// A reader of that name is open.
    #[error("there is a reader named {0:?} already")]
    Taken(String),
    /// The store could not be read or written.
    #[error("failed to look up where the reader stood: {0}")]
    Store(String),
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records queued again.
    pub queued: u64,
    /// Records that retention had removed.
    pub gone: u64,
}

/// What happens when a handler's buffer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// The newest state of each object is kept.
    #[default]
    Coalesce,
    /// The oldest event goes.
    DropOldest,
    /// The newest event goes.
    DropNewest,
}

/// Limits of what waits in memory for one reader. With a store the rest waits there, and nothing is coalesced or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events. With [`WhenFull::Coalesce`], once full, only events of objects that the cache does not hold count, such as
    /// deletions. Of each object that it holds one or two wait besides.
    pub max_events: usize,
    /// Bytes of bodies. With [`WhenFull::Coalesce`], once full, only bodies that the cache does not hold count. The size of
    /// the records themselves is a reason to give up `old`s, never to drop a record.
    pub max_bytes: usize,
    /// Policy at the limit.
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_events: 10_000, max_bytes: 64 << 20, when_full: WhenFull::Coalesce }
    }
}

/// Properties of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitTerms {
    /// Its type.
    pub resource: TypeNumber,
    /// Its type was found after the first discovery. Readers that want no initial objects want these.
    pub late: bool,
    /// Its cache holds the bodies of its objects.
    pub cached: bool,
}

/// Number of a resource type within an engine. Records of one object are coalesced over all units of its type, and a
/// [`Change::Synced`] is about all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TypeNumber(pub u32);

/// A set of kinds of changes, finer than [`ChangeKind`]: an initial object is not a new one, nor a relist a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet(u16);

impl ChangeSet {
    /// Objects that appear, except the initial ones.
    pub const ADDED: Self = Self(1);
    /// Objects of the first list.
    pub const INITIAL: Self = Self(1 << 1);
    /// Objects with a new version.
    pub const UPDATED: Self = Self(1 << 2);
    /// Objects that are gone.
    pub const DELETED: Self = Self(1 << 3);
    /// Objects that left the selection.
    pub const REMOVED: Self = Self(1 << 4);
    /// The end of the initial state.
    pub const SYNCED: Self = Self(1 << 5);
    /// Unchanged objects of a relist.
    pub const UNCHANGED: Self = Self(1 << 6);
    /// Unchanged objects of a resync.
    pub const RESYNC: Self = Self(1 << 7);
    /// Of those above, also changes made during downtime ([`Cause::Downtime`]).
    pub const DOWNTIME: Self = Self(1 << 8);
    /// Everything that is an event.
    pub const ALL: Self = Self(0x1ff);
    /// No event: the journal has it, so that waiting records are coalesced with it.
    const REFRESHED: Self = Self(1 << 9);

    /// Returns the union.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the difference.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether all of `other` is in the set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the change is in the set.
    pub fn contains(self, change: &Change) -> bool {
        self.has(Self::of(ChangeKind::of(change), change.cause()))
    }

    /// Returns whether a change of a unit is in the set. Initial objects of a `late` unit are new ones, too.
    fn takes(self, kind: ChangeKind, cause: Option<Cause>, late: bool) -> bool {
        let set = Self::of(kind, cause);
        self.has(set) || (late && set == Self::INITIAL && self.has(Self::ADDED))
    }

    /// Returns the set of one kind of changes.
    pub fn of(kind: ChangeKind, cause: Option<Cause>) -> Self {
        let set = match (kind, cause) {
            (ChangeKind::Added, Some(Cause::Initial)) => Self::INITIAL,
            (ChangeKind::Added, _) => Self::ADDED,
            (ChangeKind::Updated, _) => Self::UPDATED,
            (ChangeKind::Deleted, _) => Self::DELETED,
            (ChangeKind::Removed, _) => Self::REMOVED,
            (ChangeKind::Refreshed, _) => Self::REFRESHED,
            (ChangeKind::Synced, _) => Self::SYNCED,
            (ChangeKind::Unchanged, Some(Cause::Resync { .. })) => Self::RESYNC,
            (ChangeKind::Unchanged, _) => Self::UNCHANGED,
        };
        if cause == Some(Cause::Downtime) { set.with(Self::DOWNTIME) } else { set }
    }
}

/// Records that a reader wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// The units.
    pub units: HashMap<UnitId, UnitInterest>,
    /// The kinds of changes.
    pub changes: ChangeSet,
    /// The filter of these; all pass where there is none. The last one judges what waits and was not judged yet.
    pub filter: Option<RecordFilter>,
}

/// A reader's interest in a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitInterest {
    /// The reader sees nothing of it before a [`Journal::join`]. Has no effect on a unit that it sees already.
    pub joins: bool,
    /// The reader wants every nth resync; none where zero (S-11).
    pub resync_every: u32,
}

/// Options of a new reader.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// Limits of what waits.
    pub bounds: Bounds,
    /// Records that it wants.
    pub interest: Interest,
    /// With a store, the reader resumes at the cursor of the last one of that name, over any number of restarts. A reader
    /// without a name ends with the process.
    pub name: Option<String>,
}

/// Request to a unit on behalf of one reader, made between two of its batches: only there is its cache the state that
/// the reader shall begin or end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The reader.
    pub reader: ReaderId,
    /// The request.
    pub kind: MoveKind,
}

/// Kind of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// Calls [`Journal::join`] with a [`Change::Added`] of this cause for each cached object. Where it is `None`, with no
    /// object: the reader is notified of an existing object when it changes.
    Join(Option<Cause>),
    /// Calls [`Journal::leave`] with a [`Change::Removed`], cause [`Cause::Reload`], for each cached object.
    Leave,
}

/// Figures about a reader.
///
/// **Invariant:** `wanted = acknowledged + in_flight + queued + coalesced + dropped + filtered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Released records of its interest.
    pub wanted: u64,
    /// Of these, waiting to be read. Its filter may refuse some of them yet.
    pub queued: u64,
    /// Of these, in the store alone.
    pub spilled: u64,
    /// Read and not acknowledged.
    pub in_flight: u64,
    /// Acknowledged.
    pub acknowledged: u64,
    /// Coalesced into another one.
    pub coalesced: u64,
    /// Dropped at the bound.
    pub dropped: u64,
    /// Updates that lost their `old` at the bound.
    pub olds_given_up: u64,
    /// Refused by its filter, which counts as acknowledged.
    pub filtered: u64,
    /// Of these, refused because the filter failed.
    pub filter_errors: u64,
    /// Acknowledged ones that were given up, for [`Journal::replay`].
    pub given_up: u64,
    /// Cursor: everything up to here is acknowledged, coalesced, dropped or not wanted.
    pub position: Sequence,
    /// Time of the oldest record waiting or in flight, in microseconds since the Unix epoch.
    pub oldest_micros: Option<i64>,
}

/// Losses of a reader since the last question (I6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The lost events, in the order they were lost.
    pub named: Vec<EventName>,
    /// Count of those that there was no room to name.
    pub unnamed: u64,
}

#[cfg(test)]
pub(crate) mod testing {
    //! Changes to make journals of.

    use std::sync::Arc;

    use super::*;
    use crate::object::{Identity, Object};

    /// Makes a pod of namespace `ns`.
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

    /// Everything of the units 0 … 7.
    pub(crate) fn everything() -> Interest {
        let all = UnitInterest { joins: false, resync_every: 1 };
        Interest { units: (0..8).map(|unit| (UnitId(unit), all)).collect(), changes: ChangeSet::ALL, filter: None }
    }

    /// Refuses a third of all records, by the versions they speak of: what two of them are merged into is another one.
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
        fn judge(&self, record: &Record) -> Judgement {
            match Self::passes(&record.change) {
                true => Judgement::Wanted,
                false if record.sequence.0.is_multiple_of(2) => Judgement::Refused,
                false => Judgement::Failed("on purpose".to_owned()),
            }
        }
    }

    /// Says `added a/7` or, with the state before, `updated a/7<3`.
    pub(crate) fn brief(record: &Record) -> String {
        let kind = ChangeKind::of(&record.change).as_str();
        let Some(object) = record.object() else { return kind.to_owned() };
        let old = record.old().map_or(String::new(), |old| format!("<{}", old.resource_version()));
        format!("{kind} {}/{}{old}", object.uid(), object.resource_version())
    }
}
