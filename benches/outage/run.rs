//! One run: what is told to whom, and what is heard of it.

use std::time::{Duration, Instant};

use crate::{Outcome, support::process::Player};

/// What the hook is told before each quarter of the changes.
const TROUBLE: [&str; 4] = ["hang", "500", "429", "good"];

/// What has not arrived so long after the last change is missing.
const PATIENCE: Duration = Duration::from_mins(3);

/// What every run has in common.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) objects: usize,
    pub(crate) events: usize,
    /// Changes a second.
    pub(crate) rate: usize,
}

/// How late events were: microseconds from the change at the server to the handler.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lag {
    pub(crate) median: u64,
    pub(crate) p99: u64,
}

/// What became of a run.
pub(crate) struct Run {
    pub(crate) stored: bool,
    pub(crate) disturbed: bool,
    /// Resident bytes after the sync.
    pub(crate) resident: u64,
    /// The most above that, in each quarter and at the end.
    pub(crate) growth: [u64; 5],
    /// Of the other handler, in each quarter.
    pub(crate) lags: [Lag; 4],
    pub(crate) lag: Lag,
    pub(crate) cpu: Duration,
    /// Changes a second.
    pub(crate) rate: f64,
    pub(crate) queued_peak: u64,
    pub(crate) retried: u64,
    pub(crate) coalesced: u64,
    pub(crate) olds_given_up: u64,
    pub(crate) dropped: u64,
    pub(crate) disk: u64,
    pub(crate) refused: u64,
    pub(crate) delivered: u64,
    pub(crate) duplicates: u64,
    pub(crate) disordered: u64,
    /// From the recovery to what is less than a second old.
    pub(crate) catch_up: Duration,
    /// From the last change to the end of all that waited.
    pub(crate) drained: Duration,
    /// Objects and deletions that should have arrived, at the hook and at the other.
    pub(crate) expected: (u64, u64),
    pub(crate) missing: u64,
}

impl Run {
    /// Runs the scene with new processes.
    pub(crate) fn of(scene: Scene, stored: bool, disturbed: bool) -> Outcome<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        let mut server = Player::start("simulator", &[scene.objects.to_string()])?;
        let url = server.line()?;
        let (mut hook, mut other) = (Player::start("sink", &[])?, Player::start("sink", &[])?);
        let state = if stored { path("state") } else { "-".to_owned() };
        let mut engine = Player::start("engine", &[url, hook.line()?, other.line()?, state])?;
        let [resident] = engine.numbers()?;
        let (mut growth, mut lags, mut elapsed) = ([0; 5], [Lag::default(); 4], 0);
        let mut queued_peak = 0;
        for (quarter, trouble) in TROUBLE.iter().enumerate() {
            if disturbed {
                hook.tell(trouble)?;
            }
            server.tell(&format!("run {} {}", scene.events / 4, scene.rate))?;
            let [millis] = server.numbers()?;
            elapsed += millis;
            other.tell("lags")?;
            let [_, median, p99] = other.numbers()?;
            lags[quarter] = Lag { median, p99 };
            engine.tell("look")?;
            let [peak, _, queued, ..] = engine.numbers::<8>()?;
            growth[quarter] = peak.saturating_sub(resident);
            queued_peak = queued_peak.max(queued);
        }
        let ended = now();
        let truth = path("truth");
        server.tell(&format!("save {truth}"))?;
        let [objects, deletions] = server.numbers()?;
        // The engine may not have read all of it yet when nothing waits.
        let (missing, end) = loop {
            engine.tell("drain")?;
            let end = engine.numbers::<8>()?;
            let missing = missing(&mut hook, &truth)? + missing(&mut other, &truth)?;
            growth[4] = growth[4].max(end[0].saturating_sub(resident));
            if missing == 0 || ended.elapsed() > PATIENCE {
                break (missing, end);
            }
        };
        let drained = ended.elapsed();
        let [_, cpu, _, retried, coalesced, olds_given_up, dropped, disk] = end;
        other.tell("sum")?;
        let [_, median, p99, ..] = other.numbers::<9>()?;
        hook.tell("sum")?;
        let [_, _, _, _, refused, delivered, duplicates, disordered, catch_up] = hook.numbers()?;
        #[expect(clippy::cast_precision_loss, reason = "a figure of a table")]
        let rate = (scene.events / 4 * 4) as f64 * 1000.0 / elapsed as f64;
        Ok(Self {
            stored,
            disturbed,
            resident,
            growth,
            lags,
            lag: Lag { median, p99 },
            cpu: Duration::from_nanos(cpu),
            rate,
            queued_peak,
            retried,
            coalesced,
            olds_given_up,
            dropped,
            disk,
            refused,
            delivered,
            duplicates,
            disordered,
            catch_up: Duration::from_micros(catch_up),
            drained,
            expected: (objects, deletions),
            missing,
        })
    }
}

/// Returns how many outcomes a sink does not have, or has that are none.
fn missing(sink: &mut Player, truth: &str) -> Outcome<u64> {
    sink.tell(&format!("compare {truth}"))?;
    Ok(sink.numbers::<3>()?.iter().sum())
}

#[expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]
fn now() -> Instant {
    Instant::now()
}
