//! `[handlers.<name>]` of type `nats`: sends events to subjects and streams.

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
    /// Returns all problems: the keys below the handler, each with a sentence.
    pub(crate) fn options(&self, cluster: &str) -> Result<NatsOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        self.check_servers(&mut problems);
        let template =
            SubjectTemplate::parse(&self.subject).map_err(|error| problems.push(problem(&["subject"], error)));
        let auth = self.auth.clone().unwrap_or_default();
        problems.extend(self.tls.as_ref().and_then(half_a_client));
        if let (Some(jetstream), Ok(template)) = (&self.jetstream, &template) {
            check_stream(jetstream, template, &mut problems);
        }
        match template {
            Ok(subject) if problems.is_empty() => Ok(NatsOptions {
                servers: self.servers.clone(),
                name: self.name.clone(),
                auth,
                tls: self.tls.clone(),
                subject,
                cluster: cluster.to_owned(),
                mode: self.mode,
                jetstream: self.jetstream.clone(),
            }),
            _ => Err(problems),
        }
    }

    /// Returns obstacles to the use of the handler: a program without NATS.
    #[expect(clippy::unused_self, reason = "like those of other sinks")]
    pub(crate) fn unready(&self) -> Vec<Problem> {
        if cfg!(feature = "nats") {
            return Vec::new();
        }
        vec![problem(&["type"], build_info::lacking("nats"))]
    }

    /// Returns suspicious settings.
    pub(crate) fn oddities(&self) -> Vec<Problem> {
        let key: &[&str] = match self.auth {
            Some(NatsAuth::UserPassword { .. }) => &["auth", "basic", "password"],
            Some(NatsAuth::Token(_)) => &["auth", "token"],
            Some(NatsAuth::None | NatsAuth::Credentials(_) | NatsAuth::Nkey(_)) | None => return Vec::new(),
        };
        let is_open = |server: &String| {
            server_address(server).is_some_and(|address| !address.host().is_some_and(super::webhook::is_loopback))
        };
        let requires_tls = self.tls.is_some() || nats::ask_for_tls(&self.servers);
        if requires_tls || !self.servers.iter().any(is_open) {
            return Vec::new();
        }
        let message = "`servers` are nats://: the secret is sent without encryption unless the server asks for TLS; \
                       expected tls://, or `tls`";
        vec![problem(key, message)]
    }

    fn check_servers(&self, problems: &mut Vec<Problem>) {
        for server in &self.servers {
            if server.contains('@') {
                // The address is not repeated, because it contains a password.
                let message = "has a user or a password in an address: expected them in `auth`, by reference";
                problems.push(problem(&["servers"], message));
                continue;
            }
            let wrong = match server_address(server) {
                None => "is not a valid address: expected nats:// or tls://, such as \"nats://nats.nats:4222\"",
                Some(address) if !matches!(address.scheme_str(), Some("nats" | "tls")) => "expected nats:// or tls://",
                Some(address) if address.host().is_none_or(str::is_empty) => "has no host",
                Some(_) => continue,
            };
            problems.push(problem(&["servers"], format!("{server:?} {wrong}")));
        }
    }
}

/// Checks the options of a stream.
fn check_stream(stream: &JetStreamOptions, template: &SubjectTemplate, problems: &mut Vec<Problem>) {
    if stream.stream.is_empty() || !stream.stream.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
        let expected = "expected a name of letters, digits, \"-\" and \"_\"";
        problems.push(problem(&["jetstream", "stream"], format!("{:?}: {expected}", stream.stream)));
    }
    if stream.duplicate_window.is_zero() {
        problems.push(problem(&["jetstream", "duplicate_window"], "expected more than \"0s\""));
    }
    if !stream.max_age.is_zero() && stream.max_age < stream.duplicate_window {
        let expected = "expected at least the value of `duplicate_window`, or \"0s\": the server refuses shorter times";
        problems.push(problem(&["jetstream", "max_age"], expected));
    }
    if stream.expect_last == ExpectLast::PerSubject && !template.is_per_object() {
        let expected = "per-subject needs a `subject` with {group}, {resource} or {kind}, {namespace} and {name}: \
                            otherwise several objects share a subject";
        problems.push(problem(&["jetstream", "expect_last"], expected));
    }
}

#[cfg(test)]
mod tests;
