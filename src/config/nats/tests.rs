//! What is read, and what is told of mistakes.

use super::*;
use crate::config::{Config, Sink};

fn load(lines: &str) -> Result<NatsSink, String> {
    let text = format!("[resources.pods]\nmatch = [\"pods\"]\n[handlers.bus]\ntype = \"nats\"\n{lines}");
    let config = Config::from_toml_str(&text).map_err(|error| error.to_string())?;
    match &config.handlers["bus"].sink {
        Sink::Nats(nats) => Ok(nats.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_shortest_handler_has_the_documented_defaults() {
    let nats = load("servers = [\"nats://a:4222\"]\njetstream = { stream = \"K8S\" }").unwrap();
    let options = nats.options("prod", false).unwrap();
    assert_eq!(options.subject, Template::parse("k8s.{cluster}.{group}.{resource}.{namespace}.{name}").unwrap());
    assert_eq!((options.mode, options.auth, options.tls), (ContentMode::Binary, nats::NatsAuth::None, None));
    assert_eq!(options.jetstream, Some(nats::JetStreamOptions::new("K8S")));
}

#[test]
fn each_way_to_log_in_is_meant_as_it_is_written() {
    use nats::NatsAuth::{Credentials, Nkey, Token, UserPassword};
    let secret = || SecretRef::Env("X".to_owned());
    for (auth, expected) in [
        ("{ creds_file = \"/c\" }", Credentials("/c".into())),
        ("{ token = { env = \"X\" } }", Token(secret())),
        ("{ nkey = { env = \"X\" } }", Nkey(secret())),
        (
            "{ basic = { username = \"u\", password = { env = \"X\" } } }",
            UserPassword { user: "u".to_owned(), password: secret() },
        ),
    ] {
        let nats = load(&format!("servers = [\"nats://a:4222\"]\nauth = {auth}")).unwrap();
        assert_eq!(nats.options("", false).unwrap().auth, expected);
    }
}

#[test]
fn a_mistake_is_told_with_its_key_and_what_was_expected() {
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
        ("jetstream = { stream = \"A\", max_age = \"1s\" }", "max_age", "at least what `duplicate_window` is"),
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
