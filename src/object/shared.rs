//! One shared allocation of a head and bytes, and one pointer to it.
//!
//! It is what `triomphe::ThinArc` is, but that it comes of [`spare`] and goes there: a cache that is written to frees a
//! body for each that it makes.

#![expect(unsafe_code, reason = "the head lies before the bytes, and the last handle frees both: see `Block`")]

use std::{
    alloc::Layout,
    marker::PhantomData,
    mem::{MaybeUninit, offset_of},
    process,
    ptr::{self, NonNull},
    slice,
    sync::atomic::{self, AtomicUsize, Ordering},
};

use super::spare;

/// A head and bytes behind it, in one allocation that its handles share. A handle is one pointer wide.
pub(super) struct Shared<H> {
    /// Has what `Block` says, whole, until the last handle is dropped.
    block: NonNull<Block<H>>,
    owned: PhantomData<H>,
}

/// What is allocated; it is never made as one value, and no reference is made to all of it.
#[repr(C)]
struct Block<H> {
    handles: AtomicUsize,
    /// Bytes that there is room for, and those that are there.
    room: u32,
    len: u32,
    head: H,
    /// Where they begin.
    bytes: [u8; 0],
}

// safety: handles on several threads share `&H` and `&[u8]`, and any of them may drop the head.
unsafe impl<H: Send + Sync> Send for Shared<H> {}
// safety: as above.
unsafe impl<H: Send + Sync> Sync for Shared<H> {}

/// What is left of the bytes of a [`Shared`] that is being made.
pub(super) struct Room<'a>(&'a mut [MaybeUninit<u8>]);

impl Room<'_> {
    /// Puts bytes behind those that were put before.
    ///
    /// # Panics
    /// There is no room for them.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let (now, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        now.write_copy_of_slice(bytes);
        self.0 = rest;
    }
}

impl<H> Block<H> {
    const BYTES_AT: usize = offset_of!(Self, bytes);

    /// Returns the layout of one with room for so many bytes.
    fn layout(room: u32) -> Layout {
        Layout::from_size_align(Self::BYTES_AT + room as usize, align_of::<Self>()).expect("4 GiB are less than all")
    }
}

/// Frees the memory of a block that has no head yet.
struct Unfinished<H>(NonNull<Block<H>>, u32);

impl<H> Drop for Unfinished<H> {
    fn drop(&mut self) {
        // safety: it was allocated with this layout, and nobody else knows of it.
        unsafe { spare::give(self.0.cast(), Block::<H>::layout(self.1)) };
    }
}

