//! Path of a batch into journal and cache, always in the order append → publish → release (E3).

use std::sync::Arc;

use jiff::Timestamp;
use tracing::info;

use super::{Indexer, Transaction, attachment_changes, siblings::Siblings, slot::IndexerLease, view};
use crate::{
    change::Change,
    delta_fifo::Deltas,
    journal::{AppendError, Attachment, Journal, Ticket, UnitId, UnitWriter},
    object::Object,
    status::UnitStatus,
    supervisor::fault::{Fault, Moment},
};

/// Applies and releases a batch that an earlier actor has appended but not released.
pub(crate) fn recover(lease: &mut IndexerLease, journal: &Journal, unit: UnitId, status: &UnitStatus) {
    let in_flight = lease.slot.in_flight();
    lease.indexer().discard(); // changes that may be half staged
    finish(lease.indexer(), in_flight.as_deref(), journal.outstanding(unit), status);
    lease.set_in_flight(None);
    if let Some(ticket) = journal.outstanding(unit) {
        journal.release(ticket);
    }
}

/// Applies and publishes a transaction that is in the journal but not released. Does nothing if the transaction or the ticket is
/// missing. The caller must release the ticket afterwards.
pub(crate) fn finish(
    indexer: &mut Indexer,
    in_flight: Option<&Transaction>,
    ticket: Option<Ticket>,
    status: &UnitStatus,
) {
    if let (Some(transaction), Some(ticket)) = (in_flight, ticket) {
        indexer.commit(transaction);
        indexer.store.reach_position(ticket.last.0);
        indexer.publish();
        observe(indexer, &transaction.changes, status);
        info!(changes = transaction.changes.len(), "applied the batch that was journaled before the restart");
    }
}

fn observe(indexer: &Indexer, changes: &[Change], status: &UnitStatus) {
    let mut shown = status.lock();
    view::count(&mut shown.events, changes);
    view::show(&mut shown, indexer.store().meta());
}

/// Writer for the batches of one unit in one generation. Once a later generation exists, the journal refuses the appends of this writer.
pub(crate) struct IndexerWriter {
    pub(super) lease: IndexerLease,
    pub(super) journal: Journal,
    writer: UnitWriter,
    siblings: Arc<Siblings>,
    status: Arc<UnitStatus>,
    /// Fault that a test has injected into the next batch.
    fault: Fault,
}

impl IndexerWriter {
    /// Returns the writer of a unit in one generation.
    pub(crate) fn new(
        lease: IndexerLease,
        journal: Journal,
        writer: UnitWriter,
        siblings: Arc<Siblings>,
        status: Arc<UnitStatus>,
    ) -> Self {
        Self { lease, journal, writer, siblings, status, fault: Fault::default() }
    }

    /// Plans a batch, and stores the plan in the slot. If this actor ends, the next actor finds the plan there.
    pub(super) fn plan(&mut self, deltas: Deltas) -> Arc<Transaction> {
        let transaction = Arc::new(self.lease.indexer().plan(deltas));
        self.lease.set_in_flight(Some(Arc::clone(&transaction)));
        self.strike(Moment::BeforeAppend);
        transaction
    }

    /// Appends, publishes and releases a transaction. After an error nothing was changed.
    pub(super) fn write(&mut self, transaction: &Arc<Transaction>) -> Result<(), AppendError> {
        let mut span = self.status.begin_batch(transaction.changes.len());
        let (transaction, ticket) = self.append(Arc::clone(transaction))?;
        if ticket.first <= ticket.last {
            span.appended(ticket.first.0, ticket.last.0);
        }
        self.strike(Moment::BeforePublish);
        let indexer = self.lease.indexer();
        indexer.commit(&transaction);
        indexer.store.reach_position(ticket.last.0);
        indexer.publish();
        self.strike(Moment::BeforeRelease);
        self.journal.release(ticket);
        self.lease.set_in_flight(None);
        observe(self.lease.indexer(), &transaction.changes, &self.status);
        Ok(())
    }

    /// Appends a transaction. If the transaction completes the initial state of the unit but not of the type, first removes its
    /// `Synced`.
    fn append(&self, transaction: Arc<Transaction>) -> Result<(Arc<Transaction>, Ticket), AppendError> {
        let append = |transaction: Arc<Transaction>| {
            self.lease.set_in_flight(Some(Arc::clone(&transaction)));
            let Transaction { changes, reached, .. } = &*transaction;
            let changes = self.journal.worth_recording(self.writer.unit, changes);
            let ticket = self.journal.append(self.writer, &changes, reached, Timestamp::now())?;
            Ok((transaction, ticket))
        };
        let objects = transaction.objects;
        if !transaction.completes_initial() {
            self.siblings.note(self.writer.unit, objects);
            return append(transaction);
        }
        self.siblings.sync(self.writer.unit, objects, |total| {
            let mut transaction = Arc::unwrap_or_clone(transaction);
            transaction.set_total(total);
            append(Arc::new(transaction))
        })
    }

    /// Appends, in the order of keys, one record per cached object for a reader that is attached or detached.
    pub(super) fn attach_reader(&self, asked: Attachment) -> Result<(), AppendError> {
        let indexer = self.lease.get();
        let changes = attachment_changes(asked.kind, &indexer.options.keep, || indexer.objects());
        self.journal.attach(asked, self.writer, &changes, Timestamp::now())
    }

    /// Replaces cached objects with `forms`, other encodings of the same states, for instance packed.
    pub(super) fn replace(&mut self, forms: &[Object]) {
        self.lease.indexer().replace(forms);
        view::show(&mut self.status.lock(), self.lease.get().store().meta());
    }

    /// Injects a fault, for tests. A fault for [`Moment::Now`] takes effect at once.
    pub(super) fn harm(&mut self, fault: Fault) {
        self.fault.put(fault);
        self.strike(Moment::Now);
    }

    fn strike(&mut self, moment: Moment) {
        self.fault.strike(moment, "indexer actor");
    }
}
