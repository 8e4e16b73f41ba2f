//! Faults that tests inject into running actors. In a program without the feature `testing`, a fault does nothing and takes
//! no memory.

#[cfg(any(test, feature = "testing"))]
use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

#[cfg(any(test, feature = "testing"))]
use crate::mutex::lock;

/// Fault that is triggered at a [`Moment`]. The default value contains no fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault(#[cfg(any(test, feature = "testing"))] Option<(Harm, Moment)>);

/// Moment of a fault. Only the indexer supports moments other than [`Moment::Now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At once, without waiting for a batch.
    Now,
    /// In the next batch, before it is appended to the journal.
    BeforeAppend,
    /// In the next batch, between append and publish.
    BeforePublish,
    /// In the next batch, between publish and release.
    BeforeRelease,
}

/// Fault that one thread injects and another one triggers.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFault(#[cfg(any(test, feature = "testing"))] Arc<Mutex<Fault>>);

/// Kind of a fault.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Panic of the thread.
    Panic,
    /// Thread that is blocked for this time.
    Hang(Duration),
    /// Thread that is blocked until the test lets it continue.
    Hold(&'static dyn Hold),
}

/// Blocker of a thread, controlled by a test.
#[cfg(any(test, feature = "testing"))]
pub trait Hold: Debug + Sync {
    /// Blocks the current thread.
    fn hold(&self);
}

#[cfg(any(test, feature = "testing"))]
impl Fault {
    /// Creates a fault.
    pub fn new(harm: Harm, moment: Moment) -> Self {
        Self(Some((harm, moment)))
    }

    /// Removes and returns the fault, if there is one.
    pub(crate) fn take(&mut self) -> Option<Self> {
        self.0.take().map(|fault| Self(Some(fault)))
    }

    /// Replaces the fault by `other`, unless `other` contains no fault.
    pub(crate) fn put(&mut self, other: Self) {
        self.0 = other.0.or(self.0);
    }

    /// Triggers the fault if this is its moment.
    pub(crate) fn strike(&mut self, moment: Moment, whom: &str) {
        match self.0.take_if(|(_, at)| *at == moment) {
            Some((Harm::Panic, _)) => panic!("injected into the {whom}"),
            Some((Harm::Hang(time), _)) => std::thread::sleep(time),
            Some((Harm::Hold(hold), _)) => hold.hold(),
            None => {}
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl SharedFault {
    /// Injects a fault.
    pub(crate) fn put(&self, harm: Harm) {
        *lock(&self.0) = Fault::new(harm, Moment::Now);
    }

    /// Triggers the fault, if there is one.
    pub(crate) fn strike(&self, whom: &str) {
        let fault = lock(&self.0).take();
        fault.unwrap_or_default().strike(Moment::Now, whom);
    }
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unused_self, reason = "there is nothing to do")]
impl Fault {
    pub(crate) fn put(&mut self, _: Self) {}

    pub(crate) fn strike(&mut self, _: Moment, _: &str) {}
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unused_self, reason = "there is nothing to do")]
impl SharedFault {
    pub(crate) fn strike(&self, _: &str) {}
}
