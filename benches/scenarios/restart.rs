//! Performance of a state directory: start with a saved cache, backlog read from disk, and latency of a change compared
//! with that of the disk.

use std::{
    env,
    fs::File,
    io::{Read, Write, stdin},
    net::TcpStream,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use deltabus::internals::{
    bench::{Generator, ReplayServer, Shape, measure},
    config::{Config, HandlerOptions},
    delivery::status::Control,
    engine::Engine,
    handler::HandlerError,
    list_watch::kube::ClusterAccess,
    notification::Notification,
    simulator::{Simulator, SimulatorOptions},
};
use serde_json::json;

use crate::harness::{Length, Outcome, Player, SMOKE, float, is_drained, now, percentile, start_engine, until};

/// Time between two changes, in which the engine becomes idle.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Diverse pods of 9 KB; 200,000, or a tenth of it for a short run
    #[arg(long)]
    pods: Option<u64>,
    #[command(flatten)]
    length: Length,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let dir = tempfile::tempdir_in(env::current_dir()?)?; // on a disk: /tmp may be in memory
    restart(args.pods.unwrap_or(args.length.tenth(200_000)), dir.path())?;
    latencies(500 / SMOKE, dir.path())
}

/// Stops and starts an engine that watches pods.
fn restart(pods: u64, dir: &Path) -> Outcome<()> {
    let server = ReplayServer::start(Generator::new(Shape::Diverse, pods, 1))?;
    let dir = dir.join("restart").display().to_string();
    let engine = |how: &str| Player::start("restart", &[server.url(), pods.to_string(), dir.clone(), how.to_owned()]);
    println!("| {pods} pods of 9 KB | s | s CPU | resident MB | events/s |\n|---|---|---|---|---|");
    let line = |title: &str, [wall, cpu, resident, events]: [u64; 4]| {
        let seconds = |nanos: u64| float(nanos) / 1e9;
        let rate = if events == 0 { "–".to_owned() } else { format!("{:.0}", float(events) / seconds(wall)) };
        println!("| {title} | {:.2} | {:.2} | {} | {rate} |", seconds(wall), seconds(cpu), resident >> 20);
    };
    let mut first = engine("first")?;
    line("first list", first.numbers()?);
    server.release(pods);
    line("as many updates, to the state: their handler is paused", first.numbers()?);
    first.tell("stop")?;
    line("clean stop", first.numbers()?);
    drop(first);
    let mut second = engine("again")?;
    line("start: all of it can be read, and the watch goes on", second.numbers()?);
    line("what waited is delivered, from disk", second.numbers()?);
    Ok(())
}

/// A phase of the measured engine.
struct Lap {
    began: Instant,
    cpu: u64,
}

impl Lap {
    fn start() -> Self {
        Self { began: now(), cpu: measure::cpu() }
    }

    fn end(self, events: u64) {
        let spent = measure::cpu() - self.cpu;
        println!("{} {spent} {} {events}", self.began.elapsed().as_nanos(), measure::resident());
    }
}

/// Runs the measured engine.
pub(crate) fn engine(url: &str, pods: u64, dir: &str, is_first: bool) -> Outcome<()> {
    let access = ClusterAccess::without_credentials(url, "bench")?;
    let config =
        format!("[resources.all]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"blackhole\"\n[state]\ndir = {dir:?}");
    actix::System::new().block_on(async {
        let lap = Lap::start();
        let engine = start_engine(access, &config).await?;
        engine.wait_for_sync().await;
        let view = || engine.registry().views().swap_remove(0);
        let left = engine.handlers().iter().map(|handler| handler.queued).sum();
        assert_eq!(view().objects, pods);
        lap.end(0);
        if is_first {
            engine.control_handler("out", Control::Pause)?;
            let updated = || view().events.updated;
            until(|| updated() > 0).await;
            let (lap, before) = (Lap::start(), updated());
            until(|| updated() >= pods).await;
            lap.end(pods - before);
            stdin().read_line(&mut String::new())?;
            let lap = Lap::start();
            engine.stop().await;
            lap.end(0);
        } else {
            let lap = Lap::start();
            until(|| is_drained(&engine)).await;
            lap.end(left);
        }
        Ok(())
    })
}

