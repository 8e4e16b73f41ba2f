//! Stand-in for `otlp.rs` in a program without the feature `otlp`: there are no spans.

use std::{convert::Infallible, fmt::Display, time::Duration};

use super::{SpanUnit, TraceContext};

/// Sender of spans. A program without the feature `otlp` cannot start one.
#[derive(Debug)]
pub(crate) struct Exporter(Infallible);

pub(super) fn start(_: &str, _: Option<&str>) -> Result<Exporter, String> {
    Err("this program was built without the feature otlp".to_owned())
}

impl Exporter {
    /// Does nothing.
    pub(crate) fn stop(self, _: Duration) {
        match self.0 {}
    }
}

pub(crate) const fn is_on() -> bool {
    false
}

pub(crate) struct Span;

#[expect(clippy::unused_self, reason = "there is nothing to do")]
impl Span {
    pub(crate) const NONE: Self = Self;

    pub(crate) fn of_unit(_: &str, _: &SpanUnit<'_>) -> Self {
        Self
    }

    pub(crate) fn of_batch(_: &SpanUnit<'_>, _: Option<TraceContext>, _: usize) -> Self {
        Self
    }

    pub(crate) fn of_delivery(_: &str, _: Option<TraceContext>, _: impl ExactSizeIterator<Item = u64> + Clone) -> Self {
        Self
    }

    pub(crate) fn context(&self) -> Option<TraceContext> {
        None
    }

    pub(crate) fn appended(&mut self, _: u64, _: u64) {}

    pub(crate) fn attempt_failed(&mut self, _: u32, _: &str) {}

    pub(crate) fn fail(&mut self, _: &dyn Display) {}
}
