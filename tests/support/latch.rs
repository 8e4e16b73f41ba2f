//! A latch: blocks threads of the engine until the test releases it.

use std::{
    cell::RefCell,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use deltabus::internals::supervisor::fault::{Harm, Hold};

/// A block of one thread. The test releases it at the right moment, independent of the machine's speed.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_released: Mutex<bool>,
    released: Condvar,
    has_ended: Arc<AtomicBool>,
}

impl Latch {
    /// Creates a latch. It is leaked, because the blocked thread may outlive the test.
    pub(crate) fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    /// Returns the harm that blocks a thread.
    pub(crate) fn harm(&'static self) -> Harm {
        Harm::Hold(self)
    }

    /// Lets the thread continue.
    pub(crate) fn release(&self) {
        *self.is_released.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.released.notify_all();
    }

    /// Returns true if the blocked thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Hold for Latch {
    fn hold(&self) {
        ENDS.with_borrow_mut(|ends| ends.push(End(Arc::clone(&self.has_ended))));
        let is_released = self.is_released.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.released.wait_while(is_released, |is_released| !*is_released));
    }
}

thread_local! {
    /// Values that are dropped when the thread ends.
    static ENDS: RefCell<Vec<End>> = const { RefCell::new(Vec::new()) };
}

struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
