//! Messages to handlers: events, each with a description of its unit.

use std::{ops::Range, sync::Arc};

use actix::Message;

use crate::{
    journal::{Record, Sequence},
    object::ResourceType,
    trace::TraceContext,
};

/// Description of a unit, without its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Name of the unit's `[resources.*]` entry.
    pub entry: String,
    /// Resource type of the unit.
    pub resource: ResourceType,
    /// The only namespace that the unit watches. `None`: all namespaces, or a cluster-scoped type.
    pub namespace: Option<String>,
}

/// One change on its way to a handler.
#[derive(Clone, Debug)]
pub struct Event {
    /// Type and scope of the object: `event.unit.resource.kind` is `Pod`.
    pub unit: Arc<UnitInfo>,
    /// The change and its sequence.
    pub record: Record,
}

/// Events for a handler, in order. A notification is cheap to clone and to slice. After the answer `Ok`, the events are
/// acknowledged and not sent again.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Result<(), Stopped>")]
pub struct Notification {
    events: Arc<Vec<Event>>,
    range: Range<usize>,
    trace: Option<TraceContext>,
}

/// Answer to a [`Notification`] by a handler that has ended and accepts no more events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Stopped(pub String);

impl Notification {
    /// Makes a notification of `events`, which must be in order.
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

    /// Returns the events with an index in `range`, which must be within this notification.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = self.range.start + range.start;
        Self {
            events: Arc::clone(&self.events),
            range: start..(start + range.len()).min(self.range.end),
            trace: self.trace,
        }
    }

    /// Returns the trace context of the delivery, if spans are recorded: the value of the header `traceparent`.
    pub fn trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Sets the trace context of the delivery.
    #[must_use]
    pub(crate) fn traced(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }
}
