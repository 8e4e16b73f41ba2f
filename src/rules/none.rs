//! Stand-in for `when.rs` in a program without the feature `rules`: no expression can be used.

use std::convert::Infallible;

use super::{Before, Failure, RuleError, RuleLimits, subject::Subject};
use crate::{build_info, journal::ChangeKind};

#[derive(Debug)]
pub(super) struct When(Infallible);

impl When {
    pub(super) fn compile(_: &str, _: &str, _: &[&str], _: RuleLimits) -> Result<Self, RuleError> {
        Err(RuleError { line: 1, column: 1, problem: format!("an expression {}", build_info::lacking("rules")) })
    }

    pub(super) fn fields(&self) -> Vec<Vec<&str>> {
        match self.0 {}
    }

    pub(super) fn is_true(
        &self,
        _: ChangeKind,
        _: Before<'_>,
        _: &Subject<'_>,
        _: &Subject<'_>,
    ) -> Result<bool, Failure> {
        match self.0 {}
    }
}
