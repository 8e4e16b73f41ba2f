//! A real Kubernetes API server with etcd for tests: the Go module in `tests/cluster`, built on first use.

// Each test binary includes this file and uses a part of it.
#![allow(clippy::allow_attributes, dead_code, reason = "expect would fail in the binary that uses all of it")]

use std::borrow::Borrow;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Start timeout, longer than the server's own timeouts.
const START_TIMEOUT: Duration = Duration::from_mins(3);

/// Variable that makes a test fail instead of being skipped, if 1 (used in CI).
const REQUIRE_ENV: &str = "DELTABUS_REQUIRE_CLUSTER";

/// Reason why there is no cluster.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The `go` tool cannot be run.
    NoGo(io::Error),
    /// Another tool is missing or cannot be run; with its name.
    Missing(String),
    /// The module does not build, perhaps without network. With the end of the compiler's output.
    BuildFailed(String),
    /// The server was built but does not start. With the end of its log. This never skips a test.
    StartFailed(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGo(error) => write!(f, "the go tool cannot be run: {error}"),
            Self::Missing(what) => f.write_str(what),
            Self::BuildFailed(output) => write!(f, "failed to build tests/cluster: {output}"),
            Self::StartFailed(log) => write!(f, "failed to start the API server: {log}"),
        }
    }
}

impl std::error::Error for Unavailable {}

/// One API server on free ports of 127.0.0.1, with its own data directory.
///
/// Dropping it stops the server and removes its data. If the test process is killed, the server's stdin closes and it exits;
/// the next start removes its data.
///
/// Every call blocks. In async tests, call from `spawn_blocking`, or where no other task needs to run.
#[derive(Debug)]
pub(crate) struct Cluster {
    binary: PathBuf,
    home: Home,
    own_flags: Vec<String>,
    flags: Vec<String>,
    server: Option<Child>,
    info: Value,
}

impl Cluster {
    /// Starts a server with further flags of kube-apiserver, such as `--watch-cache=false`, and returns when it is
    /// ready. The first call in a checkout builds the binary, which takes minutes. A start takes two or three seconds.
    pub(crate) fn start(flags: &[&str]) -> Result<Self, Unavailable> {
        Self::start_with(&[], flags)
    }

    /// Starts a server like [`Cluster::start`], with further flags of the `apiserver` command before them.
    pub(crate) fn start_with(own_flags: &[&str], flags: &[&str]) -> Result<Self, Unavailable> {
        let binary = build(".")?;
        let failed = |error: io::Error| Unavailable::StartFailed(error.to_string());
        let home = Home::create().map_err(failed)?;
        // No two servers of this process get the same ports. The command's own choice cannot know about the other servers.
        let [secure, etcd] = free_ports().map_err(failed)?;
        let ports = [format!("--secure-port={}", secure.port()), format!("--etcd-port={}", etcd.port())];
        let own_flags = ports.into_iter().chain(own_flags.iter().map(ToString::to_string)).collect();
        let flags = flags.iter().map(ToString::to_string).collect();
        let mut cluster = Self { binary, home, own_flags, flags, server: None, info: Value::Null };
        cluster.start_server()?;
        Ok(cluster)
    }

    /// Starts a server like [`Cluster::start`], or prints the reason for skipping to stderr and returns `None`.
    ///
    /// # Panics
    /// If the server was built but does not start, and instead of skipping if `DELTABUS_REQUIRE_CLUSTER=1`.
    pub(crate) fn start_or_skip(test_name: &str, flags: &[&str]) -> Option<Self> {
        or_skip(test_name, Self::start(flags))
    }

    /// Returns the server that all tests of this program share, or prints the reason for skipping to stderr and returns `None`.
    ///
    /// For tests that neither restart nor compact it. Each test uses its own namespaces, custom types and roles. The server
    /// stops with the program; the next start of any server removes its data.
    ///
    /// # Panics
    /// See [`Cluster::start_or_skip`].
    pub(crate) fn shared_or_skip(test_name: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Cluster, Unavailable>> = OnceLock::new();

        or_skip(test_name, SHARED.get_or_init(|| Self::start(&[])).as_ref())
    }

