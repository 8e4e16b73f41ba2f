//! Changes the units of one type.
//!
//! ```text
//! readers are told what they shall begin or end with        (moves, while the old units run)
//! old actors end                                            what was read is applied and journaled
//! new informers are seeded and shown in the registry        the cache is readable at once, whole
//! what nobody shows any more is appended as removed         under the old unit's id
//! new supervisors start
//! ```
//!
//! Where a type moves to another entry, readers of both entries are told what differs, readers of the old one alone that
//! it left, and readers of the new one alone, once it is listed there, what there is.
//!
//! The last three steps happen between two awaits. Each type has a task of its own, so one that hangs holds up its own type
//! only. Where a task ends by a panic, the units are what the state says; those that were asked to stop are not sound,
//! and the next change begins from there.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use actix::{Actor, Addr};
use futures_util::future::join_all;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::{
    conductor::Conductor,
    options::{self, Extras},
    plan::{TypeName, UnitSpec},
    reconcile::{Fate, First, From, Steps, UnitStart, distribute, heir},
    restore::describe,
    state::{TypeState, Unit},
};
use crate::{
    change::{Cause, Change, Reached},
    delivery::table::UnitOptions,
    indexer::{FirstList, Retirement, actor::MoveReader, retirement, store::Meta},
    informer::{Informer, Seed, actor::UnitSupervisor, messages::StopUnit},
    journal::{Journal, Move, MoveKind, NotWritable, ReaderId, UnitId},
    list_watch::scoped::Gate,
    mutex::lock,
    notification::UnitInfo,
    object::Object,
};

