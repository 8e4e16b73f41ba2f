//! Namespaces of an entry, from its option `namespaces`.

use std::{collections::BTreeSet, fmt};

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::{Deserialize, Serialize};

/// Special characters of globs. A pattern without them is a literal name.
const META: [char; 6] = ['*', '?', '[', ']', '{', '}'];

/// Namespaces of an entry: globs that match a whole name. Globs after `!` exclude names, and have precedence.
///
/// A list with only exclusions means all other namespaces; an empty list means all. The default is all. Two values are
/// equal if their patterns are equal.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Namespaces {
    patterns: Vec<String>,
    includes: Vec<Pattern>,
    excludes: Vec<Pattern>,
    shown: GlobSet,
    hidden: GlobSet,
}

/// Error in a list of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NamespacesError(String);

/// One glob, without its `!`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(Glob);

impl Pattern {
    fn parse(text: &str) -> Result<Self, NamespacesError> {
        let bare = text.strip_prefix('!').unwrap_or(text);
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let allowed = |c: char| named(c) || META.contains(&c) || matches!(c, ',' | '!' | '^');
        let literal = !bare.contains(META);
        if bare.is_empty() || !bare.chars().all(allowed) || literal && !bare.chars().all(named) {
            return Err(NamespacesError(format!(
                "unexpected namespace {text:?}, expected a name of lower-case letters, digits and \"-\", a glob such as \
                 \"team-*\", or either of them after \"!\""
            )));
        }
        Glob::new(bare).map(Self).map_err(|error| invalid(text, &error))
    }

    fn text(&self) -> &str {
        self.0.glob()
    }

    fn is_literal(&self) -> bool {
        !self.text().contains(META)
    }

    /// Returns the literal text before the first glob character.
    fn start(&self) -> &str {
        let text = self.text();
        &text[..text.find(META).unwrap_or(text.len())]
    }

    /// Returns the literal text after the last glob character.
    fn end(&self) -> &str {
        let text = self.text();
        &text[text.rfind(META).map_or(0, |meta| meta + 1)..]
    }

    fn matches(&self, name: &str) -> bool {
        self.0.compile_matcher().is_match(name)
    }

    /// Returns true if this glob certainly matches every name that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        let text = self.text();
        let bare = |text: &str| !text.contains(META);
        let by_start = text.strip_suffix('*').is_some_and(|start| bare(start) && other.start().starts_with(start));
        let by_end = text.strip_prefix('*').is_some_and(|end| bare(end) && other.end().ends_with(end));
        text == other.text() || by_start || by_end || other.is_literal() && self.matches(other.text())
    }

    /// Returns true if certainly no name matches both globs.
    fn is_apart_from(&self, other: &Self) -> bool {
        let clash = |a: &str, b: &str, fits: fn(&str, &str) -> bool| !fits(a, b) && !fits(b, a);
        match (self.is_literal(), other.is_literal()) {
            (true, _) => !other.matches(self.text()),
            (_, true) => !self.matches(other.text()),
            _ => {
                clash(self.start(), other.start(), |a, b| a.starts_with(b))
                    || clash(self.end(), other.end(), |a, b| a.ends_with(b))
            }
        }
    }
}

impl Namespaces {
    /// Parses a list of globs.
    pub fn parse<S: AsRef<str>>(patterns: &[S]) -> Result<Self, NamespacesError> {
        let mut patterns: Vec<String> = patterns.iter().map(|pattern| pattern.as_ref().to_owned()).collect();
        if patterns.is_empty() {
            patterns.push("*".to_owned());
        }
        let (mut includes, mut excludes) = (Vec::new(), Vec::new());
        for pattern in &patterns {
            let list = if pattern.starts_with('!') { &mut excludes } else { &mut includes };
            list.push(Pattern::parse(pattern)?);
        }
        if includes.is_empty() {
            includes.push(Pattern::parse("*")?);
        }
        let (shown, hidden) = (set(&includes)?, set(&excludes)?);
        Ok(Self { patterns, includes, excludes, shown, hidden })
    }

    /// Returns the patterns as they were written; `*` for an empty list.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Returns true if every namespace is included.
    pub fn is_all(&self) -> bool {
        self.excludes.is_empty() && self.includes_all()
    }

    /// Returns true if every included namespace is certainly excluded too, so that none remains.
    pub fn is_nothing(&self) -> bool {
        self.includes.iter().all(|include| self.excludes(include))
    }

    /// Returns true if a namespace with this name is included.
    pub fn matches(&self, name: &str) -> bool {
        self.shown.is_match(name) && !self.hidden.is_match(name)
    }

