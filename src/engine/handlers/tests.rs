use super::*;
use crate::{
    change::{Cause, Change},
    config::EventType,
    journal::testing::*,
};

/// Returns the kinds of changes that a handler with these options gets, as text.
fn taken(options: &HandlerOptions) -> String {
    let unchanged = |cause| Change::Unchanged { object: pod("a", "a", 1), cause };
    let missed = Change::Deleted { object: pod("a", "a", 1), tombstone: true, cause: Cause::Downtime };
    let each = [
        ('a', added("a", "a", 1)),
        ('i', initial("a", "a", 1)),
        ('u', updated("a", "a", 1, 2)),
        ('d', deleted("a", "a", 1)),
        ('r', removed("a", "a", 1)),
        ('m', missed),
        ('s', synced(1)),
        ('=', unchanged(Cause::Relist)),
        ('~', unchanged(Cause::Resync { round: 1 })),
    ];
    each.into_iter().filter(|(_, change)| changes(options).contains(change)).map(|(sign, _)| sign).collect()
}

/// Rules: S-4, D-8.
#[test]
fn route_takes_changes_according_to_its_options() {
    use EventType::{Added, Deleted, Removed, Synced, Updated};
    let with = HandlerOptions::default;
    let (initial, resync) = (Initial::Send, Duration::from_secs(1));
    assert_eq!(taken(&with()), "audrm");
    assert_eq!(taken(&HandlerOptions { initial, ..with() }), "aiudrm");
    assert_eq!(taken(&HandlerOptions { initial, on: vec![Deleted], ..with() }), "dm");
    assert_eq!(taken(&HandlerOptions { on: vec![Added, Synced], ..with() }), "as");
    assert_eq!(taken(&HandlerOptions { deliver_unchanged: true, ..with() }), "audrm=");
    assert_eq!(taken(&HandlerOptions { catch_up: false, ..with() }), "audr");
    assert_eq!(taken(&HandlerOptions { resync, ..with() }), "audrm~");
    assert_eq!(taken(&HandlerOptions { resync, deliver_unchanged: true, on: vec![Added], ..with() }), "a");
    assert_eq!(taken(&HandlerOptions { on: vec![Added, Updated, Deleted, Removed, Synced], ..with() }), "audrms");
}
