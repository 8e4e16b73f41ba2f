//! The one ordered stream of changes over all units: sequence, release mark, positions (D7).
//!
//! A batch is **append → publish → release**: readers see only what lies below the release mark, so no event
//! overtakes the read that it announces (I3).
//!
//! [`Journal`] is the handle that everything shares; [`memory::MemoryJournal`] is the pure core behind it, with what
//! waits for each reader (`journal/reader.rs`), merged where the reader is slow (`journal/backlog.rs`). What a reader's rules
//! refuse it is not told (`journal/filter.rs`).
//!
//! With a [`Store`](store::Store) it is **append → write → publish → release**, and a thread of its own makes durable what
//! was written, in groups, and only that is handed out (`journal/committer.rs`). What a slow reader cannot take stays in
//! the store (`journal/spill.rs`). A reader with a name goes on after a restart where it stood (`journal/recovery.rs`).

mod backlog;
mod committer;
pub(crate) mod compaction;
mod disk;
pub mod filter;
#[cfg(test)]
mod filter_tests;
mod handle;
#[cfg(test)]
mod judging_tests;
pub mod memory;
#[cfg(test)]
mod model_tests;
mod reader;
pub mod recovery;
mod retention;
#[cfg(test)]
mod room_tests;
mod spill;
pub mod store;
#[cfg(test)]
mod stored_model_tests;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt};

pub use self::{
    disk::{Fsync, JournalHealth, JournalOptions, NotWritable, OnFull, OpenJournalError},
    filter::{Filter, Judgement, RecordFilter},
    handle::Journal,
    reader::Held,
    spill::ToLoad,
};
use crate::{
    indexer::{Cause, Change},
    object::{Object, ObjectKey},
};

/// Names one unit (a resource type in one scope) within an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub u32);

/// Place in the journal; strictly increasing within one journal id, holes mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// What the journal emits: one change, numbered.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its place.
    pub sequence: Sequence,
    /// The unit whose cache it changed.
    pub unit: UnitId,
    /// When it was appended, in microseconds since the Unix epoch.
    pub time_micros: i64,
    /// The change.
    pub change: Change,
    /// The `old` of an [`Change::Updated`] was given up for memory, and stands for `object` now; it must not be shown.
    pub old_lost: bool,
}

impl Record {
    /// Returns the object the change is about; none for [`Change::Synced`].
    pub fn object(&self) -> Option<&Object> {
        match &self.change {
            Change::Added { object, .. }
            | Change::Updated { object, .. }
            | Change::Deleted { object, .. }
            | Change::Removed { object, .. }
            | Change::Unchanged { object, .. }
            | Change::Refreshed { object } => Some(object),
            Change::Synced { .. } => None,
        }
    }

    /// Returns the state before, where it is known and may be shown.
    pub fn old(&self) -> Option<&Object> {
        match &self.change {
            Change::Updated { old, .. } if !self.old_lost => Some(old),
            _ => None,
        }
    }

    /// Returns the name under which a report speaks of this record.
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

    /// Returns the same of packed objects, as far as a cache packed them: it shares them with the cache then.
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

/// Says which event was meant: in a report of losses, of leftovers, of poison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventName {
    /// Its place.
    pub sequence: Sequence,
    /// Its unit.
    pub unit: UnitId,
    /// What happened.
    pub kind: ChangeKind,
    /// Whom it happened to; both parts empty for [`ChangeKind::Synced`].
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

/// An append by an actor that was replaced meanwhile; nothing was written.
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

/// Why an append was refused; nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another actor has taken the unit over: do not try again.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The store takes nothing now: try again when [`Journal::writable`] says so.
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
}

/// Names one reader of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReaderId(pub u32);

/// Where a new reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the next record to be released.
    Next,
    /// Behind this place.
    After(Sequence),
}

/// The journal no longer has, or never had, what a reader asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal holds {} to {}, not what follows {}", first.0, last.0, asked.0)]
pub struct Gap {
    /// Where the reader wanted to begin behind.
    pub asked: Sequence,
    /// The oldest record held.
    pub first: Sequence,
    /// The release mark.
    pub last: Sequence,
}

/// A reader was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenReaderError {
    /// What it asked for is not there.
    #[error(transparent)]
    Gap(#[from] Gap),
    /// A reader of that name is open.
    #[error("there is a reader named {0:?} already")]
    Taken(String),
    /// The store could not be read or written.
    #[error("failed to look up where the reader stood: {0}")]
    Store(String),
}

/// What a replay does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records that wait again.
    pub queued: u64,
    /// Records that retention had removed.
    pub gone: u64,
}

/// What happens to a reader whose bound is reached (D-11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Events of one object are merged; a deletion is never cancelled.
    #[default]
    Coalesce,
    /// The oldest event is dropped, counted and named.
    DropOldest,
    /// The event that does not fit is dropped, counted and named.
    DropNewest,
}

