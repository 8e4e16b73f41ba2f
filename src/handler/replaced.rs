//! Flag of a handler's thread: true if the thread hung and another thread replaced it. The sink of the old thread must then not
//! undo writes of the new thread.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

thread_local! {
    static FLAG: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Makes `flag` the flag of the current thread. A true value means that the thread was replaced.
pub(crate) fn set(flag: Arc<AtomicBool>) {
    FLAG.set(flag);
}

/// Returns true if the current thread was replaced.
pub(crate) fn is_replaced() -> bool {
    FLAG.with_borrow(|flag| flag.load(Ordering::Acquire))
}