    /// Returns the included names, in order. `None` if the list includes namespaces by a glob. With only literal names, the engine
    /// needs no rights on other namespaces.
    pub fn names(&self) -> Option<Vec<&str>> {
        if !self.includes.iter().all(Pattern::is_literal) {
            return None;
        }
        let names = self.includes.iter().map(Pattern::text);
        let names: BTreeSet<&str> = names.filter(|name| !self.hidden.is_match(name)).collect();
        Some(names.into_iter().collect())
    }

    /// Returns a field selector that excludes literal names: `metadata.namespace!=a,metadata.namespace!=b`. `None` unless
    /// the list includes all namespaces except one or more literal names.
    pub fn field_selector(&self) -> Option<String> {
        let pushed = self.includes_all() && !self.excludes.is_empty() && self.excludes.iter().all(Pattern::is_literal);
        let names: BTreeSet<&str> = self.excludes.iter().map(Pattern::text).collect();
        let term = |name: &&str| format!("metadata.namespace!={name}");
        pushed.then(|| names.iter().map(term).collect::<Vec<_>>().join(","))
    }

    /// Returns true if requests cannot express the globs: neither as names nor as a field selector. The caller must then apply the
    /// globs to the server's answers, or to the names of the namespaces.
    pub fn needs_filter(&self) -> bool {
        !self.is_all() && self.names().is_none() && self.field_selector().is_none()
    }

    /// Returns the patterns that match none of these names. Each result has the index in [`Namespaces::patterns`], the pattern
    /// without its `!`, and true if the pattern is a literal name.
    pub fn without_match<'a>(&'a self, names: &[impl AsRef<str>]) -> Vec<(usize, &'a str, bool)> {
        let (mut includes, mut excludes) = (self.includes.iter(), self.excludes.iter());
        let mut compiled = |text: &String| if text.starts_with('!') { excludes.next() } else { includes.next() };
        let places = self.patterns.iter().enumerate().filter_map(|(place, text)| Some((place, compiled(text)?)));
        let is_idle = |(_, pattern): &(usize, &Pattern)| {
            let matcher = pattern.0.compile_matcher();
            !names.iter().any(|name| matcher.is_match(name.as_ref()))
        };
        places.filter(is_idle).map(|(place, pattern)| (place, pattern.text(), pattern.is_literal())).collect()
    }

    /// Returns true if certainly no namespace is included by both; false if that is not certain.
    pub fn is_disjoint_from(&self, other: &Self) -> bool {
        let is_left = |include: &&Pattern| !self.excludes(include) && !other.excludes(include);
        let theirs: Vec<&Pattern> = other.includes.iter().filter(is_left).collect();
        let mut mine = self.includes.iter().filter(is_left);
        mine.all(|mine| theirs.iter().all(|their| mine.is_apart_from(their)))
    }

    /// Returns true if every name that `include` matches is certainly excluded.
    fn excludes(&self, include: &Pattern) -> bool {
        self.excludes.iter().any(|exclude| exclude.covers(include))
    }

    fn includes_all(&self) -> bool {
        self.includes.iter().any(|include| include.text().bytes().all(|byte| byte == b'*'))
    }
}

impl Default for Namespaces {
    fn default() -> Self {
        Self::parse::<&str>(&[]).expect("an empty list is all")
    }
}

impl TryFrom<Vec<String>> for Namespaces {
    type Error = NamespacesError;

    fn try_from(patterns: Vec<String>) -> Result<Self, NamespacesError> {
        Self::parse(&patterns)
    }
}

impl From<Namespaces> for Vec<String> {
    fn from(namespaces: Namespaces) -> Self {
        namespaces.patterns
    }
}

impl PartialEq for Namespaces {
    fn eq(&self, other: &Self) -> bool {
        self.patterns == other.patterns
    }
}

impl Eq for Namespaces {}

impl fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Namespaces").field(&self.patterns).finish()
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.patterns.join(", "))
    }
}

fn set(patterns: &[Pattern]) -> Result<GlobSet, NamespacesError> {
    let mut builder = GlobSetBuilder::new();
    for pattern in patterns {
        builder.add(pattern.0.clone());
    }
    let text = || patterns.iter().map(Pattern::text).collect::<Vec<_>>().join(", ");
    builder.build().map_err(|error| invalid(&text(), &error))
}

fn invalid(pattern: &str, error: &globset::Error) -> NamespacesError {
    NamespacesError(format!("invalid glob {pattern:?}: {}", error.kind()))
}

#[cfg(test)]
mod tests;
