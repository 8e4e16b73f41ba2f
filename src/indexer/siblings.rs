//! The units of one type together: the type is synced once, when the last of them is.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{journal::UnitId, mutex::lock};

/// What the units of one type know of each other. It outlives them: units that take the place of others join the same.
///
/// **Invariant:** [`Change::Synced`](crate::change::Change::Synced) is appended once for all the units that ever join,
/// by the one that completes them, and behind the first list of each: who appends it holds the lock meanwhile.
#[derive(Debug, Default)]
pub struct Siblings {
    state: Mutex<State>,
    settled: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    units: BTreeMap<UnitId, Member>,
    announced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    synced: bool,
    objects: u64,
}

impl State {
    /// Returns the sum of the objects, if there is a unit, all are synced, and nobody has said so.
    fn total(&self) -> Option<u64> {
        let complete = !self.units.is_empty() && self.units.values().all(|member| member.synced);
        (complete && !self.announced).then(|| self.units.values().map(|member| member.objects).sum())
    }

    /// Returns the same as it will be with `unit` synced.
    fn total_with(&self, unit: UnitId, objects: u64) -> Option<u64> {
        let mut others = self.units.iter().filter(|(other, _)| **other != unit).map(|(_, member)| member);
        if self.announced {
            return None;
        }
        others.try_fold(objects, |total, member| member.synced.then(|| total + member.objects))
    }
}

impl Siblings {
    /// Adds a unit; one that is seeded may be synced already.
    pub fn join(&self, unit: UnitId, synced: bool, objects: u64) {
        lock(&self.state).units.insert(unit, Member { synced, objects });
    }

    /// Lets `append` write a batch with which `unit` is synced and has so many objects; `append` is given the objects of
    /// all units if the type is synced with it. The unit is synced once `append` has succeeded.
    ///
    /// # Errors
    /// Those of `append`.
    pub fn sync<T, E>(
        &self,
        unit: UnitId,
        objects: u64,
        append: impl FnOnce(Option<u64>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut state = lock(&self.state);
        let total = state.total_with(unit, objects);
        let appended = append(total)?; // nor is it synced if this panics
        state.units.insert(unit, Member { synced: true, objects });
        self.announced(&mut state, total);
        Ok(appended)
    }

    /// Takes a unit out that has ended for good, and lets `append` write its last records; it is given the objects of
    /// the others if they had waited for this one alone.
    ///
    /// # Errors
    /// Those of `append`.
    pub fn leave<T, E>(&self, unit: UnitId, append: impl FnOnce(Option<u64>) -> Result<T, E>) -> Result<T, E> {
        let mut state = lock(&self.state);
        state.units.remove(&unit);
        let total = state.total();
        let appended = append(total);
        if appended.is_ok() {
            self.announced(&mut state, total);
        }
        appended
    }

    /// Notes how many objects a unit has. Costs nothing once the type is synced.
    pub fn note(&self, unit: UnitId, objects: u64) {
        if !self.settled.load(Ordering::Relaxed)
            && let Some(member) = lock(&self.state).units.get_mut(&unit)
        {
            member.objects = objects;
        }
    }

    /// Returns whether the type was said to be synced.
    pub fn has_synced(&self) -> bool {
        lock(&self.state).announced
    }

    fn announced(&self, state: &mut State, total: Option<u64>) {
        state.announced |= total.is_some();
        self.settled.store(state.announced, Ordering::Relaxed);
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

    #[test]
    fn f50_the_last_unit_to_sync_says_so_for_all_and_nobody_says_it_again() {
        let siblings = three();
        assert_eq!((sync(&siblings, B, 2), sync(&siblings, A, 3)), (None, None));
        siblings.note(B, 5);
        assert!(!siblings.has_synced());
        assert_eq!(sync(&siblings, C, 10), Some(18), "all objects there are then");
        assert!(siblings.has_synced());
        siblings.join(UnitId(4), false, 0);
        assert_eq!(sync(&siblings, UnitId(4), 1), None, "units that come later say nothing");
        assert_eq!([A, B, C, UnitId(4)].map(|unit| leave(&siblings, unit)), [None; 4]);
    }

    #[test]
    fn a_unit_whose_append_was_refused_is_not_synced() {
        let siblings = three();
        sync(&siblings, A, 1);
        sync(&siblings, B, 1);
        let refused: Result<(), _> = siblings.sync(C, 1, Err);
        assert_eq!(refused, Err(Some(3)));
        assert!(!siblings.has_synced());
        assert_eq!(leave(&siblings, UnitId(9)), None, "one is missing");
        assert_eq!(sync(&siblings, C, 2), Some(4), "its successor says it");
    }

    #[test]
    fn a_unit_that_panics_while_it_appends_has_not_synced_for_others() {
        let siblings = three();
        let panics = std::panic::AssertUnwindSafe(|| siblings.sync(A, 1, |_| -> Result<(), ()> { panic!("injected") }));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!((sync(&siblings, B, 1), sync(&siblings, C, 1)), (None, None));
        assert_eq!(sync(&siblings, A, 1), Some(3));
    }

    #[test]
    fn a_unit_that_goes_unsynced_does_not_keep_the_others_waiting() {
        let siblings = three();
        assert_eq!((sync(&siblings, A, 1), sync(&siblings, B, 2)), (None, None));
        assert_eq!(leave(&siblings, C), Some(3));
        assert_eq!(leave(&siblings, B), None);
    }

    #[test]
    fn nobody_says_it_where_no_unit_is_left_or_none_had_to_sync() {
        let siblings = Siblings::default();
        siblings.join(A, false, 0);
        assert_eq!(leave(&siblings, A), None);
        siblings.join(B, true, 7);
        siblings.join(C, false, 0);
        assert_eq!(sync(&siblings, C, 1), Some(8), "a seeded unit counts");
    }
}
