//! `[handlers.<name>]` of type `nats`: sends events to subjects and streams.

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{report::Section, schema};
use crate::{
    cloud_event::ContentMode,
    handler::{
        client_tls::ClientTls,
        nats::{
            self, ExpectLast, JetStreamOptions, NatsAuth, NatsOptions, address::server_address,
            subject::SubjectTemplate,
        },
    },
    text::required,
};

/// Options of a handler of type `nats`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("servers"))]
pub struct NatsSink {
    /// Addresses of servers of one cluster, `nats://` or `tls://`, without a user or password. One `tls://` address requires
    /// TLS of all servers, including those that the cluster announces. Required.
    #[schemars(transform = schema::addresses("nats://nats.nats:4222"))]
    pub servers: Vec<String>,
    /// Name of the connection on the servers.
    #[educe(Default = "deltabus".to_owned())]
    pub name: String,
    /// Credentials of the handler, one of four kinds. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NatsAuth")]
    pub auth: Option<NatsAuth>,
    /// Requires TLS, and sets its certificates; files are read for each connection. Default: TLS if the server asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
    /// Subject of a message. `{cluster}` `{group}` `{resource}` `{namespace}` `{name}` `{kind}` `{version}` `{event}` are
    /// filled in, at most one between two dots: "core" for the empty group, "_" for no namespace. Letters, digits and
    /// "-" stay, other bytes become %XX.
    #[educe(Default = "k8s.{cluster}.{group}.{resource}.{namespace}.{name}".to_owned())]
    pub subject: String,
    /// Form of an event: `binary`, with its attributes as `ce-` headers and its data as the payload, or `structured`, one
    /// JSON object.
    #[educe(Default = ContentMode::Binary)]
    pub mode: ContentMode,
    /// Stream of `JetStream`. Default: none; messages reach only the current subscribers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "JetStreamOptions")]
    pub jetstream: Option<JetStreamOptions>,
}

impl NatsSink {
    /// Returns the options of the handler; `cluster` is the configured name of the cluster. Reads no file, contacts no server.
    ///
    /// # Errors
    /// Fails if a template is invalid.
    pub(crate) fn options(&self, cluster: &str) -> Result<NatsOptions, String> {
        Ok(NatsOptions {
            servers: self.servers.clone(),
            name: self.name.clone(),
            auth: self.auth.clone().unwrap_or_default(),
            tls: self.tls.clone(),
            subject: SubjectTemplate::parse(&self.subject)?,
            cluster: cluster.to_owned(),
            mode: self.mode,
            jetstream: self.jetstream.clone(),
        })
    }

    /// Checks the options. Reads no file, contacts no server.
    pub(super) fn check(&self, at: &mut Section<'_>) {
        for server in &self.servers {
            at.valid(&["servers"], check_server(server));
        }
        let subject = at.valid(&["subject"], SubjectTemplate::parse(&self.subject));
        at.check_client_tls(self.tls.as_ref());
        if let (Some(jetstream), Some(subject)) = (&self.jetstream, &subject) {
            check_stream(jetstream, subject, &mut at.below(&["jetstream"]));
        }
        self.check_encryption(at);
    }

    fn check_encryption(&self, at: &mut Section<'_>) {
        let key: &[&str] = match self.auth {
            Some(NatsAuth::UserPassword { .. }) => &["auth", "basic", "password"],
            Some(NatsAuth::Token(_)) => &["auth", "token"],
            Some(NatsAuth::None | NatsAuth::Credentials(_) | NatsAuth::Nkey(_)) | None => return,
        };
        let is_open = |server: &String| {
            server_address(server).is_some_and(|address| !address.host().is_some_and(super::webhook::is_loopback))
        };
        if !nats::requires_tls(self.tls.as_ref(), &self.servers) && self.servers.iter().any(is_open) {
            let message = "`servers` are nats://: the secret is sent without encryption unless the server asks for \
                           TLS; expected tls://, or `tls`";
            at.warn(key, message);
        }
    }
}

fn check_server(server: &str) -> Result<(), String> {
    if server.contains('@') {
        // The address is not repeated, because it contains a password.
        return Err("has a user or a password in an address: expected them in `auth`, by reference".to_owned());
    }
    let wrong = match server_address(server) {
        None => "is not a valid address: expected nats:// or tls://, such as \"nats://nats.nats:4222\"",
        Some(address) if !matches!(address.scheme_str(), Some("nats" | "tls")) => "expected nats:// or tls://",
        Some(address) if address.host().is_none_or(str::is_empty) => "has no host",
        Some(_) => return Ok(()),
    };
    Err(format!("{server:?} {wrong}"))
}

/// Checks the options of a stream.
fn check_stream(stream: &JetStreamOptions, template: &SubjectTemplate, at: &mut Section<'_>) {
    if stream.stream.is_empty() || !stream.stream.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
        let expected = "expected a name of letters, digits, \"-\" and \"_\"";
        at.error(&["stream"], format!("{:?}: {expected}", stream.stream));
    }
    if stream.duplicate_window.is_zero() {
        at.error(&["duplicate_window"], "expected more than \"0s\"");
    }
    if !stream.max_age.is_zero() && stream.max_age < stream.duplicate_window {
        let expected = "expected at least the value of `duplicate_window`, or \"0s\": the server refuses shorter times";
        at.error(&["max_age"], expected);
    }
    if stream.expect_last == ExpectLast::PerSubject && !template.is_per_object() {
        let expected = "per-subject needs a `subject` with {group}, {resource} or {kind}, {namespace} and {name}: \
                            otherwise several objects share a subject";
        at.error(&["expect_last"], expected);
    }
}

#[cfg(test)]
mod tests;
