//! Processes of a scenario, and their resource usage.

use std::{
    env,
    error::Error,
    future::Future,
    io::{BufRead, BufReader, Write, stdin},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use deltabus::internals::{
    bench::{measure, report::number},
    config::Config,
    engine::{Engine, RunningEngine},
    list_watch::kube::ClusterAccess,
};
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::mpsc;

/// Divisor of the work in a debug build, which only shows that a scenario runs.
pub(crate) const SMOKE: u64 = if cfg!(debug_assertions) { 100 } else { 1 };
/// Wait for an engine to become idle before its memory is measured.
pub(crate) const REST: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Length of a scenario.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Length {
    /// Run each row once, with less work where a run takes minutes
    #[arg(long)]
    pub(crate) short: bool,
    /// Runs of each row; the table has their medians
    #[arg(long)]
    rounds: Option<usize>,
}

impl Length {
    /// Returns the number of runs of each row.
    pub(crate) fn rounds(self) -> usize {
        self.rounds.unwrap_or(if self.short { 1 } else { 3 }).max(1)
    }

    /// Returns `full`, or a tenth of it for a short run.
    pub(crate) fn tenth(self, full: u64) -> u64 {
        if self.short { full / 10 } else { full }
    }
}

/// Another process, controlled by lines of text; killed when dropped.
pub(crate) struct Player {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Player {
    /// Starts this program again in a role.
    pub(crate) fn start(role: &str, args: &[String]) -> Outcome<Self> {
        Self::spawn(Command::new(env::current_exe()?).args(["role", role]).args(args))
    }

    /// Starts any program that is controlled by lines of text.
    pub(crate) fn spawn(command: &mut Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let hears = child.stdin.take().ok_or("no stdin")?;
        Ok(Self { child, says, hears })
    }

    /// Waits for the next line.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        if line.is_empty() { Err("a process of the bench has ended".into()) } else { Ok(line.trim().to_owned()) }
    }

    /// Waits for a line of numbers.
    pub(crate) fn numbers<const N: usize>(&mut self) -> Outcome<[u64; N]> {
        let line = self.line()?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        numbers.try_into().map_err(|_| format!("unexpected line {line:?}").into())
    }

    /// Waits for the end of a phase: [`Meter::report`].
    pub(crate) fn phase(&mut self) -> Outcome<Phase> {
        let [cpu, wall, resident, used, written] = self.numbers()?;
        let [cpu, wall] = [cpu, wall].map(Duration::from_nanos);
        Ok(Phase { cpu, wall, resident, used, written })
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome<()> {
        Ok(writeln!(self.hears, "{line}")?)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Reads stdin on a separate thread; the channel ends with stdin.
pub(crate) fn orders() -> mpsc::UnboundedReceiver<String> {
    let (lines, orders) = mpsc::unbounded_channel();
    thread::spawn(move || stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    orders
}

/// Resource usage of one phase of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// CPU time of all threads.
    pub(crate) cpu: Duration,
    /// Time from the first sign of the phase to its end.
    pub(crate) wall: Duration,
    /// Resident bytes of the process.
    pub(crate) resident: u64,
    /// Bytes known to be in use: bodies of an engine, or the heap of a Go process after a collection. 0 if unknown.
    pub(crate) used: u64,
    /// Bytes written to disks; rewritten bytes count again.
    pub(crate) written: u64,
}

/// Resource usage of a process that receives all objects, then events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) sync: Phase,
    pub(crate) events: Phase,
}

/// Medians of several runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Microseconds of CPU per event.
    pub(crate) an_event: f64,
    /// Microseconds of CPU per object.
    pub(crate) an_object: f64,
    /// Bytes per object.
    pub(crate) resident_at_sync: f64,
    /// Bytes per object.
    pub(crate) resident: f64,
    /// Bytes per object: bodies of deltabus, live heap of Go.
    pub(crate) used: f64,
    /// Events per second.
    pub(crate) rate: f64,
    /// Bytes per event.
    pub(crate) written: f64,
}

impl Figures {
    /// Returns the medians, per object and per event.
    pub(crate) fn of(runs: &[Run], objects: u64, events: u64) -> Self {
        let of = |figure: &dyn Fn(&Run) -> f64| median(runs.iter().map(figure).collect());
        let micros = |phase: &Phase, count: u64| phase.cpu.as_secs_f64() * 1e6 / float(count);
        Self {
            an_event: of(&|run| micros(&run.events, events)),
            an_object: of(&|run| micros(&run.sync, objects)),
            resident_at_sync: of(&|run| float(run.sync.resident) / float(objects)),
            resident: of(&|run| float(run.events.resident) / float(objects)),
            used: of(&|run| float(run.events.used) / float(objects)),
            rate: of(&|run| float(events) / run.events.wall.as_secs_f64()),
            written: of(&|run| float(run.events.written) / float(events)),
        }
    }
}

/// Resource usage of this process at the start of a phase.
pub(crate) struct Meter {
    cpu: u64,
    written: u64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { cpu: measure::cpu(), written: measure::written() }
    }

    /// Prints the resource usage of a phase of duration `wall`, for [`Player::phase`], and starts the next phase.
    pub(crate) fn report(&mut self, wall: Duration, used: u64) {
        let (cpu, written) = (measure::cpu(), measure::written());
        let (spent, more) = (cpu - self.cpu, written - self.written);
        println!("{spent} {} {} {used} {more}", wall.as_nanos(), measure::resident());
        *self = Self { cpu, written };
    }
}

/// One core for the measured process; this process uses the others.
pub(crate) struct Core {
    one: CpuSet,
    others: CpuSet,
}

impl Core {
    /// Reserves the first core that this process may use. If there is only one, both processes share it.
    pub(crate) fn reserve() -> Outcome<Self> {
        let mut others = sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| others.is_set(*cpu)).ok_or("no core may be used")?;
        if others.count() > 1 {
            others.unset(first);
        }
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &others)?;
        Ok(Self { one, others })
    }

    /// Starts a process that runs only on this core.
    pub(crate) fn start(&self, role: &str, args: &[String]) -> Outcome<Player> {
        sched_setaffinity(None, &self.one)?;
        let player = Player::start(role, args);
        sched_setaffinity(None, &self.others)?;
        player
    }
}

