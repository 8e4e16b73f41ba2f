//! Records that wait for one reader: they are visible, and were not handed out yet.
//!
//! There are two implementations. [`InMemory`] coalesces or drops records beyond the reader's limits. [`InStore`] belongs to a named
//! reader of a journal with a store: beyond the limits it keeps only the positions of records, and loads them later.

mod backlog;
mod in_memory;
mod in_store;
mod queue;

#[cfg(test)]
pub(crate) use self::backlog::ENTRY_BYTES;
pub(crate) use self::in_store::ToLoad;
pub(crate) use self::in_store::{needs, waits_from};
use self::queue::WaitingRecord;
pub(super) use self::{in_memory::InMemory, in_store::InStore};
use super::{interest::ReaderInterest, tally::Tally};
use crate::journal::{Bounds, Record, Sequence, UnitTerms};

/// Number of waiting records in memory from which on new records are packed: packed records share memory with the cache.
const MANY: usize = 512;

/// The reader's interest, which decides about waiting records, and the counters of what happens to them.
pub(super) struct Context<'a> {
    pub(super) interest: &'a ReaderInterest,
    pub(super) tally: &'a mut Tally,
}

impl Context<'_> {
    /// Judges a record at once. Returns true if the record passes the filter. Counts a refused record.
    fn passes(&mut self, record: &Record) -> bool {
        self.interest.filter.as_ref().is_none_or(|filter| self.tally.count(&filter.judge(record)))
    }

    /// Returns the last position of the reader's initial state of the type.
    fn mark(&self, terms: UnitTerms) -> Option<Sequence> {
        self.interest.marks.get(&terms.resource).copied()
    }
}

/// The waiting records of one reader, in the order of their positions.
#[derive(Debug)]
pub(super) enum Waiting {
    InMemory(Box<InMemory>),
    InStore(Box<InStore>),
}

impl Waiting {
    /// Adds a record. An unwanted one may change how wanted ones are coalesced. Call [`Self::settle`] after the last of a batch.
    pub(super) fn push(&mut self, record: &Record, terms: UnitTerms, wanted: bool, context: &mut Context<'_>) {
        match self {
            Self::InMemory(waiting) => waiting.push(record, terms, wanted, context),
            Self::InStore(waiting) if wanted => waiting.push(record, terms),
            Self::InStore(_) => {}
        }
    }

    /// Brings the waiting records within the limits.
    pub(super) fn settle(&mut self, context: &mut Context<'_>) {
        match self {
            Self::InMemory(waiting) => waiting.settle(context),
            Self::InStore(waiting) => waiting.settle(),
        }
    }

    pub(super) fn bounds(&self) -> &Bounds {
        match self {
            Self::InMemory(waiting) => &waiting.bounds,
            Self::InStore(waiting) => &waiting.bounds,
        }
    }

    pub(super) fn set_bounds(&mut self, bounds: Bounds, context: &mut Context<'_>) {
        match self {
            Self::InMemory(waiting) => waiting.set_bounds(bounds, context),
            Self::InStore(waiting) => waiting.bounds = bounds,
        }
        self.settle(context);
    }

    /// Returns the first record in memory.
    pub(super) fn front(&self) -> Option<&Record> {
        match self {
            Self::InMemory(waiting) => waiting.front(),
            Self::InStore(waiting) => waiting.queue.waiting.front().map(|waiting| &waiting.record),
        }
    }

    /// Returns the wanted records in memory that are not judged yet and come before any other. Empty if the first record is judged.
    pub(super) fn unjudged(&self) -> impl Iterator<Item = &Record> {
        let queue = match self {
            Self::InMemory(waiting) => &waiting.queue,
            Self::InStore(waiting) => &waiting.queue,
        };
        let wanted = queue.waiting.iter().filter(|waiting| waiting.wanted);
        wanted.take_while(|waiting| !waiting.judged).map(|waiting| &waiting.record)
    }

    /// Removes the first record in memory.
    pub(super) fn pop(&mut self) -> Option<Record> {
        match self {
            Self::InMemory(waiting) => waiting.pop(),
            Self::InStore(waiting) => waiting.queue.pop().map(|waiting| waiting.record),
        }
    }

    /// Returns the records in memory, in order. Leaves out unwanted ones.
    pub(super) fn in_memory(&self) -> Box<dyn Iterator<Item = &Record> + '_> {
        match self {
            Self::InMemory(waiting) => Box::new(waiting.iter()),
            Self::InStore(waiting) => Box::new(waiting.queue.waiting.iter().map(|waiting| &waiting.record)),
        }
    }

    /// Returns the number of records in memory. Leaves out unwanted ones.
    pub(super) fn in_memory_len(&self) -> usize {
        match self {
            Self::InMemory(waiting) => waiting.len(),
            Self::InStore(waiting) => waiting.queue.wanted.events,
        }
    }

    /// Remembers records that were given up.
    pub(super) fn give_up(&mut self, records: Vec<Record>) {
        match self {
            Self::InMemory(waiting) => waiting.give_up(records),
            Self::InStore(waiting) => waiting.given_up.extend(records.iter().map(|record| record.sequence.0)),
        }
    }

    /// Takes the given-up records back. Returns their number, and those of them that were kept in memory. The others wait again.
    pub(super) fn replay(&mut self) -> (u64, Vec<Record>) {
        match self {
            Self::InMemory(waiting) => {
                let records: Vec<_> = std::mem::take(&mut waiting.given_up).into_values().collect();
                (records.len() as u64, records)
            }
            Self::InStore(waiting) => (waiting.replay(), Vec::new()),
        }
    }

    pub(super) fn stored(&self) -> Option<&InStore> {
        match self {
            Self::InMemory(_) => None,
            Self::InStore(stored) => Some(stored),
        }
    }

    pub(super) fn stored_mut(&mut self) -> Option<&mut InStore> {
        match self {
            Self::InMemory(_) => None,
            Self::InStore(stored) => Some(stored),
        }
    }

    /// Asserts the invariants between two calls.
    #[cfg(test)]
    pub(super) fn check(&self) {
        match self {
            Self::InMemory(waiting) => waiting.check(),
            Self::InStore(waiting) => waiting.check(),
        }
    }
}
