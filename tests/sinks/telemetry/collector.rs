//! An OpenTelemetry collector: an OTLP server that stores the received data.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::ResourceSpans,
};
use tokio::runtime::{Builder, Runtime};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

pub(super) use opentelemetry_proto::tonic::trace::v1::Span;

/// A running collector; dropping it stops it.
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    kept: Kept,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<ResourceSpans>>>);

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    pub(super) fn start(address: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let kept = Kept::default();
        let service = TraceServiceServer::new(kept.clone());
        let address = runtime.block_on(async {
            let incoming = TcpIncoming::bind(address).unwrap();
            let address = incoming.local_addr().unwrap();
            tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
            address
        });
        Self { address, kept, _runtime: runtime }
    }

    /// Returns a resource attribute of the spans.
    pub(super) fn resource(&self, key: &str) -> Option<String> {
        let kept = self.kept.0.lock().unwrap();
        attribute(&kept.first()?.resource.as_ref()?.attributes, key)
    }

    /// Returns the spans with a name.
    pub(super) fn spans(&self, name: &str) -> Vec<Span> {
        let kept = self.kept.0.lock().unwrap();
        let scopes = kept.iter().flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| &scope.spans).filter(|span| span.name == name).cloned().collect()
    }

    /// Waits for `count` spans with a name.
    pub(super) fn wait(&self, name: &str, count: usize, timeout: Duration) -> Vec<Span> {
        let begun = Instant::now();
        loop {
            let spans = self.spans(name);
            if spans.len() >= count {
                return spans;
            }
            assert!(begun.elapsed() < timeout, "{} spans {name} within {timeout:?}, expected {count}", spans.len());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns an attribute as text.
pub(super) fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

/// Returns the `traceparent` header of a sampled span.
pub(super) fn header(span: &Span) -> String {
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}
