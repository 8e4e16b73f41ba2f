//! Records read and acknowledged by a reader.

use std::ops::ControlFlow;

use jiff::Timestamp;
use tracing::{error, warn};

use super::Journal;
use crate::{
    journal::{ReaderId, Record, Replayed, Sequence, disk::calls, reader::JournalReader},
    mutex::lock,
};

/// Records judged at a time: a filter may take some microseconds for each.
const JUDGED_MAX: usize = 256;

impl Journal {
    /// Returns the next records, in order: at most `max_events`, and of at most `max_bytes` unless one alone has more. They
    /// are in flight until they are acknowledged. At most `max_events` of the reader's bounds are.
    ///
    /// A record of a new object is held back while the deletion of another object of that name is in flight (D7). Records
    /// that the reader's filter refuses are acknowledged, and not returned.
    ///
    /// Records that wait in the store are read from there, which blocks on the disk: see [`Journal::fetch`].
    pub fn read(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            self.load(reader);
            if let ControlFlow::Break(batch) = self.read_judged(reader, max_events, max_bytes) {
                return batch;
            }
        }
    }

    /// Reads once. `Continue` where all that was read is refused, and there may be more.
    fn read_judged(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> ControlFlow<Vec<Record>> {
        let read = self.with(reader, |reader| {
            let max_events = if reader.has_filter() { max_events.min(JUDGED_MAX) } else { max_events };
            let batch = reader.read(max_events, max_bytes);
            Some((reader.to_judge(&batch), batch))
        });
        let Some((Some(unjudged), mut batch)) = read else {
            return ControlFlow::Break(read.map(|(_, batch)| batch).unwrap_or_default());
        };
        let judged = unjudged.judge();
        self.with(reader, |reader| reader.judged(&judged));
        if !judged.refused.is_empty() {
            self.call_for_save();
        }
        batch.retain(|record| !judged.refuses(record.sequence));
        if batch.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(batch) }
    }

    /// As [`Journal::read`], without blocking the thread it is awaited on. Nothing is in flight if it is dropped early.
    pub async fn fetch(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> Vec<Record> {
        loop {
            match self.try_fetch(reader, max_events, max_bytes).await {
                ControlFlow::Break(batch) => return batch,
                ControlFlow::Continue(()) => tokio::task::yield_now().await,
            }
        }
    }

    /// As [`Journal::fetch`], once. `Continue` where all that was read is refused by the reader's filter, and there may be
    /// more.
    pub async fn try_fetch(&self, reader: ReaderId, max_events: usize, max_bytes: usize) -> ControlFlow<Vec<Record>> {
        if self.is_stored() && !self.with(reader, |reader| reader.to_load()).places.is_empty() {
            let journal = self.clone();
            if tokio::task::spawn_blocking(move || journal.load(reader)).await.is_err() {
                error!("reading the journal has panicked, it is tried again");
                self.nudge(reader);
            }
        }
        self.read_judged(reader, max_events, max_bytes)
    }

    /// Brings the records that a reader waits for next from the store into memory.
    fn load(&self, reader: ReaderId) {
        let Some(disk) = self.disk() else { return };
        let mut core = self.core();
        let asked = core.reader(reader).map(|reader| reader.to_load()).unwrap_or_default();
        let Some(first) = asked.places.first() else { return };
        let name = core.reader_name(reader);
        drop(core);
        match disk.store.load_for(&name, &asked.places) {
            Ok(records) => {
                let missing = asked.places.len() - records.len();
                let is_taken = self.core().loaded(reader, &asked, records);
                if missing > 0 && is_taken {
                    warn!(missing, first, "records that a reader waits for are not in the state");
                }
            }
            // The reader is woken when the store works again.
            Err(error) => drop(disk.fail(&error)),
        }
    }

    /// Acknowledges everything read up to `sequence`; it is forgotten.
    pub fn ack(&self, reader: ReaderId, sequence: Sequence) {
        self.with(reader, |reader| reader.ack(sequence));
        self.call_for_save();
    }

    /// Acknowledges some of what was read, in any order. Ignores what is not in flight. Returns the count.
    pub fn ack_each(&self, reader: ReaderId, sequences: &[Sequence]) -> usize {
        let acknowledged = self.with(reader, |reader| reader.ack_each(sequences));
        self.call_for_save();
        acknowledged
    }

    /// Acknowledges some of what was read, and remembers it for [`Journal::replay`]. Without a store, and of a reader
    /// without a name, the newest thousand are kept, within its bounds; else all, for the time of `retention` from now on.
    pub fn give_up(&self, reader: ReaderId, sequences: &[Sequence]) {
        if let (Some(disk), Some(first)) = (self.disk(), sequences.iter().min()) {
            lock(&disk.retention).note_given_up(Timestamp::now().as_microsecond(), *first);
        }
        self.with(reader, |reader| reader.give_up(sequences));
        self.call_for_save();
    }

    /// Queues again everything that a reader gave up and that is still kept. It is read before what waits already, but
    /// after what is in flight or was [rewound](Journal::rewind).
    pub fn replay(&self, reader: ReaderId) -> Replayed {
        let replayed = self.core().replay(reader);
        self.call_for_save();
        self.nudge(reader);
        replayed
    }

    fn call_for_save(&self) {
        if let Some(disk) = self.disk() {
            disk.bell.ring(calls::SAVE);
        }
    }

    /// Hands out again, not coalesced, what was read and not acknowledged.
    pub fn rewind(&self, reader: ReaderId) {
        self.with(reader, JournalReader::rewind);
    }

    /// Drops everything that waits for a reader or is in flight, counted and named, and shows it nothing more: for a
    /// handler that has ended while its figures are still shown. With a store, a reader with a name loses nothing: it
    /// resumes here after a restart.
    pub fn abandon(&self, reader: ReaderId) {
        let mut core = self.core();
        let mark = core.released();
        if let Some(reader) = core.reader(reader) {
            reader.abandon(mark);
        }
    }

    /// Waits until there may be something new to read; returns at once if that was so since the last call.
    pub async fn readable(&self, reader: ReaderId) {
        let waker = lock(&self.inner().wakers).get(&reader).cloned();
        match waker {
            Some(waker) => waker.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Wakes [`Journal::readable`] of one reader.
    pub fn nudge(&self, reader: ReaderId) {
        self.inner().wake(&[reader]);
    }
}
