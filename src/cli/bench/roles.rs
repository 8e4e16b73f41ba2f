//! Roles of the child processes: orders arrive as lines of JSON on stdin, answers go to stdout.

use std::{
    io::{self, BufRead as _, Write as _},
    process, thread,
    time::Duration,
};

use crate::{
    bench::{
        Generator, Probe, ProbeError, ReplayServer,
        orders::{EngineAnswer, EngineOptions, EngineOrder, Role, ServerOrder},
    },
    config::{Log, LogLevel},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use crate::cli::terminal;

/// Capacity of the queue of orders.
const ORDERS: usize = 16;

/// Plays a role until stdin is closed.
pub(super) fn play(role: &Role) -> anyhow::Result<()> {
    match role {
        Role::Server { shape, objects, seed } => serve(Generator::new(*shape, *objects, *seed)),
        Role::Engine(options) => {
            terminal::start(&Log { level: LogLevel::Error, ..Log::default() });
            let orders = orders();
            actix::System::new().block_on(async {
                match run(options, orders).await {
                    Err(error) if error.is::<ProbeError>() => say(&EngineAnswer::Failed(error.to_string())),
                    ended => ended,
                }
            })
        }
    }
}

/// Reads orders on a separate thread. When stdin ends, the process exits at once.
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
    say(&(server.url(), of.object_bytes()))?;
    let mut orders = orders();
    while let Some(order) = orders.blocking_recv() {
        match order {
            ServerOrder::Release(changes) => server.release(changes),
            ServerOrder::Flow(per_second) => server.flow(per_second),
            ServerOrder::Flood => server.flood(),
            ServerOrder::Hold => {
                let changes = server.hold();
                say(&(changes, server.generator().version(changes)))?;
            }
            ServerOrder::Tick { changes, every_micros } => {
                say(&server.tick(changes, Duration::from_micros(every_micros)))?;
            }
        }
    }
    Ok(())
}

async fn run(options: &EngineOptions, mut orders: mpsc::Receiver<EngineOrder>) -> anyhow::Result<()> {
    let mut probe = Probe::start(options).await?;
    // A lost progress report is ignored: the next answer fails as well.
    let tell = |done, wrong| drop(say(&EngineAnswer::Progress { done, wrong }));
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
            EngineOrder::Note => {
                probe.note();
                done(&())?;
            }
            EngineOrder::Arrivals(version) => done(&probe.arrivals(version).await)?,
            EngineOrder::Read { millis, by_key_only } => {
                done(&probe.read(Duration::from_millis(millis), by_key_only).await?)?;
            }
        }
    }
    probe.stop().await;
    Ok(())
}

fn done(result: &impl Serialize) -> anyhow::Result<()> {
    say(&EngineAnswer::Done(serde_json::to_value(result)?))
}
