//! Reading, acknowledging, giving up and replaying of records.

use std::ops::ControlFlow;

use jiff::Timestamp;
use tracing::{error, warn};

use super::Journal;
use crate::{
    journal::{
        ReaderId, Record, Sequence,
        disk::calls,
        reader::{JournalReader, Next},
    },
    mutex::lock,
};

impl Journal {
    /// Returns the next records, in order: at most `max_events` records, and at most `max_bytes` unless the first record alone is
    /// larger. The records are in flight until they are acknowledged. The limit `max_events` in the reader's
    /// [`Bounds`](crate::journal::Bounds) also applies to the records in flight.
    ///
    /// Records that the reader's filter refuses are not returned, and need no acknowledgement.
    ///
    /// Records that wait in the store are read from there, which blocks on the disk. [`Journal::fetch`] does not block.
    pub fn read(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            self.load(reader);
            if let ControlFlow::Break(batch) = self.read_judged(reader, max_events, max_bytes) {
                return batch;
            }
        }
    }

    /// Reads once. Returns `Continue` if the filter refused all records that were read; there may be more.
    fn read_judged(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> ControlFlow<Vec<Record>> {
        let next = self.inner.core().reader(reader).map(|reader| reader.read(max_events, max_bytes));
        let (filter, records) = match next {
            None => return ControlFlow::Break(Vec::new()), // the reader is closed
            Some(Next::Read(batch)) => return ControlFlow::Break(batch),
            Some(Next::Judge(filter, records)) => (filter, records),
        };
        let judged = filter.judge_all(&records);
        let batch = self.inner.with(reader, |reader| reader.take(&judged));
        if batch.len() < judged.len() {
            self.call_for_save();
        }
        if batch.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(batch) }
    }

    /// Does the same as [`Journal::read`], but does not block the thread. A future that is dropped early leaves no record in
    /// flight.
    pub async fn fetch(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            if self.is_stored() && !self.inner.with(reader, |reader| reader.to_load()).positions.is_empty() {
                let journal = self.clone();
                if tokio::task::spawn_blocking(move || journal.load(reader)).await.is_err() {
                    error!("reading the journal panicked; retrying");
                    self.inner.wake(&[reader]);
                }
            }
            if let ControlFlow::Break(batch) = self.read_judged(reader, max_events, max_bytes) {
                return batch;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Loads the next records of a reader from the store into memory.
    fn load(&self, reader: ReaderId) {
        let Some(disk) = self.inner.disk() else { return };
        let to_load = |reader: &mut JournalReader| Some((reader.name()?.to_owned(), reader.to_load()));
        let Some((name, asked)) = self.inner.with(reader, to_load) else { return };
        let Some(first) = asked.positions.first() else { return };
        match disk.store.load_for(&name, &asked.positions) {
            Ok(records) => {
                let missing = asked.positions.len() - records.len();
                let is_taken = self.inner.core().loaded(reader, &asked, records);
                if missing > 0 && is_taken {
                    warn!(missing, first, "records of a reader are missing in the state");
                }
            }
            // The reader is woken when the store works again.
            Err(error) => drop(disk.fail(&error)),
        }
    }

    /// Acknowledges all records in flight up to `sequence`.
    pub fn ack(&self, reader: ReaderId, sequence: Sequence) {
        self.inner.with(reader, |reader| reader.ack(sequence));
        self.call_for_save();
    }

    /// Acknowledges some records in flight, in any order. Ignores records that are not in flight. Returns the number of
    /// acknowledged records.
    pub fn ack_each(&self, reader: ReaderId, sequences: &[Sequence]) -> usize {
        let acknowledged = self.inner.with(reader, |reader| reader.ack_each(sequences));
        self.call_for_save();
        acknowledged
    }

    /// Acknowledges some records in flight, and remembers them for [`Journal::replay`]. With a store, a named reader keeps all of
    /// them for the time `retention`, starting now. Any other reader keeps only the newest ones, up to 1,000 and its `max_bytes`.
    pub fn give_up(&self, reader: ReaderId, sequences: &[Sequence]) {
        if let (Some(disk), Some(first)) = (self.inner.disk(), sequences.iter().min()) {
            lock(&disk.retention).note_given_up(Timestamp::now().as_microsecond(), *first);
        }
        self.inner.with(reader, |reader| reader.give_up(sequences));
        self.call_for_save();
    }

    /// Queues all given-up records of a reader again, if they are still kept. Returns their number. The reader reads these replayed
    /// records before the records that already wait.
    ///
    /// With a store, a named reader reads [rewound](Journal::rewind) records first. It then reads the replayed records, and its
    /// filter judges them again. Any other reader reads rewound and replayed records together, in the order of their positions.
    pub fn replay(&self, reader: ReaderId) -> u64 {
        let replayed = self.inner.with(reader, JournalReader::replay);
        self.call_for_save();
        self.inner.wake(&[reader]);
        replayed
    }

    pub(super) fn call_for_save(&self) {
        if let Some(disk) = self.inner.disk() {
            disk.bell.ring(calls::SAVE);
        }
    }

    /// Takes back all records in flight, so that the next reads return them again. They are not coalesced.
    pub fn rewind(&self, reader: ReaderId) {
        self.inner.with(reader, JournalReader::rewind);
    }

    /// Ends the delivery to a reader. Used for a handler that has ended and whose figures are still shown. With a store, a named
    /// reader gets its unacknowledged records after a restart. Any other reader's unacknowledged records are dropped, counted and
    /// named.
    pub fn abandon(&self, reader: ReaderId) {
        let mut core = self.inner.core();
        let mark = core.released();
        if let Some(reader) = core.reader(reader) {
            reader.abandon(mark);
        }
    }

    /// Waits until the reader may have new records. Returns at once if new records may have come since the last call.
    pub async fn readable(&self, reader: ReaderId) {
        let waker = lock(&self.inner.wakers).get(&reader).cloned();
        match waker {
            Some(waker) => waker.notified().await,
            None => std::future::pending().await,
        }
    }
}
