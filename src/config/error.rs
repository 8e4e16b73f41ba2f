//! What is wrong with a configuration, and where.

use std::{fmt, sync::Arc};

use crate::handler::client_tls::ClientTls;

/// The place that set a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    /// Nothing in particular: something is missing altogether.
    Nowhere,
    /// A place in a file.
    File {
        /// Its number among the files, in the order of merging.
        layer: usize,
        /// The file as it was given.
        file: Arc<str>,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// A file as a whole: it cannot be read.
    Unreadable(Arc<str>),
    /// A variable of the environment.
    Environment(Arc<str>),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("configuration"),
            Self::File { file, line, column, .. } => write!(f, "{file}:{line}:{column}"),
            Self::Unreadable(file) => f.write_str(file),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// One mistake, or one thing that is allowed and odd.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The place that set the value.
    pub origin: ValueOrigin,
    /// The key's path, `resources.pods.match[0]`; empty where no key is at fault.
    pub key: String,
    /// What is wrong, what was expected, and the nearest right name.
    pub message: String,
    /// The lines around a syntax error, with a caret.
    pub excerpt: Option<String>,
}

impl Finding {
    pub(crate) fn new(origin: ValueOrigin, key: String, message: impl Into<String>) -> Self {
        Self { origin, key, message: message.into(), excerpt: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{excerpt}")?;
        }
        Ok(())
    }
}

/// A mistake or an oddity of one section: the keys from the section's own, and a sentence.
pub(crate) type Problem = (Vec<String>, String);

pub(crate) fn problem(keys: &[&str], message: impl Into<String>) -> Problem {
    (keys.iter().map(|key| (*key).to_owned()).collect(), message.into())
}

/// Says so where a client has a certificate without a key, or a key alone.
pub(crate) fn half_a_client(tls: &ClientTls) -> Option<Problem> {
    (tls.cert_file.is_some() != tls.key_file.is_some())
        .then(|| problem(&["tls"], "expected both of cert_file and key_file, or none"))
}

/// Errors of a configuration that are reported one by one; the others are counted.
pub(crate) const LISTED_MAX: usize = 100;
/// Names that a suggestion lists.
const NAMES_MAX: usize = 64;

/// The errors of a configuration, in the order of its files and lines; and its warnings. One a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The first hundred; never empty.
    pub errors: Vec<Finding>,
    /// Number of errors beyond these.
    pub more: usize,
    /// What else was noticed.
    pub warnings: Vec<Finding>,
}

impl ConfigErrors {
    /// Sorts errors, and keeps each of the first hundred once.
    pub fn new(mut errors: Vec<Finding>, warnings: Vec<Finding>) -> Self {
        errors.sort();
        errors.dedup();
        let more = errors.len().saturating_sub(LISTED_MAX);
        errors.truncate(LISTED_MAX);
        Self { errors, more, warnings }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more errors", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Returns the nearest of the known names, if one is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.8;
    let name = name.to_lowercase().replace('-', "_");
    let similarity = |known: &str| strsim::jaro_winkler(&name, &known.to_lowercase().replace('-', "_"));
    let scored = known.into_iter().map(|known| (similarity(known), known)).filter(|(score, _)| *score >= NEAR);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// Writes names as `` `a`, `b`, `c` ``.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Suggests the nearest name if there is one, else all of them, up to 64.
pub(crate) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = nearest(name, known.clone()) {
        return format!("did you mean `{near}`?");
    }
    let more = known.clone().into_iter().count().saturating_sub(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("expected one of {}{more}", quoted(known.into_iter().take(NAMES_MAX)))
}
