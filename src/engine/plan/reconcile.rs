//! Steps from the running units to the desired ones: units to keep, to stop and to start, and the objects of new units.
//!
//! A unit is never changed, only replaced. The old units of the same type and entry have cached objects. The new unit starts with
//! the cached objects that are in its scope. If a reload has moved the type from another entry, the new unit starts with the
//! objects of that entry. Objects that no new unit shows are retired: the readers of the old unit get removals or deletions.
//!
//! **Invariant:** each cached object of a stopping unit either seeds exactly one new unit, or is retired once; see [`distribute`].

use super::{SpecDifference, UnitSpec};
use crate::{change::Cause, config::Cache, indexer::Retirement, journal::UnitId};

/// Reason for a reconciliation. The reason decides the cause of the resulting events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Occasion {
    /// First discovery of this engine.
    Start,
    /// Repeated change after a panic, or a change that only makes pending attachments of readers.
    Repair,
    /// Later discovery: a type was added or removed.
    Discovery,
    /// Change of namespaces, of their labels, or of rights.
    Scope,
    /// Change of the configuration.
    Reload,
}

/// Progress of a unit's first list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// The list is not complete yet. Its events have the cause `initial`.
    Initial {
        /// Set if the type was missing at the engine's first discovery: handlers with `initial = "skip"` then get the
        /// first list of the unit too.
        late: bool,
    },
    /// The list is not complete yet. It is compared with cached objects; differences have this cause.
    Compared(Cause),
    /// The list is complete.
    Done,
}

/// Unit that exists: it runs, has stopped, or was restored and not started yet.
#[derive(Clone, Debug)]
pub(crate) struct RunningSpec {
    pub id: UnitId,
    pub spec: UnitSpec,
    /// Progress of the unit's first list.
    pub first: First,
    /// Set if the unit runs, or was restored and not started yet. A unit that is not sound is always replaced.
    pub sound: bool,
    /// Set if the CRD or the namespace of the unit was deleted.
    pub gone: bool,
}

/// Unit to start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnitStart {
    pub spec: UnitSpec,
    /// Progress of the unit's first list. With [`First::Done`], the unit also takes over the watch position of its only
    /// predecessor, so it needs no list.
    pub first: First,
    /// Stopping units whose cached objects seed the new unit, if the objects are in its scope. Empty with [`First::Initial`].
    pub from: Vec<UnitId>,
}

/// Steps for the units of one type, in this order: stop, retire, start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Steps {
    /// Units that continue untouched.
    pub keep: Vec<UnitId>,
    /// Units to stop, each with the way to retire the objects that no new unit takes.
    pub stop: Vec<(UnitId, Retirement)>,
    pub start: Vec<UnitStart>,
}

impl Steps {
    /// Returns true if there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.stop.is_empty() && self.start.is_empty()
    }

    /// Decides again how the new units start, once the old ones have stopped. An old unit may have completed its first list since the
    /// reconciliation.
    pub(crate) fn revise(&mut self, stopped: &[RunningSpec], history: History) {
        self.start = starts(self.start.iter().map(|start| &start.spec), stopped.iter().collect(), history);
    }

    /// Returns the way to retire the objects of a stopping unit; `None` if the unit does not stop.
    pub(crate) fn fate(&self, unit: UnitId) -> Option<Retirement> {
        self.stop.iter().find(|(id, _)| *id == unit).map(|(_, fate)| *fate)
    }
}

/// Known facts about a type, except its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History {
    /// Reason for the reconciliation.
    pub occasion: Occasion,
    /// Set if the type was missing at the engine's first discovery.
    pub late: bool,
    /// Set if the type has had units, or needed none. The first objects of a new unit are then changes, not the initial state.
    pub settled: bool,
}

/// Returns the steps that turn the units of one type into the desired ones.
pub(crate) fn reconcile(running: &[RunningSpec], desired: &[UnitSpec], history: History) -> Steps {
    let mut steps = Steps::default();
    let mut wanted: Vec<&UnitSpec> = desired.iter().collect();
    let mut stopping: Vec<&RunningSpec> = Vec::new();
    for unit in running {
        let same = wanted.iter().position(|spec| unit.spec.difference(spec) == SpecDifference::Nothing);
        match same.filter(|_| unit.sound && !unit.gone) {
            Some(position) => {
                wanted.remove(position);
                steps.keep.push(unit.id);
            }
            None => stopping.push(unit),
        }
    }
    steps.stop = stopping.iter().map(|unit| (unit.id, fate(unit, history.occasion))).collect();
    steps.start = starts(wanted, stopping, history);
    steps
}

