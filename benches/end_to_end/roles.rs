//! What the processes do: serve, or see all pods and all events and say what that cost.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]

use std::{
    error::Error,
    io::{Read, Write, stdin},
    net::TcpStream,
    time::{Duration, Instant},
};

use deltabus::{
    config::Config,
    engine::{Engine, RunningEngine},
    list_watch::kube::ClusterAccess,
    simulator::{HistoryLimits, Simulator, SimulatorOptions, Workload},
};
use futures_util::StreamExt;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, WatchEvent, WatchParams},
};

use crate::{
    measure::Phase,
    process::report,
    support::measure::{cpu, resident},
};

/// As `deltabus run` has it, with one handler; no HTTP server.
const CONFIG: &str = r#"
    [resources.pods]
    match = ["pods"]

    [handlers.out]
    type = "blackhole"
"#;

/// The stream that every observer reads.
const WATCH: &str = "/api/v1/pods?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
                     &resourceVersionMatch=NotOlderThan&timeoutSeconds=600";

/// A socket that is silent for so long has said everything.
const SILENCE: Duration = Duration::from_millis(500);
/// Time for an engine to come to rest before its memory is looked at.
const REST: Duration = Duration::from_millis(600);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Plays a role to its end.
pub(crate) fn play(role: &str, args: &[String]) -> Result<(), Box<dyn Error>> {
    match (role, args) {
        ("simulator", [pods, diverse]) => simulator(pods.parse()?, diverse.parse()?),
        ("engine", [url, pods, events]) => engine(url, pods.parse()?, events.parse()?),
        ("drop", [url, ..]) => read_and_drop(url),
        ("kube", [url, pods, events]) => decode_and_drop(url, pods.parse()?, events.parse()?),
        _ => Err(format!("unexpected role {role:?}").into()),
    }
}

fn simulator(pods: usize, diverse: bool) -> Result<(), Box<dyn Error>> {
    let history = HistoryLimits { changes: usize::MAX, bytes: usize::MAX };
    let simulator = Simulator::start(SimulatorOptions { history, ..SimulatorOptions::default() })?;
    let mut workload = Workload::new(1);
    workload.load(simulator.store(), pods, diverse)?;
    println!("{}", simulator.url());
    for line in stdin().lines() {
        workload.churn(simulator.store(), line?.trim().parse()?)?;
        println!("done");
    }
    Ok(())
}

/// What was spent so far, to be compared with later.
struct Meter {
    cpu: Duration,
    resident: usize,
}

impl Meter {
    fn start() -> Self {
        Self { cpu: cpu(), resident: resident() }
    }

    /// Ends a phase that took `wall`, and begins the next.
    fn lap(&mut self, wall: Duration) -> Phase {
        let now = cpu();
        let resident = resident().saturating_sub(self.resident);
        let phase = Phase { cpu: now.saturating_sub(self.cpu), wall, resident, bodies: 0 };
        self.cpu = now;
        phase
    }
}

fn engine(url: &str, pods: u64, events: u64) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let mut config = Config::from_toml_str(CONFIG)?;
    config.http.listen = None;
    let access = ClusterAccess::without_credentials(url, "bench")?;
    actix::System::new().block_on(async {
        let began = Instant::now();
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        let wall = began.elapsed();
        actix_rt::time::sleep(REST).await;
        let view = || engine.registry().views().swap_remove(0);
        let bodies = || usize::try_from(view().bytes).unwrap_or_default();
        assert_eq!(view().objects, pods);
        report(Phase { bodies: bodies(), ..meter.lap(wall) });
        let wall = see_updates(&engine, events).await;
        actix_rt::time::sleep(REST).await;
        report(Phase { bodies: bodies(), ..meter.lap(wall) });
        Ok(())
    })
}

/// Waits until so many updates were applied and delivered.
async fn see_updates(engine: &RunningEngine, events: u64) -> Duration {
    let updated = || engine.registry().views()[0].events.updated;
    while updated() == 0 {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
    let began = Instant::now();
    let is_delivered = || engine.handlers().iter().all(|handler| handler.queued == 0);
    while updated() < events || !is_delivered() {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
    began.elapsed()
}

fn read_and_drop(url: &str) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address)?;
    write!(socket, "GET {WATCH} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..2 {
        socket.set_read_timeout(None)?;
        let began = Instant::now();
        let mut read = socket.read(&mut buffer);
        socket.set_read_timeout(Some(SILENCE))?;
        while matches!(read, Ok(1..)) {
            read = socket.read(&mut buffer);
        }
        report(meter.lap(began.elapsed().saturating_sub(SILENCE)));
    }
    Ok(())
}

/// What a client built on the kube crate does before it does anything with an object.
fn decode_and_drop(url: &str, pods: usize, events: usize) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = kube::Client::try_from(kube::Config::new(url.parse()?))?;
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api = Api::<DynamicObject>::all_with(client, &resource);
        let mut stream = api.watch(&WatchParams::default().initial_events(), "0").await?.boxed();
        for expected in [pods, events] {
            let (mut began, mut seen) = (None, 0);
            while seen < expected {
                let event = stream.next().await.ok_or("the watch has ended")??;
                began.get_or_insert_with(Instant::now);
                seen += usize::from(matches!(event, WatchEvent::Added(_) | WatchEvent::Modified(_)));
            }
            report(meter.lap(began.map(|began| began.elapsed()).unwrap_or_default()));
        }
        Ok(())
    })
}
