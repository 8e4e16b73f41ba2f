//! Choice of the samples for a dictionary, and of the time to make one.

use std::ops::Range;

use crate::object::Object;

/// Bytes of JSON that are offered before the first dictionary is made. The samples are at most a quarter of these bytes. A further
/// dictionary is tried when the total has doubled, but at the latest after [`AGAIN_AFTER_BYTES`].
const FIRST_AFTER_BYTES: u64 = 1 << 20;

/// Maximum bytes of JSON between two attempts to make a dictionary.
const AGAIN_AFTER_BYTES: u64 = 64 << 20;

/// Maximum number of samples for a dictionary, and their maximum total size.
pub(super) const SAMPLES: usize = 48;
pub(super) const SAMPLES_BYTES: usize = 256 << 10;
/// Maximum size of one sample.
const SAMPLE_BYTES: usize = 32 << 10;

/// Sampler that keeps evenly distributed samples of the offered bytes, and signals when a dictionary is due.
pub(super) struct Sampler {
    /// Bytes of JSON offered since the start.
    seen_bytes: u64,
    /// Range of `seen_bytes` in which objects are sampled; at its end, a dictionary is due. Small units never reach the range, and
    /// keep no samples.
    window: Range<u64>,
    /// Value that `seen_bytes` must reach before the next object is sampled.
    next_at: u64,
    pub(super) samples: Vec<Object>,
    pub(super) samples_bytes: usize,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::with_window(0, FIRST_AFTER_BYTES)
    }
}

impl Sampler {
    /// Creates a sampler for a unit that already has a dictionary.
    pub(super) fn of_restored() -> Self {
        Self::with_window(0, AGAIN_AFTER_BYTES)
    }

    /// Creates a sampler that takes its samples within the second half of the next `bytes` bytes.
    fn with_window(seen_bytes: u64, bytes: u64) -> Self {
        let window = seen_bytes + bytes / 2..seen_bytes + bytes;
        Self { seen_bytes, next_at: window.start, window, samples: Vec::new(), samples_bytes: 0 }
    }

    /// Offers an object; returns true if a dictionary is due.
    pub(super) fn offer(&mut self, object: &Object) -> bool {
        let bytes = object.json_bytes();
        self.seen_bytes += bytes as u64;
        let has_room = self.samples.len() < SAMPLES && self.samples_bytes + bytes <= SAMPLES_BYTES;
        if self.seen_bytes >= self.next_at && bytes <= SAMPLE_BYTES && has_room {
            self.samples.push(object.clone());
            self.samples_bytes += bytes;
            // A sample uses up a share of `SAMPLES` and a share of `SAMPLES_BYTES`. The same share of the window is then skipped,
            // so that the samples are spread over the whole window. The larger of the two shares counts.
            let window = self.window.end - self.window.start;
            let share = (window / SAMPLES as u64).max(window * bytes as u64 / SAMPLES_BYTES as u64);
            self.next_at = self.seen_bytes + share;
        }
        self.seen_bytes >= self.window.end
    }

    /// Returns the samples and starts the next window.
    pub(super) fn take(&mut self) -> Vec<Object> {
        let again = self.seen_bytes.min(AGAIN_AFTER_BYTES);
        std::mem::replace(self, Self::with_window(self.seen_bytes, again)).samples
    }
}
