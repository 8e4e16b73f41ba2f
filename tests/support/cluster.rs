//! A real Kubernetes API server for tests, with etcd inside: the Go module in `tests/cluster`, built on first use.

// Each test binary includes this file and uses its own part of it.
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

/// More than the server itself waits for before it gives up.
const START_TIMEOUT: Duration = Duration::from_mins(3);

/// Set to 1 (in CI) to make a test fail where it would be skipped.
const REQUIRE_ENV: &str = "DELTABUS_REQUIRE_CLUSTER";

/// Why there is no cluster.
#[derive(Debug)]
pub(crate) enum Unavailable {
    /// The `go` tool cannot be run.
    NoGo(io::Error),
    /// Another tool cannot be run, or is not there; says which.
    Missing(String),
    /// The module does not build, perhaps for want of a network. Carries the end of the compiler's output.
    BuildFailed(String),
    /// The server was built but does not start. Carries the end of its log. Never a reason to skip a test.
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

/// One API server on free ports of 127.0.0.1, with a data directory of its own.
///
/// Dropping it stops the server and removes its data. If the test process is killed the server ends by itself, since
/// its stdin closes; the next start removes what it left.
///
/// Every call blocks: in an async test, make it from `spawn_blocking`, or where nothing else has to run meanwhile.
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
    /// Starts a server with further flags of kube-apiserver, for instance `--watch-cache=false`, and returns when it is
    /// ready. The first call in a checkout builds the binary: minutes. A start takes two or three seconds.
    pub(crate) fn start(flags: &[&str]) -> Result<Self, Unavailable> {
        Self::start_with(&[], flags)
    }

    /// Starts a server as [`Cluster::start`], with further flags of the `apiserver` command itself before them.
    pub(crate) fn start_with(own_flags: &[&str], flags: &[&str]) -> Result<Self, Unavailable> {
        let binary = build(".")?;
        let failed = |error: io::Error| Unavailable::StartFailed(error.to_string());
        let home = Home::create().map_err(failed)?;
        // No two servers of this process are given the same: the command's own draw would not know of the others' draws.
        let [secure, etcd] = free_ports().map_err(failed)?;
        let ports = [format!("--secure-port={}", secure.port()), format!("--etcd-port={}", etcd.port())];
        let own_flags = ports.into_iter().chain(own_flags.iter().map(ToString::to_string)).collect();
        let flags = flags.iter().map(ToString::to_string).collect();
        let mut cluster = Self { binary, home, own_flags, flags, server: None, info: Value::Null };
        cluster.start_server()?;
        Ok(cluster)
    }

    /// Starts a server as [`Cluster::start`], or says on stderr why the test is skipped and returns `None`.
    ///
    /// # Panics
    /// If the server does not start although it was built, and on any reason to skip if `DELTABUS_REQUIRE_CLUSTER=1`.
    pub(crate) fn start_or_skip(test_name: &str, flags: &[&str]) -> Option<Self> {
        or_skip(test_name, Self::start(flags))
    }

    /// Returns the one server that tests of this program share, or says on stderr why the test is skipped and returns `None`.
    ///
    /// For tests that neither restart nor compact it: each keeps to namespaces, custom types and roles of its own. The server
    /// stops with the program; the next start of any server removes its data.
    ///
    /// # Panics
    /// As [`Cluster::start_or_skip`].
    pub(crate) fn shared_or_skip(test_name: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Cluster, Unavailable>> = OnceLock::new();

        or_skip(test_name, SHARED.get_or_init(|| Self::start(&[])).as_ref())
    }

    /// The server's address, `https://127.0.0.1:…`. The same after a restart.
    pub(crate) fn url(&self) -> &str {
        self.text("url")
    }

    /// The path of a kubeconfig that may do everything.
    pub(crate) fn kubeconfig(&self) -> &Path {
        Path::new(self.text("kubeconfig"))
    }

    /// The path of the kubeconfig of the user `limited`, who may do what the test's own RBAC objects grant.
    pub(crate) fn limited_kubeconfig(&self) -> &Path {
        Path::new(self.text("limited_kubeconfig"))
    }

    /// The bearer token that may do everything.
    pub(crate) fn token(&self) -> &str {
        self.text("token")
    }

