//! Token of a handler's thread: it tells if the thread hung and another thread replaced it. The sink of the old thread must then not
//! undo writes of the new thread.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

/// Token of one thread. Clones belong to the same thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replaced(Arc<AtomicBool>);

impl Replaced {
    /// Notes that the thread was replaced.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns true if the thread was replaced.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns true if both tokens belong to the same thread.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns a token that does not keep the thread's token alive.
    pub(crate) fn downgrade(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.0)
    }
}
