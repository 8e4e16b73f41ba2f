//! Which of the records that wait for one reader go where the state is too large, and what the others say then (D7).
//!
//! Of each object, in the order of its records:
//!
//! | waits | follows | stays |
//! |---|---|---|
//! | Added | Updated | Added with the new state |
//! | Updated | Updated | Updated: first `old`, last state |
//! | Updated, Unchanged | Deleted, Removed | Deleted, Removed |
//! | Updated to another uid | Deleted, Removed | both: nothing else has told of that uid |
//! | Added | Deleted, Removed | both: a deletion is never cancelled (I2) |
//! | gone, Added | gone, of the same uid | the last one |
//! | Added, Updated | Unchanged, of the same version | what waited |
//! | Unchanged | Unchanged, Updated | the later one |
//!
//! Anything else stays as it is, and so does a [`ChangeKind::Synced`]. A merged record stands where its last part stood; an
//! Added that the reader begins with keeps its place, before the `Synced` that waits behind it (S-8). What the reader
//! holds in memory may be delivered already, and is merged with nothing. Nor is an Added that may have been delivered before,
//! by the last run perhaps: an object is added once, and a place has one event.
//!
//! Objects are told apart within their unit, as their bodies are packed with its dictionaries. Names and uids are hashes
//! here: a million objects that wait take some 80 MB while this is under way.

use std::collections::{BTreeMap, HashMap};

use roaring::RoaringTreemap;

use super::ChangeKind;
use crate::indexer::Cause;

/// A hash of unit, namespace and name: wide enough that no two objects share one.
pub(super) type LaneHash = [u64; 2];

/// What is compared of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) place: u64,
    /// Where its object was found: its own place, or behind that for what kept its place when it was merged.
    pub(super) last: u64,
    pub(super) lane: LaneHash,
    pub(super) kind: ChangeKind,
    pub(super) cause: Option<Cause>,
    /// It was appended for this reader alone.
    pub(super) is_addressed: bool,
    /// A hash of the uid.
    pub(super) uid: u64,
    /// A hash of uid and version.
    pub(super) state: u64,
    /// An update that made another uid of it, or may have.
    pub(super) recreates: bool,
}

/// What a record that stays says: each is the place of the record that says it. Its time is that of its own place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    /// What happened, and why.
    pub(super) shape: u64,
    /// The object.
    pub(super) object: u64,
    /// The state before, for an update.
    pub(super) old: u64,
}

impl Draft {
    fn of(place: u64) -> Self {
        Self { shape: place, object: place, old: place }
    }
}

/// What becomes of some records.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// What is to be written, by place.
    pub(super) drafts: BTreeMap<u64, Draft>,
    /// What is merged into others, be it from before.
    pub(super) superseded: RoaringTreemap,
}

impl Plan {
    fn supersede(&mut self, place: u64) {
        self.drafts.remove(&place);
        self.superseded.insert(place);
    }

    fn draft(&self, place: u64) -> Draft {
        self.drafts.get(&place).copied().unwrap_or(Draft::of(place))
    }
}

/// The last record of an object.
#[derive(Clone, Copy, Debug)]
struct Tail {
    place: u64,
    last: u64,
    uid: u64,
    state: u64,
    kind: ChangeKind,
    /// It belongs to what the reader begins with.
    keeps_its_place: bool,
    recreated: bool,
}

impl Tail {
    fn of(row: &Row) -> Self {
        let begins = row.is_addressed || matches!(row.cause, Some(Cause::Initial | Cause::Replay));
        Self {
            place: row.place,
            last: row.last,
            uid: row.uid,
            state: row.state,
            kind: row.kind,
            keeps_its_place: row.kind == ChangeKind::Added && begins,
            recreated: row.recreates,
        }
    }
}

/// The end of an object that was added again behind it.
#[derive(Clone, Copy, Debug)]
struct End {
    place: u64,
    is_deletion: bool,
}

/// What a record does to the last one of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    /// It stands beside it.
    Beside,
    /// It alone stays.
    Replace,
    /// Both become an Added at the place of the new one.
    Move,
    /// Both become an Updated at the place of the new one.
    Join,
    /// The one that waits gets the object of the new one.
    Refresh,
    /// There is nothing to add.
    Nothing,
}

/// The last records of all objects that wait for one reader. A table for the time of a pass.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    tails: HashMap<LaneHash, Tail>,
    /// Of tails that are Added behind an end of the same object: that end.
    ends: HashMap<LaneHash, End>,
    /// The last `Synced` that waits.
    synced: u64,
}

