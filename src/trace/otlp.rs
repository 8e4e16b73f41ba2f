//! Spans with the OpenTelemetry crates, sent over OTLP.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use opentelemetry::{
    Context, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{
        Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceState,
        TracerProvider as _,
    },
};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig as _, WithTonicConfig as _, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracer, SdkTracerProvider, SpanData},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};

use super::{SpanUnit, TraceContext};
use crate::{failures::Failures, mutex::lock};

/// Maximum number of batches whose spans are remembered.
const BATCHES_MAX: usize = 4096;
/// Maximum number of links from the span of a delivery to spans of batches.
const LINKS_MAX: usize = 64;

static TRACER: OnceLock<SdkTracer> = OnceLock::new();
static BATCHES: Mutex<Batches> = Mutex::new(Batches(BTreeMap::new()));

/// Returns true if spans are recorded.
pub(crate) fn is_on() -> bool {
    TRACER.get().is_some()
}

/// Background sender of spans. Its client has its own runtime, so that the engine never waits for a collector.
#[derive(Debug)]
#[must_use = "waiting spans are lost unless it is stopped"]
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
    runtime: Arc<Runtime>,
}

pub(super) fn start(endpoint: &str, cluster: Option<&str>) -> Result<Exporter, String> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("otlp").enable_all().build();
    let runtime = Arc::new(runtime.map_err(|error| error.to_string())?);
    let entered = runtime.enter();
    let builder = SpanExporter::builder().with_tonic().with_endpoint(endpoint);
    let exporter = if endpoint.starts_with("https:") {
        builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots())
    } else {
        builder
    };
    let exporter = Arc::new(exporter.build().map_err(|error| error.to_string())?);
    drop(entered);
    let endpoint = endpoint.to_owned();
    let logged =
        Logged { exporter, runtime: Arc::clone(&runtime), endpoint, failures: Mutex::default(), epoch: Instant::now() };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let cluster = cluster.map(|cluster| KeyValue::new("k8s.cluster.name", cluster.to_owned()));
    let from_environment = Resource::builder().build();
    let mut resource = Resource::builder().with_attributes([version].into_iter().chain(cluster));
    let service = opentelemetry::Key::from_static_str("service.name");
    if from_environment.get(&service).is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        resource = resource.with_service_name("deltabus");
    }
    let provider = SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(logged).build();
    TRACER.set(provider.tracer("deltabus")).map_err(|_| "spans are already being sent".to_owned())?;
    Ok(Exporter { provider, runtime })
}

impl Exporter {
    /// Sends the waiting spans, and blocks for at most `patience`. No more spans are sent afterwards.
    pub(crate) fn stop(self, patience: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(patience) {
            tracing::warn!(%error, "failed to send the last spans");
        }
        drop(self.provider);
        if let Some(runtime) = Arc::into_inner(self.runtime) {
            runtime.shutdown_background();
        }
    }
}

/// Exporter that logs the first failure, then one per minute.
#[derive(Debug)]
struct Logged {
    exporter: Arc<SpanExporter>,
    runtime: Arc<Runtime>,
    endpoint: String,
    failures: Mutex<Failures>,
    epoch: Instant,
}

impl opentelemetry_sdk::trace::SpanExporter for Logged {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, spans) = (Arc::clone(&self.exporter), batch.len());
        let sent = self.runtime.spawn(async move { exporter.export(batch).await }).await;
        match sent.map_err(|error| error.to_string()).and_then(|sent| sent.map_err(|error| error.to_string())) {
            Ok(()) => {
                if let Some(failures) = lock(&self.failures).worked() {
                    tracing::info!(failures, "the collector accepts spans again");
                }
            }
            Err(error) => {
                if let Some(suppressed) = lock(&self.failures).failed(self.epoch.elapsed()) {
                    let endpoint = &*self.endpoint;
                    tracing::warn!(
                        endpoint,
                        spans,
                        error,
                        suppressed,
                        "failed to send spans to the collector of [telemetry] otlp_endpoint; they are lost"
                    );
                }
            }
        }
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

/// A span. It ends when it is dropped.
pub(crate) struct Span(Option<opentelemetry_sdk::trace::Span>);

impl Span {
    /// Span that is not recorded.
    pub(crate) const NONE: Self = Self(None);

