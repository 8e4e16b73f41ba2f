//! The queue between reflector and indexer: what changed, in the order in which it shall be applied.
//!
//! [`DeltaFifo`] is the pure queue with its two orders (D4; F-10 … F-17, F-20 … F-24, F-40); `delta_fifo/actor.rs`
//! keeps one batch in flight to the indexer and appends the rest meanwhile.

pub mod actor;
mod arrivals;
mod known;
#[cfg(test)]
mod model_test;
mod per_key;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{HashMap, HashSet};

use self::{known::Known, per_key::PerKeyQueue, stream::StreamQueue};
use crate::{
    object::{Keep, KeyRef, Object, ResourceVersion},
    reflector::{Comparison, Event},
};

/// The most deltas one batch holds (F-40), a Replace excepted.
const BATCH_LEN_MAX: usize = 1_000;

/// What happened to an object (F-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaKind {
    /// A watch said `ADDED`.
    Added,
    /// A watch said `MODIFIED`.
    Updated,
    /// A watch said `DELETED`; the object is its final state.
    Deleted,
    /// A list no longer has it; the object is the last state known.
    #[doc(alias = "DeletedFinalStateUnknown")]
    Tombstone,
    /// It came with a list (F-2).
    Replaced,
    /// It says of itself that it is not to be shown ([`Object::opts_out`](crate::object::Object::opts_out)); the object is
    /// what identifies it. To who was shown it, it is gone; it may come back.
    OptedOut {
        /// A list says so, not a watch.
        listed: bool,
    },
    /// Redelivered from memory (F-16, F-24), in the unit's `round`-th resync.
    Sync {
        /// As in [`Event::Resync`].
        round: u32,
    },
}

impl DeltaKind {
    /// Returns whether there is nothing to be shown after it.
    pub fn is_deletion(self) -> bool {
        matches!(self, Self::Deleted | Self::Tombstone | Self::OptedOut { .. })
    }

    fn is_sync(self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// One change to one object.
#[derive(Clone, Debug)]
pub struct Delta {
    /// What happened.
    pub kind: DeltaKind,
    /// The object after it; before it for [`DeltaKind::Tombstone`].
    pub object: Object,
}

/// What the queue emits: deltas to apply as one transaction, with one publish.
///
/// **Invariant:** between two deltas of one key there may be others, their order is the order to apply. A Replace is
/// never split: its deletions and its items are in one batch (D3).
#[derive(Clone, Debug, Default)]
pub struct Deltas {
    /// Oldest first.
    pub deltas: Vec<Delta>,
    /// The list or bookmark version the store has reached with this batch, when that is not the version of its last
    /// delta's object (I-11).
    pub store_version: Option<ResourceVersion>,
    /// From here a watch may be resumed once this batch is applied; `None`: from where it could be before.
    pub resume_version: Option<ResourceVersion>,
    /// These deltas belong to the first list (F-53).
    pub initial: bool,
    /// With this batch the initial state is complete (F-50).
    pub completes_initial: bool,
}

/// In which order deltas of different keys leave the queue (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Arrival order across keys; nothing is merged or left out (F-20 … F-24).
    #[default]
    Stream,
    /// The classical order: deltas grouped by key, a key keeps its place (F-10 … F-17).
    PerKey,
}

/// What went in and out since the queue was made.
///
/// **Invariant:** `deltas_in = deltas_out + deletes_merged +` [`DeltaFifo::len`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FifoCounters {
    /// Events pushed.
    pub events_in: u64,
    /// Deltas these events became.
    pub deltas_in: u64,
    /// Deltas popped.
    pub deltas_out: u64,
    /// Batches popped.
    pub batches_out: u64,
    /// Deletions of unknown keys left out (F-12; per-key order only, stream order leaves them to the indexer).
    pub deletes_unknown: u64,
    /// Deletions merged into the one before (F-11; per-key order only).
    pub deletes_merged: u64,
    /// Items left out because a later item of the same list has their key (F-31): the server's mistake.
    pub list_duplicates: u64,
    /// List items whose body was dropped for an equal one held already (D4).
    pub bodies_shared: u64,
}

