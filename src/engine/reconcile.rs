//! From the units that run to those that shall: what to keep, what to stop, what to start and with which objects.
//!
//! A unit is never changed, it is replaced: the new one begins with the cached objects of the old ones of its type and
//! entry that it shows too. What no new unit shows is retired: its readers are told that it left.
//!
//! **Invariant:** every object cached by a unit that stops is seeded into one new unit or retired, exactly once; see
//! [`distribute`].

use super::plan::{Difference, UnitSpec};
use crate::{indexer::Cause, journal::UnitId};

/// Why units are looked at: it says what the events of the change are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Occasion {
    /// The first discovery of this engine.
    Start,
    /// Something failed or ended by itself, and is done again.
    Repair,
    /// A later discovery: a type came or went.
    Discovery,
    /// Namespaces, their labels, or rights have changed.
    Scope,
    /// The configuration has changed.
    Reload,
}

/// How far a unit's first list has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It is still to come, and is `initial`.
    Initial {
        /// See [`From::Nothing`].
        late: bool,
    },
    /// It is still to come, and is compared with what was cached.
    Compared(Cause),
    /// It is there.
    Done,
}

/// A unit that runs, or should.
#[derive(Clone, Debug)]
pub struct RunningSpec {
    /// Its number.
    pub id: UnitId,
    /// What it is.
    pub spec: UnitSpec,
    /// How far it has come.
    pub first: First,
    /// It was started and nobody has stopped it; one that is not sound is replaced whatever it is.
    pub sound: bool,
    /// What it watches exists no more: the CRD or the namespace is gone.
    pub gone: bool,
}

/// What happens to the objects of a stopped unit that no new unit shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They may live on: `removed`.
    Removed(Cause),
    /// The server has none of them any more: `deleted`, as tombstones.
    Deleted(Cause),
}

/// What a unit begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Nothing; its first list is `initial`.
    Nothing {
        /// The type was not there at the engine's first discovery: handlers with `initial = "skip"` hear of its first
        /// list too.
        late: bool,
    },
    /// All that this unit has cached, and where its watch was: nothing is asked again.
    Continue(UnitId),
    /// The objects of these units that it shows; its first list is compared with them.
    Compare {
        /// Units that stop.
        with: Vec<UnitId>,
        /// The cause of what the list finds.
        cause: Cause,
    },
}

/// A unit to be started.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// What it is.
    pub spec: UnitSpec,
    /// What it begins with.
    pub from: From,
}

/// What is to be done to the units of one type, in this order: stop, retire, start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// Units that go on untouched.
    pub keep: Vec<UnitId>,
    /// Units to stop, and what becomes of objects that are seeded nowhere.
    pub stop: Vec<(UnitId, Fate)>,
    /// Units to start.
    pub start: Vec<Start>,
}

impl Steps {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.stop.is_empty() && self.start.is_empty()
    }

    /// Returns what becomes of the objects of a unit that stops; `None` for others.
    pub fn fate(&self, unit: UnitId) -> Option<Fate> {
        self.stop.iter().find(|(id, _)| *id == unit).map(|(_, fate)| *fate)
    }
}

/// What is known of a type beside its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Why it is looked at.
    pub occasion: Occasion,
    /// The type was not there at the engine's first discovery.
    pub late: bool,
    /// It has had units, or was found to need none: what appears now is a change.
    pub settled: bool,
}

