use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Content of a record in these tests: kind, uid and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    lane: u64,
    kind: ChangeKind,
    cause: Cause,
    uid: u64,
    version: u64,
    /// Previous version, for an update.
    old: Option<u64>,
    old_uid: u64,
}

impl Said {
    fn row(self, position: u64, last: u64) -> Row {
        let cause = Some(self.cause);
        let tail = Tail {
            position,
            last,
            uid: self.uid,
            state: self.uid << 32 | self.version,
            kind: self.kind,
            keeps_its_place: keeps_its_place(self.kind, cause, false),
            recreated: self.kind == ChangeKind::Updated && self.old_uid != self.uid,
        };
        Row { lane: [self.lane, 7], cause, tail }
    }

    fn brief(self) -> String {
        let old = self.old.map_or(String::new(), |old| format!("<{old}"));
        format!("{}{}/{}{old}", self.kind.as_str(), self.uid, self.version)
    }
}

/// Waiting records: position → content, position of its object, and whether it was coalesced before.
#[derive(Debug, Default)]
struct Waiting {
    records: BTreeMap<u64, (Said, u64)>,
    merged: BTreeSet<u64>,
    shown: u64,
}

impl Waiting {
    fn of(said: &[Said]) -> Self {
        Self { records: (1..).zip(said.iter().map(|said| (*said, 0))).collect(), ..Self::default() }
    }

    /// Takes one step over the oldest `count` records that were not coalesced yet.
    fn step(&mut self, lanes: &mut Lanes, count: usize, in_memory: &BTreeSet<u64>) {
        let positions: Vec<u64> =
            self.records.keys().copied().filter(|position| !self.merged.contains(position)).take(count).collect();
        let rows: Vec<Row> =
            positions.iter().map(|position| self.records[position].0.row(*position, *position)).collect();
        let may_merge = |position| self.records.contains_key(&position) && !in_memory.contains(&position);
        let plan = lanes.plan(&rows, may_merge, self.shown);
        let before = self.records.clone();
        for position in &plan.superseded {
            assert!(self.records.remove(&position).is_some(), "{position} is merged once");
            self.merged.remove(&position);
        }
        for (position, draft) in &plan.drafts {
            let (shape, object) = (before[&draft.shape].0, before[&draft.object].0);
            let old = before[&draft.old].0;
            let is_update = shape.kind == ChangeKind::Updated;
            let said = Said {
                uid: object.uid,
                version: object.version,
                old: old.old.filter(|_| is_update),
                old_uid: if is_update { old.old_uid } else { object.uid },
                ..shape
            };
            self.records.insert(*position, (said, draft.object.max(*position)));
            self.merged.insert(*position);
        }
        self.merged.extend(positions.into_iter().filter(|position| self.records.contains_key(position)));
    }

    /// Rebuilds the table from the coalesced records.
    fn scan(&self) -> Lanes {
        let mut lanes = Lanes::default();
        for position in &self.merged {
            let (said, last) = self.records[position];
            lanes.note(&said.row(*position, last.max(*position)));
        }
        lanes
    }

    fn brief(&self) -> Vec<String> {
        self.records.iter().map(|(position, (said, _))| format!("{position} {}", said.brief())).collect()
    }
}

const fn said(kind: ChangeKind, uid: u64, version: u64) -> Said {
    Said { lane: 1, kind, cause: Cause::Watch, uid, version, old: None, old_uid: uid }
}

const fn added(uid: u64, version: u64) -> Said {
    said(ChangeKind::Added, uid, version)
}

const fn initial(uid: u64, version: u64) -> Said {
    Said { cause: Cause::Initial, ..added(uid, version) }
}

const fn updated(uid: u64, old: u64, version: u64) -> Said {
    Said { old: Some(old), ..said(ChangeKind::Updated, uid, version) }
}

const fn recreated(old_uid: u64, uid: u64, old: u64, version: u64) -> Said {
    Said { old_uid, ..updated(uid, old, version) }
}

const fn deleted(uid: u64, version: u64) -> Said {
    said(ChangeKind::Deleted, uid, version)
}

const fn removed(uid: u64, version: u64) -> Said {
    said(ChangeKind::Removed, uid, version)
}

const fn unchanged(cause: Cause, uid: u64, version: u64) -> Said {
    Said { cause, ..said(ChangeKind::Unchanged, uid, version) }
}

const SYNCED: Said = Said { lane: 0, ..said(ChangeKind::Synced, 0, 0) };

#[track_caller]
fn check(records: &[Said], expected: &[&str]) {
    for steps in [records.len(), 1] {
        let mut waiting = Waiting::of(records);
        let mut lanes = Lanes::default();
        for _ in 0..records.len() / steps {
            waiting.step(&mut lanes, steps, &BTreeSet::new());
        }
        assert_eq!(waiting.brief(), expected, "in steps of {steps}");
    }
}

