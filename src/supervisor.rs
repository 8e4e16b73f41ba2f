//! Keeps a group of actors alive: one for all, with backoff, for ever (D6).
//!
//! `Supervisor` is the pure machine for one unit (reflector, queue and indexer of a type) or one handler;
//! `RestartPolicy` decides when to try again. `informer/actor.rs` boots actors, sends heartbeats and reports exits.
//!
//! ```text
//!            ┌──────────────── until, and all gone: next generation ───────────────┐
//!            ▼                                                                     │
//!   Stopped ─▶ Starting ──all booted──▶ Running (or Degraded) ──exit, hang──▶ BackingOff
//!      ▲           └──────────────────────── exit, hang ───────────────────────────▲
//!      └── all gone ── Stopping ◀── Stop, from anywhere
//! ```

pub mod arbiters;
pub(crate) mod child;
pub mod fault;
#[cfg(test)]
mod model_tests;
mod policy;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use std::time::Duration;

use crate::backoff::BackoffConfig;

pub(crate) use policy::{Restart, RestartPolicy};

/// `[supervision]`: when a unit is restarted, and when it counts as hung or degraded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SupervisorConfig {
    /// Between a failure and the restart; reset by health.
    pub backoff: BackoffConfig,
    /// An actor that does not answer its heartbeat for so long is replaced. Also how long a start may take.
    pub hung_after: Duration,
    /// Between two heartbeats.
    pub ping_period: Duration,
    /// So many failures within [`SupervisorConfig::degraded_window`] make the unit degraded; 0 never does.
    pub degraded_after: u32,
    /// See [`SupervisorConfig::degraded_after`].
    pub degraded_window: Duration,
    /// An actor that was asked to stop and has not for so long is left behind.
    pub stop_timeout: Duration,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            backoff: BackoffConfig::default(),
            hung_after: Duration::from_secs(30),
            ping_period: Duration::from_secs(10),
            degraded_after: 5,
            degraded_window: Duration::from_mins(5),
            stop_timeout: Duration::from_secs(30),
        }
    }
}

/// How an actor ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exit {
    /// It stopped, asked or not.
    #[error("stopped")]
    Stopped,
    /// It gave up, and says why.
    #[error("failed: {0}")]
    Failed(String),
    /// It panicked; the payload, where that is text.
    #[error("panicked: {0}")]
    Panicked(String),
    /// It did not answer its heartbeat, or did not start, in time.
    #[error("hung")]
    Hung,
    /// The thread it ran on is gone, or could not be started.
    #[error("its thread is gone")]
    ArbiterGone,
}

/// Which actor of the unit, counted from 0 in the order of the data.
pub(crate) type ActorIndex = usize;

/// Numbers the lives of a unit, from 1. What an earlier life still says is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Generation(pub u64);

/// What has happened, as the shell tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorInput {
    /// Start the unit, if it is stopped.
    Start,
    /// Every actor of this generation is up.
    Started(Generation),
    /// An actor ended, or could not be started.
    Exited { generation: Generation, actor: ActorIndex, exit: Exit },
    /// An actor answered its heartbeat.
    Answered { generation: Generation, actor: ActorIndex },
    /// The time of [`SupervisorVerdict::wake_at`] has come.
    Timer,
    /// Stop the unit.
    Stop,
}

/// What the shell does now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing.
    Nothing,
    /// Boot every actor of a new generation. The abandoned ones of the generation before have not ended: they hang, or
    /// ignore the request to stop.
    Start { generation: Generation, abandoned: Vec<ActorIndex> },
    /// Ask every actor of this generation that still lives to stop.
    Stop(Generation),
    /// Send a heartbeat to these actors.
    Ping { generation: Generation, actors: Vec<ActorIndex> },
    /// The unit has stopped, as asked, but for the abandoned actors.
    Done { abandoned: Vec<ActorIndex> },
}

/// What one input led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SupervisorVerdict {
    pub(crate) decision: Decision,
    /// When to say [`SupervisorInput::Timer`]; replaces every earlier time.
    pub(crate) wake_at: Option<Duration>,
}

/// The state of a unit, for `/v1/resources`, metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorState {
    /// Its actors are being booted.
    Starting,
    /// All is well.
    Running,
    /// It failed and will be restarted.
    ///
    /// `attempt` counts the restarts since the unit was last healthy, this one included.
    BackingOff { attempt: u32, until: Duration, cause: Exit },
    /// It runs, or starts, and has failed often lately; restarts go on.
    Degraded { failures: u32 },
    /// It was asked to stop and has not yet.
    Stopping,
    /// It has stopped, or was never started.
    Stopped,
}

