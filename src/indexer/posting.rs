//! Posting: the set of objects that have a given value in a given index.

use std::sync::Arc;

/// Maximum number of hashes in a posting without pieces. A larger posting has pieces with at most this many hashes on average.
const PIECE_LEN_MAX: usize = 512;
/// Binary logarithm of the maximum number of pieces.
const PIECE_BITS_MAX: u32 = 16;

/// Key hashes of the objects that have the value `value` in the index `index`. The hashes are sorted and distinct.
///
/// A large posting is split into pieces by the first bits of the hash. Clones of a posting share the pieces. So one change in a
/// namespace of 100,000 objects copies one piece and 256 pointers. A further change of the same batch copies no pointers. It copies
/// a piece only if the batch has not copied this piece yet.
#[derive(Clone, Debug)]
pub(super) struct Posting {
    pub(super) index: u32,
    pub(super) value: Box<str>,
    hashes: Hashes,
}

#[derive(Clone, Debug)]
enum Hashes {
    Flat(Vec<u32>),
    Pieces { bits: u32, len: usize, pieces: Vec<Arc<Vec<u32>>> },
}

impl Posting {
    pub(super) fn new(index: u32, value: &str) -> Self {
        Self { index, value: value.into(), hashes: Hashes::Flat(Vec::new()) }
    }

    pub(super) fn is_of(&self, index: u32, value: &str) -> bool {
        self.index == index && *self.value == *value
    }

    pub(super) fn len(&self) -> usize {
        match &self.hashes {
            Hashes::Flat(hashes) => hashes.len(),
            Hashes::Pieces { len, .. } => *len,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (flat, pieces): (&[u32], &[Arc<Vec<u32>>]) = match &self.hashes {
            Hashes::Flat(hashes) => (hashes, &[]),
            Hashes::Pieces { pieces, .. } => (&[], pieces),
        };
        flat.iter().chain(pieces.iter().flat_map(|piece| piece.iter())).copied()
    }

    pub(super) fn insert(&mut self, hash: u32) {
        let added = match &mut self.hashes {
            Hashes::Flat(hashes) => insert_sorted(hashes, hash),
            Hashes::Pieces { bits, len, pieces } => {
                let added = insert_sorted(Arc::make_mut(&mut pieces[piece_of(hash, *bits)]), hash);
                *len += usize::from(added);
                added
            }
        };
        if added {
            self.split();
        }
    }

    pub(super) fn remove(&mut self, hash: u32) {
        match &mut self.hashes {
            Hashes::Flat(hashes) => drop(remove_sorted(hashes, hash)),
            Hashes::Pieces { bits, len, pieces } => {
                let piece = Arc::make_mut(&mut pieces[piece_of(hash, *bits)]);
                *len -= usize::from(remove_sorted(piece, hash));
                if *len <= PIECE_LEN_MAX / 4 {
                    self.hashes = Hashes::Flat(self.iter().collect());
                }
            }
        }
    }

    /// Splits the pieces if they are too large on average.
    fn split(&mut self) {
        let bits = match &self.hashes {
            Hashes::Flat(_) => 0,
            Hashes::Pieces { bits, .. } => *bits,
        };
        if self.len() <= PIECE_LEN_MAX << bits || bits == PIECE_BITS_MAX {
            return;
        }
        let (bits, len) = (bits + 1, self.len());
        let mut pieces = vec![Vec::with_capacity(PIECE_LEN_MAX); 1 << bits];
        for hash in self.iter() {
            pieces[piece_of(hash, bits)].push(hash);
        }
        self.hashes = Hashes::Pieces { bits, len, pieces: pieces.into_iter().map(Arc::new).collect() };
    }
}

/// Returns the position of the piece that holds `hash`. The pieces are ordered by hash.
fn piece_of(hash: u32, bits: u32) -> usize {
    usize::try_from(hash >> (u32::BITS - bits)).expect("there are at most 2^16 pieces")
}

fn insert_sorted(hashes: &mut Vec<u32>, hash: u32) -> bool {
    let Err(at) = hashes.binary_search(&hash) else { return false };
    if hashes.is_empty() {
        hashes.reserve_exact(1); // in an index of distinct values each posting has one object
    }
    hashes.insert(at, hash);
    true
}

fn remove_sorted(hashes: &mut Vec<u32>, hash: u32) -> bool {
    let Ok(at) = hashes.binary_search(&hash) else { return false };
    hashes.remove(at);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posting_is_sorted_set_at_every_size() {
        let hash = |n: u32| n.wrapping_mul(0x9E37_79B9);
        let mut posting = Posting::new(0, "ns");
        let mut model = std::collections::BTreeSet::new();
        let check = |posting: &Posting, model: &std::collections::BTreeSet<u32>| {
            assert!(posting.iter().eq(model.iter().copied()));
            assert_eq!(posting.len(), model.len());
        };
        for n in 0..5_000 {
            posting.insert(hash(n));
            posting.insert(hash(n / 2));
            model.insert(hash(n));
            if n % 500 == 0 || n == 512 || n == 513 {
                check(&posting, &model);
            }
        }
        let copy = posting.clone();
        for n in 0..4_999 {
            posting.remove(hash(n));
            posting.remove(hash(n / 3));
            model.remove(&hash(n));
            if n % 500 == 0 {
                check(&posting, &model);
            }
        }
        check(&posting, &model);
        assert_eq!((copy.len(), posting.len()), (5_000, 1), "a copy does not change with the original");
        posting.remove(hash(4_999));
        assert_eq!(posting.len(), 0);
    }

    #[test]
    fn large_posting_copies_share_unchanged_pieces() {
        fn pieces(posting: &Posting) -> &[Arc<Vec<u32>>] {
            match &posting.hashes {
                Hashes::Flat(_) => &[],
                Hashes::Pieces { pieces, .. } => pieces,
            }
        }
        let hash = |n: u32| n.wrapping_mul(0x9E37_79B9);
        let mut posting = Posting::new(0, "ns");
        for (n, expected) in [(512, 0), (513, 2), (1_024, 2), (1_025, 4), (5_000, 16)] {
            (u32::try_from(posting.len()).unwrap()..n).for_each(|n| posting.insert(hash(n)));
            assert_eq!(pieces(&posting).len(), expected, "{n} hashes");
        }
        assert!(pieces(&posting).iter().all(|piece| (100..PIECE_LEN_MAX).contains(&piece.len())));
        let copy = posting.clone();
        posting.remove(hash(7));
        let shared = |(one, other): &(&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        assert_eq!(pieces(&posting).iter().zip(pieces(&copy)).filter(shared).count(), 15);
        (0..4_871).for_each(|n| posting.remove(hash(n)));
        assert_eq!((posting.len(), pieces(&posting).len()), (129, 16));
        posting.remove(hash(4_871));
        assert_eq!((posting.len(), pieces(&posting).len()), (128, 0), "a small one is flat again");
    }

    #[test]
    fn equal_leading_bits_only_enlarge_pieces() {
        let mut posting = Posting::new(0, "ns");
        (0..3_000).for_each(|hash| posting.insert(hash));
        assert!(posting.iter().eq(0..3_000));
    }
}
