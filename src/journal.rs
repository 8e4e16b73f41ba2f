//! The one ordered stream of changes over all units: sequence, release mark, positions (D7).
//!
//! A batch is **append → publish → release**: readers see only what lies below the release mark, so no event
//! overtakes the read that it announces (I3).
//!
//! [`Journal`] is the handle that everything shares; [`memory::MemoryJournal`] is the pure core behind it, with what
//! waits for each reader (`journal/reader.rs`), merged where the reader is slow (`journal/backlog.rs`).

mod backlog;
pub mod memory;
#[cfg(test)]
mod model_tests;
mod reader;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use jiff::Timestamp;
use tokio::sync::Notify;

use crate::{
    indexer::{Cause, Change},
    mutex::lock,
    object::{ObjectKey, SharedObject},
};
use memory::MemoryJournal;

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
    pub fn object(&self) -> Option<&SharedObject> {
        match &self.change {
            Change::Added { object, .. }
            | Change::Updated { object, .. }
            | Change::Deleted { object, .. }
            | Change::Removed { object, .. }
            | Change::Unchanged { object, .. } => Some(object),
            Change::Synced { .. } => None,
        }
    }

    /// Returns the state before, where it is known and may be shown.
    pub fn old(&self) -> Option<&SharedObject> {
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
        self.object().map_or(0, |object| object.size_bytes()) + self.old().map_or(0, |old| old.size_bytes())
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
            Change::Synced { .. } => Self::Synced,
        }
    }

    /// Returns the word an event's `type` ends in; an unchanged object travels as `updated`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated | Self::Unchanged => "updated",
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

/// How much may wait for one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events. With [`WhenFull::Coalesce`] more may wait only for objects that the cache holds, one or two each.
    pub max_events: usize,
    /// Bytes of bodies. With [`WhenFull::Coalesce`], once full, of bodies that the cache does not hold itself.
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
pub struct ChangeSet(u8);

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
    /// Everything.
    pub const ALL: Self = Self(u8::MAX);

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
        let kind = match change {
            Change::Added { cause: Cause::Initial, .. } => Self::INITIAL,
            Change::Added { .. } => Self::ADDED,
            Change::Updated { .. } => Self::UPDATED,
            Change::Deleted { .. } => Self::DELETED,
            Change::Removed { .. } => Self::REMOVED,
            Change::Synced { .. } => Self::SYNCED,
            Change::Unchanged { cause: Cause::Resync { .. }, .. } => Self::RESYNC,
            Change::Unchanged { .. } => Self::UNCHANGED,
        };
        self.0 & kind.0 != 0
    }
}

/// What a reader wants to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Of these units.
    pub units: HashMap<UnitId, UnitInterest>,
    /// These changes.
    pub changes: ChangeSet,
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
/// **Invariant:** `wanted = acknowledged + in_flight + queued + coalesced + dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Released records that it wanted.
    pub wanted: u64,
    /// Of these, waiting to be read.
    pub queued: u64,
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

/// The journal of an engine: shared by indexers, which append, and readers.
///
/// One short lock per call, which is per batch. Nothing here waits but [`Journal::readable`].
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: Box<str>,
    core: Mutex<MemoryJournal>,
    wakers: Mutex<HashMap<ReaderId, Arc<Notify>>>,
}

impl Journal {
    /// Makes an empty journal in memory, with a random id of 12 hex digits.
    pub fn in_memory() -> Self {
        Self::with_id(&format!("{:012x}", rand::random::<u64>() >> 16))
    }

