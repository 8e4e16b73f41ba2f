//! What the processes do.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock, and waits by it")]

use std::{
    error::Error,
    fs::File,
    io::{Read, Write, stdin},
    net::TcpStream,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use deltabus::{
    config::{Config, HandlerOptions},
    delivery::status::Control,
    engine::{Engine, RunningEngine},
    handler::HandlerError,
    list_watch::kube::ClusterAccess,
    notification::Notification,
    simulator::{Simulator, SimulatorOptions},
};
use serde_json::json;

use crate::{
    Outcome,
    support::{
        measure::{cpu, resident},
        simulated::{SIMULATOR, simulator},
    },
};

const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Between two changes: the engine comes to rest.
const REST: Duration = Duration::from_millis(20);

/// Plays a role to its end.
pub(crate) fn play(role: &str, args: &[String]) -> Outcome<()> {
    match (role, args) {
        (SIMULATOR, [pods, diverse]) => simulator(pods.parse()?, diverse.parse()?),
        ("engine", [url, pods, dir, how]) => engine(url, pods.parse()?, dir, how == "first"),
        ("latency", [changes, dir]) => latency(changes.parse()?, dir),
        ("socket", [changes]) => socket(changes.parse()?),
        ("disk", [writes, dir]) => disk(writes.parse()?, Path::new(dir)),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

/// As `deltabus run` has it; no HTTP server.
fn config(resource: &str, dir: &str, handlers: &str) -> Outcome<Config> {
    let state = if dir.is_empty() { String::new() } else { format!("[state]\ndir = {dir:?}\n") };
    let mut config = Config::from_toml_str(&format!("[resources.all]\nmatch = [{resource:?}]\n{state}{handlers}"))?;
    config.http.listen = None;
    Ok(config)
}

struct Lap {
    began: Instant,
    cpu: Duration,
}

impl Lap {
    fn start() -> Self {
        Self { began: Instant::now(), cpu: cpu() }
    }

    fn end(self, events: u64) {
        let spent = cpu().saturating_sub(self.cpu);
        println!("{} {} {} {events}", self.began.elapsed().as_nanos(), spent.as_nanos(), resident());
    }
}

fn engine(url: &str, pods: u64, dir: &str, is_first: bool) -> Outcome<()> {
    let access = ClusterAccess::without_credentials(url, "bench")?;
    actix::System::new().block_on(async {
        let config = config("pods", dir, "[handlers.out]\ntype = \"blackhole\"\n")?;
        let lap = Lap::start();
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        let waiting = || engine.handlers().iter().map(|handler| handler.queued).sum::<u64>();
        let left = waiting();
        assert_eq!(objects(&engine), pods);
        lap.end(0);
        if is_first {
            engine.control_handler("out", Control::Pause)?;
            let updated = || engine.registry().views()[0].events.updated;
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
            until(|| waiting() == 0).await;
            lap.end(left);
        }
        Ok::<_, Box<dyn Error>>(())
    })
}

fn objects(engine: &RunningEngine) -> u64 {
    engine.registry().views().iter().map(|view| view.objects).sum()
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
}

/// The simulator has threads of its own in this process: one clock.
fn latency(changes: usize, dir: &str) -> Outcome<()> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    let access = ClusterAccess::without_credentials(&simulator.url(), "bench")?;
    let put = |value: usize| {
        let object = json!({"metadata": {"namespace": "default", "name": "one"}, "data": {"value": value.to_string()}});
        simulator.store().put("configmaps", object).map(drop)
    };
    put(0)?;
    let (tell, told) = mpsc::channel();
    let on_change = move |notification: &Notification| {
        let arrived = Instant::now();
        notification
            .events()
            .iter()
            .try_for_each(|_| tell.send(arrived))
            .map_err(|error| HandlerError::Failed(error.to_string()))
    };
    actix::System::new().block_on(async {
        let builder = Engine::builder().config(config("configmaps", dir, "")?).cluster(access);
        let engine = builder.on_change("out", HandlerOptions::default(), on_change).start().await?;
        engine.wait_for_sync().await;
        let mut took = Vec::with_capacity(changes);
        for value in 1..=changes {
            actix_rt::time::sleep(REST).await;
            let began = Instant::now();
            put(value)?;
            let arrived = loop {
                match told.try_recv() {
                    Ok(arrived) => break arrived,
                    Err(mpsc::TryRecvError::Empty) => actix_rt::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => return Err(error.into()),
                }
            };
            took.push(arrived.saturating_duration_since(began));
        }
        report(took);
        engine.stop().await;
        Ok(())
    })
}

/// The way of a change to a socket that is read and nothing else: what of the engine's lies before it.
fn socket(changes: usize) -> Outcome<()> {
    let simulator = Simulator::start(SimulatorOptions::default())?;
    let address = simulator.url().trim_start_matches("http://").to_owned();
    let mut socket = TcpStream::connect(&address)?;
    let watch = "/api/v1/configmaps?watch=true&timeoutSeconds=600";
    write!(socket, "GET {watch} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    let (tell, told) = mpsc::channel();
    thread::spawn(move || while matches!(socket.read(&mut buffer), Ok(1..)) && tell.send(Instant::now()).is_ok() {});
    thread::sleep(REST * 10);
    let took = (1..=changes).map(|value| {
        thread::sleep(REST);
        told.try_iter().for_each(drop);
        let object = json!({"metadata": {"namespace": "default", "name": "one"}, "data": {"value": value.to_string()}});
        let began = Instant::now();
        simulator.store().put("configmaps", object)?;
        Ok(told.recv()?.saturating_duration_since(began))
    });
    report(took.collect::<Outcome<_>>()?);
    Ok(())
}

fn disk(writes: usize, dir: &Path) -> Outcome<()> {
    let mut file = File::create(dir.join("alone"))?;
    let took = (0..writes).map(|_| {
        thread::sleep(REST);
        let began = Instant::now();
        file.write_all(&[1; 4096])?;
        file.sync_data()?;
        Ok(began.elapsed())
    });
    report(took.collect::<Outcome<_>>()?);
    Ok(())
}

fn report(mut took: Vec<Duration>) {
    took.sort();
    println!("{} {}", took[took.len() / 2].as_micros(), took[took.len() * 99 / 100].as_micros());
}
