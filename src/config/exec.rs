//! Checks of `[handlers.<name>]` of type `exec`.

use super::{
    ExecSink,
    error::{Problem, problem},
};
use crate::handler::exec::ALL_VARIABLES;

impl ExecSink {
    /// Checks the options.
    ///
    /// # Errors
    /// Fails if there is no program, or if `env` contains an invalid name; returns the keys and the problems.
    pub(crate) fn check(&self) -> Result<(), Vec<Problem>> {
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            let message =
                "expected a program and its arguments, such as [\"/usr/local/bin/on-change.sh\", \"--quiet\"]";
            return Err(vec![problem(&["command"], message)]);
        }
        let is_name = |name: &String| {
            name == ALL_VARIABLES || !(name.is_empty() || name.contains(|c: char| "=*".contains(c) || c.is_control()))
        };
        if !self.env.iter().all(is_name) {
            let message = "expected names of variables, such as [\"TEAM\"], or [\"*\"] for all";
            return Err(vec![problem(&["env"], message)]);
        }
        Ok(())
    }
}
