//! Errors of a configuration, and their origins.

use std::{fmt, sync::Arc};

/// Origin of a value: a position in a file, an environment variable, or a flag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    /// No origin: a required value is missing.
    Nowhere,
    /// Position in a file.
    File {
        /// Number of the file in the order of merging, from 1.
        layer: usize,
        /// Path of the file as it was given.
        file: Arc<str>,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// File that cannot be read.
    Unreadable(Arc<str>),
    /// Environment variable.
    Environment(Arc<str>),
    /// Flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("configuration"),
            Self::File { file, line, column, .. } => write!(f, "{file}:{line}:{column}"),
            Self::Unreadable(file) => f.write_str(file),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One error, or one allowed but suspicious setting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Origin of the value.
    pub origin: ValueOrigin,
    /// Path of the key, such as `resources.pods.match[0]`; empty if no key is at fault.
    pub key: String,
    /// Description of the problem, often with the expected value or the most similar valid name.
    pub message: String,
    /// Lines around a syntax error, with a caret; `None` for other errors.
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

/// Maximum number of listed errors of a configuration; further errors are only counted.
pub(crate) const LISTED_MAX: usize = 100;

/// Errors of a configuration in the order of its files and lines, and its warnings. `Display` writes each error on one line,
/// and the excerpt of a syntax error below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// First hundred errors; never empty.
    pub errors: Vec<Finding>,
    /// Number of further errors.
    pub more: usize,
    /// Warnings about the configuration.
    pub warnings: Vec<Finding>,
}

impl ConfigErrors {
    /// Sorts errors, removes duplicates, and keeps the first hundred.
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
