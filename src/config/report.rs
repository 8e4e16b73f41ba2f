//! Errors and warnings that the checks of a configuration find.

use std::{collections::HashSet, fmt::Display};

use super::{
    error::{Finding, LISTED_MAX},
    key_path::KeyPath,
    layers::Positions,
};
use crate::{handler::client_tls::ClientTls, suggestion::suggestion};

/// Errors and warnings of a configuration, with the origins of its values.
#[derive(Default)]
pub(crate) struct Report {
    pub(super) positions: Positions,
    pub(super) errors: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
    /// Keys that have an error, and names that were suggested for misspelt keys. None of them is also reported as missing.
    pub(super) reported: HashSet<KeyPath>,
}

impl Report {
    pub(super) fn new(positions: Positions) -> Self {
        Self { positions, ..Self::default() }
    }

    /// Returns the root section; all other sections are below it.
    pub(super) fn root(&mut self) -> Section<'_> {
        Section { report: self, path: KeyPath::default() }
    }
}

/// One section of a checked configuration. The keys passed to its methods are relative to the section.
pub(crate) struct Section<'a> {
    report: &'a mut Report,
    path: KeyPath,
}

impl Section<'_> {
    /// Returns a section below this one.
    pub(super) fn below(&mut self, keys: &[&str]) -> Section<'_> {
        let path = self.path.join(keys);
        Section { report: self.report, path }
    }

    pub(super) fn error(&mut self, keys: &[&str], message: impl Into<String>) {
        let finding = self.report.positions.finding(&self.path.join(keys), message.into());
        self.report.errors.push(finding);
    }

    pub(super) fn warn(&mut self, keys: &[&str], message: impl Into<String>) {
        let finding = self.report.positions.finding(&self.path.join(keys), message.into());
        self.report.warnings.push(finding);
    }

    /// Returns the value of a result, or reports its error.
    pub(super) fn valid<T, E: Display>(&mut self, keys: &[&str], result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.error(keys, error.to_string())).ok()
    }

    /// Returns true if a layer sets this value, directly or for all entries that inherit it.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.report.positions.is_set(&self.path.child(key))
    }

    /// Returns true if the configuration sets this value directly, not through defaults.
    pub(super) fn is_set_itself(&self, key: &str) -> bool {
        self.report.positions.is_set_itself(&self.path.child(key))
    }

    /// Suggests an existing name. After [`LISTED_MAX`] errors, returns a general text instead, because the search for the
    /// most similar name is slow.
    pub(super) fn suggestion<'b>(&self, name: &str, known: impl Iterator<Item = &'b String> + Clone) -> String {
        if known.clone().next().is_none() {
            "there are none".to_owned()
        } else if self.report.errors.len() < LISTED_MAX {
            suggestion(name, known.map(String::as_str))
        } else {
            "expected an existing name".to_owned()
        }
    }

    /// Reports `tls` options with a certificate but no key, or with a key but no certificate.
    pub(super) fn check_client_tls(&mut self, tls: Option<&ClientTls>) {
        if tls.is_some_and(|tls| tls.cert_file.is_some() != tls.key_file.is_some()) {
            self.error(&["tls"], "expected both of cert_file and key_file, or none");
        }
    }
}

/// Runs a check on values that a program may have changed after loading.
///
/// # Errors
/// Returns all errors, each with its key.
pub(super) fn recheck(check: impl FnOnce(&mut Section<'_>)) -> Result<(), String> {
    let mut report = Report::default();
    check(&mut report.root());
    let errors: Vec<_> = report.errors.iter().map(|error| format!("{}: {}", error.key, error.message)).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}
