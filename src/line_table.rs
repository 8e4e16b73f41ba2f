//! A hash table of pointers in which a look-up waits for memory once.
//!
//! Hashes and pointers lie in lines of 64 bytes, as a processor fetches them: five of each, and a count. A value belongs
//! to one line, which follows from its hash; where that is full it goes to the next that has room, and each line that it
//! passes counts it. So a look-up reads a line, hardly ever the one behind it, and then what the pointer leads to. Lines
//! are in the order of hashes: a table grows from front to back of both, by half, and shrinks once it is an eighth full.
//!
//! Which of the five it is, and whether it is the only one of its hash, is found without a branch that the processor would
//! have to guess before the line is there: so it goes on to the next look-up meanwhile, and many wait together.

/// Values a line holds.
const SLOTS: usize = 5;
/// So many a line, on average, are the most: a tenth of all values is then not in its own line.
const SLOTS_USED: usize = 4;
/// A table of so many lines stays as it is when values go.
const FEW_LINES: usize = 64;

/// The bit of a kept hash that says that others had the same when they came. Hashes do not have it: see [`hash_of`].
const SHARED: u32 = 1;

/// Makes a hash for a table of one of 64 bits.
pub(crate) fn hash_of(hash: u64) -> u32 {
    u32::try_from(hash & u64::from(u32::MAX)).expect("it has 32 bits") & !SHARED
}

/// Values found by hashes made by [`hash_of`]: 16 to 24 bytes for a pointer. Those that share a hash are told apart by what
/// they are.
#[derive(Clone)]
pub(crate) struct LineTable<T> {
    lines: Vec<Line<T>>,
    len: usize,
}

/// One line: 64 bytes where `T` is a pointer.
#[derive(Clone)]
#[repr(C, align(64))]
struct Line<T> {
    /// Of the values beside them, with [`SHARED`]; anything where there is none.
    hashes: [u32; SLOTS],
    /// How many values are further on that belong here or in a line before.
    passed: u32,
    values: [Option<T>; SLOTS],
}

impl<T> Line<T> {
    const fn empty() -> Self {
        Self { hashes: [0; SLOTS], passed: 0, values: [const { None }; SLOTS] }
    }

    /// Returns the places whose hash it is, a bit each, those without a value among them.
    fn matching(&self, hash: u32) -> u32 {
        let bits = self.hashes.iter().zip(0..).map(|(of, slot)| u32::from(of | SHARED == hash | SHARED) << slot);
        bits.fold(0, |bits, bit| bits | bit)
    }
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    slot: usize,
}

impl<T> Default for LineTable<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), len: 0 }
    }
}