/// How much may wait in memory for one reader. With a store the rest waits there, and nothing is merged or dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events. With [`WhenFull::Coalesce`], once full, of objects that the cache does not hold, such as deletions; of each
    /// that it holds one or two wait besides.
    pub max_events: usize,
    /// Bytes of bodies. With [`WhenFull::Coalesce`], once full, of bodies that the cache does not hold itself; what the
    /// records themselves take is a reason to give up `old`s, never one to drop a record.
    pub max_bytes: usize,
    /// What happens at the bound.
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_events: 10_000, max_bytes: 64 << 20, when_full: WhenFull::Coalesce }
    }
}

/// What a journal is told of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTerms {
    /// Its type.
    pub resource: TypeNumber,
    /// Its type was found after the first discovery: readers that want no initial objects want these.
    pub late: bool,
    /// Its cache holds the bodies of its objects.
    pub cached: bool,
}

/// Names a resource type within an engine. What waits of one object is merged over all units of its type, and a
/// [`Change::Synced`] speaks of them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeNumber(pub u32);

/// A set of kinds of changes, finer than [`ChangeKind`]: an initial object is not a new one, nor a relist a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet(u16);

impl ChangeSet {
    /// Objects that appear, the initial ones aside.
    pub const ADDED: Self = Self(1);
    /// Objects of the first list.
    pub const INITIAL: Self = Self(1 << 1);
    /// Objects with a new version.
    pub const UPDATED: Self = Self(1 << 2);
    /// Objects that are gone.
    pub const DELETED: Self = Self(1 << 3);
    /// Objects that left what is shown.
    pub const REMOVED: Self = Self(1 << 4);
    /// The end of the initial state.
    pub const SYNCED: Self = Self(1 << 5);
    /// Unchanged objects of a relist.
    pub const UNCHANGED: Self = Self(1 << 6);
    /// Unchanged objects of a resync.
    pub const RESYNC: Self = Self(1 << 7);
    /// Of those above also what happened while nobody looked ([`Cause::Downtime`]).
    pub const DOWNTIME: Self = Self(1 << 8);
    /// Everything that is an event.
    pub const ALL: Self = Self(0x1ff);
    /// What nobody is told: the journal has it, so that what waits is merged with it.
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

/// What a reader wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Of these units.
    pub units: HashMap<UnitId, UnitInterest>,
    /// These changes.
    pub changes: ChangeSet,
    /// Of them, what this says; all where there is none. What waits and was not judged yet is judged by the last one.
    pub filter: Option<RecordFilter>,
}

/// How a reader sees a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitInterest {
    /// Sees nothing of it before a [`Journal::join`]. Without effect on a unit that the reader sees already.
    pub joins: bool,
    /// Of its resyncs it wants every so many; none where zero (S-11).
    pub resync_every: u32,
}

/// How a reader is opened.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// How much may wait.
    pub bounds: Bounds,
    /// What it wants to see.
    pub interest: Interest,
    /// With a store, a reader of this name goes on where the last one of that name stood, over any number of restarts.
    /// One without a name ends with the process.
    pub name: Option<String>,
}

/// What a unit is asked on behalf of one reader, between two of its batches: only there is its cache the state that
/// the reader shall begin or end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Whom it concerns.
    pub reader: ReaderId,
    /// What it asks for.
    pub kind: MoveKind,
}

/// Kind of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// Calls [`Journal::join`] with a [`Change::Added`] of this cause for each cached object; with none where it is
    /// `None`: the reader hears of what is there already when it changes.
    Join(Option<Cause>),
    /// Calls [`Journal::leave`] with a [`Change::Removed`], cause [`Cause::Reload`], for each cached object.
    Leave,
}

/// What there is to see of a reader.
///
/// **Invariant:** `wanted = acknowledged + in_flight + queued + coalesced + dropped + filtered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Released records of its interest.
    pub wanted: u64,
    /// Of these, waiting to be read; some of them may be refused by its filter yet.
    pub queued: u64,
    /// Of these, in the store alone.
    pub spilled: u64,
    /// Read and not acknowledged.
    pub in_flight: u64,
    /// Acknowledged.
    pub acknowledged: u64,
    /// Merged into another one.
    pub coalesced: u64,
    /// Dropped at the bound.
    pub dropped: u64,
    /// Updates that lost their `old` at the bound.
    pub olds_given_up: u64,
    /// Refused by its filter, which counts as acknowledged.
    pub filtered: u64,
    /// Of these, refused because the filter could not say.
    pub filter_errors: u64,
    /// Acknowledged ones that were given up, to be had by [`Journal::replay`].
    pub given_up: u64,
    /// Everything up to here is acknowledged, merged, dropped or not wanted.
    pub position: Sequence,
    /// When the oldest record waiting or in flight was appended, in microseconds since the Unix epoch.
    pub oldest_micros: Option<i64>,
}

/// What a reader lost since it was last asked (I6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The lost events, in the order they were lost.
    pub named: Vec<EventName>,
    /// More of them than there was room to name.
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

    impl Filter for ByVersions {
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
