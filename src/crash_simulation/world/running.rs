//! Processing of the server's events: apply, write, make durable, release, remove.

use super::*;
use crate::{
    indexer::Transaction,
    journal::{Ticket, UnitWriter, interest::worth_recording},
};

impl World<'_> {
    /// Advances the reflector of a unit by one answer.
    pub(super) fn advance(&mut self, number: usize, calm: bool) {
        let Self { process, sites, random, now, hits, lag, .. } = self;
        let unit = &mut process.as_mut().expect("the process runs").units[number];
        if unit.fifo.len() < 8 || calm {
            unit.advance(&sites[unit.shape.site], *lag, now, random, calm);
            unit.note_return(hits);
        }
    }

    /// Advances the batch of a unit by one effect: append, write, publish, release.
    pub(super) fn pump(&mut self, number: usize) {
        let Process { journal, units, .. } = self.process.as_mut().expect("the process runs");
        let unit = &mut units[number];
        let Some((transaction, stage)) = unit.in_flight.take() else {
            unit.in_flight = unit.fifo.pop().map(|deltas| {
                let mut transaction = unit.indexer.plan(deltas);
                transaction.changes =
                    worth_recording(&transaction.changes, || journal.wants_unchanged(unit.id)).into_owned();
                (transaction, Stage::Planned)
            });
            return;
        };
        let (id, generation) = (unit.id, unit.generation);
        match stage {
            Stage::Planned if transaction.completes_initial() => self.complete_initial(number, transaction),
            Stage::Planned => {
                self.births += 1;
                let ticket = journal
                    .append(id.writer(generation), &transaction.changes, &transaction.reached, self.births)
                    .unwrap();
                unit.in_flight = Some((transaction, Stage::Appended(ticket, self.births)));
            }
            Stage::Appended(ticket, birth) => {
                self.write_append(id.writer(generation), ticket, birth, &transaction.changes, &transaction.reached);
                self.process().units[number].in_flight = Some((transaction, Stage::Written(ticket)));
            }
            Stage::Written(ticket) => {
                unit.indexer.commit(&transaction);
                unit.indexer.publish();
                unit.in_flight = Some((transaction, Stage::Published(ticket)));
            }
            Stage::Published(ticket) => {
                journal.advance(|journal| journal.release(ticket));
            }
        }
        self.trace(|| format!("unit {}: done with {stage:?}", id.0));
    }

    /// Appends and writes the batch that completes the initial state of a unit. The end of the initial state of the type is part of
    /// it, if this is the last unit.
    fn complete_initial(&mut self, number: usize, mut transaction: Transaction) {
        self.births += 1;
        let births = self.births;
        let Process { units, types, .. } = self.process();
        let (id, generation) = (units[number].id, units[number].generation);
        let siblings = Arc::clone(&types[units[number].shape.site].siblings);
        let appended: Result<_, Infallible> = siblings.sync(id, transaction.objects, |total| {
            transaction.set_total(total);
            let Transaction { changes, reached, .. } = &transaction;
            let ticket = self.process().journal.append(id.writer(generation), changes, reached, births).unwrap();
            self.write_append(id.writer(generation), ticket, births, &transaction.changes, &transaction.reached);
            Ok(ticket)
        });
        let Ok(ticket) = appended;
        self.process().units[number].in_flight = Some((transaction, Stage::Written(ticket)));
    }

    /// Writes an append for all readers that see the unit.
    pub(super) fn write_append(
        &mut self,
        writer: UnitWriter,
        ticket: Ticket,
        birth: i64,
        changes: &[Change],
        reached: &Reached,
    ) {
        let records = records(writer.unit, ticket.first, birth, changes);
        let (written, reached) = (records.clone(), Some(reached.clone()));
        self.disk.write(Write::Append { unit: writer.unit, records: written, only: None, reached: reached.clone() });
        let written = |journal: &mut MemoryJournal| journal.written(writer, ticket, reached.as_ref());
        self.process().journal.advance(written).0.unwrap();
        let wanted: Vec<_> = records.iter().map(|record| self.wanting(record)).collect();
        self.note_written(records.into_iter().zip(wanted));
    }

    /// Returns the sinks that want a record for all readers.
    fn wanting(&self, record: &Record) -> BTreeSet<usize> {
        let site = self.homes[&record.unit].site;
        let is_of_type = |unit: &UnitId| self.homes[unit].site == site;
        let wants = |sink: &usize| {
            let Sink { handler, attached, .. } = &self.sinks[*sink];
            let sees = match record.change {
                Change::Synced { .. } => attached.iter().any(is_of_type),
                _ => attached.contains(&record.unit),
            };
            sees && changes(*handler).contains(&record.change)
        };
        let consumers = &self.process.as_ref().expect("the process runs").consumers;
        consumers.iter().flatten().map(|consumer| consumer.sink).filter(wants).collect()
    }

    /// Notes written records, each with the sinks that want it.
    pub(super) fn note_written(&mut self, records: impl IntoIterator<Item = (Record, BTreeSet<usize>)>) {
        for (record, wanted) in records {
            if let Change::Added { object, cause: Cause::Initial } = &record.change {
                self.listed.insert((self.homes[&record.unit].site, object.uid().to_owned()));
            }
            if matches!(record.change, Change::Refreshed { .. }) {
                self.hits.add("an update is ignored");
            }
            if record.change.cause() == Some(Cause::Downtime) {
                self.hits.add("a difference of the downtime");
            }
            self.trace(|| format!("written: {} unit {} {:?}", record.sequence.0, record.unit.0, record.change));
            self.journaled.insert(name_of(&record), (record, wanted));
        }
    }

    /// Stops the actors of a unit and starts them again. Recovers an unfinished batch like `indexer/writer.rs`.
    pub(super) fn restart_unit(&mut self, number: usize) {
        let Process { journal, units, .. } = self.process();
        let unit = &mut units[number];
        let id = unit.id;
        let in_flight = unit.in_flight.take();
        if let Some((_, Stage::Appended(ticket, _))) = &in_flight {
            journal.advance(|journal| journal.take_back(*ticket));
        }
        unit.indexer.discard();
        if let (Some((transaction, _)), Some(ticket)) = (&in_flight, journal.outstanding(unit.id)) {
            unit.indexer.commit(transaction);
            unit.indexer.publish();
            journal.advance(|journal| journal.release(ticket));
        }
        unit.launch();
        journal.fence(unit.id.writer(unit.generation));
        self.trace(|| format!("unit {}: restarted", id.0));
        if in_flight.is_some() {
            self.hits.add("a unit restarts within a batch");
        }
    }

    /// Reads, applies and delivers changes while the disk is slow.
    pub(super) fn hurry(&mut self, handler: usize) {
        for _ in 0..self.random.below(60) {
            let (site, unit) = (self.random.below(self.sites.len()), self.any_unit());
            match self.random.below(12) {
                0 => self.write(site),
                1..3 => unit.into_iter().for_each(|unit| self.advance(unit, false)),
                3..7 => unit.into_iter().for_each(|unit| self.pump(unit)),
                7 => self.read(handler),
                8 => self.send(handler),
                _ => self.deliver(handler, HEALTH[handler]),
            }
        }
    }

    pub(super) fn begin_sync(&mut self) {
        let writes = self.disk.log.len();
        let process = self.process();
        if process.syncing.is_none() {
            process.syncing = Some((writes, process.journal.to_sync()));
        }
    }

    pub(super) fn end_sync(&mut self) {
        if let Some((writes, to)) = self.process().syncing.take() {
            self.disk.sync(writes);
            if !self.disk.log.iter().any(|write| matches!(write, Write::Timeline(_))) {
                let Process { journal, pages, .. } = self.process();
                journal.timeline.saved(&pages.take().unwrap_or_default());
            }
            if let Some(to) = to {
                self.process().journal.advance(|journal| journal.synced(to));
                self.trace(|| format!("synced up to {}", to.0));
            }
        }
    }

    pub(super) fn begin_save(&mut self) {
        let settled = self.settled();
        let process = self.process();
        let is_writing = process.compacting.as_ref().is_some_and(|compacting| compacting.state.is_some());
        if process.saving.is_none() && !is_writing {
            process.saving = Some((process.journal.save(), settled));
        }
    }

    /// Returns the number of acknowledgements of each open handler.
    pub(super) fn settled(&self) -> Settled {
        let consumers = &self.process.as_ref().expect("the process runs").consumers;
        let of_handler = |(handler, consumer): (usize, &Option<Consumer>)| {
            let sink = consumer.as_ref()?.sink;
            Some((name_of_handler(handler), (sink, self.sinks[sink].acknowledged.len())))
        };
        consumers.iter().enumerate().filter_map(of_handler).collect()
    }

    pub(super) fn end_save(&mut self) {
        if let Some((states, settled)) = self.process().saving.take() {
            self.process().journal.saved(&states, true);
            self.trace(|| format!("saved {settled:?}"));
            self.disk.write(Write::Readers(states, settled));
        }
    }

    pub(super) fn retain(&mut self) {
        let needed = self.process().journal.needed();
        let first = self.disk.now.first.max(1);
        let keep_from = first + self.random.below(usize::try_from(needed.0 - first).unwrap() + 1) as u64;
        if keep_from > first {
            self.disk.write(Write::Remove(keep_from));
            self.process().journal.set_kept_from(Sequence(keep_from));
            self.hits.add("records are removed");
        }
    }

    /// Compacts the pending records of the slowest handler, which meanwhile may read the records in memory.
    pub(super) fn begin_compaction(&mut self) {
        let positions = 1 + self.random.below(30);
        let content = &self.disk.now;
        let process = self.process.as_mut().expect("the process runs");
        let until = process.journal.released();
        let Some((reader, name)) = process.journal.compactable(until).filter(|_| process.compacting.is_none()) else {
            return;
        };
        let name = name.to_owned();
        let handler = (0..HANDLERS).find(|handler| name_of_handler(*handler) == name).expect("it is one of them");
        let entries = content.entries.get(&name).cloned().unwrap_or_default();
        let held = process.journal[reader].hold(positions, until).expect("something waits");
        let log = |position| content.records.get(&position).cloned();
        let step = Merger::scan(&entries).step(&held, log, &entries);
        process.compacting = Some(Compacting { handler, step, state: None });
    }

    /// Writes the compacted records, or makes the written ones durable; they are read only after that.
    pub(super) fn go_on_compacting(&mut self) {
        self.end_save(); // saves and compactions do not overlap
        let Some(Compacting { handler, step, state }) = self.process().compacting.take() else { return };
        let consumer = self.process().consumers[handler].as_ref().expect("it is not removed before the step ends");
        let (reader, sink) = (consumer.reader, consumer.sink);
        if let Some(state) = state {
            self.process().syncing = None;
            self.begin_sync();
            self.end_sync();
            self.process().journal[reader].compacted(&step.superseded, &state);
            self.hits.add_many("records are merged", usize::from(!step.superseded.is_empty()));
            self.trace(|| format!("handler {handler}: merged {:?} into {:?}", step.superseded, step.written));
            return;
        }
        let state = self.process().journal.compacting(reader, &step.written, &step.superseded).expect("it is open");
        let names = step.superseded.iter().filter_map(|position| self.disk.now.load(&state.name, position));
        self.sinks[sink].merged.extend(names.map(|record| name_of(&record)));
        let settled = [(state.name.clone(), (sink, self.sinks[sink].acknowledged.len()))].into();
        self.disk.write(Write::Compacted(step.clone(), state.clone(), settled));
        self.process().compacting = Some(Compacting { handler, step, state: Some(state) });
    }

    pub(super) fn end_compaction(&mut self) {
        while self.process().compacting.is_some() {
            self.go_on_compacting();
        }
    }

    pub(super) fn settle(&mut self, number: usize) {
        loop {
            let unit = &self.process().units[number];
            if unit.fifo.is_empty() && unit.in_flight.is_none() {
                return;
            }
            self.pump(number);
        }
    }
}

pub(super) fn records(unit: UnitId, first: Sequence, birth: i64, changes: &[Change]) -> Vec<Record> {
    let record = |(sequence, change): (u64, &Change)| Record {
        sequence: Sequence(sequence),
        unit,
        time_micros: birth,
        change: change.clone(),
        old_lost: change.lacks_old(),
    };
    (first.0..).zip(changes).map(record).collect()
}
