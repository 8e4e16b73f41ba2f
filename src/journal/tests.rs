//! Guarantees of the journal, one test for each.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    memory::MemoryJournal,
    reader::{Next, waiting::ENTRY_BYTES},
    store::Recovered,
    testing::*,
    *,
};
use crate::change::{Cause, Change, Reached};

fn reader(journal: &mut MemoryJournal, max_events: usize, when_full: WhenFull) -> ReaderId {
    let bounds = Bounds { max_events, max_bytes: 1 << 20, when_full };
    journal.open_reader(ReaderOptions { bounds, interest: everything(), name: None })
}

fn commit(journal: &mut MemoryJournal, unit: u32, changes: &[Change]) {
    let ticket = journal.append(UnitId(unit).writer(1), changes, &Reached::default(), 5).unwrap();
    release(journal, ticket);
    journal.check();
}

/// Releases a ticket. Returns the readers to wake.
fn release(journal: &mut MemoryJournal, ticket: Ticket) -> Vec<ReaderId> {
    journal.advance(|journal| journal.release(ticket)).1
}

fn all(journal: &mut MemoryJournal, reader: ReaderId) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let batch = journal[reader].read_judged(100, usize::MAX);
        let Some(last) = batch.last() else { return seen };
        journal[reader].ack(last.sequence);
        seen.extend(batch.iter().map(brief));
        journal.check();
    }
}

/// Returns the records that a reader is shown if its buffer is full from the start; `max_events` is 1.
fn merged(changes: &[Change]) -> Vec<String> {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 1, WhenFull::Coalesce);
    let filler = [added("x", "x", 1), added("y", "y", 1)];
    commit(&mut journal, 7, &filler);
    for change in changes {
        commit(&mut journal, 0, std::slice::from_ref(change));
    }
    all(&mut journal, full).split_off(2)
}

/// Does the same as [`merged`] in one batch, with room for a few deletions.
fn merged_with_room(changes: &[Change]) -> Vec<String> {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 9, WhenFull::Coalesce);
    let filler: Vec<_> = (0..10).map(|n| added("x", "x", n)).collect();
    commit(&mut journal, 7, &filler);
    commit(&mut journal, 0, changes);
    all(&mut journal, full).split_off(1)
}

#[test]
fn coalescing_keeps_first_old_and_last_object() {
    let shown = merged(&[updated("a", "a", 1, 2), updated("a", "a", 2, 3), updated("a", "a", 3, 4)]);
    assert_eq!(shown, ["updated a/4<1"]);
    assert_eq!(merged(&[added("a", "a", 1), updated("a", "a", 1, 2)]), ["added a/2"]);
}

#[test]
fn deletion_is_kept_and_follows_its_addition() {
    assert_eq!(merged_with_room(&[added("a", "a", 1), deleted("a", "a", 2)]), ["added a/1", "deleted a/2"]);
    assert_eq!(merged_with_room(&[updated("a", "a", 1, 2), deleted("a", "a", 3)]), ["deleted a/3"]);
    let recreated = [deleted("a", "a", 2), added("a", "b", 3), updated("a", "b", 3, 4)];
    assert_eq!(merged_with_room(&recreated), ["deleted a/2", "added b/4"]);
}

#[test]
fn flapping_object_coalesces_to_one_record() {
    let flapping = [removed("a", "a", 1), added("a", "a", 2), removed("a", "a", 2), added("a", "a", 3)];
    assert_eq!(merged_with_room(&flapping), ["removed a/2", "added a/3"]);
    let ends = [removed("a", "a", 1), added("a", "a", 2), deleted("a", "a", 3)];
    assert_eq!(merged_with_room(&ends), ["deleted a/3"]);
    let lives = [deleted("a", "a", 1), added("a", "a", 2), removed("a", "a", 2)];
    assert_eq!(merged_with_room(&lives), ["deleted a/1", "added a/2", "removed a/2"]);
}

#[test]
fn object_recreated_by_update_keeps_its_old() {
    let recreated = Change::Updated { old: pod("a", "a", 1), object: pod("a", "b", 2), cause: Cause::Relist };
    assert_eq!(merged(&[recreated.clone(), updated("a", "b", 2, 3)]), ["updated b/3<1"]);
    let both = merged_with_room(&[recreated, updated("a", "b", 2, 3), deleted("a", "b", 4)]);
    assert_eq!(both, ["updated b/3<1", "deleted b/4"], "E2: nobody hears of the end of what he never saw");
}

#[test]
fn unchanged_objects_add_nothing_to_queue() {
    let unchanged = |v| Change::Unchanged { object: pod("a", "a", v), cause: Cause::Relist };
    assert_eq!(merged(&[updated("a", "a", 1, 2), unchanged(2)]), ["updated a/2<1"]);
    assert_eq!(merged(&[unchanged(2), unchanged(2), updated("a", "a", 2, 3)]), ["updated a/3<2"]);
}

