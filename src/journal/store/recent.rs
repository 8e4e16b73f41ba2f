//! Locations of the states written last, so that the next change of an object needs no read of the files.

use hashbrown::{HashTable, hash_table::Entry};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// States known of a unit, at most, of 25 to 50 bytes each. Then it begins again.
const MOST: usize = 1 << 18;

/// A state of an object, as 128 bits of its key, uid and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Print([u64; 2]);

/// Known states of one unit. A state is found by its print alone, and only while its object is in it. The files have the
/// others.
#[derive(Debug)]
pub(super) struct Recent {
    places: HashTable<(Print, u64)>,
    /// Secret, so that no choice of names makes two objects share a print.
    seed: u64,
    text: Vec<u8>,
}

impl Default for Recent {
    fn default() -> Self {
        Self { places: HashTable::new(), seed: rand::random(), text: Vec::new() }
    }
}

impl Recent {
    /// Returns the print of a state of the object with this key; `None` where it has no version, which says too little.
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

    /// Returns the sequence of a state, if that is known.
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

    /// Notes that an object is not in this state any more.
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
    fn a_state_is_found_until_its_object_is_in_another() {
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
    fn states_that_differ_in_key_uid_or_version_are_not_taken_for_each_other_and_one_without_a_version_for_none() {
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
    fn it_begins_anew_before_it_grows_without_end() {
        let mut recent = Recent::default();
        let print = |number: usize| Print([number as u64, 0]);
        for number in 0..=MOST {
            recent.put(print(number), number as u64);
        }
        assert_eq!(recent.places.len(), 1);
        assert_eq!((recent.find(print(0)), recent.find(print(MOST))), (None, Some(MOST as u64)));
    }
}
