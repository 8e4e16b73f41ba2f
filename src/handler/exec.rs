//! Runs a program for each delivery: the events are lines on its standard input, its exit status is the answer.
//!
//! The program runs once per delivery, so that its exit confirms all events. If one run had to deliver several batches and crashed,
//! the state of their events would be unknown (E4). Use a larger `batch` if starting the program is too slow.

use std::{
    env,
    ffi::OsStr,
    io,
    os::unix::process::ExitStatusExt as _,
    pin::pin,
    process::{ExitStatus, Stdio},
    sync::Mutex,
    time::Duration,
};

use futures_util::future::{BoxFuture, Either, select};
use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::timeout,
};

use super::{AsyncHandler, Form, HandlerError};
use crate::{cloud_event::Formatter, mutex::lock, notification::Notification};

/// `EX_DATAERR` of sysexits.h: an event is invalid, and a retry would not help.
const REJECTED: i32 = 65;
/// Maximum number of bytes kept of a run's standard output, and of its standard error. The rest is read and discarded.
const OUTPUT_BYTES: usize = 8 << 10;
/// Maximum number of bytes of standard error that an error message shows; it shows the last bytes.
const TOLD_BYTES: usize = 512;
/// Environment variables of the engine that every program inherits.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];
/// Name in `env` that means all variables.
pub(crate) const ALL_VARIABLES: &str = "*";
/// Time to wait for the end of the output after the program has ended. Child processes may keep the output open.
const OUTPUT_TIME: Duration = Duration::from_secs(1);

/// Options of a handler of type `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ExecOptions {
    /// Program and its arguments, without a shell. A program without a slash is looked up in PATH. Required.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Names of further environment variables that the program gets from the engine; "*" means all. PATH, HOME, LANG and TZ
    /// are always passed.
    #[serde(default)]
    pub env: Vec<String>,
}

/// The handler of type `exec`.
///
/// Each delivery is a run: the events are written to standard input, one per line, and standard input is closed. Status
/// 0 means delivered. Status 65 (`EX_DATAERR`) means that an event is invalid. Any other status is a temporary failure.
/// A run that is cancelled is killed, with all processes of its group.
#[derive(Debug)]
pub(crate) struct Exec {
    options: ExecOptions,
    /// Name of the handler: `DELTABUS_HANDLER` in the program's environment.
    name: String,
    formatter: Formatter,
}

impl Exec {
    /// Makes a handler of this name. The program does not run before the first delivery.
    pub(crate) fn new(options: ExecOptions, name: &str, formatter: impl Into<Formatter>) -> Self {
        Self { options, name: name.to_owned(), formatter: formatter.into() }
    }

    fn program(&self) -> &str {
        self.options.command.first().map_or("", String::as_str)
    }

    fn start(&self, events: usize) -> io::Result<Child> {
        let is_passed = |name: &OsStr| {
            let named = self.options.env.iter().any(|wanted| wanted == ALL_VARIABLES || name == wanted.as_str());
            named || INHERITED.iter().any(|inherited| name == *inherited)
        };
        Command::new(self.program())
            .args(self.options.command.get(1..).unwrap_or_default())
            .env_clear()
            .envs(env::vars_os().filter(|(name, _)| is_passed(name)))
            .env("DELTABUS_HANDLER", &self.name)
            .env("DELTABUS_CLUSTER", self.formatter.encoder().cluster())
            .env("DELTABUS_EVENTS", events.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }

    async fn run(&self, lines: Vec<u8>, events: usize) -> Result<(), HandlerError> {
        let failed = |what: &str, error: io::Error| HandlerError::Failed(format!("{what} {}: {error}", self.program()));
        let mut child = self.start(events).map_err(|error| failed("cannot run", error))?;
        let mut group = Group::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A write error is ignored: the program may end before it reads everything, and its status is the result.
                drop(stdin.write_all(&lines).await);
            }
        };
        let work = async {
            let status = match select(pin!(child.wait()), pin!(feed)).await {
                Either::Left((status, _)) => status, // the program has ended, even if a child keeps the pipe open
                Either::Right(((), wait)) => wait.await,
            };
            if status.is_ok() {
                group.forget();
            }
            status
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let output = async { tokio::join!(read(stdout, &mut out), read(stderr, &mut err)) };
        let status = match select(pin!(work), pin!(output)).await {
            Either::Left((status, output)) => {
                // After this time, the output is what was read until then.
                timeout(OUTPUT_TIME, output).await.ok();
                status
            }
            Either::Right((_, work)) => work.await,
        };
        let status = status.map_err(|error| failed("cannot wait for", error))?;
        let [stdout, stderr] = [out, err].map(|output| String::from_utf8_lossy(&output).trim().to_owned());
        let handler = &self.name;
        if !stdout.is_empty() {
            tracing::info!(handler, "{}", stdout);
        }
        if status.success() && !stderr.is_empty() {
            tracing::warn!(handler, "{}", stderr);
        }
        self.verdict(status, &stderr)
    }