#[test]
fn refreshed_object_updates_queued_bodies_without_event() {
    let refreshed = |v| Change::Refreshed { object: pod("a", "a", v) };
    assert_eq!(merged_with_room(&[refreshed(1)]), [""; 0]);
    assert_eq!(merged_with_room(&[added("a", "a", 1), refreshed(2)]), ["added a/2"]);
    assert_eq!(merged_with_room(&[updated("a", "a", 1, 2), refreshed(3)]), ["updated a/3<1"]);
    assert_eq!(merged_with_room(&[updated("a", "a", 1, 2), refreshed(3), updated("a", "a", 3, 4)]), ["updated a/4<1"]);
    assert_eq!(merged_with_room(&[refreshed(2), deleted("a", "a", 3)]), ["deleted a/3"]);
    assert_eq!(
        merged_with_room(&[deleted("a", "a", 1), added("a", "b", 2), refreshed(2)]),
        ["deleted a/1", "added b/2"]
    );
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    let ticket = journal.append(UnitId(0).writer(1), &[refreshed(1)], &Reached::default(), 1).unwrap();
    assert!(release(&mut journal, ticket).is_empty(), "nobody is woken");
    assert_eq!((journal.stats(one).wanted, journal.released()), (0, Sequence(1)));
}

#[test]
fn synced_follows_last_initial_object() {
    let changes = [initial("a", "a", 1), synced(1), updated("a", "a", 1, 2), updated("a", "a", 2, 3)];
    assert_eq!(merged_with_room(&changes), ["added a/3", "synced"], "with the body that the cache has");
    let before = [initial("a", "a", 1), updated("a", "a", 1, 2), synced(1)];
    assert_eq!(merged_with_room(&before), ["added a/2", "synced"]);
}

#[test]
fn records_in_flight_are_not_merged() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 1, WhenFull::Coalesce);
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 1)]);
    assert_eq!(journal[full].read_judged(1, 1).iter().map(brief).collect::<Vec<_>>(), ["added a/1"]);
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("a", "a", 2, 3)]);
    journal[full].rewind();
    assert_eq!(all(&mut journal, full), ["added a/1", "added b/1", "updated a/3<1"]);
}

#[test]
fn bound_drops_oldest_deletions_by_name() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 3, WhenFull::Coalesce);
    let gone: Vec<_> = (0..6).map(|n| deleted(&format!("p{n}"), &format!("u{n}"), 1)).collect();
    commit(&mut journal, 0, &gone);
    let lost = journal[full].take_losses().named;
    assert_eq!(lost.iter().map(|event| &*event.uid).collect::<Vec<_>>(), ["u0", "u1", "u2"]);
    assert_eq!(lost[0].to_string(), "deleted ns/p0 (sequence 1, uid u0)");
    assert_eq!(all(&mut journal, full), ["deleted u3/1", "deleted u4/1", "deleted u5/1"]);
    assert_eq!(journal.stats(full).dropped, 3);
}

#[test]
fn waiting_live_objects_drop_no_deletion() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 3, WhenFull::Coalesce);
    let mut changes: Vec<_> = (0..9).map(|n| updated(&format!("p{n}"), &format!("u{n}"), 1, 2)).collect();
    changes.extend((10..13).map(|n| deleted(&format!("p{n}"), &format!("u{n}"), 1)));
    commit(&mut journal, 0, &changes);
    assert_eq!((journal.stats(full).queued, journal.stats(full).dropped), (12, 0));
    commit(&mut journal, 0, &[deleted("p0", "u0", 3)]);
    assert_eq!(journal[full].take_losses().named.iter().map(|event| &*event.uid).collect::<Vec<_>>(), ["u10"]);
    assert!(all(&mut journal, full).contains(&"deleted u0/3".to_owned()));
}

#[test]
fn live_objects_displace_olds_before_deletions() {
    let mut journal = MemoryJournal::default();
    let size = pod("a", "a", 1).size_bytes();
    let bounds = Bounds { max_events: 2, max_bytes: size + 3 * ENTRY_BYTES, when_full: WhenFull::Coalesce };
    let one = journal.open_reader(ReaderOptions { bounds, interest: everything(), name: None });
    commit(&mut journal, 0, &[deleted("d", "d", 1), updated("a", "a", 1, 2), updated("b", "b", 1, 2)]);
    assert_eq!(journal.stats(one).olds_given_up, 2, "nothing is left beside the deletion");
    commit(&mut journal, 0, &[updated("c", "c", 1, 2), updated("e", "e", 1, 2)]);
    assert_eq!((journal.stats(one).olds_given_up, journal.stats(one).dropped), (4, 0));
    assert_eq!(all(&mut journal, one), ["deleted d/1", "updated a/2", "updated b/2", "updated c/2", "updated e/2"]);
}