/// What one step of packing anew has done.
#[derive(Clone, Debug, Default)]
pub struct Repacked {
    /// The same states of the same objects.
    pub objects: Vec<Object>,
    /// It was the last step, for so many [`Packer::retirements`](crate::object::packer::Packer::retirements).
    pub done: Option<u64>,
}

/// The queue of one unit: events in, batches out.
///
/// It owns `known`, the state after what was popped, so that a Replace or a Resync needs no look into another actor.
/// After a restart of its unit it is made anew from the state the indexer has published.
///
/// **Invariant:** popping everything and applying it to a map in order gives the state the events describe, in both
/// orders. Nothing bounds the queue here: who pushes compares [`DeltaFifo::queued_bytes`] with its limit and stops
/// reading.
///
/// **Contract:** one consumer; it calls [`DeltaFifo::processed`] once it has applied a batch, before the next `pop`.
#[derive(Debug)]
pub struct DeltaFifo {
    queue: Queue,
    known: Known,
    keep: Keep,
    sync: SyncState,
    closed: bool,
    counters: FifoCounters,
    /// The retirements of dictionaries that the consumer has done with.
    repacked: u64,
}

#[derive(Debug)]
enum Queue {
    Stream(StreamQueue),
    PerKey(PerKeyQueue),
}

/// How far the initial state has come (F-50, F-53).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// Nothing was pushed that could make it.
    Unpopulated,
    /// The first Replace is queued.
    Queued,
    /// The first Replace was popped and is being applied.
    InFlight,
    /// A change came before any Replace: synced, and the next batch says so.
    Unannounced,
    /// Synced, for good.
    Synced,
}

impl DeltaFifo {
    /// Makes a queue over the state `known`; `synced` says that the unit was synced before, so that no batch is
    /// `initial` again (F-53).
    ///
    /// What is known to a unit that is not synced was cached by another, which may have cut other parts from it: the
    /// first Replace keeps the bodies that it brings.
    pub fn new(order: Order, known: impl Iterator<Item = Object>, synced: bool) -> Self {
        let queue = match order {
            Order::Stream => Queue::Stream(StreamQueue::default()),
            Order::PerKey => Queue::PerKey(PerKeyQueue::default()),
        };
        let sync = if synced { SyncState::Synced } else { SyncState::Unpopulated };
        Self {
            queue,
            known: known.collect(),
            keep: Keep::Whole,
            sync,
            closed: false,
            counters: FifoCounters::default(),
            repacked: 0,
        }
    }

    /// Makes the queue know of objects no more than `keep` says; `known` must be such already.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Appends what `event` means. Costs a look at every known key for a Replace or a Resync. A closed queue takes
    /// events too (F-70).
    pub fn push(&mut self, event: Event) {
        self.counters.events_in += 1;
        match event {
            Event::Added(object) => self.push_change(DeltaKind::Added, object),
            Event::Updated(object) => self.push_change(DeltaKind::Updated, object),
            Event::Deleted(object) => self.push_change(DeltaKind::Deleted, object),
            Event::Replace { items, spared, resource_version } => self.push_replace(items, &spared, resource_version),
            Event::Bookmark(version) => match &mut self.queue {
                Queue::Stream(queue) => queue.push_bookmark(version),
                Queue::PerKey(queue) => queue.reach_version(version),
            },
            Event::Resync { round } => {
                self.counters.deltas_in += match &mut self.queue {
                    Queue::Stream(queue) => queue.push_resync(&self.known, round),
                    Queue::PerKey(queue) => queue.push_resync(&self.known, round),
                };
            }
        }
    }

