//! Checks of `[handlers.<name>]` of type `nats`.

use http::Uri;

use super::{report::Section, webhook::is_loopback};
use crate::handler::nats::{ExpectLast, JetStreamOptions, NatsAuth, NatsOptions, subject::SubjectTemplate};

impl NatsOptions {
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
            Some(NatsAuth::Basic { .. }) => &["auth", "basic", "password"],
            Some(NatsAuth::Token(_)) => &["auth", "token"],
            Some(NatsAuth::CredsFile(_) | NatsAuth::Nkey(_)) | None => return,
        };
        let is_open =
            |server: &String| server_address(server).is_some_and(|address| !address.host().is_some_and(is_loopback));
        if !self.requires_tls() && self.servers.iter().any(is_open) {
            let message = "`servers` are nats://: the secret is sent without encryption unless the server asks for \
                           TLS; expected tls://, or `tls`";
            at.warn(key, message);
        }
    }
}

/// Port of a server whose address contains no port.
pub(super) const PORT_DEFAULT: u16 = 4222;

/// Parses the address of a server, `nats://host:4222`. The scheme is `nats` if there is none. The host of an IPv6 address
/// is in brackets.
pub(super) fn server_address(text: &str) -> Option<Uri> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
    let uri: Uri = format!("{}://{rest}", scheme.to_ascii_lowercase()).parse().ok()?;
    // `Uri` accepts any text as a port.
    let authority = uri.authority()?;
    let has_port = authority.as_str() != authority.host();
    (!has_port || authority.port_u16().is_some()).then_some(uri)
}

fn check_server(server: &str) -> Result<(), String> {
    if server.contains('@') {
        // The message does not repeat the address, because the address may contain a password.
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
