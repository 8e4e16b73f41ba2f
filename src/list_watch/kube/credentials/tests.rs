//! Tests of clients against servers that accept one credential at a time.

use std::{fs, path::PathBuf, time::Duration};

use axum::{Router, extract::State as Shared, http::HeaderMap};
use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::{
    super::{ClusterAccess, KubeOptions, raw::RawClient},
    *,
};

/// A directory with the files of a kubeconfig.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path("unfinished"), content).unwrap();
        fs::rename(self.path("unfinished"), self.path(name)).unwrap();
    }

    fn write_kubeconfig(&self, cluster: &Value, user: &Value) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": user }],
        });
        self.write("kubeconfig", &config.to_string());
    }

    fn load(&self) -> Result<ClusterAccess, String> {
        let kubeconfig = self.path("kubeconfig").display().to_string();
        let options = KubeOptions { kubeconfig, context: String::new() };
        ClusterAccess::load(&options).map_err(|error| error.to_string())
    }

    fn access(&self, cluster: &Value, user: &Value) -> ClusterAccess {
        self.write_kubeconfig(cluster, user);
        self.load().unwrap()
    }

    /// Returns a user whose program counts its runs, and prints the file `credential`.
    fn program(&self) -> Value {
        let script = format!("echo x >>{}; cat {}", self.path("runs").display(), self.path("credential").display());
        user_of(&script)
    }

    fn issue(&self, status: &Value) {
        let api_version = "client.authentication.k8s.io/v1";
        let credential = json!({ "kind": "ExecCredential", "apiVersion": api_version, "status": status });
        self.write("credential", &credential.to_string());
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }
}

fn user_of(script: &str) -> Value {
    json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        "installHint": "see\n  https://tools.example", "interactiveMode": "Never",
    } })
}

/// A server that accepts one `Authorization` header.
struct Server {
    url: String,
    accepted: Arc<Mutex<String>>,
}

impl Server {
    async fn start(accepted: &str) -> Self {
        async fn answer(Shared(accepted): Shared<Arc<Mutex<String>>>, headers: HeaderMap) -> StatusCode {
            let sent = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
            if sent.unwrap_or_default() == *lock(&accepted) { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
        }
        let accepted = Arc::new(Mutex::new(accepted.to_owned()));
        let router = Router::new().fallback(answer).with_state(Arc::clone(&accepted));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, accepted }
    }

    fn accept(&self, header: &str) {
        header.clone_into(&mut lock(&self.accepted));
    }

    fn cluster(&self) -> Value {
        json!({ "server": self.url })
    }
}

/// Sends a request; returns the code, or the failure.
async fn get(client: &RawClient) -> Result<u16, String> {
    let answer = client.get("/version", "application/json", Duration::from_secs(20)).await;
    answer.map(|answer| answer.code).map_err(|failure| failure.to_string())
}

#[tokio::test]
async fn token_file_is_trimmed_and_reread_when_it_changes() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    home.write("token", "one\n");
    let client = RawClient::new(&home.access(&server.cluster(), &json!({ "tokenFile": "token" })));
    assert_eq!(get(&client).await, Ok(200));
    server.accept("Bearer two");
    home.write("token", "\r\n two\r\n");
    assert_eq!(get(&client).await, Ok(200));
    fs::remove_file(home.path("token")).unwrap();
    assert_eq!(get(&client).await, Ok(200), "the last token stays in use");
}

#[tokio::test]
async fn changed_kubeconfig_renews_user_of_same_context() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    let client = RawClient::new(&home.access(&server.cluster(), &json!({ "token": "one" })));
    assert_eq!(get(&client).await, Ok(200));
    server.accept("Basic bWU6dHdv");
    home.write_kubeconfig(&server.cluster(), &json!({ "username": "me", "password": "two" }));
    assert_eq!(get(&client).await, Ok(200));
    let other = Server::start("Basic bWU6dHdv").await;
    home.write_kubeconfig(&other.cluster(), &json!({ "username": "me", "password": "three" }));
    assert_eq!(get(&client).await, Ok(200), "credentials of another server are not used");
}

#[tokio::test]
async fn refused_token_is_renewed_once_for_all_requests() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    home.issue(&json!({ "token": "one" }));
    let access = home.access(&server.cluster(), &home.program());
    let clients: Vec<_> = (0..8).map(|_| RawClient::new(&access)).collect();
    let all = || futures_util::future::join_all(clients.iter().map(get));
    assert_eq!((all().await, home.runs()), (vec![Ok(200); 8], 1));
    server.accept("Bearer two");
    home.issue(&json!({ "token": "two", "expirationTimestamp": "2999-01-02T03:04:05Z" }));
    assert_eq!((all().await, home.runs()), (vec![Ok(200); 8], 2));
}

#[tokio::test]
async fn expiring_token_is_renewed_before_its_expiry() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    let expires = Timestamp::now() + Duration::from_millis(1500);
    home.issue(&json!({ "token": "one", "expirationTimestamp": expires.to_string() }));
    let client = RawClient::new(&home.access(&server.cluster(), &home.program()));
    assert_eq!(get(&client).await, Ok(200));
    home.issue(&json!({ "token": "one" }));
    while home.runs() < 2 {
        assert_eq!(get(&client).await, Ok(200));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(Timestamp::now() < expires + Duration::from_secs(10));
}

