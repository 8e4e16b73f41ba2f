//! `[handlers.<name>]` of type `nats`: subjects and streams that events are sent to.

use std::time::Duration;

use async_nats::ServerAddr;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    error::{Problem, problem},
    schema,
    text::AsText,
    tls::ClientTls,
};
use crate::{
    cloud_event::ContentMode,
    handler::nats::{self, ExpectLast, NatsAuth, NatsOptions, subject::SubjectTemplate},
    secret::SecretRef,
};

/// Options of a handler of type `nats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct NatsSink {
    /// Addresses of servers of one cluster, `nats://` or `tls://`, without a user or password in them. One `tls://` requires
    /// TLS of all servers, those included that the cluster names. Required.
    #[schemars(schema_with = "servers")]
    pub servers: Vec<String>,
    /// What the servers call the connection.
    #[serde(default = "connection_name")]
    pub name: String,
    /// Who the handler is; one of the four. Default: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "auth")]
    pub auth: Option<NatsAuth>,
    /// Requires TLS, and says whom to trust; files are read for each connection. Default: TLS where the server asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientTls")]
    pub tls: Option<ClientTls>,
    /// Where a message goes. `{cluster}` `{group}` `{resource}` `{namespace}` `{name}` `{kind}` `{version}` `{event}` are
    /// filled in, at most one between two dots: "core" for the empty group, "_" for no namespace; letters, digits and
    /// "-" stay, other bytes are %XX.
    #[serde(default = "subject")]
    pub subject: String,
    /// How an event travels: `binary`, its attributes as `ce-` headers and its data as the payload, or `structured`, one
    /// JSON object.
    #[serde(default = "mode")]
    pub mode: ContentMode,
    /// The stream. Default: none, messages reach whoever listens then, and nobody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NatsJetStream")]
    pub jetstream: Option<NatsJetStream>,
}

fn connection_name() -> String {
    "deltabus".to_owned()
}

fn subject() -> String {
    "k8s.{cluster}.{group}.{resource}.{namespace}.{name}".to_owned()
}

fn mode() -> ContentMode {
    ContentMode::Binary
}

fn servers(_: &mut SchemaGenerator) -> Schema {
    schema::addresses("nats://nats.nats:4222")
}

fn auth(generator: &mut SchemaGenerator) -> Schema {
    let mut secret = |description: &str| {
        let mut schema = generator.subschema_for::<SecretRef>();
        schema.insert("description".to_owned(), description.into());
        schema
    };
    json_schema!({
        "type": "object",
        "properties": {
            "creds_file": {
                "type": "string",
                "description": "File of a JWT and a seed, as `nsc generate creds` writes it; read for each connection.",
            },
            "basic": {
                "type": "object",
                "description": "A user and a password.",
                "properties": {
                    "username": { "type": "string", "description": "The user." },
                    "password": secret("The password."),
                },
                "required": ["username", "password"],
                "writeOnly": true,
            },
            "token": secret("A token."),
            "nkey": secret("The seed of a user's key, which begins with SU."),
        },
        "minProperties": 1,
        "maxProperties": 1,
        "writeOnly": true,
    })
}

/// A stream that keeps what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NatsJetStream {
    /// Its name. Required.
    pub stream: String,
    /// Whether it is made where it is not there, and compared with the options below where it is.
    #[serde(default = "super::text::yes")]
    pub create: bool,
    /// The subjects that it takes. Default: those that `subject` makes, of every cluster.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// How long a message is kept. "0s": for ever.
    #[serde(default = "max_age", with = "AsText::<Duration>")]
    pub max_age: Duration,
    /// How long the server knows an event again by its id, and drops it.
    #[serde(default = "duplicate_window", with = "AsText::<Duration>")]
    pub duplicate_window: Duration,
    /// How many servers keep each message.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: u32,
    /// Whether a message is stored on condition that nothing follows what is known of its subject: `per-subject` keeps a
    /// change stored once outside of `duplicate_window` too.
    #[serde(default)]
    pub expect_last: ExpectLast,
}

fn one() -> u32 {
    1
}

fn max_age() -> Duration {
    nats::JetStreamOptions::new("").max_age
}

fn duplicate_window() -> Duration {
    nats::JetStreamOptions::new("").duplicate_window
}