    fn with_id(id: &str) -> Self {
        let shared = Shared { id: id.into(), core: Mutex::default(), wakers: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the id: sequences are comparable within it.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Says what a unit is; before its first append.
    pub fn add_unit(&self, unit: UnitId, terms: UnitTerms) {
        self.core().add_unit(unit, terms);
    }

    /// Says that a unit appends nothing more. What it appended before is still delivered; when every reader has passed
    /// the returned place, the unit can be forgotten.
    pub fn retire_unit(&self, unit: UnitId) -> Sequence {
        self.core().retire_unit(unit)
    }

    /// Forgets a unit that appends nothing more, and that every reader has passed.
    pub fn forget_unit(&self, unit: UnitId) {
        self.core().forget_unit(unit);
    }

    /// Appends the changes of one transaction of `unit`; they stay invisible until [`Journal::release`].
    ///
    /// An append with an older epoch than the unit's last one, or than [`Journal::fence`] named, is refused.
    pub fn append(&self, unit: UnitId, epoch: u64, changes: &[Change], now: Timestamp) -> Result<Ticket, Fenced> {
        self.core().append(unit, epoch, changes, now.as_microsecond())
    }

    /// Makes the records of a ticket visible, once nothing older is outstanding. Tickets of several units may come
    /// in any order; one that is not outstanding is ignored.
    pub fn release(&self, ticket: Ticket) {
        let woken = self.core().release(ticket);
        self.wake(&woken);
    }

    /// Returns the oldest append of `unit` that was not released.
    pub fn outstanding(&self, unit: UnitId) -> Option<Ticket> {
        self.core().outstanding(unit)
    }

    /// Refuses from now on what comes from epochs of `unit` before `epoch`.
    pub fn fence(&self, unit: UnitId, epoch: u64) {
        self.core().fence(unit, epoch);
    }

    /// Takes back every append of `unit` that was not released, and returns how many records that were. For a unit
    /// whose cache is abandoned together with the actor that hangs in it: its records shall not hold the others up.
    pub fn withdraw(&self, unit: UnitId) -> usize {
        let (withdrawn, woken) = self.core().withdraw(unit);
        self.wake(&woken);
        withdrawn
    }

    /// Returns the release mark: readers see nothing above it.
    pub fn released(&self) -> Sequence {
        self.core().released()
    }

    /// Returns the place up to which every reader is done with everything.
    pub fn passed(&self) -> Sequence {
        self.core().passed()
    }

    /// Opens a reader. It holds its place until [`Journal::close_reader`].
    pub fn open_reader(&self, start: Start, options: ReaderOptions) -> Result<ReaderId, Gap> {
        let reader = self.core().open_reader(start, options)?;
        self.wakers().insert(reader, Arc::default());
        Ok(reader)
    }

    /// Replaces what a reader wants to see, from the next release on; what waits already stays. A unit that it sees and
    /// no longer wants is seen until [`Journal::leave`].
    pub fn set_interest(&self, reader: ReaderId, interest: &Interest) {
        self.core().set_interest(reader, interest);
    }

    /// Replaces how much may wait for a reader.
    pub fn set_bounds(&self, reader: ReaderId, bounds: Bounds) {
        self.core().set_bounds(reader, bounds);
    }

    /// Appends `changes` of `unit` for `reader` alone, already released, and lets it see what `unit` appends from then
    /// on, nothing that it appended before (S-5). Call it between two batches of the unit. A reader that sees the
    /// unit already, or is closed, is told nothing.
    pub fn join(
        &self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), Fenced> {
        let woken = self.core().join(reader, unit, epoch, changes, now.as_microsecond())?;
        self.wake(&woken);
        Ok(())
    }

    /// Appends `changes` of `unit` for `reader` alone, already released, after which it sees nothing more of `unit`;
    /// what was appended before is still delivered. A reader that does not see the unit is told nothing.
    pub fn leave(
        &self,
        reader: ReaderId,
        unit: UnitId,
        epoch: u64,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), Fenced> {
        let woken = self.core().leave(reader, unit, epoch, changes, now.as_microsecond())?;
        self.wake(&woken);
        Ok(())
    }

    /// Returns whether every unit that the reader takes has synced, and the reader has acknowledged everything up to
    /// there (S-8). A type has synced with the first [`Change::Synced`] of one of its units, or once all of them are
    /// marked so by [`Journal::mark_synced`]; no reader has before
    /// [`Journal::set_discovered`]. A reader that takes more has synced again once it is done with that too.
    pub fn has_synced(&self, reader: ReaderId) -> bool {
        self.core().has_synced(reader)
    }

    /// Notes that the initial state of `unit` is complete with what it has appended so far. For units that append no
    /// [`Change::Synced`], because others of their type are not synced or it was said before; that change implies it.
    pub fn mark_synced(&self, unit: UnitId) {
        self.core().mark_synced(unit);
    }

    /// Says that all units are known that the first discovery found.
    pub fn set_discovered(&self) {
        self.core().set_discovered();
    }

    /// Returns whether some reader shall see the `round`-th resync of `unit` (S-11), one that nobody is due for need
    /// not be made. Ask before each round: what readers are due for is counted from the last one asked for.
    pub fn is_resync_due(&self, unit: UnitId, round: u32) -> bool {
        self.core().is_resync_due(unit, round)
    }

    /// Closes a reader and forgets what waited for it.
    pub fn close_reader(&self, reader: ReaderId) {
        self.core().close_reader(reader);
        self.wakers().remove(&reader);
    }

    /// Returns the next records, in order, at most `max_events` of them, and of at most `max_bytes` unless one alone
    /// has more. They are in flight until they are acknowledged; at most `max_events` of the reader's bounds are.
    ///
    /// A record of a new object is held back while the deletion of another object of that name is in flight (D7).
    pub fn read(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        self.core().read(reader, max_events, max_bytes)
    }

    /// Acknowledges everything read up to `sequence`; it is forgotten.
    pub fn ack(&self, reader: ReaderId, sequence: Sequence) {
        self.core().ack(reader, sequence);
    }

    /// Hands out again, unmerged, what was read and not acknowledged.
    pub fn rewind(&self, reader: ReaderId) {
        self.core().rewind(reader);
    }

    /// Drops everything that waits for a reader or is in flight, counted and named, and shows it nothing more: for a
    /// handler that has ended while its numbers are still to be seen.
    pub fn abandon(&self, reader: ReaderId) {
        self.core().abandon(reader);
    }

    /// Waits until there may be something new to read; returns at once if that was so since the last call.
    pub async fn readable(&self, reader: ReaderId) {
        let waker = self.wakers().get(&reader).cloned();
        match waker {
            Some(waker) => waker.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Wakes [`Journal::readable`] of one reader.
    pub fn nudge(&self, reader: ReaderId) {
        self.wake(&[reader]);
    }

    /// Returns what there is to see of a reader.
    pub fn stats(&self, reader: ReaderId) -> ReaderStats {
        self.core().stats(reader)
    }

    /// Names what was dropped since the last call.
    pub fn take_losses(&self, reader: ReaderId) -> Losses {
        self.core().take_losses(reader)
    }

    /// Names what waits for a reader or is in flight, oldest first, up to `limit` events.
    pub fn undelivered(&self, reader: ReaderId, limit: usize) -> Vec<EventName> {
        self.core().undelivered(reader, limit)
    }

    fn wake(&self, readers: &[ReaderId]) {
        if !readers.is_empty() {
            let wakers = self.wakers();
            for waker in readers.iter().filter_map(|reader| wakers.get(reader)) {
                waker.notify_one();
            }
        }
    }

    fn core(&self) -> MutexGuard<'_, MemoryJournal> {
        lock(&self.shared.core)
    }

    fn wakers(&self) -> MutexGuard<'_, HashMap<ReaderId, Arc<Notify>>> {
        lock(&self.shared.wakers)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Changes to make journals of.

    use super::*;
    use crate::object::{Identity, Object};

    /// Makes a pod of namespace `ns`.
    pub(crate) fn pod(name: &str, uid: &str, version: u64) -> SharedObject {
        let version = version.to_string();
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"{name}","uid":"{uid}","resourceVersion":"{version}"}}}}"#
        );
        let identity = Identity { namespace: "ns", name, uid, resource_version: &version };
        Arc::new(Object::assemble(identity, &[json.as_bytes()]))
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
        Interest { units: (0..8).map(|unit| (UnitId(unit), all)).collect(), changes: ChangeSet::ALL }
    }

    /// Says `added a/7` or, with the state before, `updated a/7<3`.
    pub(crate) fn brief(record: &Record) -> String {
        let kind = ChangeKind::of(&record.change).as_str();
        let Some(object) = record.object() else { return kind.to_owned() };
        let old = record.old().map_or(String::new(), |old| format!("<{}", old.resource_version()));
        format!("{kind} {}/{}{old}", object.uid(), object.resource_version())
    }
}
