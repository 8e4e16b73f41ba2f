//! Compaction of the stored records of a reader: which records are removed, and how the remaining ones change, by the
//! [rules](super::coalesce). An Added keeps its position if it belongs to the initial state or waits before a `Synced`. Every
//! [`ChangeKind::Synced`] is kept.
//!
//! Records that the reader holds in memory are not coalesced, because they may be delivered already. An Added that the last run may
//! have delivered is not coalesced either. Otherwise an object could be added twice, or one position could have two events.
//!
//! Records are compared within their unit, because bodies are packed with dictionaries of the unit. Names and uids are kept as
//! hashes: a compaction over a million waiting objects uses about 80 MB of memory.

use std::collections::{BTreeMap, HashMap};

use roaring::RoaringTreemap;

use super::{
    ChangeKind,
    coalesce::{Effect, Next, Shows, Waiting, coalesce, folds, is_gone},
};
use crate::change::Cause;

/// Hash of unit, namespace and name. It is wide enough that collisions need not be handled.
pub(super) type LaneHash = [u64; 2];

/// Data of a record for the comparison with the waiting record of the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) lane: LaneHash,
    pub(super) cause: Option<Cause>,
    pub(super) tail: Tail,
}

/// Data of one record: the last waiting record of an object (in [`Lanes`]), or the next record (in a [`Row`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) position: u64,
    /// Position at which this record's object was appended. It is above `position` if the record got a newer object and kept its own
    /// position.
    pub(super) last: u64,
    /// Hash of the uid.
    pub(super) uid: u64,
    /// Hash of uid and version.
    pub(super) state: u64,
    pub(super) kind: ChangeKind,
    /// Set when the record belongs to the reader's initial state.
    pub(super) keeps_its_place: bool,
    /// Set for an update that changed, or may have changed, the uid of the object.
    pub(super) recreated: bool,
}

/// Returns true if a record belongs to a reader's initial state. `is_addressed` is set if it was appended for that reader alone.
pub(super) fn keeps_its_place(kind: ChangeKind, cause: Option<Cause>, is_addressed: bool) -> bool {
    let begins = is_addressed || matches!(cause, Some(Cause::Initial | Cause::Replay));
    kind == ChangeKind::Added && begins
}

/// Positions of the records that a new entry is built from. The entry gets the time of the record at the entry's own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    /// Position of the record whose kind and cause are used.
    pub(super) shape: u64,
    /// Position of the record whose object is used.
    pub(super) object: u64,
    /// Position of the record whose previous object is used, for an update.
    pub(super) old: u64,
}

impl Draft {
    fn of(position: u64) -> Self {
        Self { shape: position, object: position, old: position }
    }
}

/// Planned result of one step of a compaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Records to write, by position.
    pub(super) drafts: BTreeMap<u64, Draft>,
    /// Records that were coalesced into others; may include records of earlier steps.
    pub(super) superseded: RoaringTreemap,
}

impl Plan {
    fn supersede(&mut self, position: u64) {
        self.drafts.remove(&position);
        self.superseded.insert(position);
    }

    fn draft(&self, position: u64) -> Draft {
        self.drafts.get(&position).copied().unwrap_or(Draft::of(position))
    }
}

/// The deletion or removal that preceded a re-add of the object.
#[derive(Clone, Copy, Debug)]
struct End {
    position: u64,
    kind: ChangeKind,
}

/// Last waiting record of each object, for one reader. The table exists during one pass.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    tails: HashMap<LaneHash, Tail>,
    /// Deletion or removal before the last record of an object, for each object whose last record is a re-add.
    ends: HashMap<LaneHash, End>,
    /// Position of the last waiting `Synced`.
    synced: u64,
}