/// How long moves may hold up a change of their units: a unit that restarts cannot answer.
const MOVES_BEFORE_STOP: Duration = Duration::from_secs(10);
/// How often a unit that cannot answer now is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Conductor {
    /// Tells readers what they shall hear of a type's units, and brings those to what is desired.
    pub(super) async fn change(self: Arc<Self>, name: TypeName, steps: Steps) {
        let changes = !steps.is_empty();
        self.start_units(&name, |unit| steps.keep.contains(&unit.informer.id));
        if changes {
            self.of_type(&name, TypeState::admit_all);
        }
        self.make_moves(&name, changes.then(|| Instant::now() + MOVES_BEFORE_STOP)).await;
        if !changes {
            return;
        }
        self.stop_units(&name, &steps).await;
        let ended = self.replace_units(&name, &steps);
        self.retire_units(&name, &steps, ended).await;
        self.start_units(&name, |_| true);
    }

    /// Has the units make the moves that wait, in order; gives up at `by`, or when a unit is gone for good.
    async fn make_moves(&self, name: &TypeName, by: Option<Instant>) {
        let take = |kept: &mut TypeState| std::mem::take(&mut kept.moves);
        let mut moves: VecDeque<(UnitId, Move)> = self.of_type(name, take).unwrap_or_default().into();
        while let Some((unit, asked)) = moves.pop_front() {
            let supervisor = self.of_type(name, |kept| {
                kept.units.iter().find(|known| known.informer.id == unit).and_then(|known| known.supervisor.clone())
            });
            let Some(supervisor) = supervisor.flatten() else { continue };
            let answer = supervisor.send(MoveReader(asked)).await;
            if !matches!(answer, Ok(Err(_))) {
                continue;
            }
            moves.push_front((unit, asked));
            if by.is_some_and(|by| Instant::now() >= by) {
                break;
            }
            sleep(ASK_AGAIN).await;
        }
        // What came meanwhile waits behind what is left.
        self.of_type(name, |kept| {
            let later = std::mem::take(&mut kept.moves);
            kept.moves = moves.into_iter().chain(later).collect();
        });
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
        let ends = asked.unwrap_or_default().into_iter().map(|supervisor| async move {
            let _ended_by_itself = supervisor.send(StopUnit).await;
        });
        join_all(ends).await;
    }

    /// Puts new units, seeded, in the place of those that have stopped; returns these, with what is to be said of what
    /// they leave.
    fn replace_units(&self, name: &TypeName, steps: &Steps) -> Vec<Ended> {
        let mut state = self.lock();
        let extras = |entry: &str| self.extras(entry, &state.indexes);
        let extras: Vec<Extras> = steps.start.iter().map(|start| extras(&start.spec.entry)).collect();
        let mut next_unit = state.next_unit;
        let Some(kept) = state.types.get_mut(name) else { return Vec::new() };
        let (old, mut units): (Vec<Unit>, Vec<Unit>) =
            kept.units.drain(..).partition(|unit| steps.fate(unit.informer.id).is_some());
        let cached: Vec<_> = old.iter().map(|unit| (unit.informer.id, unit.informer.objects())).collect();
        let moved: Vec<_> =
            old.iter().zip(&cached).map(|(unit, (_, objects))| moved(unit, objects, &steps.start)).collect();
        let (seeds, retired) = distribute(cached, &steps.start, |object: &Object| object.namespace());

        for ((start, objects), extras) in steps.start.iter().zip(seeds).zip(extras) {
            let id = UnitId(next_unit);
            next_unit += 1;
            let before = old.iter().find(|old| start.from.takes(old.informer.id)).map(|old| old.spec.entry.as_str());
            match self.make_unit(id, start, before, seed(start, objects, &old), kept, extras) {
                Ok((unit, strangers)) => {
                    if before == Some(start.spec.entry.as_str()) {
                        kept.inherit_moves(&start.from, id);
                    }
                    let join = |reader| Move { reader, kind: MoveKind::Join(Some(Cause::Reload)) };
                    kept.arrivals.extend(strangers.into_iter().map(|reader| (id, join(reader))));
                    units.push(unit);
                }
                Err(error) => warn!(resource = %start.spec.resource, %error, "failed to read the options of the type"),
            }
        }
        let is_there = |(unit, _): &(UnitId, Move)| units.iter().any(|known| known.informer.id == *unit);
        kept.moves.retain(is_there);
        kept.arrivals.retain(is_there);
        if units.is_empty() {
            kept.siblings = Arc::default(); // what comes back is synced anew
        }
        kept.units = units;
        kept.settled = true;
        state.next_unit = next_unit;
        self.show(&state);
        drop(state);
        let ended = old.into_iter().zip(retired).zip(moved).filter_map(|((unit, (_, left)), moved)| {
            let how = match steps.fate(unit.informer.id)? {
                Fate::Deleted(cause) => Retirement::Deleted(cause),
                Fate::Removed(cause) => Retirement::Removed(cause),
            };
            Some(Ended { unit, moved, left, how })
        });
        ended.collect()
    }

    /// Says what became of the objects of units that have ended; waits for the journal if it takes nothing now.
    ///
    /// For a crash in between: what the old units leave is said first, then what the new ones begin with is kept, and only
    /// then do the old ones end.
    async fn retire_units(&self, name: &TypeName, steps: &Steps, ended: Vec<Ended>) {
        let journal = &self.shared.journal;
        let mut retired = Vec::new();
        for Ended { unit, moved, left, how } in ended.into_iter().map(|ended| self.under_rules_of_today(ended)) {
            for (reader, changes) in self.dismissals(moved, &left, how) {
                while let Err(why) = unit.informer.dismiss(journal, reader, &changes) {
                    unit.wait(journal, &why).await;
                }
            }
            let changes = retirement(left, how);
            let left = changes.len();
            while let Err(why) = unit.informer.retire(journal, &changes) {
                unit.wait(journal, &why).await;
            }
            retired.push((unit, left));
        }
        self.keep_seeds(name, steps).await;
        for (unit, left) in retired {
            self.router.remove_unit(unit.informer.id);
            info!(resource = %unit.spec.resource, namespace = unit.spec.namespace, left, "the unit has ended");
        }
    }

    /// Returns what may be said of the objects of a unit that has ended: the rules by which it let them in may not be those
    /// of today (D11).
    fn under_rules_of_today(&self, Ended { unit, moved, left, how }: Ended) -> Ended {
        let config = Arc::clone(&self.lock().known.config);
        let key = lock(&self.library).key.clone();
        let gate = |entry: &str| {
            let gate = options::gate_of_today(&config, entry, &unit.spec, key.as_ref());
            let resource = &unit.spec.resource;
            gate.inspect_err(|error| error!(%resource, %error, "failed to redact what the unit leaves: left out"))
        };
        let own = gate(&unit.spec.entry);
        let left = pass(&own, left);
        let of_heir = |(entry, objects): (String, Vec<Object>)| {
            let objects = pass(&gate(&entry), pass(&own, objects));
            (entry, objects)
        };
        let moved = moved.into_iter().map(of_heir).collect();
        Ended { unit, moved, left, how }
    }

    /// Keeps what units begin with that have just been made.
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
            let Meta { generation, store_version, resume_version, synced, .. } = unit.informer.meta();
            let reached = Reached { generation, store_version, resume_version, synced };
            while let Err(why) = journal.seed(unit.informer.id, &objects, &reached, Timestamp::now()) {
                warn!(resource = %unit.spec.resource, %why, "the unit cannot begin before the journal takes what it begins with");
                journal.writable().await;
            }
            describe(journal, unit.informer.id, (&unit.spec, unit.first), start.from.units(), true);
        }
    }

    /// Returns what readers are told that do not take an entry: objects which moved there have left, and with them what is
    /// left.
    fn dismissals(&self, moved: Moved, left: &[Object], how: Retirement) -> BTreeMap<ReaderId, Vec<Change>> {
        let mut gone: BTreeMap<ReaderId, Vec<Object>> = BTreeMap::new();
        for (entry, objects) in moved {
            let without = self.router.table().readers_without(&entry);
            for reader in without {
                gone.entry(reader).or_default().extend(objects.iter().cloned());
            }
        }
        let told = |(reader, mut objects): (ReaderId, Vec<Object>)| {
            objects.extend(left.iter().cloned());
            (reader, retirement(objects, how))
        };
        gone.into_iter().map(told).collect()
    }

    /// Makes one unit, and makes it known to handlers: before its first append, or they would miss it. `before` is the
    /// entry of the units that it begins with. Returns also the readers that it has to introduce.
    fn make_unit(
        &self,
        id: UnitId,
        start: &UnitStart,
        before: Option<&str>,
        seed: Option<Seed>,
        kept: &TypeState,
        extras: Extras,
    ) -> Result<(Unit, Vec<ReaderId>), String> {
        let spec = &start.spec;
        let packer = self.shared.journal.packer(id, options::compression(spec));
        let options = options::informer(spec, extras, packer)?;
        let late = matches!(start.from, From::Nothing { late: true });
        let info =
            UnitInfo { entry: spec.entry.clone(), resource: spec.resource.clone(), namespace: spec.namespace.clone() };
        let resync_period = spec.options.options.resync;
        let unit_options = UnitOptions { late, resync_period, cached: options.indexer.keep.is_whole() };
        let strangers = if let Some(before) = before.filter(|before| *before != spec.entry) {
            self.router.add_successor(id, info, unit_options, before)
        } else {
            self.router.add_unit(id, info, unit_options);
            Vec::new()
        };
        let first = match start.from {
            From::Nothing { late } => First::Initial { late },
            From::Continue(_) => First::Done,
            From::Compare { cause, .. } => First::Compared(cause),
        };
        let resource = Arc::new(spec.resource.clone());
        let informer = Informer::new(id, &spec.entry, resource, options, Arc::clone(&kept.siblings), seed);
        informer.status.lock().late = self.registry.is_discovered();
        if self.router.table().skips_downtime(&spec.entry) {
            informer.name_what_was_missed();
        }
        let unit = Unit {
            spec: spec.clone(),
            informer: Arc::new(informer),
            supervisor: None,
            first,
            stopping: false,
            saved: false,
        };
        describe(&self.shared.journal, id, (spec, first), start.from.units(), unit.informer.meta().objects == 0);
        Ok((unit, strangers))
    }

    fn start_units(&self, name: &TypeName, which: impl Fn(&Unit) -> bool) {
        self.of_type(name, |kept| {
            for unit in kept.units.iter_mut().filter(|unit| unit.supervisor.is_none() && which(unit)) {
                unit.saved = false;
                let UnitSpec { entry, resource, namespace, .. } = &unit.spec;
                info!(%resource, version = resource.version, namespace, entry, "watching");
                let (informer, shared) = (Arc::clone(&unit.informer), self.shared.clone());
                let supervisor = UnitSupervisor::new(informer, shared, Arc::clone(&self.arbiters), self.supervision);
                unit.supervisor = Some(supervisor.start());
            }
        });
    }
}

