//! Changes of the units of one type.
//!
//! ```text
//! readers get events about objects gained or lost           (attachments, made by the old units)
//! old actors end                                            they first apply and journal what they have read
//! new informers are seeded and shown in the registry        the whole cache is readable at once
//! objects that no unit shows are appended as removed        under the old unit's id
//! readers of only the old entry are detached               attachments, made by the new units
//! new supervisors start
//! ```
//!
//! A type may move to another entry. Readers of both entries then get the differences. Readers of only the old entry get
//! removals: a new unit has all readers of the units that it replaces, and these readers are detached before it starts. Readers of
//! only the new entry get the existing objects, after the first list of that entry.
//!
//! If the journal is writable, the last four steps run without interruption. Each type has its own task, so a blocked task
//! delays only its own type. If a task panics, the state still describes the units. The next change replaces all units that
//! were asked to stop.

use std::{sync::Arc, time::Duration};

use actix::{Actor, Addr};
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::{
    Conductor,
    restore::describe,
    state::{State, TypeState, Unit},
};
use crate::engine::{
    options,
    plan::reconcile::{First, History, RunningSpec, Steps, UnitStart, distribute},
    plan::{TypeName, UnitSpec},
};
use crate::{
    change::Cause,
    delivery::table::UnitOptions,
    indexer::{FirstList, Retirement, actor::AttachReader, retirement, siblings::Siblings},
    informer::{
        Informer, InformerOptions, Seed,
        actor::{RunningIndexer, StopUnit, UnitSupervisor},
    },
    journal::{Attachment, AttachmentKind, Journal, NotWritable, UnitId},
    mutex::lock,
    object::{Object, ResourceVersion},
};

