//! Rules for coalescing the records of one object that wait for a reader.
//!
//! The [backlog](super::reader) of a reader in memory and the [compaction](super::compaction) of the store apply them. Both keep a
//! lane of waiting records for each object. The backlog has one lane for all units of a type, because a type may move between
//! units. The compaction has one lane for each unit, because bodies are packed with dictionaries of their unit.
//!
//! | waiting | next | result |
//! |---|---|---|
//! | Added | Updated, Added | Added with the new state |
//! | Updated | Updated, Added | Updated: first `old`, last state. Two updates have the cause of the last |
//! | Unchanged | Updated, Added, Unchanged | the next one |
//! | Added, Updated | Unchanged of the same version, Refreshed | the waiting one; if the body may differ, with the new body |
//! | Added, Updated | Unchanged of another version | as for Updated |
//! | Updated, Unchanged | Deleted, Removed | the next one |
//! | Updated to another uid | Deleted, Removed | both: the update stands for the Added of that uid |
//! | Added | Deleted, Removed | both: every deletion is delivered, and always after its Added (E2) |
//! | Deleted or Removed, then Added | Deleted or Removed | the last one: repeated adding and removing costs one record |
//! | any | any of another object: the uid differs, or the waiting object is deleted | both |
//!
//! A coalesced record takes the position of the last record in it, so records stay in the order of the cache (E3). Two kinds of
//! records keep their position: the waiting one of the row with Unchanged and Refreshed, whose state is not new; and an Added that
//! must be delivered before a `Synced` (S-8).
//!
//! A record that the reader does not want is never delivered. In memory it still shows the state of its object: see
//! [`Next::is_wanted`].

use super::ChangeKind;

/// The last waiting record of an object, as far as the rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) kind: ChangeKind,
    /// Set for an update that changed, or may have changed, the uid of the object.
    pub(super) recreated: bool,
    /// Set for an Added that must be delivered before a `Synced`.
    pub(super) keeps_position: bool,
}

/// The next record in the lane, as far as the rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) kind: ChangeKind,
    /// Set if the reader wants the record. The compaction finds wanted records only.
    pub(super) is_wanted: bool,
    /// What the record shows of the waiting object.
    pub(super) shows: Shows,
}

/// State in a record, compared with that in the waiting record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Another object, or an object whose waiting record is already followed by its deletion.
    AnotherObject,
    AnotherVersion,
    /// The same version. Its body may differ, as after a reload.
    SameVersion,
    /// The same version with the same body.
    SameBody,
}

/// Effect of the next record on the waiting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Both records stay. An unwanted next record is dropped.
    Both,
    /// Only the next record stays.
    Next,
    /// Only the waiting record stays, as it is.
    Waiting,
    /// The waiting record gets the object of the next one, and keeps its position.
    Refresh,
    /// Both become one record at the position of the next one: kind, cause and `old` of the waiting record, object of the next one.
    Move,
    /// As [`Self::Move`], with the cause of the next record.
    Join,
}

/// Applies the table in the module documentation, except its row of three records ([`folds`]).
#[expect(clippy::match_same_arms, reason = "the arms follow the table")]
pub(super) fn coalesce(waiting: Waiting, next: Next) -> Effect {
    use ChangeKind::{Added, Deleted, Refreshed, Removed, Synced, Unchanged, Updated};
    if next.shows == Shows::AnotherObject {
        return Effect::Both;
    }
    match (waiting.kind, next.kind) {
        (Deleted | Removed | Synced | Refreshed, _) | (_, Synced) => Effect::Both,
        (Added, Deleted | Removed) => Effect::Both,
        (Updated, Deleted | Removed) if waiting.recreated => Effect::Both,
        (Updated | Unchanged, Deleted | Removed) if next.is_wanted => Effect::Next,
        // The deletion is not delivered, and an update of a deleted object is still an update.
        (Updated | Unchanged, Deleted | Removed) => Effect::Waiting,
        (Unchanged, Updated | Added | Unchanged) if next.is_wanted => Effect::Next,
        (Unchanged, Updated | Added) => Effect::Move,
        (Added | Updated, Unchanged) if next.shows == Shows::SameBody => Effect::Waiting,
        (Added | Updated, Unchanged) if next.shows == Shows::SameVersion => Effect::Refresh,
        (Added | Updated | Unchanged, Refreshed) | (Unchanged, Unchanged) => Effect::Refresh,
        (Added, Updated | Added | Unchanged) if waiting.keeps_position => Effect::Refresh,
        (Added, Updated | Added | Unchanged) => Effect::Move,
        (Updated, Updated) => Effect::Join,
        (Updated, Added | Unchanged) => Effect::Move,
    }
}

/// Returns true if the last one of three neighbouring records of one uid stands for all of them: a deletion or removal, an Added,
/// and another deletion or removal. A removal does not stand for a deletion: handlers treat them differently.
pub(super) fn folds(kinds: [ChangeKind; 3]) -> bool {
    let [first, middle, last] = kinds;
    let are_ends = is_gone(first) && middle == ChangeKind::Added && is_gone(last);
    are_ends && (last == ChangeKind::Deleted || first != ChangeKind::Deleted)
}