    fn push_change(&mut self, kind: DeltaKind, object: Object) {
        let kind = if object.opts_out() { DeltaKind::OptedOut { listed: false } } else { kind };
        let delta = Delta { kind, object };
        match &mut self.queue {
            Queue::Stream(queue) => queue.push(delta),
            Queue::PerKey(queue) => {
                let key = delta.object.key();
                if kind.is_deletion() && !queue.contains(key) && self.known.get(key).is_none() {
                    self.counters.deletes_unknown += u64::from(kind == DeltaKind::Deleted);
                    return queue.reach(delta.object);
                }
                self.counters.deletes_merged += u64::from(queue.push(delta));
            }
        }
        self.counters.deltas_in += 1;
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Unannounced;
        }
    }

    /// Returns how much of the state after everything queued a list of `items` would delete. Costs a look at every item
    /// and every known key.
    pub fn compare(&self, items: &[Object]) -> Comparison {
        let mut comparison = Comparison::default();
        if self.known.len() == 0 && self.is_empty() {
            return comparison;
        }
        let listed: KeySet<'_> = items.iter().map(|item| item.key()).collect();
        let mut count = |object: &Object| {
            comparison.known += 1;
            comparison.missing += usize::from(!listed.contains(&object.key()));
        };
        match &self.queue {
            Queue::Stream(queue) => queue.for_each_present(&self.known, &mut count),
            Queue::PerKey(queue) => queue.for_each_present(&self.known, &mut count),
        }
        comparison
    }

    fn push_replace(&mut self, items: Vec<Object>, spared: &[Object], version: ResourceVersion) {
        let mut items = self.without_duplicates(items);
        let opted_out = items.extract_if(.., |item| item.opts_out()).collect();
        let share = self.keep.is_whole() && self.sync != SyncState::Unpopulated;
        let pushed = match &mut self.queue {
            Queue::Stream(queue) => queue.push_replace(List { items, opted_out, spared, version }, &self.known, share),
            Queue::PerKey(queue) => queue.push_replace(List { items, opted_out, spared, version }, &self.known, share),
        };
        self.counters.deltas_in += pushed.deltas;
        self.counters.deletes_merged += pushed.merged;
        self.counters.bodies_shared += pushed.shared;
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Queued;
        }
    }

    /// Leaves out every item that a later one of the same key follows (F-31).
    fn without_duplicates(&mut self, mut items: Vec<Object>) -> Vec<Object> {
        let mut last = KeyMap::with_capacity_and_hasher(items.len(), <_>::default());
        for (at, item) in items.iter().enumerate() {
            last.insert(item.key(), at);
        }
        let duplicates = items.len() - last.len();
        if duplicates == 0 {
            return items;
        }
        self.counters.list_duplicates += duplicates as u64;
        let keep: Vec<bool> = items.iter().enumerate().map(|(at, item)| last.get(&item.key()) == Some(&at)).collect();
        let mut keep = keep.into_iter();
        items.retain(|_| keep.next().unwrap_or(true));
        items
    }

    /// Takes the next batch; `None` when there is nothing to apply.
    ///
    /// In stream order a batch has up to 1,000 deltas with pairwise distinct keys (F-40); in per-key order whole
    /// keys of together up to 1,000 deltas, more where one key has more (F-17). A Replace is one batch. A batch may
    /// be empty: then only the version moves on, or an empty list completes the initial state.
    pub fn pop(&mut self) -> Option<Deltas> {
        let Popped { mut deltas, replace } = match &mut self.queue {
            Queue::Stream(queue) => queue.pop()?,
            Queue::PerKey(queue) => queue.pop()?,
        };
        self.known.apply(&deltas.deltas, &self.keep);
        self.counters.batches_out += 1;
        self.counters.deltas_out += deltas.deltas.len() as u64;
        deltas.initial = matches!(self.sync, SyncState::Unpopulated | SyncState::Queued);
        if self.sync == SyncState::Queued && replace {
            self.sync = SyncState::InFlight;
            deltas.completes_initial = true;
        } else if self.sync == SyncState::Unannounced {
            self.sync = SyncState::Synced;
            deltas.completes_initial = true;
        }
        Some(deltas)
    }

    /// Notes that the batch popped last was applied (F-52: synced after the processing, not before).
    pub fn processed(&mut self) {
        if self.sync == SyncState::InFlight {
            self.sync = SyncState::Synced;
        }
    }

    /// Returns whether the consumer holds what shall be packed anew, because a dictionary is on its way out (D7): ask it
    /// when there is nothing else to do, step by step, and tell the answers to [`DeltaFifo::repacked`].
    pub fn wants_repacking(&self) -> bool {
        self.keep.packer().is_some_and(|packer| packer.retirements() > self.repacked)
    }

    /// Takes what the consumer has packed anew, so that both share it.
    pub fn repacked(&mut self, Repacked { objects, done }: &Repacked) {
        for object in objects {
            self.known.replace(object);
        }
        self.repacked = done.unwrap_or(self.repacked);
    }

    /// Returns whether the initial state was applied: the first Replace was processed, its deletions included, or a
    /// change was pushed before any Replace (F-50). Never goes back.
    pub fn has_synced(&self) -> bool {
        matches!(self.sync, SyncState::Unannounced | SyncState::Synced)
    }

    /// Returns the number of queued deltas.
    pub fn len(&self) -> usize {
        match &self.queue {
            Queue::Stream(queue) => queue.len(),
            Queue::PerKey(queue) => queue.len(),
        }
    }

    /// Returns whether `pop` would return `None`.
    pub fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Stream(queue) => queue.is_empty(),
            Queue::PerKey(queue) => queue.is_empty(),
        }
    }

    /// Returns the bytes that queued deltas hold: the size of every object that came with an event, and 16 a delta
    /// whose object is held by the cache or another delta anyway (tombstones, resyncs, unchanged list items).
    pub fn queued_bytes(&self) -> usize {
        match &self.queue {
            Queue::Stream(queue) => queue.bytes(),
            Queue::PerKey(queue) => queue.bytes(),
        }
    }

    /// Returns the number of objects in the state after what was popped.
    pub fn known_len(&self) -> usize {
        self.known.len()
    }

    /// Closes the queue. What is queued can still be popped, what is pushed still queued (F-70).
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns whether the queue was closed. Closed and empty is the end.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns what went in and out.
    pub fn counters(&self) -> FifoCounters {
        self.counters
    }
}

