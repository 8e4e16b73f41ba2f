//! The queue between reflector and indexer. It holds changes in the order in which they must be applied.
//!
//! [`DeltaFifo`] is the pure queue with its two orders (F-10 … F-17, F-20 … F-24, F-40). `delta_fifo/actor.rs` keeps one
//! batch in flight to the indexer, and queues further deltas meanwhile.
//!
//! Reasons: `docs/decisions/0006-two-orders-of-the-queue.md`.

pub(crate) mod actor;
mod arrivals;
mod known;
pub(crate) mod messages;
#[cfg(test)]
mod model_tests;
mod newest;
mod per_key;
mod repacking;
mod stream;
#[cfg(test)]
pub(crate) mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    known::Known,
    newest::{KeySet, Newest},
    per_key::PerKeyQueue,
    repacking::Repacking,
    stream::StreamQueue,
};
use crate::{
    object::{Keep, Object, ResourceVersion},
    reflector::{Comparison, ReflectorEvent},
};

/// Maximum number of deltas in a batch (F-40). A Replace, or the deltas of a single key, may be more.
const BATCH_LEN_MAX: usize = 1_000;

/// Kind of a change to an object (F-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaKind {
    /// A watch sent `ADDED`.
    Added,
    /// A watch sent `MODIFIED`.
    Updated,
    /// A watch sent `DELETED`. The delta has the final state of the object.
    Deleted,
    /// The object is missing from a list. The delta has the last known state of the object.
    #[doc(alias = "DeletedFinalStateUnknown")]
    Tombstone,
    /// The object was in a list (F-2).
    Replaced,
    /// The object itself asks not to be shown ([`Object::opts_out`](crate::object::Object::opts_out)). The delta has only the
    /// identity of the object. Consumers see the object as removed. The object may be added again later.
    OptedOut {
        /// Set when the object was found in a list, not by a watch.
        listed: bool,
    },
    /// The object is delivered again from memory (F-16, F-24), in the unit's `round`-th resync.
    Sync {
        /// Number of the resync; see [`ReflectorEvent::Resync`].
        round: u32,
    },
}

impl DeltaKind {
    /// Returns true if the object is not shown after this change.
    pub fn is_deletion(self) -> bool {
        matches!(self, Self::Deleted | Self::Tombstone | Self::OptedOut { .. })
    }

    /// Returns true if a watch sent the change.
    pub(crate) fn is_watched(self) -> bool {
        matches!(self, Self::Added | Self::Updated | Self::Deleted | Self::OptedOut { listed: false })
    }

    pub(crate) fn is_sync(self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// One change to one object.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Kind of the change.
    pub kind: DeltaKind,
    /// Object after the change; for [`DeltaKind::Tombstone`], the object before the change.
    pub object: Object,
}

/// A batch of deltas. The consumer applies it as one transaction, with one publish.
///
/// **Invariant:** the order of the deltas is the order in which they must be applied, also across keys. The deltas of one key
/// are consecutive. A Replace is never split: its deletions and its items are in one batch.
#[derive(Clone, Debug, Default)]
pub struct Deltas {
    /// Deltas of the batch, oldest first.
    pub deltas: Vec<Delta>,
    /// Version of a list or bookmark that the store reaches with this batch. `None` if the store reaches the version of the
    /// object in the last delta (I-11).
    pub store_version: Option<ResourceVersion>,
    /// Version from which a watch can be resumed once this batch is applied; `None` keeps the previous one.
    pub resume_version: Option<ResourceVersion>,
    /// Set when the deltas belong to the first list (F-53).
    pub initial: bool,
    /// Set when this batch completes the initial state (F-50).
    pub completes_initial: bool,
}

/// Order of the queue between reflector and indexer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "QueueOrder")]
#[serde(rename_all = "kebab-case")]
pub enum QueueOrder {
    /// Order of arrival (F-20 … F-24, F-40).
    #[default]
    Stream,
    /// Classic `DeltaFIFO`: grouped by key (F-10 … F-17).
    PerKey,
}

/// The queue of one unit. Events go in, batches come out.
///
/// It keeps `known`, the state after the popped batches, so that a Replace or a Resync does not need data of another actor.
/// After a restart of its unit, a new queue is created from the state that the indexer has published.
///
/// **Invariant:** in both orders, popping all batches and applying them to a map gives the state that the events describe. The
/// queue itself has no limit: the caller of `push` compares [`DeltaFifo::queued_bytes`] with its limit, and stops reading.
///
/// **Contract:** there is one consumer. It applies a batch before the next `pop`.
#[derive(Debug)]
pub struct DeltaFifo {
    queue: Queue,
    known: Known,
    keep: Keep,
    sync: SyncState,
    closed: bool,
    repacking: Repacking,
}

#[derive(Debug)]
enum Queue {
    Stream(StreamQueue),
    PerKey(PerKeyQueue),
}

/// Progress of the initial state (F-50, F-53).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// No event that can complete the initial state was pushed.
    Unpopulated,
    /// The first Replace is queued.
    Queued,
    /// A change came before any Replace. The initial state counts as complete, and the next batch reports this.
    Unannounced,
    /// Synced. This state is final.
    Synced,
}

