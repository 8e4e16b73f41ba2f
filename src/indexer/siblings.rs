//! State shared by the units of one type. The type becomes synced once: when its last unit is synced.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{journal::UnitId, mutex::lock};

/// Shared state of the units of one type. The state outlives the units: a replacement unit joins the same state.
///
/// **Invariant:** [`Change::Synced`](crate::change::Change::Synced) is appended once per type: when all units that have joined so
/// far are synced. Units that join later append no `Synced`. `sync` and `leave` hold the lock during the append.
#[derive(Debug, Default)]
pub struct Siblings {
    units: Mutex<BTreeMap<UnitId, Member>>,
    /// Set once the type is synced; written under the lock of `units`.
    announced: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    synced: bool,
    objects: u64,
}

impl Siblings {
    /// Decides about the type when `unit` becomes synced (`syncing` is its number of objects) or leaves (`None`). If the type
    /// thereby becomes synced, returns the number of objects of all units. Returns `None` if another unit is not synced, no unit is
    /// left, or the type was synced before.
    fn total(&self, units: &BTreeMap<UnitId, Member>, unit: UnitId, syncing: Option<u64>) -> Option<u64> {
        let mut others = units.iter().filter(|(other, _)| **other != unit).map(|(_, member)| member).peekable();
        if self.announced.load(Ordering::Relaxed) || syncing.is_none() && others.peek().is_none() {
            return None;
        }
        let objects = syncing.unwrap_or_default();
        others.try_fold(objects, |total, member| member.synced.then(|| total + member.objects))
    }

    /// Adds a unit. A unit that starts with a cache may be synced already.
    pub fn join(&self, unit: UnitId, synced: bool, objects: u64) {
        lock(&self.units).insert(unit, Member { synced, objects });
    }

    /// Calls `append`, which writes the batch that makes `unit` synced. `objects` is the number of objects of `unit`. If this batch
    /// makes the type synced, `append` gets the number of objects of all units. `unit` is synced once `append` has succeeded.
    ///
    /// # Errors
    /// Returns the error of `append`.
    pub fn sync<T, E>(
        &self,
        unit: UnitId,
        objects: u64,
        append: impl FnOnce(Option<u64>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut units = lock(&self.units);
        let total = self.total(&units, unit, Some(objects));
        let appended = append(total)?; // if this panics, the unit is not synced
        units.insert(unit, Member { synced: true, objects });
        self.announced.fetch_or(total.is_some(), Ordering::Relaxed);
        Ok(appended)
    }

    /// Removes an ended unit, and calls `append`, which writes the last records of the unit. If the removal makes the type synced,
    /// `append` gets the number of objects of the remaining units.
    ///
    /// # Errors
    /// Returns the error of `append`.
    pub fn leave<T, E>(&self, unit: UnitId, append: impl FnOnce(Option<u64>) -> Result<T, E>) -> Result<T, E> {
        let mut units = lock(&self.units);
        units.remove(&unit);
        let total = self.total(&units, unit, None);
        let appended = append(total)?;
        self.announced.fetch_or(total.is_some(), Ordering::Relaxed);
        Ok(appended)
    }

    /// Notes the number of objects of a unit. Takes no lock once the type is synced.
    pub fn note(&self, unit: UnitId, objects: u64) {
        // `Relaxed` is enough: the flag never returns to false, and an outdated false only costs a lock.
        if !self.announced.load(Ordering::Relaxed)
            && let Some(member) = lock(&self.units).get_mut(&unit)
        {
            member.objects = objects;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: UnitId = UnitId(1);
    const B: UnitId = UnitId(2);
    const C: UnitId = UnitId(3);

    fn sync(siblings: &Siblings, unit: UnitId, objects: u64) -> Option<u64> {
        siblings.sync(unit, objects, Ok::<_, ()>).unwrap()
    }

    fn leave(siblings: &Siblings, unit: UnitId) -> Option<u64> {
        siblings.leave(unit, Ok::<_, ()>).unwrap()
    }

    fn three() -> Siblings {
        let siblings = Siblings::default();
        for unit in [A, B, C] {
            siblings.join(unit, false, 0);
        }
        siblings
    }

    /// Rule: F-50.
    #[test]
    fn last_unit_to_sync_reports_for_all() {
        let siblings = three();
        assert_eq!((sync(&siblings, B, 2), sync(&siblings, A, 3)), (None, None));
        siblings.note(B, 5);
        assert!(!siblings.announced.load(Ordering::Relaxed));
        assert_eq!(sync(&siblings, C, 10), Some(18), "all objects there are then");
        assert!(siblings.announced.load(Ordering::Relaxed));
        siblings.join(UnitId(4), false, 0);
        assert_eq!(sync(&siblings, UnitId(4), 1), None, "units that come later say nothing");
        assert_eq!([A, B, C, UnitId(4)].map(|unit| leave(&siblings, unit)), [None; 4]);
    }

    #[test]
    fn unit_with_refused_append_is_not_synced() {
        let siblings = three();
        sync(&siblings, A, 1);
        sync(&siblings, B, 1);
        let refused: Result<(), _> = siblings.sync(C, 1, Err);
        assert_eq!(refused, Err(Some(3)));
        assert!(!siblings.announced.load(Ordering::Relaxed));
        assert_eq!(leave(&siblings, UnitId(9)), None, "one is missing");
        assert_eq!(sync(&siblings, C, 2), Some(4), "its successor says it");
    }

    #[test]
    fn panic_during_append_syncs_no_unit() {
        let siblings = three();
        let panics = std::panic::AssertUnwindSafe(|| siblings.sync(A, 1, |_| -> Result<(), ()> { panic!("injected") }));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!((sync(&siblings, B, 1), sync(&siblings, C, 1)), (None, None));
        assert_eq!(sync(&siblings, A, 1), Some(3));
    }

    #[test]
    fn unsynced_unit_that_leaves_unblocks_others() {
        let siblings = three();
        assert_eq!((sync(&siblings, A, 1), sync(&siblings, B, 2)), (None, None));
        assert_eq!(leave(&siblings, C), Some(3));
        assert_eq!(leave(&siblings, B), None);
    }

    #[test]
    fn no_sync_is_reported_without_waiting_units() {
        let siblings = Siblings::default();
        siblings.join(A, false, 0);
        assert_eq!(leave(&siblings, A), None);
        siblings.join(B, true, 7);
        siblings.join(C, false, 0);
        assert_eq!(sync(&siblings, C, 1), Some(8), "a seeded unit counts");
    }
}
