//! Memory of large bodies that were freed, kept for those that come next.
//!
//! An allocator joins what is freed with what is free beside it: it reads and writes in front of it and behind, where memory
//! was not touched for long. Of a cache that keeps bodies as JSON, that took an eighth of an event. What lies here is handed
//! out again as it is, to one that needs nearly as much. Each thread has its own, 1 MiB at most, and nothing once it is at
//! rest and said so by [`release`].

#![expect(unsafe_code, reason = "memory is allocated, kept and freed here")]

use std::{
    alloc::{self, Layout},
    cell::RefCell,
    ptr::NonNull,
};

/// Smaller ones are not kept: what is packed, mostly; an allocator does not join small ones at once.
const SMALLEST: usize = 1 << 10;
/// Larger ones are not kept.
const LARGEST: usize = 1 << 14;
/// A thread keeps so many pieces, 1 MiB, at most; all of them are looked at.
const KEPT: usize = 64;
/// Others than those that are aligned so are not kept.
const ALIGN: usize = align_of::<usize>();
/// A piece may be larger than what is asked for by such a part of it.
const WASTED: usize = 64;

/// What one thread keeps; sizes are looked at first, and lie side by side.
#[derive(Default)]
struct Spare {
    sizes: Vec<u16>,
    pieces: Vec<Piece>,
    /// Which one goes next to make room, in turn.
    next: usize,
}

/// Memory that nobody uses.
struct Piece {
    at: NonNull<u8>,
    layout: Layout,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

impl Drop for Piece {
    fn drop(&mut self) {
        // safety: it was allocated with this layout, and nobody uses it.
        unsafe { alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}

impl Spare {
    fn take(&mut self, wanted: Layout) -> Option<Piece> {
        let (least, most) = (wanted.size(), wanted.size() + wanted.size() / WASTED);
        let fits = |size: &u16| (least..=most).contains(&usize::from(*size));
        let at = self.sizes.iter().rposition(fits)?;
        self.sizes.swap_remove(at);
        Some(self.pieces.swap_remove(at))
    }

    /// Keeps a piece; returns one that there is no room for any more.
    fn keep(&mut self, piece: Piece) -> Option<Piece> {
        let Ok(size) = u16::try_from(piece.layout.size()) else { return Some(piece) };
        if self.pieces.len() < KEPT {
            self.sizes.push(size);
            self.pieces.push(piece);
            return None;
        }
        self.next = (self.next + 1) % KEPT;
        self.sizes[self.next] = size;
        Some(std::mem::replace(&mut self.pieces[self.next], piece))
    }
}

fn is_kept(layout: Layout) -> bool {
    (SMALLEST..=LARGEST).contains(&layout.size()) && layout.align() == ALIGN
}

/// Returns memory for `wanted`, or a little more, and its layout. Where there is none, it ends the process as
/// [`alloc::handle_alloc_error`] does.
pub(super) fn take(wanted: Layout) -> (NonNull<u8>, Layout) {
    if is_kept(wanted) {
        let kept = SPARE.try_with(|spare| spare.borrow_mut().take(wanted));
        if let Ok(Some(piece)) = kept {
            let piece = std::mem::ManuallyDrop::new(piece);
            return (piece.at, piece.layout);
        }
    }
    assert!(wanted.size() > 0, "a block has a head");
    // safety: it is not of size zero.
    let made = unsafe { alloc::alloc(wanted) };
    (NonNull::new(made).unwrap_or_else(|| alloc::handle_alloc_error(wanted)), wanted)
}

/// Takes back what [`take`] returned.
///
/// # Safety
/// Memory and layout are what one call of [`take`] returned, and nobody uses the memory any more.
pub(super) unsafe fn give(at: NonNull<u8>, layout: Layout) {
    let piece = Piece { at, layout };
    if is_kept(layout) {
        // what there is no room for is freed; and all of it, where the thread ends
        let _freed = SPARE.try_with(|spare| spare.borrow_mut().keep(piece));
    }
}

/// Frees what this thread keeps; call it once when a busy time ends.
pub(crate) fn release() {
    let _ended = SPARE.try_with(RefCell::take);
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, ALIGN).expect("it is small")
    }

    /// Takes memory of that size and gives it back; returns where it was.
    fn freed(size: usize) -> NonNull<u8> {
        let (at, layout) = take(layout(size));
        // safety: it was taken just now.
        unsafe { give(at, layout) };
        at
    }

    fn kept() -> Vec<usize> {
        SPARE.with_borrow(|spare| {
            assert!(
                spare.sizes.iter().zip(&spare.pieces).all(|(size, piece)| usize::from(*size) == piece.layout.size())
            );
            spare.pieces.iter().map(|piece| piece.layout.size()).collect()
        })
    }

    #[test]
    fn what_was_freed_goes_to_one_that_needs_nearly_as_much() {
        release();
        let first = freed(6400);
        for other in [6401, 6301, 3200] {
            let (at, layout) = take(layout(other));
            assert_ne!(at, first);
            assert_eq!(layout.size(), other);
            drop(Piece { at, layout });
        }
        let (at, took) = take(layout(6302));
        assert_eq!((at, took.size(), kept()), (first, 6400, vec![]), "as large as it was");
        // safety: it was taken just now.
        unsafe { give(at, took) };
        assert_eq!(kept(), [6400]);
    }

    #[test]
    fn small_and_large_and_odd_ones_are_not_kept() {
        release();
        for size in [8, SMALLEST - 1, LARGEST + 1, 1 << 20] {
            freed(size);
            assert_eq!(kept(), [0; 0], "{size}");
        }
        let (at, aligned) = take(Layout::from_size_align(SMALLEST, 2 * ALIGN).expect("it is small"));
        // safety: it was taken just now.
        unsafe { give(at, aligned) };
        assert_eq!(kept(), [0; 0], "nor what is aligned by more");
        freed(SMALLEST);
        freed(LARGEST);
        assert_eq!(kept(), [SMALLEST, LARGEST]);
    }

    #[test]
    fn so_many_are_kept_and_the_newest_of_all() {
        release();
        for size in 0..3 * KEPT {
            freed(SMALLEST * 2 + size * 50);
            assert!(kept().len() <= KEPT);
        }
        let mut kept = kept();
        kept.sort_unstable();
        let newest: Vec<_> = (2 * KEPT..3 * KEPT).map(|size| SMALLEST * 2 + size * 50).collect();
        assert_eq!(kept, newest);
    }

    #[test]
    fn a_thread_lets_go_of_what_it_keeps() {
        thread::spawn(|| {
            freed(SMALLEST);
            release();
            assert_eq!(kept(), [0; 0]);
            freed(SMALLEST);
            assert_eq!(kept(), [SMALLEST]);
        })
        .join()
        .expect("it does not fail as the thread ends either");
    }
}
