//! From the units that run to those that shall: what to keep, what to stop, what to start and with which objects.
//!
//! A unit is never changed, it is replaced: the new one begins with the cached objects of the old ones of its type and
//! entry that it shows too; where it has none there, of those of another entry, which the type has left by a reload. What
//! no new unit shows is retired: its readers are told that it left.
//!
//! **Invariant:** every object cached by a unit that stops is seeded into one new unit or retired, exactly once; see
//! [`distribute`].

use super::plan::{SpecDifference, UnitSpec};
use crate::{change::Cause, config::Cache, journal::UnitId};

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
pub struct UnitStart {
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
    pub start: Vec<UnitStart>,
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
    stopping.retain(|unit| !unit.gone);
    for spec in wanted {
        let continued = |unit: &&RunningSpec| unit.spec.difference(spec) <= SpecDifference::Keeping;
        let from = match stopping.iter().position(continued) {
            Some(position) => continuing(stopping.remove(position)),
            None => beginning(spec, &stopping, history),
        };
        steps.start.push(UnitStart { spec: spec.clone(), from });
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

/// What a unit begins with that has no predecessor of its own.
fn beginning(spec: &UnitSpec, stopping: &[&RunningSpec], history: History) -> From {
    let overlaps = |unit: &&RunningSpec| unit.spec.may_overlap(spec);
    let (own, others): (Vec<&RunningSpec>, Vec<&RunningSpec>) =
        stopping.iter().copied().filter(overlaps).partition(|unit| unit.spec.entry == spec.entry);
    let with = if own.is_empty() { left_behind(spec, others, history) } else { own };
    if !with.is_empty() && with.iter().all(|unit| unit.is_initial()) || with.is_empty() && !history.is_change() {
        return From::Nothing { late: history.late };
    }
    let cause = match history.occasion {
        Occasion::Reload => Cause::Reload,
        Occasion::Start => Cause::Downtime,
        _ => Cause::Relist,
    };
    From::Compare { with: with.iter().map(|unit| unit.id).collect(), cause }
}

/// Returns the units of another entry that a type has left to come to the one of `spec`, if it is one entry. Readers that
/// took both are told what differs. Those that did not are introduced to the new unit, which has to have bodies to show.
fn left_behind<'a>(spec: &UnitSpec, others: Vec<&'a RunningSpec>, history: History) -> Vec<&'a RunningSpec> {
    let others: Vec<_> = others.into_iter().filter(|unit| !unit.is_initial()).collect();
    let is_one_entry = others.windows(2).all(|pair| pair[0].spec.entry == pair[1].spec.entry);
    let moves = history.occasion == Occasion::Reload && spec.options.cache == Cache::Full;
    if is_one_entry && moves { others } else { Vec::new() }
}

impl RunningSpec {
    fn is_initial(&self) -> bool {
        matches!(self.first, First::Initial { .. })
    }
}

impl History {
    /// Returns whether objects of a unit that was not there before are news.
    fn is_change(self) -> bool {
        self.settled || self.occasion == Occasion::Reload
    }
}

fn fate(unit: &RunningSpec, occasion: Occasion) -> Fate {
    match occasion {
        Occasion::Start if unit.gone => Fate::Deleted(Cause::Downtime),
        _ if unit.gone => Fate::Deleted(Cause::Relist),
        // while nobody looked, the configuration may have changed
        Occasion::Reload | Occasion::Start => Fate::Removed(Cause::Reload),
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
pub fn distribute<T>(
    cached: Cached<T>,
    starts: &[UnitStart],
    namespace: impl Fn(&T) -> &str,
) -> (Vec<Vec<T>>, Cached<T>) {
    let mut seeds: Vec<Vec<T>> = starts.iter().map(|_| Vec::new()).collect();
    let mut retired = Vec::new();
    for (unit, objects) in cached {
        let mut left = Vec::new();
        for object in objects {
            match heir(starts, unit, namespace(&object)) {
                Some(start) => seeds[start].push(object),
                None => left.push(object),
            }
        }
        retired.push((unit, left));
    }
    (seeds, retired)
}

/// Returns which of `starts` takes the objects that a unit has cached in a namespace.
pub fn heir(starts: &[UnitStart], unit: UnitId, namespace: &str) -> Option<usize> {
    starts.iter().position(|start| start.from.takes(unit) && start.spec.covers(namespace))
}

impl From {
    /// Returns the units whose objects are looked at.
    pub fn units(&self) -> &[UnitId] {
        match self {
            Self::Nothing { .. } => &[],
            Self::Continue(old) => std::slice::from_ref(old),
            Self::Compare { with, .. } => with,
        }
    }

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
