//! `[telemetry]`: traces of the engine's own work.

use educe::Educe;
use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ConfigPlace;
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

    /// Returns the error in `otlp_endpoint`, if there is one.
    pub(super) fn mistake(&self, place: ConfigPlace) -> Option<String> {
        let endpoint = &*self.otlp_endpoint;
        if endpoint.is_empty() {
            return None;
        }
        if endpoint.contains('@') {
            let variable = "OTEL_EXPORTER_OTLP_HEADERS";
            return Some(format!("contains a user or password: expected credentials in ${variable}"));
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
            return Some(format!("{expected}, found \"{}\"{advice}", endpoint.escape_debug()));
        }
        if cfg!(not(feature = "otlp")) && place == ConfigPlace::Here {
            return Some(build_info::lacking("otlp"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn telemetry(endpoint: &str) -> Telemetry {
        Telemetry { otlp_endpoint: endpoint.into(), traces: true }
    }

    #[test]
    fn spans_need_endpoint_and_traces() {
        assert_eq!(telemetry("").spans_to(), None);
        assert_eq!(telemetry("http://otel:4317").spans_to(), Some("http://otel:4317"));
        assert_eq!(Telemetry { traces: false, ..telemetry("http://otel:4317") }.spans_to(), None);
    }

    #[test]
    fn telemetry_endpoint_is_grpc_collector_url() {
        for right in ["", "http://otel-collector:4317", "https://otel.example.com/", "http://[::1]:4317"] {
            assert_eq!(telemetry(right).mistake(ConfigPlace::Here), None, "{right}");
        }
        for wrong in
            ["otel:4317", "grpc://otel:4317", "http://", "http://o/?a=b", "localhost", "http://a b", "http://o:99999"]
        {
            let mistake = telemetry(wrong).mistake(ConfigPlace::Here).unwrap();
            assert!(mistake.starts_with("expected the URL of a collector"), "{wrong}: {mistake}");
        }
        let mistake = telemetry("http://otel:4318/v1/traces").mistake(ConfigPlace::Here).unwrap();
        assert!(mistake.ends_with("OTLP over HTTP, with a path, is not supported"), "{mistake}");
        assert!(!telemetry("http://me:secret@otel:4317").mistake(ConfigPlace::Here).unwrap().contains("secret"));
    }
}
