//! Timeline of the journal: the position of each version of a unit, and of each time.
//!
//! A [`Step`] is one append of a unit: its positions, the version that the unit has reached with it, and its time. [`Timeline`]
//! holds the newest steps in memory. With a store, all steps since the oldest kept record are in [`TimelinePage`]s on disk. A
//! [`Floor`] is the state directly before the first step of either.
//!
//! Versions of a unit only grow, until etcd is restored from a backup. Then a new [`Epoch`] of the unit begins. Positions stay
//! comparable across epochs; versions do not.
//!
//! All answers err on the side of more records: a position that is too early repeats records, one that is too late would lose
//! them.

mod floor;
#[cfg(test)]
mod model_tests;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    num::NonZeroU64,
};

pub(crate) use self::floor::{Floor, Known};
use super::{Sequence, UnitId};

/// Number of steps in memory.
const WINDOW_STEPS: usize = if cfg!(test) { 12 } else { 16_384 };
/// Number of steps per page. The last page is written again until it has so many.
const PAGE_STEPS: usize = if cfg!(test) { 4 } else { 1_024 };

/// Number of a unit's epoch. It grows by one whenever the versions of the unit go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u32);

/// A version that a unit has reached: its cache and the journal hold all changes up to it. Later epochs are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitVersion {
    /// Epoch of the version.
    pub epoch: Epoch,
    /// The version. Units whose server has other versions than decimal numbers have no `UnitVersion`.
    pub version: NonZeroU64,
}

/// Reason why a version has no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfReach {
    /// Changes after this version are no longer kept, or the unit began later.
    #[error("changes after this version are no longer kept")]
    Compacted,
    /// The version belongs to another epoch: the server's versions went back since then.
    #[error("the version is of an earlier epoch: the server's versions went back")]
    OtherEpoch,
    /// The unit has not reached the version yet.
    #[error("the version is not reached yet")]
    Future,
}

/// An append that is now visible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub(crate) unit: UnitId,
    pub(crate) first: Sequence,
    pub(crate) last: Sequence,
    /// Set if an object was changed; not for a resync.
    pub(crate) has_changes: bool,
    /// Version that the unit has reached with it.
    pub(crate) version: Option<NonZeroU64>,
    pub(crate) micros: i64,
}

/// One append of a unit. It may have no records; `last` is then below `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) unit: UnitId,
    pub(crate) first: Sequence,
    pub(crate) last: Sequence,
    pub(crate) progress: UnitProgress,
    /// Time of the append, in microseconds since the Unix epoch; never before the time of an earlier step.
    pub(crate) micros: i64,
}

/// Progress of a unit with an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitProgress {
    /// The append has no change, as a resync.
    Nothing,
    /// The append has changes, but the unit has reached no later version: the append is a part of a list, or its changes come in
    /// another order than their versions.
    Partial,
    /// The unit has reached a later version.
    Reached(UnitVersion),
    /// Several appends whose steps a crash has lost. With one of them the unit has reached the version; changes after this version may
    /// follow.
    Lost(UnitVersion),
}

/// Steps of a part of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimelinePage {
    pub(crate) floor: Floor,
    pub(crate) steps: Vec<Step>,
}

/// Records after the last step that was saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimelineTail {
    /// Units that appended them.
    units: BTreeSet<UnitId>,
    /// Newest time of these records, in microseconds since the Unix epoch.
    micros: i64,
}

impl TimelineTail {
    /// Adds a record.
    pub(crate) fn add(&mut self, unit: UnitId, micros: i64) {
        self.units.insert(unit);
        self.micros = micros.max(self.micros);
    }
}

/// The newest steps of a journal, and where each unit is.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    floor: Floor,
    steps: VecDeque<Step>,
    /// Version of each unit, also those reached without a change.
    latest: HashMap<UnitId, UnitVersion>,
    /// Units whose last step with changes is [partial](UnitProgress::Partial).
    partial: HashSet<UnitId>,
    /// Position at which an epoch of a unit last began.
    epoch_at: Option<Sequence>,
    /// With a store: the page that is written next.
    page: Option<OpenPage>,
}

