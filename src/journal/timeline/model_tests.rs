//! Compares the timeline with a list of all appends: random appends, clock steps, epochs, saves, crashes and removals.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

const UNITS: u32 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// Appends changes. With `is_partial`, the unit does not reach their version yet.
    Append {
        unit: u32,
        versions: u64,
        records: u64,
        is_partial: bool,
    },
    Bookmark {
        unit: u32,
        versions: u64,
    },
    /// The server is restored from a backup: the next append of a unit has a lower version.
    Restore {
        unit: u32,
    },
    Clock {
        by: i64,
    },
    Save,
    Crash {
        written: bool,
    },
    Remove {
        part: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..UNITS, 0..4_u64, 1..4_u64, prop::bool::weighted(0.2))
            .prop_map(|(unit, versions, records, is_partial)| Op::Append { unit, versions, records, is_partial }),
        1 => (0..UNITS, 1..4_u64).prop_map(|(unit, versions)| Op::Bookmark { unit, versions }),
        1 => (0..UNITS).prop_map(|unit| Op::Restore { unit }),
        2 => (-20..40_i64).prop_map(|by| Op::Clock { by }),
        2 => Just(Op::Save),
        1 => any::<bool>().prop_map(|written| Op::Crash { written }),
        1 => any::<u8>().prop_map(|part| Op::Remove { part }),
    ]
}

/// One append, as it was.
struct Appended {
    unit: UnitId,
    first: u64,
    last: u64,
    /// Version that the unit has reached with it.
    reached: Option<UnitVersion>,
    /// Newest version of its changes.
    newest: UnitVersion,
    micros: i64,
    /// Set if a crash hid the step: only its unit is known.
    is_hidden: bool,
}

struct Run {
    timeline: Timeline,
    pages: BTreeMap<Sequence, TimelinePage>,
    appended: Vec<Appended>,
    /// For each unit: the version reached, and the newest one of its changes.
    units: BTreeMap<UnitId, (Option<UnitVersion>, u64)>,
    last: u64,
    kept_from: u64,
    clock: i64,
}

#[derive(Debug, Default)]
struct Hits {
    in_memory: usize,
    on_disk: usize,
    compacted: usize,
    other_epoch: usize,
    future: usize,
    hidden: usize,
}

impl Run {
    fn new() -> Self {
        let timeline =
            Timeline::restored(&TimelinePage::default(), &TimelineTail::default(), std::iter::empty(), Sequence(0));
        let (pages, appended, units) = Default::default();
        Self { timeline, pages, appended, units, last: 0, kept_from: 1, clock: 1_000 }
    }

    fn apply(&mut self, op: &Op, hits: &mut Hits) {
        match *op {
            Op::Append { unit, versions, records, is_partial } => {
                self.append(UnitId(unit), versions, records, is_partial);
            }
            Op::Bookmark { unit, versions } => {
                let unit = UnitId(unit);
                let (reached, newest) = self.units.entry(unit).or_insert((None, 0));
                *newest = (*newest + versions).max(1);
                let version = NonZeroU64::new(*newest).unwrap();
                let at = UnitVersion { epoch: reached.map_or(Epoch(0), |reached| reached.epoch), version };
                if reached.replace(at).is_none() {
                    // An empty first list: the version is known, and nothing of the unit is before it.
                    let (first, last, micros) = (self.last + 1, self.last, self.clock);
                    self.appended.push(Appended {
                        unit,
                        first,
                        last,
                        reached: Some(at),
                        newest: at,
                        micros,
                        is_hidden: false,
                    });
                }
                self.timeline.reach(unit, Some(version));
            }
            Op::Restore { unit } => {
                if let Some((Some(reached), newest)) = self.units.get_mut(&UnitId(unit))
                    && let Some(lower) = NonZeroU64::new(reached.version.get() / 3)
                {
                    *reached = UnitVersion { epoch: Epoch(reached.epoch.0 + 1), version: lower };
                    *newest = lower.get();
                    // The list that shows the older state is an append.
                    self.append(UnitId(unit), 1, 1, false);
                    assert!(self.timeline.is_urgent());
                    self.apply(&Op::Save, hits);
                }
            }
            Op::Clock { by } => self.clock += by,
            Op::Save => {
                let pages = self.timeline.to_save();
                self.write(&pages);
                self.timeline.saved(&pages);
            }
            Op::Crash { written } => self.crash(written, hits),
            Op::Remove { part } => {
                self.kept_from += (self.last + 1 - self.kept_from) * u64::from(part) / 512;
                let before = Sequence(self.kept_from);
                let kept = self.pages.range(..before).next_back().map(|(position, _)| *position);
                self.pages.retain(|position, _| kept.is_none_or(|kept| *position >= kept));
            }
        }
    }

