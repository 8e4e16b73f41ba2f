//! Stand-in for the committer in a program without the feature `state`: no journal has a store.

use std::{convert::Infallible, io, sync::Arc};

use super::inner::Inner;

/// Handle of the committer thread.
#[derive(Debug)]
pub(super) struct Committer(Infallible);

impl Committer {
    pub(super) fn start(_: Arc<Inner>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