/// Last page, which is written again with each further step.
#[derive(Debug, Default)]
struct OpenPage {
    floor: Floor,
    /// Last position that is on disk.
    saved: Sequence,
}

impl Timeline {
    /// Returns the timeline of a journal with a store, as the last run left it. `last` is the last record. `units` are the versions that
    /// the units have reached.
    pub(crate) fn restored(
        page: &TimelinePage,
        tail: &TimelineTail,
        units: impl Iterator<Item = (UnitId, Option<NonZeroU64>)>,
        last: Sequence,
    ) -> Self {
        // An unclean end may have lost the last records.
        let steps = page.steps.iter().filter(|step| step.last <= last).copied().collect();
        let page = TimelinePage { floor: page.floor.clone(), steps };
        let end = page.end();
        let mut timeline = Self {
            floor: page.floor,
            steps: page.steps.into(),
            latest: end.versions().collect(),
            partial: end.partial().collect(),
            ..Self::default()
        };
        let (first, micros) = (Sequence(end.position.0 + 1), tail.micros);
        for (unit, version) in units {
            let (reached, is_known) = (timeline.advance(unit, version), end.version(unit).is_some());
            if tail.units.contains(&unit) {
                // A unit that was partial stays so: it may have reached this version before its last changes. Changes of an unknown
                // unit may be removed.
                let was_partial = !timeline.partial.insert(unit);
                let progress = reached.filter(|_| !was_partial).map_or(UnitProgress::Partial, UnitProgress::Lost);
                let first = if is_known { first } else { Sequence(1) };
                let micros = micros.max(timeline.micros());
                timeline.steps.push_back(Step { unit, first, last, progress, micros });
            } else if let Some(version) = reached.filter(|_| !is_known) {
                timeline.partial.insert(unit);
                timeline.floor.know_vaguely(unit, version);
            }
        }
        timeline.page = Some(OpenPage { floor: timeline.floor.clone(), saved: end.position });
        timeline
    }

    /// Adds an append.
    pub(crate) fn note(&mut self, append: &Appended) {
        let Appended { unit, first, last, has_changes, version, micros } = *append;
        let progress = match self.advance(unit, version) {
            Some(reached) if self.partial.remove(&unit) || has_changes => UnitProgress::Reached(reached),
            None if has_changes => {
                self.partial.insert(unit);
                UnitProgress::Partial
            }
            _ => UnitProgress::Nothing,
        };
        // A clock may be set back: times then stand still until it has caught up.
        let micros = micros.max(self.micros());
        self.steps.push_back(Step { unit, first, last, progress, micros });
        let kept = self.page.as_ref().map_or(Sequence(u64::MAX), |page| page.floor.position);
        while self.steps.len() > WINDOW_STEPS
            && let Some(step) = self.steps.pop_front_if(|step| step.last <= kept)
        {
            self.floor.absorb(&step);
        }
    }

    /// Notes that a unit has reached a version without a change. This adds a step without records if only that step tells what
    /// follows: for the first version of a unit, whose list was empty, and after a partial step.
    pub(crate) fn reach(&mut self, unit: UnitId, version: Option<NonZeroU64>) {
        let is_first = self.latest(unit).is_none();
        if let Some(reached) = self.advance(unit, version)
            && (self.partial.remove(&unit) || is_first)
        {
            let (last, micros) = (self.position(), self.micros());
            let (first, progress) = (Sequence(last.0 + 1), UnitProgress::Reached(reached));
            let step = Step { unit, first, last, progress, micros };
            // A page has the steps that end behind its floor.
            if let Some(page) = self.page.as_mut().filter(|page| page.floor.position == last) {
                page.floor.absorb(&step);
            }
            self.steps.push_back(step);
        }
    }