impl<H> Shared<H> {
    /// Makes one of its head and `len` bytes, each of which `fill` puts.
    ///
    /// # Panics
    /// `fill` put more or fewer than that.
    pub(super) fn new(head: H, len: u32, fill: impl FnOnce(&mut Room<'_>)) -> Self {
        let (memory, layout) = spare::take(Block::<H>::layout(len));
        let block = memory.cast::<Block<H>>();
        let room = u32::try_from(layout.size() - Block::<H>::BYTES_AT).expect("it is hardly more than `len`");
        let unfinished = Unfinished(block, room);
        // safety: the bytes lie within the allocation, and nobody else knows of it.
        let bytes = unsafe { slice::from_raw_parts_mut(bytes_of(block).cast(), len as usize) };
        let mut left = Room(bytes);
        fill(&mut left);
        assert!(left.0.is_empty(), "{} of {len} bytes are missing", left.0.len());
        std::mem::forget(unfinished);
        let to = block.as_ptr();
        // safety: the fields lie within the allocation and are aligned in it. A `Room` shrinks by what was written to it,
        // from the front, and by nothing else; it is empty: all of the bytes are there.
        unsafe {
            (&raw mut (*to).handles).write(AtomicUsize::new(1));
            (&raw mut (*to).room).write(room);
            (&raw mut (*to).len).write(len);
            (&raw mut (*to).head).write(head);
        }
        Self { block, owned: PhantomData }
    }

    pub(super) fn head(&self) -> &H {
        // safety: it is there as long as a handle is, and nobody changes it.
        unsafe { &(*self.block.as_ptr()).head }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // safety: they are there as long as a handle is, and nobody changes them.
        unsafe { slice::from_raw_parts(bytes_of(self.block), (*self.block.as_ptr()).len as usize) }
    }

    fn room(&self) -> u32 {
        // safety: it is there as long as a handle is, and nobody changes it.
        unsafe { (*self.block.as_ptr()).room }
    }

    fn handles(&self) -> &AtomicUsize {
        // safety: it is there as long as a handle is.
        unsafe { &(*self.block.as_ptr()).handles }
    }

    /// Returns what it needs; memory that served another before may be a little larger.
    pub(super) fn size_bytes(&self) -> usize {
        Block::<H>::BYTES_AT + self.bytes().len()
    }

    pub(super) fn ptr_eq(&self, other: &Self) -> bool {
        self.block == other.block
    }

    /// Returns how many handles there are.
    #[cfg(test)]
    pub(super) fn holders(&self) -> usize {
        self.handles().load(Ordering::Acquire)
    }
}

/// Returns where the bytes of a block begin.
fn bytes_of<H>(block: NonNull<Block<H>>) -> *mut u8 {
    // safety: a block is allocated with what lies before its bytes.
    unsafe { block.as_ptr().cast::<u8>().add(Block::<H>::BYTES_AT) }
}

impl<H> Clone for Shared<H> {
    fn clone(&self) -> Self {
        // Relaxed: whoever clones has a handle, so that the block stays meanwhile; see `std::sync::Arc`.
        if self.handles().fetch_add(1, Ordering::Relaxed) > isize::MAX as usize {
            process::abort(); // handles that were forgotten must not make the count begin again
        }
        Self { block: self.block, owned: PhantomData }
    }
}

impl<H> Drop for Shared<H> {
    #[inline]
    fn drop(&mut self) {
        // Release, and acquire by the last: what others did with their handles comes before the end.
        if self.handles().fetch_sub(1, Ordering::Release) == 1 {
            atomic::fence(Ordering::Acquire);
            self.end();
        }
    }
}

impl<H> Shared<H> {
    #[inline(never)]
    fn end(&mut self) {
        let unfinished = Unfinished(self.block, self.room());
        // safety: this was the last handle: nobody reads the head any more, and nobody drops it again.
        unsafe { ptr::drop_in_place(&raw mut (*self.block.as_ptr()).head) };
        drop(unfinished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_there_behind_its_head_and_shared() {
        let shared = Shared::new("head", 5, |room| {
            room.put(b"ab");
            room.put(b"");
            room.put(b"cde");
        });
        let other = shared.clone();
        assert_eq!((*other.head(), other.bytes(), other.ptr_eq(&shared)), ("head", &b"abcde"[..], true));
        assert!(!other.ptr_eq(&Shared::new("head", 5, |room| room.put(b"abcde"))));
        assert_eq!(size_of_val(&shared), size_of::<usize>());
        assert!(Shared::new((), 0, |_| {}).bytes().is_empty());
    }

    #[test]
    #[should_panic(expected = "1 of 3 bytes are missing")]
    fn bytes_that_are_not_put_are_not_shown() {
        Shared::new((), 3, |room| room.put(b"ab"));
    }

    #[test]
    #[should_panic(expected = "mid > len")]
    fn no_more_is_put_than_there_is_room_for() {
        Shared::new((), 1, |room| room.put(b"ab"));
    }

    #[test]
    fn handles_on_many_threads_share_one_and_what_it_was_made_of_serves_the_next() {
        for round in 0..if cfg!(miri) { 2 } else { 20 } {
            let shared = Shared::new(std::sync::Arc::new(round), 5_000 + round, |room| {
                room.put(&[7; 5_020][..5_000 + round as usize]);
            });
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let other = shared.clone();
                    std::thread::spawn(move || {
                        (**other.head(), other.bytes().iter().map(|byte| u32::from(*byte)).sum::<u32>())
                    })
                })
                .collect();
            drop(shared);
            for thread in threads {
                assert_eq!(thread.join().expect("it reads"), (round, 7 * (5_000 + round)));
            }
        }
    }

    #[test]
    fn what_it_needs_is_counted_whole_and_alike() {
        let of = |len: u32| Shared::new(0_u64, len, |room| room.put(&vec![0; len as usize]));
        assert_eq!([0, 4_000, 3_990].map(|len| of(len).size_bytes()), [24, 4_024, 4_014]);
        assert_eq!(of(3_990).room(), 4_000, "in the place of another");
    }

    #[test]
    fn a_head_is_dropped_once_with_the_last_handle() {
        let counted = std::sync::Arc::new(());
        let shared = Shared::new(std::sync::Arc::clone(&counted), 1, |room| room.put(b"x"));
        let other = shared.clone();
        drop(shared);
        assert_eq!(std::sync::Arc::strong_count(&counted), 2);
        drop(other);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }
}