/// Supervises the actors of one unit.
///
/// One input in, one [`SupervisorVerdict`] out. It has no clock, no random source, and knows actors by number only.
///
/// **Invariants:** generations only grow; a generation is started when no actor of the one before lives, but for those
/// that were given up on; exits and answers of another generation change nothing; it never gives up.
#[derive(Debug)]
pub(crate) struct Supervisor {
    config: SupervisorConfig,
    policy: RestartPolicy,
    phase: Phase,
    generation: Generation,
    actors: Vec<Life>,
    ping_at: Duration,
    restarts: u64,
    last_exit: Option<(Option<ActorIndex>, Exit)>,
}

#[derive(Clone, Debug)]
enum Phase {
    Stopped,
    Starting { since: Duration },
    Running,
    BackingOff { attempt: u32, until: Duration, cause: Exit, abandon_at: Duration },
    Stopping { abandon_at: Duration },
}

/// What is known of one actor.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    alive: bool,
    /// It was given up on.
    abandoned: bool,
    /// When it was sent the heartbeat that it has not answered.
    asked_at: Option<Duration>,
}

impl Supervisor {
    /// Makes the supervisor of a unit of so many actors. Its first input is [`SupervisorInput::Start`].
    pub(crate) fn new(config: SupervisorConfig, actors: usize) -> Self {
        Self {
            policy: RestartPolicy::new(&config),
            config,
            phase: Phase::Stopped,
            generation: Generation::default(),
            actors: vec![Life::default(); actors],
            ping_at: Duration::ZERO,
            restarts: 0,
            last_exit: None,
        }
    }

    /// Takes what has happened and returns what to do. `jitter` is uniform in `[0, 1)`.
    pub(crate) fn step(&mut self, input: SupervisorInput, now: Duration, jitter: f64) -> SupervisorVerdict {
        let decision = match input {
            SupervisorInput::Start if matches!(self.phase, Phase::Stopped) => self.boot(now),
            SupervisorInput::Start => Decision::Nothing,
            SupervisorInput::Started(generation) => self.started(generation, now),
            SupervisorInput::Exited { generation, actor, exit } => self.exited(generation, actor, exit, now, jitter),
            SupervisorInput::Answered { generation, actor } => self.answered(generation, actor),
            SupervisorInput::Timer => self.timer(now, jitter),
            SupervisorInput::Stop => self.stop(now),
        };
        SupervisorVerdict { decision, wake_at: self.wake_at() }
    }

    /// Returns the state to show.
    pub(crate) fn state(&self) -> SupervisorState {
        match &self.phase {
            Phase::Stopped => SupervisorState::Stopped,
            Phase::Starting { .. } | Phase::Running if self.policy.is_degraded() => {
                SupervisorState::Degraded { failures: self.policy.failures() }
            }
            Phase::Starting { .. } => SupervisorState::Starting,
            Phase::Running => SupervisorState::Running,
            Phase::BackingOff { attempt, until, cause, .. } => {
                SupervisorState::BackingOff { attempt: *attempt, until: *until, cause: cause.clone() }
            }
            Phase::Stopping { .. } => SupervisorState::Stopping,
        }
    }

    /// Returns whether it has failed often lately; also true while it backs off.
    pub(crate) fn is_degraded(&self) -> bool {
        self.policy.is_degraded()
    }

    /// Returns the generation that was started last; 0 before the first.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns how often it was restarted after a failure.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Returns the last failure, also after it was overcome: which actor (`None`: the start of the unit hung), and how
    /// it ended.
    pub(crate) fn last_exit(&self) -> Option<(Option<ActorIndex>, &Exit)> {
        self.last_exit.as_ref().map(|(actor, exit)| (*actor, exit))
    }

    fn boot(&mut self, now: Duration) -> Decision {
        let abandoned = self.left_behind();
        self.generation.0 += 1;
        self.actors.fill(Life { alive: true, ..Life::default() });
        self.phase = Phase::Starting { since: now };
        Decision::Start { generation: self.generation, abandoned }
    }

    fn started(&mut self, generation: Generation, now: Duration) -> Decision {
        if generation == self.generation && matches!(self.phase, Phase::Starting { .. }) {
            self.phase = Phase::Running;
            self.policy.healthy(now);
            self.ping_at = now.saturating_add(self.config.ping_period);
        }
        Decision::Nothing
    }

    fn exited(
        &mut self,
        generation: Generation,
        actor: ActorIndex,
        exit: Exit,
        now: Duration,
        jitter: f64,
    ) -> Decision {
        match self.actors.get_mut(actor) {
            Some(life) if generation == self.generation && (life.alive || life.abandoned) => *life = Life::default(),
            _ => return Decision::Nothing,
        }
        match self.phase {
            Phase::Starting { .. } | Phase::Running => self.fail(Some(actor), exit, now, jitter),
            Phase::BackingOff { .. } | Phase::Stopping { .. } => self.proceed(now),
            Phase::Stopped => Decision::Nothing,
        }
    }

