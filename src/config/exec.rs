//! `[handlers.<name>]` of type `exec`: a program that is run for each delivery.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::handler::exec::ExecOptions;

/// Options of a handler of type `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub struct ExecSink {
    /// The program and its arguments; no shell is involved, and without a slash it is looked for in PATH. Required.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
}

impl ExecSink {
    /// Returns the options of the handler of this name, in a cluster of this name.
    ///
    /// # Errors
    /// When there is no program to run: the keys, and what is wrong.
    pub fn options(&self, name: &str, cluster: &str) -> Result<ExecOptions, Vec<(Vec<&'static str>, String)>> {
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            let message =
                "expected a program and its arguments, such as [\"/usr/local/bin/on-change.sh\", \"--quiet\"]";
            return Err(vec![(vec!["command"], message.to_owned())]);
        }
        Ok(ExecOptions { name: name.to_owned(), cluster: cluster.to_owned(), command: self.command.clone() })
    }
}