    /// Advances a unit to a version. Returns the version with its epoch, if it is later than the last one: a lower number begins an
    /// epoch.
    fn advance(&mut self, unit: UnitId, version: Option<NonZeroU64>) -> Option<UnitVersion> {
        let (version, latest) = (version?, self.latest(unit));
        let begins_epoch = latest.is_some_and(|latest| version < latest.version);
        if begins_epoch {
            self.epoch_at = Some(self.position());
        }
        let epoch = Epoch(latest.map_or(0, |latest| latest.epoch.0) + u32::from(begins_epoch));
        let reached = UnitVersion { epoch, version };
        self.latest.insert(unit, reached);
        Some(reached).filter(|_| latest.is_none_or(|latest| reached > latest))
    }

    fn position(&self) -> Sequence {
        self.steps.back().map_or(self.floor.position, |step| step.last)
    }

    fn micros(&self) -> i64 {
        self.steps.back().map_or(self.floor.micros, |step| step.micros)
    }

    pub(crate) fn forget_unit(&mut self, unit: UnitId) {
        self.latest.remove(&unit);
        self.partial.remove(&unit);
        self.floor.forget(unit);
        if let Some(page) = &mut self.page {
            page.floor.forget(unit);
        }
    }

    /// Returns the version that a unit has reached.
    pub(crate) fn latest(&self, unit: UnitId) -> Option<UnitVersion> {
        self.latest.get(&unit).copied()
    }

    /// Returns the position behind which all changes of a unit after `version` are, or why there is none. Returns `Ok(None)` if the
    /// steps in memory begin later, and `end` if there are no such changes.
    pub(crate) fn after(
        &self,
        unit: UnitId,
        version: UnitVersion,
        end: Sequence,
    ) -> Result<Option<Sequence>, OutOfReach> {
        let latest = self.latest(unit).ok_or(OutOfReach::Compacted)?;
        if latest.epoch != version.epoch {
            return Err(if version.epoch < latest.epoch { OutOfReach::OtherEpoch } else { OutOfReach::Future });
        }
        if version > latest {
            return Err(OutOfReach::Future);
        }
        Ok(after(&self.floor, &self.steps, unit, version, end))
    }

    /// Returns true if the steps in memory begin at or before a position.
    pub(crate) fn begins_by(&self, position: Sequence) -> bool {
        self.floor.position <= position
    }

    /// Returns the version that a unit had reached at a position: all changes up to it are at or before the position. The steps in
    /// memory must [begin](Self::begins_by) by the position.
    pub(crate) fn at(&self, unit: UnitId, position: Sequence) -> Option<UnitVersion> {
        at(&self.floor, &self.steps, unit, position)
    }

    /// Returns the position directly before the first record at or after a time, or `end` if there is no such record. `None` if the
    /// steps in memory begin later.
    pub(crate) fn before(&self, micros: i64, end: Sequence) -> Option<Sequence> {
        let begins_before = self.floor.micros < micros || self.floor.position == Sequence(0);
        begins_before.then(|| before(&self.steps, micros).unwrap_or(end))
    }

    /// Returns the pages that are not on disk. The last one is still incomplete. Nothing without a store.
    pub(crate) fn to_save(&self) -> Vec<TimelinePage> {
        let Some(page) = self.page.as_ref().filter(|_| self.is_unsaved()) else { return Vec::new() };
        let from = self.steps.partition_point(|step| step.last <= page.floor.position);
        let mut pages = vec![TimelinePage { floor: page.floor.clone(), steps: Vec::new() }];
        let mut end = page.floor.clone();
        for step in self.steps.range(from..) {
            // A page has all steps that end at the same position, so that pages begin at different ones.
            if pages.last().is_some_and(|page| page.steps.len() >= PAGE_STEPS) && step.last > end.position {
                pages.push(TimelinePage { floor: end.clone(), steps: Vec::new() });
            }
            end.absorb(step);
            pages.last_mut().expect("it has a first one").steps.push(*step);
        }
        pages
    }

    /// Returns true if steps are not on disk; always false without a store.
    pub(crate) fn is_unsaved(&self) -> bool {
        let newest = self.steps.back();
        self.page.as_ref().is_some_and(|page| newest.is_some_and(|step| step.last > page.saved))
    }

