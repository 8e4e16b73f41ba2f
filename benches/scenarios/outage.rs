//! A webhook that stalls, then answers 500, then 429, then recovers, while objects keep changing. Measures memory of the
//! engine, lag of another handler, and the events that arrive in the end.
//!
//! Each run has its own engine process. For each kind of buffer there is an undisturbed run and a disturbed one.

mod sink;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use deltabus::internals::{
    bench::measure::{cpu, resident},
    delivery::status::HandlerView,
    engine::RunningEngine,
    list_watch::kube::ClusterAccess,
};
use http::StatusCode;

use self::sink::{Mood, Sink};
use crate::{
    harness::{Length, Outcome, Player, REST, float, is_drained, now, orders, start_engine, until},
    world::World,
};

/// Behaviour of the hook in each quarter of the changes.
const TROUBLE: [Mood; 4] = [
    Mood::Hangs,
    Mood::Refuses(StatusCode::INTERNAL_SERVER_ERROR),
    Mood::Refuses(StatusCode::TOO_MANY_REQUESTS),
    Mood::Good,
];
/// Time after the last change within which all events must arrive.
const PATIENCE: Duration = Duration::from_mins(3);
/// Interval of memory samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);

/// Configuration with shorter timeouts and pauses than the defaults, because each fault lasts only seconds. Buffers have
/// their default sizes.
const CONFIG: &str = r#"
    [resources.settings]
    match = ["configmaps"]

    [defaults.handlers]
    timeout = "2s"
    retry = { max = "2s" }

    [handlers.hook]
    type = "webhook"
    url = "HOOK"
    batch = { max_events = 200, max_bytes = "512KiB", timeout = "0s" }

    [handlers.other]
    type = "webhook"
    url = "OTHER"
    batch = { max_events = 200, max_bytes = "512KiB", timeout = "0s" }
"#;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Config maps of 1 KB; 50,000, or a tenth of it for a short run
    #[arg(long)]
    objects: Option<u64>,
    /// Changes of a run; 1,000,000, or a tenth of it for a short run
    #[arg(long)]
    events: Option<u64>,
    /// Changes per second
    #[arg(long, default_value_t = 15_000)]
    rate: u64,
    #[command(flatten)]
    length: Length,
}