#[test]
fn queued_changes_merge_as_documented() {
    check(&[added(1, 1), updated(1, 1, 2)], &["2 added1/2"]);
    check(&[updated(1, 1, 2), updated(1, 2, 3)], &["2 updated1/3<1"]);
    check(&[updated(1, 1, 2), deleted(1, 3)], &["2 deleted1/3"]);
    check(&[updated(1, 1, 2), removed(1, 2)], &["2 removed1/2"]);
    check(&[unchanged(Cause::Relist, 1, 2), deleted(1, 3)], &["2 deleted1/3"]);
    check(&[updated(1, 1, 2), unchanged(Cause::Relist, 1, 2)], &["1 updated1/2<1"]);
    check(&[added(1, 2), unchanged(Cause::Relist, 1, 2)], &["1 added1/2"]);
    check(&[unchanged(Cause::Relist, 1, 2), unchanged(Cause::Relist, 1, 2)], &["2 updated1/2"]);
    check(&[unchanged(Cause::Relist, 1, 1), updated(1, 1, 2)], &["2 updated1/2<1"]);
}

#[test]
fn compaction_keeps_deletions_and_separates_uids() {
    check(&[added(1, 1), updated(1, 1, 2), deleted(1, 3)], &["2 added1/2", "3 deleted1/3"]);
    check(&[updated(1, 1, 2), added(2, 3)], &["1 updated1/2<1", "2 added2/3"]);
    check(&[deleted(1, 1), added(2, 2), deleted(2, 3)], &["1 deleted1/1", "2 added2/2", "3 deleted2/3"]);
    check(&[recreated(1, 2, 1, 3), deleted(2, 4)], &["1 updated2/3<1", "2 deleted2/4"]);
    check(&[recreated(1, 2, 1, 3), updated(2, 3, 4), deleted(2, 5)], &["2 updated2/4<1", "3 deleted2/5"]);
    check(&[updated(1, 1, 2), recreated(1, 2, 2, 3)], &["1 updated1/2<1", "2 updated2/3<2"]);
    let other = Said { lane: 2, ..updated(1, 1, 2) };
    check(&[updated(1, 1, 2), other, updated(1, 2, 3)], &["2 updated1/2<1", "3 updated1/3<1"]);
}

#[test]
fn flapping_object_compacts_to_one_record() {
    check(&[removed(1, 1), added(1, 1), removed(1, 1)], &["3 removed1/1"]);
    check(&[removed(1, 1), added(1, 1), updated(1, 1, 2), deleted(1, 3)], &["4 deleted1/3"]);
    check(&[deleted(1, 1), added(1, 1), removed(1, 1)], &["1 deleted1/1", "2 added1/1", "3 removed1/1"]);
    let in_and_out = [removed(1, 1), added(1, 1), removed(1, 1), added(1, 1), removed(1, 1)];
    check(&in_and_out, &["5 removed1/1"]);
}

/// Rule: S-8.
#[test]
fn initial_objects_stay_before_synced() {
    check(&[initial(1, 1), SYNCED, updated(1, 1, 2), updated(1, 2, 3)], &["1 added1/3", "2 synced0/0"]);
    check(&[added(1, 1), SYNCED, updated(1, 1, 2)], &["1 added1/2", "2 synced0/0"]);
    check(&[SYNCED, added(1, 1), updated(1, 1, 2)], &["1 synced0/0", "3 added1/2"]);
    check(&[SYNCED, SYNCED], &["1 synced0/0", "2 synced0/0"]);
}

#[test]
fn reload_keeps_the_body_it_shows() {
    let shown = |plan: &Plan| plan.drafts.iter().map(|(position, draft)| (*position, draft.object)).collect::<Vec<_>>();
    let rows = |cause| [updated(1, 1, 2).row(1, 1), unchanged(cause, 1, 2).row(2, 2)];
    let plan = Lanes::default().plan(&rows(Cause::Reload), |_| true, 0);
    assert_eq!(shown(&plan), [(1, 2)]);
    let plan = Lanes::default().plan(&rows(Cause::Relist), |_| true, 0);
    assert_eq!(shown(&plan), [(1, 1)]);
}

#[test]
fn possibly_delivered_records_are_not_merged() {
    let records = [added(1, 1), updated(1, 1, 2), updated(1, 2, 3), updated(1, 3, 4)];
    let mut waiting = Waiting::of(&records);
    waiting.step(&mut Lanes::default(), 4, &[2].into());
    assert_eq!(waiting.brief(), ["1 added1/1", "2 updated1/2<1", "4 updated1/4<2"]);
}

#[test]
fn possibly_added_object_is_not_added_again() {
    for begins in [added(1, 1), initial(1, 1)] {
        let records = [begins, updated(1, 1, 2), updated(1, 2, 3), added(2, 4)];
        let mut waiting = Waiting { shown: 2, ..Waiting::of(&records) };
        waiting.step(&mut Lanes::default(), 4, &BTreeSet::new());
        assert_eq!(waiting.brief(), ["1 added1/1", "3 updated1/3<1", "4 added2/4"]);
    }
    let records = [removed(1, 1), added(1, 1), removed(1, 1)];
    let mut waiting = Waiting { shown: 2, ..Waiting::of(&records) };
    waiting.step(&mut Lanes::default(), 3, &BTreeSet::new());
    assert_eq!(waiting.brief(), ["3 removed1/1"]);
}

