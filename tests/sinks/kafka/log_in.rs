//! Authentication of a handler, and its trust in servers.

use std::fs;

use deltabus::internals::{
    config::ClientTls,
    handler::kafka::{KafkaSasl, SaslMechanism},
    secret::SecretRef,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use super::*;
use crate::support::kafka::Plan;

/// Adds a user of each mechanism, in JAAS syntax.
fn users(plan: &mut Plan) {
    const JAAS: &str = "org.apache.kafka.common.security";
    plan.protocol = "SASL_PLAINTEXT";
    plan.properties = format!(
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
         listener.name.front.plain.sasl.jaas.config={JAAS}.plain.PlainLoginModule required user_joe=\"s3cret\";\n\
         listener.name.front.scram-sha-256.sasl.jaas.config={JAAS}.scram.ScramLoginModule required;\n\
         listener.name.front.scram-sha-512.sasl.jaas.config={JAAS}.scram.ScramLoginModule required;\n"
    );
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
        plan.format.extend(["--add-scram".to_owned(), format!("{mechanism}=[name=joe,password=s3cret]")]);
    }
}

#[tokio::test]
async fn kafka_user_logs_in_by_changeable_password() {
    let name = "kafka_user_logs_in_by_changeable_password";
    let Some(broker) = Broker::start_or_skip(name, users) else { return };
    let file = broker.file("password");
    for (at, mechanism) in
        [SaslMechanism::Plain, SaslMechanism::ScramSha256, SaslMechanism::ScramSha512].iter().enumerate()
    {
        fs::write(&file, "wrong\n").unwrap();
        let password = SecretRef::File(file.clone());
        let sasl = KafkaSasl { mechanism: *mechanism, username: "joe".to_owned(), password };
        let handler = handler(KafkaOptions { sasl: Some(sasl), ..options(broker.address()) });
        let event = [added("a", at as u64 + 1)];
        let error = sentence(deliver(&handler, &event).await);
        let expected = format!("Kafka at {} refused the credentials: ", broker.address());
        assert!(error.starts_with(&expected) && error.ends_with("check `sasl`"), "{error}");
        fs::remove_file(&file).unwrap();
        let error = sentence(deliver(&handler, &event).await);
        assert!(error.starts_with("`sasl`: cannot read "), "{error}");
        fs::write(&file, "s3cret\n").unwrap();
        deliver_at_last(&handler, &event).await;
        handler.close().await.unwrap();
    }
    assert_eq!(stories(&broker.stored(TOPIC))["a"], ["uid-a.1", "uid-a.2", "uid-a.3"]);
}

/// Returns an authority, and a certificate from it for 127.0.0.1 with its key, in PEM.
fn certificates(of_client: bool) -> [String; 3] {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // OpenSSL finds issuers by name, so each needs its own name
    let name = if of_client { "authority of clients" } else { "authority of brokers" };
    authority.distinguished_name.push(DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    if of_client {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    }
    let certificate = params.signed_by(&key, &authority).unwrap();
    [authority.pem(), certificate.pem(), key.serialize_pem()]
}

#[tokio::test]
async fn kafka_tls_uses_given_authority_and_client_certificate() {
    let name = "kafka_tls_uses_given_authority_and_client_certificate";
    let tls = |plan: &mut Plan| {
        let [ca, certificate, key] = certificates(false);
        let [client_ca, client, client_key] = certificates(true);
        for (name, text) in [
            ("ca.pem", ca),
            ("server.pem", format!("{key}{certificate}")),
            ("client-ca.pem", client_ca),
            ("client.pem", client),
            ("client-key.pem", client_key),
        ] {
            fs::write(plan.dir.join(name), text).unwrap();
        }
        plan.protocol = "SSL";
        let file = |name: &str| plan.dir.join(name).display().to_string();
        plan.properties = format!(
            "ssl.keystore.type=PEM\nssl.keystore.location={}\nssl.truststore.type=PEM\nssl.truststore.location={}\n\
             ssl.client.auth=required\n",
            file("server.pem"),
            file("client-ca.pem")
        );
    };
    let Some(broker) = Broker::start_or_skip(name, tls) else { return };
    let as_client = |ca: &str, client: bool| {
        let [cert_file, key_file] = ["client.pem", "client-key.pem"].map(|name| client.then(|| broker.file(name)));
        let tls = ClientTls { ca_file: Some(broker.file(ca)), cert_file, key_file };
        handler(KafkaOptions { tls: Some(tls), ..options(broker.address()) })
    };
    let handler = as_client("ca.pem", true);
    deliver_at_last(&handler, &[added("a", 1)]).await;
    assert_eq!(stories(&broker.stored(TOPIC))["a"], ["uid-a.1"]);
    let error = sentence(deliver(&as_client("client-ca.pem", true), &[added("a", 2)]).await);
    assert!(error.starts_with("failed to agree on TLS with Kafka at 127.0.0.1:"), "{error}");
    let error = sentence(deliver(&as_client("ca.pem", false), &[added("a", 2)]).await);
    assert!(error.contains("Kafka at 127.0.0.1:"), "{error}");
    let error = sentence(deliver(&as_client("nowhere.pem", true), &[added("a", 2)]).await);
    assert!(error.starts_with("`tls`: cannot read ") && error.contains("nowhere.pem"), "{error}");
}