pub(crate) fn run(args: &Args) -> Outcome<()> {
    let objects = args.objects.unwrap_or(args.length.tenth(50_000));
    let events = args.events.unwrap_or(args.length.tenth(1_000_000));
    println!(
        "{objects} config maps of 1 KB, then {events} changes at {}/s, of which one in a hundred is a creation or a \
         deletion\n",
        args.rate
    );
    let mut is_headed = false;
    for is_stored in [false, true] {
        let mut undisturbed = None;
        for is_disturbed in [false, true] {
            let run = Run { objects, events, rate: args.rate, is_stored, is_disturbed };
            let (p99, row) = run.measure(undisturbed)?;
            let [head, cells]: [Vec<String>; 2] = [
                row.iter().map(|(head, _)| (*head).to_owned()).collect(),
                row.iter().map(|(_, cell)| cell.clone()).collect(),
            ];
            if !is_headed {
                println!("| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
                is_headed = true;
            }
            println!("| {} |", cells.join(" | "));
            undisturbed = Some(p99);
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Run {
    objects: u64,
    events: u64,
    rate: u64,
    is_stored: bool,
    is_disturbed: bool,
}

impl Run {
    /// Runs the scenario; returns the 99th percentile of the other handler's lag, and a row of the table.
    fn measure(self, undisturbed: Option<u64>) -> Outcome<(u64, Vec<(&'static str, String)>)> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let mut world = World::start(self.objects)?;
        let (hook, other) = (Sink::start()?, Sink::start()?);
        let state = if self.is_stored { dir.path().join("state").display().to_string() } else { "-".to_owned() };
        let mut engine = Player::start("outage", &[world.url(), hook.url.clone(), other.url.clone(), state])?;
        let [resident] = engine.numbers()?;
        let (mut growth, mut queued_peak, mut elapsed) = ([0; 5], 0, Duration::ZERO);
        for (quarter, trouble) in TROUBLE.into_iter().enumerate() {
            if self.is_disturbed {
                hook.notes().behave(trouble);
            }
            elapsed += world.run(self.events / 4, self.rate)?;
            engine.tell("look")?;
            let [peak, _, queued, ..] = engine.numbers::<8>()?;
            growth[quarter] = peak.saturating_sub(resident);
            queued_peak = queued_peak.max(queued);
        }
        let (ended, truth) = (now(), world.truth()?);
        // The engine may not have read all events yet when no event is queued.
        let (missing, end) = loop {
            engine.tell("drain")?;
            let end = engine.numbers::<8>()?;
            let missing = hook.notes().missing(&truth) + other.notes().missing(&truth);
            growth[4] = growth[4].max(end[0].saturating_sub(resident));
            if missing == 0 || ended.elapsed() > PATIENCE {
                break (missing, end);
            }
        };
        let drained = ended.elapsed();
        let [_, cpu, _, retried, coalesced, olds_given_up, dropped, disk] = end;
        let [median, p99] = other.notes().lag();
        let hook = hook.notes();
        let mb = |bytes: u64| format!("{:.0}", float(bytes) / 1e6);
        let ms = |micros: u64| format!("{:.1}", float(micros) / 1e3);
        let row = vec![
            ("buffer", if self.is_stored { "`[state] dir`" } else { "memory" }.to_owned()),
            ("webhook", if self.is_disturbed { "disturbed" } else { "good" }.to_owned()),
            ("growth, MB: hang, 500, 429, good, end", growth.map(mb).join(", ")),
            ("other's lag, ms: p50 / p99", format!("{} / {}", ms(median), ms(p99))),
            ("p99 to undisturbed", undisturbed.map_or("–".to_owned(), |of| format!("{:.2}", float(p99) / float(of)))),
            ("changes/s", format!("{:.0}", float(self.events / 4 * 4) / elapsed.as_secs_f64())),
            ("CPU s", format!("{:.1}", float(cpu) / 1e9)),
            ("most that waited", queued_peak.to_string()),
            ("refused requests", format!("{} ({retried} attempts)", hook.refused)),
            ("delivered", hook.delivered.to_string()),
            ("coalesced", coalesced.to_string()),
            ("previous objects given up", olds_given_up.to_string()),
            ("dropped", dropped.to_string()),
            ("twice", hook.duplicates.to_string()),
            ("out of order", hook.disordered.to_string()),
            (
                "caught up in s",
                if self.is_disturbed { format!("{:.1}", float(hook.catch_up()) / 1e6) } else { "–".to_owned() },
            ),
            ("drained in s", format!("{:.1}", drained.as_secs_f64())),
            ("disk MB", mb(disk)),
            ("missing", missing.to_string()),
        ];
        Ok((p99, row))
    }
}

/// Runs the measured engine: prints its resident bytes after the sync, and answers `look` and `drain`.
pub(crate) fn engine(url: &str, hook: &str, other: &str, dir: &str) -> Outcome<()> {
    let state = if dir == "-" { String::new() } else { format!("[state]\ndir = {dir:?}") };
    let config = format!("{}\n{state}", CONFIG.replace("HOOK", hook).replace("OTHER", other));
    let access = ClusterAccess::without_credentials(url, "bench")?;
    let mut orders = orders();
    actix::System::new().block_on(async {
        let engine = start_engine(access, &config).await?;
        engine.wait_for_sync().await;
        actix_rt::time::sleep(REST).await;
        let peak = watch_memory();
        println!("{}", resident());
        while let Some(order) = orders.recv().await {
            if order == "drain" {
                until(|| is_drained(&engine)).await;
            }
            say(&engine, peak.swap(resident(), Ordering::Relaxed));
        }
        Ok(())
    })
}

/// Records the peak of the resident bytes in the returned value.
fn watch_memory() -> Arc<AtomicU64> {
    let peak = Arc::new(AtomicU64::new(resident()));
    let seen = Arc::clone(&peak);
    thread::spawn(move || {
        loop {
            seen.fetch_max(resident(), Ordering::Relaxed);
            thread::sleep(SAMPLE_EVERY);
        }
    });
    peak
}

fn say(engine: &RunningEngine, peak: u64) {
    let handlers = engine.handlers();
    let hook = handlers.iter().find(|handler| handler.name == "hook");
    let of = |figure: fn(&HandlerView) -> u64| hook.map_or(0, figure);
    println!(
        "{peak} {} {} {} {} {} {} {}",
        cpu(),
        of(|hook| hook.queued),
        of(|hook| hook.retried),
        of(|hook| hook.coalesced),
        of(|hook| hook.olds_given_up),
        handlers.iter().map(|handler| handler.dropped).sum::<u64>(),
        engine.config().state.dir.as_deref().map_or(0, occupied),
    );
}

/// Returns the disk usage of a directory in bytes.
fn occupied(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(file) if file.is_dir() => occupied(&entry.path()),
        Ok(file) => file.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(size).sum()
}
