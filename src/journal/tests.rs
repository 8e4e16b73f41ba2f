//! The journal's promises, one by one.

use super::{memory::MemoryJournal, testing::*, *};

fn reader(journal: &mut MemoryJournal, max_events: usize, when_full: WhenFull) -> ReaderId {
    let bounds = Bounds { max_events, max_bytes: 1 << 20, when_full };
    journal.open_reader(Start::Next, ReaderOptions { bounds, interest: everything() }).unwrap()
}

fn commit(journal: &mut MemoryJournal, unit: u32, changes: &[Change]) {
    let ticket = journal.append(UnitId(unit), 1, changes, 5).unwrap();
    journal.release(ticket);
    journal.check();
}

fn all(journal: &mut MemoryJournal, reader: ReaderId) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let batch = journal.read(reader, 100, usize::MAX);
        let Some(last) = batch.last() else { return seen };
        journal.ack(reader, last.sequence);
        seen.extend(batch.iter().map(brief));
        journal.check();
    }
}

/// What a reader is shown that was full from the start; `max_events` is 1.
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

/// As [`merged`], but in one batch and with room for a few deletions.
fn merged_with_room(changes: &[Change]) -> Vec<String> {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 9, WhenFull::Coalesce);
    let filler: Vec<_> = (0..10).map(|n| added("x", "x", n)).collect();
    commit(&mut journal, 7, &filler);
    commit(&mut journal, 0, changes);
    all(&mut journal, full).split_off(1)
}

#[test]
fn d7_coalescing_keeps_the_first_old_and_the_last_object() {
    let shown = merged(&[updated("a", "a", 1, 2), updated("a", "a", 2, 3), updated("a", "a", 3, 4)]);
    assert_eq!(shown, ["updated a/4<1"]);
    assert_eq!(merged(&[added("a", "a", 1), updated("a", "a", 1, 2)]), ["added a/2"]);
}

#[test]
fn d7_a_deletion_is_never_cancelled_and_follows_its_added() {
    assert_eq!(merged_with_room(&[added("a", "a", 1), deleted("a", "a", 2)]), ["added a/1", "deleted a/2"]);
    assert_eq!(merged_with_room(&[updated("a", "a", 1, 2), deleted("a", "a", 3)]), ["deleted a/3"]);
    let recreated = [deleted("a", "a", 2), added("a", "b", 3), updated("a", "b", 3, 4)];
    assert_eq!(merged_with_room(&recreated), ["deleted a/2", "added b/4"]);
}

#[test]
fn d7_an_object_that_goes_in_and_out_costs_one_record() {
    let flapping = [removed("a", "a", 1), added("a", "a", 2), removed("a", "a", 2), added("a", "a", 3)];
    assert_eq!(merged_with_room(&flapping), ["removed a/2", "added a/3"]);
    let ends = [removed("a", "a", 1), added("a", "a", 2), deleted("a", "a", 3)];
    assert_eq!(merged_with_room(&ends), ["deleted a/3"]);
    let lives = [deleted("a", "a", 1), added("a", "a", 2), removed("a", "a", 2)];
    assert_eq!(merged_with_room(&lives), ["deleted a/1", "added a/2", "removed a/2"]);
}

#[test]
fn d7_an_object_recreated_in_one_update_keeps_its_old() {
    let recreated = Change::Updated { old: pod("a", "a", 1), object: pod("a", "b", 2), cause: Cause::Relist };
    assert_eq!(merged(&[recreated.clone(), updated("a", "b", 2, 3)]), ["updated b/3<1"]);
    let both = merged_with_room(&[recreated, updated("a", "b", 2, 3), deleted("a", "b", 4)]);
    assert_eq!(both, ["updated b/3<1", "deleted b/4"], "I2: nobody hears of the end of what he never saw");
}

#[test]
fn d7_unchanged_objects_add_nothing_to_what_waits() {
    let unchanged = |v| Change::Unchanged { object: pod("a", "a", v), cause: Cause::Relist };
    assert_eq!(merged(&[updated("a", "a", 1, 2), unchanged(2)]), ["updated a/2<1"]);
    assert_eq!(merged(&[unchanged(2), unchanged(2), updated("a", "a", 2, 3)]), ["updated a/3<2"]);
}

