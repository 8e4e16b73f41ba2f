//! Messages to handlers: events with what is known of their unit.

use std::{ops::Range, sync::Arc};

use actix::Message;

use crate::{
    journal::{Record, Sequence},
    object::ResourceType,
    trace::TraceContext,
};

/// Description of a unit, beside its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Name of its `[resources.*]` entry.
    pub entry: String,
    /// Its resource type.
    pub resource: ResourceType,
    /// The one namespace that it shows; `None` for all of them, and for cluster-scoped types.
    pub namespace: Option<String>,
}

/// One change on its way to a handler.
#[derive(Clone, Debug)]
pub struct Event {
    /// Description of its unit.
    pub unit: Arc<UnitInfo>,
    /// The change and its sequence.
    pub record: Record,
}

/// Events in order, cheap to clone and to cut. The answer `Ok` means: delivered, or given up as configured. They are
/// acknowledged and not sent again.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Stopped>")]
pub struct Notification {
    events: Arc<Vec<Event>>,
    range: Range<usize>,
    trace: Option<TraceContext>,
}

/// Answer to a [`Notification`] by a handler that has ended and takes no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(pub String);

impl Notification {
    /// Makes a notification of events in order.
    pub fn new(events: Vec<Event>) -> Self {
        Self { range: 0..events.len(), events: Arc::new(events), trace: None }
    }

    /// Returns the events.
    pub fn events(&self) -> &[Event] {
        &self.events[self.range.clone()]
    }

    /// Returns the sequences of the events.
    pub(crate) fn sequences(&self) -> Vec<Sequence> {
        self.events().iter().map(|event| event.record.sequence).collect()
    }

    /// Returns the part from `range.start` to before `range.end`, both within the events.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = self.range.start + range.start;
        Self {
            events: Arc::clone(&self.events),
            range: start..(start + range.len()).min(self.range.end),
            trace: self.trace,
        }
    }

    /// Returns the trace context of their delivery, if spans are recorded: the value of the header `traceparent`.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Makes them part of a delivery.
    #[must_use]
    pub(crate) fn traced(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }
}