    fn append(&mut self, unit: UnitId, versions: u64, records: u64, is_partial: bool) {
        let (reached, newest) = self.units.entry(unit).or_insert((None, 0));
        let epoch = reached.map_or(Epoch(0), |reached| reached.epoch);
        let has_changes = versions > 0 || reached.is_none();
        let is_partial = is_partial && has_changes;
        *newest = (*newest + versions).max(1);
        let at = UnitVersion { epoch, version: NonZeroU64::new(*newest).unwrap() };
        if !is_partial {
            *reached = Some(at);
        }
        let reached = *reached;
        let (first, last) = (self.last + 1, self.last + records);
        self.last = last;
        self.clock += 1;
        let version = reached.map(|reached| reached.version);
        let micros = self.clock;
        let (first_at, last_at) = (Sequence(first), Sequence(last));
        self.timeline.note(&super::Appended { unit, first: first_at, last: last_at, has_changes, version, micros });
        let none = UnitVersion { epoch: Epoch(0), version: NonZeroU64::MIN };
        let at = if has_changes { at } else { none };
        let reached = reached.filter(|_| has_changes && !is_partial);
        self.appended.push(Appended { unit, first, last, reached, newest: at, micros, is_hidden: false });
    }

    fn crash(&mut self, written: bool, hits: &mut Hits) {
        if written {
            let pages = self.timeline.to_save();
            self.write(&pages);
        }
        let page = self.pages.last_key_value().map(|(_, page)| page.clone());
        let oldest =
            self.appended.iter().find(|append| append.last >= self.kept_from).map_or(0, |append| append.micros);
        let page = page.unwrap_or_else(|| TimelinePage::beginning(Sequence(self.kept_from), oldest));
        let known = page.last().0;
        let has_none = self.pages.is_empty();
        for append in self
            .appended
            .iter_mut()
            .filter(|append| has_none || append.last.max(append.first - 1) > known || append.first > append.last)
        {
            append.is_hidden = true;
            hits.hidden += 1;
        }
        let units = self.units.iter().map(|(unit, (reached, _))| (*unit, reached.map(|reached| reached.version)));
        let mut tail = TimelineTail::default();
        for append in self.appended.iter().filter(|append| append.last > known) {
            tail.add(append.unit, append.micros);
        }
        self.timeline = Timeline::restored(&page, &tail, units, Sequence(self.last));
    }

    fn write(&mut self, pages: &[TimelinePage]) {
        self.pages.extend(pages.iter().map(|page| (page.floor.position, page.clone())));
    }

    fn find(&self, is_before: &dyn Fn(&Floor) -> bool) -> Option<&TimelinePage> {
        self.pages.values().rev().find(|page| is_before(&page.floor))
    }

    /// As in `Journal::after`.
    fn after(&self, unit: UnitId, version: UnitVersion, hits: &mut Hits) -> Result<u64, OutOfReach> {
        let recent = self.timeline.after(unit, version, Sequence(self.last))?;
        let position = recent.or_else(|| {
            let page = self.find(&|floor| floor.precedes(unit, version))?;
            page.after(unit, version)
        });
        *(if recent.is_some() { &mut hits.in_memory } else { &mut hits.on_disk }) += 1;
        position
            .map(|position| position.0)
            .filter(|position| position + 1 >= self.kept_from)
            .ok_or(OutOfReach::Compacted)
    }

    fn check(&self, hits: &mut Hits) {
        for unit in (0..UNITS).map(UnitId) {
            let Some((Some(reached), _)) = self.units.get(&unit) else { continue };
            for version in 1..=reached.version.get() + 1 {
                let version = UnitVersion { epoch: reached.epoch, version: NonZeroU64::new(version).unwrap() };
                self.check_after(unit, version, hits);
            }
            if let Some(earlier) = reached.epoch.0.checked_sub(1) {
                let version = UnitVersion { epoch: Epoch(earlier), version: reached.version };
                assert_eq!(self.after(unit, version, hits), Err(OutOfReach::OtherEpoch));
                hits.other_epoch += 1;
            }
        }
        for position in self.kept_from - 1..=self.last {
            self.check_at(position);
        }
        for append in &self.appended {
            self.check_before(append.micros);
        }
    }

