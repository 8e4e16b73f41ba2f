//! Checks of `[handlers.<name>]` of type `kafka`.

use http::uri::Authority;

use super::report::Section;
use crate::{
    build_info,
    handler::{
        client_tls::ClientTls,
        kafka::{
            Acks, KafkaOptions, SaslMechanism,
            template::{KeyTemplate, TopicTemplate},
        },
    },
};

impl KafkaOptions {
    /// Checks the options. Reads no file and no secret, and contacts no broker.
    pub(super) fn check(&self, at: &mut Section<'_>) {
        for broker in &self.brokers {
            if let Some(expected) = unfit_address(broker) {
                at.error(&["brokers"], format!("{broker:?}: {expected}"));
            }
        }
        let topic = at.valid(&["topic"], TopicTemplate::parse(&self.topic));
        let key = at.valid(&["key"], KeyTemplate::parse(&self.key));
        if let (Some(topic), Some(key)) = (topic, key)
            && !key.is_per_object(&topic)
        {
            let message = "several objects share a key: the tombstone of one deletes all, and a compacted topic keeps \
                           only one; expected {uid}, or {group} {resource} {namespace} {name}; `topic` may contain \
                           some of them";
            at.warn(&["key"], message);
        }
        if self.idempotent && self.acks != Acks::All {
            let expected = "expected \"all\", or idempotent = false: otherwise brokers cannot detect repetitions";
            at.error(&["acks"], expected);
        }
        if let Some(sasl) = &self.sasl {
            if sasl.username.is_empty() {
                at.error(&["sasl", "username"], "expected the name of a user");
            }
            if sasl.mechanism == SaslMechanism::Plain && self.tls.is_none() {
                let message =
                    "PLAIN sends the password unencrypted if there is no `tls`: expected `tls`, or SCRAM-SHA-512";
                at.warn(&["sasl", "mechanism"], message);
            }
        }
        at.check_client_tls(self.tls.as_ref());
    }

    /// Checks the files and secrets that the options name, and that the program supports Kafka. Blocks while it reads them.
    pub(super) fn check_files(&self, at: &mut Section<'_>) {
        if cfg!(not(feature = "kafka")) {
            at.error(&["type"], build_info::lacking("kafka"));
        }
        if let Some(sasl) = &self.sasl {
            at.valid(&["sasl", "password"], sasl.password.read());
        }
        if let Some(Err((key, error))) = self.tls.as_ref().map(ClientTls::config) {
            at.error(&["tls", key], error);
        }
    }
}

/// Returns the expected form if an address is invalid.
fn unfit_address(address: &str) -> Option<&'static str> {
    const EXPECTED: &str = "expected a host and a port, such as \"kafka-0:9092\"";
    if address.contains("://") {
        return Some("expected a host and a port without a scheme, such as \"kafka-0:9092\"; `tls` enables TLS");
    }
    let is_fit = |parsed: Authority| !parsed.host().is_empty() && parsed.port_u16().is_some_and(|port| port > 0);
    (address.contains([',', '@']) || !address.parse().is_ok_and(is_fit)).then_some(EXPECTED)
}

#[cfg(test)]
mod tests;