/// Starts an engine as `deltabus run` does, without HTTP.
pub(crate) async fn start_engine(access: ClusterAccess, config: &str) -> Outcome<RunningEngine> {
    let mut config = Config::from_toml_str(config)?;
    config.http.listen = None;
    Ok(Engine::builder().config(config).cluster(access).start().await?)
}

/// Waits until a condition holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns true if no event is queued for a handler.
pub(crate) fn is_drained(engine: &RunningEngine) -> bool {
    engine.handlers().iter().all(|handler| handler.queued == 0)
}

/// Runs an engine with one entry over objects and then updates; reports both phases.
pub(crate) fn observe(access: ClusterAccess, config: &str, objects: u64, events: u64) -> Outcome<()> {
    let mut meter = Meter::start();
    actix::System::new().block_on(async {
        let began = now();
        let engine = start_engine(access, config).await?;
        engine.wait_for_sync().await;
        let wall = began.elapsed();
        actix_rt::time::sleep(REST).await;
        let view = || engine.registry().views().swap_remove(0);
        assert_eq!(view().objects, objects);
        meter.report(wall, view().bytes);
        let updated = || view().events.updated;
        until(|| updated() > 0).await;
        let began = now();
        until(|| updated() >= events && is_drained(&engine)).await;
        let wall = began.elapsed();
        actix_rt::time::sleep(REST).await;
        meter.report(wall, view().bytes);
        Ok(())
    })
}

/// Serves HTTP/1.1 on a separate thread; returns the URL.
pub(crate) fn serve<F, R>(answer: F) -> Outcome<String>
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Result<Response<Full<Bytes>>, Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let url = format!("http://{}/", listener.local_addr()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("an open socket");
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(answer.clone());
                // disconnecting clients are part of the scenario
                drop(tokio::spawn(async move {
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                }));
            }
        });
    });
    Ok(url)
}

/// Returns microseconds since the Unix epoch: a clock that all processes share.
pub(crate) fn micros() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
    let now = SystemTime::now();
    now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns a percentile of the values; 0 if there are none.
pub(crate) fn percentile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    values.get((values.len() * percent / 100).min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "figures of a table")]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

/// Rounds, and adds thousands separators.
pub(crate) fn thousands(value: f64) -> String {
    number(value, 0)
}