#[test]
fn synced_comes_after_the_last_initial_object_even_when_merged() {
    let changes = [initial("a", "a", 1), synced(1), updated("a", "a", 1, 2), updated("a", "a", 2, 3)];
    assert_eq!(merged_with_room(&changes), ["added a/1", "synced", "updated a/3<1"]);
    let before = [initial("a", "a", 1), updated("a", "a", 1, 2), synced(1)];
    assert_eq!(merged_with_room(&before), ["added a/2", "synced"]);
}

#[test]
fn d7_nothing_in_flight_is_merged() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 1, WhenFull::Coalesce);
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 1)]);
    assert_eq!(journal.read(full, 1, 1).iter().map(brief).collect::<Vec<_>>(), ["added a/1"]);
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("a", "a", 2, 3)]);
    journal.rewind(full);
    assert_eq!(all(&mut journal, full), ["added a/1", "added b/1", "updated a/3<1"]);
}

#[test]
fn d7_a_deletion_is_acknowledged_before_the_next_uid_of_that_name_is_sent() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    commit(&mut journal, 0, &[deleted("a", "a", 1), added("b", "b", 1), added("a", "c", 2)]);
    let batch = journal.read(one, 10, usize::MAX);
    assert_eq!(batch.iter().map(brief).collect::<Vec<_>>(), ["deleted a/1", "added b/1"]);
    assert!(journal.read(one, 10, usize::MAX).is_empty());
    journal.ack(one, batch[0].sequence);
    assert_eq!(journal.read(one, 10, usize::MAX).iter().map(brief).collect::<Vec<_>>(), ["added c/2"]);
}

#[test]
fn i5_past_the_bound_the_oldest_deletions_are_dropped_counted_and_named() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 3, WhenFull::Coalesce);
    let gone: Vec<_> = (0..6).map(|n| deleted(&format!("p{n}"), &format!("u{n}"), 1)).collect();
    commit(&mut journal, 0, &gone);
    let lost = journal.take_losses(full).named;
    assert_eq!(lost.iter().map(|event| &*event.uid).collect::<Vec<_>>(), ["u0", "u1", "u2"]);
    assert_eq!(lost[0].to_string(), "deleted ns/p0 (sequence 1, uid u0)");
    assert_eq!(all(&mut journal, full), ["deleted u3/1", "deleted u4/1", "deleted u5/1"]);
    assert_eq!(journal.stats(full).dropped, 3);
}

#[test]
fn i2_a_life_that_nobody_saw_is_dropped_as_a_whole() {
    let mut journal = MemoryJournal::default();
    let full = reader(&mut journal, 3, WhenFull::Coalesce);
    let lives = [added("a", "a", 1), deleted("a", "a", 2), added("c", "c", 3), deleted("c", "c", 4)];
    commit(&mut journal, 0, &lives);
    assert_eq!(journal.stats(full).dropped, 2);
    assert_eq!(all(&mut journal, full), ["added c/3", "deleted c/4"]);
}

#[test]
fn i5_a_reader_that_does_not_want_deletions_keeps_no_bodies_of_what_is_gone() {
    let mut journal = MemoryJournal::default();
    let bounds = Bounds { max_events: 3, ..Bounds::default() };
    let interest = Interest { changes: ChangeSet::ADDED, ..everything() };
    let only_added = journal.open_reader(Start::Next, ReaderOptions { bounds, interest }).unwrap();
    for n in 0..100 {
        let (name, uid) = (format!("job{n}"), format!("u{n}"));
        commit(&mut journal, 0, &[added(&name, &uid, 1), updated(&name, &uid, 1, 2), deleted(&name, &uid, 3)]);
    }
    assert_eq!(journal.stats(only_added).queued, 3);
    assert_eq!(journal.stats(only_added).dropped, 97);
}

#[test]
fn i5_olds_are_given_up_before_anything_is_dropped() {
    let mut journal = MemoryJournal::default();
    let size = pod("a", "a", 1).size_bytes();
    let bounds = Bounds { max_events: 100, max_bytes: size * 2 + size / 2, when_full: WhenFull::Coalesce };
    let one = journal.open_reader(Start::Next, ReaderOptions { bounds, interest: everything() }).unwrap();
    commit(&mut journal, 0, &[updated("a", "a", 1, 2), updated("b", "b", 1, 2), updated("c", "c", 1, 2)]);
    assert_eq!(journal.stats(one).olds_given_up, 1);
    assert_eq!(all(&mut journal, one), ["updated a/2", "updated b/2<1", "updated c/2<1"]);
}

