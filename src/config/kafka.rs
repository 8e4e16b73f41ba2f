//! `[handlers.<name>]` of type `kafka`: sends events to topics, with keys for compaction.

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    error::{Problem, half_a_client, problem},
    schema,
};
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
    /// Returns all problems: the keys below the handler, each with a sentence.
    pub(crate) fn options(
        &self,
        cluster: &str,
        timeout: Duration,
        total_order: bool,
    ) -> Result<KafkaOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        for broker in &self.brokers {
            if let Some(expected) = unfit_address(broker) {
                problems.push(problem(&["brokers"], format!("{broker:?}: {expected}")));
            }
        }
        let topic = TopicTemplate::parse(&self.topic).map_err(|error| problems.push(problem(&["topic"], error)));
        let key = KeyTemplate::parse(&self.key).map_err(|error| problems.push(problem(&["key"], error)));
        if self.idempotent && self.acks != Acks::All {
            let expected = "expected \"all\", or idempotent = false: otherwise brokers cannot detect repetitions";
            problems.push(problem(&["acks"], expected));
        }
        if self.sasl.as_ref().is_some_and(|sasl| sasl.username.is_empty()) {
            problems.push(problem(&["sasl", "username"], "expected the name of a user"));
        }
        problems.extend(self.tls.as_ref().and_then(half_a_client));
        match (topic, key) {
            (Ok(topic), Ok(key)) if problems.is_empty() => Ok(KafkaOptions {
                brokers: self.brokers.clone(),
                topic,
                key,
                cluster: cluster.to_owned(),
                mode: self.mode,
                compression: self.compression,
                acks: self.acks,
                idempotent: self.idempotent,
                sasl: self.sasl.clone(),
                tls: self.tls.clone(),
                timeout,
                total_order,
            }),
            _ => Err(problems),
        }
    }

    /// Returns obstacles to the use of the handler: missing files and secrets, and a program without Kafka. Reads files:
    /// blocks.
    pub(crate) fn unready(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if cfg!(not(feature = "kafka")) {
            problems.push(problem(&["type"], build_info::lacking("kafka")));
        }
        if let Some(Err(error)) = self.sasl.as_ref().map(|sasl| sasl.password.read()) {
            problems.push(problem(&["sasl", "password"], error));
        }
        let tls = self.tls.as_ref().and_then(|tls| TlsOptions::from(tls).check().err());
        problems.extend(tls.map(|(key, error)| problem(&["tls", key], error)));
        problems
    }

    /// Returns suspicious settings.
    pub(crate) fn oddities(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let (Ok(topic), Ok(key)) = (TopicTemplate::parse(&self.topic), KeyTemplate::parse(&self.key))
            && !key.is_per_object(&topic)
        {
            let message = "several objects share a key: the tombstone of one deletes all, and a compacted topic keeps \
                           only one; expected {uid}, or {group} {resource} {namespace} {name}; `topic` may contain \
                           some of them";
            problems.push(problem(&["key"], message));
        }
        let sends_password = self.sasl.as_ref().is_some_and(|sasl| sasl.mechanism == SaslMechanism::Plain);
        if sends_password && self.tls.is_none() {
            let message = "PLAIN sends the password unencrypted if there is no `tls`: expected `tls`, or SCRAM-SHA-512";
            problems.push(problem(&["sasl", "mechanism"], message));
        }
        problems
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
