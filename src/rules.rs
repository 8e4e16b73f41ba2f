//! Rules of a handler: which changes it gets beside what `on` says (D8).
//!
//! - `changed`: of an update, at least one of these paths differs between the state before and the object.
//! - `when`: a CEL expression over `object`, `old`, `type`, `changes`, `changed_by` and `cluster` is true.
//!
//! [`Rules`] judge one change at a time, before it is merged with others, and read of an object only what they name.
//! What is said of the state before:
//!
//! | change | `old` | `changes` | `changed` |
//! |---|---|---|---|
//! | added, deleted, removed | `null` | `[]` | is not asked |
//! | updated | the state before | what differs | is asked |
//! | updated, the state before is not known | not known | not known | counts as changed |
//! | unchanged: a resync, or a relist that delivers it again | the object | `[]` | nothing has changed |
//!
//! What is not known is not guessed: an expression that cannot be decided without it matches, so that nothing is lost.
//! The state before is not known where the cache keeps no bodies, or where it was given up for memory or disk.

mod changed;
mod check;
mod condition;
mod meter;
mod reads;
mod value;
mod when;

use std::fmt;

pub(crate) use self::meter::cpu_time;
use self::{
    changed::Changed,
    check::VARIABLES,
    value::Subject,
    when::{Failure, When},
};
pub use self::{
    condition::Condition,
    meter::{PatternLimits, RuleLimits},
};
use crate::{
    journal::{ChangeKind, Judgement, ReaderFilter, Record},
    object::{FieldPath, Object, difference::paths_between},
};

/// Function of CEL that is replaced by an own one.
const MATCHES: &str = "matches";
/// Paths that are named where none of those in `changed` differs.
const EXPLAINED_MAX: usize = 6;

/// What rules are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesOptions {
    /// Of an update, at least one of these paths has to differ; none: it does not matter.
    pub changed: Vec<FieldPath>,
    /// A CEL expression that has to be true.
    pub when: Option<String>,
    /// What the expression calls `cluster`.
    pub cluster: String,
    /// Bounds of the expression and of its evaluation.
    pub limits: RuleLimits,
}

/// An expression that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct RuleError {
    /// Line within the expression, from 1.
    pub line: usize,
    /// Column within that line, from 1.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// What rules say of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The handler gets it.
    Match,
    /// The handler does not get it.
    NoMatch(MismatchReason),
    /// The expression could not be evaluated, which does not match: what went wrong.
    Error(String),
    /// The evaluation has exceeded a limit, which does not match: which one.
    Exceeded(String),
}

/// Why a change does not match. [`Rules::explain`] says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchReason {
    /// None of the paths in `changed` differs.
    Changed,
    /// The expression in `when` is false.
    When,
}

impl fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Changed => "`changed`: none of the paths differs",
            Self::When => "`when` is false",
        })
    }
}

/// The rules of one handler, made ready.
#[derive(Debug)]
pub struct Rules {
    options: RulesOptions,
    changed: Changed,
    when: Option<When>,
}

/// What is known of the state before a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<'a> {
    /// There is none.
    Nothing,
    /// There is one that is not known.
    Unknown,
    /// It is the object itself.
    Same,
    /// This.
    State(&'a Object),
}

impl Rules {
    /// Makes rules ready.
    pub fn compile(options: RulesOptions) -> Result<Self, RuleError> {
        let when = options
            .when
            .as_deref()
            .map(|text| When::compile(text, &options.cluster, &VARIABLES, options.limits))
            .transpose()?;
        Ok(Self { changed: Changed::new(options.changed.clone()), when, options })
    }

    /// Returns what they were made of.
    pub fn options(&self) -> &RulesOptions {
        &self.options
    }

    /// Returns whether there is any rule: without, every change matches.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.when.is_none()
    }

    /// Judges a change of `object`; `old` is the state before an update where it is known, and of no use with any other
    /// kind. [`ChangeKind::Synced`] is about no object, and matches.
    pub fn judge(&self, kind: ChangeKind, old: Option<&Object>, object: &Object) -> RuleVerdict {
        let before = match (kind, old) {
            (ChangeKind::Synced, _) => return RuleVerdict::Match,
            (ChangeKind::Unchanged, _) => Before::Same,
            (ChangeKind::Updated, None) => Before::Unknown,
            (ChangeKind::Updated, Some(old)) => Before::State(old),
            _ => Before::Nothing,
        };
        let (subject, old) = (Subject::new(object), Subject::before(before, object));
        match self.has_changed(before, &subject, &old) {
            Ok(true) => {}
            Ok(false) => return RuleVerdict::NoMatch(MismatchReason::Changed),
            Err(error) => return RuleVerdict::Error(format!("`changed`: {error}")),
        }
        match self.when.as_ref().map(|when| when.is_true(kind, before, &subject, &old)) {
            None | Some(Ok(true)) => RuleVerdict::Match,
            Some(Ok(false)) => RuleVerdict::NoMatch(MismatchReason::When),
            Some(Err(Failure::Exceeded(limit))) => RuleVerdict::Exceeded(format!("`when`: {limit}")),
            Some(Err(Failure::Other(error))) => RuleVerdict::Error(format!("`when`: {error}")),
        }
    }

    fn has_changed(&self, before: Before<'_>, object: &Subject<'_>, old: &Subject<'_>) -> Result<bool, String> {
        match before {
            _ if self.changed.is_empty() => Ok(true),
            Before::Nothing | Before::Unknown => Ok(true),
            Before::Same => Ok(false),
            Before::State(_) => self.changed.differs(old.json(), object.json()).map_err(|error| error.to_string()),
        }
    }

    /// Says in words why a change does not match; `None` where it does. It costs more than [`Rules::judge`]: for people.
    pub fn explain(&self, kind: ChangeKind, old: Option<&Object>, object: &Object) -> Option<String> {
        match self.judge(kind, old, object) {
            RuleVerdict::Match => None,
            RuleVerdict::Error(error) | RuleVerdict::Exceeded(error) => Some(error),
            RuleVerdict::NoMatch(MismatchReason::When) => {
                let when = self.options.when.as_deref().unwrap_or_default();
                let lines: Vec<_> = when.trim().lines().map(str::trim).collect();
                Some(format!("{}: {}", MismatchReason::When, lines.join(" ")))
            }
            RuleVerdict::NoMatch(MismatchReason::Changed) => {
                let mut changes = match old.filter(|_| kind == ChangeKind::Updated) {
                    Some(old) => paths_between(&old.json(), &object.json()),
                    None => Vec::new(),
                };
                changes.retain(|path| path != "metadata.resourceVersion"); // of every update
                if changes.len() > EXPLAINED_MAX {
                    let more = changes.split_off(EXPLAINED_MAX - 1).len();
                    changes.push(format!("{more} more paths"));
                }
                Some(match changes.as_slice() {
                    [] => "`changed`: nothing differs".to_owned(),
                    [one] => format!("`changed`: only {one} differs"),
                    [some @ .., last] => format!("`changed`: only {} and {last} differ", some.join(", ")),
                })
            }
        }
    }
}

impl ReaderFilter for Rules {
    fn judge(&self, record: &Record) -> Judgement {
        let Some(object) = record.object() else { return Judgement::Wanted };
        let old = record.old();
        match self.judge(ChangeKind::of(&record.change), old, object) {
            RuleVerdict::Match => Judgement::Wanted,
            RuleVerdict::NoMatch(_) => Judgement::Refused,
            RuleVerdict::Error(error) | RuleVerdict::Exceeded(error) => Judgement::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests;
