//! The one way to lock a mutex that several actors or threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not: a panic of one who held it is dealt with where it happened, and ends nobody else who
/// shares it (I7). Blocks while another thread holds it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
