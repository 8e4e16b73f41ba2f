//! Changes of the units of one type, like `engine/change.rs`, one step at a time.

use super::{running::records, *};
use crate::{
    engine::plan::reconcile::{First, History, RunningSpec, Steps, UnitStart, distribute, reconcile},
    indexer::{FirstList, Retirement, retirement},
    informer::Seed,
    journal::{AttachmentKind, store::NOBODY},
    object::{Object, ResourceVersion},
};

/// Change of the units of one type.
pub(super) struct UnitChange {
    steps: Steps,
    history: History,
    /// Shapes of the desired units.
    shapes: Vec<Shape>,
    phase: Phase,
    ended: Vec<Ended>,
    /// Units that were created.
    made: Vec<(UnitId, UnitStart)>,
}

/// Next step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Attachment,
    Stop,
    FinishAttachments,
    /// Last events about the objects of an ended unit.
    LastEvents(usize),
    /// Seed of a new unit.
    Seed(usize),
    /// End of an ended unit.
    Retire(usize),
    /// Leaves of readers that are only on the routes of the ended units.
    Drop,
    Start,
}

/// Unit that has ended, and those of its objects that no unit shows now.
struct Ended {
    unit: Unit,
    left: Vec<Object>,
    how: Retirement,
}

impl World<'_> {
    /// Starts a change of the units of a type if one is due, or makes the next step of the current change.
    pub(super) fn tend(&mut self, site: usize) {
        self.see_units(site);
        let process = self.process();
        let of_type = &process.types[site];
        if of_type.change.is_some() {
            self.go_on_changing(site);
        } else if !process.discovered {
            self.make_attachment(site, |unit| unit.run.is_none());
        } else {
            self.reconcile(site);
        }
    }

    /// Notes which first lists are complete, and queues the attachments that waited for them.
    fn see_units(&mut self, site: usize) {
        let Process { units, types, .. } = self.process();
        for unit in units.iter_mut().filter(|unit| unit.shape.site == site) {
            if unit.run.is_some() && unit.indexer.store().meta().synced {
                unit.first = First::Done;
            }
        }
        let TypeState { attachments, after_first_list, .. } = &mut types[site];
        let listed = |id: UnitId| units.iter().any(|unit| unit.id == id && unit.first == First::Done);
        attachments.extend(after_first_list.extract_if(.., |(unit, _)| listed(*unit)));
    }

    fn reconcile(&mut self, site: usize) {
        let shapes = self.configuration.shapes(site);
        let desired: Vec<_> = shapes.iter().copied().map(Shape::spec).collect();
        let Process { units, types, .. } = self.process();
        let of_type = &mut types[site];
        let due = of_type.due.take();
        let Some(occasion) = due.or((!of_type.attachments.is_empty()).then_some(Occasion::Repair)) else { return };
        let of_site = || units.iter().filter(|unit| unit.shape.site == site);
        let running: Vec<_> = of_site().map(Unit::running).collect();
        let history = History { occasion, late: false, settled: of_type.settled };
        let steps = reconcile(&running, &desired, history);
        of_type.settled |= steps.is_empty();
        let waits = of_site().any(|unit| unit.saved);
        if steps.is_empty() && of_type.attachments.is_empty() && !waits {
            return;
        }
        if !steps.is_empty() {
            of_type.attachments.append(&mut of_type.after_first_list); // these readers are attached before the units stop
        }
        let (ended, made) = (Vec::new(), Vec::new());
        of_type.change =
            Some(UnitChange { steps: steps.clone(), history, shapes, phase: Phase::Attachment, ended, made });
        self.trace(|| format!("type {site}: {occasion:?}, {}", told(&steps)));
        self.note_steps(&steps, &running);
    }

    fn note_steps(&mut self, steps: &Steps, running: &[RunningSpec]) {
        let entry_of = |id: &UnitId| running.iter().find(|unit| unit.id == *id).map(|unit| unit.spec.entry.clone());
        for start in &steps.start {
            if start.from.iter().any(|id| entry_of(id).as_ref() != Some(&start.spec.entry)) {
                self.hits.add("a type moves to another entry");
            }
            let shares = |other: &&UnitStart| start.from.iter().any(|id| other.from.contains(id));
            if steps.start.iter().filter(shares).count() > 1 {
                self.hits.add("a unit has several heirs");
            }
            if start.from.len() > 1 {
                self.hits.add("a unit has several predecessors");
            }
        }
    }

    fn change(&mut self, site: usize) -> &mut UnitChange {
        self.process().types[site].change.as_mut().expect("a change is in progress")
    }

    /// Makes one step of a change. The steps after the replacement run without interruption, unless the journal is full.
    fn go_on_changing(&mut self, site: usize) {
        loop {
            let phase = self.change(site).phase;
            let next = match phase {
                Phase::Attachment => self.attach_readers(site),
                Phase::Stop => Some(self.stop_units(site)),
                Phase::FinishAttachments | Phase::Drop => self.finish_attachments(site, phase),
                Phase::LastEvents(number) => Some(self.append_last_events(site, number)),
                Phase::Seed(number) => self.keep_seed(site, number),
                Phase::Retire(number) => Some(self.retire_ended(site, number)),
                Phase::Start => return self.start_units(site, |_| true),
            };
            let Some(next) = next else { return }; // a crash
            self.change(site).phase = next;
            let is_whole = !matches!(next, Phase::Attachment | Phase::Stop | Phase::FinishAttachments);
            if !is_whole || self.is_cut("crash: within a change of units") {
                return;
            }
            if self.reloads && self.random.chance(0.05) {
                self.hits.add("a change of units waits for the journal");
                return;
            }
        }
    }

    fn attach_readers(&mut self, site: usize) -> Option<Phase> {
        let gives_up = !self.change(site).steps.is_empty() && self.reloads && self.random.chance(0.1);
        let is_made = !gives_up && self.make_attachment(site, |_| true);
        let process = self.process.as_ref()?;
        let of_type = &process.types[site];
        let has_steps = of_type.change.as_ref().is_some_and(|change| !change.steps.is_empty());
        Some(match has_steps {
            _ if is_made => Phase::Attachment,
            true if gives_up || of_type.attachments.is_empty() => Phase::Stop,
            false if of_type.attachments.is_empty() => Phase::Start,
            _ => Phase::Attachment,
        })
    }

    fn stop_units(&mut self, site: usize) -> Phase {
        let steps = self.change(site).steps.clone();
        for number in 0..self.process().units.len() {
            if steps.fate(self.process().units[number].id).is_some() {
                if self.process().units[number].runs() {
                    self.settle(number);
                }
                self.process().units[number].run = Some(Run::Stopped);
            }
        }
        Phase::FinishAttachments
    }

    /// Makes the pending attachments of the units that do not run.
    fn finish_attachments(&mut self, site: usize, phase: Phase) -> Option<Phase> {
        let is_at_rest = |unit: &Unit| !unit.runs();
        if self.make_attachment(site, is_at_rest) {
            return self.process.is_some().then_some(phase);
        }
        if phase == Phase::Drop {
            return Some(Phase::Start);
        }
        self.replace_units(site)
    }

    /// Creates the new units, with the objects of the old ones as seeds.
    fn replace_units(&mut self, site: usize) -> Option<Phase> {
        let (mut steps, history) = (self.change(site).steps.clone(), self.change(site).history);
        let units = &mut self.process().units;
        let old: Vec<_> = units.extract_if(.., |unit| steps.fate(unit.id).is_some()).collect();
        let before = steps.clone();
        steps.revise(&old.iter().map(Unit::running).collect::<Vec<_>>(), history);
        self.change(site).steps = steps.clone();
        if steps != before {
            self.hits.add("a first list ends before its unit is replaced");
        }
        let cached = old.iter().map(|unit| (unit.id, unit.indexer.objects())).collect();
        let (seeds, left) = distribute(cached, &steps.start, |object: &Object| object.namespace());
        for (start, objects) in steps.start.iter().zip(seeds) {
            self.make_unit(site, start, objects, &old);
            if self.is_cut("crash: new units are created") {
                return None;
            }
        }
        let Process { units, types, .. } = self.process();
        let TypeState { attachments, after_first_list, settled, siblings, change, .. } = &mut types[site];
        let is_there = |(unit, _): &(UnitId, Attachment)| units.iter().any(|known| known.id == *unit);
        attachments.retain(is_there);
        after_first_list.retain(is_there);
        if !units.iter().any(|unit| unit.shape.site == site) {
            *siblings = Arc::default();
        }
        *settled = true;
        let ended = old.into_iter().zip(left).filter_map(|(unit, left)| {
            let how = steps.fate(unit.id)?;
            Some(Ended { unit, left, how })
        });
        change.as_mut().expect("it is in progress").ended = ended.collect();
        self.hits.add_many("a unit is replaced", steps.start.iter().filter(|start| !start.from.is_empty()).count());
        Some(Phase::LastEvents(0))
    }

    fn make_unit(&mut self, site: usize, start: &UnitStart, objects: Vec<Object>, old: &[Unit]) {
        let mut shapes = self.change(site).shapes.iter().copied();
        let shape = shapes.find(|shape| shape.spec() == start.spec).expect("every spec has a shape");
        let before = old.iter().find(|old| start.from.contains(&old.id)).map(|old| old.shape.entry_name());
        let process = self.process();
        let id = UnitId(process.next_unit);
        process.next_unit += 1;
        let (terms, interests, attachments) = process.table.add_unit(id, info(shape), UnitOptions::default(), before);
        process.journal.add_unit(id, terms);
        self.homes.insert(id, shape);
        self.update_unit(id, |stored| stored.terms = terms);
        for (reader, interest) in &interests {
            self.process().journal.set_interest(*reader, interest);
            self.save_now();
            self.note_reader(*reader, id, !interest.units[&id].attaches);
        }
        for asked in attachments {
            let is_leave = asked.kind == AttachmentKind::Detach;
            if is_leave {
                self.process().journal.inherit(asked.reader, id);
                self.save_now();
                self.note_reader(asked.reader, id, true);
                self.hits.add("a reader of only the old entry is dropped");
            }
            let TypeState { attachments, after_first_list, .. } = &mut self.process().types[site];
            if is_leave { attachments } else { after_first_list }.push((id, asked));
        }
        self.describe(id, shape, start.first, &start.from, start.from.is_empty());
        let (config, traces) = (self.config, self.traces);
        let mut unit = Unit::new(id, shape, start.first, config, seed(start, objects, old));
        unit.traces = traces;
        self.trace(|| format!("type {site}: unit {} is {shape:?} from {:?}", id.0, start.from));
        let process = self.process();
        let change = process.types[site].change.as_mut().expect("it is in progress");
        change.made.push((id, start.clone()));
        let meta = unit.indexer.store().meta();
        process.types[site].siblings.join(id, meta.synced, meta.objects);
        process.units.push(unit);
    }

    /// Notes that a reader may get events of a unit, and whether it sees the unit already.
    fn note_reader(&mut self, reader: ReaderId, id: UnitId, sees: bool) {
        if let Some(sink) = self.sink_of(reader) {
            self.sinks[sink].allowed.insert(id);
            if sees {
                self.sinks[sink].attached.insert(id);
            }
        }
    }

    /// Appends the last events about the objects of an ended unit.
    fn append_last_events(&mut self, site: usize, number: usize) -> Phase {
        let Some(Ended { unit, left, how }) = self.change(site).ended.get(number) else { return Phase::Seed(0) };
        let (id, how, left) = (unit.id, *how, left.clone());
        let generation = self.end(site, number);
        let change = self.change(site);
        let mut reached = change.ended[number].unit.indexer.store().meta().clone().reached();
        if !left.is_empty() {
            // If a crash undoes the change, the unit lists again.
            reached.synced = false;
        }
        self.hits.add_many("objects leave with their unit", left.len());
        let siblings = Arc::clone(&self.process().types[site].siblings);
        let left = retirement(left, how);
        let appended: Result<_, Infallible> = siblings.leave(id, |total| {
            let synced =
                total.map(|objects| Change::Synced { objects, resource_version: reached.store_version.clone() });
            let changes: Vec<_> = left.into_iter().chain(synced).collect();
            self.append_at_once(id, generation, &changes, &reached);
            Ok(())
        });
        let Ok(()) = appended;
        Phase::LastEvents(number + 1)
    }

    /// Starts a new generation of an ended unit.
    fn end(&mut self, site: usize, number: usize) -> u64 {
        let unit = &mut self.change(site).ended[number].unit;
        unit.generation += 1;
        let (id, generation) = (unit.id, unit.generation);
        self.process().journal.fence(id.writer(generation));
        generation
    }

    /// Appends, writes and releases changes.
    pub(super) fn append_at_once(&mut self, id: UnitId, generation: u64, changes: &[Change], reached: &Reached) {
        self.births += 1;
        let births = self.births;
        let ticket =
            self.process().journal.append(id.writer(generation), changes, reached, births).expect("it is not fenced");
        self.write_append(id.writer(generation), ticket, births, changes, reached);
        self.process().journal.advance(|journal| journal.release(ticket));
    }

    /// Stores the seed of a new unit, in parts, and then describes it as complete.
    fn keep_seed(&mut self, site: usize, number: usize) -> Option<Phase> {
        let Some((id, start)) = self.change(site).made.get(number).cloned() else { return Some(Phase::Retire(0)) };
        let unit = self.process().units.iter().find(|unit| unit.id == id).expect("it is not started");
        let (shape, first, objects) = (unit.shape, unit.first, unit.indexer.objects());
        let reached = unit.indexer.store().meta().clone().reached();
        let mut parts = objects.chunks(2).peekable();
        loop {
            let added = |object: &Object| Change::Added { object: object.clone(), cause: Cause::Reload };
            let changes: Vec<_> = parts.next().unwrap_or_default().iter().map(added).collect();
            self.births += 1;
            let births = self.births;
            let reached = parts.peek().is_none().then_some(&reached);
            let ticket = self.process().journal.seed(id, &changes, reached, births);
            let records = records(id, ticket.first, births, &changes);
            let only = Some(NOBODY.to_owned());
            self.disk.write(Write::Append { unit: id, records: records.clone(), only, reached: reached.cloned() });
            let written = |journal: &mut MemoryJournal| journal.written(id.writer(0), ticket, reached);
            self.process().journal.advance(written).0.expect("it is not fenced");
            self.note_written(records.into_iter().map(|record| (record, BTreeSet::new())));
            if self.is_cut("crash: a part of a seed is stored") {
                return None;
            }
            if reached.is_some() {
                break;
            }
        }
        self.describe(id, shape, first, &start.from, true);
        Some(Phase::Seed(number + 1))
    }

    fn retire_ended(&mut self, site: usize, number: usize) -> Phase {
        let Some(ended) = self.change(site).ended.get(number) else { return Phase::Drop };
        let id = ended.unit.id;
        self.retire(id);
        Phase::Retire(number + 1)
    }

    /// Starts the units that do not run yet, and ends the change.
    fn start_units(&mut self, site: usize, which: impl Fn(&Unit) -> bool) {
        self.launch(site, which);
        self.process().types[site].change = None;
    }

    fn launch(&mut self, site: usize, which: impl Fn(&Unit) -> bool) {
        let Process { units, journal, .. } = self.process();
        for unit in units.iter_mut().filter(|unit| unit.shape.site == site && unit.run.is_none() && which(unit)) {
            unit.saved = false;
            unit.launch();
            journal.fence(unit.id.writer(unit.generation));
        }
    }

    /// Returns true if no change of a type is due or in progress, and all its units run.
    pub(super) fn is_settled(&self, site: usize) -> bool {
        let Process { types, units, .. } = self.process.as_ref().expect("the process runs");
        let TypeState { attachments, after_first_list, due, change, .. } = &types[site];
        let is_idle = attachments.is_empty() && after_first_list.is_empty() && due.is_none() && change.is_none();
        is_idle && units.iter().filter(|unit| unit.shape.site == site).all(Unit::runs)
    }
}

/// Returns the seed of a new unit, like `seed` in `engine/change.rs`.
fn seed(start: &UnitStart, objects: Vec<Object>, old: &[Unit]) -> Option<Seed> {
    let from = || old.iter().filter(|old| start.from.contains(&old.id));
    match start.first {
        First::Initial { .. } => None,
        First::Done => from().next().map(Unit::seed),
        First::Compared(cause) => {
            let bodies = from().all(Unit::has_bodies);
            let complete = from().any(|old| old.shape.spec().contains(&start.spec) && old.is_readable());
            let version = ResourceVersion::newest(from().map(|old| old.indexer.store().meta().store_version.clone()));
            Some(Seed::Relist { objects, version, first_list: FirstList { cause, bodies, complete } })
        }
    }
}

fn told(steps: &Steps) -> String {
    let ids = |units: &[UnitId]| units.iter().map(|unit| unit.0).collect::<Vec<_>>();
    let stop: Vec<_> = steps.stop.iter().map(|(unit, _)| unit.0).collect();
    let start: Vec<_> = steps.start.iter().map(|start| (&start.spec.entry, start.first, ids(&start.from))).collect();
    format!("keep {:?}, stop {stop:?}, start {start:?}", ids(&steps.keep))
}
