//! `[handlers.<name>]` of type `kafka`: sends events to topics, with keys for compaction.

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{report::Section, schema};
use crate::{
    build_info,
    cloud_event::ContentMode,
    handler::{
        client_tls::ClientTls,
        kafka::{
            Acks, KafkaCompression, KafkaOptions, KafkaSasl, SaslMechanism,
            template::{KeyTemplate, TopicTemplate},
        },
        webhook::TlsOptions,
    },
    text::required,
};

/// Options of a handler of type `kafka`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("brokers"))]
pub struct KafkaSink {
    /// Addresses of brokers of one cluster, `host:port`; other brokers are discovered from them. Required.
    #[schemars(transform = schema::addresses("kafka-0:9092"))]
    pub brokers: Vec<String>,
    /// Topic of a message. `{cluster}` `{group}` `{resource}` `{namespace}` are filled in: "core" for the empty group, "_" for no
    /// namespace. Letters, digits, "." and "-" stay, other bytes become `_XX`. Brokers or administrators create topics.
    #[educe(Default = "k8s.{resource}".to_owned())]
    pub topic: String,
    /// Key of a message, from the unchanged `{uid}` `{cluster}` `{group}` `{resource}` `{kind}` `{namespace}` `{name}`. Messages
    /// of one key stay in order in one partition. `deleted` and `removed` are tombstones: messages of this key without a value.
    #[educe(Default = "{uid}".to_owned())]
    pub key: String,
    /// Form of an event: `structured`, one JSON object, or `binary`, with its attributes as `ce_` headers and its data as the
    /// value.
    pub mode: ContentMode,
    /// Compression of batches of messages.
    pub compression: KafkaCompression,
    /// Replicas that must have a message before it is acknowledged: `all` in sync, the leader (`1`), or none (`0`).
    pub acks: Acks,
    /// Makes brokers drop a message that is repeated after a lost response. Needs `acks = "all"`.
    #[educe(Default = true)]
    pub idempotent: bool,
    /// Credentials of the handler. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KafkaSasl")]
    pub sasl: Option<KafkaSasl>,
    /// Requires TLS, and sets its certificates. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
}

impl KafkaSink {
    /// Returns the options of the handler. `cluster` is the configured name of the cluster, and `timeout` the time limit of an
    /// attempt. `total_order` sends messages one after the other, whatever their object. Reads no file and no secret, and
    /// contacts no broker.
    ///
    /// # Errors
    /// Fails if a template is invalid.
    #[cfg_attr(not(any(feature = "kafka", test)), expect(dead_code, reason = "the handler is not built"))]
    pub(crate) fn options(&self, cluster: &str, timeout: Duration, total_order: bool) -> Result<KafkaOptions, String> {
        Ok(KafkaOptions {
            brokers: self.brokers.clone(),
            topic: TopicTemplate::parse(&self.topic)?,
            key: KeyTemplate::parse(&self.key)?,
            cluster: cluster.to_owned(),
            mode: self.mode,
            compression: self.compression,
            acks: self.acks,
            idempotent: self.idempotent,
            sasl: self.sasl.clone(),
            tls: self.tls.clone(),
            timeout,
            total_order,
        })
    }

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

    /// Checks that the handler can be used here: its files and secrets, and that the program supports Kafka. Blocks.
    pub(super) fn check_files(&self, at: &mut Section<'_>) {
        if cfg!(not(feature = "kafka")) {
            at.error(&["type"], build_info::lacking("kafka"));
        }
        if let Some(sasl) = &self.sasl {
            at.valid(&["sasl", "password"], sasl.password.read());
        }
        if let Some(Err((key, error))) = self.tls.as_ref().map(|tls| TlsOptions::from(tls).check()) {
            at.error(&["tls", key], error);
        }
    }
}

/// Returns the expected form if an address is invalid.
fn unfit_address(address: &str) -> Option<&'static str> {
    const EXPECTED: &str = "expected a host and a port, such as \"kafka-0:9092\"";
    let Some((host, port)) = address.rsplit_once(':') else { return Some(EXPECTED) };
    if address.contains("://") {
        return Some("expected a host and a port without a scheme, such as \"kafka-0:9092\"; `tls` enables TLS");
    }
    let is_bracketed = host.starts_with('[') && host.ends_with(']');
    let is_fit = !host.is_empty()
        && !host.contains(|letter: char| letter == ',' || letter == '@' || letter == '/' || letter.is_whitespace())
        && (is_bracketed || !host.contains(':'))
        && port.parse::<u16>().is_ok_and(|port| port > 0);
    (!is_fit).then_some(EXPECTED)
}

#[cfg(test)]
mod tests;