#[tokio::test]
async fn unaccepted_credentials_run_program_with_backoff() {
    let (home, server) = (Home::new(), Server::start("Bearer other").await);
    home.issue(&json!({ "token": "one" }));
    let client = RawClient::new(&home.access(&server.cluster(), &home.program()));
    for _ in 0..50 {
        assert_eq!(get(&client).await, Ok(401));
    }
    assert!(home.runs() <= 4, "{} runs", home.runs());
}

#[tokio::test]
async fn failing_program_is_named_once_without_output() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    let access = home.access(&server.cluster(), &user_of("echo S3CRET; echo S3CRET >&2; exit 3"));
    let error = access.log_in().await.unwrap_err().to_string();
    let of_request = get(&RawClient::new(&access)).await.unwrap_err();
    for error in [error, of_request] {
        assert!(error.contains("credential program \"sh\" of user \"u\" failed with exit status: 3"), "{error}");
        assert_eq!(error.matches("installHint: see https://tools.example").count(), 1, "{error}");
        assert!(!error.contains("S3CRET") && !error.contains('{'), "{error}");
    }
    home.issue(&json!({ "token": "one" }));
    let access = home.access(&server.cluster(), &home.program());
    access.log_in().await.unwrap();
    server.accept("Bearer two");
    fs::remove_file(home.path("credential")).unwrap();
    let error = get(&RawClient::new(&access)).await.unwrap_err();
    assert!(error.contains("(401), and they cannot be renewed: credential program"), "{error}");
}

