//! What the consumer of a queue has, as far as it was popped.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use super::{Delta, is_same_state};
use crate::{
    line_table::{self, LineTable},
    object::{Keep, KeyRef, Object},
};

/// The state after what was popped: one pointer an object, found by its key; no key is copied.
#[derive(Default)]
pub(super) struct Known {
    table: LineTable<Object>,
    hasher: RandomState,
}

impl Known {
    fn hash_of(&self, key: KeyRef<'_>) -> u32 {
        line_table::hash_of(self.hasher.hash_one(key))
    }

    pub(super) fn get(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.table.find(self.hash_of(key), |object| object.has_key(key))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object> {
        self.table.iter()
    }

    /// Takes another form of a state that it has.
    pub(super) fn replace(&mut self, form: &Object) {
        if self.get(form.key()).is_some_and(|known| is_same_state(known, form)) {
            self.put(self.hash_of(form.key()), Object::clone(form));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Applies a batch, of whose objects no more is kept than `keep` says.
    ///
    /// Every key is looked up before any is changed: see [`LineTable::find_all`].
    pub(super) fn apply(&mut self, deltas: &[Delta], keep: &Keep) {
        let wanted: Vec<_> = deltas.iter().map(|delta| (self.hash_of(delta.object.key()), delta)).collect();
        let found = self.table.find_all(&wanted, |delta, object| object.has_key(delta.object.key()));
        let absent = found.iter().filter(|found| found.is_none()).count();
        keep.look_at(deltas.iter().filter(|delta| !delta.kind.is_deletion()).map(|delta| &delta.object));
        self.table.reserve(absent);
        for (hash, Delta { kind, object }) in wanted {
            if kind.is_deletion() {
                self.table.remove(hash, |known| known.has_key(object.key()));
            } else {
                self.put(hash, keep.of(object));
            }
        }
    }

    fn put(&mut self, hash: u32, object: Object) {
        self.table.put(hash, object, |object, known| known.has_key(object.key()));
    }
}

impl FromIterator<Object> for Known {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> Self {
        let mut known = Self::default();
        let deltas = objects.into_iter().map(|object| Delta { kind: super::DeltaKind::Replaced, object });
        known.apply(&deltas.collect::<Vec<_>>(), &Keep::Whole);
        known
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Known({} objects)", self.len())
    }
}
