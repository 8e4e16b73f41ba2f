//! Reasons why an event cannot be written.

use std::fmt;

use serde_json::Value;

use crate::object::Object;

/// Reason why a template cannot be compiled, or makes no text of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// Its class.
    pub kind: TemplateErrorKind,
    /// Where: line and column in the template, from 1, in characters.
    pub place: Option<(usize, usize)>,
    pub(super) message: String,
}

/// Class of a [`TemplateError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateErrorKind {
    /// It is no template, or names a filter, test or function that does not exist: it will never work.
    Wrong,
    /// It reads something that is not there, of this event at least.
    Undefined,
    /// It does something with a value that this value does not allow.
    Unfit,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Reason why an event cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It would be no smaller than in the [`Form`](super::Form) before.
    #[error("format = \"{0}\" has nothing smaller to send")]
    NoSmaller(&'static str),
    /// The server sent JSON that is damaged in a part that was not read before.
    #[error("the object is no valid JSON: {0}")]
    Undecodable(serde_json::Error),
    /// The template failed.
    #[error("the template failed: {0}")]
    Template(TemplateError),
    /// A text that is no JSON cannot be one of several in a JSON array.
    #[error("the template makes a text that is no JSON, and batches are JSON arrays: {0}")]
    NoJson(serde_json::Error),
}

pub(super) fn decoded(object: &Object) -> Result<Value, FormatError> {
    object.value().map_err(FormatError::Undecodable)
}
