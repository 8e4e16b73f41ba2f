//! OpenTelemetry spans of the lists and watches of a unit, of its batches, and of deliveries.
//!
//! Spans are recorded only after [`start`]. Before that, a span costs one check. A program without the feature `otlp`
//! records none.
//!
//! A delivery is part of the trace of the first batch that it delivers, and linked to the traces of the others. The
//! last 4,096 batches are remembered here with their sequences, so records do not contain a span.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Mutex,
    time::Duration,
};

use thiserror::Error;

use crate::mutex::lock;

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "trace/none.rs"]
mod otlp;

/// Number of remembered batches.
const BATCHES_MAX: usize = 4096;
/// Maximum number of links of a delivery.
const LINKS_MAX: usize = 64;

static BATCHES: Mutex<Batches> = Mutex::new(Batches(BTreeMap::new()));

/// Destination of spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// An `http` or `https` URL of an OpenTelemetry collector that speaks OTLP over gRPC.
    pub endpoint: String,
    /// Name of the cluster, an attribute of each span.
    pub cluster: Option<String>,
}

/// Failure to start sending spans.
#[derive(Debug, Error)]
#[error("failed to start sending spans to {endpoint}: {reason}")]
pub struct StartError {
    endpoint: String,
    reason: String,
}

/// Background sender of spans. Waiting spans are lost unless it is stopped.
#[derive(Debug)]
#[must_use = "waiting spans are lost unless it is stopped"]
pub struct Exporter(otlp::Exporter);

/// Starts to record spans of all engines in this process, and sends them in the background. At most 2,048 spans wait;
/// more are dropped. OpenTelemetry's environment variables apply: `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
/// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`.
pub fn start(options: &Options) -> Result<Exporter, StartError> {
    let failed = |reason| StartError { endpoint: options.endpoint.clone(), reason };
    otlp::start(options).map(Exporter).map_err(failed)
}

impl Exporter {
    /// Sends the waiting spans, and blocks for at most `patience`. No more spans are sent afterwards.
    pub fn stop(self, patience: Duration) {
        self.0.stop(patience);
    }
}

/// Returns true if spans are recorded.
pub(crate) fn is_on() -> bool {
    otlp::is_on()
}

/// Trace context of a span, as defined by the W3C. It displays as the value of the header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    is_sampled: bool,
}

impl TraceContext {
    /// Name of the header.
    pub const HEADER: &str = "traceparent";
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.is_sampled))
    }
}

/// A span. It ends when it is dropped.
pub(crate) struct Span(Option<otlp::Span>);

impl Span {
    /// Span that is not recorded.
    pub(crate) const NONE: Self = Self(None);

    /// Begins the span of a list or a watch; `does` is the name of the operation.
    pub(crate) fn of_unit(does: &str, unit: &SpanUnit<'_>) -> Self {
        Self(otlp::is_on().then(|| {
            let mut span = otlp::Span::begin(format!("{does} {}", unit.plural), Kind::Client, None, &[]);
            unit.describe(&mut span);
            span
        }))
    }

    /// Begins the span of a batch that is being applied, linked to the span `by` of its list or watch.
    pub(crate) fn of_batch(unit: &SpanUnit<'_>, by: Option<TraceContext>, events: usize) -> Self {
        Self(otlp::is_on().then(|| {
            let mut span = otlp::Span::begin(format!("apply {}", unit.plural), Kind::Internal, None, by.as_slice());
            unit.describe(&mut span);
            span.set("deltabus.events", Value::count(events));
            span
        }))
    }

    /// Begins the span of a delivery. Its events have these sequences, in order, or are a batch that another handler
    /// gave up.
    pub(crate) fn of_delivery(
        handler: &str,
        given_up: Option<TraceContext>,
        sequences: impl ExactSizeIterator<Item = u64> + Clone,
    ) -> Self {
        Self(otlp::is_on().then(|| {
            let (parent, links) = match given_up {
                Some(parent) => (Some(parent), Vec::new()),
                None => lock(&BATCHES).of(sequences.clone()),
            };
            let mut span = otlp::Span::begin(format!("deliver {handler}"), Kind::Producer, parent, &links);
            span.set("deltabus.handler", Value::Text(handler));
            span.set("deltabus.events", Value::count(sequences.len()));
            if let (Some(first), Some(last)) = (sequences.clone().next(), sequences.last()) {
                span.set_sequences(first, last);
            }
            span
        }))
    }

