//! Objects by key, in order of arrival: the scratch store of a streaming list, and the duplicate detection of
//! lists (F-31).

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};

use crate::object::{KeyRef, Object};

/// A set of objects, one per key. Keys are not copied: the objects hold them.
///
/// **Invariant:** `places` has one index for each `Some` in `items`, and no other.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    items: Vec<Option<Object>>,
    places: HashTable<usize>,
    hasher: RandomState,
}

impl Snapshot {
    /// Replaces the object with the same key, or appends `object`. Returns true if the key existed.
    pub(super) fn upsert(&mut self, object: Object) -> bool {
        let Self { items, places, hasher } = self;
        let entry = places.entry(
            hasher.hash_one(Some(object.key())),
            |place| key_at(items, *place) == Some(object.key()),
            |place| hasher.hash_one(key_at(items, *place)),
        );
        match entry {
            Entry::Occupied(place) => {
                items[*place.get()] = Some(object);
                true
            }
            Entry::Vacant(place) => {
                place.insert(items.len());
                items.push(Some(object));
                false
            }
        }
    }

    /// Removes the key if it exists.
    pub(super) fn remove(&mut self, key: KeyRef<'_>) {
        let Self { items, places, hasher } = self;
        if let Ok(place) = places.find_entry(hasher.hash_one(Some(key)), |place| key_at(items, *place) == Some(key)) {
            let (place, _) = place.remove();
            items[place] = None;
        }
    }

    /// Returns the objects.
    pub(super) fn into_items(self) -> Vec<Object> {
        self.items.into_iter().flatten().collect()
    }
}

fn key_at(items: &[Option<Object>], place: usize) -> Option<KeyRef<'_>> {
    items[place].as_ref().map(|object| object.key())
}

/// Removes duplicate keys from a list, keeping the last of each (F-31). Returns the number of removed objects.
pub(super) fn deduplicate(items: &mut Vec<Object>) -> u64 {
    let mut snapshot = Snapshot {
        items: Vec::with_capacity(items.len()),
        places: HashTable::with_capacity(items.len()),
        hasher: RandomState::default(),
    };
    let duplicates = items.drain(..).map(|item| u64::from(snapshot.upsert(item))).sum();
    *items = snapshot.into_items();
    duplicates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn names(items: &[Object]) -> Vec<(&str, &str)> {
        items.iter().map(|item| (item.name(), item.resource_version())).collect()
    }

    /// Rule: F-31.
    #[test]
    fn last_of_duplicate_list_items_wins() {
        let mut items = vec![object("a", "1"), object("b", "1"), object("a", "2"), object("a", "3")];
        assert_eq!(deduplicate(&mut items), 2);
        assert_eq!(names(&items), [("a", "3"), ("b", "1")]);
    }

    /// Rule: R-31.
    #[test]
    fn snapshot_keeps_one_object_per_key() {
        let mut snapshot = Snapshot::default();
        for round in 0..3 {
            for number in 0..100 {
                snapshot.upsert(object(&format!("o{number}"), &format!("{round}")));
            }
            for number in (0..100).step_by(3) {
                snapshot.remove(object(&format!("o{number}"), "x").key());
                snapshot.remove(object("unknown", "x").key());
            }
        }
        assert!(!snapshot.upsert(object("o0", "9")), "it was removed");
        assert!(snapshot.upsert(object("o1", "9")), "it was there");
        let items = snapshot.into_items();
        assert_eq!(items.len(), 67);
        assert!(items.iter().all(|item| ["2", "9"].contains(&item.resource_version())));
    }
}
