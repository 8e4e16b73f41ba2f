//! Delivery: records given to handlers, and their results.

use super::*;

impl World<'_> {
    pub(super) fn read(&mut self, handler: usize) {
        let process = self.process.as_mut().expect("the process runs");
        let Process { journal, consumers, .. } = process;
        let Some(consumer) = &consumers[handler] else { return };
        let Some(EventLoad { events, bytes }) = consumer.core.room() else { return };
        let asked = journal[consumer.reader].to_load();
        if !asked.positions.is_empty() {
            let name = name_of_handler(handler);
            let found: Vec<_> =
                asked.positions.iter().filter_map(|position| self.disk.now.load(&name, *position)).collect();
            assert_eq!(found.len(), asked.positions.len(), "nothing is removed that is waited for");
            journal.loaded(consumer.reader, &asked, found);
            self.hits.add("a reader goes on from the store");
        }
        let records = journal[consumer.reader].read_judged(events, bytes);
        for record in &records {
            self.check_read(handler, record);
        }
        let Process { table, consumers, .. } = self.process.as_mut().expect("the process runs");
        let events = table.events(records);
        consumers[handler].as_mut().expect("it is open").take(events, self.now);
    }

    /// Checks that a record given to a handler is durable and in the cache, and that the order is right (E3).
    fn check_read(&self, handler: usize, record: &Record) {
        self.trace(|| format!("handler {handler}: reads {}", record.sequence.0));
        let process = self.process.as_ref().expect("the process runs");
        let sequence = record.sequence.0;
        let is_durable = self.disk.synced.has(name_of(record));
        assert!(is_durable || self.fsync != Fsync::Group, "E3: {sequence} is handed out and not durable");
        assert!(self.disk.now.has(name_of(record)), "E3: {sequence} is handed out and not written");
        let last = process.consumers[handler].as_ref().expect("it is open").last;
        assert!(last < sequence, "E3: {sequence} is handed out after a later one");
        let (Some(object), Some(unit)) = (record.object(), process.units.iter().find(|unit| unit.id == record.unit))
        else {
            return;
        };
        let life = &self.sites[unit.shape.site].lives[object.uid()];
        let cached = unit.lookup(object.key());
        let is_shown = match (&record.change, &cached) {
            (Change::Deleted { .. }, Some(cached)) => cached.uid() != object.uid(),
            (Change::Deleted { .. }, None) | (Change::Removed { .. }, _) => true,
            (_, Some(cached)) => version_of(cached) >= version_of(object),
            // A change may have removed the unit's objects, because it was replacing the unit, until a crash undid it.
            (_, None) => life.is_over || !unit.is_readable(),
        };
        assert!(is_shown, "E3: {sequence} is handed out, and a read finds {cached:?} and not {:?}", record.change);
    }

    pub(super) fn send(&mut self, handler: usize) {
        let now = self.now;
        self.process().consumers[handler].iter_mut().for_each(|consumer| consumer.ask(now));
    }

    /// Advances one delivery by one effect.
    pub(super) fn deliver(&mut self, handler: usize, health: Health) {
        let Self { process, random, sinks, sites, homes, lost, listed, now, .. } = self;
        let Process { journal, consumers, journal_id, .. } = process.as_mut().expect("the process runs");
        let Some(consumer) = &mut consumers[handler] else { return };
        let sink = &mut sinks[consumer.sink];
        let around = Surroundings { sites, homes, journal_id: *journal_id, lost, listed };
        match consumer.advance(sink, &around, health, *now, random) {
            Progress::Nothing => {}
            Progress::Accepted { repeated, answer_lost } => {
                self.hits.add_many("an event is delivered twice", repeated);
                self.hits.add_many("an answer is lost", usize::from(answer_lost));
                self.trace(|| format!("handler {handler}: sent, {repeated} again, answer lost: {answer_lost}"));
            }
            Progress::Done(positions, names) => {
                assert_eq!(
                    journal[consumer.reader].ack_each(&positions),
                    positions.len(),
                    "what was read can be acknowledged"
                );
                sink.acknowledged.extend(names);
                self.trace(|| format!("handler {handler}: acknowledges {positions:?}"));
            }
        }
    }
}
