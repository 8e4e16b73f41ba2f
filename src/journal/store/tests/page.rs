//! Reading the log without a cursor. All pages together contain all records for every reader, and missing records are reported.

use super::*;

const ALL: PageSize = PageSize { max_events: usize::MAX, max_bytes: u64::MAX };

/// Returns a store with twelve records of unit 1. One is for a single reader, one is of an unchanged object, the others are
/// for all.
fn twelve() -> Opened {
    let opened = fresh();
    let unchanged = Change::Unchanged { object: pod("b", "ub", 1), cause: Cause::Relist };
    let append = |first: u64, only: Option<&str>, changes: &[Change]| {
        let time_micros = i64::try_from(first * 10).unwrap();
        opened.store.append(&Append { time_micros, only, ..batch(first, changes) }).unwrap();
    };
    append(1, None, &[added("a", "ua", 1), added("b", "ub", 1), added("c", "uc", 1)]);
    append(4, None, &[updated("a", "ua", 1, 2), unchanged, deleted("c", "uc", 3)]);
    append(7, Some("late"), &[added("a", "ua", 2)]);
    append(8, None, &[updated("a", "ua", 2, 3), updated("a", "ua", 3, 4)]);
    append(10, None, &[removed("b", "ub", 1), synced(1), added("d", "ud", 9)]);
    opened
}

fn page(store: &Store, after: u64, until: u64, size: PageSize) -> LogPage {
    store.page((Sequence(after), Sequence(until)), size, &|unit| unit == UnitId(1)).unwrap()
}

fn positions(page: &LogPage) -> Vec<u64> {
    page.records.iter().map(|record| record.sequence.0).collect()
}

#[test]
fn page_shows_public_records_of_log_range() {
    let Opened { store, .. } = &twelve();
    let all = page(store, 0, 12, ALL);
    assert_eq!(positions(&all), [1, 2, 3, 4, 6, 8, 9, 10, 11, 12]);
    assert_eq!((all.to, all.missing, all.first), (Sequence(12), 0, Sequence(1)));
    assert_eq!(all.records.iter().map(brief).nth(3).unwrap(), "updated ua/2<1");
    assert_eq!(positions(&page(store, 4, 9, ALL)), [6, 8, 9]);
    assert_eq!(positions(&page(store, 12, 12, ALL)), [0; 0]);
    assert_eq!(page(store, 6, 7, ALL).to, Sequence(7), "there is nothing there for everybody");
}

#[test]
fn pages_of_any_size_form_the_whole() {
    let Opened { store, .. } = &twelve();
    for (max_events, max_bytes) in [(1, u64::MAX), (2, u64::MAX), (3, u64::MAX), (99, 1), (99, 250), (0, 0)] {
        let (mut at, mut seen) = (0, Vec::new());
        while at < 12 {
            let part = page(store, at, 12, PageSize { max_events, max_bytes });
            assert!(part.to.0 > at, "it gets on");
            assert!(positions(&part).iter().all(|position| *position > at && *position <= part.to.0));
            at = part.to.0;
            seen.extend(positions(&part));
        }
        assert_eq!(seen, positions(&page(store, 0, 12, ALL)), "{max_events} events, {max_bytes} bytes");
    }
}

#[test]
fn missing_or_unreadable_records_are_counted() {
    let Opened { store, .. } = &twelve();
    let of_nobody = store.page((Sequence(0), Sequence(12)), ALL, &|_| false).unwrap();
    assert_eq!((of_nobody.records.len(), of_nobody.missing), (0, 10));
    store.sync().unwrap();
    while store.retain(Sequence(6)).unwrap().more {}
    let rest = page(store, 0, 12, ALL);
    assert_eq!((rest.first, positions(&rest)), (Sequence(6), vec![6, 8, 9, 10, 11, 12]));
}