/// Says how the units of one type become the desired ones.
pub fn reconcile(running: &[RunningSpec], desired: &[UnitSpec], history: History) -> Steps {
    let mut steps = Steps::default();
    let mut wanted: Vec<&UnitSpec> = desired.iter().collect();
    let mut stopping: Vec<&RunningSpec> = Vec::new();
    for unit in running {
        let same = wanted.iter().position(|spec| unit.spec.difference(spec) == Difference::Nothing);
        match same.filter(|_| unit.sound && !unit.gone) {
            Some(position) => {
                wanted.remove(position);
                steps.keep.push(unit.id);
            }
            None => stopping.push(unit),
        }
    }
    steps.stop = stopping.iter().map(|unit| (unit.id, fate(unit, history.occasion))).collect();
    stopping.retain(|unit| !unit.gone);
    for spec in wanted {
        let continued = |unit: &&RunningSpec| unit.spec.difference(spec) <= Difference::Keeping;
        let from = match stopping.iter().position(continued) {
            Some(position) => continuing(stopping.remove(position)),
            None => beginning(spec, &stopping, history),
        };
        steps.start.push(Start { spec: spec.clone(), from });
    }
    steps
}

/// What a unit begins with that fetches what this one fetched.
fn continuing(old: &RunningSpec) -> From {
    match old.first {
        First::Initial { late } => From::Nothing { late },
        First::Compared(cause) => From::Compare { with: vec![old.id], cause },
        First::Done => From::Continue(old.id),
    }
}

/// What a unit begins with that has no predecessor of its own. A unit of another entry is another unit: what it showed
/// leaves there, and comes here.
fn beginning(spec: &UnitSpec, stopping: &[&RunningSpec], history: History) -> From {
    let overlaps = |unit: &&&RunningSpec| unit.spec.entry == spec.entry && unit.spec.may_overlap(spec);
    let with: Vec<&RunningSpec> = stopping.iter().filter(overlaps).copied().collect();
    let is_initial = |unit: &&RunningSpec| matches!(unit.first, First::Initial { .. });
    if !with.is_empty() && with.iter().all(is_initial) || with.is_empty() && !history.is_change() {
        return From::Nothing { late: history.late };
    }
    let cause = if history.occasion == Occasion::Reload { Cause::Reload } else { Cause::Relist };
    From::Compare { with: with.iter().map(|unit| unit.id).collect(), cause }
}

impl History {
    /// Returns whether objects of a unit that was not there before are news.
    fn is_change(self) -> bool {
        self.settled || self.occasion == Occasion::Reload
    }
}

fn fate(unit: &RunningSpec, occasion: Occasion) -> Fate {
    match occasion {
        _ if unit.gone => Fate::Deleted(Cause::Relist),
        Occasion::Reload => Fate::Removed(Cause::Reload),
        _ => Fate::Removed(Cause::Watch),
    }
}

/// Objects by the unit that cached them.
pub type Cached<T> = Vec<(UnitId, Vec<T>)>;

/// Deals the cached objects of stopped units out: one list of seeds a start, in their order, and what is retired, by
/// the unit that cached it. `namespace` says where an object is.
///
/// Where several starts show an object, the first takes it; where several old units cached it, the later one's state
/// is taken.
pub fn distribute<T>(cached: Cached<T>, starts: &[Start], namespace: impl Fn(&T) -> &str) -> (Vec<Vec<T>>, Cached<T>) {
    let mut seeds: Vec<Vec<T>> = starts.iter().map(|_| Vec::new()).collect();
    let mut retired = Vec::new();
    for (unit, objects) in cached {
        let heirs: Vec<usize> = (0..starts.len()).filter(|start| starts[*start].from.takes(unit)).collect();
        let mut left = Vec::new();
        for object in objects {
            let heir = heirs.iter().find(|start| starts[**start].spec.covers(namespace(&object)));
            match heir {
                Some(start) => seeds[*start].push(object),
                None => left.push(object),
            }
        }
        retired.push((unit, left));
    }
    (seeds, retired)
}

impl From {
    /// Returns whether objects of this unit are looked at.
    pub fn takes(&self, unit: UnitId) -> bool {
        match self {
            Self::Nothing { .. } => false,
            Self::Continue(old) => *old == unit,
            Self::Compare { with, .. } => with.contains(&unit),
        }
    }
}

#[cfg(test)]
mod tests;
