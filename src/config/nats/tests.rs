//! Options as they are read, and messages about errors.

use super::*;
use crate::{
    cloud_event::ContentMode,
    config::{Config, Finding, SinkConfig, report::Report},
    secret::SecretRef,
};

fn load(lines: &str) -> Result<NatsOptions, String> {
    let text = format!("[resources.pods]\nmatch = [\"pods\"]\n[handlers.bus]\ntype = \"nats\"\n{lines}");
    let config = Config::from_toml_str(&text).map_err(|error| error.to_string())?;
    match &config.handlers["bus"].sink {
        SinkConfig::Nats(nats) => Ok(nats.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn shortest_nats_handler_has_documented_defaults() {
    let nats = load("servers = [\"nats://a:4222\"]\njetstream = { stream = \"K8S\" }").unwrap();
    assert_eq!(nats.subject, "k8s.{cluster}.{group}.{resource}.{namespace}.{name}");
    assert_eq!((nats.mode, nats.auth, nats.tls), (ContentMode::Binary, None, None));
    assert_eq!(nats.jetstream, Some(JetStreamOptions { stream: "K8S".to_owned(), ..JetStreamOptions::default() }));
}

#[test]
fn nats_login_options_are_parsed_as_written() {
    use NatsAuth::{Basic, CredsFile, Nkey, Token};
    let secret = || SecretRef::Env("X".to_owned());
    for (auth, expected) in [
        ("{ creds_file = \"/c\" }", CredsFile("/c".into())),
        ("{ token = { env = \"X\" } }", Token(secret())),
        ("{ nkey = { env = \"X\" } }", Nkey(secret())),
        (
            "{ basic = { username = \"u\", password = { env = \"X\" } } }",
            Basic { username: "u".to_owned(), password: secret() },
        ),
    ] {
        let nats = load(&format!("servers = [\"nats://a:4222\"]\nauth = {auth}")).unwrap();
        assert_eq!(nats.auth, Some(expected));
    }
}

#[test]
fn nats_mistake_names_key_and_expectation() {
    let good = "servers = [\"nats://a:4222\"]\n";
    for (lines, key, expected) in [
        ("servers = [\"http://a\"]", "servers", "expected nats:// or tls://"),
        ("servers = [\"nats://u:s3cret@a\"]", "servers", "expected them in `auth`"),
        ("servers = []", "servers", "at least one"),
        ("subject = \"k8s.{nam}\"", "subject", "unknown placeholder {nam}"),
        ("auth = { token = { env = \"X\" }, creds_file = \"/c\" }", "auth", "expected a table with one of"),
        ("auth = { basic = { username = \"u\" } }", "auth.basic", "password"),
        ("auth = { token = \"s3cret\" }", "auth.token", "expected a table with one of"),
        ("tls = { cert_file = \"/c\" }", "tls", "expected both"),
        ("jetstream = { stream = \"a.b\" }", "stream", "letters, digits"),
        ("jetstream = { stream = \"A\", max_age = \"1s\" }", "max_age", "at least the value of `duplicate_window`"),
        ("jetstream = { stream = \"A\", duplicate_window = \"0s\" }", "duplicate_window", "more than \"0s\""),
        (
            "subject = \"k8s.{name}\"\njetstream = { stream = \"A\", expect_last = \"per-subject\" }",
            "expect_last",
            "{group}",
        ),
    ] {
        let lines = if lines.starts_with("servers") { lines.to_owned() } else { format!("{good}{lines}") };
        let error = load(&lines).unwrap_err();
        assert!(error.contains(key) && error.contains(expected) && !error.contains("s3cret"), "{lines}: {error}");
    }
}

#[test]
fn secret_sent_to_nats_unencrypted_causes_warning() {
    let odd = |servers: &str, lines: &str| {
        let mut report = Report::default();
        load(&format!("servers = {servers}\n{lines}")).unwrap().check(&mut report.root());
        report.warnings
    };
    let (token, basic) =
        ("auth = { token = { env = \"X\" } }", "auth = { basic = { username = \"u\", password = { env = \"X\" } } }");
    let open = r#"["nats://127.0.0.1:4222", "nats://a:4222"]"#;
    for (auth, expected) in [(token, "auth.token"), (basic, "auth.basic.password")] {
        let [Finding { key, message, .. }] = &odd(open, auth)[..] else { panic!("{auth}") };
        assert_eq!(key, expected);
        assert!(message.contains("is sent without encryption"), "{message}");
        assert_eq!(odd(open, &format!("{auth}\ntls = {{}}")), []);
        assert_eq!(odd(r#"["tls://a:4222", "nats://b:4222"]"#, auth), []);
        assert_eq!(odd(r#"["nats://127.0.0.1:4222", "nats://[::1]:4222", "nats://localhost"]"#, auth), []);
    }
    assert_eq!(odd(open, "auth = { nkey = { env = \"X\" } }"), [], "only its signature is sent");
    assert_eq!(odd(open, ""), []);
}

#[test]
fn one_tls_address_requires_tls_of_all_servers() {
    let requires = |lines: &str| load(lines).unwrap().requires_tls();
    assert!(requires(r#"servers = ["TLS://a:4222", "nats://b:4222"]"#), "the cluster names servers without a scheme");
    assert!(requires("servers = [\"nats://a\"]\ntls = {}"));
    assert!(!requires("servers = [\"nats://tls.example:4222\"]"));
}

#[test]
fn address_has_default_scheme_and_valid_port() {
    for (text, expected) in [
        ("nats://a:4333", Some(("nats", "a", Some(4333)))),
        ("TLS://a", Some(("tls", "a", None))),
        ("a.b:1", Some(("nats", "a.b", Some(1)))),
        ("nats://[::1]:5", Some(("nats", "[::1]", Some(5)))),
        ("nats://a:99999", None),
        ("nats://a:b", None),
        ("nats://", None),
    ] {
        let address = server_address(text);
        let parts = |address| (Uri::scheme_str(address).unwrap(), address.host().unwrap(), address.port_u16());
        let parts = address.as_ref().map(parts);
        assert_eq!(parts, expected, "{text}");
    }
}
