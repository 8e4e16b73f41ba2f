//! `[handlers.<name>]` of type `exec`: runs a program for each delivery.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{Problem, problem};
use crate::handler::exec::{ALL_VARIABLES, ExecOptions};

/// Options of a handler of type `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ExecSink {
    /// Program and its arguments, without a shell. A program without a slash is searched in PATH. Required.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Names of further environment variables that the program gets from the engine; "*" means all. PATH, HOME, LANG and TZ
    /// are always passed.
    #[serde(default)]
    pub env: Vec<String>,
}

impl ExecSink {
    /// Returns the options of the handler with this name, in the cluster with this name.
    ///
    /// # Errors
    /// Fails if there is no program, or if `env` contains an invalid name; returns the keys and the problems.
    pub fn options(&self, name: &str, cluster: &str) -> Result<ExecOptions, Vec<Problem>> {
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
        let (name, cluster) = (name.to_owned(), cluster.to_owned());
        Ok(ExecOptions { name, cluster, command: self.command.clone(), env: self.env.clone() })
    }
}