#[test]
fn late_replay_does_not_restore_older_state() {
    let mut waiting = Waiting::of(&[initial(1, 1), updated(1, 1, 2), updated(1, 2, 3)]);
    let replayed = waiting.records.remove(&2).expect("it is there");
    waiting.step(&mut Lanes::default(), 3, &BTreeSet::new());
    assert_eq!(waiting.brief(), ["1 added1/3"]);
    waiting.records.insert(2, replayed);
    let mut lanes = waiting.scan();
    waiting.step(&mut lanes, 1, &BTreeSet::new());
    assert_eq!(waiting.brief(), ["1 added1/3", "2 updated1/2<1"]);
}

/// Returns a history of a few names, as one unit reports it.
fn history(dice: &[(u64, u8)]) -> Vec<Said> {
    let mut states: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut gone: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut records = Vec::new();
    for (number, (lane, dice)) in (1_u64..).zip(dice) {
        let state = states.get(lane).copied();
        let record = match (state, dice) {
            (_, 0) => SYNCED,
            (None, _) => {
                // A removed object comes back with its uid; a deleted one does not.
                let (uid, version) = gone.remove(lane).unwrap_or((number, number));
                Said { cause: if *dice < 3 { Cause::Initial } else { Cause::Watch }, ..added(uid, version) }
            }
            (Some((uid, version)), 1..=6) => updated(uid, version, number),
            (Some((uid, version)), 7) => recreated(uid, number, version, number),
            (Some((uid, version)), 8) => unchanged(Cause::Relist, uid, version),
            (Some((uid, version)), 9) => {
                gone.insert(*lane, (uid, version));
                removed(uid, version)
            }
            (Some((uid, _)), _) => deleted(uid, number),
        };
        match record.kind {
            ChangeKind::Deleted | ChangeKind::Removed => drop(states.remove(lane)),
            ChangeKind::Synced => {}
            _ => drop(states.insert(*lane, (record.uid, record.version))),
        }
        records.push(if record == SYNCED { record } else { Said { lane: *lane, ..record } });
    }
    records
}

/// Asserts that a history is consistent, and returns the objects at its end.
fn tell(records: &BTreeMap<u64, (Said, u64)>) -> BTreeMap<u64, (u64, u64)> {
    let mut states: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (position, (said, _)) in records {
        let state = states.get(&said.lane).copied();
        match said.kind {
            ChangeKind::Synced => {}
            ChangeKind::Added => {
                assert_eq!(state, None, "{position}: added twice");
                states.insert(said.lane, (said.uid, said.version));
            }
            ChangeKind::Updated => {
                assert_eq!(state, said.old.map(|old| (said.old_uid, old)), "{position}: its old is the state before");
                states.insert(said.lane, (said.uid, said.version));
            }
            ChangeKind::Refreshed => panic!("{position}: nobody waits for it"),
            ChangeKind::Unchanged => assert_eq!(state, Some((said.uid, said.version)), "{position}"),
            ChangeKind::Deleted | ChangeKind::Removed => {
                assert_eq!(state.map(|(uid, _)| uid), Some(said.uid), "{position}: the end of what was told");
                states.remove(&said.lane);
            }
        }
    }
    states
}

proptest! {
    #[test]
    fn any_merging_keeps_each_object_history_true(
        dice in prop::collection::vec((1..4_u64, 0..12_u8), 1..60),
        steps in prop::collection::vec((1..12_usize, any::<bool>()), 60),
        in_memory in prop::collection::btree_set(1..8_u64, 0..4),
        shown in 0..9_u64,
    ) {
        let records = history(&dice);
        let mut waiting = Waiting { shown, ..Waiting::of(&records) };
        let before = tell(&waiting.records);
        let ends = |waiting: &Waiting| -> BTreeSet<u64> {
            waiting.records.values().filter(|(said, _)| is_gone(said.kind)).map(|(said, _)| said.uid).collect()
        };
        let (ended, count) = (ends(&waiting), records.len());
        let mut lanes = Lanes::default();
        for (count, forgets) in steps {
            waiting.step(&mut lanes, count, &in_memory);
            if forgets {
                lanes = waiting.scan();
            }
        }
        prop_assert_eq!(waiting.merged.len(), waiting.records.len());
        prop_assert_eq!(tell(&waiting.records), before);
        prop_assert_eq!(ends(&waiting), ended, "a deletion is never cancelled");
        prop_assert!(waiting.records.len() <= count);
        // A living object costs one record, a deleted one two, and records in memory are added.
        let uids: BTreeSet<u64> = records.iter().map(|said| said.uid).collect();
        let synced = records.iter().filter(|said| **said == SYNCED).count();
        prop_assert!(waiting.records.len() <= 3 * uids.len() + synced + 3 * in_memory.len());
    }
}