    /// Returns its trace context.
    pub(crate) fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(otlp::Span::context)
    }

    /// Records the sequences of the batch, so that its deliveries find this span.
    pub(crate) fn appended(&mut self, first: u64, last: u64) {
        if let Some(span) = &mut self.0 {
            span.set_sequences(first, last);
            lock(&BATCHES).add(first, last, span.context());
        }
    }

    /// Records a failed attempt.
    pub(crate) fn attempt_failed(&mut self, attempt: u32, error: &str) {
        if let Some(span) = &mut self.0 {
            span.event("attempt failed", &[("attempt", Value::count(attempt as usize)), ("error", Value::Text(error))]);
        }
    }

    /// Marks the operation as failed.
    pub(crate) fn fail(&mut self, error: &dyn fmt::Display) {
        if let Some(span) = &mut self.0 {
            span.fail(error.to_string());
        }
    }
}

/// Attributes of the spans of a unit.
pub(crate) struct SpanUnit<'a> {
    /// `apps/v1`
    pub(crate) api_version: &'a str,
    pub(crate) plural: &'a str,
    /// Watched namespace; `None` for all of them.
    pub(crate) namespace: Option<&'a str>,
}

impl SpanUnit<'_> {
    fn describe(&self, span: &mut otlp::Span) {
        span.set("deltabus.api_version", Value::Text(self.api_version));
        span.set("deltabus.resource", Value::Text(self.plural));
        if let Some(namespace) = self.namespace {
            span.set("k8s.namespace.name", Value::Text(namespace));
        }
    }
}

/// Role of a span towards other services, as OpenTelemetry defines it.
#[derive(Clone, Copy)]
enum Kind {
    Client,
    Internal,
    Producer,
}

/// Value of an attribute.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "used only by spans"))]
enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

impl Value<'_> {
    fn count(count: usize) -> Self {
        Self::Number(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

/// The last batches, by the sequence of their last event. The value has the sequence of the first event, and the span.
struct Batches(BTreeMap<u64, (u64, TraceContext)>);

impl Batches {
    fn add(&mut self, first: u64, last: u64, span: TraceContext) {
        self.0.insert(last, (first, span));
        if self.0.len() > BATCHES_MAX {
            self.0.pop_first();
        }
    }

    /// Returns the span of the first batch with any of these sequences, and the spans of the others.
    fn of(&self, sequences: impl Iterator<Item = u64>) -> (Option<TraceContext>, Vec<TraceContext>) {
        let (mut first, mut others, mut end) = (None, BTreeSet::new(), 0);
        for sequence in sequences {
            if sequence <= end && sequence != 0 {
                continue; // same batch
            }
            let Some((&last, &(begin, span))) = self.0.range(sequence..).next() else { continue };
            if sequence < begin {
                continue; // evicted batch
            }
            end = last;
            if first.is_none() {
                first = Some(span);
            } else if first != Some(span) && others.len() < LINKS_MAX {
                others.insert(span);
            }
        }
        (first, others.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u8) -> TraceContext {
        TraceContext { trace_id: [id; 16], span_id: [id; 8], is_sampled: true }
    }

    /// Source: W3C Trace Context, 3.2.
    #[test]
    fn header_follows_w3c_trace_context() {
        let context = TraceContext { trace_id: [0x0a; 16], span_id: [1; 8], is_sampled: false };
        assert_eq!(context.to_string(), "00-0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a-0101010101010101-00");
        assert!(span(1).to_string().ends_with("-01"));
    }

    #[test]
    fn delivery_joins_first_batch_and_links_others() {
        let mut batches = Batches(BTreeMap::new());
        batches.add(11, 20, span(2));
        batches.add(1, 10, span(1)); // units append concurrently
        batches.add(31, 31, span(4));
        assert_eq!(batches.of([3, 4, 10].into_iter()), (Some(span(1)), vec![]));
        assert_eq!(batches.of([10, 11, 25, 31, 32].into_iter()), (Some(span(1)), vec![span(2), span(4)]));
        assert_eq!(batches.of([25, 32].into_iter()), (None, vec![]));
    }

    #[test]
    fn oldest_batch_is_forgotten() {
        let mut batches = Batches(BTreeMap::new());
        for last in 1..=BATCHES_MAX as u64 + 1 {
            batches.add(last, last, span(1));
        }
        assert_eq!(batches.of([1].into_iter()), (None, vec![]));
        assert_eq!(batches.of([2].into_iter()), (Some(span(1)), vec![]));
    }
}