    fn begin(name: fmt::Arguments<'_>, kind: SpanKind, parent: Option<TraceContext>, links: &[TraceContext]) -> Self {
        let Some(tracer) = TRACER.get() else { return Self::NONE };
        let parent = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent.into()));
        let links = links.iter().map(|&link| Link::with_context(link.into())).collect();
        let span = SpanBuilder::from_name(name.to_string()).with_kind(kind).with_links(links);
        Self(Some(span.start_with_context(tracer, &parent)))
    }

    /// Begins the span of a list or a watch; `does` is the name of the operation.
    pub(crate) fn of_unit(does: &str, unit: &SpanUnit<'_>) -> Self {
        let span = Self::begin(format_args!("{does} {}", unit.plural), SpanKind::Client, None, &[]);
        span.describing(unit)
    }

    /// Begins the span of a batch that is being applied. It is linked to `by`, the span of the list or watch that read the batch.
    pub(crate) fn of_batch(unit: &SpanUnit<'_>, by: Option<TraceContext>, events: usize) -> Self {
        let span = Self::begin(format_args!("apply {}", unit.plural), SpanKind::Internal, None, by.as_slice());
        let mut span = span.describing(unit);
        span.set("deltabus.events", number(events));
        span
    }

    /// Begins the span of a delivery. `sequences` are the sequences of the delivered events, in order. If another handler gave up
    /// these events, `given_up` is the span of that handler's delivery.
    pub(crate) fn of_delivery(
        handler: &str,
        given_up: Option<TraceContext>,
        sequences: impl ExactSizeIterator<Item = u64> + Clone,
    ) -> Self {
        if !is_on() {
            return Self::NONE;
        }
        let (parent, links) = match given_up {
            Some(parent) => (Some(parent), Vec::new()),
            None => lock(&BATCHES).of(sequences.clone()),
        };
        let mut span = Self::begin(format_args!("deliver {handler}"), SpanKind::Producer, parent, &links);
        span.set("deltabus.handler", handler.to_owned());
        span.set("deltabus.events", number(sequences.len()));
        if let (Some(first), Some(last)) = (sequences.clone().next(), sequences.last()) {
            span.set_sequences(first, last);
        }
        span
    }

    /// Returns the trace context of the span; `None` if the span is not recorded.
    pub(crate) fn context(&self) -> Option<TraceContext> {
        let context = self.0.as_ref()?.span_context();
        Some(TraceContext {
            trace_id: context.trace_id().to_bytes(),
            span_id: context.span_id().to_bytes(),
            is_sampled: context.is_sampled(),
        })
    }

    /// Records the sequences of the batch, so that its deliveries find this span.
    pub(crate) fn appended(&mut self, first: u64, last: u64) {
        let Some(context) = self.context() else { return };
        self.set_sequences(first, last);
        lock(&BATCHES).add(first, last, context);
    }

    /// Records a failed attempt.
    pub(crate) fn attempt_failed(&mut self, attempt: u32, error: &str) {
        if let Some(span) = &mut self.0 {
            let attributes =
                vec![KeyValue::new("attempt", i64::from(attempt)), KeyValue::new("error", error.to_owned())];
            span.add_event("attempt failed", attributes);
        }
    }

    /// Marks the operation as failed.
    pub(crate) fn fail(&mut self, error: &dyn fmt::Display) {
        if let Some(span) = &mut self.0 {
            span.set_status(Status::error(error.to_string()));
        }
    }

    fn describing(mut self, unit: &SpanUnit<'_>) -> Self {
        self.set("deltabus.api_version", unit.api_version.to_owned());
        self.set("deltabus.resource", unit.plural.to_owned());
        if let Some(namespace) = unit.namespace {
            self.set("k8s.namespace.name", namespace.to_owned());
        }
        self
    }

    fn set_sequences(&mut self, first: u64, last: u64) {
        self.set("deltabus.sequence.first", number(first));
        self.set("deltabus.sequence.last", number(last));
    }

    fn set(&mut self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, value));
        }
    }
}

fn number(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Map of the last batches. The key is the last sequence of a batch. The value is the first sequence of the batch, and its span.
struct Batches(BTreeMap<u64, (u64, TraceContext)>);

impl Batches {
    fn add(&mut self, first: u64, last: u64, span: TraceContext) {
        self.0.insert(last, (first, span));
        if self.0.len() > BATCHES_MAX {
            self.0.pop_first();
        }
    }

    /// Finds the batches that contain these sequences. Returns the span of the first of these batches, and the spans of the others.
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

impl From<TraceContext> for SpanContext {
    fn from(TraceContext { trace_id, span_id, is_sampled }: TraceContext) -> Self {
        let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        let (trace_id, span_id) = (TraceId::from_bytes(trace_id), SpanId::from_bytes(span_id));
        Self::new(trace_id, span_id, flags, true, TraceState::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(id: u8) -> TraceContext {
        TraceContext { trace_id: [id; 16], span_id: [id; 8], is_sampled: true }
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
