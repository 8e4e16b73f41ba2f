//! Compares the store with a map: after any appends, removals and reopens, both have the same content.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// Changes of one unit, as pairs of object and kind.
    Append {
        unit: u32,
        only: bool,
        changes: Vec<(u8, u8)>,
    },
    /// Removes this share of the records, in eighths.
    Retain(u64),
    Sync,
    Reopen,
    Crash,
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let changes = prop::collection::vec((0..4_u8, 0..9_u8), 1..6);
    prop_oneof![
        12 => (0..2_u32, prop::bool::weighted(0.2), changes)
            .prop_map(|(unit, only, changes)| Op::Append { unit, only, changes }),
        4 => (0..9_u64).prop_map(Op::Retain),
        1 => Just(Op::Sync),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
        1 => Just(Op::Close),
    ]
}

#[derive(Default)]
struct Model {
    records: BTreeMap<u64, String>,
    /// Unit and name → uid and version.
    states: BTreeMap<(u32, String), (String, u64)>,
    first: u64,
    last: u64,
    version: u64,
}

impl Model {
    /// Returns changes that an indexer could make, and notes the expected records.
    fn changes(&mut self, unit: u32, only: bool, wishes: &[(u8, u8)]) -> Vec<Change> {
        let mut made = Vec::new();
        for &(object, wish) in wishes {
            let name = format!("p{object}");
            let at = (unit, name.clone());
            self.version += 1;
            let version = self.version;
            let state = self.states.get(&at).cloned();
            let change = match (state, wish) {
                (Some((uid, known)), _) if only => {
                    let object = pod(&name, &uid, known);
                    Change::Added { object, cause: Cause::Replay }
                }
                (None, _) if only => continue,
                (None, _) => {
                    let uid = format!("u{version}");
                    self.states.insert(at, (uid.clone(), version));
                    added(&name, &uid, version)
                }
                (Some((uid, known)), 0..=3) => {
                    self.states.insert(at, (uid.clone(), version));
                    updated(&name, &uid, known, version)
                }
                (Some((uid, known)), 4) => {
                    Change::Unchanged { object: pod(&name, &uid, known), cause: Cause::Resync { round: 1 } }
                }
                (Some((uid, known)), 5) => Change::Unchanged { object: pod(&name, &uid, known), cause: Cause::Reload },
                (Some((uid, _)), 8) => {
                    self.states.insert(at, (uid.clone(), version));
                    Change::Refreshed { object: pod(&name, &uid, version) }
                }
                (Some((uid, _)), 6) => {
                    self.states.remove(&at);
                    deleted(&name, &uid, version)
                }
                (Some((uid, known)), _) => {
                    self.states.remove(&at);
                    Change::Deleted { object: pod(&name, &uid, known), tombstone: true, cause: Cause::Relist }
                }
            };
            made.push(change);
        }
        for change in &made {
            self.last += 1;
            let sequence = Sequence(self.last);
            let record =
                Record { sequence, unit: UnitId(unit), time_micros: 0, change: change.clone(), old_lost: false };
            self.records.insert(self.last, brief(&record));
        }
        made
    }

    fn check(&self, store: &Store) {
        let sequences: Vec<u64> = (0..=self.last + 1).collect();
        let loaded = store.load(&sequences).unwrap();
        let loaded: Vec<_> = loaded.iter().map(|record| (record.sequence.0, brief(record))).collect();
        let expected: Vec<_> = self.records.iter().map(|(at, text)| (*at, text.clone())).collect();
        assert_eq!(loaded, expected);
        let mut heads = Vec::new();
        store.heads(Sequence(0), &mut |head| heads.push(head.sequence)).unwrap();
        assert_eq!(heads, self.records.keys().copied().collect::<Vec<_>>());
        for unit in 0..2 {
            let of_unit = self.states.iter().filter(|((of, _), _)| *of == unit);
            let expected: Vec<_> =
                of_unit.map(|((_, name), (uid, version))| format!("ns/{name} {uid}/{version}")).collect();
            assert_eq!(states(store, unit), expected);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn retention_removes_exactly_unneeded_bodies(ops in prop::collection::vec(op(), 1..50)) {
        let mut opened = fresh();
        let mut model = Model { first: 1, ..Model::default() };
        for op in ops {
            match op {
                Op::Append { unit, only, changes } => {
                    let first = model.last + 1;
                    let changes = model.changes(unit, only, &changes);
                    let only = only.then_some("late");
                    let append = Append { unit: UnitId(unit), only, ..batch(first, &changes) };
                    opened.store.append(&append).unwrap();
                }
                Op::Retain(eighths) => {
                    let keep_from = model.first + (model.last + 1 - model.first) * eighths / 8;
                    opened.store.retain(Sequence(keep_from)).unwrap();
                    model.first = keep_from;
                    model.records = model.records.split_off(&keep_from);
                }
                Op::Sync => opened.store.sync().unwrap(),
                Op::Reopen => opened.store.reopen().unwrap(),
                Op::Crash => opened = opened.crash(),
                Op::Close => opened = opened.close(),
            }
            model.check(&opened.store);
        }
        opened.store.retain(Sequence(model.last + 1)).unwrap();
        prop_assert_eq!(bodies(&opened.store), model.states.len());
        prop_assert_eq!(model.states.values().collect::<BTreeSet<_>>().len(), model.states.len());
    }
}