impl<T> LineTable<T> {
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        match self.first(hash) {
            Some((_, first)) if is_it(first) => Some(first),
            _ => self.sharing(hash).find(|value| is_it(value)),
        }
    }

    /// Finds many at once: first the lines of all, then what these point to. Reading alone, the processor waits for
    /// several of them together, the more the less there is to do for each.
    pub(crate) fn find_all<'t, K>(&'t self, wanted: &[(u32, K)], is_it: impl Fn(&K, &T) -> bool) -> Vec<Option<&'t T>> {
        let mut found: Vec<_> = wanted.iter().map(|(hash, _)| self.find(*hash, |_| true)).collect();
        for ((hash, key), found) in wanted.iter().zip(&mut found) {
            if found.is_some_and(|value| !is_it(key, value)) {
                *found = self.find(*hash, |value| is_it(key, value)); // another one shares the hash
            }
        }
        found
    }

    /// Returns the one that has a hash; `None` too where it is not in the line that it belongs to, or another one had the
    /// same hash when it came: ask [`LineTable::sharing`] then.
    pub(crate) fn sole(&self, hash: u32) -> Option<&T> {
        self.first(hash).filter(|(is_shared, _)| !is_shared).map(|(_, value)| value)
    }

    /// Returns the first with a hash in the line that it belongs to, and whether others had the same.
    #[inline]
    fn first(&self, hash: u32) -> Option<(bool, &T)> {
        let line = self.lines.get(self.home(hash))?;
        let slot = line.matching(hash).trailing_zeros() as usize;
        Some((line.hashes.get(slot)? & SHARED != 0, line.values[slot].as_ref()?))
    }

    /// Returns all that share a hash.
    pub(crate) fn sharing(&self, hash: u32) -> impl Iterator<Item = &T> {
        self.places(hash).map(|(_, value)| value)
    }

    /// Puts `value` in the place of the one that is the same to `is_same`.
    pub(crate) fn put(&mut self, hash: u32, value: T, is_same: impl Fn(&T, &T) -> bool) {
        if let Some(Place { line, slot }) = self.place(hash, |found| is_same(&value, found)) {
            self.lines[line].values[slot] = Some(value);
            return;
        }
        let others: Vec<_> = self.places(hash).map(|(place, _)| place).collect();
        for Place { line, slot } in &others {
            self.lines[*line].hashes[*slot] |= SHARED;
        }
        self.reserve(1);
        self.insert(if others.is_empty() { hash } else { hash | SHARED }, value);
    }

    pub(crate) fn remove(&mut self, hash: u32, is_it: impl Fn(&T) -> bool) {
        let Some(Place { line, slot }) = self.place(hash, is_it) else { return };
        let mut passed = self.home(hash);
        while passed != line {
            self.lines[passed].passed -= 1;
            passed = self.next(passed);
        }
        self.lines[line].values[slot] = None;
        self.len -= 1;
        if self.lines.len() > FEW_LINES && self.len * 8 < self.lines.len() * SLOTS_USED {
            self.rebuild(self.lines.len() / 4);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.iter().flat_map(|line| line.values.iter().flatten())
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, additions: usize) {
        let needed = (self.len + additions).div_ceil(SLOTS_USED);
        if needed <= self.lines.len() {
            return;
        }
        self.rebuild(needed.max(self.lines.len() + self.lines.len() / 2));
    }

    /// Moves all to so many lines, which have room for them.
    fn rebuild(&mut self, lines: usize) {
        let empty = Self { lines: std::iter::repeat_with(Line::empty).take(lines).collect(), len: 0 };
        for line in std::mem::replace(self, empty).lines {
            for (hash, value) in line.hashes.into_iter().zip(line.values) {
                if let Some(value) = value {
                    self.insert(hash, value);
                }
            }
        }
    }

    /// Puts one that is not there into the first line with room, its hash as it is kept; there is room.
    fn insert(&mut self, hash: u32, value: T) {
        let mut at = self.home(hash);
        loop {
            let line = &mut self.lines[at];
            if let Some(slot) = line.values.iter().position(Option::is_none) {
                (line.hashes[slot], line.values[slot]) = (hash, Some(value));
                self.len += 1;
                return;
            }
            line.passed += 1;
            at = self.next(at);
        }
    }

    fn place(&self, hash: u32, is_it: impl Fn(&T) -> bool) -> Option<Place> {
        self.places(hash).find(|(_, value)| is_it(value)).map(|(place, _)| place)
    }

    fn places(&self, hash: u32) -> Places<'_, T> {
        debug_assert_eq!(hash & SHARED, 0, "it is not made by `hash_of`");
        let line = self.home(hash);
        let matching = self.lines.get(line).map_or(0, |line| line.matching(hash));
        Places { table: self, hash, line, matching, left: self.lines.len() }
    }

    /// Returns the line that a hash belongs to, where there are lines.
    fn home(&self, hash: u32) -> usize {
        let line = (u128::from(hash & !SHARED) * self.lines.len() as u128) >> u32::BITS;
        usize::try_from(line).expect("it is not more than the number of lines")
    }

    fn next(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    /// Counts hashes that several share.
    #[cfg(test)]
    pub(crate) fn collisions(&self) -> usize {
        let all = self.lines.iter().flat_map(|line| line.hashes.iter().zip(&line.values));
        let hashes = all.filter(|(_, value)| value.is_some()).map(|(hash, _)| hash & !SHARED);
        let distinct: std::collections::BTreeSet<_> = hashes.collect();
        distinct.into_iter().filter(|hash| self.sharing(*hash).nth(1).is_some()).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Goes over the values that have a hash.
struct Places<'t, T> {
    table: &'t LineTable<T>,
    hash: u32,
    line: usize,
    /// What is left of [`Line::matching`].
    matching: u32,
    /// Lines, the one at hand included, before it comes to where it began.
    left: usize,
}

impl<'t, T> Iterator for Places<'t, T> {
    type Item = (Place, &'t T);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let (lines, at) = (&self.table.lines, self.line);
            let line = &lines[at];
            while self.matching > 0 {
                let slot = self.matching.trailing_zeros() as usize;
                self.matching &= self.matching - 1;
                if let Some(value) = &line.values[slot] {
                    if line.hashes[slot] & SHARED == 0 {
                        self.left = 0;
                    }
                    return Some((Place { line: at, slot }, value));
                }
            }
            self.left = if line.passed > 0 { self.left - 1 } else { 0 };
            if self.left > 0 {
                self.line = self.table.next(at);
                self.matching = lines[self.line].matching(self.hash);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, hash::BuildHasher, sync::Arc};

    use foldhash::quality::FixedState;
    use proptest::prelude::*;

    use super::*;

    /// A value: whose it is, and which of its states.
    type Value = (u32, u64);

    fn is_of(id: u32) -> impl Fn(&Value) -> bool {
        move |value| value.0 == id
    }

    fn same(one: &Value, other: &Value) -> bool {
        one.0 == other.0
    }

    /// What each line counts is what has passed it.
    fn check_passed(table: &LineTable<Value>) {
        let mut passed = vec![0; table.lines.len()];
        for (at, line) in table.lines.iter().enumerate() {
            for (hash, _) in line.hashes.iter().zip(&line.values).filter(|(_, value)| value.is_some()) {
                let mut by = table.home(*hash);
                while by != at {
                    passed[by] += 1;
                    by = table.next(by);
                }
            }
        }
        assert!(table.lines.iter().map(|line| line.passed).eq(passed));
    }

    proptest! {
        /// Any puts and removals, of hashes that are all over, that are few, and that crowd the last lines.
        #[test]
        fn a_table_holds_what_a_map_holds(
            hashes in prop::sample::select(vec![(u32::MAX, 0), (3, 0), (40, u32::MAX - 50), (0, 7)]),
            steps in prop::collection::vec((0..3_u8, 0..60_u32, any::<u64>()), 0..300),
        ) {
            let (span, from) = hashes;
            let hash_of = |id: u32| hash_of(u64::from(from + id.wrapping_mul(0x9E37_79B9) % span.max(1)));
            let (mut table, mut model) = (LineTable::<Value>::default(), BTreeMap::new());
            for (step, id, state) in steps {
                let hash = hash_of(id);
                if step == 0 {
                    table.remove(hash, is_of(id));
                    model.remove(&id);
                } else {
                    table.put(hash, (id, state), same);
                    model.insert(id, state);
                }
                prop_assert_eq!(table.len(), model.len());
            }
            check_passed(&table);
            let wanted: Vec<_> = (0..60).map(|id| (hash_of(id), id)).collect();
            let expected: Vec<_> = (0..60).map(|id| model.get(&id).map(|state| (id, *state))).collect();
            let found: Vec<_> = wanted.iter().map(|(hash, id)| table.find(*hash, is_of(*id)).copied()).collect();
            prop_assert_eq!(&found, &expected);
            let at_once = table.find_all(&wanted, |id, value| is_of(*id)(value));
            prop_assert_eq!(at_once.into_iter().map(Option::<&_>::copied).collect::<Vec<_>>(), expected);
            for (hash, _) in &wanted {
                let mut sharing: Vec<_> = table.sharing(*hash).map(|value| value.0).collect();
                sharing.sort_unstable();
                prop_assert!(sharing.into_iter().eq(model.keys().copied().filter(|id| hash_of(*id) == *hash)));
            }
            let mut all: Vec<_> = table.iter().copied().collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(model));
        }
    }

    #[test]
    fn a_line_of_pointers_is_what_a_processor_fetches() {
        assert_eq!((size_of::<Line<Arc<u64>>>(), align_of::<Line<Arc<u64>>>()), (64, 64));
        assert_eq!(size_of::<Line<crate::object::Object>>(), 64);
    }

    #[test]
    fn most_values_are_in_the_line_that_they_belong_to_and_a_table_has_few_lines_to_spare() {
        let hash = |id: u32| hash_of(FixedState::with_seed(7).hash_one(id));
        let mut table = LineTable::default();
        for id in 0..100_000_u32 {
            table.put(hash(id), (id, 0), same);
        }
        assert!((100_000 / SLOTS_USED..=100_000 * 3 / 2 / SLOTS_USED).contains(&table.lines.len()));
        let elsewhere = |table: &LineTable<Value>| table.lines.iter().filter(|line| line.passed > 0).count();
        assert!(elsewhere(&table) < table.lines.len() / 3, "{} of {}", elsewhere(&table), table.lines.len());
        for id in 0..100_000_u32 {
            table.remove(hash(id), is_of(id));
        }
        assert_eq!((table.len(), elsewhere(&table)), (0, 0));
    }

    #[test]
    fn a_table_whose_values_went_gives_its_lines_back_and_keeps_the_rest() {
        let hash = |id: u32| hash_of(FixedState::with_seed(7).hash_one(id));
        let mut table = LineTable::default();
        (0..100_000).for_each(|id| table.put(hash(id), (id, 0), same));
        let most = table.lines.len();
        for id in 0..99_000 {
            table.remove(hash(id), is_of(id));
            assert!(table.lines.len() * SLOTS_USED <= table.len() * 8 || table.lines.len() <= FEW_LINES);
        }
        assert!(most >= 25_000 && table.lines.len() <= 2_000, "{most} {}", table.lines.len());
        check_passed(&table);
        assert!((0..99_000).all(|id| table.find(hash(id), is_of(id)).is_none()));
        assert!((99_000..100_000).all(|id| table.find(hash(id), is_of(id)).is_some()));
    }

    #[test]
    fn room_is_made_once_for_all_that_come() {
        let mut table = LineTable::default();
        table.reserve(0);
        assert!(table.lines.is_empty() && table.find(8, |_| true).is_none());
        table.reserve(1_000);
        let lines = table.lines.len();
        (0..1_000).for_each(|id| table.put(id << 22, (id, 0), same));
        assert_eq!((lines, table.lines.len()), (250, 250));
        table.put(8, (1_000, 0), same);
        assert_eq!(table.lines.len(), 375);
    }
}
