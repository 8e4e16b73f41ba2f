//! The queue between reflector and indexer: what changed, in the order in which it shall be applied.
//!
//! [`DeltaFifo`] is the pure queue with its two orders (D4; F-10 … F-17, F-20 … F-24, F-40); `delta_fifo/actor.rs`
//! keeps one batch in flight to the indexer and appends the rest meanwhile.

pub mod actor;
mod arrivals;
mod known;
pub mod messages;
#[cfg(test)]
mod model_test;
mod per_key;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{known::Known, per_key::PerKeyQueue, stream::StreamQueue};
use crate::{
    object::{Keep, KeyRef, Object, ResourceVersion},
    reflector::{Comparison, ReflectorEvent},
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
        /// As in [`ReflectorEvent::Resync`].
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

/// Order of the queue between reflector and indexer (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QueueOrder")]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// As it arrived (F-20 … F-24, F-40).
    #[default]
    Stream,
    /// The classical `DeltaFIFO` (F-10 … F-17).
    PerKey,
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
    pub fn new(order: QueueOrder, known: impl Iterator<Item = Object>, synced: bool) -> Self {
        let queue = match order {
            QueueOrder::Stream => Queue::Stream(StreamQueue::default()),
            QueueOrder::PerKey => Queue::PerKey(PerKeyQueue::default()),
        };
        let sync = if synced { SyncState::Synced } else { SyncState::Unpopulated };
        Self { queue, known: known.collect(), keep: Keep::Whole, sync, closed: false, repacked: 0 }
    }

    /// Makes the queue know of objects no more than `keep` says; `known` must be such already.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Appends what `event` means. Costs a look at every known key for a Replace or a Resync. A closed queue takes
    /// events too (F-70).
    pub fn push(&mut self, event: ReflectorEvent) {
        match event {
            ReflectorEvent::Added(object) => self.push_change(DeltaKind::Added, object),
            ReflectorEvent::Updated(object) => self.push_change(DeltaKind::Updated, object),
            ReflectorEvent::Deleted(object) => self.push_change(DeltaKind::Deleted, object),
            ReflectorEvent::Replace { items, spared, resource_version } => {
                self.push_replace(items, &spared, resource_version);
            }
            ReflectorEvent::Bookmark(version) => match &mut self.queue {
                Queue::Stream(queue) => queue.push_bookmark(version),
                Queue::PerKey(queue) => queue.reach_version(version),
            },
            ReflectorEvent::Resync { round } => match &mut self.queue {
                Queue::Stream(queue) => queue.push_resync(&self.known, round),
                Queue::PerKey(queue) => queue.push_resync(&self.known, round),
            },
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
                    return queue.reach(delta.object);
                }
                queue.push(delta);
            }
        }
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Unannounced;
        }
    }

    /// Returns how much of the state after everything queued a list of `items` would delete. Costs a look at every item
    /// and every known key.
    pub(crate) fn compare(&self, items: &[Object]) -> Comparison {
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

    fn push_replace(&mut self, mut items: Vec<Object>, spared: &[Object], version: ResourceVersion) {
        let opted_out = items.extract_if(.., |item| item.opts_out()).collect();
        let share = self.keep.is_whole() && self.sync != SyncState::Unpopulated;
        let list = List { items, opted_out, spared, version };
        match &mut self.queue {
            Queue::Stream(queue) => queue.push_replace(list, &self.known, share),
            Queue::PerKey(queue) => queue.push_replace(list, &self.known, share),
        }
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Queued;
        }
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

    /// Closes the queue. What is queued can still be popped, what is pushed still queued (F-70).
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns whether the queue was closed. Closed and empty is the end.
    pub fn is_closed(&self) -> bool {
        self.closed
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
    /// See [`ReflectorEvent::Replace`].
    spared: &'a [Object],
    version: ResourceVersion,
}

impl List<'_> {
    /// Returns what the list deletes: of what is `queued`, then of what is known and not queued, by key.
    fn gone<'q>(
        &self,
        queued: impl Iterator<Item = &'q Object>,
        is_queued: impl Fn(KeyRef<'_>) -> bool,
        known: &Known,
    ) -> Vec<Object> {
        let listed = self.items.iter().chain(&self.opted_out).chain(self.spared);
        let listed: KeySet<'_> = listed.map(|item| item.key()).collect();
        let mut gone: Vec<Object> = queued.filter(|object| !listed.contains(&object.key())).cloned().collect();
        let from_queue = gone.len();
        let is_gone = |object: &&Object| !listed.contains(&object.key()) && !is_queued(object.key());
        gone.extend(known.iter().filter(is_gone).cloned());
        gone[from_queue..].sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        gone
    }

    /// Hands the deltas of the list itself to `put`: ends of what opts out, then items. An item whose state is held
    /// already gets the body that is held if `share`, and `put` a `true`. `newest` finds the newest queued delta of a key.
    fn listed<'q>(
        self,
        newest: impl Fn(KeyRef<'_>) -> Option<&'q Delta>,
        known: &'q Known,
        share: bool,
        mut put: impl FnMut(Delta, bool),
    ) {
        let held = |key: KeyRef<'_>| match newest(key) {
            Some(delta) => Some(&delta.object).filter(|_| !delta.kind.is_deletion()),
            None => known.get(key),
        };
        for object in self.opted_out {
            if held(object.key()).is_some() {
                put(Delta { kind: DeltaKind::OptedOut { listed: true }, object }, false);
            }
        }
        for item in self.items {
            let same = held(item.key()).filter(|held| share && is_same_state(held, &item)).cloned();
            let is_shared = same.is_some();
            put(Delta { kind: DeltaKind::Replaced, object: same.unwrap_or(item) }, is_shared);
        }
    }
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
