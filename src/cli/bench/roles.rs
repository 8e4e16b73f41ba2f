//! What the other processes do: orders come as lines of JSON on stdin, answers go to stdout.

use std::{
    io::{self, BufRead as _, Write as _},
    process, thread,
    time::Duration,
};

use deltabus::{
    bench::{
        Generator, Probe, ProbeError, ReplayServer,
        orders::{EngineAnswer, EngineOptions, EngineOrder, Role, ServerAnswer, ServerOrder},
    },
    config::{Log, LogLevel},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use crate::cli::terminal;

/// Orders that may wait.
const ORDERS: usize = 16;

/// Plays a role until nobody gives orders any more.
pub(super) fn play(role: &Role) -> anyhow::Result<()> {
    match role {
        Role::Server { shape, objects, seed } => serve(Generator::new(*shape, *objects, *seed)),
        Role::Engine(options) => {
            terminal::start(&Log { level: LogLevel::Error, ..Log::default() });
            let orders = orders();
            actix::System::new().block_on(async {
                match run(options, orders).await {
                    Err(Failed::Probe(error)) => say(&EngineAnswer::Failed(error.to_string())),
                    Err(Failed::Said(error)) => Err(error),
                    Ok(()) => Ok(()),
                }
            })
        }
    }
}

/// Reads orders on a thread of its own. The process ends with them, whatever it does then.
fn orders<T: DeserializeOwned + Send + 'static>() -> mpsc::Receiver<T> {
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

fn say(answer: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

fn serve(generator: Generator) -> anyhow::Result<()> {
    let server = ReplayServer::start(generator)?;
    let of = server.generator();
    say(&ServerAnswer::Listening { url: server.url(), object_bytes: of.object_bytes() as u64 })?;
    let mut orders = orders();
    while let Some(order) = orders.blocking_recv() {
        match order {
            ServerOrder::Release(changes) => server.release(changes),
            ServerOrder::Flow(per_second) => server.flow(per_second),
            ServerOrder::Flood => server.flood(),
            ServerOrder::Hold => {
                let changes = server.hold();
                say(&ServerAnswer::Head { changes, version: server.generator().version(changes) })?;
            }
            ServerOrder::Tick { changes, every_micros } => {
                say(&ServerAnswer::Sent(server.tick(changes, Duration::from_micros(every_micros))))?;
            }
        }
    }
    Ok(())
}

/// Why the engine's process ends early.
enum Failed {
    /// It is told to the other process.
    Probe(ProbeError),
    /// Nobody listens.
    Said(anyhow::Error),
}

impl From<ProbeError> for Failed {
    fn from(error: ProbeError) -> Self {
        Self::Probe(error)
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self::Said(error)
    }
}

async fn run(options: &EngineOptions, mut orders: mpsc::Receiver<EngineOrder>) -> Result<(), Failed> {
    let mut probe = Probe::start(options).await?;
    // Progress that nobody hears ends nothing: the next answer will.
    let tell = |done, wrong| drop(say(&EngineAnswer::Progress { done, wrong }));
    let synced = probe.synced(tell).await?;
    say(&EngineAnswer::Synced(synced))?;
    while let Some(order) = orders.recv().await {
        let answer = match order {
            EngineOrder::Reach(version) => {
                probe.begin();
                say(&EngineAnswer::Ready)?;
                EngineAnswer::Reached(probe.reached(version, |done| tell(done, None)).await?)
            }
            EngineOrder::Follow(millis) => {
                probe.begin();
                EngineAnswer::Reached(probe.follow(Duration::from_millis(millis), |done| tell(done, None)).await?)
            }
            EngineOrder::Note => {
                probe.note();
                EngineAnswer::Ready
            }
            EngineOrder::Arrivals(version) => EngineAnswer::Arrived(probe.arrivals(version).await),
            EngineOrder::Read { millis, by_key_only } => {
                let (reads, events) = probe.read(Duration::from_millis(millis), by_key_only).await?;
                EngineAnswer::Read(reads, events)
            }
        };
        say(&answer)?;
    }
    probe.stop().await;
    Ok(())
}
