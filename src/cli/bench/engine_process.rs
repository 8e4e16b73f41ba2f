//! Child process with the measured engine: this program with `--engine`. The child reads orders from its stdin and writes answers
//! to its stdout, as lines of JSON.

use std::{
    env,
    io::{self, BufRead as _, Write as _},
    path::PathBuf,
    process::{self, Stdio},
    thread,
    time::Duration,
};

use crate::{
    bench::{
        Probe, ProbeError,
        orders::{EngineAnswer, EngineOptions, EngineOrder},
        report::grouped,
    },
    config::{Log, LogLevel},
};
use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use serde::{Serialize, de::DeserializeOwned};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};

use super::BenchArgs;
use crate::cli::terminal;

/// Capacity of the queue of orders.
const ORDERS: usize = 16;
/// Duration of one measurement of the rate of reads. The engine process repeats one kind of read for this time.
const READ: Duration = Duration::from_secs(1);

/// Child process with an engine. Dropping this value kills the child. The child also ends when its parent ends.
pub(super) struct EngineProcess {
    answers: Lines<BufReader<ChildStdout>>,
    orders: ChildStdin,
    child: Child,
    progress: ProgressBar,
    /// State directory, which is removed after the child has ended.
    _state: Option<TempDir>,
}

impl EngineProcess {
    /// Starts a child process with an engine that watches one type of a server. Ctrl-c on the terminal does not reach the child.
    pub(super) fn start(
        args: &BenchArgs,
        server: String,
        resource: String,
        indexes: Vec<String>,
        progress: &ProgressBar,
    ) -> anyhow::Result<Self> {
        let state_in = |place: PathBuf| {
            let made = tempfile::Builder::new().prefix("deltabus-bench-").tempdir_in(&place);
            made.with_context(|| format!("failed to create a directory in {} (--state)", place.display()))
        };
        let place = args.state.clone().map(|place| place.unwrap_or_else(env::temp_dir));
        let dir = place.map(state_in).transpose()?;
        let (compression, keep_all) = (args.compression.clone(), args.keep_all);
        let state = dir.as_ref().map(|dir| dir.path().join("state"));
        let options = EngineOptions { server, resource, compression, keep_all, indexes, state };
        let program = env::current_exe().context("failed to find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["bench", "--engine", &serde_json::to_string(&options)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let mut child = command.spawn().context("failed to start the engine process")?;
        let (Some(answers), Some(orders)) = (child.stdout.take(), child.stdin.take()) else {
            bail!("the engine process has no pipes");
        };
        let (answers, progress) = (BufReader::new(answers).lines(), progress.clone());
        Ok(Self { answers, orders, child, progress, _state: dir })
    }

    /// Sends an order to the engine process, and waits for the first result of the order.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, order: &EngineOrder, phase: &str) -> anyhow::Result<T> {
        let line = format!("{}\n", serde_json::to_string(order)?);
        self.orders.write_all(line.as_bytes()).await.context("the engine process has ended")?;
        self.result(phase).await
    }

    /// Waits for the next result of the engine process. While it waits, shows `phase` and the progress.
    pub(super) async fn result<T: DeserializeOwned>(&mut self, phase: &str) -> anyhow::Result<T> {
        self.progress.set_message(phase.to_owned());
        loop {
            let Some(line) = self.answers.next_line().await? else {
                bail!("the engine process has ended: {}", self.child.wait().await?);
            };
            let answer = serde_json::from_str::<EngineAnswer>(&line);
            match answer.with_context(|| format!("unexpected answer of the engine process: {line:?}"))? {
                EngineAnswer::Progress { done, wrong } => {
                    // The count stays 0 until the sync ends if all objects arrive only then. A count of 0 is not shown.
                    let count = if done > 0 { format!(", {}", grouped(done)) } else { String::new() };
                    let wrong = wrong.map_or_else(String::new, |wrong| format!(" ({wrong})"));
                    self.progress.set_message(format!("{phase}{count}{wrong}"));
                }
                EngineAnswer::Failed(error) => bail!(error),
                EngineAnswer::Done(result) => return Ok(serde_json::from_value(result)?),
            }
        }
    }
}

/// Runs an engine in this process, and executes orders until stdin is closed.
pub(super) fn run(options: &EngineOptions) -> anyhow::Result<()> {
    terminal::start(&Log { level: LogLevel::Error, ..Log::default() });
    let orders = orders();
    actix::System::new().block_on(async {
        match execute(options, orders).await {
            Err(error) if error.is::<ProbeError>() => answer(&EngineAnswer::Failed(error.to_string())),
            ended => ended,
        }
    })
}

/// Starts a thread that reads orders from stdin. At the end of stdin, this thread ends the process.
fn orders() -> mpsc::Receiver<EngineOrder> {
    let (sender, receiver) = mpsc::channel(ORDERS);
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let order = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if order.is_none_or(|order| sender.blocking_send(order).is_err()) {
                break;
            }
        }
        process::exit(0);
    });
    receiver
}

async fn execute(options: &EngineOptions, mut orders: mpsc::Receiver<EngineOrder>) -> anyhow::Result<()> {
    let mut probe = Probe::start(options).await?;
    // A failure to report progress is ignored: the next answer fails too, and that failure is returned.
    let tell = |done, wrong| drop(answer(&EngineAnswer::Progress { done, wrong }));
    let synced = probe.synced(tell).await?;
    done(&synced)?;
    while let Some(order) = orders.recv().await {
        match order {
            EngineOrder::Reach(version) => {
                probe.begin();
                done(&())?;
                done(&probe.reached(version, |done| tell(done, None)).await?)?;
            }
            EngineOrder::Follow(millis) => {
                probe.begin();
                done(&probe.follow(Duration::from_millis(millis), |done| tell(done, None)).await?)?;
            }
            EngineOrder::Note(version) => {
                probe.note();
                done(&())?;
                done(&probe.arrivals(version).await)?;
            }
            EngineOrder::Read { by_key_only } => done(&probe.read(READ, by_key_only).await?)?,
        }
    }
    probe.stop().await;
    Ok(())
}

fn done(result: &impl Serialize) -> anyhow::Result<()> {
    answer(&EngineAnswer::Done(serde_json::to_value(result)?))
}

fn answer(answer: &EngineAnswer) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(answer)?)?;
    Ok(stdout.flush()?)
}
