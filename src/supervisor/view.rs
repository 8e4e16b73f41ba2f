//! The view of a unit as far as its supervisor shows in it.

use std::time::Duration;

use super::{Exit, Supervisor, SupervisorState};
use crate::status::{UnitState, UnitView};

/// A restart that has just been decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NextRestart {
    /// See [`SupervisorState::BackingOff`].
    pub(crate) attempt: u32,
    /// Delay until the restart.
    pub(crate) delay: Duration,
    /// End of the generation before.
    pub(crate) cause: Exit,
}

impl Supervisor {
    /// Writes restarts and state into the view of the unit, whose actors have these names. Returns the restart that it
    /// did not show before.
    pub(crate) fn show(&self, view: &mut UnitView, actors: &[&str], now: Duration) -> Option<NextRestart> {
        let state = self.state();
        view.restarts = self.restarts();
        view.degraded = self.is_degraded() && state != SupervisorState::Stopped;
        match state {
            SupervisorState::BackingOff { attempt, until, cause } => {
                let is_new = view.state != UnitState::BackingOff;
                view.state = UnitState::BackingOff;
                if is_new && cause == Exit::Hung {
                    let hung = self.last_exit().and_then(|(actor, _)| actor);
                    view.last_error = Some(format!("{} hung", hung.map_or("start", |actor| actors[actor])));
                }
                is_new.then(|| NextRestart { attempt, delay: until.saturating_sub(now), cause })
            }
            SupervisorState::Stopped => {
                view.state = UnitState::Stopped;
                None
            }
            _ => None,
        }
    }
}