/// Rule: G-4.
#[test]
fn unseen_life_is_dropped_as_a_whole() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 3, WhenFull::Coalesce);
    let lives = [added("a", "a", 1), deleted("a", "a", 2), added("c", "c", 3), deleted("c", "c", 4)];
    commit(&mut journal, 0, &lives);
    assert_eq!(journal.stats(full).dropped, 2);
    assert_eq!(all(&mut journal, full), ["added c/3", "deleted c/4"]);
}

#[test]
fn reader_without_deletions_keeps_no_deleted_bodies() {
    let mut journal = MemoryJournal::default();
    let bounds = Bounds { max_events: 3, ..Bounds::default() };
    let interest = Interest { changes: ChangeSet::ADDED, ..everything() };
    let only_added = journal.open_reader(ReaderOptions { bounds, interest, name: None });
    for n in 0..100 {
        let (name, uid) = (format!("job{n}"), format!("u{n}"));
        commit(&mut journal, 0, &[added(&name, &uid, 1), updated(&name, &uid, 1, 2), deleted(&name, &uid, 3)]);
    }
    assert_eq!(journal.stats(only_added).queued, 3);
    assert_eq!(journal.stats(only_added).dropped, 97);
}

#[test]
fn olds_are_dropped_before_events() {
    let mut journal = MemoryJournal::default();
    let size = pod("a", "a", 1).size_bytes();
    let max_bytes = size * 2 + size / 2 + 3 * ENTRY_BYTES;
    let bounds = Bounds { max_events: 2, max_bytes, when_full: WhenFull::Coalesce };
    let one = journal.open_reader(ReaderOptions { bounds, interest: everything(), name: None });
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("b", "b", 1, 2), updated("c", "c", 1, 2)]);
    assert_eq!(journal.stats(one).olds_given_up, 1);
    assert_eq!(all(&mut journal, one), ["updated a/2", "updated b/2<1", "updated c/2<1"]);
}

/// Rule: D-11.
#[test]
fn dropped_records_are_named() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 2, WhenFull::DropOldest);
    let changes: Vec<_> = (1..5).map(|n| updated("a", &n.to_string(), 1, 2)).collect();
    commit(&mut journal, 0, &changes);
    let named = journal[one].take_losses().named;
    assert_eq!(named.iter().map(|event| &*event.uid).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(all(&mut journal, one), ["updated 3/2<1", "updated 4/2<1"]);
}

/// Rules: C-5, D-13.
#[test]
fn readers_see_nothing_above_watermark() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    let first = journal.append(UnitId(0).writer(1), &[added("a", "a", 1)], &Reached::default(), 0).unwrap();
    let second = journal.append(UnitId(1).writer(1), &[added("b", "b", 1)], &Reached::default(), 0).unwrap();
    assert!(release(&mut journal, second).is_empty());
    assert!(journal[one].read_judged(10, 1000).is_empty());
    assert_eq!(journal.outstanding(UnitId(0)), Some(first));
    assert_eq!(release(&mut journal, first), [one]);
    assert_eq!(journal.released(), Sequence(2));
    assert_eq!(all(&mut journal, one), ["added a/1", "added b/1"]);
}

#[test]
fn replaced_unit_is_fenced_and_rolled_back() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    let hung = journal.append(UnitId(0).writer(1), &[added("a", "a", 1)], &Reached::default(), 0).unwrap();
    let other = journal.append(UnitId(1).writer(1), &[added("b", "b", 1)], &Reached::default(), 0).unwrap();
    release(&mut journal, other);
    journal.fence(UnitId(0).writer(2));
    let late = journal.append(UnitId(0).writer(1), &[added("a", "a", 2)], &Reached::default(), 0);
    assert_eq!(late, Err(Fenced { writer: UnitId(0).writer(1), current: 2 }));
    assert_eq!(journal.advance(|journal| journal.take_back(hung)).1, [one]);
    assert!(release(&mut journal, hung).is_empty());
    assert_eq!(all(&mut journal, one), ["added b/1"]);
    journal.append(UnitId(0).writer(2), &[], &Reached::default(), 0).unwrap();
    assert_eq!(journal.outstanding(UnitId(0)), None);
}