impl Lanes {
    /// Takes notice of a record that stayed earlier; in the order of places.
    pub(super) fn note(&mut self, row: &Row) {
        if row.kind == ChangeKind::Synced {
            self.synced = self.synced.max(row.place);
        } else if self.tails.get(&row.lane).is_none_or(|tail| tail.last < row.place) {
            self.append(row);
        }
    }

    /// Decides what becomes of the records that follow, in the order of their places. `may_merge` says which are in the
    /// state alone; those up to `shown` may have been delivered.
    pub(super) fn plan(&mut self, rows: &[Row], may_merge: impl Fn(u64) -> bool, shown: u64) -> Plan {
        let mut plan = Plan::default();
        for row in rows {
            plan.drafts.insert(row.place, Draft::of(row.place));
            match self.tails.get(&row.lane).copied().filter(|_| row.kind != ChangeKind::Synced) {
                // what is replayed may be older than what waits by now
                Some(tail) if tail.last >= row.place => {}
                Some(tail) if may_merge(tail.place) && may_merge(row.place) => {
                    let merge = if tail.kind == ChangeKind::Added && tail.place <= shown && !is_gone(row.kind) {
                        Merge::Beside
                    } else {
                        self.merge(&tail, row)
                    };
                    self.follow(tail, merge, row, &may_merge, &mut plan);
                }
                _ => self.note(row),
            }
        }
        plan
    }

    fn follow(&mut self, tail: Tail, merge: Merge, row: &Row, may_merge: &impl Fn(u64) -> bool, plan: &mut Plan) {
        let draft = plan.draft(tail.place);
        let moved = Tail { place: row.place, last: row.place, state: row.state, ..tail };
        match merge {
            Merge::Beside => {
                let end = self.ends.get(&row.lane).filter(|end| may_merge(end.place));
                if let Some(end) = end.filter(|_| is_gone(row.kind) && tail.uid == row.uid)
                    && (row.kind == ChangeKind::Deleted || !end.is_deletion)
                {
                    plan.supersede(end.place);
                    plan.supersede(tail.place);
                }
                self.append(row);
            }
            Merge::Replace => {
                plan.supersede(tail.place);
                self.ends.remove(&row.lane);
                self.tails.insert(row.lane, Tail::of(row));
            }
            Merge::Move => {
                plan.supersede(tail.place);
                plan.drafts.insert(row.place, Draft { shape: draft.shape, ..Draft::of(row.place) });
                self.tails.insert(row.lane, moved);
            }
            Merge::Join => {
                plan.supersede(tail.place);
                plan.drafts.insert(row.place, Draft { old: draft.old, ..Draft::of(row.place) });
                self.tails.insert(row.lane, moved);
            }
            Merge::Refresh => {
                plan.supersede(row.place);
                plan.drafts.insert(tail.place, Draft { object: row.place, ..draft });
                self.tails.insert(row.lane, Tail { place: tail.place, ..moved });
            }
            Merge::Nothing => plan.supersede(row.place),
        }
    }

    /// The table above.
    fn merge(&self, tail: &Tail, row: &Row) -> Merge {
        use ChangeKind::{Added, Deleted, Removed, Unchanged, Updated};
        if tail.uid != row.uid {
            return Merge::Beside;
        }
        match (tail.kind, row.kind) {
            (Added, Updated) if tail.keeps_its_place || tail.place < self.synced => Merge::Refresh,
            (Added, Updated) => Merge::Move,
            (Updated, Updated) => Merge::Join,
            (Updated, Deleted | Removed) if tail.recreated => Merge::Beside,
            (Updated | Unchanged, Deleted | Removed) | (Unchanged, Unchanged | Updated) => Merge::Replace,
            // a reload may show another object under the same version
            (Added | Updated, Unchanged) if tail.state == row.state && row.cause == Some(Cause::Reload) => {
                Merge::Refresh
            }
            (Added | Updated, Unchanged) if tail.state == row.state => Merge::Nothing,
            _ => Merge::Beside,
        }
    }

    fn append(&mut self, row: &Row) {
        let before = self.tails.insert(row.lane, Tail::of(row));
        match before {
            Some(end) if row.kind == ChangeKind::Added && is_gone(end.kind) && end.uid == row.uid => {
                let end = End { place: end.place, is_deletion: end.kind == ChangeKind::Deleted };
                self.ends.insert(row.lane, end);
            }
            _ => drop(self.ends.remove(&row.lane)),
        }
    }
}

fn is_gone(kind: ChangeKind) -> bool {
    matches!(kind, ChangeKind::Deleted | ChangeKind::Removed)
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