#[test]
fn unusable_outputs_are_errors_without_content() {
    let run = |script: &str| {
        let exec = serde_json::from_value(user_of(script)["exec"].clone()).unwrap();
        let plugin = Plugin::new("u", &exec).unwrap().with_timeout(Duration::from_secs(2));
        plugin.run().map(drop).map_err(|error| error.to_string())
    };
    for (script, expected) in [
        ("echo S3CRET", "printed no ExecCredential"),
        (r#"echo '{"status": {"token": ["S3CRET"]}}'"#, "printed no ExecCredential"),
        (r#"echo '{"status": {}}'"#, "printed no ExecCredential"),
        (r#"echo '{"status": {"clientKeyData": "S3CRET"}}'"#, "only one of clientCertificateData and clientKeyData"),
        (r#"echo '{"status": {"token": "x", "expirationTimestamp": "S3CRET"}}'"#, "invalid expirationTimestamp"),
        ("head -c 2000000 /dev/zero; sleep 60", "printed more than 1048576 bytes"),
        ("(sleep 60)", "did not end within 2s"),
    ] {
        let error = run(script).unwrap_err();
        assert!(error.contains(expected) && !error.contains("S3CRET"), "{script}: {error}");
    }
    assert_eq!(run(r#"test "$KUBERNETES_EXEC_INFO" && echo 'status: {token: of-yaml}'"#), Ok(()));
    let missing = json!({ "command": "/no/such/program", "installHint": "get it" });
    let error = Plugin::new("u", &serde_json::from_value(missing).unwrap()).unwrap().run().map(drop).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("/no/such/program") && error.contains("there is no such program"), "{error}");
    assert!(error.ends_with("installHint: get it"), "{error}");
}

#[tokio::test]
async fn unusable_user_is_refused_when_it_is_loaded() {
    let (home, server) = (Home::new(), Server::start("").await);
    let missing = home.path("missing").display().to_string();
    for (user, expected) in [
        (
            json!({ "client-certificate": "missing", "client-key": "missing" }),
            &*format!("client-certificate {missing}: No such"),
        ),
        (json!({ "tokenFile": "missing" }), &*format!("cannot read tokenFile {missing}: No such")),
        (json!({ "client-certificate-data": "YQ==" }), "client-certificate without client-key"),
        (json!({ "client-key-data": "YQ==" }), "client-key without client-certificate"),
        (json!({ "client-certificate-data": "YQ==", "client-key-data": "Yg==" }), "missing a private key"),
        (json!({ "token": "a\nb" }), "characters that no header can carry"),
        (json!({ "auth-provider": { "name": "gcp", "config": {} } }), "unsupported auth-provider \"gcp\""),
        (json!({ "exec": { "args": ["x"] } }), "exec has no command"),
    ] {
        home.write_kubeconfig(&server.cluster(), &user);
        let error = home.load().unwrap_err();
        assert!(error.contains(expected) && error.contains("user \"u\""), "{user}: {error}");
        assert!(!error.contains('{') && !error.contains("\\\""), "{error}");
    }
}

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn store(&self) -> Arc<RootCertStore> {
        let mut store = RootCertStore::empty();
        store.add(self.0.der().clone()).unwrap();
        Arc::new(store)
    }

    /// Returns a new certificate of `name`, in DER and PEM, and its key, in PEM.
    fn issue(&self, name: &str) -> (CertificateDer<'static>, String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.der().clone(), certificate.pem(), key)
    }
}

/// A TLS server that accepts one client certificate.
struct TlsServer {
    cluster: Value,
    state: Arc<Mutex<(CertificateDer<'static>, Arc<ServerConfig>)>>,
    clients: Authority,
}

impl TlsServer {
    async fn start(authority: &Authority) -> Self {
        let clients = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let cluster = json!({ "server": server, "certificate-authority": "ca.crt" });
        let state = Arc::new(Mutex::new((clients.0.der().clone(), Self::config(authority, &clients))));
        let of_server = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(Self::serve(socket, Arc::clone(&of_server)));
            }
        });
        Self { cluster, state, clients }
    }

    fn config(authority: &Authority, clients: &Authority) -> Arc<ServerConfig> {
        let (certificate, _, key) = authority.issue("127.0.0.1");
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(clients.store(), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(verifier.build().unwrap());
        Arc::new(config.with_single_cert(vec![certificate], key).unwrap())
    }

    async fn serve(socket: TcpStream, state: Arc<Mutex<(CertificateDer<'static>, Arc<ServerConfig>)>>) {
        let config = Arc::clone(&lock(&state).1);
        let Ok(mut stream) = TlsAcceptor::from(config).accept(socket).await else { return };
        let sent = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let status = if lock(&state).0 == sent { "200 OK" } else { "401 Unauthorized" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// Accepts a new client certificate from now on, and returns it and its key.
    fn accept_new(&self) -> (String, String) {
        let (der, pem, key) = self.clients.issue("client");
        lock(&self.state).0 = der;
        (pem, key.serialize_pem())
    }
}

#[tokio::test]
async fn replaced_client_certificate_and_authority_are_used() {
    let (home, authority) = (Home::new(), Authority::new());
    let server = TlsServer::start(&authority).await;
    home.write("ca.crt", &authority.pem());
    let replace = || {
        let (certificate, key) = server.accept_new();
        home.write("tls.crt", &certificate);
        home.write("tls.key", &key);
    };
    replace();
    let user = json!({ "client-certificate": "tls.crt", "client-key": "tls.key" });
    let client = RawClient::new(&home.access(&server.cluster, &user));
    assert_eq!(get(&client).await, Ok(200));
    replace();
    assert_eq!(get(&client).await, Ok(200), "the old connection identifies the old client");
    let next = Authority::new();
    lock(&server.state).1 = TlsServer::config(&next, &server.clients);
    home.write("ca.crt", &next.pem());
    assert_eq!(get(&client).await, Ok(200), "the new authority is trusted");
}

#[tokio::test]
async fn refused_certificate_of_program_is_renewed() {
    let (home, authority) = (Home::new(), Authority::new());
    let server = TlsServer::start(&authority).await;
    home.write("ca.crt", &authority.pem());
    let issue = || {
        let (certificate, key) = server.accept_new();
        home.issue(&json!({ "clientCertificateData": certificate, "clientKeyData": key }));
    };
    issue();
    let client = RawClient::new(&home.access(&server.cluster, &home.program()));
    assert_eq!((get(&client).await, home.runs()), (Ok(200), 1));
    issue();
    assert_eq!((get(&client).await, home.runs()), (Ok(200), 2));
}

/// Starts a proxy for one connection. `handshake` returns the requested address.
async fn proxy<H: AsyncFnOnce(&mut TcpStream) -> String + 'static>(handshake: H) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::task::spawn_local(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut server = TcpStream::connect(handshake(&mut client).await).await.unwrap();
        drop(copy_bidirectional(&mut client, &mut server).await);
    });
    address
}

async fn connect_handshake(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("Proxy-Authorization: Basic bWU6cGFzcw==\r\n"), "{head}");
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    head.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap().to_owned()
}

async fn socks_handshake(client: &mut TcpStream) -> String {
    let mut methods = [0; 3];
    client.read_exact(&mut methods).await.unwrap();
    assert_eq!(methods, [5, 1, 0], "no authentication");
    client.write_all(&[5, 0]).await.unwrap();
    let mut request = [0; 10];
    client.read_exact(&mut request).await.unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    let [5, 1, 0, 1, a, b, c, d, high, low] = request else { panic!("{request:?}") };
    format!("{a}.{b}.{c}.{d}:{}", u16::from_be_bytes([high, low]))
}

#[tokio::test]
async fn proxy_url_is_used_even_for_loopback_server() {
    let (home, server) = (Home::new(), Server::start("Bearer one").await);
    let run = async {
        let http = format!("http://me:pass@{}", proxy(connect_handshake).await);
        let socks = format!("socks5://{}", proxy(socks_handshake).await);
        for url in [http, socks] {
            let cluster = json!({ "server": server.url, "proxy-url": url });
            let client = RawClient::new(&home.access(&cluster, &json!({ "token": "one" })));
            assert_eq!(get(&client).await, Ok(200), "{url}");
            let again = RawClient::new(&home.load().unwrap());
            let failure = get(&again).await.unwrap_err();
            assert!(!failure.contains("pass"), "the proxy served one connection: {failure}");
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}