impl NatsSink {
    /// Makes the options of the handler; `cluster` is the configured name of the cluster. Looks at no file and no server.
    ///
    /// # Errors
    /// All that is wrong: keys from the handler's own, each with a sentence.
    pub(crate) fn options(&self, cluster: &str) -> Result<NatsOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        self.check_servers(&mut problems);
        let template =
            SubjectTemplate::parse(&self.subject).map_err(|error| problems.push(problem(&["subject"], error)));
        let auth = self.auth.clone().unwrap_or_default();
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| nats::NatsTls { ca_file: tls.ca_file.clone(), client: tls.client(&mut problems) });
        if let (Some(jetstream), Ok(template)) = (&self.jetstream, &template) {
            jetstream.check(template, &mut problems);
        }
        match template {
            Ok(subject) if problems.is_empty() => Ok(NatsOptions {
                servers: self.servers.clone(),
                name: self.name.clone(),
                auth,
                tls,
                subject,
                cluster: cluster.to_owned(),
                mode: self.mode,
                jetstream: self.jetstream.as_ref().map(NatsJetStream::meant),
            }),
            _ => Err(problems),
        }
    }

    /// Returns what is allowed and odd.
    pub(crate) fn oddities(&self) -> Vec<Problem> {
        let key: &[&str] = match self.auth {
            Some(NatsAuth::UserPassword { .. }) => &["auth", "basic", "password"],
            Some(NatsAuth::Token(_)) => &["auth", "token"],
            Some(NatsAuth::None | NatsAuth::Credentials(_) | NatsAuth::Nkey(_)) | None => return Vec::new(), // what they sign travels
        };
        let is_open = |server: &String| {
            server.parse::<ServerAddr>().is_ok_and(|address| !super::webhook::is_loopback(address.host()))
        };
        let requires_tls = self.tls.is_some() || nats::ask_for_tls(&self.servers);
        if requires_tls || !self.servers.iter().any(is_open) {
            return Vec::new();
        }
        let message = "`servers` are nats://: the secret travels without encryption unless the server asks for TLS; \
                       expected tls://, or `tls`";
        vec![problem(key, message)]
    }

    fn check_servers(&self, problems: &mut Vec<Problem>) {
        for server in &self.servers {
            let wrong = match server.parse::<ServerAddr>() {
                Err(_) => "is no address: expected nats:// or tls://, such as \"nats://nats.nats:4222\"",
                // Not repeated: there is a password in it.
                Ok(address) if address.has_user_pass() => {
                    let message = "has a user or a password in an address: expected them in `auth`, by reference";
                    problems.push(problem(&["servers"], message));
                    continue;
                }
                Ok(address) if !matches!(address.scheme(), "nats" | "tls") => "expected nats:// or tls://",
                Ok(address) if address.host().is_empty() => "has no host",
                Ok(_) => continue,
            };
            problems.push(problem(&["servers"], format!("{server:?} {wrong}")));
        }
    }
}

impl NatsJetStream {
    fn check(&self, template: &SubjectTemplate, problems: &mut Vec<Problem>) {
        if self.stream.is_empty() || !self.stream.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
            let expected = "expected a name of letters, digits, \"-\" and \"_\"";
            problems.push(problem(&["jetstream", "stream"], format!("{:?}: {expected}", self.stream)));
        }
        if self.duplicate_window.is_zero() {
            problems.push(problem(&["jetstream", "duplicate_window"], "expected more than \"0s\""));
        }
        if !self.max_age.is_zero() && self.max_age < self.duplicate_window {
            let expected = "expected at least what `duplicate_window` is, or \"0s\": the server refuses less";
            problems.push(problem(&["jetstream", "max_age"], expected));
        }
        if self.expect_last == ExpectLast::PerSubject && !template.is_per_object() {
            let expected = "per-subject needs a `subject` with {group}, {resource} or {kind}, {namespace} and {name}: \
                            else several objects share one";
            problems.push(problem(&["jetstream", "expect_last"], expected));
        }
    }

    fn meant(&self) -> nats::JetStreamOptions {
        nats::JetStreamOptions {
            stream: self.stream.clone(),
            create: self.create,
            subjects: self.subjects.clone(),
            max_age: self.max_age,
            duplicate_window: self.duplicate_window,
            replicas: self.replicas as usize,
            expect_last: self.expect_last,
        }
    }
}

#[cfg(test)]
mod tests;
