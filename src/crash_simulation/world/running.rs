//! Processing of the server's events: apply, write, make durable, release, remove.

use super::*;

impl World<'_> {
    /// Advances the reflector of a unit by one answer.
    pub(super) fn advance(&mut self, number: usize, calm: bool) {
        let Self { process, sites, random, now, hits, lag, .. } = self;
        let unit = &mut process.as_mut().expect("the process runs").units[number];
        if unit.fifo.len() < 8 || calm {
            unit.advance(&sites[number], *lag, now, random, calm);
            unit.note_return(hits);
        }
    }

    /// Advances the batch of a unit by one effect: append, write, publish, release.
    pub(super) fn pump(&mut self, number: usize) {
        let Self { process, disk, births, .. } = self;
        let Process { journal, units, .. } = process.as_mut().expect("the process runs");
        let unit = &mut units[number];
        let Some((transaction, stage)) = unit.in_flight.take() else {
            unit.in_flight = unit.fifo.pop().map(|deltas| (unit.indexer.plan(deltas), Stage::Planned));
            return;
        };
        let (id, epoch) = (unit.id, unit.epoch);
        match stage {
            Stage::Planned => {
                *births += 1;
                let ticket = journal.append(id, epoch, &transaction.changes, *births).unwrap();
                unit.in_flight = Some((transaction, Stage::Appended(ticket, *births)));
            }
            Stage::Appended(ticket, birth) => {
                let records = records(id, ticket.first, birth, &transaction.changes);
                let reached = transaction.reached.clone();
                disk.write(Write::Append { unit: id, records: records.clone(), reached: reached.clone() });
                journal.written((id, epoch), ticket, Some(&reached)).unwrap();
                unit.in_flight = Some((transaction, Stage::Written(ticket)));
                self.note_written(records);
            }
            Stage::Written(ticket) => {
                unit.indexer.commit(&transaction);
                unit.indexer.publish();
                unit.in_flight = Some((transaction, Stage::Published(ticket)));
            }
            Stage::Published(ticket) => {
                journal.release(ticket);
            }
        }
        self.trace(|| format!("unit {number}: done with {stage:?}"));
    }

    fn note_written(&mut self, records: Vec<Record>) {
        for record in records {
            if let Change::Added { object, cause: Cause::Initial } = &record.change {
                self.listed.insert((record.unit.0, object.uid().to_owned()));
            }
            if matches!(record.change, Change::Refreshed { .. }) {
                self.hits.add("an update is ignored");
            }
            let is_downtime = matches!(
                record.change,
                Change::Added { cause: Cause::Downtime, .. }
                    | Change::Updated { cause: Cause::Downtime, .. }
                    | Change::Deleted { cause: Cause::Downtime, .. }
            );
            if is_downtime {
                self.hits.add("a difference of the downtime");
            }
            self.trace(|| format!("written: {} unit {} {:?}", record.sequence.0, record.unit.0, record.change));
            self.journaled.insert(name_of(&record), record);
        }
    }

    /// Stops the actors of a unit and starts them again. Recovers an unfinished batch like `indexer/writer.rs`.
    pub(super) fn restart_unit(&mut self, number: usize) {
        self.trace(|| format!("unit {number}: restarted"));
        let Process { journal, units, .. } = self.process();
        let unit = &mut units[number];
        let in_flight = unit.in_flight.take();
        if let Some((_, Stage::Appended(ticket, _))) = &in_flight {
            journal.take_back(*ticket);
        }
        unit.indexer.discard();
        if let (Some((transaction, _)), Some(ticket)) = (&in_flight, journal.outstanding(unit.id)) {
            unit.indexer.commit(transaction);
            unit.indexer.publish();
            journal.release(ticket);
        }
        unit.launch();
        journal.fence(unit.id, unit.epoch);
        if in_flight.is_some() {
            self.hits.add("a unit restarts within a batch");
        }
    }

    /// Reads, applies and delivers changes while the disk is slow.
    pub(super) fn hurry(&mut self, handler: usize) {
        for _ in 0..self.random.below(60) {
            let site = self.random.below(self.sites.len());
            match self.random.below(12) {
                0 => self.write(site),
                1..3 => self.advance(site, false),
                3..7 => self.pump(site),
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
            if let Some(to) = to {
                self.process().journal.synced(to);
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

    pub(super) fn settled(&self) -> [usize; HANDLERS] {
        std::array::from_fn(|handler| self.acknowledged[handler].len())
    }

    pub(super) fn end_save(&mut self) {
        if let Some((states, settled)) = self.process().saving.take() {
            self.process().journal.saved(&states, true);
            self.disk.write(Write::Readers(states, settled));
            self.trace(|| format!("saved {settled:?}"));
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
        let places = 1 + self.random.below(30);
        let content = &self.disk.now;
        let process = self.process.as_mut().expect("the process runs");
        let until = process.journal.released();
        let Some((reader, name)) = process.journal.compactable(until).filter(|_| process.compacting.is_none()) else {
            return;
        };
        let name = name.to_owned();
        let handler = (0..HANDLERS).find(|handler| name_of_handler(*handler) == name).expect("it is one of them");
        let entries = content.entries.get(&name).cloned().unwrap_or_default();
        let held = process.journal[reader].hold(places, until).expect("something waits");
        let log = |place| content.records.get(&place).map(|record| (record.clone(), None));
        let step = Merger::scan(&entries).step(&held, log, &entries);
        process.compacting = Some(Compacting { handler, step, state: None });
    }

    /// Writes the compacted records, or makes the written ones durable; they are read only after that.
    pub(super) fn go_on_compacting(&mut self) {
        self.end_save(); // saves and compactions do not overlap
        let settled = self.settled();
        let Some(Compacting { handler, step, state }) = self.process().compacting.take() else { return };
        let process = self.process();
        let reader = process.consumers[handler].reader;
        if let Some(state) = state {
            process.syncing = None;
            self.begin_sync();
            self.end_sync();
            self.process().journal[reader].compacted(&step.superseded, &state);
            self.hits.add_many("records are merged", usize::from(!step.superseded.is_empty()));
            self.trace(|| format!("handler {handler}: merged {:?} into {:?}", step.superseded, step.written));
            return;
        }
        let state = process.journal.compacting(reader, &step.written, &step.superseded).expect("it is open");
        let names = step.superseded.iter().filter_map(|place| self.disk.now.load(&state.name, place));
        self.merged[handler].extend(names.map(|record| name_of(&record)));
        self.disk.write(Write::Compacted(step.clone(), state.clone(), (handler, settled[handler])));
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

fn records(unit: UnitId, first: Sequence, birth: i64, changes: &[Change]) -> Vec<Record> {
    let record = |(sequence, change): (u64, &Change)| Record {
        sequence: Sequence(sequence),
        unit,
        time_micros: birth,
        change: change.clone(),
        old_lost: change.lacks_old(),
    };
    (first.0..).zip(changes).map(record).collect()
}
