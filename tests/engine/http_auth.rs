//! Access over HTTP: remote access with a token and TLS, and open probes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    fs,
    net::UdpSocket,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::support::{
    clock::Clock,
    engine::{Engine, request, text},
    living::Kubectl,
    scripted::PATIENCE,
};
use deltabus::internals::{
    list_watch::{
        Failure,
        kube::{
            ClusterAccess,
            raw::{Answer, RawClient},
        },
    },
    secret::SecretString,
    simulator::{Simulator, SimulatorOptions},
};
use k8s_openapi::api::core::v1::Pod;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

const TOKEN: &str = "a-token-of-some-length";

/// Issuer of certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Issues a certificate for this machine, and puts it where the engine expects it.
    fn sign(&self, dir: &Path) {
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned(), address_of_this_machine()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        for (name, content) in [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())] {
            replace(&dir.join(name), &content);
        }
    }
}

/// Replaces a file atomically.
fn replace(file: &Path, content: &str) {
    let next = file.with_extension("next");
    fs::write(&next, content).unwrap();
    fs::rename(&next, file).unwrap();
}

/// Returns an address at which other machines reach this one, if there is one. Sends nothing.
fn address_of_this_machine() -> String {
    let route = || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    route().map_or_else(|_| "127.0.0.1".to_owned(), |address| address.ip().to_string())
}

struct Fixture {
    engine: Engine,
    clock: Clock,
    authority: Authority,
    dir: TempDir,
    _simulator: Simulator,
}

/// Starts an engine that accepts remote clients, with a cluster of one pod.
fn start() -> Fixture {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let pod = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": {"containers": []}});
    simulator.store().create("pods", pod).unwrap();
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    fs::write(dir.path().join("token"), format!("{TOKEN}\n")).unwrap();
    fs::write(dir.path().join("ca.crt"), authority.0.pem()).unwrap();
    authority.sign(dir.path());
    let config = configuration(dir.path(), "listen = \"0.0.0.0:0\"\nprobe_listen = \"127.0.0.1:0\"\n");
    fs::write(dir.path().join("config.toml"), config).unwrap();
    let clock = Clock::new(dir.path());
    let engine = Engine::run_again(dir.path(), &clock.environment());
    Fixture { engine, clock, authority, dir, _simulator: simulator }
}

fn configuration(dir: &Path, listen: &str) -> String {
    let [kubeconfig, token, cert, key] = ["kubeconfig", "token", "tls.crt", "tls.key"].map(|name| text(dir, name));
    format!(
        "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.pods]\nmatch = [\"pods\"]\n\
         [handlers.count]\ntype = \"blackhole\"\n[http]\n{listen}auth = \"token\"\ntoken = {{ file = {token:?} }}\n\
         tls = {{ cert_file = {cert:?}, key_file = {key:?} }}\n"
    )
}

impl Fixture {
    fn port(&self) -> &str {
        self.engine.http.rsplit_once(':').unwrap().1
    }

    fn url(&self) -> String {
        format!("https://{}:{}", address_of_this_machine(), self.port())
    }

    fn access(&self, token: Option<&str>, authority: &Authority) -> ClusterAccess {
        let trusted = Some(vec![authority.0.der().to_vec()]);
        ClusterAccess::with_token(&self.url(), "engine", token.map(SecretString::from), trusted).unwrap()
    }

    /// Sends a request over a new connection.
    fn send(&self, method: &str, path: &str, token: Option<&str>, authority: &Authority) -> Result<Answer, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = RawClient::new(&self.access(token, authority));
            if method == "POST" {
                client.post(path, PATIENCE).await
            } else {
                client.get(path, "application/json", PATIENCE).await
            }
        })
    }

    /// Returns the code and the body of an answer.
    fn ask(&self, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
        let answer = self.send(method, path, token, &self.authority).unwrap();
        (answer.code, String::from_utf8_lossy(&answer.body).into_owned())
    }
}