    /// Returns the result of a run.
    fn verdict(&self, status: ExitStatus, stderr: &str) -> Result<(), HandlerError> {
        let ended = match (status.code(), status.signal()) {
            (Some(0), _) => return Ok(()),
            (Some(code), _) => format!("ended with status {code}"),
            (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
        };
        let told = &stderr[stderr.ceil_char_boundary(stderr.len().saturating_sub(TOLD_BYTES))..];
        let separator = if told.is_empty() { "" } else { ": " };
        let text = format!("{} {ended}{separator}{told}", self.program());
        Err(if status.code() == Some(REJECTED) { HandlerError::Rejected(text) } else { HandlerError::Failed(text) })
    }
}

impl AsyncHandler for Exec {
    /// Delivers a batch. The form is ignored, because no event is too large for a program.
    fn deliver<'a>(&'a self, batch: &'a Notification, _: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            let mut lines = Vec::new();
            for event in batch.events() {
                self.formatter.line(&mut lines, event)?;
            }
            if lines.is_empty() { Ok(()) } else { self.run(lines, batch.events().len()).await }
        })
    }
}

/// Reads an output to its end, and appends its beginning to `kept`.
async fn read(output: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    let Some(mut output) = output else { return };
    let mut buffer = [0; 4 << 10];
    while let Ok(bytes @ 1..) = output.read(&mut buffer).await {
        let room = OUTPUT_BYTES - kept.len();
        kept.extend_from_slice(&buffer[..bytes.min(room)]);
    }
}

/// Process groups of all running programs.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Kills all running programs. Call this before the process exits without waiting for them.
pub(crate) fn kill_all() {
    for group in lock(&GROUPS).iter() {
        let _ended_before = kill_process_group(*group, Signal::KILL);
    }
}

