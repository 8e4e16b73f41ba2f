//! Spans with the OpenTelemetry crates, sent over OTLP.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
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
use tokio::runtime::{Builder, Runtime};

use super::{Kind, Options, TraceContext, Value};
use crate::{failures::Failures, mutex::lock};

static TRACER: OnceLock<SdkTracer> = OnceLock::new();

pub(super) fn is_on() -> bool {
    TRACER.get().is_some()
}

/// Sender of spans. Its client has its own runtime, so that the engine never waits for a collector.
#[derive(Debug)]
pub(super) struct Exporter {
    provider: SdkTracerProvider,
    runtime: Arc<Runtime>,
}

pub(super) fn start(options: &Options) -> Result<Exporter, String> {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("otlp").enable_all().build();
    let runtime = Arc::new(runtime.map_err(|error| error.to_string())?);
    let entered = runtime.enter();
    let builder = SpanExporter::builder().with_tonic().with_endpoint(&options.endpoint);
    let exporter = if options.endpoint.starts_with("https:") {
        builder.with_tls_config(ClientTlsConfig::new().with_enabled_roots())
    } else {
        builder
    };
    let exporter = Arc::new(exporter.build().map_err(|error| error.to_string())?);
    drop(entered);
    let endpoint = options.endpoint.clone();
    let logged = Logged { exporter, runtime: Arc::clone(&runtime), endpoint, failures: Mutex::default(), epoch: now() };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let cluster = options.cluster.clone().map(|cluster| KeyValue::new("k8s.cluster.name", cluster));
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
    pub(super) fn stop(self, patience: Duration) {
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

pub(super) struct Span(opentelemetry_sdk::trace::Span);

impl Span {
    pub(super) fn begin(name: String, kind: Kind, parent: Option<TraceContext>, links: &[TraceContext]) -> Self {
        let tracer = TRACER.get().expect("spans begin only after `start`");
        let parent = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent.into()));
        let links = links.iter().map(|&link| Link::with_context(link.into())).collect();
        let kind = match kind {
            Kind::Client => SpanKind::Client,
            Kind::Internal => SpanKind::Internal,
            Kind::Producer => SpanKind::Producer,
        };
        Self(SpanBuilder::from_name(name).with_kind(kind).with_links(links).start_with_context(tracer, &parent))
    }

    pub(super) fn context(&self) -> TraceContext {
        let context = self.0.span_context();
        TraceContext {
            trace_id: context.trace_id().to_bytes(),
            span_id: context.span_id().to_bytes(),
            is_sampled: context.is_sampled(),
        }
    }

    pub(super) fn set(&mut self, key: &'static str, value: Value<'_>) {
        self.0.set_attribute(KeyValue::new(key, opentelemetry::Value::from(value)));
    }

    pub(super) fn set_sequences(&mut self, first: u64, last: u64) {
        for (key, sequence) in [("deltabus.sequence.first", first), ("deltabus.sequence.last", last)] {
            self.set(key, Value::Number(i64::try_from(sequence).unwrap_or(i64::MAX)));
        }
    }

    pub(super) fn event(&mut self, name: &'static str, attributes: &[(&'static str, Value<'_>)]) {
        let attributes = attributes.iter().map(|&(key, value)| KeyValue::new(key, opentelemetry::Value::from(value)));
        self.0.add_event(name, attributes.collect());
    }

    pub(super) fn fail(&mut self, error: String) {
        self.0.set_status(Status::error(error));
    }
}

impl From<TraceContext> for SpanContext {
    fn from(TraceContext { trace_id, span_id, is_sampled }: TraceContext) -> Self {
        let flags = if is_sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        let (trace_id, span_id) = (TraceId::from_bytes(trace_id), SpanId::from_bytes(span_id));
        Self::new(trace_id, span_id, flags, true, TraceState::NONE)
    }
}

impl From<Value<'_>> for opentelemetry::Value {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Text(text) => text.to_owned().into(),
            Value::Number(number) => number.into(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the shell's clock")]
fn now() -> Instant {
    Instant::now()
}
