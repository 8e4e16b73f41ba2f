//! `[telemetry]`: traces of the engine's own work.

use educe::Educe;
use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ConfigPlace, report::Section};
use crate::build_info;

/// Traces of the engine's own work, for an OpenTelemetry collector.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Telemetry {
    /// URL of a collector of OTLP over gRPC, such as `http://otel-collector:4317`; "" = off. Needs the feature `otlp`
    /// of the program (a default feature).
    pub otlp_endpoint: String,
    /// Sends spans of lists and watches, of batches and of deliveries. Deliveries to webhooks, NATS and Kafka carry the trace
    /// context in the header `traceparent`.
    #[educe(Default = true)]
    pub traces: bool,
}

impl Telemetry {
    /// Returns the collector's URL, if spans are sent.
    pub fn spans_to(&self) -> Option<&str> {
        Some(&*self.otlp_endpoint).filter(|endpoint| self.traces && !endpoint.is_empty())
    }

    /// Checks `otlp_endpoint`.
    pub(super) fn check(&self, place: ConfigPlace, at: &mut Section<'_>) {
        let endpoint = &*self.otlp_endpoint;
        if endpoint.is_empty() {
            return;
        }
        if endpoint.contains('@') {
            let message = "contains a user or password: expected credentials in $OTEL_EXPORTER_OTLP_HEADERS";
            return at.error(&["otlp_endpoint"], message);
        }
        let url = endpoint.parse::<Uri>().ok();
        let is_right = |url: &Uri| {
            matches!(url.scheme_str(), Some("http" | "https"))
                && url.host().is_some_and(|host| !host.is_empty())
                && (url.authority().map(http::uri::Authority::as_str) == url.host()
                    || url.port_u16().is_some_and(|port| port > 0))
                && matches!(url.path(), "" | "/")
                && url.query().is_none()
        };
        if !url.as_ref().is_some_and(is_right) {
            let expected =
                "expected the URL of a collector that speaks OTLP over gRPC, such as \"http://otel-collector:4317\"";
            let advice = if endpoint.contains("/v1/") { "; OTLP over HTTP, with a path, is not supported" } else { "" };
            at.error(&["otlp_endpoint"], format!("{expected}, found \"{}\"{advice}", endpoint.escape_debug()));
        } else if cfg!(not(feature = "otlp")) && self.traces && place == ConfigPlace::Here {
            at.error(&["otlp_endpoint"], build_info::lacking("otlp"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::report::Report, *};

    fn telemetry(endpoint: &str) -> Telemetry {
        Telemetry { otlp_endpoint: endpoint.into(), traces: true }
    }

    fn mistake(endpoint: &str) -> Option<String> {
        let mut report = Report::default();
        telemetry(endpoint).check(ConfigPlace::Here, &mut report.root());
        report.errors.pop().map(|error| error.message)
    }

    #[test]
    fn spans_need_endpoint_and_traces() {
        assert_eq!(telemetry("").spans_to(), None);
        assert_eq!(telemetry("http://otel:4317").spans_to(), Some("http://otel:4317"));
        assert_eq!(Telemetry { traces: false, ..telemetry("http://otel:4317") }.spans_to(), None);
    }

    #[test]
    fn telemetry_endpoint_is_grpc_collector_url() {
        assert_eq!(mistake(""), None);
        for right in ["http://otel-collector:4317", "https://otel.example.com/", "http://[::1]:4317"] {
            assert_eq!(mistake(right), cfg!(not(feature = "otlp")).then(|| build_info::lacking("otlp")), "{right}");
        }
        for wrong in
            ["otel:4317", "grpc://otel:4317", "http://", "http://o/?a=b", "localhost", "http://a b", "http://o:99999"]
        {
            let mistake = mistake(wrong).unwrap();
            assert!(mistake.starts_with("expected the URL of a collector"), "{wrong}: {mistake}");
        }
        let http = mistake("http://otel:4318/v1/traces").unwrap();
        assert!(http.ends_with("OTLP over HTTP, with a path, is not supported"), "{http}");
        assert!(!mistake("http://me:secret@otel:4317").unwrap().contains("secret"));
    }
}