/// Process group of a run. If this value is dropped before the run has ended, the group is killed.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        lock(&GROUPS).extend(group);
        Self(group)
    }

    /// Removes the process group from `GROUPS`, and returns the group. Returns `None` if the group was removed before.
    fn forget(&mut self) -> Option<Pid> {
        let group = self.0.take()?;
        lock(&GROUPS).retain(|running| *running != group);
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.forget() {
            let _ended_before = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{Cause, Change},
        cloud_event::Encoder,
        journal::{Record, Sequence, UnitId},
        notification::{Event, UnitInfo},
        object::{Object, ResourceType},
    };
    use std::{fs, path::Path, sync::Arc};

    fn notification(names: &[&str]) -> Notification {
        let resource = ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
        };
        let unit = Arc::new(UnitInfo { entry: "maps".to_owned(), resource, namespace: None });
        let event = |(at, name): (usize, &&str)| {
            let json = format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}}}}"#
            );
            let object = Object::from_json(json.as_bytes()).unwrap();
            let change = Change::Added { object, cause: Cause::Watch };
            let record =
                Record { sequence: Sequence(at as u64 + 1), unit: UnitId(0), time_micros: 0, change, old_lost: false };
            Event { unit: Arc::clone(&unit), record }
        };
        Notification::new(names.iter().enumerate().map(event).collect())
    }

    fn exec(command: &[&str]) -> Exec {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Exec::new(ExecOptions { command, env: Vec::new() }, "script", Encoder::new("test", "0"))
    }

    fn shell(script: &str) -> Exec {
        exec(&["sh", "-c", script])
    }

    async fn deliver(exec: &Exec, names: &[&str]) -> Result<(), HandlerError> {
        exec.deliver(&notification(names), Form::Whole).await
    }

    fn names(file: &Path) -> Vec<String> {
        let text = fs::read_to_string(file).unwrap();
        let name = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone();
        text.lines().map(|line| name(line).as_str().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn run_gets_one_line_per_event() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, about) = (dir.path().join("lines"), dir.path().join("about"));
        let script = format!(
            "cat >{}; echo $DELTABUS_HANDLER $DELTABUS_CLUSTER $DELTABUS_EVENTS >{}",
            lines.display(),
            about.display()
        );
        deliver(&shell(&script), &["a", "b"]).await.unwrap();
        assert_eq!(names(&lines), ["a", "b"]);
        assert_eq!(fs::read_to_string(about).unwrap(), "script test 2\n");
    }

    #[tokio::test]
    async fn exit_status_decides_outcome_and_stderr_is_reported() {
        assert_eq!(deliver(&shell("exit 0"), &["a"]).await, Ok(()), "a program need not read its input");
        let failed = deliver(&shell("cat >/dev/null; echo no such host >&2; exit 3"), &["a"]).await;
        assert_eq!(failed, Err(HandlerError::Failed("sh ended with status 3: no such host".to_owned())));
        let rejected = deliver(&shell("exit 65"), &["a"]).await;
        assert_eq!(rejected, Err(HandlerError::Rejected("sh ended with status 65".to_owned())));
        let killed = deliver(&shell("kill -9 $$"), &["a"]).await;
        assert_eq!(killed, Err(HandlerError::Failed("sh was killed by signal 9".to_owned())));
        let missing = deliver(&exec(&["/no/such/program"]), &["a"]).await;
        let Err(HandlerError::Failed(why)) = missing else { panic!("{missing:?}") };
        assert!(why.starts_with("cannot run /no/such/program: No such file"), "{why}");
    }

    #[tokio::test]
    async fn large_input_and_output_do_not_deadlock() {
        let many: Vec<String> = (0..5_000).map(|number| format!("object-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(deliver(&shell("tee /dev/stderr"), &many).await, Ok(()));
    }

    #[tokio::test]
    async fn background_child_does_not_delay_the_run() {
        assert_eq!(deliver(&shell("sleep 60 & exit 0"), &["a"]).await, Ok(()));
    }

    #[tokio::test]
    async fn child_holding_output_hides_no_message() {
        let failed = deliver(&shell("cat >/dev/null; echo WHY >&2; sleep 60 & exit 3"), &["a"]).await;
        assert_eq!(failed, Err(HandlerError::Failed("sh ended with status 3: WHY".to_owned())));
    }

    #[tokio::test]
    async fn child_holding_unread_input_delays_nothing() {
        let many: Vec<String> = (0..5_000).map(|number| format!("object-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let exec = shell("exec 3<&0; (sleep 60 <&3) & exit 0");
        let delivered = timeout(Duration::from_secs(30), deliver(&exec, &many)).await;
        assert_eq!(delivered, Ok(Ok(())), "the exit status confirms the delivery");
    }

    #[tokio::test]
    async fn cancelled_run_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let exec = shell(&format!("sleep 600 & echo $! $$ >{}.new; mv {0}.new {0}; wait", pids.display()));
        let events = notification(&["a"]);
        {
            let run = exec.deliver(&events, Form::Whole);
            tokio::pin!(run);
            while !pids.exists() {
                assert!(timeout(Duration::from_millis(5), &mut run).await.is_err(), "the program waits for its child");
            }
        }
        let text = fs::read_to_string(&pids).unwrap();
        let is_gone = |pid: &str| {
            // a zombie has ended, but its parent has not reaped it yet
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
        };
        let all_gone = async {
            while !text.split_whitespace().all(is_gone) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(timeout(Duration::from_secs(20), all_gone).await.is_ok(), "{text}");
    }
}
