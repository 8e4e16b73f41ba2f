//! Stand-in for `when.rs` in a program without the feature `rules`: no expression can be used.

use std::convert::Infallible;

use super::{RuleError, RuleLimits, RuleVerdict, subject::Subject};
use crate::{build_info, object::FieldUse};

#[derive(Debug)]
pub(super) struct When(Infallible);

impl When {
    pub(super) fn compile(_: &str, _: &str, _: &[&str], _: RuleLimits) -> Result<Self, RuleError> {
        Err(RuleError { line: 1, column: 1, problem: format!("an expression {}", build_info::lacking("rules")) })
    }

    pub(super) fn source(&self) -> &str {
        match self.0 {}
    }

    pub(super) fn fields(&self) -> Vec<Vec<&str>> {
        match self.0 {}
    }

    pub(super) fn uses(&self) -> &[FieldUse] {
        match self.0 {}
    }

    pub(super) fn judge(&self, _: &Subject<'_>) -> RuleVerdict {
        match self.0 {}
    }
}