/// What a queue hands to the fifo: a batch, and whether a Replace is in it.
struct Popped {
    deltas: Deltas,
    replace: bool,
}

/// A list to append.
struct List<'a> {
    items: Vec<Object>,
    /// What it has and is not to be shown.
    opted_out: Vec<Object>,
    /// See [`Event::Replace`].
    spared: &'a [Object],
    version: ResourceVersion,
}

impl List<'_> {
    /// Returns the keys that it does not delete.
    fn keys(&self) -> KeySet<'_> {
        self.items.iter().chain(&self.opted_out).chain(self.spared).map(|item| item.key()).collect()
    }
}

/// What a Replace did to a queue.
#[derive(Default)]
struct Pushed {
    deltas: u64,
    merged: u64,
    shared: u64,
}

type KeySet<'a> = HashSet<KeyRef<'a>, foldhash::fast::RandomState>;
type KeyMap<'a, T> = HashMap<KeyRef<'a>, T, foldhash::fast::RandomState>;

/// Returns the bytes a delta holds that nothing else holds.
fn bytes_of(delta: &Delta, shared: bool) -> usize {
    let own = match delta.kind {
        DeltaKind::Tombstone | DeltaKind::Sync { .. } => 0,
        _ if shared => 0,
        _ => delta.object.size_bytes(),
    };
    own + size_of::<Delta>()
}

/// Returns whether two objects of one key are the same state: equal uid and resourceVersion (S-4), and equal bytes
/// where the API gives no resourceVersion.
pub(crate) fn is_same_state(one: &Object, other: &Object) -> bool {
    one.ptr_eq(other) || one.same_version(other) && (!one.resource_version().is_empty() || one.json() == other.json())
}
