//! Options as they are read, and messages about errors.

use super::*;
use crate::{
    cloud_event::ContentMode,
    config::{Config, SinkConfig, report::Report},
    handler::kafka::{KafkaCompression, KafkaSasl},
    secret::SecretRef,
};

const BROKERS: &str = "brokers = [\"a:9092\"]\n";

fn load(lines: &str) -> Result<KafkaOptions, String> {
    let text =
        format!("[resources.pods]\nmatch = [\"pods\"]\n[handlers.lake]\ntype = \"kafka\"\nenabled = false\n{lines}");
    let config = Config::from_toml_str(&text).map_err(|error| error.to_string())?;
    match &config.handlers["lake"].sink {
        SinkConfig::Kafka(kafka) => Ok(kafka.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn shortest_kafka_handler_has_documented_defaults() {
    let expected = KafkaOptions {
        brokers: vec!["a:9092".to_owned()],
        topic: "k8s.{resource}".to_owned(),
        key: "{uid}".to_owned(),
        mode: ContentMode::Structured,
        compression: KafkaCompression::Zstd,
        acks: Acks::All,
        idempotent: true,
        sasl: None,
        tls: None,
    };
    assert_eq!(load(BROKERS).unwrap(), expected);
}

#[test]
fn kafka_options_are_parsed_as_written() {
    for mechanism in [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512] {
        let name = mechanism.as_ref();
        let sasl = format!("sasl = {{ mechanism = {name:?}, username = \"u\", password = {{ env = \"P\" }} }}");
        let options = load(&format!("{BROKERS}{sasl}")).unwrap();
        let password = SecretRef::Env("P".to_owned());
        assert_eq!(options.sasl, Some(KafkaSasl { mechanism, username: "u".to_owned(), password }));
    }
    for name in ["none", "gzip", "snappy", "lz4", "zstd"] {
        assert_eq!(load(&format!("{BROKERS}compression = {name:?}")).unwrap().compression.as_ref(), name);
    }
    for name in ["all", "1", "0"] {
        let kafka = load(&format!("{BROKERS}idempotent = false\nacks = {name:?}")).unwrap();
        assert_eq!((kafka.acks.as_ref(), kafka.idempotent), (name, false));
    }
    let tls = load(&format!("{BROKERS}tls = {{ cert_file = \"/c\", key_file = \"/k\" }}")).unwrap();
    assert_eq!(tls.tls, Some(ClientTls { ca_file: None, cert_file: Some("/c".into()), key_file: Some("/k".into()) }));
}

#[test]
fn kafka_mistake_names_key_and_expectation() {
    let of = |lines: &str| format!("{BROKERS}{lines}");
    let scram = "mechanism = \"SCRAM-SHA-512\"";
    for (lines, key, expected) in [
        ("topic = \"a\"".to_owned(), "brokers", "missing"),
        ("brokers = []".to_owned(), "brokers", "at least one"),
        ("brokers = [\"a\"]".to_owned(), "brokers", "expected a host and a port"),
        ("brokers = [\"a:x\"]".to_owned(), "brokers", "expected a host and a port"),
        ("brokers = [\"a:9092,b:9092\"]".to_owned(), "brokers", "expected a host and a port"),
        ("brokers = [\"SSL://a:9093\"]".to_owned(), "brokers", "without a scheme"),
        (of("topic = \"k8s.{name}\""), "topic", "unknown placeholder {name}"),
        (of("key = \"{id}\""), "key", "unknown placeholder {id}"),
        (of("compression = \"brotli\""), "compression", "`zstd`"),
        (of("acks = \"1\""), "acks", "idempotent = false"),
        (of("acks = \"2\""), "acks", "`all`"),
        (of("mode = \"xml\""), "mode", "`binary`"),
        (of("sasl = { mechanism = \"GSSAPI\" }"), "sasl.mechanism", "SCRAM-SHA-512"),
        (of(&format!("sasl = {{ {scram}, username = \"u\" }}")), "sasl", "password"),
        (
            of(&format!("sasl = {{ {scram}, username = \"u\", password = \"s3cret\" }}")),
            "password",
            "a table with one of",
        ),
        (
            of(&format!("sasl = {{ {scram}, username = \"\", password = {{ env = \"P\" }} }}")),
            "username",
            "name of a user",
        ),
        (of("tls = { key_file = \"/k\" }"), "tls", "expected both"),
        (of("tls = { server_name = \"a\" }"), "tls.server_name", "unknown key"),
        (of("batch_size = 1"), "batch_size", "unknown key"),
    ] {
        let error = load(&lines).unwrap_err();
        assert!(error.contains(key) && error.contains(expected), "{lines}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[test]
fn odd_kafka_options_cause_warnings() {
    let odd = |lines: &str| {
        let mut report = Report::default();
        load(&format!("{BROKERS}{lines}")).unwrap().check(&mut report.root());
        report.warnings
    };
    assert_eq!(odd(""), []);
    assert_eq!(odd("topic = \"k8s.{group}.{resource}\"\nkey = \"{namespace}/{name}\""), []);
    assert!(odd("key = \"{namespace}\"")[0].message.contains("the tombstone of one deletes all"));
    let plain = "sasl = { mechanism = \"PLAIN\", username = \"u\", password = { env = \"P\" } }";
    assert!(odd(plain)[0].message.contains("unencrypted"));
    assert_eq!(odd(&format!("{plain}\ntls = {{}}")), []);
}

#[test]
fn kafka_readiness_requires_files_secrets_and_feature() {
    let error_at = |lines: &str, key: &str| {
        let mut report = Report::default();
        load(&format!("{BROKERS}{lines}")).unwrap().check_files(&mut report.root());
        report.errors.into_iter().find(|error| error.key == key).map(|error| error.message)
    };
    assert_eq!(error_at("", "type").is_none(), cfg!(feature = "kafka"));
    let error = error_at("tls = { ca_file = \"/nowhere/ca\" }", "tls.ca_file").unwrap();
    assert!(error.contains("cannot read /nowhere/ca"), "{error}");
    let password = "password = { file = \"/nowhere/password\" }";
    let sasl = format!("sasl = {{ mechanism = \"SCRAM-SHA-256\", username = \"u\", {password} }}");
    assert!(error_at(&sasl, "sasl.password").unwrap().contains("cannot read /nowhere/password"));
}
