//! Locking of a mutex that several actors or threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if it is poisoned: a panic in one actor must not affect other actors that share the mutex (E7). Blocks while
/// another thread holds the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
