//! Attachments of readers.

use super::{running::records, *};
use crate::{
    indexer::attachment_changes,
    journal::{AttachmentKind, recovery::with_marker},
    object::Keep,
};

impl World<'_> {
    /// Queues attachments for the units that make them. Ignores attachments of units that were replaced.
    pub(super) fn queue_attachments(&mut self, attachments: Vec<(UnitId, Attachment)>) {
        let Process { units, types, .. } = self.process();
        for (id, asked) in attachments {
            if let Some(unit) = units.iter().find(|unit| unit.id == id) {
                let TypeState { attachments, after_first_list, .. } = &mut types[unit.shape.site];
                if asked.kind == AttachmentKind::Detach {
                    // A reader that is detached from a unit must not be attached to it later.
                    after_first_list.retain(|(of, waiting)| (*of, waiting.reader) != (id, asked.reader));
                }
                attachments.push((id, asked));
            }
        }
    }

    /// Makes the oldest pending attachment of a type's units that `of` accepts. Returns false if there is none, or if the unit cannot
    /// make it now.
    pub(super) fn make_attachment(&mut self, site: usize, of: impl Fn(&Unit) -> bool) -> bool {
        let Process { units, types, .. } = self.process();
        let known = |id: UnitId| units.iter().position(|unit| unit.id == id);
        let attachments = &mut types[site].attachments;
        let Some(at) = attachments.iter().position(|(id, _)| known(*id).is_none_or(|unit| of(&units[unit]))) else {
            return false;
        };
        let (id, asked) = attachments[at];
        let is_made = known(id).is_none_or(|unit| self.attach(unit, asked));
        // the process may have crashed
        if let Some(process) = self.process.as_mut().filter(|_| is_made) {
            let attachments = &mut process.types[site].attachments;
            attachments.iter().position(|pending| *pending == (id, asked)).map(|at| attachments.remove(at));
        }
        is_made
    }

    /// Attaches a reader to a unit, or detaches it, between two batches of the unit.
    fn attach(&mut self, number: usize, asked: Attachment) -> bool {
        while let Some((_, stage)) = &self.process().units[number].in_flight
            && *stage != Stage::Planned
        {
            self.pump(number);
        }
        if self.process().units[number].run.is_none() {
            self.hits.add("a unit attaches a reader before its start");
        }
        let unit = &self.process().units[number];
        let (id, generation, site, objects) = (unit.id, unit.generation, unit.shape.site, unit.indexer.objects());
        if let Some(sink) = self.sink_of(asked.reader).filter(|_| asked.kind == AttachmentKind::Attach(None)) {
            let shown = objects.iter().map(|object| ((site, object.uid().to_owned()), version_of(object)));
            self.sinks[sink].unseen.extend(shown);
        }
        let changes = attachment_changes(asked.kind, &Keep::default(), || objects);
        self.attach_with(id, generation, asked, &changes)
    }

    /// Appends an attachment like [`Journal::attach`](crate::journal::Journal::attach).
    pub(super) fn attach_with(&mut self, id: UnitId, generation: u64, asked: Attachment, changes: &[Change]) -> bool {
        let Attachment { reader, kind } = asked;
        let Some(sink) = self.sink_of(reader) else { return true };
        let attaches = matches!(kind, AttachmentKind::Attach(_));
        self.trace(|| format!("unit {}: makes {asked:?} with {} records", id.0, changes.len()));
        let is_silent = changes.is_empty();
        let changes = &*with_marker(attaches, changes);
        self.births += 1;
        let births = self.births;
        let journal = &mut self.process().journal;
        let ticket =
            journal.attach(reader, attaches, id.writer(generation), changes, births).expect("it is not fenced");
        assert_eq!(
            ticket.is_some(),
            self.sinks[sink].attached.contains(&id) != attaches,
            "an attachment without effect"
        );
        let Some(ticket) = ticket else { return true };
        if attaches {
            self.sinks[sink].attached.insert(id);
        } else {
            self.sinks[sink].attached.remove(&id);
        }
        self.hits.add(match (attaches, is_silent) {
            (true, true) => "a reader is attached without records",
            (true, false) => "a reader is attached with records",
            (false, true) => "a reader is detached without records",
            (false, false) => "a reader is detached with records",
        });
        let records = records(id, ticket.first, births, changes);
        let only = self.process().journal.address(reader).into_string();
        self.disk.write(Write::Append { unit: id, records: records.clone(), only: Some(only), reached: None });
        self.process()
            .journal
            .advance(|journal| journal.written(id.writer(generation), ticket, None))
            .0
            .expect("it is not fenced");
        let wanted = if is_silent { BTreeSet::new() } else { BTreeSet::from([sink]) };
        self.note_written(records.into_iter().map(|record| (record, wanted.clone())));
        true
    }

    /// Returns the sink of an open reader.
    pub(super) fn sink_of(&self, reader: ReaderId) -> Option<usize> {
        let consumers = &self.process.as_ref().expect("the process runs").consumers;
        consumers.iter().flatten().find(|consumer| consumer.reader == reader).map(|consumer| consumer.sink)
    }

    /// Crashes sometimes; then returns true.
    pub(super) fn is_cut(&mut self, what: &'static str) -> bool {
        let is_cut = self.reloads && self.random.chance(0.04);
        if is_cut {
            self.hits.add(what);
            let loses_tail = self.random.chance(0.5);
            self.crash(loses_tail);
        }
        is_cut
    }
}