    /// One for all: the rest of the unit goes too, and comes back after a delay.
    fn fail(&mut self, actor: Option<ActorIndex>, cause: Exit, now: Duration, jitter: f64) -> Decision {
        let Restart { attempt, delay } = self.policy.failed(now, jitter);
        self.last_exit = Some((actor, cause.clone()));
        let abandon_at = now.saturating_add(self.config.stop_timeout);
        self.phase = Phase::BackingOff { attempt, until: now.saturating_add(delay), cause, abandon_at };
        Decision::Stop(self.generation)
    }

    /// Goes on from a phase that waits for actors to end, if they have, or have had their time.
    fn proceed(&mut self, now: Duration) -> Decision {
        let gone = self.actors.iter().all(|life| !life.alive);
        match self.phase {
            Phase::BackingOff { until, abandon_at, .. } if until <= now && (gone || abandon_at <= now) => {
                self.restarts += 1;
                self.boot(now)
            }
            Phase::Stopping { abandon_at } if gone || abandon_at <= now => {
                self.phase = Phase::Stopped;
                let abandoned = self.left_behind();
                self.actors.fill(Life::default());
                Decision::Done { abandoned }
            }
            _ => Decision::Nothing,
        }
    }

    fn left_behind(&self) -> Vec<ActorIndex> {
        (0..self.actors.len()).filter(|at| self.actors[*at].alive || self.actors[*at].abandoned).collect()
    }

    fn answered(&mut self, generation: Generation, actor: ActorIndex) -> Decision {
        if generation == self.generation
            && let Some(life) = self.actors.get_mut(actor)
        {
            // Who wakes up after he was given up on is waited for again: he has been asked to stop, and now can.
            let alive = life.alive || life.abandoned;
            *life = Life { alive, ..Life::default() };
        }
        Decision::Nothing
    }

    fn timer(&mut self, now: Duration, jitter: f64) -> Decision {
        match self.phase {
            Phase::Starting { since } if since.saturating_add(self.config.hung_after) <= now => {
                self.fail(None, Exit::Hung, now, jitter)
            }
            Phase::Stopped | Phase::Starting { .. } => Decision::Nothing,
            Phase::Running => self.check(now, jitter),
            Phase::BackingOff { .. } | Phase::Stopping { .. } => self.proceed(now),
        }
    }

    /// Looks for hung actors, and sends the heartbeats that are due.
    fn check(&mut self, now: Duration, jitter: f64) -> Decision {
        self.policy.settle(now);
        // Actors that share a thread hang together: all of them are given up on at once.
        let hangs = |life: &Life| self.hangs_at(life).is_some_and(|at| at <= now);
        let hung: Vec<_> = (0..self.actors.len()).filter(|at| hangs(&self.actors[*at])).collect();
        for actor in &hung {
            self.actors[*actor] = Life { alive: false, abandoned: true, asked_at: None };
        }
        if let Some(first) = hung.first() {
            return self.fail(Some(*first), Exit::Hung, now, jitter);
        }
        if now < self.ping_at {
            return Decision::Nothing;
        }
        self.ping_at = now.saturating_add(self.config.ping_period.max(Duration::from_millis(1)));
        let silent = |life: &Life| life.asked_at.is_none();
        let actors: Vec<_> = (0..self.actors.len()).filter(|at| silent(&self.actors[*at])).collect();
        for actor in &actors {
            self.actors[*actor].asked_at = Some(now);
        }
        if actors.is_empty() { Decision::Nothing } else { Decision::Ping { generation: self.generation, actors } }
    }

    fn hangs_at(&self, life: &Life) -> Option<Duration> {
        life.asked_at.map(|at| at.saturating_add(self.config.hung_after))
    }

    fn stop(&mut self, now: Duration) -> Decision {
        match self.phase {
            Phase::Stopped => Decision::Done { abandoned: Vec::new() },
            Phase::Stopping { .. } => Decision::Nothing,
            Phase::Starting { .. } | Phase::Running | Phase::BackingOff { .. } => {
                self.phase = Phase::Stopping { abandon_at: now.saturating_add(self.config.stop_timeout) };
                match self.proceed(now) {
                    Decision::Nothing => Decision::Stop(self.generation),
                    done => done,
                }
            }
        }
    }

    fn wake_at(&self) -> Option<Duration> {
        let gone = self.actors.iter().all(|life| !life.alive);
        match self.phase {
            Phase::Stopped => None,
            Phase::Starting { since } => Some(since.saturating_add(self.config.hung_after)),
            Phase::Running => {
                let hangs = self.actors.iter().filter_map(|life| self.hangs_at(life));
                hangs.chain([self.ping_at]).chain(self.policy.settles_at()).min()
            }
            Phase::BackingOff { until, abandon_at, .. } => Some(if gone { until } else { until.max(abandon_at) }),
            Phase::Stopping { abandon_at } => Some(abandon_at),
        }
    }
}