impl Lanes {
    /// Notes a waiting record: as the last one of its object, or as the last `Synced`. Call it in the order of positions.
    pub(super) fn note(&mut self, row: &Row) {
        if row.tail.kind == ChangeKind::Synced {
            self.synced = self.synced.max(row.tail.position);
        } else if self.tails.get(&row.lane).is_none_or(|tail| tail.last < row.tail.position) {
            self.append(row);
        }
    }

    /// Plans the next records, in the order of their positions. `may_merge` returns true for records that wait only in the store,
    /// not in memory. Records up to `shown` may have been delivered.
    pub(super) fn plan(&mut self, rows: &[Row], may_merge: impl Fn(u64) -> bool, shown: u64) -> Plan {
        let mut plan = Plan::default();
        for row in rows {
            plan.drafts.insert(row.tail.position, Draft::of(row.tail.position));
            match self.tails.get(&row.lane).copied().filter(|_| row.tail.kind != ChangeKind::Synced) {
                // A replayed record may be older than the waiting one.
                Some(tail) if tail.last >= row.tail.position => {}
                Some(tail) if may_merge(tail.position) && may_merge(row.tail.position) => {
                    let effect = if tail.kind == ChangeKind::Added && tail.position <= shown && !is_gone(row.tail.kind)
                    {
                        Effect::Both
                    } else {
                        self.effect(&tail, row)
                    };
                    self.follow(tail, effect, row, &may_merge, &mut plan);
                }
                _ => self.note(row),
            }
        }
        plan
    }

    fn follow(&mut self, tail: Tail, effect: Effect, row: &Row, may_merge: &impl Fn(u64) -> bool, plan: &mut Plan) {
        let draft = plan.draft(tail.position);
        let moved = Tail { position: row.tail.position, last: row.tail.position, state: row.tail.state, ..tail };
        match effect {
            Effect::Both => {
                let end = self.ends.get(&row.lane).filter(|end| may_merge(end.position) && tail.uid == row.tail.uid);
                if let Some(end) = end.filter(|end| folds([end.kind, tail.kind, row.tail.kind])) {
                    plan.supersede(end.position);
                    plan.supersede(tail.position);
                }
                self.append(row);
            }
            Effect::Next => {
                plan.supersede(tail.position);
                self.ends.remove(&row.lane);
                self.tails.insert(row.lane, row.tail);
            }
            Effect::Move | Effect::Join => {
                plan.supersede(tail.position);
                let shape = if effect == Effect::Move { draft.shape } else { row.tail.position };
                plan.drafts.insert(row.tail.position, Draft { shape, object: row.tail.position, old: draft.old });
                self.tails.insert(row.lane, moved);
            }
            Effect::Refresh => {
                plan.supersede(row.tail.position);
                plan.drafts.insert(tail.position, Draft { object: row.tail.position, ..draft });
                self.tails.insert(row.lane, Tail { position: tail.position, ..moved });
            }
            Effect::Waiting => plan.supersede(row.tail.position),
        }
    }

    fn effect(&self, tail: &Tail, row: &Row) -> Effect {
        let shows = if tail.uid != row.tail.uid {
            Shows::AnotherObject // also for an update to another uid: the head of a record does not name the previous one
        } else if tail.state != row.tail.state {
            Shows::AnotherVersion
        } else if row.cause == Some(Cause::Reload) {
            Shows::SameVersion
        } else {
            Shows::SameBody
        };
        let keeps_position = tail.keeps_its_place || tail.position < self.synced;
        let waiting = Waiting { kind: tail.kind, recreated: tail.recreated, keeps_position };
        coalesce(waiting, Next { kind: row.tail.kind, is_wanted: true, shows })
    }

    fn append(&mut self, row: &Row) {
        let before = self.tails.insert(row.lane, row.tail);
        match before {
            Some(end) if row.tail.kind == ChangeKind::Added && is_gone(end.kind) && end.uid == row.tail.uid => {
                let end = End { position: end.position, kind: end.kind };
                self.ends.insert(row.lane, end);
            }
            _ => drop(self.ends.remove(&row.lane)),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
