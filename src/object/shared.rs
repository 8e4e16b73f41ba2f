//! One shared allocation with a header and bytes, behind a single pointer.

use std::mem::MaybeUninit;

use triomphe::{Arc, HeaderSlice, HeaderWithLength, ThinArc, UniqueArc};

/// A header followed by bytes, in one allocation shared by its handles. A handle is one pointer wide.
pub(super) struct Shared<H>(ThinArc<H, u8>);

/// Bytes of a new [`Shared`] that are not written yet.
pub(super) struct Room<'a>(&'a mut [MaybeUninit<u8>]);

impl Room<'_> {
    /// Appends bytes. Panics if there is no room for them.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let (now, rest) = std::mem::take(&mut self.0).split_at_mut(bytes.len());
        now.write_copy_of_slice(bytes);
        self.0 = rest;
    }
}

impl<H> Shared<H> {
    /// Creates a value from its header and `len` bytes; `fill` must write all of them.
    /// Panics if `fill` writes more or fewer.
    #[expect(unsafe_code, reason = "bodies are written once, directly into their final place")]
    pub(super) fn new(head: H, len: usize, fill: impl FnOnce(&mut Room<'_>)) -> Self {
        let head = HeaderWithLength::new(head, len);
        let mut made = UniqueArc::<HeaderSlice<_, [MaybeUninit<u8>]>>::from_header_and_uninit_slice(head, len);
        let mut room = Room(&mut made.slice);
        fill(&mut room);
        assert!(room.0.is_empty(), "{} of {len} bytes are missing", room.0.len());
        // SAFETY: a `Room` shrinks only from the front, by the bytes written to it. This room is empty, so all bytes are
        // initialized.
        let made = unsafe { made.assume_init_slice_with_header() };
        Self(Arc::into_thin(made.shareable()))
    }

    pub(super) fn head(&self) -> &H {
        &self.0.header.header
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.slice
    }

    /// Returns the size of the allocation.
    pub(super) fn size_bytes(&self) -> usize {
        size_of::<usize>() + size_of::<HeaderWithLength<H>>() + self.bytes().len()
    }

    pub(super) fn ptr_eq(&self, other: &Self) -> bool {
        self.0.heap_ptr() == other.0.heap_ptr()
    }

    /// Returns the number of handles.
    #[cfg(test)]
    pub(super) fn holders(&self) -> usize {
        ThinArc::strong_count(&self.0)
    }
}

impl<H> Clone for Shared<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_head_and_are_shared() {
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
    fn unfilled_room_is_refused() {
        Shared::new((), 3, |room| room.put(b"ab"));
    }

    #[test]
    #[should_panic(expected = "mid > len")]
    fn overfull_room_is_refused() {
        Shared::new((), 1, |room| room.put(b"ab"));
    }

    #[test]
    fn head_is_dropped_once_with_last_handle() {
        let counted = std::sync::Arc::new(());
        let shared = Shared::new(std::sync::Arc::clone(&counted), 1, |room| room.put(b"x"));
        let other = shared.clone();
        drop(shared);
        assert_eq!(std::sync::Arc::strong_count(&counted), 2);
        drop(other);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }
}