/// Waits until a condition holds.
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE * 2;
    while !holds() {
        assert!(Instant::now() < deadline, "never {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn remote_request_without_token_is_refused() {
    let fixture = start();
    let probes = fixture.engine.probes();
    wait_for("ready", || matches!(request(&probes, "GET", "/readyz", &[]), Ok(answer) if answer.code == 200));
    for path in
        ["/api/v1/pods", "/v1/resources", "/v1/handlers", "/metrics", "/livez", "/readyz", "/version", "/nothing"]
    {
        for token in [None, Some("wrong")] {
            let (code, body) = fixture.ask("GET", path, token);
            let status: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(
                (code, &status["kind"], &status["reason"]),
                (401, &json!("Status"), &json!("Unauthorized")),
                "{path}"
            );
        }
        let expected = if path == "/nothing" { 404 } else { 200 };
        assert_eq!(fixture.ask("GET", path, Some(TOKEN)).0, expected, "{path}");
    }
    let pause = "/v1/handlers/count/pause";
    assert_eq!(fixture.ask("POST", pause, None).0, 401);
    assert_eq!(fixture.ask("POST", pause, Some("wrong")).0, 401);
    let (code, body) = fixture.ask("POST", pause, Some(TOKEN));
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, answer["handler"]["state"].as_str()), (200, Some("paused")));

    // The probes are open; nothing else is served there.
    for (path, code) in [("/livez", 200), ("/readyz", 200), ("/healthz", 200), ("/metrics", 200), ("/api/v1/pods", 404)]
    {
        assert_eq!(request(&probes, "GET", path, &[]).unwrap().code, code, "{path}");
    }
    assert_eq!(request(&probes, "POST", pause, &[]).unwrap().code, 404);
    // Without TLS there is no answer.
    let plain = request(&format!("127.0.0.1:{}", fixture.port()), "GET", "/livez", &[]);
    assert!(plain.as_ref().map_or(true, |answer| answer.code != 200), "{plain:?}");
    // A client that trusts another authority does not send the token.
    assert!(fixture.send("GET", "/livez", Some(TOKEN), &Authority::new()).is_err());
    assert!(!fixture.engine.log().contains(TOKEN));
    assert!(fixture.engine.terminate().success());
}

#[test]
fn kubernetes_client_with_token_reads_cache() {
    let fixture = start();
    let access = fixture.access(Some(TOKEN), &fixture.authority);
    let names = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pods: kube::Api<Pod> = kube::Api::all(access.client());
            let list = pods.list(&kube::api::ListParams::default()).await.ok()?;
            Some(list.items.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>())
        })
    };
    wait_for("listed", || names() == Some(vec!["web".to_owned()]));
    let Some(kubectl) = Kubectl::build_or_skip("kubernetes_client_with_token_reads_cache") else { return };
    let of_kubectl = |token: &str| {
        let mut command = kubectl.command();
        command.args(["--server", &fixture.url(), "--kubeconfig", "/dev/null", "--token", token]);
        command.args(["--certificate-authority", &text(fixture.dir.path(), "ca.crt")]);
        command.args(["get", "pods", "-n", "default", "-o", "name"]);
        command.env("HOME", fixture.dir.path()).env_remove("KUBECONFIG");
        let output = command.output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(of_kubectl(TOKEN).0, "pod/web\n");
    let (stdout, stderr) = of_kubectl("wrong");
    assert!(stdout.is_empty() && stderr.contains("Unauthorized"), "{stderr}");
}

#[test]
fn changed_token_and_certificate_files_are_reloaded() {
    let fixture = start();
    let old = fixture.access(Some(TOKEN), &fixture.authority);
    assert_eq!(fixture.ask("GET", "/livez", Some(TOKEN)).0, 200);
    replace(&fixture.dir.path().join("token"), "another-token-of-some-length");
    assert_eq!(fixture.ask("GET", "/livez", Some(TOKEN)).0, 401, "at once");
    assert_eq!(fixture.ask("GET", "/livez", Some("another-token-of-some-length")).0, 200);
    // Without its token file the engine refuses all clients, and logs that.
    fs::remove_file(fixture.dir.path().join("token")).unwrap();
    assert_eq!(fixture.ask("GET", "/livez", Some("another-token-of-some-length")).0, 500);
    assert_eq!(fixture.ask("GET", "/livez", None).0, 500);
    fixture.engine.wait_for_log("cannot read a token of [http]");
    fs::write(fixture.dir.path().join("token"), TOKEN).unwrap();

    let next = Authority::new();
    next.sign(fixture.dir.path());
    fixture.clock.skip(11); // files are checked every ten seconds
    wait_for(
        "renewed",
        || matches!(fixture.send("GET", "/livez", Some(TOKEN), &next), Ok(answer) if answer.code == 200),
    );
    assert!(fixture.send("GET", "/livez", Some(TOKEN), &fixture.authority).is_err(), "{old:?}");
}

