//! Bounded memory of the last sequence of each subject.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A bounded memory of the last sequence of subjects. It evicts the least recently used half.
///
/// The key of a subject is a 64-bit hash. Two subjects with the same hash share one sequence. The server then refuses a
/// message with the wrong sequence, and the caller checks the stored messages.
#[derive(Debug)]
pub(super) struct Lasts {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
    half: usize,
    hasher: RandomState,
}

impl Lasts {
    /// Makes a memory of up to `max` subjects, with 20 to 40 bytes each.
    pub(super) fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (max / 2).max(1), hasher: RandomState::default() }
    }

    /// Returns the last sequence of a subject, if it is remembered; 0 means a subject without messages.
    pub(super) fn get(&mut self, subject: &str) -> Option<u64> {
        let key = self.hasher.hash_one(subject);
        if let Some(sequence) = self.young.get(&key) {
            return Some(*sequence);
        }
        let sequence = self.old.remove(&key)?;
        self.put(key, sequence);
        Some(sequence)
    }

    /// Remembers a sequence.
    pub(super) fn insert(&mut self, subject: &str, sequence: u64) {
        let key = self.hasher.hash_one(subject);
        self.old.remove(&key);
        self.put(key, sequence);
    }

    /// Forgets a subject whose last sequence is not known any more.
    pub(super) fn forget(&mut self, subject: &str) {
        let key = self.hasher.hash_one(subject);
        self.young.remove(&key);
        self.old.remove(&key);
    }

    fn put(&mut self, key: u64, sequence: u64) {
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_memory_is_bounded_and_keeps_hot_subjects() {
        let mut lasts = Lasts::new(100);
        lasts.insert("hot", 1);
        for i in 0..1000 {
            lasts.insert(&format!("cold-{i}"), i);
            assert_eq!(lasts.get("hot"), Some(1));
            assert!(lasts.young.len() + lasts.old.len() <= 100);
        }
        assert_eq!(lasts.get("cold-0"), None);
        assert_eq!(lasts.get("cold-999"), Some(999));
    }

    #[test]
    fn newest_sequence_wins() {
        let mut lasts = Lasts::new(2);
        lasts.insert("a", 1);
        lasts.insert("b", 2);
        lasts.insert("a", 3);
        assert_eq!(lasts.get("a"), Some(3));
        lasts.forget("a");
        assert_eq!(lasts.get("a"), None);
    }
}