#[test]
fn stalled_reader_holds_nothing_for_others() {
    let mut journal = MemoryJournal::default();
    let stuck = reader(&mut journal, 4, WhenFull::Coalesce);
    let quick = reader(&mut journal, 4, WhenFull::Coalesce);
    for version in 1..100 {
        commit(&mut journal, 0, &[updated("a", "a", version, version + 1)]);
        assert_eq!(all(&mut journal, quick).len(), 1);
    }
    assert_eq!(journal.stats(stuck).queued, 1);
    assert_eq!(all(&mut journal, stuck), ["updated a/100<1"]);
}

#[test]
fn abandoned_reader_names_all_its_losses() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 1, WhenFull::Coalesce);
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)]);
    journal[one].read_judged(1, 1);
    let mark = journal.released();
    journal[one].abandon(mark);
    journal.check();
    assert_eq!(journal[one].take_losses().named.len(), 3);
    commit(&mut journal, 0, &[added("d", "d", 1)]);
    assert_eq!(journal.stats(one).queued, 0);
}

#[tokio::test]
async fn release_wakes_readers_without_lost_wakeup() {
    let journal = Journal::in_memory();
    assert_eq!(journal.id().len(), 12);
    let options = ReaderOptions { interest: everything(), ..ReaderOptions::default() };
    let one = journal.open_reader(options).unwrap();
    let ticket =
        journal.append(UnitId(0).writer(1), &[added("a", "a", 1)], &Reached::default(), Timestamp::UNIX_EPOCH).unwrap();
    journal.release(ticket);
    journal.readable(one).await;
    assert_eq!(journal.read(one, 10, 1000).len(), 1);
    assert_eq!(journal.undelivered(one, 5).len(), 1);
}

#[test]
fn unchanged_objects_of_relist_are_recorded_only_for_readers() {
    let mut journal = MemoryJournal::default();
    journal.add_unit(UnitId(0), UnitTerms { resource: TypeNumber(0), late: false, cached: true });
    let unchanged = |cause| Change::Unchanged { object: pod("a", "a", 1), cause };
    let changes = [unchanged(Cause::Relist), added("b", "b", 2), unchanged(Cause::Downtime)];
    let recorded =
        |journal: &MemoryJournal| interest::worth_recording(&changes, || journal.wants_unchanged(UnitId(0))).len();
    assert_eq!(recorded(&journal), 2, "an unchanged object after a downtime may have another body");
    let mut options = ReaderOptions { interest: everything(), ..ReaderOptions::default() };
    options.interest.changes = ChangeSet::ALL.without(ChangeSet::UNCHANGED);
    journal.open_reader(options.clone());
    assert_eq!(recorded(&journal), 2);
    options.interest.changes = ChangeSet::UNCHANGED;
    let wants = journal.open_reader(options);
    assert_eq!(recorded(&journal), 3);
    journal.close_reader(wants);
    assert_eq!(recorded(&journal), 2);
}

// ── many handlers of a type: attachments, resyncs, synced ──

fn every(resync_every: u32) -> Interest {
    let seen = UnitInterest { attaches: false, resync_every };
    Interest { units: [(UnitId(0), seen)].into(), changes: ChangeSet::ALL, filter: None }
}

fn open(journal: &mut MemoryJournal, interest: Interest) -> ReaderId {
    journal.open_reader(ReaderOptions { interest, ..ReaderOptions::default() })
}

fn attach(
    journal: &mut MemoryJournal,
    reader: ReaderId,
    unit: UnitId,
    generation: u64,
    changes: &[Change],
) -> Result<(), Fenced> {
    journal.advance(|journal| journal.attach(reader, true, unit.writer(generation), changes, 5)).0?;
    Ok(())
}

/// Returns the interest in every second resync of one unit, and in all its changes.
fn with_resyncs(unit: UnitId, attaches: bool) -> Interest {
    let units = [(unit, UnitInterest { attaches, resync_every: 2 })].into();
    Interest { units, changes: ChangeSet::ALL, filter: None }
}

fn replayed(name: &str, version: u64) -> Change {
    Change::Added { object: pod(name, name, version), cause: Cause::Replay }
}

/// Rule: S-5.
#[test]
fn late_reader_gets_cache_once_then_changes() {
    let mut journal = MemoryJournal::default();
    let early = open(&mut journal, every(0));
    commit(&mut journal, 0, &[initial("a", "a", 1), synced(1)]);
    let awaits = UnitInterest { attaches: true, resync_every: 0 };
    let late =
        open(&mut journal, Interest { units: [(UnitId(0), awaits)].into(), changes: ChangeSet::ALL, filter: None });
    commit(&mut journal, 0, &[updated("a", "a", 1, 2)]);
    assert!(all(&mut journal, late).is_empty(), "it was not introduced");
    attach(&mut journal, late, UnitId(0), 1, &[replayed("a", 2)]).unwrap();
    attach(&mut journal, late, UnitId(0), 1, &[replayed("a", 2)]).unwrap(); // a second one has no effect
    commit(&mut journal, 0, &[updated("a", "a", 2, 3)]);
    assert_eq!(all(&mut journal, late), ["added a/2", "updated a/3<2"]);
    assert_eq!(all(&mut journal, early), ["added a/1", "synced", "updated a/2<1", "updated a/3<2"]);
}