impl TypeState {
    /// What a reader was to be told by a unit that is gone, its heir of the same entry tells.
    fn inherit_moves(&mut self, from: &From, heir: UnitId) {
        for (unit, _) in &mut self.moves {
            if from.takes(*unit) {
                *unit = heir;
            }
        }
    }

    /// Has readers introduced by units that are listed now.
    pub(super) fn admit(&mut self) {
        let listed = |id: UnitId| self.units.iter().any(|unit| unit.informer.id == id && unit.first == First::Done);
        let admitted = self.arrivals.extract_if(.., |(unit, _)| listed(*unit));
        self.moves.extend(admitted);
    }

    /// Has readers introduced by all units: they stop.
    fn admit_all(&mut self) {
        self.moves.append(&mut self.arrivals);
    }
}

/// A unit that has ended, and what is still to be said of its objects.
struct Ended {
    unit: Unit,
    moved: Moved,
    /// Objects that no unit shows any more.
    left: Vec<Object>,
    how: Retirement,
}

/// Objects that move to another entry, by its name.
type Moved = BTreeMap<String, Vec<Object>>;

/// Returns which of a unit's objects are shown by units of other entries from now on.
fn moved(unit: &Unit, objects: &[Object], starts: &[UnitStart]) -> Moved {
    let mut moved = Moved::new();
    for object in objects {
        if let Some(heir) = heir(starts, unit.informer.id, object.namespace())
            && starts[heir].spec.entry != unit.spec.entry
        {
            moved.entry(starts[heir].spec.entry.clone()).or_default().push(object.clone());
        }
    }
    moved
}

