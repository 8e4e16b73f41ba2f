//! Compaction over records in memory, for the models of a store.

use std::{collections::BTreeMap, hash::BuildHasher as _};

use super::*;
use crate::{
    change::Change,
    journal::{Held, Record},
};

/// Coalesced entry of a reader: the record, its only reader, and the position of its object.
pub(crate) type Entry = (Record, Option<String>, u64);

/// Data that one step writes.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) entries: BTreeMap<u64, Entry>,
    pub(crate) written: RoaringTreemap,
    pub(crate) superseded: RoaringTreemap,
}

/// Table of a pass.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    lanes: Lanes,
}

impl Merger {
    /// Returns the table of the entries that were coalesced earlier.
    pub(crate) fn scan(entries: &BTreeMap<u64, Entry>) -> Self {
        let mut merger = Self::default();
        for entry in entries.values() {
            merger.lanes.note(&row(entry));
        }
        merger
    }

    /// Plans a step for the held records, which `log` returns, and makes the resulting records.
    pub(crate) fn step(
        &mut self,
        held: &Held,
        log: impl Fn(u64) -> Option<(Record, Option<String>)>,
        entries: &BTreeMap<u64, Entry>,
    ) -> Step {
        let of_log = |position: &u64| log(*position).map(|(record, only)| (*position, (record, only, *position)));
        let mut sources: BTreeMap<u64, Entry> = held.positions.iter().filter_map(of_log).collect();
        let rows: Vec<_> = sources.values().map(row).collect();
        let plan = self.lanes.plan(&rows, |position| held.may_merge.contains(position), held.shown);
        for (position, entry) in entries {
            sources.entry(*position).or_insert_with(|| entry.clone());
        }
        let entry = |(position, draft): (&u64, &Draft)| (*position, compose(*position, *draft, &sources));
        let written = held.positions.iter().copied().filter(|position| !plan.superseded.contains(*position));
        let written = written.chain(plan.drafts.keys().copied()).collect();
        Step { entries: plan.drafts.iter().map(entry).collect(), written, superseded: plan.superseded }
    }
}

fn row((record, only, last): &Entry) -> Row {
    let hash = |value: (u32, String)| foldhash::fast::FixedState::with_seed(3).hash_one(value);
    let of = |text: String| hash((record.unit.0, text));
    let (key, uid, version) = record
        .object()
        .map_or((String::new(), "", ""), |object| (object.key().to_string(), object.uid(), object.resource_version()));
    let cause = match &record.change {
        Change::Added { cause, .. } | Change::Unchanged { cause, .. } => Some(*cause),
        _ => None,
    };
    let kind = ChangeKind::of(&record.change);
    let tail = Tail {
        position: record.sequence.0,
        last: *last,
        uid: of(uid.to_owned()),
        state: of(format!("{uid} {version}")),
        kind,
        keeps_its_place: keeps_its_place(kind, cause, only.is_some()),
        recreated: record.old().is_some_and(|old| old.uid() != uid),
    };
    Row { lane: [of(key.clone()), u64::from(record.unit.0)], cause, tail }
}

fn compose(position: u64, draft: Draft, sources: &BTreeMap<u64, Entry>) -> Entry {
    let [at, shape, from, before] =
        [position, draft.shape, draft.object, draft.old].map(|position| &sources[&position]);
    let mut record = Record { old_lost: before.0.old_lost, change: shape.0.change.clone(), ..at.0.clone() };
    match &mut record.change {
        Change::Added { object, .. }
        | Change::Deleted { object, .. }
        | Change::Removed { object, .. }
        | Change::Unchanged { object, .. }
        | Change::Refreshed { object } => *object = from.0.object().expect("it has one").clone(),
        Change::Updated { old, object, .. } => {
            *object = from.0.object().expect("it has one").clone();
            *old = before.0.old().unwrap_or(object).clone();
        }
        Change::Synced { .. } => {}
    }
    record.old_lost &= matches!(record.change, Change::Updated { .. });
    (record, shape.1.clone(), position.max(from.2))
}