/// Rule: S-5.
#[test]
fn private_records_wait_for_unreleased_ones() {
    let mut journal = MemoryJournal::default();
    let late = open(&mut journal, Interest { changes: ChangeSet::ALL, ..Interest::default() });
    let ticket = journal.append(UnitId(1).writer(1), &[added("x", "x", 1)], &Reached::default(), 0).unwrap();
    attach(&mut journal, late, UnitId(0), 1, &[replayed("a", 1)]).unwrap();
    assert!(journal[late].read_judged(9, usize::MAX).is_empty());
    assert_eq!(journal.outstanding(UnitId(0)), None, "nothing of it has to be released");
    assert_eq!(release(&mut journal, ticket), [late]);
    assert_eq!(all(&mut journal, late), ["added a/1"]);
    assert!(attach(&mut journal, late, UnitId(0), 0, &[]).is_err(), "an older generation is fenced");
}

#[test]
fn rejoining_reader_sees_removed_then_added() {
    let mut journal = MemoryJournal::default();
    let one = open(&mut journal, every(0));
    commit(&mut journal, 0, &[added("a", "a", 1)]);
    let removed = Change::Removed { object: pod("a", "a", 1), cause: Cause::Reload };
    journal.advance(|journal| journal.attach(one, false, UnitId(0).writer(1), &[removed], 0)).0.unwrap();
    commit(&mut journal, 0, &[updated("a", "a", 1, 2)]);
    attach(&mut journal, one, UnitId(0), 1, &[replayed("a", 2)]).unwrap();
    assert_eq!(journal[one].read_judged(9, usize::MAX).len(), 3);
    journal[one].rewind();
    assert_eq!(all(&mut journal, one), ["added a/1", "removed a/1", "added a/2"]);
}

#[test]
fn merging_continues_under_successor_unit() {
    let mut journal = MemoryJournal::default();
    let terms = UnitTerms { resource: TypeNumber(7), late: false, cached: true };
    journal.add_unit(UnitId(0), terms);
    journal.add_unit(UnitId(1), terms);
    let stuck = reader(&mut journal, 1, WhenFull::Coalesce);
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("b", "b", 1, 2)]);
    journal.retire_unit(UnitId(0));
    commit(&mut journal, 1, &[updated("a", "a", 2, 3), updated("b", "b", 2, 3)]);
    assert_eq!(journal.stats(stuck).queued, 2);
    assert_eq!(all(&mut journal, stuck), ["updated a/3<1", "updated b/3<1"]);
}

#[test]
fn uncached_unit_is_bounded_in_bytes_and_events() {
    let mut journal = MemoryJournal::default();
    journal.add_unit(UnitId(0), UnitTerms { resource: TypeNumber(7), late: false, cached: false });
    let stuck = reader(&mut journal, 3, WhenFull::Coalesce);
    let many: Vec<_> = (0..9).map(|n| added(&format!("p{n}"), &format!("u{n}"), 1)).collect();
    commit(&mut journal, 0, &many);
    assert_eq!((journal.stats(stuck).queued, journal.stats(stuck).dropped), (3, 6));
    assert_eq!(journal[stuck].take_losses().named.len(), 6, "E6: by name");
}

#[test]
fn unwanted_records_behind_waiting_one_are_dropped() {
    let mut journal = MemoryJournal::default();
    let interest = Interest { changes: ChangeSet::DELETED, ..everything() };
    let bounds = Bounds { max_events: 5, ..Bounds::default() };
    let stuck = journal.open_reader(ReaderOptions { bounds, interest, name: None });
    commit(&mut journal, 0, &[deleted("a", "a", 1)]);
    for version in 1..100 {
        commit(&mut journal, 1, &[updated("b", "b", version, version + 1)]);
    }
    assert_eq!(journal[stuck].held(), 1);
    assert_eq!(all(&mut journal, stuck), ["deleted a/1"]);
}