/// Returns what a gate leaves of objects; nothing where there is none.
fn pass(gate: &Result<Gate, String>, objects: Vec<Object>) -> Vec<Object> {
    let pass = |object| gate.as_ref().ok()?.pass_cached(object);
    objects.into_iter().filter_map(pass).collect()
}

/// Returns what a unit begins with; `objects` are those of the old ones that it shows.
fn seed(start: &UnitStart, objects: Vec<Object>, old: &[Unit]) -> Option<Seed> {
    match &start.from {
        From::Nothing { .. } => None,
        From::Continue(unit) => old.iter().find(|old| old.informer.id == *unit).map(|old| old.informer.seed()),
        From::Compare { with, cause } => {
            let with: Vec<&Unit> = old.iter().filter(|old| with.contains(&old.informer.id)).collect();
            let bodies = with.iter().all(|old| old.first_list().bodies);
            let complete = with.iter().any(|old| old.spec.contains(&start.spec) && old.first_list().complete);
            Some(Seed::Relist { objects, first_list: FirstList { cause: *cause, bodies, complete } })
        }
    }
}

impl Unit {
    /// Waits until the journal takes its last records.
    async fn wait(&self, journal: &Journal, why: &NotWritable) {
        warn!(resource = %self.spec.resource, %why, "the unit cannot end before the journal takes its last records");
        journal.writable().await;
    }

    /// Returns what another one may make of the cache.
    fn first_list(&self) -> FirstList {
        match self.informer.seed_to_relist(|_| false) {
            Seed::Relist { first_list, .. } => first_list,
            Seed::Resume { .. } | Seed::Saved { .. } => FirstList::default(),
        }
    }
}
