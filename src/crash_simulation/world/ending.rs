//! Crashes and stops.

use super::*;
use crate::{crash_simulation::disk::Content, object::Object};

impl World<'_> {
    /// Ends the process; if `loses_tail`, the machine crashes too and loses a part of the unsynced writes.
    pub(super) fn crash(&mut self, loses_tail: bool) {
        self.note_crash();
        let unsynced = self.disk.log.len();
        let kept = if loses_tail { self.random.below(unsynced + 1) } else { unsynced };
        self.trace(|| format!("crash: {} of {unsynced} unsynced writes are lost", unsynced - kept));
        self.process = None;
        self.disk.crash(kept);
        let content = &self.disk.now;
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            let settled = content.settled.values().find(|(of, _)| *of == number);
            sink.is_over = settled.is_none();
            sink.acknowledged.truncate(settled.map_or(0, |(_, acknowledged)| *acknowledged));
        }
        let is_lost =
            |name: &RecordName, _: &mut (Record, BTreeSet<usize>)| name.1 >= content.first && !content.has(*name);
        let lost: Vec<_> = self.journaled.extract_if(.., is_lost).collect();
        self.hits.add_many("records are lost with the tail", lost.len());
        let gone: Vec<_> =
            lost.iter().filter(|(_, (record, _))| matches!(record.change, Change::Deleted { .. })).collect();
        for (name, (record, _)) in &lost {
            let uid = record.object().map(Object::uid);
            let ends = |(_, (end, _)): &&(RecordName, (Record, _))| end.object().map(Object::uid) == uid;
            if matches!(record.change, Change::Refreshed { .. }) {
                self.hits.add("an ignored update is lost with the tail");
            }
            if matches!(record.change, Change::Added { .. }) && gone.iter().copied().any(|end| ends(&end)) {
                self.hits.add("a whole life is lost with the tail");
            }
            let site = self.homes[&record.unit].site;
            for sink in &mut self.sinks {
                if let Some(object) = record.object().filter(|_| sink.accepted.contains(name)) {
                    let content = self.sites[site].content(object.uid(), version_of(object));
                    sink.shown_and_lost.insert((site, object.uid().to_owned(), content));
                }
            }
            if self.sinks.iter().any(|sink| sink.accepted.contains(name)) {
                assert_ne!(self.fsync, Fsync::Group, "{name:?} was shown, and is lost");
                self.hits.add("interval: a record was shown, and is lost");
            }
        }
        self.lost.extend(lost.into_iter().map(|(name, _)| name));
        if self.random.chance(0.4) {
            let site = self.random.below(self.sites.len());
            self.write(site);
            self.compact(site);
        }
    }

    /// Counts the effects between which a crash happens.
    fn note_crash(&mut self) {
        let Self { process, disk, hits, sinks, now, .. } = self;
        let Some(Process { journal, units, types, consumers, syncing, pages, saving, compacting, .. }) = process else {
            return;
        };
        for unit in units {
            match &unit.in_flight {
                None => {}
                Some((_, Stage::Planned)) => hits.add("crash: planned, not appended"),
                Some((_, Stage::Appended(..))) => hits.add("crash: appended, not written"),
                Some((_, Stage::Written(ticket))) if journal.durable() >= ticket.last => {
                    hits.add("crash: durable, not published");
                }
                Some((_, Stage::Written(_))) => hits.add("crash: written, not published"),
                Some((_, Stage::Published(_))) => hits.add("crash: published, not released"),
            }
            let outstanding = units_outstanding(unit.in_flight.as_ref().map(|(_, stage)| *stage));
            if !outstanding && journal.durable() < journal.last() {
                hits.add("crash: released, not durable");
            }
        }
        for of_type in types {
            hits.add_many("crash: a reader waits for a unit", usize::from(!of_type.attachments.is_empty()));
            hits.add_many("crash: a reader waits for a first list", usize::from(!of_type.after_first_list.is_empty()));
        }
        let is_addressed = |write: &Write| matches!(write, Write::Append { only: Some(only), .. } if !only.is_empty());
        hits.add_many("crash: an attachment is not durable", usize::from(disk.log.iter().any(is_addressed)));
        for consumer in consumers.iter().flatten() {
            let stats = journal.stats(consumer.reader);
            hits.add_many("crash: visible, not read", usize::from(stats.queued > 0));
            let under_way = consumer.core.view(*now).in_flight;
            hits.add_many("crash: read, not sent", usize::from(under_way == 0 && stats.in_flight > 0));
            hits.add_many("crash: between attempts", usize::from(under_way > consumer.calls.len()));
            let is_answered = matches!(consumer.wanted, Some(HandlerAction::Acknowledge(..)));
            hits.add_many("crash: answered, not acknowledged", usize::from(is_answered));
            for call in &consumer.calls {
                hits.add(match call.phase {
                    Phase::Sent => "crash: sent, not accepted",
                    Phase::Accepted(_) => "crash: accepted, not answered",
                });
            }
            let saved = |content: &Content| {
                content.settled.values().find(|(sink, _)| *sink == consumer.sink).map_or(0, |(_, saved)| *saved)
            };
            let (now, synced) = (saved(&disk.now), saved(&disk.synced));
            let acknowledged = sinks[consumer.sink].acknowledged.len();
            hits.add_many("crash: acknowledged, not saved", usize::from(now < acknowledged));
            hits.add_many("crash: saved, not durable", usize::from(synced < now));
        }
        hits.add_many("crash: the timeline is not saved", usize::from(journal.timeline.is_unsaved()));
        hits.add_many("crash: the timeline is not durable", usize::from(pages.is_some()));
        hits.add_many("crash: within a merge", usize::from(compacting.is_some()));
        hits.add_many("crash: merged, not durable", usize::from(disk.log.iter().any(is_merge)));
        hits.add_many("crash: within a sync", usize::from(syncing.is_some()));
        hits.add_many("crash: within a save", usize::from(saving.is_some()));
        hits.add_many("crash: within a start", usize::from(disk.synced.units.is_empty()));
    }

    /// Stops the process cleanly, with some released records undelivered. The stop itself may be interrupted.
    pub(super) fn stop(&mut self) {
        let is_cut = self.random.chance(0.3).then(|| self.random.below(4));
        for number in 0..self.process().units.len() {
            if self.process().units[number].runs() {
                self.settle(number);
            }
        }
        for _ in 0..self.random.below(40) {
            let handler = self.random.below(HANDLERS);
            self.read(handler);
            self.send(handler);
            self.deliver(handler, HEALTH[handler]);
        }
        self.end_save();
        self.end_compaction();
        let ends: [fn(&mut Self); 4] = [
            |world| {
                world.process().syncing = None;
                world.begin_sync();
                world.end_sync();
            },
            |world| {
                world.begin_save();
                world.end_save();
                world.save_timeline();
            },
            |world| world.disk.sync(world.disk.log.len()),
            |world| {
                world.disk.write(Write::Clean);
                world.disk.sync(world.disk.log.len());
            },
        ];
        for (at, end) in ends.into_iter().enumerate() {
            if is_cut == Some(at) {
                self.hits.add("crash: within a clean stop");
                return self.crash(true);
            }
            end(self);
        }
        let Process { journal, consumers, .. } = self.process();
        let left =
            consumers.iter().flatten().any(|consumer| journal.stats(consumer.reader).position < journal.released());
        self.hits.add(if left { "a clean stop leaves something" } else { "a clean stop leaves nothing" });
        self.trace(|| "clean stop".to_owned());
        let settled = self.settled();
        self.process = None;
        assert_eq!(self.disk.now.settled, settled);
    }
}

fn is_merge(write: &Write) -> bool {
    matches!(write, Write::Compacted(..))
}

fn units_outstanding(stage: Option<Stage>) -> bool {
    matches!(stage, Some(Stage::Appended(..) | Stage::Written(_) | Stage::Published(_)))
}
