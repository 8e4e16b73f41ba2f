//! A latch: blocks threads of the engine until the test releases it.

use std::{
    cell::RefCell,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use deltabus::supervisor::fault::{Harm, Hold};

/// Blocks one thread. A test releases it as soon as it has seen what it waits for, however slow the machine is.
#[derive(Debug, Default)]
pub(crate) struct Latch {
    is_released: Mutex<bool>,
    released: Condvar,
    has_ended: Arc<AtomicBool>,
}

impl Latch {
    /// Makes a latch. It is leaked: the blocked thread may outlive the test.
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

    /// Returns whether the thread that was blocked has ended.
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
    /// Dropped when the thread ends.
    static ENDS: RefCell<Vec<End>> = const { RefCell::new(Vec::new()) };
}

struct End(Arc<AtomicBool>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
