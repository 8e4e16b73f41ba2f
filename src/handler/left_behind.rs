//! Flag of a thread that hung and was replaced. Its sink must not undo writes of the replacement.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

thread_local! {
    static FLAG: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Sets the flag of the current thread.
pub(crate) fn set(flag: Arc<AtomicBool>) {
    FLAG.set(Some(flag));
}

/// Returns true if the current thread belongs to a handler that hung and was replaced.
pub(crate) fn is_left_behind() -> bool {
    FLAG.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire)))
}