/// Maximum time that a change waits for pending attachments of readers, before it stops the units. The wait needs a limit, because a
/// restarting unit makes no attachments.
const ATTACHMENTS_BEFORE_STOP: Duration = Duration::from_secs(10);
/// Delay before a unit is asked again to make an attachment.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Conductor {
    /// Makes the pending attachments of a type's units, and then changes the units to the desired ones.
    pub(in crate::engine) async fn change(&self, name: &TypeName, mut steps: Steps, history: History) {
        if steps.is_empty() {
            self.make_attachments(name, None).await;
            return self.start_units(name, |unit| steps.keep.contains(&unit.informer.id));
        }
        // The readers that wait for a first list are attached before the units stop.
        self.of_type(name, |kept| kept.attachments.append(&mut kept.after_first_list));
        self.make_attachments(name, Some(Instant::now() + ATTACHMENTS_BEFORE_STOP)).await;
        self.stop_units(name, &steps).await;
        self.finish_attachments(name).await;
        let ended = self.replace_units(name, &mut steps, history);
        self.retire_units(name, &steps, ended).await;
        self.finish_attachments(name).await;
        self.start_units(name, |_| true);
    }

    /// Makes the pending attachments in order, and gives up at the time `by`.
    async fn make_attachments(&self, name: &TypeName, by: Option<Instant>) {
        while let Some((unit, asked)) = self.of_type(name, |kept| kept.next_attachment(|_| true)).flatten() {
            let (_, attachment) = asked;
            let is_made = match &unit {
                Some(unit) => self.has_attached(unit, attachment).await,
                None => true, // the unit has ended, and all its readers with it
            };
            if is_made {
                self.of_type(name, |kept| kept.made(asked));
            } else if by.is_some_and(|by| Instant::now() >= by) {
                return;
            } else {
                sleep(ASK_AGAIN).await;
            }
        }
    }

    /// Attaches a reader to a unit, or detaches it. After `false`, the caller must try again.
    async fn has_attached(&self, unit: &Unit, asked: Attachment) -> bool {
        if let Some(supervisor) = &unit.supervisor {
            match supervisor.send(RunningIndexer).await {
                Ok(Some(indexer)) => return matches!(indexer.send(AttachReader(asked)).await, Ok(Ok(()))),
                Ok(None) => return false,
                Err(_ended) => {}
            }
        }
        unit.informer.attach_reader(&self.shared.journal, asked).is_ok()
    }

    /// Makes the pending attachments of the units that do not run. Waits while the journal accepts no records.
    async fn finish_attachments(&self, name: &TypeName) {
        while let Err(why) = self.make_attachments_at_rest(name) {
            warn!(
                resource = %name, %why,
                "added and removed events for changed handlers wait until the journal can store them"
            );
            self.shared.journal.writable().await;
        }
    }

    /// Makes the pending attachments of the units that do not run: stopped ones, and those that were not started yet. After an
    /// error, the other attachments are still pending.
    pub(in crate::engine) fn make_attachments_at_rest(&self, name: &TypeName) -> Result<(), NotWritable> {
        let is_at_rest = |unit: &Unit| unit.supervisor.is_none() || unit.stopping;
        while let Some((unit, asked)) = self.of_type(name, |kept| kept.next_attachment(is_at_rest)).flatten() {
            if let Some(unit) = unit {
                unit.informer.attach_reader(&self.shared.journal, asked.1)?;
            }
            self.of_type(name, |kept| kept.made(asked));
        }
        Ok(())
    }

    async fn stop_units(&self, name: &TypeName, steps: &Steps) {
        let asked = self.of_type(name, |kept| {
            let is_asked = |unit: &&mut Unit| steps.fate(unit.informer.id).is_some();
            let stopping = kept.units.iter_mut().filter(is_asked);
            let asked = stopping.filter_map(|unit| {
                unit.stopping = true;
                unit.supervisor.clone()
            });
            asked.collect::<Vec<Addr<UnitSupervisor>>>()
        });
        // An error means that the supervisor has ended by itself.
        join_all(asked.unwrap_or_default().iter().map(|supervisor| supervisor.send(StopUnit))).await;
    }

    /// Replaces each stopped unit. The new units are seeded with cached objects. Returns the stopped units, with the objects that
    /// no new unit of the same entry takes.
    fn replace_units(&self, name: &TypeName, steps: &mut Steps, history: History) -> Vec<Ended> {
        let mut state = self.lock();
        let State { types, next_unit, .. } = &mut *state;
        let Some(kept) = types.get_mut(name) else { return Vec::new() };
        let (old, mut units): (Vec<Unit>, Vec<Unit>) =
            kept.units.drain(..).partition(|unit| steps.fate(unit.informer.id).is_some());
        let stopped: Vec<_> = old.iter().filter_map(|unit| unit.stopped(steps)).collect();
        steps.revise(&stopped, history);
        let cached = old.iter().map(|unit| (unit.informer.id, unit.informer.objects()));
        let (seeds, left) = distribute(cached.collect(), &steps.start, |object: &Object| object.namespace());

        for (start, objects) in steps.start.iter().zip(seeds) {
            let id = UnitId(*next_unit);
            *next_unit += 1;
            let before =
                old.iter().find(|old| start.from.contains(&old.informer.id)).map(|old| old.spec.entry.as_str());
            match self.make_unit(id, start, before, seed(start, objects, &old), kept) {
                Ok((unit, attachments)) => {
                    let attachments = attachments.into_iter().map(|asked| (id, asked));
                    let (detaches, attaches): (Vec<_>, Vec<_>) =
                        attachments.partition(|(_, asked)| asked.kind == AttachmentKind::Detach);
                    kept.attachments.extend(detaches);
                    kept.after_first_list.extend(attaches);
                    units.push(unit);
                }
                Err(error) => warn!(resource = %start.spec.resource, %error, "failed to read the options of the type"),
            }
        }
        let is_there = |(unit, _): &(UnitId, Attachment)| units.iter().any(|known| known.informer.id == *unit);
        kept.attachments.retain(is_there);
        kept.after_first_list.retain(is_there);
        if units.is_empty() {
            kept.siblings = Arc::default(); // a type that comes back has to sync again
        }
        kept.units = units;
        kept.settled = true;
        self.show(&state);
        drop(state);
        let ended = old.into_iter().zip(left).filter_map(|(unit, left)| {
            let how = steps.fate(unit.informer.id)?;
            Some(Ended { unit, left, how })
        });
        ended.collect()
    }

    /// Retires the ended units. Waits while the journal accepts no records.
    ///
    /// 1. The last events about the objects of the ended units are appended.
    /// 2. The seeds of the new units are stored.
    /// 3. The ended units are marked as retired.
    ///
    /// This order is safe in a crash: a restart finds the ended units, or the complete seeds of the units that replace them.
    async fn retire_units(&self, name: &TypeName, steps: &Steps, ended: Vec<Ended>) {
        let journal = &self.shared.journal;
        let mut retired = Vec::new();
        for Ended { unit, left, how } in ended {
            let left = self.under_rules_of_today(&unit.spec, left);
            let changes = retirement(left, how);
            let removed = if matches!(how, Retirement::Removed(Cause::Reload)) { changes.len() } else { 0 };
            while let Err(why) = unit.informer.retire(journal, &changes) {
                unit.wait(journal, &why).await;
            }
            retired.push((unit, removed));
        }
        self.keep_seeds(name, steps).await;
        for (unit, removed) in retired {
            self.router.remove_unit(unit.informer.id);
            let (resource, namespace) = (&unit.spec.resource, unit.spec.namespace.as_deref());
            if removed > 0 {
                warn!(%resource, namespace, objects = removed, "no longer watched: handlers get `removed` for the objects");
            } else {
                info!(%resource, namespace, "a watch of the type has ended");
            }
        }
    }

    /// Applies the present redaction rules to the objects of an ended unit. The unit may have received the objects under other
    /// rules. Returns no object if the rules cannot be applied.
    fn under_rules_of_today(&self, spec: &UnitSpec, objects: Vec<Object>) -> Vec<Object> {
        let config = Arc::clone(&self.lock().config);
        let key = lock(&self.library).key.clone();
        match options::gate_of_today(&config, &spec.entry, spec, key.as_ref()) {
            Ok(gate) => objects.into_iter().filter_map(|object| gate.pass_cached(object)).collect(),
            Err(error) => {
                let resource = &spec.resource;
                error!(%resource, %error, "cannot redact the objects of an ended unit: handlers do not get its last events");
                Vec::new()
            }
        }
    }

    /// Stores the seeds of new units.
    async fn keep_seeds(&self, name: &TypeName, steps: &Steps) {
        let journal = &self.shared.journal;
        if !journal.is_stored() {
            return;
        }
        let made = |unit: &&Unit| unit.supervisor.is_none() && !unit.saved;
        let made = self.of_type(name, |kept| kept.units.iter().filter(made).cloned().collect::<Vec<_>>());
        for unit in made.unwrap_or_default() {
            let Some(start) = steps.start.iter().find(|start| start.spec == unit.spec) else { continue };
            let objects = unit.informer.objects();
            let reached = unit.informer.meta().reached();
            while let Err(why) = journal.seed(unit.informer.id, &objects, &reached, Timestamp::now()) {
                warn!(resource = %unit.spec.resource, %why, "the unit will start when the journal accepts its objects");
                journal.writable().await;
            }
            describe(journal, unit.informer.id, &unit.spec, unit.first, &start.from, true);
        }
    }

    /// Registers a new unit with the handlers, and creates the unit. The registration must precede the unit's first append.
    /// `before` is the entry of the units that it replaces. Also returns the attachments of readers that are on the route of only one of both
    /// entries.
    fn make_unit(
        &self,
        id: UnitId,
        start: &UnitStart,
        before: Option<&str>,
        seed: Option<Seed>,
        kept: &TypeState,
    ) -> Result<(Unit, Vec<Attachment>), String> {
        let UnitStart { spec, first, from } = start;
        let late = matches!(first, First::Initial { late: true });
        let (options, unit_options) = self.unit_options(id, spec, late)?;
        let attachments = self.router.add_unit(id, spec.info(), unit_options, before);
        let unit = self.unit(id, spec.clone(), *first, options, &kept.siblings, seed);
        unit.informer.status.lock().late = self.registry.is_discovered();
        // Until the last events of the replaced units are stored, a restart must find those units, even if this one has no objects.
        describe(&self.shared.journal, id, spec, *first, from, from.is_empty());
        Ok((unit, attachments))
    }

    /// Returns the options of a unit's informer, and the facts about the unit that its readers need.
    pub(in crate::engine) fn unit_options(
        &self,
        id: UnitId,
        spec: &UnitSpec,
        late: bool,
    ) -> Result<(InformerOptions, UnitOptions), String> {
        let packer = self.shared.journal.packer(id, spec.options.options.compression);
        let options = options::informer(spec, &lock(&self.library), packer)?;
        let (resync_period, cached) = (spec.options.options.resync, options.indexer.keep.is_whole());
        Ok((options, UnitOptions { late, resync_period, cached }))
    }

    /// Makes a unit, and does not start it.
    pub(in crate::engine) fn unit(
        &self,
        id: UnitId,
        spec: UnitSpec,
        first: First,
        options: InformerOptions,
        siblings: &Arc<Siblings>,
        seed: Option<Seed>,
    ) -> Unit {
        let resource = Arc::new(spec.resource.clone());
        let informer = Arc::new(Informer::new(id, &spec.entry, resource, options, Arc::clone(siblings), seed));
        if self.router.table().skips_downtime(&spec.entry) {
            informer.name_what_was_missed();
        }
        Unit { spec, informer, supervisor: None, first, stopping: false, saved: false }
    }

    fn start_units(&self, name: &TypeName, which: impl Fn(&Unit) -> bool) {
        self.of_type(name, |kept| {
            for unit in kept.units.iter_mut().filter(|unit| unit.supervisor.is_none() && which(unit)) {
                unit.saved = false;
                let UnitSpec { entry, resource, namespace, .. } = &unit.spec;
                info!(%resource, version = resource.version, namespace, entry, "watching");
                let supervisor = UnitSupervisor::new(Arc::clone(&unit.informer), self.shared.clone());
                unit.supervisor = Some(supervisor.start());
            }
        });
    }
}

