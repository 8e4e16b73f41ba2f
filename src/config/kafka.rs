//! `[handlers.<name>]` of type `kafka`: topics that events are sent to, keyed for compaction.

use std::time::Duration;

use educe::Educe;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::{
    error::{Problem, half_a_client, problem},
    schema,
};
use crate::{
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
    /// Addresses of brokers of one cluster, `host:port`; the others are learned from them. Required.
    #[schemars(schema_with = "brokers")]
    pub brokers: Vec<String>,
    /// Where a message goes. `{cluster}` `{group}` `{resource}` `{namespace}` are filled in: "core" for the empty group, "_"
    /// for no namespace; letters, digits, "." and "-" stay, other bytes are `_XX`. The brokers make topics, or somebody.
    #[educe(Default = "k8s.{resource}".to_owned())]
    pub topic: String,
    /// The key of a message, of `{uid}` `{cluster}` `{group}` `{resource}` `{kind}` `{namespace}` `{name}` as they are. One key
    /// is one partition, in order; `deleted` and `removed` are a message of this key without value, a tombstone.
    #[educe(Default = "{uid}".to_owned())]
    pub key: String,
    /// How an event travels: `structured`, one JSON object, or `binary`, its attributes as `ce_` headers and its data as
    /// the value.
    pub mode: ContentMode,
    /// How messages are packed, several together.
    pub compression: KafkaCompression,
    /// Who has to have a message before it is acknowledged: `all` replicas that keep up, the leader (`1`), nobody (`0`).
    pub acks: Acks,
    /// Whether brokers drop what comes again after a lost answer. Needs `acks = "all"`.
    #[educe(Default = true)]
    pub idempotent: bool,
    /// Who the handler is. Default: nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KafkaSasl")]
    pub sasl: Option<KafkaSasl>,
    /// Requires TLS, and says whom to trust. Default: no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
}

fn brokers(_: &mut SchemaGenerator) -> Schema {
    schema::addresses("kafka-0:9092")
}

impl KafkaSink {
    /// Makes what the handler is made of; `cluster` is the configured name of the cluster, `timeout` what an attempt may
    /// take, and `total_order` says that messages are sent one after the other, whatever their object. Looks at no file, no
    /// secret and no broker.
    ///
    /// # Errors
    /// All that is wrong: keys from the handler's own, each with a sentence.
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
            let expected = "expected \"all\", or idempotent = false: a broker that asks no other knows no repetition";
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

    /// Returns what stands against using it: files and secrets that are not there, and a program without Kafka. Reads
    /// files: blocks.
    pub(crate) fn unready(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if cfg!(not(feature = "kafka")) {
            let advice = "this program was built without Kafka: build it with `cargo build --release --features kafka`";
            problems.push(problem(&["type"], advice));
        }
        if let Some(Err(error)) = self.sasl.as_ref().map(|sasl| sasl.password.read()) {
            problems.push(problem(&["sasl", "password"], error.to_string()));
        }
        let tls = self.tls.as_ref().and_then(|tls| TlsOptions::from(tls).check().err());
        problems.extend(tls.map(|(key, error)| problem(&["tls", key], error)));
        problems
    }

    /// Returns what is allowed and odd.
    pub(crate) fn oddities(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let (Ok(topic), Ok(key)) = (TopicTemplate::parse(&self.topic), KeyTemplate::parse(&self.key))
            && !key.is_per_object(&topic)
        {
            let message = "several objects share a key: the tombstone of one stands for all, and a compacted topic keeps \
                           one of them; expected {uid}, or {group} {resource} {namespace} {name}, some of it in `topic`";
            problems.push(problem(&["key"], message));
        }
        let sends_password = self.sasl.as_ref().is_some_and(|sasl| sasl.mechanism == SaslMechanism::Plain);
        if sends_password && self.tls.is_none() {
            let message = "PLAIN sends the password, without `tls` unencrypted: expected `tls`, or SCRAM-SHA-512";
            problems.push(problem(&["sasl", "mechanism"], message));
        }
        problems
    }
}

/// Says what an address should look like, if it is none.
fn unfit_address(address: &str) -> Option<&'static str> {
    const EXPECTED: &str = "expected a host and a port, such as \"kafka-0:9092\"";
    let Some((host, port)) = address.rsplit_once(':') else { return Some(EXPECTED) };
    if address.contains("://") {
        return Some("expected a host and a port without a scheme, such as \"kafka-0:9092\"; `tls` asks for TLS");
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