    /// The path of the CA certificate (PEM) that signed the server's.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.data_dir().join("ca.crt")
    }

    /// The directory of all that the cluster keeps, removed on drop.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.home.path.join("cluster")
    }

    /// The path of what the server logs.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.home.path.join("apiserver.log")
    }

    /// Stops the server and starts it again on the same data and ports.
    ///
    /// Its watch cache is then empty: a watch from any version before the restart gets 410, unless nothing was written since.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Restarts the server with other flags than before.
    pub(crate) fn restart_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
        self.restart();
    }

    /// Stops the server as SIGTERM would; its data and ports stay. Watches end, connections are refused from then on.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.stdin.take());
            server.wait().expect("a child can be waited for");
        }
    }

    /// Stops the server as SIGKILL does: connections break in the middle of whatever they carried.
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

    /// Drops all of etcd's history before now and returns the revision that is kept.
    ///
    /// The server may still serve older watches from its watch cache: restart it, or run it with `--watch-cache=false`.
    pub(crate) fn compact(&self) -> u64 {
        self.run_json("compact", &[], None)["revision"].as_u64().expect("compact prints the revision")
    }

    /// Drops etcd's history before a revision, as [`Cluster::compact`] does.
    pub(crate) fn compact_before(&self, revision: u64) {
        self.run_json("compact", &["--revision", &revision.to_string()], None);
    }

    /// Runs the random workload to its end, for instance `&["--setup", "--ops=2000", "--seed=7"]`. What it did stands as
    /// one JSON object on stdout. It rides out restarts of the server of up to a minute and a half.
    pub(crate) fn churn(&self, args: &[&str]) -> Output {
        let output = self.command("churn", args).output().expect("the cluster binary runs");
        assert!(output.status.success(), "churn {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Starts the random workload and returns at once, so that the test can act in the middle of it.
    pub(crate) fn start_churn(&self, args: &[&str]) -> RunningChurn {
        let mut command = self.command("churn", args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        RunningChurn(Some(child.expect("the cluster binary runs")))
    }

    /// Returns what the server holds now of every type that can be listed and watched, in its group's preferred version,
    /// but for the types named (`leases.coordination.k8s.io`). As [`Cluster::dump`].
    pub(crate) fn dump_all(&self, except: &[&str]) -> Value {
        self.run_json("dump", &[&["--all"], except].concat(), None)
    }

    /// Returns what the server holds now of each resource (`pods`, `deployments.apps`):
    /// `{"pods": {"resourceVersion": "…", "items": {"namespace/name": {"uid": "…", "resourceVersion": "…"}}}}`.
    pub(crate) fn dump(&self, resources: &[&str]) -> Value {
        self.run_json("dump", resources, None)
    }

    /// Applies an object or a `List` (server-side, by force) and returns the object as it is now, of a list the last one.
    /// After a custom resource definition it returns when the type is served.
    pub(crate) fn apply(&self, object: &Value) -> Value {
        self.apply_yaml(&object.to_string()).pop().expect("apply prints what it applied")
    }

    /// Applies all YAML documents of a text and returns the objects as they are now.
    pub(crate) fn apply_yaml(&self, text: &str) -> Vec<Value> {
        let output = self.run("apply", &[], Some(text));
        output.lines().map(|line| serde_json::from_str(line).expect("apply prints a JSON object a line")).collect()
    }

    /// Sends a request as the administrator and returns the status and the body, whatever the status is.
    /// A PATCH is a merge patch. A body that is not one JSON value, such as a watch's lines, comes as a string.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.request_as(self.kubeconfig(), method, path, body)
    }

    /// Sends a request as [`Cluster::request`] does, but as the user of a kubeconfig.
    pub(crate) fn request_as(&self, kubeconfig: &Path, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let kubeconfig = kubeconfig.to_str().expect("paths of tests are UTF-8");
        let body = body.map_or_else(String::new, ToString::to_string);
        let mut answer = self.run_json("request", &["--kubeconfig", kubeconfig, method, path, "-"], Some(&body));
        let status = answer["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        (status.expect("request prints the status"), answer["body"].take())
    }

    /// Waits until the server allows the user of a kubeconfig what the resource attributes say, or refuses it. A new or changed
    /// role takes effect a moment after it was written.
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

    /// Writes a kubeconfig of the user that a token is of.
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

    /// Deletes the object at a path at once; that there is none is an error.
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
        // One that fails early does not read its stdin: its own message says more than the broken pipe.
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
            // By force: nobody needs what an orderly stop would take a second for.
            server.kill().ok();
            server.wait().ok();
        }
        if thread::panicking() {
            note(&format!("end of the API server's log:\n{}", end_of(&self.log_file())));
        }
    }
}

/// Returns what started, or says on stderr why the test is skipped and returns `None`.
///
/// # Panics
/// If something does not start although it was built, and on any reason to skip if `DELTABUS_REQUIRE_CLUSTER=1`.
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

/// Waits for the first line, by which a component says that it is ready; `None` where it ends without one.
pub(super) fn first_line(stdout: ChildStdout) -> Option<String> {
    let (send, line) = mpsc::channel();
    thread::spawn(move || send.send(BufReader::new(stdout).lines().next()));
    line.recv_timeout(START_TIMEOUT).ok()??.ok()
}

/// The last lines of a log.
pub(super) fn end_of(log: &Path) -> String {
    last_lines(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()), 20)
}

/// A workload in the background. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct RunningChurn(Option<Child>);

impl RunningChurn {
    /// Waits for the end of the workload and returns what it did.
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

/// The directory of one cluster, removed on drop. Its lock file tells a live one from one that a killed test left.
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
        // The removal of leftovers must not meet a directory that has no locked file yet.
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

/// Returns the binary of a package of the module (`.`, `living`), or `helm` of a module of its own, for its present sources,
/// after building it if it is not there.
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
    // Others wait here, and then find it built; what two binaries share is compiled once.
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

/// Without symbols (a third of the size), and with the version that Kubernetes' own build would write into `/version`.
fn linker_flags() -> String {
    let version = "k8s.io/component-base/version";
    format!("-s -w -X {version}.gitVersion=v1.36.3 -X {version}.gitMajor=1 -X {version}.gitMinor=36")
}

/// A hash over the sources of a package and the versions of all that it is built from.
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

/// Finds ports that nobody has, below those that the kernel gives out: each stays free while its server is restarted.
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

/// `target/cluster`, wherever the target directory is: Cargo gives test binaries `target/tmp`.
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

/// Writes a line to the process's own stderr: `eprintln!` would be captured by the test harness and shown on failure only.
pub(super) fn note(text: &str) {
    writeln!(io::stderr(), "{text}").ok();
}
