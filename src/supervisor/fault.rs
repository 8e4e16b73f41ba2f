//! Faults that tests put into running actors. In a program without the feature `testing` a fault is nothing, and takes no
//! room.

#[cfg(any(test, feature = "testing"))]
use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

#[cfg(any(test, feature = "testing"))]
use crate::mutex::lock;

/// What goes wrong next, if anything does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault(#[cfg(any(test, feature = "testing"))] Option<(Harm, Moment)>);

/// When it goes wrong. All but the indexer know only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At once.
    Now,
    /// In the next batch, before it is appended to the journal.
    BeforeAppend,
    /// In the next batch, between append and publish.
    BeforePublish,
    /// In the next batch, between publish and release.
    BeforeRelease,
}

/// A fault that is put in by one thread and happens on another.
#[derive(Clone, Debug, Default)]
pub struct SharedFault(#[cfg(any(test, feature = "testing"))] Arc<Mutex<Fault>>);

/// What goes wrong.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// A panic.
    Panic,
    /// The thread does nothing else for so long.
    Hang(Duration),
    /// The thread does nothing else until the test lets it continue.
    Hold(&'static dyn Hold),
}

/// Keeps a thread for as long as a test wants.
#[cfg(any(test, feature = "testing"))]
pub trait Hold: Debug + Sync {
    /// Blocks the current thread.
    fn hold(&self);
}

#[cfg(any(test, feature = "testing"))]
impl Fault {
    /// Makes one.
    pub fn new(harm: Harm, moment: Moment) -> Self {
        Self(Some((harm, moment)))
    }

    /// Takes it out, if there is one.
    pub(crate) fn take(&mut self) -> Option<Self> {
        self.0.take().map(|fault| Self(Some(fault)))
    }

    /// Puts in another one, unless that is none.
    pub(crate) fn put(&mut self, other: Self) {
        self.0 = other.0.or(self.0);
    }

    /// Goes wrong where this is the moment.
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
    /// Puts one in.
    pub(crate) fn put(&self, harm: Harm) {
        *lock(&self.0) = Fault::new(harm, Moment::Now);
    }

    /// Goes wrong, if a fault was put in.
    pub(crate) fn strike(&self, whom: &str) {
        let fault = lock(&self.0).take();
        fault.unwrap_or_default().strike(Moment::Now, whom);
    }
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unused_self, reason = "there is nothing to do")]
impl Fault {
    pub(crate) fn take(&mut self) -> Option<Self> {
        None
    }

    pub(crate) fn put(&mut self, _: Self) {}

    pub(crate) fn strike(&mut self, _: Moment, _: &str) {}
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unused_self, reason = "there is nothing to do")]
impl SharedFault {
    pub(crate) fn strike(&self, _: &str) {}
}
