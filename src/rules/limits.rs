//! Limits of an expression, and the clock for one of them.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Limits of an expression and of its evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLimits {
    /// Maximum number of steps of one evaluation. An iteration of a macro is one step, or several steps if its work grows with the
    /// object.
    pub steps: u64,
    /// Maximum CPU time of one evaluation, if limited. The same evaluation may exceed it on a slower machine.
    pub cpu: Option<Duration>,
    /// Maximum nesting of macros. An inner macro loops over a list for each element of the outer one.
    pub nested: usize,
    /// Maximum number of macros in a chain. In a chain, each macro is part of the previous macro: of its body, or of its list. Each
    /// macro can multiply the size of the result, because a macro may use each list element several times.
    pub chained: usize,
    /// Set if `matches` takes only literal patterns, and their number and size are limited.
    pub limits_patterns: bool,
}

impl RuleLimits {
    /// Limits of the rules in a configuration. They do not depend on the speed of the machine.
    pub const CONFIGURATION: Self = Self { steps: 1_000_000, cpu: None, nested: 2, chained: 3, limits_patterns: false };

    /// Limits of a client's expression.
    pub const CLIENT: Self =
        Self { steps: 100_000, cpu: Some(Duration::from_millis(50)), nested: 1, chained: 2, limits_patterns: true };
}

impl Default for RuleLimits {
    fn default() -> Self {
        Self::CONFIGURATION
    }
}

/// Returns the CPU time of this thread, which does not depend on other load on the machine.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}