    /// Returns the server's address, `https://127.0.0.1:…`. It stays the same after a restart.
    pub(crate) fn url(&self) -> &str {
        self.text("url")
    }

    /// Returns the path of the administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        Path::new(self.text("kubeconfig"))
    }

    /// Returns the kubeconfig of the user `limited`, whose rights are only those of the test's own RBAC objects.
    pub(crate) fn limited_kubeconfig(&self) -> &Path {
        Path::new(self.text("limited_kubeconfig"))
    }

    /// Returns the administrator's bearer token.
    pub(crate) fn token(&self) -> &str {
        self.text("token")
    }

    /// Returns the path of the CA certificate (PEM) that signed the server's.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.data_dir().join("ca.crt")
    }

    /// Returns the cluster's data directory, which is removed on drop.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.home.path.join("cluster")
    }

    /// Returns the path of the server's log.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.home.path.join("apiserver.log")
    }

    /// Stops the server and starts it again on the same data and ports.
    ///
    /// Its watch cache is then empty. A watch from a version before the restart gets 410, unless nothing was written since.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Restarts the server with other flags.
    pub(crate) fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
        self.restart();
    }

    /// Stops the server as by SIGTERM; its data and ports stay. Watches end, and connections are refused from then on.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.stdin.take());
            server.wait().expect("a child can be waited for");
        }
    }

    /// Stops the server as by SIGKILL: connections break at any point.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().expect("an own child can be killed");
            server.wait().expect("a child can be waited for");
        }
    }

    /// Starts the server after [`Cluster::stop`] or [`Cluster::kill`].
    pub(crate) fn start_again(&mut self) {
        assert!(self.server.is_none(), "the server runs already");
        self.start_server().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Drops all of etcd's history up to now and returns the oldest remaining revision.
    ///
    /// The server may still serve older watches from its watch cache. To prevent that, restart it or use `--watch-cache=false`.
    pub(crate) fn compact(&self) -> u64 {
        self.run_json("compact", &[], None)["revision"].as_u64().expect("compact prints the revision")
    }

    /// Drops etcd's history before a revision; see [`Cluster::compact`].
    pub(crate) fn compact_before(&self, revision: u64) {
        self.run_json("compact", &["--revision", &revision.to_string()], None);
    }

    /// Runs the random workload to its end, for example `&["--setup", "--ops=2000", "--seed=7"]`. Its stdout is one JSON object
    /// with its counts. It survives server restarts of up to a minute and a half.
    pub(crate) fn churn(&self, args: &[&str]) -> Output {
        let output = self.command("churn", args).output().expect("the cluster binary runs");
        assert!(output.status.success(), "churn {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Starts the random workload and returns at once, so that the test can act during it.
    pub(crate) fn start_churn(&self, args: &[&str]) -> RunningChurn {
        let mut command = self.command("churn", args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        RunningChurn(Some(child.expect("the cluster binary runs")))
    }

    /// Returns the server's current objects of all watchable types, in their groups' preferred versions, except for the named
    /// types (`leases.coordination.k8s.io`). See [`Cluster::dump`] for the format.
    pub(crate) fn dump_all(&self, except: &[&str]) -> Value {
        self.run_json("dump", &[&["--all"], except].concat(), None)
    }

    /// Returns the server's current objects of each resource (`pods`, `deployments.apps`):
    /// `{"pods": {"resourceVersion": "…", "items": {"namespace/name": {"uid": "…", "resourceVersion": "…"}}}}`.
    pub(crate) fn dump(&self, resources: &[&str]) -> Value {
        self.run_json("dump", resources, None)
    }

    /// Applies an object or a `List` (server-side, by force) and returns the resulting object; for a list, the last one.
    /// After a custom resource definition it returns when the type is served.
    pub(crate) fn apply(&self, object: &Value) -> Value {
        self.apply_yaml(&object.to_string()).pop().expect("apply prints what it applied")
    }

    /// Applies all YAML documents of a text and returns the resulting objects.
    pub(crate) fn apply_yaml(&self, text: &str) -> Vec<Value> {
        let output = self.run("apply", &[], Some(text));
        output.lines().map(|line| serde_json::from_str(line).expect("apply prints a JSON object a line")).collect()
    }

    /// Sends a request as the administrator and returns any status and the body.
    /// A PATCH is a merge patch. A body that is not a single JSON value, such as a watch, is returned as a string.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.request_as(self.kubeconfig(), method, path, body)
    }

    /// Sends a request as the user of a kubeconfig; see [`Cluster::request`].
    pub(crate) fn request_as(&self, kubeconfig: &Path, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map_or_else(String::new, ToString::to_string);
        self.request_with(kubeconfig, &[method, path, "-"], &body)
    }

    /// Sends a patch in a format, `application/FORMAT`, as the user of a kubeconfig; see [`Cluster::request`].
    pub(crate) fn patch_as(&self, kubeconfig: &Path, format: &str, path: &str, body: &Value) -> (u16, Value) {
        let format = format!("application/{format}");
        self.request_with(kubeconfig, &["--content-type", &format, "PATCH", path, "-"], &body.to_string())
    }

    fn request_with(&self, kubeconfig: &Path, args: &[&str], body: &str) -> (u16, Value) {
        let kubeconfig = kubeconfig.to_str().expect("paths of tests are UTF-8");
        let mut answer = self.run_json("request", &[&["--kubeconfig", kubeconfig], args].concat(), Some(body));
        let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        (status.expect("request prints the status"), answer["body"].take())
    }

    /// Applies an object server-side, by force, as a manager of its own; `path` is the path of the object.
    pub(crate) fn apply_as(&self, manager: &str, path: &str, object: &Value) {
        let path = format!("{path}?force=true&fieldManager={manager}");
        let args = ["--content-type", "application/apply-patch+yaml", "PATCH", &path, "-"];
        let answer = self.run_json("request", &args, Some(&object.to_string()));
        assert_eq!(answer["status"].as_u64().map(|status| status / 100), Some(2), "PATCH {path}: {answer}");
    }

    /// Waits until the server allows, or refuses, these resource attributes for a kubeconfig's user. Role changes take effect
    /// with a short delay.
    pub(crate) fn wait_allowed(&self, allowed: bool, kubeconfig: &Path, attributes: &Value) {
        let review = serde_json::json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes },
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        for _ in 0..400 {
            let (_, answer) = self.request_as(kubeconfig, "POST", path, Some(&review));
            if answer["status"]["allowed"] == allowed {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("{attributes}: it was never so that allowed = {allowed}");
    }

    /// Returns a token of a service account.
    pub(crate) fn service_account_token(&self, namespace: &str, name: &str) -> String {
        let request = serde_json::json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {},
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let (code, answer) = self.request("POST", &path, Some(&request));
        assert_eq!(code, 201, "{answer}");
        answer["status"]["token"].as_str().expect("a TokenRequest is answered with a token").to_owned()
    }

    /// Writes a kubeconfig for the user of a token.
    pub(crate) fn write_kubeconfig_of(&self, token: &str, path: &Path) {
        let admins = fs::read_to_string(self.kubeconfig()).expect("the server wrote it");
        fs::write(path, admins.replace(self.token(), token)).expect("the directory is writable");
    }

    /// Reads the object or list at a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.request("GET", path, None);
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    /// Deletes the object at a path immediately; a missing object is an error.
    pub(crate) fn delete(&self, path: &str) {
        let options = serde_json::json!({ "gracePeriodSeconds": 0 });
        let (status, body) = self.request("DELETE", path, Some(&options));
        assert!((200..300).contains(&status), "DELETE {path}: {status}: {body}");
    }

    fn text(&self, field: &str) -> &str {
        self.info[field].as_str().expect("the server's first line has every field")
    }

    fn start_server(&mut self) -> Result<(), Unavailable> {
        let failed = |error: io::Error| Unavailable::StartFailed(error.to_string());
        let log = File::options().create(true).append(true).open(self.log_file()).map_err(failed)?;
        let mut command = self.command("apiserver", &[]);
        command
            .args(&self.own_flags)
            .arg("--")
            .args(&self.flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        self.server = Some(child);
        if let Some(line) = first_line(stdout) {
            self.info = serde_json::from_str(&line).expect("the server's first line is JSON");
            return Ok(());
        }
        self.kill();
        Err(Unavailable::StartFailed(end_of(&self.log_file())))
    }

    /// Returns the command that runs one of the binary's tools on this cluster.
    pub(super) fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(name).arg("--data-dir").arg(self.data_dir()).args(args);
        command
    }

    fn run_json(&self, name: &str, args: &[&str], stdin: Option<&str>) -> Value {
        let output = self.run(name, args, stdin);
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{name} printed {output:?}: {error}"))
    }

    fn run(&self, name: &str, args: &[&str], stdin: Option<&str>) -> String {
        let mut command = self.command(name, args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the cluster binary runs");
        let mut pipe = child.stdin.take().expect("stdin is piped");
        // A command that fails early does not read its stdin. Its own message is more useful than the broken pipe.
        pipe.write_all(stdin.unwrap_or_default().as_bytes()).ok();
        drop(pipe);
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(output.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("the cluster binary prints UTF-8")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Killed, because an orderly stop would only take a second longer.
            server.kill().ok();
            server.wait().ok();
        }
        if thread::panicking() {
            note(&format!("end of the API server's log:\n{}", end_of(&self.log_file())));
        }
    }
}

/// Returns the started component, or prints the reason for skipping to stderr and returns `None`.
///
/// # Panics
/// If it was built but does not start, and instead of skipping if `DELTABUS_REQUIRE_CLUSTER=1`.
pub(super) fn or_skip<T, E: Borrow<Unavailable>>(test_name: &str, started: Result<T, E>) -> Option<T> {
    let reason = match started {
        Ok(started) => return Some(started),
        Err(reason) => reason,
    };
    let reason = reason.borrow();
    let required = std::env::var_os(REQUIRE_ENV).is_some_and(|value| value == "1");
    assert!(!required && !matches!(reason, Unavailable::StartFailed(_)), "{test_name}: {reason}");
    note(&format!("skipped: {test_name}: {reason}"));
    None
}

/// Waits for the first line, which reports that a component is ready; `None` if it exits without one.
pub(super) fn first_line(stdout: ChildStdout) -> Option<String> {
    let (send, line) = mpsc::channel();
    thread::spawn(move || send.send(BufReader::new(stdout).lines().next()));
    line.recv_timeout(START_TIMEOUT).ok()??.ok()
}

/// Returns the last lines of a log.
pub(super) fn end_of(log: &Path) -> String {
    last_lines(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()), 20)
}

/// A workload in the background; killed when dropped.
#[derive(Debug)]
pub(crate) struct RunningChurn(Option<Child>);

impl RunningChurn {
    /// Waits for the end of the workload and returns its counts.
    pub(crate) fn finish(mut self) -> Value {
        let child = self.0.take().expect("finish consumes the workload");
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(output.status.success(), "churn: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("churn prints one JSON object")
    }
}

impl Drop for RunningChurn {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// The directory of one cluster, removed on drop. Its lock file distinguishes a live one from a leftover of a killed test.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    _lock: File,
}

impl Home {
    fn create() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);

        let runs = target_dir().join("run");
        fs::create_dir_all(&runs)?;
        // The removal of leftovers must not see a directory whose file is not locked yet.
        let guard = lock_file(&target_dir().join("run.lock"))?;
        guard.lock()?;
        for entry in fs::read_dir(&runs)? {
            let path = entry?.path();
            if lock_file(&path.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
                fs::remove_dir_all(&path)?;
            }
        }
        let path = runs.join(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&path)?;
        let lock = lock_file(&path.join("lock"))?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

/// Returns the binary of a package of the module (`.`, `living`), or of the separate module `helm`. Builds it unless it
/// exists for the current sources.
pub(super) fn build(package: &str) -> Result<PathBuf, Unavailable> {
    let failed = |error: io::Error| Unavailable::BuildFailed(error.to_string());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster");
    let sources = root.join(package);
    let (name, module, path) = match package {
        "." => ("cluster", root, ".".to_owned()),
        "helm" => ("helm", sources.clone(), "helm.sh/helm/v3/cmd/helm".to_owned()),
        _ => (package, root, format!("./{package}")),
    };
    let binary = target_dir().join(format!("{name}-{:016x}", hash_of(&module, &sources).map_err(failed)?));
    if binary.exists() {
        return Ok(binary);
    }
    fs::create_dir_all(target_dir()).map_err(failed)?;
    // Other processes wait here and then find the result; code shared by two binaries is compiled once.
    let lock = lock_file(&target_dir().join("build.lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if binary.exists() {
        return Ok(binary);
    }
    Command::new("go")
        .arg("version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(Unavailable::NoGo)?;
    note(&format!("building the test cluster (tests/cluster, {name}); a few minutes the first time"));
    let unfinished = binary.with_extension("unfinished");
    let output = Command::new("go")
        .current_dir(&module)
        .args(["build", "-trimpath", "-ldflags", &linker_flags(), "-o"])
        .args([unfinished.as_os_str(), OsStr::new(&path)])
        .output()
        .map_err(Unavailable::NoGo)?;
    if !output.status.success() {
        return Err(Unavailable::BuildFailed(last_lines(&String::from_utf8_lossy(&output.stderr), 5)));
    }
    fs::rename(&unfinished, &binary).map_err(failed)?;
    Ok(binary)
}

/// Returns flags that omit symbols (a third of the size) and set the version shown at `/version` like Kubernetes' own build.
fn linker_flags() -> String {
    let version = "k8s.io/component-base/version";
    format!("-s -w -X {version}.gitVersion=v1.36.3 -X {version}.gitMajor=1 -X {version}.gitMinor=36")
}

/// Returns a hash over a package's sources and its dependencies' versions.
fn hash_of(module: &Path, sources: &Path) -> io::Result<u64> {
    let mut paths = vec![module.join("go.mod"), module.join("go.sum")];
    let shared = module.join("internal/tool");
    let shared = if shared.exists() { Some(fs::read_dir(shared)?) } else { None };
    for entry in fs::read_dir(sources)?.chain(shared.into_iter().flatten()) {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "go" || extension == "yaml") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut hasher = DefaultHasher::new();
    linker_flags().hash(&mut hasher);
    for path in paths {
        path.file_name().hash(&mut hasher);
        fs::read(&path)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// Finds free ports below the kernel's range for clients, so that each stays free while its server restarts.
pub(super) fn free_ports<const N: usize>() -> io::Result<[SocketAddr; N]> {
    const COUNT: u16 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(97);
    let next = || begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
    let ports = (0..COUNT).map(|_| 20_000 + u16::try_from(next()).expect("it is small"));
    let free = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free: Vec<_> = free.filter(|address| TcpListener::bind(address).is_ok()).take(N).collect();
    free.try_into().map_err(|_| io::Error::other("no port is free"))
}

/// Returns `target/cluster` next to `target/tmp`, the directory that Cargo gives to test binaries.
pub(super) fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("cluster")
}

pub(super) fn lock_file(path: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(path)
}

pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Writes a line to the process's stderr. The test harness would capture `eprintln!` and show it only on failure.
pub(super) fn note(text: &str) {
    writeln!(io::stderr(), "{text}").ok();
}