    /// Notes that these pages are on disk.
    pub(crate) fn saved(&mut self, pages: &[TimelinePage]) {
        let (Some(open), Some(last)) = (&mut self.page, pages.last()) else { return };
        (open.floor, open.saved) = (last.floor.clone(), last.last());
        let latest = &self.latest;
        open.floor.retain(|unit| latest.contains_key(&unit)); // a unit may have been forgotten since `to_save`
    }

    /// Returns true if a step that begins an epoch is not on disk. Until it is, a crash could hide that versions went back.
    pub(crate) fn is_urgent(&self) -> bool {
        let is_saved = |page: &OpenPage| self.epoch_at.is_none_or(|position| position < page.saved);
        self.is_unsaved() && self.page.as_ref().is_some_and(|page| !is_saved(page))
    }
}

impl TimelinePage {
    /// Returns the page of a state without a timeline. `first` is the first record that is kept, and `micros` its time.
    pub(crate) fn beginning(first: Sequence, micros: i64) -> Self {
        Self { floor: Floor::at(Sequence(first.0 - 1), micros - 1), steps: Vec::new() }
    }

    /// Returns the last position.
    pub(crate) fn last(&self) -> Sequence {
        self.steps.last().map_or(self.floor.position, |step| step.last)
    }

    /// Returns the state after the last step.
    fn end(&self) -> Floor {
        let mut end = self.floor.clone();
        self.steps.iter().for_each(|step| end.absorb(step));
        end
    }

    /// Does the same as [`Timeline::after`] in this page, for a version of the unit's epoch. `None` if the page begins later.
    pub(crate) fn after(&self, unit: UnitId, version: UnitVersion) -> Option<Sequence> {
        after(&self.floor, &self.steps, unit, version, self.last())
    }

    /// Returns the version that a unit had reached at a position in this page; see [`Timeline::at`].
    pub(crate) fn at(&self, unit: UnitId, position: Sequence) -> Option<UnitVersion> {
        at(&self.floor, &self.steps, unit, position)
    }

    /// Returns the position directly before the first record at or after a time, or else the last position of the page.
    pub(crate) fn before(&self, micros: i64) -> Sequence {
        before(&self.steps, micros).unwrap_or(self.last())
    }
}

/// Returns the position behind which all changes of a unit after `version` are, or `end` if these steps have none. `None` if there may
/// be some before these steps.
fn after<'a>(
    floor: &Floor,
    steps: impl IntoIterator<Item = &'a Step>,
    unit: UnitId,
    version: UnitVersion,
    end: Sequence,
) -> Option<Sequence> {
    let mut known = floor.known(unit).filter(|known| known.version <= version);
    let mut next = end;
    for step in steps.into_iter().filter(|step| step.unit == unit) {
        if step.reached().is_some_and(|reached| reached > version) {
            next = step.before();
            break;
        }
        Known::absorb(&mut known, step);
    }
    let known = known.filter(|known| known.version.epoch == version.epoch)?;
    Some(known.followed.unwrap_or(next))
}

fn at<'a>(
    floor: &Floor,
    steps: impl IntoIterator<Item = &'a Step, IntoIter: DoubleEndedIterator>,
    unit: UnitId,
    position: Sequence,
) -> Option<UnitVersion> {
    let earlier = steps.into_iter().rev().skip_while(|step| step.last > position);
    earlier.filter(|step| step.unit == unit).find_map(Step::reached).or_else(|| floor.version(unit))
}

fn before<'a>(steps: impl IntoIterator<Item = &'a Step>, micros: i64) -> Option<Sequence> {
    steps.into_iter().find(|step| step.micros >= micros).map(Step::before)
}

impl Step {
    fn reached(&self) -> Option<UnitVersion> {
        match self.progress {
            UnitProgress::Reached(version) | UnitProgress::Lost(version) => Some(version),
            UnitProgress::Nothing | UnitProgress::Partial => None,
        }
    }

    fn before(&self) -> Sequence {
        Sequence(self.first.0 - 1)
    }
}

/// Returns a resource version as a number; `None` if it is none.
pub(crate) fn number(resource_version: &str) -> Option<NonZeroU64> {
    resource_version.parse().ok()
}