impl TypeState {
    /// Returns the oldest pending attachment of a unit that `of` accepts, and the unit. An attachment of a unit that has ended
    /// comes without a unit.
    fn next_attachment(&self, of: impl Fn(&Unit) -> bool) -> Option<(Option<Unit>, (UnitId, Attachment))> {
        let known = |id: UnitId| self.units.iter().find(|unit| unit.informer.id == id);
        let next = self.attachments.iter().find(|(unit, _)| known(*unit).is_none_or(&of))?;
        Some((known(next.0).cloned(), *next))
    }

    /// Queues an attachment. A reader that is detached from a unit must not be attached to it later, after the unit's first list.
    pub(in crate::engine) fn queue_attachment(&mut self, unit: UnitId, asked: Attachment) {
        if asked.kind == AttachmentKind::Detach {
            self.after_first_list.retain(|(of, waiting)| (*of, waiting.reader) != (unit, asked.reader));
        }
        self.attachments.push((unit, asked));
    }

    /// Removes an attachment that was made.
    fn made(&mut self, asked: (UnitId, Attachment)) {
        if let Some(at) = self.attachments.iter().position(|pending| *pending == asked) {
            self.attachments.remove(at);
        }
    }

    /// Queues the attachments that add readers to units whose first list is now complete.
    pub(in crate::engine) fn admit(&mut self) {
        let listed = |id: UnitId| self.units.iter().any(|unit| unit.informer.id == id && unit.first == First::Done);
        let admitted = self.after_first_list.extract_if(.., |(unit, _)| listed(*unit));
        self.attachments.extend(admitted);
    }
}