/// Rule: S-8.
#[test]
fn reader_syncs_after_acknowledging_initial_state() {
    let mut journal = MemoryJournal::default();
    let (one, full) = (open(&mut journal, every(0)), open(&mut journal, every(0)));
    journal[full].set_bounds(Bounds { max_events: 1, ..Bounds::default() });
    commit(&mut journal, 0, &[initial("a", "a", 1), initial("b", "b", 1), synced(2)]);
    all(&mut journal, one);
    assert!(!journal.has_synced(one), "more may be discovered");
    journal.discovered = true;
    assert!(journal.has_synced(one));
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("b", "b", 1, 2)]);
    for expected in ["added a/2", "added b/2", "synced"] {
        assert!(!journal.has_synced(full), "merged or not, it begins with a and b");
        let batch = journal[full].read_judged(1, usize::MAX);
        assert_eq!(batch.iter().map(brief).collect::<Vec<_>>(), [expected]);
        journal[full].ack(batch[0].sequence);
    }
    assert!(journal.has_synced(full));
}

/// Rule: S-8.
#[test]
fn late_reader_syncs_after_acknowledging_replay() {
    let mut journal = MemoryJournal::default();
    journal.discovered = true;
    commit(&mut journal, 0, &[initial("a", "a", 1), synced(1)]);
    let late = open(
        &mut journal,
        Interest {
            units: [(UnitId(0), UnitInterest { attaches: true, resync_every: 0 })].into(),
            changes: ChangeSet::ALL,
            filter: None,
        },
    );
    assert!(!journal.has_synced(late));
    attach(&mut journal, late, UnitId(0), 1, &[replayed("a", 1)]).unwrap();
    assert!(!journal.has_synced(late));
    all(&mut journal, late);
    assert!(journal.has_synced(late));
}

/// Rule: S-11.
#[test]
fn each_reader_sees_resyncs_when_due() {
    let mut journal = MemoryJournal::default();
    let readers = [every(1), every(2), every(3), every(0)].map(|interest| open(&mut journal, interest));
    let mut due = Vec::new();
    for round in 1..=6 {
        due.push(journal.is_resync_due(UnitId(0), round));
        let object = pod("a", "a", u64::from(round));
        commit(&mut journal, 0, &[Change::Unchanged { object, cause: Cause::Resync { round } }]);
    }
    assert_eq!(due, [true; 6]);
    let seen = readers.map(|reader| all(&mut journal, reader).len());
    assert_eq!(seen, [6, 3, 2, 0]);
    journal.close_reader(readers[0]);
    let due: Vec<_> = (7..=12).map(|round| journal.is_resync_due(UnitId(0), round)).collect();
    assert_eq!(due, [false, true, true, true, false, true], "nobody is due: no resync");
    journal.close_reader(readers[1]);
    journal.close_reader(readers[2]);
    assert!(!journal.is_resync_due(UnitId(0), 18));
}

/// Rule: S-11.
#[test]
fn late_reader_gets_the_same_rounds_as_others() {
    let mut journal = MemoryJournal::default();
    let awaits = UnitInterest { attaches: true, resync_every: 2 };
    let late =
        open(&mut journal, Interest { units: [(UnitId(0), awaits)].into(), changes: ChangeSet::ALL, filter: None });
    assert!(!journal.is_resync_due(UnitId(0), 2), "it sees nothing yet");
    attach(&mut journal, late, UnitId(0), 1, &[]).unwrap();
    let due: Vec<_> = (3..7).map(|round| journal.is_resync_due(UnitId(0), round)).collect();
    assert_eq!(due, [false, true, false, true]);
}

/// Rule: S-11.
#[test]
fn unit_replaced_during_a_join_still_shows_its_resyncs() {
    let mut journal = MemoryJournal::default();
    let late = open(&mut journal, with_resyncs(UnitId(0), true));
    let before = journal.append(UnitId(1).writer(1), &[added("x", "x", 1)], &Reached::default(), 5).unwrap();
    attach(&mut journal, late, UnitId(0), 1, &[replayed("a", 1)]).unwrap();
    commit(&mut journal, 0, &[Change::Unchanged { object: pod("a", "a", 1), cause: Cause::Resync { round: 2 } }]);
    journal.set_interest(late, &with_resyncs(UnitId(2), true));
    release(&mut journal, before);
    assert_eq!(all(&mut journal, late), ["added a/1", "updated a/1"]);
}

/// A pending attachment keeps its resync interval even if a detachment before it becomes visible after the unit was replaced.
#[test]
fn unit_replaced_while_a_reader_leaves_and_joins_it_still_shows_its_resyncs() {
    let mut journal = MemoryJournal::default();
    let reader = open(&mut journal, with_resyncs(UnitId(0), false));
    let before = journal.append(UnitId(1).writer(1), &[added("x", "x", 1)], &Reached::default(), 5).unwrap();
    journal.attach(reader, false, UnitId(0).writer(1), &[removed("a", "a", 1)], 5).unwrap();
    attach(&mut journal, reader, UnitId(0), 1, &[replayed("a", 1)]).unwrap();
    commit(&mut journal, 0, &[Change::Unchanged { object: pod("a", "a", 1), cause: Cause::Resync { round: 2 } }]);
    journal.set_interest(reader, &with_resyncs(UnitId(2), true));
    release(&mut journal, before);
    assert_eq!(all(&mut journal, reader), ["removed a/1", "added a/1", "updated a/1"]);
}