/// Returns the way to start the units of these specs, when the units in `stopping` stop.
fn starts<'a>(
    wanted: impl IntoIterator<Item = &'a UnitSpec>,
    mut stopping: Vec<&RunningSpec>,
    history: History,
) -> Vec<UnitStart> {
    stopping.retain(|unit| !unit.gone);
    let start = |spec: &UnitSpec| {
        let continued = |unit: &&RunningSpec| unit.spec.difference(spec) <= SpecDifference::Keeping;
        let (first, from) = match stopping.iter().position(continued) {
            Some(position) => continuing(stopping.remove(position)),
            None => beginning(spec, &stopping, history),
        };
        UnitStart { spec: spec.clone(), first, from }
    };
    wanted.into_iter().map(start).collect()
}

/// Returns [`UnitStart::first`] and [`UnitStart::from`] for a unit that fetches the same objects as the old unit.
fn continuing(old: &RunningSpec) -> (First, Vec<UnitId>) {
    (old.first, if old.is_initial() { Vec::new() } else { vec![old.id] })
}

/// Returns [`UnitStart::first`] and [`UnitStart::from`] for a unit that does not continue a stopping unit.
fn beginning(spec: &UnitSpec, stopping: &[&RunningSpec], history: History) -> (First, Vec<UnitId>) {
    let overlaps = |unit: &&RunningSpec| unit.spec.may_overlap(spec);
    let (own, others): (Vec<&RunningSpec>, Vec<&RunningSpec>) =
        stopping.iter().copied().filter(overlaps).partition(|unit| unit.spec.entry == spec.entry);
    let with = if own.is_empty() { left_behind(spec, others, history) } else { own };
    if !with.is_empty() && with.iter().all(|unit| unit.is_initial()) || with.is_empty() && !history.is_change() {
        return (First::Initial { late: history.late }, Vec::new());
    }
    let cause = match history.occasion {
        Occasion::Reload => Cause::Reload,
        Occasion::Start if with.is_empty() => Cause::Reload, // the configuration has selected these objects since the last run
        Occasion::Start => Cause::Downtime,
        _ => Cause::Relist,
    };
    (First::Compared(cause), with.iter().map(|unit| unit.id).collect())
}

/// Returns the units of the other entry from which a reload, or a start with another configuration, moves the type to the entry of
/// `spec`. Returns none if there are several such entries, or if the new cache has no bodies. Readers of both entries get the
/// differences. Readers of only the new entry are attached later, and get the objects from the new cache.
fn left_behind<'a>(spec: &UnitSpec, others: Vec<&'a RunningSpec>, history: History) -> Vec<&'a RunningSpec> {
    let others: Vec<_> = others.into_iter().filter(|unit| !unit.is_initial()).collect();
    let is_one_entry = others.windows(2).all(|pair| pair[0].spec.entry == pair[1].spec.entry);
    let is_reload = matches!(history.occasion, Occasion::Reload | Occasion::Start);
    if is_one_entry && is_reload && spec.options.cache == Cache::Full { others } else { Vec::new() }
}

impl RunningSpec {
    fn is_initial(&self) -> bool {
        matches!(self.first, First::Initial { .. })
    }
}

impl History {
    /// Returns true if the first objects of a new unit are changes, not the initial state.
    fn is_change(self) -> bool {
        self.settled || self.occasion == Occasion::Reload
    }
}

fn fate(unit: &RunningSpec, occasion: Occasion) -> Retirement {
    match occasion {
        Occasion::Start if unit.gone => Retirement::Deleted(Cause::Downtime),
        _ if unit.gone => Retirement::Deleted(Cause::Relist),
        // the configuration may have changed while no engine ran
        Occasion::Reload | Occasion::Start => Retirement::Removed(Cause::Reload),
        _ => Retirement::Removed(Cause::Watch),
    }
}

/// Distributes the cached objects of stopped units to `starts`. `cached` contains the id and the objects of each unit. Returns one
/// list of seeds for each start. Also returns, for each unit, the objects that no new unit shows: they are retired. `namespace`
/// returns the namespace of an object.
///
/// If several starts show an object, the first start takes the object. If several old units have cached an object, the state from
/// the last of these units counts.
pub(crate) fn distribute<T>(
    cached: Vec<(UnitId, Vec<T>)>,
    starts: &[UnitStart],
    namespace: impl Fn(&T) -> &str,
) -> (Vec<Vec<T>>, Vec<Vec<T>>) {
    let mut seeds: Vec<Vec<T>> = starts.iter().map(|_| Vec::new()).collect();
    let mut all_left = Vec::new();
    for (unit, objects) in cached {
        let mut left = Vec::new();
        for object in objects {
            let takes = |start: &UnitStart| start.from.contains(&unit) && start.spec.covers(namespace(&object));
            match starts.iter().position(takes) {
                Some(successor) => seeds[successor].push(object),
                None => left.push(object),
            }
        }
        all_left.push(left);
    }
    (seeds, all_left)
}

#[cfg(test)]
mod tests;
