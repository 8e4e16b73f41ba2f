//! Stored states of recently written objects, so that the next change of an object needs no read from the files.

use std::{collections::HashMap, hash::BuildHasher as _, num::NonZero};

use educe::Educe;
use foldhash::quality::RandomState;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::object::Object;

/// Number of known objects per unit at which all of them are forgotten. Each object takes 40 to 80 bytes of memory.
const MOST: usize = 1 << 18;

/// Hash of uid and version; `None` without a version, because a uid alone does not identify a state.
pub(super) type Print = Option<NonZero<u64>>;

/// Stored state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectState {
    /// Sequence of the record that brought the state. The first sequence is 1.
    pub(super) sequence: NonZero<u64>,
    pub(super) print: Print,
}

impl ObjectState {
    /// Returns true if this state has the given print. Returns false for `None`: without a version no two states are equal.
    pub(super) fn is(&self, print: Print) -> bool {
        print.is_some() && self.print == print
    }
}

/// Known states of the objects of one unit. All other states are in the files.
#[derive(Debug, Educe)]
#[educe(Default)]
pub(super) struct Recent {
    /// State by [key](Self::key) of the object; `None` if the store has none.
    states: HashMap<u128, Option<ObjectState>, RandomState>,
    /// Secret seed, so that names cannot be chosen to give two objects the same key.
    #[educe(Default = rand::random())]
    seed: u64,
}

impl Recent {
    /// Returns a hash of an object's key. It is wide enough that collisions need not be handled.
    pub(super) fn key(&self, object_key: &[u8]) -> u128 {
        xxh3_128_with_seed(object_key, self.seed)
    }

    pub(super) fn print(&self, uid: &str, resource_version: &str) -> Print {
        let print = NonZero::new(self.states.hasher().hash_one((uid, resource_version)));
        print.filter(|_| !resource_version.is_empty())
    }

    pub(super) fn print_of(&self, object: &Object) -> Print {
        self.print(object.uid(), object.resource_version())
    }

    /// Returns the state of an object. Calls `read` if the object is not known here.
    pub(super) fn state<E>(
        &self,
        key: u128,
        read: impl FnOnce() -> Result<Option<ObjectState>, E>,
    ) -> Result<Option<ObjectState>, E> {
        self.states.get(&key).map_or_else(read, |known| Ok(*known))
    }

    pub(super) fn put(&mut self, key: u128, state: Option<ObjectState>) {
        self.states.insert(key, state);
    }

    /// Forgets the objects in `without_state`. If [`MOST`] or more objects are left, forgets all of them.
    pub(super) fn shrink(&mut self, without_state: &[u128]) {
        for key in without_state {
            self.states.remove(key);
        }
        if self.states.len() >= MOST {
            self.states.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(recent: &Recent, sequence: u64, version: &str) -> Option<ObjectState> {
        let print = recent.print("u", version);
        NonZero::new(sequence).map(|sequence| ObjectState { sequence, print })
    }

    #[test]
    fn last_state_of_object_is_known() {
        let mut recent = Recent::default();
        let (a, b) = (recent.key(b"a/x"), recent.key(b"a/y"));
        let unknown = || Err(());
        assert_eq!(recent.state(a, unknown), Err(()));
        for sequence in [7, 9] {
            let state = state(&recent, sequence, "1");
            recent.put(a, state);
            assert_eq!((recent.state(a, unknown), recent.state(b, unknown)), (Ok(state), Err(())));
        }
        recent.put(a, None);
        assert_eq!(recent.state(a, unknown), Ok(None));
        recent.shrink(&[a]);
        assert_eq!(recent.state(a, unknown), Err(()));
    }

    #[test]
    fn different_states_have_different_fingerprints() {
        let recent = Recent::default();
        let states = [("u", "1"), ("v", "1"), ("u", "2"), ("u1", "1"), ("", "u1")];
        let prints = states.map(|(uid, version)| recent.print(uid, version));
        for (at, print) in prints.iter().enumerate() {
            assert!(print.is_some() && !prints[..at].contains(print), "{:?}", states[at]);
        }
        let state = state(&recent, 1, "").unwrap();
        assert_eq!((state.print, state.is(state.print)), (None, false));
    }

    #[test]
    fn recent_states_are_cleared_at_limit() {
        let mut recent = Recent::default();
        for key in 1..MOST as u128 {
            recent.put(key, None);
        }
        recent.shrink(&[]);
        assert_eq!(recent.states.len(), MOST - 1);
        recent.put(0, None);
        recent.shrink(&[]);
        assert!(recent.states.is_empty());
    }
}
