//! Joins and leaves of readers.

use super::{running::records, *};
use crate::{
    indexer::crossing,
    journal::{MoveKind, recovery::with_mark},
    object::Keep,
};

impl World<'_> {
    /// Queues moves for the units that make them. Ignores moves of units that were replaced.
    pub(super) fn queue_moves(&mut self, moves: Vec<(UnitId, Move)>) {
        let Process { units, types, .. } = self.process();
        for (id, asked) in moves {
            if let Some(unit) = units.iter().find(|unit| unit.id == id) {
                let TypeState { moves, arrivals, .. } = &mut types[unit.shape.site];
                if asked.kind == MoveKind::Leave {
                    // A reader that leaves a unit must not join it later.
                    arrivals.retain(|(of, arrival)| (*of, arrival.reader) != (id, asked.reader));
                }
                moves.push((id, asked));
            }
        }
    }

    /// Makes the oldest pending move of a type's units that `of` accepts. Returns false if there is none, or if the unit cannot
    /// make it now.
    pub(super) fn make_move(&mut self, site: usize, of: impl Fn(&Unit) -> bool) -> bool {
        let Process { units, types, .. } = self.process();
        let known = |id: UnitId| units.iter().position(|unit| unit.id == id);
        let moves = &mut types[site].moves;
        let Some(at) = moves.iter().position(|(id, _)| known(*id).is_none_or(|unit| of(&units[unit]))) else {
            return false;
        };
        let (id, asked) = moves[at];
        let is_made = known(id).is_none_or(|unit| self.cross(unit, asked));
        // the process may have crashed
        if let Some(process) = self.process.as_mut().filter(|_| is_made) {
            let moves = &mut process.types[site].moves;
            moves.iter().position(|pending| *pending == (id, asked)).map(|at| moves.remove(at));
        }
        is_made
    }

    /// Makes a reader join or leave a unit between two of its batches.
    fn cross(&mut self, number: usize, asked: Move) -> bool {
        while let Some((_, stage)) = &self.process().units[number].in_flight
            && *stage != Stage::Planned
        {
            self.pump(number);
        }
        if self.process().units[number].run.is_none() {
            self.hits.add("a unit moves a reader before its start");
        }
        let unit = &self.process().units[number];
        let (id, epoch, site, objects) = (unit.id, unit.epoch, unit.shape.site, unit.indexer.objects());
        if let Some(sink) = self.sink_of(asked.reader).filter(|_| asked.kind == MoveKind::Join(None)) {
            let shown = objects.iter().map(|object| ((site, object.uid().to_owned()), version_of(object)));
            self.sinks[sink].unseen.extend(shown);
        }
        let changes = crossing(asked.kind, &Keep::default(), || objects);
        self.cross_with(id, epoch, asked, &changes)
    }

    /// Appends a join or leave like [`Journal::cross`](crate::journal::Journal::cross).
    pub(super) fn cross_with(&mut self, id: UnitId, epoch: u64, asked: Move, changes: &[Change]) -> bool {
        let Move { reader, kind } = asked;
        let Some(sink) = self.sink_of(reader) else { return true };
        let joins = matches!(kind, MoveKind::Join(_));
        self.trace(|| format!("unit {}: makes {asked:?} with {} records", id.0, changes.len()));
        let is_silent = changes.is_empty();
        let changes = &*with_mark(joins, changes);
        self.births += 1;
        let births = self.births;
        let journal = &mut self.process().journal;
        let ticket = journal.cross((reader, joins), id, epoch, changes, births).expect("it is not fenced");
        assert_eq!(ticket.is_some(), self.sinks[sink].joined.contains(&id) != joins, "a join or leave without effect");
        let Some(ticket) = ticket else { return true };
        if joins {
            self.sinks[sink].joined.insert(id);
        } else {
            self.sinks[sink].joined.remove(&id);
        }
        self.hits.add(match (joins, is_silent) {
            (true, true) => "a join without records",
            (true, false) => "a join with records",
            (false, true) => "a leave without records",
            (false, false) => "a leave with records",
        });
        let records = records(id, ticket.first, births, changes);
        let only = self.process().journal.address(reader).into_string();
        self.disk.write(Write::Append { unit: id, records: records.clone(), only: Some(only), reached: None });
        self.process()
            .journal
            .advance(|journal| journal.written((id, epoch), ticket, None))
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