/// Returns true for the kinds after which an object no longer exists for handlers.
pub(super) fn is_gone(kind: ChangeKind) -> bool {
    matches!(kind, ChangeKind::Deleted | ChangeKind::Removed)
}

#[cfg(test)]
mod tests {
    //! One test for each row of the table.

    use ChangeKind::{Added, Deleted, Refreshed, Removed, Synced, Unchanged, Updated};

    use super::*;

    const ALIVE: [ChangeKind; 3] = [Added, Updated, Unchanged];
    const GONE: [ChangeKind; 2] = [Deleted, Removed];

    fn waiting(kind: ChangeKind) -> Waiting {
        Waiting { kind, recreated: false, keeps_position: false }
    }

    fn next(kind: ChangeKind) -> Next {
        Next { kind, is_wanted: true, shows: Shows::AnotherVersion }
    }

    fn unwanted(kind: ChangeKind) -> Next {
        Next { is_wanted: false, ..next(kind) }
    }

    fn showing(shows: Shows, kind: ChangeKind) -> Next {
        Next { shows, ..next(kind) }
    }

    #[test]
    fn added_takes_new_state() {
        let initial = Waiting { keeps_position: true, ..waiting(Added) };
        for kind in [Added, Updated] {
            for next in [next(kind), unwanted(kind)] {
                assert_eq!(coalesce(waiting(Added), next), Effect::Move);
                assert_eq!(coalesce(initial, next), Effect::Refresh);
            }
        }
    }

    #[test]
    fn updates_join_in_order() {
        assert_eq!(coalesce(waiting(Updated), next(Updated)), Effect::Join);
        assert_eq!(coalesce(waiting(Updated), unwanted(Updated)), Effect::Join);
        assert_eq!(coalesce(waiting(Updated), next(Added)), Effect::Move);
    }

    #[test]
    fn unchanged_gives_way_to_wanted_records() {
        for kind in ALIVE {
            assert_eq!(coalesce(waiting(Unchanged), next(kind)), Effect::Next);
        }
        assert_eq!(coalesce(waiting(Unchanged), unwanted(Added)), Effect::Move);
        assert_eq!(coalesce(waiting(Unchanged), unwanted(Updated)), Effect::Move);
        assert_eq!(coalesce(waiting(Unchanged), unwanted(Unchanged)), Effect::Refresh);
    }

    #[test]
    fn same_version_adds_only_its_body() {
        for kind in [Added, Updated] {
            assert_eq!(coalesce(waiting(kind), showing(Shows::SameBody, Unchanged)), Effect::Waiting);
            assert_eq!(coalesce(waiting(kind), showing(Shows::SameVersion, Unchanged)), Effect::Refresh);
        }
        for kind in ALIVE {
            assert_eq!(coalesce(waiting(kind), showing(Shows::SameVersion, Refreshed)), Effect::Refresh);
        }
    }

    #[test]
    fn unchanged_of_another_version_is_new_state() {
        assert_eq!(coalesce(waiting(Added), next(Unchanged)), Effect::Move);
        assert_eq!(coalesce(Waiting { keeps_position: true, ..waiting(Added) }, next(Unchanged)), Effect::Refresh);
        assert_eq!(coalesce(waiting(Updated), next(Unchanged)), Effect::Move);
    }

    #[test]
    fn end_replaces_what_is_no_addition() {
        for gone in GONE {
            for kind in [Updated, Unchanged] {
                assert_eq!(coalesce(waiting(kind), next(gone)), Effect::Next);
                assert_eq!(coalesce(waiting(kind), unwanted(gone)), Effect::Waiting);
            }
        }
    }

    #[test]
    fn end_follows_update_to_another_uid() {
        for gone in GONE {
            assert_eq!(coalesce(Waiting { recreated: true, ..waiting(Updated) }, next(gone)), Effect::Both);
        }
    }

    #[test]
    fn end_never_cancels_addition() {
        for gone in GONE {
            assert_eq!(coalesce(waiting(Added), next(gone)), Effect::Both);
        }
    }

    #[test]
    fn repeated_adding_and_removing_is_last_end() {
        assert!(
            folds([Removed, Added, Removed]) && folds([Removed, Added, Deleted]) && folds([Deleted, Added, Deleted])
        );
        assert!(!folds([Deleted, Added, Removed]), "a removal is no deletion");
        assert!(
            !folds([Updated, Added, Deleted])
                && !folds([Removed, Updated, Removed])
                && !folds([Removed, Added, Updated])
        );
    }

    #[test]
    fn other_objects_stay_apart() {
        for kind in ALIVE.into_iter().chain(GONE) {
            for next in ALIVE.into_iter().chain(GONE) {
                assert_eq!(coalesce(waiting(kind), showing(Shows::AnotherObject, next)), Effect::Both);
            }
        }
        for kind in GONE.into_iter().chain([Synced]) {
            assert_eq!(coalesce(waiting(kind), next(Added)), Effect::Both);
        }
    }
}
