//! Locations of recently written states, so that the next change of an object needs no read from the files.

use hashbrown::{HashTable, hash_table::Entry};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Maximum number of known states per unit, of 25 to 50 bytes each. When it is reached, all are forgotten.
const MOST: usize = 1 << 18;

/// Fingerprint of a state: a 128-bit hash of key, uid and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print([u64; 2]);

/// Known states of one unit. An entry exists only while the object is in that state. All other states are in the files.
#[derive(Debug)]
pub(super) struct Recent {
    places: HashTable<(Print, u64)>,
    /// Secret seed, so that names cannot be chosen to make two objects share a print.
    seed: u64,
    text: Vec<u8>,
}

impl Default for Recent {
    fn default() -> Self {
        Self { places: HashTable::new(), seed: rand::random(), text: Vec::new() }
    }
}

impl Recent {
    /// Returns the print of a state of the object with this key. Returns `None` without a version: uid and key alone do not
    /// identify a state.
    pub(super) fn print(&mut self, key: &[u8], uid: &str, resource_version: &str) -> Option<Print> {
        if resource_version.is_empty() {
            return None;
        }
        self.text.clear();
        for part in [key, b"\0", uid.as_bytes(), b"\0", resource_version.as_bytes()] {
            self.text.extend_from_slice(part);
        }
        let print = xxh3_128_with_seed(&self.text, self.seed);
        #[expect(clippy::cast_possible_truncation, reason = "two halves, bit by bit")]
        Some(Print([(print >> 64) as u64, print as u64]))
    }

    /// Returns the sequence of a state, if known.
    pub(super) fn find(&self, print: Print) -> Option<u64> {
        self.places.find(print.0[0], |(known, _)| *known == print).map(|(_, sequence)| *sequence)
    }

    /// Notes the sequence of an object's new state.
    pub(super) fn put(&mut self, print: Print, sequence: u64) {
        if self.places.len() >= MOST {
            self.places.clear();
        }
        match self.places.entry(print.0[0], |(known, _)| *known == print, |(known, _)| known.0[0]) {
            Entry::Occupied(mut known) => known.get_mut().1 = sequence,
            Entry::Vacant(place) => drop(place.insert((print, sequence))),
        }
    }

    /// Notes that an object is no longer in this state.
    pub(super) fn remove(&mut self, print: Print) {
        if let Ok(known) = self.places.find_entry(print.0[0], |(known, _)| *known == print) {
            known.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_found_until_object_changes() {
        let mut recent = Recent::default();
        let print = recent.print(b"a/x", "u", "1").unwrap();
        assert_eq!(recent.print(b"a/x", "u", "1"), Some(print));
        assert_eq!(recent.find(print), None);
        recent.put(print, 7);
        recent.put(print, 9);
        assert_eq!(recent.find(print), Some(9));
        recent.remove(print);
        assert_eq!(recent.find(print), None);
        recent.remove(print);
    }

    #[test]
    fn different_states_have_different_fingerprints() {
        let mut recent = Recent::default();
        let states =
            [("a", "u", "1"), ("b", "u", "1"), ("a", "v", "1"), ("a", "u", "2"), ("a", "u1", "1"), ("au", "", "1")];
        let prints = states.map(|(key, uid, version)| recent.print(key.as_bytes(), uid, version).unwrap());
        for (at, print) in prints.iter().enumerate() {
            assert!(!prints[..at].contains(print), "{:?}", states[at]);
        }
        assert_eq!(recent.print(b"a", "u", ""), None);
    }

    #[test]
    fn recent_states_are_cleared_at_limit() {
        let mut recent = Recent::default();
        let print = |number: usize| Print([number as u64, 0]);
        for number in 0..=MOST {
            recent.put(print(number), number as u64);
        }
        assert_eq!(recent.places.len(), 1);
        assert_eq!((recent.find(print(0)), recent.find(print(MOST))), (None, Some(MOST as u64)));
    }
}
