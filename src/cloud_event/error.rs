//! Reasons why an event cannot be encoded.

use std::fmt;

use serde_json::Value;

use crate::object::Object;

/// Reason why a template does not compile, or cannot be rendered for an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// Class of the error.
    pub kind: TemplateErrorKind,
    /// Line and column in the template, both from 1; `None` if they are not known.
    pub place: Option<(usize, usize)>,
    pub(super) message: String,
}

/// Class of a [`TemplateError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateErrorKind {
    /// Syntax error, or a filter, test or function that does not exist.
    Wrong,
    /// Access to a field that does not exist in this event.
    Undefined,
    /// Operation that the value does not support.
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

/// Reason why an event cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The format does not support this smaller [`Form`](super::Form) of the event.
    #[error("format = \"{0}\" has no smaller form of the event")]
    NoSmaller(&'static str),
    /// The object contains invalid JSON, in a part that the scan did not check.
    #[error("the object is not valid JSON: {0}")]
    Undecodable(serde_json::Error),
    /// The template failed.
    #[error("the template failed: {0}")]
    Template(TemplateError),
    /// The output of the template is not JSON, so it cannot be an element of a JSON array.
    #[error("the output of the template is not JSON, but a batch needs JSON: {0}")]
    NoJson(serde_json::Error),
}

pub(super) fn decoded(object: &Object) -> Result<Value, FormatError> {
    object.value().map_err(FormatError::Undecodable)
}
