//! External dependencies of a configuration: secrets, files, directories, ports. A machine or pod that runs the
//! configuration must provide these dependencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::Value;

use super::{
    Config, HandlerConfig, SinkConfig,
    nats::{PORT_DEFAULT, server_address},
};
use crate::{
    handler::{file::constant_directory, webhook::read_url},
    secret::PlainOrSecret,
};

/// External dependencies of the enabled parts of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct External {
    /// Environment variables that contain secrets.
    pub variables: BTreeSet<String>,
    /// Files that are read: secrets, certificates, keys.
    pub files: BTreeSet<PathBuf>,
    /// Directories that the engine writes to, each with the path of the option that names the directory: `state`, `dir`.
    pub directories: BTreeMap<PathBuf, Vec<String>>,
    /// TCP ports of sinks and of the OpenTelemetry collector. For a URL in a secret, port 443 is assumed.
    pub ports: BTreeSet<u16>,
}

impl Config {
    /// Returns the external dependencies of the enabled parts of this configuration. Reads none of them.
    pub fn external(&self) -> External {
        let mut external = External::default();
        let mut enabled = self.clone();
        enabled.handlers.retain(|_, handler| handler.enabled);
        if enabled.http.listen.is_none() {
            enabled.http = super::Http::default();
        }
        external.walk("", &serde_json::to_value(&enabled).expect("a configuration is a tree with text as keys"));
        if let Some(dir) = &enabled.state.dir {
            external.directories.insert(dir.clone(), vec!["state".to_owned(), "dir".to_owned()]);
        }
        let collector = enabled.telemetry.spans_to();
        external.ports.extend(collector.map(|url| port(&PlainOrSecret::Plain(url.to_owned()))));
        for (name, handler) in &enabled.handlers {
            external.sink(name, handler);
        }
        external
    }
}

impl External {
    /// Collects secrets and files. A secret is `{ env = … }` or `{ file = … }` in any option. The path of any other file
    /// is the value of a key that ends with `_file`.
    fn walk(&mut self, key: &str, value: &Value) {
        match value {
            // Users choose the names of headers, so `env` and `file` have no meaning there.
            Value::Object(members) if key != "headers" && members.len() == 1 => match members.iter().next() {
                Some((place, Value::String(name))) if place == "env" => drop(self.variables.insert(name.clone())),
                Some((place, Value::String(path))) if place == "file" => drop(self.files.insert(path.into())),
                Some((key, value)) => self.walk(key, value),
                None => {}
            },
            Value::Object(members) => members.iter().for_each(|(key, value)| self.walk(key, value)),
            Value::Array(items) => items.iter().for_each(|item| self.walk("", item)),
            Value::String(path) if key.ends_with("_file") && !path.is_empty() => drop(self.files.insert(path.into())),
            _ => {}
        }
    }

    fn sink(&mut self, name: &str, handler: &HandlerConfig) {
        match &handler.sink {
            SinkConfig::Stdout | SinkConfig::Blackhole | SinkConfig::Exec(_) => {}
            SinkConfig::File(file) => {
                let keys = ["handlers", name, "path"].map(str::to_owned).into();
                self.directories.insert(constant_directory(&file.path).to_owned(), keys);
            }
            SinkConfig::Webhook(webhook) => drop(self.ports.insert(port(&webhook.url))),
            SinkConfig::Nats(nats) => {
                let addresses = nats.servers.iter().filter_map(|server| server_address(server));
                self.ports.extend(addresses.map(|address| address.port_u16().unwrap_or(PORT_DEFAULT)));
            }
            SinkConfig::Kafka(kafka) => {
                let ports = kafka.brokers.iter().filter_map(|broker| broker.rsplit_once(':')?.1.parse::<u16>().ok());
                self.ports.extend(ports);
            }
        }
    }
}

fn port(url: &PlainOrSecret) -> u16 {
    let plain = if url.is_secret() { None } else { read_url(url).ok() };
    let default = |is_plain: bool| if is_plain { 80 } else { 443 };
    plain.map_or(443, |url| url.port_u16().unwrap_or(default(url.scheme_str() == Some("http"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_needs_of_enabled_parts_are_found() {
        let mut config = Config::from_toml_str(
            r#"
            [http]
            listen = "0.0.0.0:8443"
            auth = "token"
            token = { file = "/run/secrets/deltabus/token" }
            tokens = [{ name = "grafana", token = { env = "READ_TOKEN" } }]
            tls = { cert_file = "/etc/tls/tls.crt", key_file = "/etc/tls/tls.key" }
            [redact]
            hmac_key = { env = "HMAC" }
            [state]
            dir = "/var/lib/deltabus/state"
            [resources.pods]
            match = ["pods"]
            [handlers.audit]
            type = "file"
            path = "/var/lib/deltabus/audit/%Y/%m.jsonl"
            [handlers.off]
            type = "file"
            enabled = false
            path = "/off/events.jsonl"
            [handlers.bus]
            type = "nats"
            servers = ["nats://a", "tls://b:4333"]
            auth = { creds_file = "/run/secrets/nats/creds" }
            [handlers.hook]
            type = "webhook"
            enabled = false
            url = "http://hooks.example.com/events"
            headers = { file = "plain", "X-Key" = { env = "OFF" } }
            "#,
        )
        .unwrap();
        config.telemetry.otlp_endpoint = "http://otel-collector:4317".to_owned(); // loading it needs the feature `otlp`
        let external = config.external();
        assert_eq!(external.variables, ["HMAC", "READ_TOKEN"].map(str::to_owned).into());
        let files = ["/etc/tls/tls.crt", "/etc/tls/tls.key", "/run/secrets/deltabus/token", "/run/secrets/nats/creds"];
        assert_eq!(external.files, files.map(PathBuf::from).into());
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let directories = [
            (PathBuf::from("/var/lib/deltabus/state"), keys(&["state", "dir"])),
            (PathBuf::from("/var/lib/deltabus/audit"), keys(&["handlers", "audit", "path"])),
        ];
        assert_eq!(external.directories, directories.into());
        assert_eq!(external.ports, [4222, 4317, 4333].into());
    }

    #[test]
    fn header_tables_are_not_mistaken_for_secrets() {
        let mut external = External::default();
        external.walk("headers", &serde_json::json!({ "file": "plain" }));
        assert_eq!(external, External::default());
        external.walk("headers", &serde_json::json!({ "X-Key": { "env": "KEY" } }));
        assert_eq!(external.variables, ["KEY".to_owned()].into());
    }

    #[test]
    fn url_port_is_explicit_or_scheme_default() {
        let plain = |url: &str| port(&PlainOrSecret::Plain(url.to_owned()));
        assert_eq!(plain("http://hooks/"), 80);
        assert_eq!(plain("https://hooks/"), 443);
        assert_eq!(plain("http://hooks:8080/x"), 8080);
        assert_eq!(port(&PlainOrSecret::Secret(crate::secret::SecretRef::Env("URL".to_owned()))), 443);
    }

    #[test]
    fn template_directory_ends_before_first_percent_sign() {
        for (template, expected) in [
            ("/var/log/%Y/%m.jsonl", "/var/log"),
            ("/var/log/events-%Y.jsonl", "/var/log"),
            ("/var/log/events.jsonl", "/var/log"),
            ("/events.jsonl", "/"),
            ("logs/events.jsonl", "logs"),
            ("events.jsonl", ""),
        ] {
            assert_eq!(constant_directory(template), std::path::Path::new(expected), "{template}");
        }
    }
}