#[test]
fn pending_join_follows_changed_resync_interval() {
    let mut journal = MemoryJournal::default();
    let mut without = with_resyncs(UnitId(0), true);
    without.units.insert(UnitId(0), UnitInterest { attaches: true, resync_every: 0 });
    let reader = open(&mut journal, without);
    let before = journal.append(UnitId(1).writer(1), &[added("x", "x", 1)], &Reached::default(), 5).unwrap();
    attach(&mut journal, reader, UnitId(0), 1, &[replayed("a", 1)]).unwrap();
    commit(&mut journal, 0, &[Change::Unchanged { object: pod("a", "a", 1), cause: Cause::Resync { round: 2 } }]);
    for unit in [UnitId(0), UnitId(2)] {
        journal.set_interest(reader, &with_resyncs(unit, true));
    }
    release(&mut journal, before);
    assert_eq!(all(&mut journal, reader), ["added a/1", "updated a/1"]);
}

#[test]
fn late_type_is_new_to_readers_skipping_initial() {
    let mut journal = MemoryJournal::default();
    let changes = ChangeSet::ADDED.with(ChangeSet::UPDATED);
    let skips = open(&mut journal, Interest { changes, ..everything() });
    journal.add_unit(UnitId(1), UnitTerms { resource: TypeNumber(1), late: true, cached: true });
    commit(&mut journal, 0, &[initial("a", "a", 1)]);
    commit(&mut journal, 1, &[initial("b", "b", 1)]);
    assert_eq!(all(&mut journal, skips), ["added b/1"]);
}

#[test]
fn reader_continues_with_changed_bounds() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 9, WhenFull::Coalesce);
    let many: Vec<_> = (0..6).map(|n| deleted(&format!("p{n}"), &format!("u{n}"), 1)).collect();
    commit(&mut journal, 0, &many);
    for (max_events, when_full) in [(5, WhenFull::DropOldest), (4, WhenFull::Coalesce), (3, WhenFull::DropOldest)] {
        journal[one].set_bounds(Bounds { max_events, max_bytes: 1 << 20, when_full });
        journal.check();
    }
    assert_eq!(journal.stats(one).dropped, 3);
    assert_eq!(all(&mut journal, one), ["deleted u3/1", "deleted u4/1", "deleted u5/1"]);
}

/// Rule: S-8.
#[test]
fn type_syncs_with_its_last_unit() {
    let mut journal = MemoryJournal::default();
    let terms = UnitTerms { resource: TypeNumber(7), late: false, cached: true };
    (0..8).for_each(|unit| {
        journal.add_unit(UnitId(unit), if unit < 2 { terms } else { UnitTerms { resource: TypeNumber(8), ..terms } });
    });
    journal.discovered = true;
    let one = open(&mut journal, every(0));
    commit(&mut journal, 0, &[initial("a", "a", 1)]);
    all(&mut journal, one);
    assert!(!journal.has_synced(one), "its sibling has not");
    commit(&mut journal, 1, &[initial("b", "b", 1), synced(2)]);
    assert_eq!(all(&mut journal, one), ["synced"], "though it does not take that one");
    assert!(journal.has_synced(one));
}

#[test]
fn position_stays_before_open_acknowledgements() {
    let journal = Journal::in_memory();
    let reader = journal.open_reader(ReaderOptions { interest: everything(), ..Default::default() }).unwrap();
    let changes: Vec<_> = (1..6).map(|n| added(&format!("p{n}"), &format!("u{n}"), n)).collect();
    journal.release(journal.append(UnitId(0).writer(1), &changes, &Reached::default(), Timestamp::UNIX_EPOCH).unwrap());
    assert_eq!(journal.read(reader, 9, usize::MAX).len(), 5);
    journal.ack_each(reader, &[Sequence(4), Sequence(2), Sequence(9)]);
    let stats = journal.stats(reader);
    assert_eq!((stats.in_flight, stats.acknowledged, stats.position), (3, 2, Sequence(0)));
    journal.ack_each(reader, &[Sequence(1)]);
    assert_eq!(journal.stats(reader).position, Sequence(2));
    journal.rewind(reader);
    let again: Vec<_> = journal.read(reader, 9, usize::MAX).iter().map(|record| record.sequence.0).collect();
    assert_eq!(again, [3, 5], "what was acknowledged does not come again");
}

