//! Waiting records of a reader whose state is not saved.
//!
//! Within the reader's limits, records wait unchanged in a [`Queue`]. Beyond them, they are dropped, or all move to a [`Backlog`] and
//! are coalesced there. Once the backlog is empty, records wait in the queue again.

use std::collections::BTreeMap;

use super::{Context, MANY, WaitingRecord, backlog::Backlog, queue::Queue};
use crate::{
    change::{Cause, Change},
    journal::{Bounds, Record, Sequence, UnitTerms, WhenFull},
};

/// Maximum number of given-up records.
const GIVEN_UP_MAX: usize = 1_000;

/// **Invariant:** while there is a backlog, the queue is empty.
#[derive(Debug, Default)]
pub(crate) struct InMemory {
    pub(super) bounds: Bounds,
    pub(super) queue: Queue,
    backlog: Option<Backlog>,
    /// Set when a reader that drops records has exceeded its limits; reset when nothing waits. While it is set, every waiting
    /// record has already been judged.
    overflowed: bool,
    /// Given-up records, for a replay.
    pub(super) given_up: BTreeMap<Sequence, Record>,
}

impl InMemory {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Returns true if records beyond the limits are dropped and not coalesced.
    fn drops(&self) -> bool {
        self.bounds.when_full == WhenFull::DropOldest
    }

    pub(super) fn push(&mut self, record: &Record, terms: UnitTerms, wanted: bool, context: &mut Context<'_>) {
        // From `MANY` records on, new ones are judged on arrival, so that coalescing has few left to judge.
        let many_wait = self.backlog.is_some() || self.overflowed || self.queue.waiting.len() >= MANY;
        let judged = wanted && many_wait;
        let wanted = wanted && (!judged || context.passes(record));
        if !wanted && self.backlog.is_none() && !self.matters(record) {
            return;
        }
        let record = if many_wait { record.packed() } else { record.clone() };
        let new = WaitingRecord { record, terms, wanted, judged };
        if let Some(backlog) = &mut self.backlog {
            backlog.push(&new, context.mark(terms), &self.bounds, context.tally);
        } else {
            self.queue.push(new);
            if self.drops() {
                self.settle(context);
            }
        }
    }

    /// Returns true if an unwanted record must be kept, because it would change the waiting records when they are coalesced.
    fn matters(&self, record: &Record) -> bool {
        let is_news = !matches!(record.change, Change::Unchanged { cause, .. } if cause != Cause::Reload);
        is_news && !self.queue.waiting.is_empty() && !self.drops()
    }

    pub(super) fn set_bounds(&mut self, bounds: Bounds, context: &mut Context<'_>) {
        self.bounds = bounds;
        if self.drops() {
            self.queue.retain(|waiting| waiting.wanted); // only a backlog needs unwanted records
            if let Some(mut backlog) = self.backlog.take() {
                self.overflowed = true;
                std::iter::from_fn(|| backlog.pop_front()).for_each(|waiting| self.queue.push(waiting));
            }
        }
        if let Some(backlog) = &mut self.backlog {
            backlog.enforce(&bounds, context.tally);
        }
    }

    pub(super) fn settle(&mut self, context: &mut Context<'_>) {
        if self.backlog.is_none() && self.queue.is_over(&self.bounds) {
            if !self.drops() {
                self.coalesce(context);
            } else if self.overflowed {
                self.drop_excess(context);
            } else {
                self.overflowed = true;
                for mut waiting in std::mem::take(&mut self.queue).waiting {
                    waiting.judged = waiting.judged || context.passes(&waiting.record);
                    if waiting.judged {
                        self.queue.push(waiting);
                        self.drop_excess(context);
                    }
                }
            }
        }
        self.note_taken_out();
    }

    fn drop_excess(&mut self, context: &mut Context<'_>) {
        while self.queue.is_over(&self.bounds) {
            context.tally.lose(&self.queue.pop().expect("too much waits").record);
        }
    }

    /// Moves all records from the queue to a backlog.
    fn coalesce(&mut self, context: &mut Context<'_>) {
        let mut backlog = Backlog::default();
        for mut waiting in std::mem::take(&mut self.queue).waiting {
            waiting.wanted = waiting.wanted && (waiting.judged || context.passes(&waiting.record));
            backlog.push(&waiting, context.mark(waiting.terms), &self.bounds, context.tally);
        }
        self.backlog = Some(backlog);
    }

    fn note_taken_out(&mut self) {
        self.backlog.take_if(|backlog| backlog.len() == 0);
        self.overflowed &= !self.queue.waiting.is_empty();
    }

    pub(super) fn front(&self) -> Option<&Record> {
        let waiting = self.queue.waiting.front().map(|waiting| &waiting.record);
        waiting.or_else(|| self.backlog.as_ref()?.front())
    }

    pub(super) fn pop(&mut self) -> Option<Record> {
        let waiting = self.queue.pop().or_else(|| self.backlog.as_mut()?.pop_front());
        self.note_taken_out();
        waiting.map(|waiting| waiting.record)
    }

    pub(super) fn len(&self) -> usize {
        self.backlog.as_ref().map_or(self.queue.wanted.events, Backlog::len)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        let queue = self.queue.waiting.iter().filter(|waiting| waiting.wanted).map(|waiting| &waiting.record);
        self.backlog.iter().flat_map(Backlog::iter).chain(queue)
    }

    /// Keeps only the newest given-up records, up to [`GIVEN_UP_MAX`] and `max_bytes`.
    pub(super) fn give_up(&mut self, records: Vec<Record>) {
        self.given_up.extend(records.into_iter().map(|record| (record.sequence, record)));
        let mut held: usize = self.given_up.values().map(Record::body_bytes).sum();
        while self.given_up.len() > GIVEN_UP_MAX || held > self.bounds.max_bytes {
            let Some((_, oldest)) = self.given_up.pop_first() else { break };
            held -= oldest.body_bytes();
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.queue.check(&self.bounds);
        if let Some(backlog) = &self.backlog {
            assert!(self.queue.waiting.is_empty() && backlog.len() > 0);
            backlog.check(&self.bounds);
        }
    }

    /// Returns the number of records in memory, unwanted ones included.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.queue.waiting.len() + self.backlog.as_ref().map_or(0, Backlog::len)
    }
}