#[test]
fn i6_drop_policies_name_what_they_drop() {
    for (when_full, lost, kept) in
        [(WhenFull::DropOldest, ["1", "2"], ["3", "4"]), (WhenFull::DropNewest, ["3", "4"], ["1", "2"])]
    {
        let mut journal = MemoryJournal::default();
        let one = reader(&mut journal, 2, when_full);
        let changes: Vec<_> = (1..5).map(|n| updated("a", &n.to_string(), 1, 2)).collect();
        commit(&mut journal, 0, &changes);
        let named = journal.take_losses(one).named;
        assert_eq!(named.iter().map(|event| &*event.uid).collect::<Vec<_>>(), lost);
        assert_eq!(all(&mut journal, one), kept.map(|uid| format!("updated {uid}/2<1")));
    }
}

#[test]
fn i3_nothing_is_seen_above_the_release_mark() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    let first = journal.append(UnitId(0), 1, &[added("a", "a", 1)], 0).unwrap();
    let second = journal.append(UnitId(1), 1, &[added("b", "b", 1)], 0).unwrap();
    assert!(journal.release(second).is_empty());
    assert!(journal.read(one, 10, 1000).is_empty());
    assert_eq!(journal.outstanding(UnitId(0)), Some(first));
    assert_eq!(journal.release(first), [one]);
    assert_eq!(journal.released(), Sequence(2));
    assert_eq!(all(&mut journal, one), ["added a/1", "added b/1"]);
}

#[test]
fn d6_a_replaced_unit_is_fenced_and_what_it_left_can_be_withdrawn() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 10, WhenFull::Coalesce);
    let hung = journal.append(UnitId(0), 1, &[added("a", "a", 1)], 0).unwrap();
    let other = journal.append(UnitId(1), 1, &[added("b", "b", 1)], 0).unwrap();
    journal.release(other);
    journal.fence(UnitId(0), 2);
    let late = journal.append(UnitId(0), 1, &[added("a", "a", 2)], 0);
    assert_eq!(late, Err(Fenced { unit: UnitId(0), epoch: 1, current: 2 }));
    assert_eq!(journal.withdraw(UnitId(0)), (1, vec![one]));
    assert!(journal.release(hung).is_empty());
    assert_eq!(all(&mut journal, one), ["added b/1"]);
    journal.append(UnitId(0), 2, &[], 0).unwrap();
    assert_eq!(journal.outstanding(UnitId(0)), None);
}

#[test]
fn i7_a_stuck_reader_holds_nothing_for_others() {
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
fn a_reader_begins_where_it_asks_or_hears_of_a_gap() {
    let mut journal = MemoryJournal::default();
    let holder = reader(&mut journal, 10, WhenFull::Coalesce);
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 1)]);
    let options = || ReaderOptions { interest: everything(), ..ReaderOptions::default() };
    let late = journal.open_reader(Start::After(Sequence(1)), options()).unwrap();
    assert_eq!(all(&mut journal, late), ["added b/1"]);
    all(&mut journal, holder);
    let gap = journal.open_reader(Start::After(Sequence(1)), options()).unwrap_err();
    assert_eq!(gap, Gap { asked: Sequence(1), first: Sequence(3), last: Sequence(2) });
    assert!(journal.open_reader(Start::After(Sequence(9)), options()).is_err());
}

#[test]
fn an_abandoned_reader_loses_everything_by_name() {
    let mut journal = MemoryJournal::default();
    let one = reader(&mut journal, 1, WhenFull::Coalesce);
    commit(&mut journal, 0, &[added("a", "a", 1), added("b", "b", 1), added("c", "c", 1)]);
    journal.read(one, 1, 1);
    journal.abandon(one);
    journal.check();
    assert_eq!(journal.take_losses(one).named.len(), 3);
    commit(&mut journal, 0, &[added("d", "d", 1)]);
    assert_eq!(journal.stats(one).queued, 0);
}

#[tokio::test]
async fn readers_are_woken_by_a_release_and_not_lost_before_they_wait() {
    let journal = Journal::in_memory();
    assert_eq!(journal.id().len(), 12);
    let options = ReaderOptions { interest: everything(), ..ReaderOptions::default() };
    let one = journal.open_reader(Start::Next, options).unwrap();
    let ticket = journal.append(UnitId(0), 1, &[added("a", "a", 1)], Timestamp::UNIX_EPOCH).unwrap();
    journal.release(ticket);
    journal.readable(one).await;
    assert_eq!(journal.read(one, 10, 1000).len(), 1);
    assert_eq!(journal.undelivered(one, 5).len(), 1);
}
