//! `deltabus run` as a separate process, as a user runs it.
#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::stream::State;

/// A running engine; killed when dropped.
pub(crate) struct Engine {
    child: Child,
    /// Address of its HTTP server.
    pub(crate) http: String,
    log: Arc<Mutex<String>>,
    /// Thread that copies its stderr into the log until the end.
    copying: thread::JoinHandle<()>,
}

impl Engine {
    /// Writes `config` into `dir` and runs it, with `[http]` on a free port.
    pub(crate) fn run(dir: &Path, config: &str) -> Self {
        Self::configure(dir, config);
        Self::spawn(&["run", "-c", &text(dir, "config.toml")])
    }

    /// Replaces the configuration of [`Engine::run`] atomically.
    pub(crate) fn configure(dir: &Path, config: &str) {
        let unfinished = dir.join("config.unfinished");
        let config = format!("{config}\n[http]\nlisten = \"127.0.0.1:0\"\n");
        fs::write(&unfinished, config).expect("the directory is writable");
        fs::rename(unfinished, dir.join("config.toml")).expect("the directory is writable");
    }

    /// Runs the existing configuration in `dir`, with further environment variables.
    pub(crate) fn run_again(dir: &Path, environment: &[(&'static str, PathBuf)]) -> Self {
        Self::spawn_to(&["run", "-c", &text(dir, "config.toml")], Stdio::null(), environment)
    }

    /// Runs a configuration whose handlers run programs; see [`Engine::run_again`].
    pub(crate) fn run_allowing_programs(dir: &Path, environment: &[(&'static str, PathBuf)]) -> Self {
        Self::spawn_to(&["run", "--allow-exec", "-c", &text(dir, "config.toml")], Stdio::null(), environment)
    }

    /// Runs the existing configuration with stdout appended to a file; see [`Engine::run_again`].
    pub(crate) fn run_again_to(dir: &Path, environment: &[(&'static str, PathBuf)], stdout: &Path) -> Self {
        let stdout = fs::File::options().create(true).append(true).open(stdout).expect("the directory is writable");
        Self::spawn_to(&["run", "-c", &text(dir, "config.toml")], stdout.into(), environment)
    }

    /// Runs the binary with `args` and waits until it has logged its address.
    pub(crate) fn spawn(args: &[&str]) -> Self {
        Self::spawn_to(args, Stdio::null(), &[])
    }

    /// Runs the binary with stdout into a file; see [`Engine::spawn`].
    pub(crate) fn spawn_writing(args: &[&str], stdout: &Path) -> Self {
        Self::spawn_to(args, fs::File::create(stdout).expect("the directory is writable").into(), &[])
    }

    fn spawn_to(args: &[&str], stdout: Stdio, environment: &[(&'static str, PathBuf)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
        command.args(args).envs(environment.iter().map(|(name, value)| (name, value))).stdout(stdout);
        Self::spawn_command(command)
    }

    /// Runs a command that becomes the program, and waits until it has logged its address.
    pub(crate) fn spawn_command(mut command: Command) -> Self {
        let command = command.env("NO_COLOR", "1").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary was built with the tests");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let log = Arc::new(Mutex::new(String::new()));
        let (found, address) = std::sync::mpsc::channel();
        let copy = Arc::clone(&log);
        let copying = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let served = line.split_once("http://").or_else(|| line.split_once("serving https://"));
                if let Some((_, rest)) = served {
                    drop(found.send(rest.split(['"', '/', ' ', ',']).next().unwrap_or_default().to_owned()));
                }
                let mut copy = copy.lock().expect("not poisoned");
                copy.push_str(&line);
                copy.push('\n');
            }
        });
        let http = address.recv_timeout(Duration::from_mins(1));
        let mut engine = Self { child, http: String::new(), log, copying };
        engine.http = http.unwrap_or_else(|_| panic!("the engine never said where it listens:\n{}", engine.log()));
        engine
    }

    /// Returns its stderr so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("not poisoned").clone()
    }

    /// Waits for a text in its stderr.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "the engine never wrote {text:?}:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns a handle to its stderr, which is valid after its end.
    pub(crate) fn log_handle(&self) -> Arc<Mutex<String>> {
        Arc::clone(&self.log)
    }

    /// GETs a path; returns the status code and the body.
    pub(crate) fn get(&self, path: &str) -> std::io::Result<(u16, String)> {
        let answer = request(&self.http, "GET", path, &[])?;
        Ok((answer.code, answer.body))
    }

    /// GETs a path as JSON; panics if the answer is not JSON.
    pub(crate) fn json(&self, path: &str) -> Value {
        let (code, body) = self.get(path).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.log()));
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {code}: {error}: {body}"))
    }

    /// Returns the cached objects of all types; an error if one type is not readable now.
    pub(crate) fn cached(&self) -> Result<State, String> {
        let mut state = State::new();
        for (resource, path) in self.watched() {
            let accept = ("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
            let answer = request(&self.http, "GET", &path, &[accept]).map_err(|error| format!("{path}: {error}"))?;
            if answer.code != 200 {
                return Err(format!("{path}: {}: {}", answer.code, answer.body));
            }
            for item in answer.json()["items"].as_array().expect("a list has items") {
                let field = |name: &str| item["metadata"][name].as_str().unwrap_or_default().to_owned();
                let key = format!("{resource}/{}/{}", field("namespace"), field("name"));
                state.insert(key, (field("uid"), field("resourceVersion")));
            }
        }
        Ok(state)
    }

    /// Returns the types that it watches or will watch: `plural.group` → the path of their list.
    pub(crate) fn watched(&self) -> BTreeMap<String, String> {
        let mut types = BTreeMap::new();
        for row in self.json("/v1/resources")["resources"].as_array().expect("a list of rows") {
            let text = |key: &str| row[key].as_str().unwrap_or_default();
            let (version, plural) = (text("apiVersion"), text("plural"));
            if matches!(text("state"), "waiting" | "forbidden" | "stopped") || version.is_empty() {
                continue;
            }
            match version.split_once('/') {
                Some((group, _)) => types.insert(format!("{plural}.{group}"), format!("/apis/{version}/{plural}")),
                None => types.insert(plural.to_owned(), format!("/api/{version}/{plural}")),
            };
        }
        types
    }

    /// Waits until `/readyz` answers 200.
    pub(crate) fn wait_ready(&self, timeout: Duration) {
        self.wait_for("ready", timeout, || matches!(self.get("/readyz"), Ok((200, _))));
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait_for(&self, what: &str, timeout: Duration, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + timeout;
        let mut pause = Duration::from_millis(5);
        while !condition() {
            if Instant::now() > deadline {
                let resources = self.get("/v1/resources").map(|(_, body)| body).unwrap_or_default();
                panic!("not {what} within {timeout:?}\n{resources}\n{}", self.log());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Returns the probes' address, once the log has it.
    pub(crate) fn probes(&self) -> String {
        self.wait_for_log("(probes)");
        let log = self.log();
        let line = log.lines().find(|line| line.contains("(probes)")).expect("it was just there");
        let (_, rest) = line.split_once("http://").expect("the line has the address");
        rest.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal, such as `-HUP`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill works");
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal("-TERM");
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours") {
                let log = self.whole_log();
                assert!(!log.contains("left a hung actor behind"), "a stop leaves no actor behind:\n{log}");
                return status;
            }
            assert!(Instant::now() < deadline, "the engine did not stop on SIGTERM:\n{}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the engine, and returns its stderr.
    pub(crate) fn kill(mut self) -> String {
        drop(self.child.kill());
        drop(self.child.wait());
        self.whole_log()
    }

    /// Returns the stderr of a process that has ended.
    fn whole_log(&self) -> String {
        // another process may hold its stderr open, so the copying may never end
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.copying.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        self.log()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            eprintln!("--- log of the engine ---\n{}", self.log());
        }
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) code: u16,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: String,
}

impl Answer {
    /// Returns the first header with this lower-case name; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Returns the body as JSON; panics if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{}: {error}: {}", self.code, self.body))
    }
}

/// Sends a request without a body over a new connection.
pub(crate) fn request(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_mins(1)))?;
    let headers: String = headers.iter().flat_map(|(name, value)| [name, ": ", value, "\r\n"]).collect();
    // HTTP/1.0: a body of unknown length ends with the connection, not in chunks
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let mut lines = head.lines();
    let code = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Ok(Answer { code, headers, body: body.to_owned() })
}

/// Returns a path below `dir` as text for a configuration file.
pub(crate) fn text(dir: &Path, name: &str) -> String {
    let path: PathBuf = dir.join(name);
    path.to_str().expect("temporary paths are text").to_owned()
}
