//! Checks of `[handlers.<name>]` of type `exec`.

use super::{ExecOptions, report::Section};
use crate::handler::exec::ALL_VARIABLES;

impl ExecOptions {
    /// Checks the program and the names in `env`.
    pub(super) fn check(&self, at: &mut Section<'_>) {
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            let message =
                "expected a program and its arguments, such as [\"/usr/local/bin/on-change.sh\", \"--quiet\"]";
            at.error(&["command"], message);
        }
        let is_name = |name: &String| {
            name == ALL_VARIABLES || !(name.is_empty() || name.contains(|c: char| "=*".contains(c) || c.is_control()))
        };
        if !self.env.iter().all(is_name) {
            let message = "expected names of variables, such as [\"TEAM\"], or [\"*\"] for all";
            at.error(&["env"], message);
        }
    }
}
