//! Authentication of a handler, and its trust in servers.

use super::*;

/// Delivers an event to the server with these credentials.
async fn log_in(server: &NatsServer, auth: Option<NatsAuth>) -> Result<(), HandlerError> {
    deliver(&handler(NatsOptions { auth, ..server.options() }), &[added("a", 1)]).await
}

#[tokio::test]
async fn nats_user_logs_in_by_changeable_password() {
    let name = "nats_user_logs_in_by_changeable_password";
    let users = |keys: &Keys| format!("{}authorization {{ user: joe, password: s3cret }}", keys.jetstream());
    let Some(server) = NatsServer::start_or_skip(name, users) else { return };
    let file = server.file("password");
    fs::write(&file, "wrong\n").unwrap();
    let auth = Some(NatsAuth::Basic { username: "joe".to_owned(), password: SecretRef::File(file.clone()) });
    let handler = handler(NatsOptions { auth, ..server.options() });
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    assert!(error.ends_with("refused the credentials: check `auth`, and the server's users"), "{error}");
    fs::remove_file(&file).unwrap();
    let error = sentence(deliver(&handler, &[added("a", 1)]).await);
    assert!(error.contains("failed to authenticate with NATS") && error.contains("cannot read"), "{error}");
    fs::write(&file, "s3cret\n").unwrap();
    deliver(&handler, &[added("a", 1)]).await.unwrap();
}

#[tokio::test]
async fn user_logs_in_by_token() {
    let users = |keys: &Keys| format!("{}authorization {{ token: \"t0ken\" }}", keys.jetstream());
    let Some(server) = NatsServer::start_or_skip("user_logs_in_by_token", users) else { return };
    fs::write(server.file("token"), "t0ken").unwrap();
    log_in(&server, Some(NatsAuth::Token(SecretRef::File(server.file("token"))))).await.unwrap();
    sentence(log_in(&server, None).await);
}

#[tokio::test]
async fn user_logs_in_by_nkey() {
    let users = |keys: &Keys| format!("{}authorization {{ users: [ {{ nkey: {} }} ] }}", keys.jetstream(), keys.nkey);
    let Some(server) = NatsServer::start_or_skip("user_logs_in_by_nkey", users) else { return };
    log_in(&server, Some(NatsAuth::Nkey(SecretRef::File(server.file("nkey.seed"))))).await.unwrap();
    fs::write(server.file("other"), "no seed").unwrap();
    let error = sentence(log_in(&server, Some(NatsAuth::Nkey(SecretRef::File(server.file("other"))))).await);
    assert!(error.contains("`nkey` holds no seed: expected one that begins with SU"), "{error}");
}

#[tokio::test]
async fn user_logs_in_by_credentials_file() {
    let users =
        |keys: &Keys| format!("{}{}", keys.jetstream(), crate::support::nats::read(&keys.dir.join("resolver.conf")));
    let Some(server) = NatsServer::start_or_skip("user_logs_in_by_credentials_file", users) else { return };
    log_in(&server, Some(NatsAuth::CredsFile(server.file("user.creds")))).await.unwrap();
    let error = sentence(log_in(&server, Some(NatsAuth::CredsFile(server.file("ca.crt")))).await);
    assert!(error.contains("holds no credentials: expected a file made by `nsc generate creds`"), "{error}");
}

#[tokio::test]
async fn nats_tls_uses_given_authority_and_client_certificate() {
    let name = "nats_tls_uses_given_authority_and_client_certificate";
    let tls = |keys: &Keys| {
        let [ca, cert, key] = ["ca.crt", "server.crt", "server.key"].map(|name| keys.path(name));
        format!("{}tls {{ cert_file: {cert:?}, key_file: {key:?}, ca_file: {ca:?}, verify: true }}", keys.jetstream())
    };
    let Some(server) = NatsServer::start_or_skip(name, tls) else { return };
    let ca_file = Some(server.file("ca.crt"));
    let client = Some((server.file("client.crt"), server.file("client.key")));
    let with = |ca_file, client: Option<_>| {
        let (cert_file, key_file) = client.unzip();
        handler(NatsOptions { tls: Some(ClientTls { ca_file, cert_file, key_file }), ..server.options() })
    };
    deliver(&with(ca_file.clone(), client.clone()), &[added("a", 1)]).await.unwrap();
    let error = sentence(deliver(&with(ca_file, None), &[added("a", 1)]).await);
    assert!(error.starts_with("failed to agree on TLS with NATS at "), "{error}");
    let error = sentence(deliver(&with(None, client), &[added("a", 1)]).await);
    assert!(error.starts_with("failed to agree on TLS with NATS at ") && error.contains("certificate"), "{error}");
}
