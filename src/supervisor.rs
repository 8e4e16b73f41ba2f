//! Restarts groups of actors with backoff, without end: if one actor fails, the whole group restarts.
//!
//! `Supervisor` is the pure state machine of one unit (reflector, queue and indexer of a type). `informer/actor.rs` starts the
//! actors, sends heartbeats and reports exits. `RestartPolicy` decides when to try again, for units and for handlers.
//!
//! ```text
//!            ┌─────────── backoff over, and all gone: next generation ─────────────┐
//!            ▼                                                                     │
//!   Stopped ─▶ Starting ──all booted──▶ Running (or Degraded) ──exit, hang──▶ BackingOff
//!      ▲           └──────────────────────── exit, hang ───────────────────────────▲
//!      └── all gone ── Stopping ◀── Stop, from anywhere
//! ```
//!
//! Reasons: `docs/decisions/0009-own-supervision.md`.

pub(crate) mod arbiters;
pub(crate) mod child;
pub(crate) mod fault;
#[cfg(test)]
mod model_tests;
mod policy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    backoff::BackoffConfig,
    status::{UnitState, UnitView},
    text::Text,
};

pub(crate) use policy::{Restart, RestartPolicy};

/// Time limit for an actor to stop before it is abandoned.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Restarts of units (reflector, queue and indexer of one type) and handlers.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Supervision {
    /// Delay before a restart.
    pub backoff: BackoffConfig,
    /// Time without a heartbeat after which an actor is replaced.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub hung_after: Duration,
    /// Number of restarts within five minutes after which the state is `degraded`. Restarts continue.
    #[schemars(range(min = 1))]
    #[educe(Default = 5)]
    pub degraded_after: u32,
    /// Longest wait of `/readyz` for the first list of a type that only a wildcard of `match` selects. A type that is named exactly
    /// is always required.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(2))]
    pub ready_after: Duration,
}

impl Supervision {
    /// Returns the interval of heartbeats.
    fn ping_period(&self) -> Duration {
        self.hung_after / 3
    }
}

/// End of an actor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exit {
    /// The actor stopped, with or without a request.
    #[error("stopped")]
    Stopped,
    /// The actor failed, with the reason.
    #[error("failed: {0}")]
    Failed(String),
    /// The actor panicked, with the payload if that is text.
    #[error("panicked: {0}")]
    Panicked(String),
    /// The actor did not answer its heartbeat, or did not start, in time.
    #[error("hung")]
    Hung,
    /// The thread of the actor has ended, or could not be started.
    #[error("its thread has ended")]
    ArbiterGone,
}

/// Index of an actor in the unit, counted from 0 in the order in which data passes through the actors.
pub(crate) type ActorIndex = usize;

/// Number of a unit's generation, from 1. Messages of earlier generations are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Generation(pub u64);

/// Input of a [`Supervisor`]: a command or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorInput {
    /// Starts the unit, if it is stopped.
    Start,
    /// Every actor of this generation is up.
    Started(Generation),
    /// An actor ended, or could not be started.
    Exited { generation: Generation, actor: ActorIndex, exit: Exit },
    /// An actor answered its heartbeat.
    Answered { generation: Generation, actor: ActorIndex },
    /// The time [`SupervisorVerdict::wake_at`] has come.
    Timer,
    /// Stops the unit.
    Stop,
}

/// Decision of a [`Supervisor`]; its caller carries the decision out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// No action.
    Nothing,
    /// Start every actor of a new generation. The abandoned actors of the previous generation have not ended: they are
    /// hung, or ignore the request to stop.
    Start { generation: Generation, abandoned: Vec<ActorIndex> },
    /// Ask every living actor of this generation to stop.
    Stop(Generation),
    /// Send a heartbeat to these actors.
    Ping { generation: Generation, actors: Vec<ActorIndex> },
    /// The unit has stopped as requested, except for the abandoned actors.
    Done { abandoned: Vec<ActorIndex> },
}

/// Result of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SupervisorVerdict {
    pub(crate) decision: Decision,
    /// Time for the next [`SupervisorInput::Timer`]; replaces every earlier time. `None` if no timer is needed.
    pub(crate) wake_at: Option<Duration>,
}

