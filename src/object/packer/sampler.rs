//! Which objects a dictionary is made of, and when.

use std::ops::Range;

use crate::object::Object;

/// A first dictionary is made once so many bytes of JSON have come by: a sixteenth of them is what it costs. A better one
/// is looked for each time that they have doubled,
const FIRST_AFTER_BYTES: u64 = 1 << 20;

/// or this much has come by since.
const AGAIN_AFTER_BYTES: u64 = 64 << 20;

/// What is looked at to make a dictionary: so many objects of so many bytes at most,
pub(super) const SAMPLES: usize = 48;
pub(super) const SAMPLES_BYTES: usize = 256 << 10;
/// none of them larger than this.
const SAMPLE_BYTES: usize = 32 << 10;

/// Chooses objects, evenly among those that come by, and says when it is time to make something of them.
pub(super) struct Sampler {
    /// Bytes of JSON that came by since the first.
    seen_bytes: u64,
    /// While that is within, objects are chosen; when it is behind, it is time. What sees little keeps nothing.
    pub(super) window: Range<u64>,
    /// Objects that came by within the window.
    seen: u64,
    /// One of so many is chosen, less one.
    passed_over: u64,
    samples: Vec<Object>,
    pub(super) samples_bytes: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::with_window(0, FIRST_AFTER_BYTES)
    }
}

impl Sampler {
    /// Chooses for a unit that has a dictionary already.
    pub(super) fn of_restored() -> Self {
        Self::with_window(0, AGAIN_AFTER_BYTES)
    }

    /// Chooses among the second half of so many bytes.
    fn with_window(seen_bytes: u64, bytes: u64) -> Self {
        let window = seen_bytes + bytes / 2..seen_bytes + bytes;
        Self { seen_bytes, window, seen: 0, passed_over: 0, samples: Vec::new(), samples_bytes: 0 }
    }

    /// Looks at an object; returns whether it is time.
    pub(super) fn offer(&mut self, object: &Object) -> bool {
        let bytes = object.json_bytes();
        self.seen_bytes += bytes as u64;
        if self.seen_bytes < self.window.start {
            return false;
        }
        if self.seen.is_multiple_of(self.passed_over + 1) && bytes <= SAMPLE_BYTES {
            self.samples.push(object.clone());
            self.samples_bytes += bytes;
            if self.samples.len() > SAMPLES || self.samples_bytes > SAMPLES_BYTES {
                self.thin_out();
            }
        }
        self.seen += 1;
        self.seen_bytes >= self.window.end
    }

    /// Lets go of every other one.
    fn thin_out(&mut self) {
        let mut at = 0_usize;
        self.samples.retain(|_| {
            at += 1;
            at % 2 == 1
        });
        self.samples_bytes = self.samples.iter().map(Object::json_bytes).sum();
        self.passed_over = self.passed_over * 2 + 1;
    }

    /// Takes what was chosen, and begins anew.
    pub(super) fn take(&mut self) -> Vec<Object> {
        let again = self.seen_bytes.min(AGAIN_AFTER_BYTES);
        std::mem::replace(self, Self::with_window(self.seen_bytes, again)).samples
    }
}