/// Runs a command without this test's environment variables.
fn deltabus(arguments: &[&str], token: Option<&str>) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(arguments).env("NO_COLOR", "1").env_remove("DELTABUS_ENGINE").env_remove("DELTABUS_TOKEN");
    if let Some(token) = token {
        command.env("DELTABUS_TOKEN", token);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn commands_take_credentials_from_flags_environment_or_configuration() {
    let fixture = start();
    let dir = fixture.dir.path();
    let (url, ca, token) = (fixture.url(), text(dir, "ca.crt"), text(dir, "token"));
    let get = ["get", "pods", "-o", "name", "--engine", &url];
    wait_for("listed", || {
        deltabus(&[&get[..], &["--token-file", &token, "--ca-file", &ca]].concat(), None).1 == "pod/web\n"
    });
    let with_ca = [&get[..], &["--ca-file", &ca]].concat();
    assert_eq!(deltabus(&with_ca, Some(TOKEN)).1, "pod/web\n");
    for token in [None, Some("wrong")] {
        let (code, stdout, stderr) = deltabus(&with_ca, token);
        let expected =
            format!("error: the engine at {url} requires a token: pass it with --token-file FILE or DELTABUS_TOKEN\n");
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (1, "", expected.as_str()));
    }
    let (code, _, stderr) = deltabus(&get, Some(TOKEN));
    assert!(code == 1 && stderr.contains("cannot reach the engine") && !stderr.contains(TOKEN), "{stderr}");
    let (code, _, stderr) = deltabus(&["handlers", "--engine", "http://192.0.2.1:80"], Some(TOKEN));
    assert_eq!(
        (code, stderr.as_str()),
        (1, "error: cannot send the token to http://192.0.2.1:80: the connection is not encrypted; use https://\n")
    );
    let (code, _, stderr) = deltabus(&["handlers", "--token-file", "/nowhere/token"], None);
    assert_eq!(code, 1);
    assert!(stderr.contains("cannot read /nowhere/token") && stderr.contains("--token-file"), "{stderr}");

    // The engine's files give its address, its token and, for a self-signed certificate, the trusted authority.
    let own = CertifiedIssuer::self_signed(
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap(),
        KeyPair::generate().unwrap(),
    );
    let own = own.unwrap();
    let signed = tempfile::tempdir().unwrap();
    for (name, content) in [("tls.crt", own.pem()), ("tls.key", own.key().serialize_pem()), ("token", TOKEN.to_owned())]
    {
        fs::write(signed.path().join(name), content).unwrap();
    }
    fs::copy(dir.join("kubeconfig"), signed.path().join("kubeconfig")).unwrap();
    let write = |listen: &str| {
        let path = text(signed.path(), "config.toml");
        fs::write(&path, configuration(signed.path(), &format!("listen = \"{listen}\"\n"))).unwrap();
        path
    };
    let engine = Engine::spawn(&["run", "-c", &write("0.0.0.0:0")]);
    let port = engine.http.rsplit_once(':').unwrap().1;
    let config = write(&format!("0.0.0.0:{port}"));
    wait_for("paused", || deltabus(&["handlers", "pause", "count", "-c", &config], None).0 == 0);
    assert!(deltabus(&["handlers", "-c", &config], None).1.contains("paused"));
    wait_for("verified", || deltabus(&["verify", "-c", &config], None).0 == 0);
    assert_eq!(deltabus(&["get", "pods", "-o", "name", "-c", &config], None).1, "pod/web\n");
    assert!(engine.terminate().success());
}

#[test]
fn missing_credentials_fail_the_start() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let config = text(dir.path(), "config.toml");
    fs::write(&config, configuration(dir.path(), "listen = \"127.0.0.1:0\"\n")).unwrap();
    let [token, cert, key] = ["token", "tls.crt", "tls.key"].map(|name| text(dir.path(), name));
    let start = || {
        let (code, _, stderr) = deltabus(&["run", "-c", &config], None);
        (code, stderr.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_default().to_owned())
    };
    let missing = "No such file or directory (os error 2)";
    assert_eq!(start(), (1, format!("[http] token: cannot read {token}: {missing}")));
    fs::write(&token, "\n").unwrap();
    assert_eq!(start(), (1, format!("[http] token: {token} is empty: expected a secret")));
    fs::write(&token, TOKEN).unwrap();
    let refused = |what: String| (1, format!("failed to listen on 127.0.0.1:0 ([http] listen): {what}"));
    assert_eq!(start(), refused(format!("cannot read [http] tls cert_file {cert}: {missing}")));
    Authority::new().sign(dir.path());
    fs::write(&key, "nonsense").unwrap();
    let (code, said) = start();
    let expected = format!(
        "failed to listen on 127.0.0.1:0 ([http] listen): [http] tls: expected a PEM certificate in {cert} and its \
         unencrypted private key in {key}: "
    );
    assert!(code == 1 && said.starts_with(&expected), "{said}");
}

#[test]
fn cross_site_page_cannot_change_anything() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let kubeconfig = text(dir.path(), "kubeconfig");
    let engine = Engine::run(
        dir.path(),
        &format!(
            "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.p]\nmatch = [\"pods\"]\n[handlers.count]\ntype = \"blackhole\"\n"
        ),
    );
    let pause =
        |origin: &str| request(&engine.http, "POST", "/v1/handlers/count/pause", &[("Origin", origin)]).unwrap();
    for origin in ["https://example.com", "null", "http://127.0.0.1:1"] {
        let answer = pause(origin);
        assert_eq!((answer.code, answer.json()["reason"].as_str()), (403, Some("Forbidden")), "{origin}");
    }
    assert_ne!(engine.json("/v1/handlers")["handlers"][0]["state"], "paused");
    assert_eq!(pause(&format!("http://{}", engine.http)).code, 200);
    assert!(engine.terminate().success());
}
