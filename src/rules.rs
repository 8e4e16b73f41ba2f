//! Rules of a handler: conditions on changes, in addition to `on`.
//!
//! - `changed`: in an update, at least one of these paths differs between the previous and the new object.
//! - `when`: a CEL expression over `object`, `old`, `type`, `changes`, `changed_by` and `cluster` is true.
//!
//! [`Rules`] judge each change before the change is coalesced with other changes. They read only the fields that `changed` or
//! `when` names. The previous object in a rule:
//!
//! | change | `old` | `changes` | `changed` |
//! |---|---|---|---|
//! | added, deleted, removed | `null` | `[]` | not checked |
//! | updated | the previous object | the differences | checked |
//! | updated, previous object unknown | unknown | unknown | counts as changed |
//! | unchanged: redelivered by a resync or relist | the object | `[]` | counts as unchanged |
//!
//! If an expression cannot be decided without an unknown value, it matches, so that no event is lost. The previous
//! object is unknown if the cache keeps no bodies, or if the object was dropped to save memory or disk.
//!
//! The language needs the feature `rules`. Without it, every expression is an error.

mod changed;
#[cfg(feature = "rules")]
mod check;
mod limits;
#[cfg(feature = "rules")]
mod meter;
#[cfg(feature = "rules")]
mod reads;
mod subject;
#[cfg(feature = "rules")]
mod value;
#[cfg(feature = "rules")]
mod when;
#[cfg(not(feature = "rules"))]
#[path = "rules/none.rs"]
mod when;

pub(crate) use self::limits::RuleLimits;
pub(crate) use self::limits::cpu_time;
use self::{
    subject::{Before, Subject},
    when::When,
};
use crate::{
    journal::{ChangeKind, ReaderFilter, Record},
    object::{FieldPath, FieldUse, Object, difference::paths_between, scan::ScanError},
};

/// Variables of a handler's rule.
const VARIABLES: [&str; 6] = ["object", "old", "type", "changes", "changed_by", "cluster"];
/// Variables of a condition.
const CONDITION_VARIABLES: [&str; 2] = ["object", "cluster"];
/// CEL function that the engine replaces by its own implementation.
#[cfg(feature = "rules")]
const MATCHES: &str = "matches";
/// Maximum number of differing paths that an explanation names.
const EXPLAINED_MAX: usize = 6;

/// Options of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesOptions {
    /// In an update, at least one of these paths must differ; empty: no condition.
    pub changed: Vec<FieldPath>,
    /// CEL expression that must be true.
    pub when: Option<String>,
    /// Value of `cluster` in the expression.
    pub cluster: String,
    /// Bounds of the expression and of its evaluation.
    pub limits: RuleLimits,
}

/// Error in an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct RuleError {
    /// Line within the expression, from 1.
    pub line: usize,
    /// Column within that line, from 1.
    pub column: usize,
    /// Description of the error, often with the expected text.
    pub problem: String,
}

/// Result of rules for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// The handler receives the change.
    Match,
    /// None of the paths in `changed` differs. The handler does not receive the change; [`Rules::explain`] has details.
    NotChanged,
    /// The expression in `when` is false.
    NotTrue,
    /// The expression could not be evaluated, with this error. This counts as no match.
    Error(String),
    /// The evaluation has exceeded this limit. This counts as no match.
    Exceeded(String),
}

/// The compiled rules of one handler.
#[derive(Debug)]
pub struct Rules {
    changed: Vec<FieldPath>,
    when: Option<When>,
}

impl Rules {
    /// Compiles rules.
    pub fn compile(options: RulesOptions) -> Result<Self, RuleError> {
        let RulesOptions { changed, when, cluster, limits } = options;
        let when = when.map(|text| When::compile(&text, &cluster, &VARIABLES, limits)).transpose()?;
        Ok(Self { changed, when })
    }

    /// Compiles a condition on objects instead of changes: a CEL expression over `object` and `cluster`.
    pub fn condition(text: &str, cluster: &str) -> Result<Self, RuleError> {
        let when = When::compile(text, cluster, &CONDITION_VARIABLES, RuleLimits::CONFIGURATION)?;
        Ok(Self { changed: Vec::new(), when: Some(when) })
    }

    /// Returns the fields of `object` that `when` reads, each as a list of names: `["spec", "replicas"]`. For fields of list
    /// elements, the result contains only the path of the list.
    pub fn fields(&self) -> Vec<Vec<&str>> {
        self.when.as_ref().map(When::fields).unwrap_or_default()
    }

    /// Returns the fields that `when` uses, with their variables.
    pub(crate) fn uses(&self) -> &[FieldUse] {
        self.when.as_ref().map_or(&[], When::uses)
    }

    /// Returns true if there are no rules, so that every change matches.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.when.is_none()
    }

    /// Judges a change of `object`. `old` is the previous object of an update, or `None` if it is unknown; other kinds ignore
    /// `old`. [`ChangeKind::Synced`] always matches.
    pub fn judge(&self, kind: ChangeKind, old: Option<&Object>, object: &Object) -> RuleVerdict {
        if kind == ChangeKind::Synced {
            return RuleVerdict::Match;
        }
        let subject = Subject::new(kind, old, object);
        match self.has_changed(&subject) {
            Ok(true) => self.when.as_ref().map_or(RuleVerdict::Match, |when| when.judge(&subject)),
            Ok(false) => RuleVerdict::NotChanged,
            Err(error) => RuleVerdict::Error(format!("`changed`: {error}")),
        }
    }

    fn has_changed(&self, subject: &Subject<'_>) -> Result<bool, ScanError> {
        match &subject.before {
            _ if self.changed.is_empty() => Ok(true),
            Before::Nothing | Before::Unknown => Ok(true),
            Before::Same => Ok(false),
            Before::Different(old) => changed::differs(&self.changed, old.json(), subject.object.json()),
        }
    }

    /// Returns a text that explains to users why a change does not match; `None` if the change matches. Slower than
    /// [`Rules::judge`].
    pub fn explain(&self, kind: ChangeKind, old: Option<&Object>, object: &Object) -> Option<String> {
        match self.judge(kind, old, object) {
            RuleVerdict::Match => None,
            RuleVerdict::Error(error) | RuleVerdict::Exceeded(error) => Some(error),
            RuleVerdict::NotTrue => {
                let when = self.when.as_ref().map(When::source).unwrap_or_default();
                let lines: Vec<_> = when.trim().lines().map(str::trim).collect();
                Some(format!("`when` is false: {}", lines.join(" ")))
            }
            RuleVerdict::NotChanged => {
                let mut changes = match old.filter(|_| kind == ChangeKind::Updated) {
                    Some(old) => paths_between(&old.json(), &object.json()),
                    None => Vec::new(),
                };
                changes.retain(|path| path != "metadata.resourceVersion"); // changes with every update
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
    fn judge(&self, record: &Record) -> Result<bool, String> {
        let Some(object) = record.object() else { return Ok(true) };
        let old = record.old();
        match self.judge(ChangeKind::of(&record.change), old, object) {
            RuleVerdict::Match => Ok(true),
            RuleVerdict::NotChanged | RuleVerdict::NotTrue => Ok(false),
            RuleVerdict::Error(error) | RuleVerdict::Exceeded(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
