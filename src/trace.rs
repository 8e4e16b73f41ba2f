//! OpenTelemetry spans: one for each list, watch and batch of a unit, and one for each delivery.
//!
//! Spans are recorded only after [`start`]. Before that, a span costs one check. A program without the feature `otlp`
//! records none.
//!
//! The span of a delivery is part of the trace of the first batch that it delivers. The span is linked to the spans of the other
//! batches. The spans of the last 4,096 batches are kept in memory by sequence, so that the records of the journal need not contain
//! spans.

use std::fmt;

#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "trace/none.rs"]
mod otlp;

pub(crate) use otlp::Exporter;
pub(crate) use otlp::{Span, is_on};

/// Starts to record spans of all engines in this process, and sends them in the background. `endpoint` is an `http` or `https` URL
/// of an OpenTelemetry collector that speaks OTLP over gRPC. `cluster` is sent as the resource attribute `k8s.cluster.name`. At
/// most 2,048 spans wait to be sent; further spans are dropped. OpenTelemetry's environment variables apply: `OTEL_TRACES_SAMPLER`,
/// `OTEL_BSP_*`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`.
///
/// # Errors
/// Fails with a message if the exporter cannot be created.
pub(crate) fn start(endpoint: &str, cluster: Option<&str>) -> Result<Exporter, String> {
    otlp::start(endpoint, cluster).map_err(|reason| format!("failed to start sending spans to {endpoint}: {reason}"))
}

/// Trace context of a span, as defined by the W3C. It displays as the value of the header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    is_sampled: bool,
}

impl TraceContext {
    /// Name of the HTTP header that contains a trace context.
    pub const HEADER: &str = "traceparent";
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.is_sampled))
    }
}

/// Attributes of the spans of a unit.
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "used only by spans"))]
pub(crate) struct SpanUnit<'a> {
    /// `apps/v1`
    pub(crate) api_version: &'a str,
    pub(crate) plural: &'a str,
    /// Watched namespace; `None` for all of them.
    pub(crate) namespace: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: W3C Trace Context, 3.2.
    #[test]
    fn header_follows_w3c_trace_context() {
        let context = TraceContext { trace_id: [0x0a; 16], span_id: [1; 8], is_sampled: false };
        assert_eq!(context.to_string(), "00-0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a-0101010101010101-00");
        assert!(TraceContext { is_sampled: true, ..context }.to_string().ends_with("-01"));
    }
}
