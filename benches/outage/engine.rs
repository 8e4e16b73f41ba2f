//! The process that is measured: an engine with two webhooks.

use std::{
    io::stdin,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use deltabus::{
    config::Config,
    delivery::status::HandlerView,
    engine::{Engine, RunningEngine},
    list_watch::kube::ClusterAccess,
};

use crate::{
    Outcome,
    support::measure::{cpu, resident},
};

/// Time for an engine to come to rest after its sync.
const REST: Duration = Duration::from_secs(2);
/// Resident memory is looked at so often.
const SAMPLE_EVERY: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Timeouts and pauses are shorter than by default, as each trouble lasts for seconds only; buffers are the default's.
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

/// Syncs, says `RESIDENT`, and answers each line on stdin: `look` or `drain`.
pub(crate) fn play(url: &str, hook: &str, other: &str, dir: &str) -> Outcome<()> {
    let mut config = Config::from_toml_str(&CONFIG.replace("HOOK", hook).replace("OTHER", other))?;
    config.http.listen = None;
    config.state.dir = (dir != "-").then(|| dir.into());
    let access = ClusterAccess::without_credentials(url, "bench")?;
    let (lines, heard) = mpsc::channel();
    thread::spawn(move || stdin().lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    actix::System::new().block_on(async {
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        engine.wait_for_sync().await;
        actix_rt::time::sleep(REST).await;
        let peak = watch_memory();
        println!("{}", resident());
        loop {
            match heard.try_recv().as_deref() {
                Ok("look") => say(&engine, peak.swap(resident(), Ordering::Relaxed)),
                Ok("drain") => {
                    drain(&engine).await;
                    say(&engine, peak.swap(resident(), Ordering::Relaxed));
                }
                Ok(line) => return Err(format!("unexpected line {line:?}").into()),
                Err(mpsc::TryRecvError::Empty) => actix_rt::time::sleep(LOOK_EVERY).await,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
    })
}

/// Keeps the most resident bytes seen in what it returns.
fn watch_memory() -> Arc<AtomicUsize> {
    let peak = Arc::new(AtomicUsize::new(resident()));
    let seen = Arc::clone(&peak);
    thread::spawn(move || {
        loop {
            seen.fetch_max(resident(), Ordering::Relaxed);
            thread::sleep(SAMPLE_EVERY);
        }
    });
    peak
}

/// Waits until nothing waits.
async fn drain(engine: &RunningEngine) {
    while engine.handlers().iter().any(|handler| handler.queued > 0) {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
}

fn say(engine: &RunningEngine, peak: usize) {
    let handlers = engine.handlers();
    let hook = handlers.iter().find(|handler| handler.name == "hook");
    let of = |figure: fn(&HandlerView) -> u64| hook.map_or(0, figure);
    println!(
        "{peak} {} {} {} {} {} {} {}",
        cpu().as_nanos(),
        of(|hook| hook.queued),
        of(|hook| hook.retried),
        of(|hook| hook.coalesced),
        of(|hook| hook.olds_given_up),
        handlers.iter().map(|handler| handler.dropped).sum::<u64>(),
        engine.config().state.dir.as_deref().map_or(0, occupied),
    );
}

/// Returns the bytes that a directory has on disk.
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