/// Times single changes, one at a time.
fn latencies(changes: u64, dir: &Path) -> Outcome<()> {
    println!("\n| a change at rest, {changes} times | p50 µs | p99 µs |\n|---|---|---|");
    let line = |title: &str, mut took: Vec<u64>| {
        println!("| {title} | {} | {} |", percentile(&mut took, 50), percentile(&mut took, 99));
    };
    line("in memory, from the API server's store to a handler", to_handler(changes, None)?);
    line("with a state directory", to_handler(changes, Some(&dir.join("latency")))?);
    line("of that to a bare socket", to_socket(changes)?);
    line("the disk alone: 4 KiB appended and `fdatasync`", to_disk(changes, dir)?);
    Ok(())
}

/// Makes one change after another, each after a pause; `arrived` waits for it.
fn changes(simulator: &Simulator, changes: u64, mut arrived: impl FnMut() -> Outcome<Instant>) -> Outcome<Vec<u64>> {
    let change = |value: u64| {
        thread::sleep(PAUSE);
        let object = json!({"metadata": {"namespace": "default", "name": "one"}, "data": {"value": value.to_string()}});
        let began = now();
        simulator.store().put("configmaps", object)?;
        micros(arrived()?.saturating_duration_since(began))
    };
    (1..=changes).map(change).collect()
}

fn micros(took: Duration) -> Outcome<u64> {
    Ok(u64::try_from(took.as_micros())?)
}

/// Measures the latency to a handler. The engine runs on a thread of this process, so that both share a clock.
fn to_handler(count: u64, dir: Option<&Path>) -> Outcome<Vec<u64>> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    let access = ClusterAccess::without_credentials(&simulator.url(), "bench")?;
    let mut config = Config::from_toml_str("[resources.all]\nmatch = [\"configmaps\"]")?;
    config.http.listen = None;
    config.state.dir = dir.map(Path::to_owned);
    let (tell, told) = mpsc::channel();
    let (tell_synced, synced) = mpsc::channel();
    let on_change = move |notification: &Notification| {
        let arrived = now();
        let mut events = notification.events().iter();
        events.try_for_each(|_| tell.send(arrived)).map_err(|error| HandlerError::Failed(error.to_string()))
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let engine = thread::spawn(move || {
        actix::System::new().block_on(async {
            let builder = Engine::builder().config(config).cluster(access);
            let builder = builder.on_change("out", HandlerOptions::default(), on_change);
            let engine = builder.start().await.expect("it starts");
            engine.wait_for_sync().await;
            tell_synced.send(()).expect("somebody waits");
            drop(stopped.await);
            engine.stop().await;
        });
    });
    synced.recv()?;
    let took = changes(&simulator, count, || Ok(told.recv()?))?;
    drop(stop);
    engine.join().map_err(|_| "the engine has panicked")?;
    Ok(took)
}

/// Measures the latency to a bare socket: the part that precedes the engine.
fn to_socket(count: u64) -> Outcome<Vec<u64>> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    let address = simulator.url().trim_start_matches("http://").to_owned();
    let mut socket = TcpStream::connect(&address)?;
    let watch = "/api/v1/configmaps?watch=true&timeoutSeconds=600";
    write!(socket, "GET {watch} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    let (tell, told) = mpsc::channel();
    thread::spawn(move || while matches!(socket.read(&mut buffer), Ok(1..)) && tell.send(now()).is_ok() {});
    thread::sleep(PAUSE * 10);
    told.try_iter().for_each(drop); // the head
    changes(&simulator, count, || Ok(told.recv()?))
}

fn to_disk(writes: u64, dir: &Path) -> Outcome<Vec<u64>> {
    let mut file = File::create(dir.join("alone"))?;
    let mut write = || {
        thread::sleep(PAUSE);
        let began = now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        micros(began.elapsed())
    };
    (0..writes).map(|_| write()).collect()
}