impl DeltaFifo {
    /// Returns a queue over the state `known`. Set `synced` if the unit was synced before: then no further batch is `initial`
    /// (F-53).
    ///
    /// If `synced` is not set, any objects in `known` come from another unit, which may have cut other parts from them. The
    /// items of the first Replace then keep their own bodies, even if their states are known.
    pub fn new(order: QueueOrder, known: impl Iterator<Item = Object>, synced: bool) -> Self {
        let queue = match order {
            QueueOrder::Stream => Queue::Stream(StreamQueue::default()),
            QueueOrder::PerKey => Queue::PerKey(PerKeyQueue::default()),
        };
        let sync = if synced { SyncState::Synced } else { SyncState::Unpopulated };
        let repacking = Repacking::default();
        Self { queue, known: known.collect(), keep: Keep::Whole, sync, closed: false, repacking }
    }

    /// Makes the queue keep only a part of each known object; `keep` selects the part. The objects passed to [`DeltaFifo::new`]
    /// must already be cut to this part.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }

    /// Appends the deltas of an event. For a Replace or a Resync it visits every known key. A closed queue takes events too
    /// (F-70).
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
            ReflectorEvent::Resync { round } => self.push_resync(round),
        }
    }

    fn push_change(&mut self, kind: DeltaKind, object: Object) {
        let kind = if object.opts_out() { DeltaKind::OptedOut { listed: false } } else { kind };
        let delta = Delta { kind, object };
        match &mut self.queue {
            Queue::Stream(queue) => queue.push(delta),
            Queue::PerKey(queue) => {
                let key = delta.object.key();
                let is_unneeded = kind.is_deletion() && !queue.contains(key) && self.known.get(key).is_none();
                queue.reach(&delta.object);
                if is_unneeded {
                    return;
                }
                queue.append(delta, false);
            }
        }
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Unannounced;
        }
    }

    /// Counts the objects that exist after all queued deltas, and how many of these objects a list of `items` would delete. Visits
    /// every item and every known key.
    pub(crate) fn compare(&self, items: &[Object]) -> Comparison {
        let mut comparison = Comparison::default();
        if self.known.len() == 0 && self.is_empty() {
            return comparison;
        }
        let listed: KeySet<'_> = items.iter().map(Object::key).collect();
        let newest = self.newest();
        for object in newest.queued().chain(newest.unqueued()) {
            comparison.known += 1;
            comparison.missing += usize::from(!listed.contains(&object.key()));
        }
        comparison
    }

    /// Returns the state after all queued deltas.
    fn newest(&self) -> Newest<'_> {
        match &self.queue {
            Queue::Stream(queue) => Newest::new(&self.known, queue.deltas()),
            Queue::PerKey(queue) => Newest::new(&self.known, queue.newest()),
        }
    }

    /// Appends every known object that has no queued change (F-16, F-24). Deltas of an earlier resync do not count as changes,
    /// because each resync has its own handlers (S-11).
    fn push_resync(&mut self, round: u32) {
        let newest = self.newest();
        let unchanged = |object: &&Object| newest.get(object.key()).is_none_or(|delta| delta.kind.is_sync());
        let objects: Vec<Object> = self.known.iter().filter(unchanged).cloned().collect();
        for object in objects {
            let delta = Delta { kind: DeltaKind::Sync { round }, object };
            match &mut self.queue {
                Queue::Stream(queue) => queue.push(delta),
                Queue::PerKey(queue) => queue.append(delta, true),
            }
        }
    }

    /// Appends the deltas of a list. Each known object that neither `items` nor `spared` contains gets a deletion. An item that could
    /// not be read is spared. Each known item that opts out gets a removal. Each item that does not opt out gets a [`DeltaKind::Replaced`]. The deletions come first in
    /// stream order (F-22), and last in per-key order (F-13, F-14). Among the deletions, queued keys come first; all other keys
    /// follow, sorted.
    fn push_replace(&mut self, mut items: Vec<Object>, spared: &[Object], version: ResourceVersion) {
        let opted_out: Vec<Object> = items.extract_if(.., |item| item.opts_out()).collect();
        let unread: Vec<Object> = items.extract_if(.., |item| item.is_unread()).collect();
        let share = self.keep.is_whole() && self.sync != SyncState::Unpopulated;
        let newest = self.newest();

        let listed: KeySet<'_> = items.iter().chain(&opted_out).chain(&unread).chain(spared).map(Object::key).collect();
        let is_gone = |object: &&Object| !listed.contains(&object.key());
        let mut gone: Vec<Object> = newest.queued().filter(is_gone).cloned().collect();
        let from_queue = gone.len();
        gone.extend(newest.unqueued().filter(is_gone).cloned());
        gone[from_queue..].sort_unstable_by(|a, b| a.key().cmp(&b.key()));
        drop(listed);

        let gone = gone.into_iter().map(|object| (Delta { kind: DeltaKind::Tombstone, object }, true));
        let opted_out = opted_out.into_iter().filter(|object| newest.state(object.key()).is_some());
        let opted_out = opted_out.map(|object| (Delta { kind: DeltaKind::OptedOut { listed: true }, object }, false));
        // If the queue already holds the state of an item, the delta shares the held body.
        let items = items.into_iter().map(|item| {
            let held = newest.state(item.key()).filter(|held| share && is_same_state(held, &item)).cloned();
            let is_shared = held.is_some();
            (Delta { kind: DeltaKind::Replaced, object: held.unwrap_or(item) }, is_shared)
        });
        let listed = opted_out.chain(items);
        let (deltas, are_shared): (Vec<Delta>, Vec<bool>) = match &self.queue {
            Queue::Stream(_) => gone.chain(listed).unzip(),
            Queue::PerKey(_) => listed.chain(gone).unzip(),
        };
        match &mut self.queue {
            Queue::Stream(queue) => queue.push_replace(deltas, &are_shared, version),
            Queue::PerKey(queue) => queue.push_replace(deltas, &are_shared, version),
        }
        if self.sync == SyncState::Unpopulated {
            self.sync = SyncState::Queued;
        }
    }

    /// Takes the next batch; `None` if the queue is empty.
    ///
    /// In stream order, a batch has up to 1,000 deltas with distinct keys (F-40). In per-key order, it has all deltas of some
    /// keys: up to 1,000 deltas, or more if the first key alone has more (F-17). A Replace is one batch. A batch may be
    /// empty: then it only has a new version, or an empty list completes the initial state.
    pub fn pop(&mut self) -> Option<Deltas> {
        let (mut deltas, replace) = match &mut self.queue {
            Queue::Stream(queue) => queue.pop()?,
            Queue::PerKey(queue) => queue.pop()?,
        };
        deltas.initial = matches!(self.sync, SyncState::Unpopulated | SyncState::Queued);
        self.find_writers(&mut deltas.deltas);
        self.known.apply(&deltas.deltas, &self.keep, deltas.initial);
        if self.sync == SyncState::Unannounced || self.sync == SyncState::Queued && replace {
            self.sync = SyncState::Synced;
            deltas.completes_initial = true;
        }
        Some(deltas)
    }

    /// Finds the writer of each object whose noted writers are not compared with the previous state yet.
    fn find_writers(&self, deltas: &mut [Delta]) {
        for at in 0..deltas.len() {
            let (before, [delta, ..]) = deltas.split_at_mut(at) else { return };
            if !delta.object.has_noted_writers() {
                continue;
            }
            // the deltas of one key are consecutive
            let key = delta.object.key();
            let old = match before.last().filter(|before| before.object.key() == key) {
                Some(before) => Some(&before.object).filter(|_| !before.kind.is_deletion()),
                None => self.known.get(key),
            };
            delta.object = delta.object.with_writer_since(old, self.keep.is_whole());
        }
    }

    /// Packs some known objects again, if their dictionary is being retired. Returns the new forms, or an empty list if no such
    /// object is left. The consumer must replace its forms of these objects, so that both share the memory. Call this function
    /// while there is no other work.
    pub fn repack(&mut self) -> Vec<Object> {
        let Some(packer) = self.keep.packer() else { return Vec::new() };
        self.repacking.step(packer, &mut self.known)
    }

    /// Returns the number of queued deltas.
    pub fn len(&self) -> usize {
        self.load().len
    }

    fn load(&self) -> Load {
        match &self.queue {
            Queue::Stream(queue) => queue.load,
            Queue::PerKey(queue) => queue.load,
        }
    }

    /// Returns true if `pop` would return `None`.
    pub fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Stream(queue) => queue.is_empty(),
            Queue::PerKey(queue) => queue.is_empty(),
        }
    }

    /// Returns the size of the queued deltas, in bytes. A delta counts as 16 bytes plus the size of its object. If the cache or
    /// another delta also holds the object, only the 16 bytes count: for tombstones, resyncs and unchanged list items.
    pub fn queued_bytes(&self) -> usize {
        self.load().bytes
    }

    /// Marks the queue as closed: the queue has ended when it is also empty. Before that, `pop` and `push` work as usual (F-70).
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns true if the queue was closed. A closed and empty queue has ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Number of queued deltas, and their size; see [`DeltaFifo::queued_bytes`].
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    len: usize,
    bytes: usize,
}

/// A popped batch, and true if it contains a Replace.
type Popped = (Deltas, bool);

/// Returns the bytes that only this delta holds.
fn bytes_of(delta: &Delta, shared: bool) -> usize {
    let own = match delta.kind {
        DeltaKind::Tombstone | DeltaKind::Sync { .. } => 0,
        _ if shared => 0,
        _ => delta.object.size_bytes(),
    };
    own + size_of::<Delta>()
}

/// Returns true if two objects of one key are the same state: equal uid and resourceVersion (S-4). If the API gives no
/// resourceVersion, their bytes must be equal.
pub(crate) fn is_same_state(one: &Object, other: &Object) -> bool {
    one.ptr_eq(other) || one.same_version(other) && (!one.resource_version().is_empty() || one.json() == other.json())
}