/// Supervisor of the actors of one unit.
///
/// Each input leads to one [`SupervisorVerdict`]. The supervisor has no clock and no random source, and knows actors
/// only by number.
///
/// **Invariants:** generations only grow. A generation is started when every actor of the previous one has ended or was
/// abandoned. Exits and answers of another generation change nothing. The supervisor never gives up.
#[derive(Debug)]
pub(crate) struct Supervisor {
    config: Supervision,
    policy: RestartPolicy,
    phase: Phase,
    generation: Generation,
    actors: Vec<Life>,
    ping_at: Duration,
    restarts: u64,
}

#[derive(Clone, Debug)]
enum Phase {
    Stopped,
    Starting {
        since: Duration,
    },
    Running,
    /// An actor has failed, or the start of the unit hung: then `actor` is `None`.
    BackingOff {
        attempt: u32,
        until: Duration,
        actor: Option<ActorIndex>,
        cause: Exit,
        abandon_at: Duration,
        /// Set once [`Supervisor::take_failure`] has returned this failure.
        is_told: bool,
    },
    Stopping {
        abandon_at: Duration,
    },
}

/// State of one actor.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    alive: bool,
    /// Set if the actor was abandoned.
    abandoned: bool,
    /// Time of the unanswered heartbeat; `None` if there is none.
    asked_at: Option<Duration>,
}

impl Supervisor {
    /// Creates the supervisor of a unit with this number of actors. Its first input is [`SupervisorInput::Start`].
    pub(crate) fn new(config: Supervision, actors: usize) -> Self {
        Self {
            policy: RestartPolicy::new(&config),
            config,
            phase: Phase::Stopped,
            generation: Generation::default(),
            actors: vec![Life::default(); actors],
            ping_at: Duration::ZERO,
            restarts: 0,
        }
    }

    /// Handles an input, and returns the action. `jitter` is uniform in `[0, 1)`.
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

    /// Returns the generation that was started last; 0 before the first.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Writes the number of restarts, and a state that hides the one of the reflector, into the view of the unit.
    pub(crate) fn show(&self, view: &mut UnitView) {
        view.restarts = self.restarts;
        view.degraded = self.policy.is_degraded() && !matches!(self.phase, Phase::Stopped);
        view.supervised = match self.phase {
            Phase::Stopped => Some(UnitState::Stopped),
            Phase::BackingOff { .. } => Some(UnitState::BackingOff),
            Phase::Starting { .. } if self.restarts > 0 => Some(UnitState::BackingOff),
            Phase::Starting { .. } | Phase::Running | Phase::Stopping { .. } => None,
        };
    }

    /// Returns the failure that the unit restarts after, once for each failure: the next restart, the actor that failed, and the
    /// cause. The actor is `None` if the start hung.
    pub(crate) fn take_failure(&mut self, now: Duration) -> Option<(Restart, Option<ActorIndex>, &Exit)> {
        match &mut self.phase {
            Phase::BackingOff { attempt, until, actor, cause, is_told, .. } if !*is_told => {
                *is_told = true;
                Some((Restart { attempt: *attempt, delay: until.saturating_sub(now) }, *actor, cause))
            }
            _ => None,
        }
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
            self.ping_at = now.saturating_add(self.config.ping_period());
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

    /// Stops the rest of the unit after a failure of one actor; the whole unit restarts after a delay.
    fn fail(&mut self, actor: Option<ActorIndex>, cause: Exit, now: Duration, jitter: f64) -> Decision {
        let Restart { attempt, delay } = self.policy.failed(now, jitter);
        let (until, abandon_at) = (now.saturating_add(delay), now.saturating_add(STOP_TIMEOUT));
        self.phase = Phase::BackingOff { attempt, until, actor, cause, abandon_at, is_told: false };
        Decision::Stop(self.generation)
    }

    /// Ends the phase `BackingOff` or `Stopping` if all actors have ended, or if their time limit has passed. `BackingOff` also
    /// lasts until its delay is over.
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
            // An abandoned actor that answers again is awaited again: it was asked to stop, and can do that now.
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

    /// Detects hung actors, and sends the heartbeats that are due.
    fn check(&mut self, now: Duration, jitter: f64) -> Decision {
        self.policy.settle(now);
        // Actors on one thread hang together, so all of them are abandoned at once.
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
        self.ping_at = now.saturating_add(self.config.ping_period().max(Duration::from_millis(1)));
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
                self.phase = Phase::Stopping { abandon_at: now.saturating_add(STOP_TIMEOUT) };
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