#[test]
fn given_up_record_is_replayed_once() {
    let journal = Journal::in_memory();
    let reader = journal.open_reader(ReaderOptions { interest: everything(), ..Default::default() }).unwrap();
    let changes: Vec<_> = (1..4).map(|n| added(&format!("p{n}"), &format!("u{n}"), n)).collect();
    journal.release(journal.append(UnitId(0).writer(1), &changes, &Reached::default(), Timestamp::UNIX_EPOCH).unwrap());
    journal.read(reader, 2, usize::MAX);
    journal.give_up(reader, &[Sequence(1), Sequence(3)]);
    journal.ack_each(reader, &[Sequence(1), Sequence(2)]);
    assert_eq!([journal.replay(reader), journal.replay(reader)], [1, 0]);
    let stats = journal.stats(reader);
    assert_eq!((stats.wanted, stats.queued, stats.acknowledged, stats.position), (4, 2, 2, Sequence(0)));
    let read: Vec<_> = journal.read(reader, 9, usize::MAX).iter().map(|record| record.sequence.0).collect();
    assert_eq!(read, [1, 3]);
}

#[test]
fn oldest_given_up_records_leave_memory_at_limit() {
    let mut journal = MemoryJournal::default();
    let bounds = Bounds { max_bytes: pod("a", "a", 1).size_bytes() * 2, ..Bounds::default() };
    let one = journal.open_reader(ReaderOptions { bounds, interest: everything(), name: None });
    for name in ["a", "b", "c"] {
        commit(&mut journal, 0, &[added(name, name, 1)]);
        let last = journal.released();
        assert_eq!(journal[one].read_judged(9, usize::MAX).len(), 1);
        journal[one].give_up(&[last]);
    }
    assert_eq!(journal[one].replay(), 2);
    assert_eq!(all(&mut journal, one), ["added b/1", "added c/1"]);
}

#[test]
fn late_judgements_overtake_no_rewound_record() {
    let mut journal = MemoryJournal::default();
    let one = open(&mut journal, Interest { filter: Some(ByVersions::shared()), ..everything() });
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 2)]);
    assert_eq!(journal[one].read_judged(1, usize::MAX).len(), 1);
    let Next::Judge(filter, records) = journal[one].read(1, usize::MAX) else { panic!("it is not judged yet") };
    let judged = filter.judge_all(&records);
    journal[one].rewind();
    assert!(journal[one].take(&judged).is_empty());
    assert_eq!(all(&mut journal, one), ["added a/1", "added b/2"]);
}

/// Otherwise the caller would read again at once, for as long as nothing is acknowledged.
#[test]
fn full_reader_has_nothing_to_judge() {
    let mut journal = MemoryJournal::default();
    let bounds = Bounds { max_events: 1, ..Bounds::default() };
    let interest = Interest { filter: Some(ByVersions::shared()), ..everything() };
    let one = journal.open_reader(ReaderOptions { bounds, interest, name: None });
    commit(&mut journal, 0, &[added("a", "a", 1)]);
    assert_eq!(journal[one].read_judged(1, usize::MAX).len(), 1);
    commit(&mut journal, 0, &[added("b", "b", 2)]);
    for max_events in [0, 9] {
        let next = journal[one].read(max_events, usize::MAX);
        assert!(matches!(&next, Next::Read(batch) if batch.is_empty()), "{next:?}");
    }
}

#[test]
fn compaction_step_voids_load_and_tells_last_read_record() {
    let recovered = Recovered {
        journal_id: String::new(),
        last: Sequence(0),
        first: Sequence(1),
        units: Vec::new(),
        readers: Vec::new(),
        clean: true,
        timeline: timeline::TimelinePage::default(),
        tail: timeline::TimelineTail::default(),
    };
    let mut journal = MemoryJournal::restored(Fsync::Interval(Duration::ZERO), &recovered);
    let bounds = Bounds { max_events: 1, ..Bounds::default() };
    let name = Some("one".to_owned());
    let one = journal.open_reader(ReaderOptions { bounds, interest: everything(), name });
    let changes = [added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)];
    let ticket = journal.append(UnitId(0).writer(1), &changes, &Reached::default(), 1).unwrap();
    journal.written(UnitId(0).writer(1), ticket, None).unwrap();
    release(&mut journal, ticket);
    assert_eq!(journal[one].read_judged(1, usize::MAX)[0].sequence, Sequence(1));
    journal[one].ack(Sequence(1));
    let asked = journal[one].to_load();
    assert_eq!(asked.positions, [2]);
    let held = journal[one].hold(9, Sequence(3)).unwrap();
    assert_eq!((held.positions, held.shown), (vec![2, 3], 1));
    journal[one].release();
    assert!(!journal.loaded(one, &asked, Vec::new()), "the step may have changed the records");
    assert_eq!((journal.stats(one).dropped, journal.stats(one).queued), (0, 2));
}
