//! Starts of the process from the store.

use serde::{Deserialize, Serialize};

use super::*;
use crate::{
    engine::{
        conductor::restore::{Heir, surviving},
        plan::reconcile::First,
    },
    indexer::FirstList,
    informer::Seed,
    journal::{AttachmentKind, store::Recovered},
};

/// Stored description of a unit, in short: see `engine/restore.rs`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Described {
    shape: Shape,
    initial: bool,
    heir_of: Vec<u32>,
    complete: bool,
}

impl Described {
    fn of(unit: &StoredUnit) -> Option<Self> {
        serde_json::from_value(unit.description.clone()).ok()
    }

    fn first(&self, synced: bool) -> First {
        match synced {
            true => First::Done,
            false if self.initial => First::Initial { late: false },
            false => First::Compared(Cause::Downtime),
        }
    }
}

impl World<'_> {
    /// Starts the process from the store.
    pub(super) fn boot(&mut self) {
        let journal_id = self.disk.open(self.fsync);
        let recovered = self.disk.now.recovered();
        let journal = MemoryJournal::restored(self.fsync, &recovered);
        let next_unit = recovered.units.iter().map(|unit| unit.id.0 + 1).max().unwrap_or_default();
        self.process = Some(Process {
            journal_id,
            journal,
            table: RouteTable::default(),
            units: Vec::new(),
            types: Default::default(),
            consumers: Default::default(),
            routes: [0; HANDLERS],
            next_unit,
            discovered: false,
            syncing: None,
            pages: None,
            saving: None,
            compacting: None,
        });
        self.trace(|| format!("start: journal {journal_id}, up to {}", recovered.last.0));
        for sink in &mut self.sinks {
            sink.allowed.retain(|unit| self.disk.now.units.contains_key(unit));
        }
        self.restore_units(&recovered);
        self.restore_handlers();
        if !self.reloads || self.random.chance(0.5) {
            self.discover();
            for site in (0..UNITS).cycle().take(40) {
                if self.process.is_some() {
                    self.tend(site);
                }
            }
        }
    }

    /// Notes that the server has told its types: from now on, units are started and changed.
    pub(super) fn discover(&mut self) {
        let process = self.process();
        if !std::mem::replace(&mut process.discovered, true) {
            process.types.iter_mut().for_each(|of_type| of_type.due = Some(Occasion::Start));
        }
    }

    fn restore_units(&mut self, recovered: &Recovered) {
        let mut described = Vec::new();
        for stored in &recovered.units {
            match Described::of(stored) {
                Some(unit) => described.push((stored, unit)),
                None => self.retire(stored.id),
            }
        }
        let heirs = described.iter().filter(|(stored, _)| stored.retired.is_none()).map(|(stored, unit)| Heir {
            unit: stored.id,
            of: unit.heir_of.iter().map(|unit| UnitId(*unit)).collect(),
            complete: unit.complete,
        });
        let heirs: Vec<_> = heirs.collect();
        let survivors = surviving(&heirs);
        for (stored, unit) in described {
            let StoredUnit { id, terms, retired, .. } = *stored;
            let options = UnitOptions { late: terms.late, resync_period: Duration::ZERO, cached: terms.cached };
            self.process().table.restore_unit(id, info(unit.shape), options, terms.resource, retired);
            if retired.is_some() {
                continue;
            }
            if survivors.contains(&id) {
                self.restore_unit(stored, &unit);
            } else {
                self.hits.add(if unit.complete {
                    "start: heirs replace a unit"
                } else {
                    "start: an heir is incomplete"
                });
                self.retire(id);
            }
        }
    }

    fn restore_unit(&mut self, stored: &StoredUnit, unit: &Described) {
        let (id, objects) = (stored.id, self.disk.now.objects(stored.id));
        let first = unit.first(stored.reached.synced);
        let seed = match first {
            First::Done => Seed::Resume {
                objects,
                store_version: stored.reached.store_version.clone(),
                resume_version: stored.reached.resume_version.clone(),
                saved: true,
            },
            First::Initial { .. } => {
                let version = stored.reached.store_version.clone();
                Seed::Relist { objects, version, first_list: FirstList::default() }
            }
            First::Compared(cause) => {
                let version = stored.reached.store_version.clone();
                Seed::Relist { objects, version, first_list: FirstList { cause, bodies: true, complete: false } }
            }
        };
        let (config, traces) = (self.config, self.traces);
        let process = self.process();
        let of_type = &mut process.types[unit.shape.site];
        of_type.settled = true;
        let mut unit = Unit::new(id, unit.shape, first, config, Some(seed));
        (unit.saved, unit.traces) = (true, traces);
        of_type.siblings.join(id, stored.reached.synced, unit.indexer.store().meta().objects);
        process.units.push(unit);
    }

    /// Opens the readers of the configured handlers, and forgets the others.
    fn restore_handlers(&mut self) {
        let dormant: Vec<_> = self.disk.now.readers.keys().cloned().collect();
        for handler in 0..HANDLERS {
            let name = name_of_handler(handler);
            let attached = self.disk.now.readers.get(&name).map(|state| state.attached.clone()).unwrap_or_default();
            let before =
                attached.iter().filter_map(|unit| self.homes.get(unit)).fold(0, |all, unit| all | 1 << unit.entry);
            if let Some(entries) = self.configuration.route(handler, before) {
                self.open_handler(handler, entries);
            } else if dormant.contains(&name) {
                self.process().journal.forget_reader(&name);
                self.sinks[self.disk.now.settled[&name].0].is_over = true;
                self.disk.write(Write::RemoveReader(name));
            }
        }
    }

    /// Opens the reader of a handler. A handler of the last run continues to deliver to its sink.
    pub(super) fn open_handler(&mut self, handler: usize, entries: Entries) {
        let (name, route) = (name_of_handler(handler), route(handler, entries));
        let returns = self.disk.now.readers.contains_key(&name);
        let (sink, attach) = if returns {
            (self.disk.now.settled[&name].0, RouteTable::ATTACH_ON_RELOAD)
        } else {
            self.sinks.push(Sink::new(handler, handler == 1));
            let cause = changes(handler).has(ChangeSet::INITIAL).then_some(Cause::Replay);
            (self.sinks.len() - 1, AttachmentKind::Attach(cause))
        };
        let Process { journal, table, .. } = self.process.as_mut().expect("the process runs");
        let interest = table.interest(&route, |_| true);
        let options = ReaderOptions { bounds: bounds(handler), interest, name: Some(name.clone()) };
        let selected: Result<_, Infallible> = journal.select_missed(&options, |after, visit| {
            self.disk.now.records.range(after.0 + 1..).for_each(|(_, record)| visit(&head(record)));
            Ok(())
        });
        let Ok(()) = selected;
        let reader = journal.open_reader(options);
        let attached = journal[reader].attached();
        let taken = table.taken(&route);
        let attachments = table.open(reader, Some(name), route, &attached, attach);
        self.trace(|| {
            format!("handler {handler}: opened on {:?}, had {attached:?}, attachments {attachments:?}", names(entries))
        });
        self.sinks[sink].allowed.extend(taken.union(&attached));
        self.sinks[sink].attached = attached;
        let schedule = self.schedules[handler];
        let process = self.process();
        process.consumers[handler] = Some(Consumer::new(reader, sink, schedule));
        process.routes[handler] = entries;
        self.save_now();
        self.queue_attachments(attachments);
    }

    /// Stores the description of a unit.
    pub(super) fn describe(&mut self, id: UnitId, shape: Shape, first: First, heir_of: &[UnitId], complete: bool) {
        let heir_of = heir_of.iter().map(|unit| unit.0).collect();
        let unit = Described { shape, initial: matches!(first, First::Initial { .. }), heir_of, complete };
        let description = serde_json::to_value(unit).expect("numbers and lists");
        self.update_unit(id, |stored| stored.description = description);
    }

    /// Retires a unit, in the order of [`Router::remove_unit`](crate::delivery::router::Router::remove_unit).
    pub(super) fn retire(&mut self, unit: UnitId) {
        let process = self.process();
        let (last, _) = process.journal.advance(|journal| journal.retire_unit(unit));
        process.table.retire_unit(unit, last);
        self.update_unit(unit, |stored| stored.retired = Some(last));
        for sink in &mut self.sinks {
            sink.attached.remove(&unit);
        }
    }

    pub(super) fn update_unit(&mut self, id: UnitId, change: impl FnOnce(&mut StoredUnit)) {
        let Some(terms) = self.process().journal.terms(id) else { return };
        let new = || {
            let (description, reached) = (serde_json::Value::Null, Reached::default());
            StoredUnit { id, description, terms, reached, retired: None }
        };
        let mut stored = self.disk.now.units.get(&id).cloned().unwrap_or_else(new);
        change(&mut stored);
        self.disk.write(Write::Unit(stored));
    }
}
