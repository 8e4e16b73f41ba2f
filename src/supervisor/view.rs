//! Parts of a unit's view that its supervisor fills in.

use std::time::Duration;

use super::{Exit, Supervisor, SupervisorState};
use crate::status::{UnitState, UnitView};

/// Restart that was just decided.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NextRestart {
    /// See [`SupervisorState::BackingOff`].
    pub(crate) attempt: u32,
    /// Delay until the restart.
    pub(crate) delay: Duration,
    /// End of the previous generation.
    pub(crate) cause: Exit,
}

impl Supervisor {
    /// Writes restarts and state into the view of the unit; `actors` are the names of its actors. Returns a restart that the
    /// view did not show before.
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