/// Unit that has ended, and those of its objects that no unit shows now.
struct Ended {
    unit: Unit,
    left: Vec<Object>,
    how: Retirement,
}

/// Returns the seed of a new unit. `objects` are those cached objects of old units that the new unit shows.
fn seed(start: &UnitStart, objects: Vec<Object>, old: &[Unit]) -> Option<Seed> {
    let from = || old.iter().filter(|old| start.from.contains(&old.informer.id));
    match start.first {
        First::Initial { .. } => None,
        First::Done => from().next().map(|old| old.informer.seed()),
        First::Compared(cause) => {
            let bodies = from().all(|old| old.informer.has_bodies());
            let complete = from().any(|old| old.spec.contains(&start.spec) && old.informer.is_readable());
            let version = ResourceVersion::newest(from().map(|old| old.informer.meta().store_version));
            Some(Seed::Relist { objects, version, first_list: FirstList { cause, bodies, complete } })
        }
    }
}

impl Unit {
    /// Returns the facts about a unit whose actors have ended.
    fn stopped(&self, steps: &Steps) -> Option<RunningSpec> {
        let gone = matches!(steps.fate(self.informer.id)?, Retirement::Deleted(_));
        let first = if self.informer.meta().synced { First::Done } else { self.first };
        Some(RunningSpec { id: self.informer.id, spec: self.spec.clone(), first, sound: false, gone })
    }

    /// Waits until the journal accepts the last records of the unit.
    async fn wait(&self, journal: &Journal, why: &NotWritable) {
        warn!(resource = %self.spec.resource, %why, "the unit will end when the journal accepts its last records");
        journal.writable().await;
    }
}