    fn check_after(&self, unit: UnitId, version: UnitVersion, hits: &mut Hits) {
        let of_unit = || self.appended.iter().filter(|append| append.unit == unit);
        let later = of_unit().find(|append| append.newest > version);
        // The timeline knows the version if an append, or a bookmark, has reached it, or a lower one in the same epoch.
        let known = of_unit().filter(|append| {
            append.reached.is_some_and(|reached| reached <= version && reached.epoch == version.epoch)
        });
        let is_known = known.clone().next().is_some();
        let (reached, _) = self.units[&unit];
        match self.after(unit, version, hits) {
            Ok(position) => {
                if let Some(later) = later {
                    assert!(position < later.first, "after {version:?} of {unit:?}: {position} loses {}", later.first);
                }
                // It repeats nothing that was reached with this version or an earlier one, but what a crash hid or came out of order.
                let exact = known.clone().rfind(|append| append.reached == Some(version) && append.newest <= version);
                if let Some(exact) = exact {
                    let first = known.clone().find(|append| append.reached == exact.reached).unwrap();
                    assert!(
                        position >= first.last || first.is_hidden,
                        "after {version:?} of {unit:?}: {position} repeats {}",
                        first.last
                    );
                }
            }
            Err(OutOfReach::Future) => {
                assert!(version > reached.unwrap());
                hits.future += 1;
            }
            Err(OutOfReach::OtherEpoch) => panic!("it is this epoch"),
            Err(OutOfReach::Compacted) => {
                hits.compacted += 1;
                let oldest = self.kept_from.max(self.pages.first_key_value().map_or(0, |(position, _)| position.0 + 1));
                // Partial appends after the known version may have later changes.
                let known_until = known.map(|append| append.last).max().unwrap_or_default();
                let next =
                    of_unit().find(|append| append.first > known_until && append.newest.version > NonZeroU64::MIN);
                let begins = next.map_or(self.last + 1, |next| next.first);
                let is_hidden = of_unit().any(|append| append.is_hidden);
                assert!(
                    !is_known || begins <= oldest || is_hidden,
                    "{version:?} of {unit:?} is kept: {begins} > {oldest}"
                );
            }
        }
    }

    /// As in `Journal::at`.
    fn check_at(&self, position: u64) {
        for unit in (0..UNITS).map(UnitId) {
            let at = if self.timeline.begins_by(Sequence(position)) {
                self.timeline.at(unit, Sequence(position))
            } else {
                self.find(&|floor| floor.position.0 <= position).and_then(|page| page.at(unit, Sequence(position)))
            };
            let Some(version) = at else { continue };
            let of_unit = || self.appended.iter().filter(|append| append.unit == unit);
            // Appends up to the version are at or before the position, but those of other epochs.
            for append in of_unit().filter(|append| append.reached.is_some_and(|reached| reached <= version)) {
                let is_repeated = append.newest > version || append.reached == Some(version);
                let is_empty = append.first > append.last;
                assert!(
                    append.last <= position || is_repeated || is_empty,
                    "{version:?} at {position} hides {}",
                    append.last
                );
            }
            let reached = of_unit().filter(|append| append.last <= position && !append.is_hidden);
            assert!(
                reached.filter_map(|append| append.reached).max() <= Some(version),
                "more than {version:?} at {position}"
            );
        }
    }

    /// As in `Journal::before`.
    fn check_before(&self, micros: i64) {
        let position = self
            .timeline
            .before(micros, Sequence(self.last))
            .or_else(|| self.find(&|floor| floor.micros < micros).map(|page| page.before(micros)));
        let position = position.map_or(0, |position| position.0);
        let records = || self.appended.iter().filter(|append| append.first <= append.last);
        let mut kept = records().filter(|append| append.last >= self.kept_from);
        let first = kept.find(|append| append.micros >= micros).map(|append| append.first.max(self.kept_from));
        if let Some(first) = first {
            assert!(position < first, "before {micros}: {position} loses {first}");
        }
        if self.kept_from == 1 && self.pages.len() > 1 {
            // Up to the position, no time is at or after this one, unless the clock went back, or a crash hid it.
            let earlier = records().filter(|append| append.first > position && append.micros < micros);
            let mut newest = i64::MIN;
            let mut stands = false;
            for append in &self.appended {
                stands |= append.micros <= newest || append.is_hidden;
                newest = newest.max(append.micros);
            }
            assert!(stands || earlier.count() == 0, "before {micros}: {position} is too early");
        }
    }
}

#[test]
fn timeline_never_loses_a_change() {
    let hits = std::sync::Mutex::new(Hits::default());
    TestRunner::default()
        .run(&proptest::collection::vec(op(), 20..90), |ops| {
            let mut run = Run::new();
            let mut hits = crate::mutex::lock(&hits);
            for op in &ops {
                run.apply(op, &mut hits);
                run.check(&mut hits);
            }
            Ok(())
        })
        .unwrap();
    let Hits { in_memory, on_disk, compacted, other_epoch, future, hidden } = hits.into_inner().unwrap();
    for (what, times) in [
        ("in memory", in_memory),
        ("on disk", on_disk),
        ("compacted", compacted),
        ("other epoch", other_epoch),
        ("future", future),
        ("hidden by a crash", hidden),
    ] {
        assert!(times > 0, "never happened: {what}");
    }
}
