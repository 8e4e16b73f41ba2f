//! Paths into an object, in the syntax of the configuration.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Largest number of steps in a path; it limits the recursion along a path.
const STEPS_MAX: usize = 32;

/// Members that are always lists in built-in Kubernetes types.
const LISTS: [&str; 14] = [
    "conditions",
    "containerStatuses",
    "containers",
    "env",
    "envFrom",
    "ephemeralContainers",
    "initContainerStatuses",
    "initContainers",
    "ownerReferences",
    "ports",
    "taints",
    "tolerations",
    "volumeMounts",
    "volumes",
];

/// A path such as `spec.nodeName`, `metadata.annotations['a/b']` or `status.conditions[*].type`.
///
/// A step is `.name`, `['name']` or `["name"]`; a backslash escapes a quote or a backslash. The steps `[*]` and `.*` select
/// every element of an array and every member of an object. There are no positions in arrays.
///
/// Three words abbreviate a longer path. At the start of a path, `labels` and `annotations` mean `metadata.labels` and
/// `metadata.annotations`. As the whole path, `owner` means `metadata.ownerReferences[*].uid`. Write `['labels']` for a top-level
/// member with such a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FieldPath {
    pub(super) steps: Vec<PathStep>,
}

/// One step of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PathStep {
    /// A member of an object.
    Member(Box<str>),
    /// Every element of an array, or every member of an object: `[*]` or `.*`.
    Each,
}

/// Syntax error of a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid path {path:?} at byte {at}: {expected}")]
pub struct FieldPathError {
    path: String,
    at: usize,
    expected: &'static str,
}

impl FieldPathError {
    /// Returns the byte offset of the error.
    pub fn at(&self) -> usize {
        self.at
    }
}

impl FieldPath {
    /// Parses a path.
    ///
    /// ```
    /// # use deltabus::FieldPath;
    /// let path = FieldPath::parse("labels['app.kubernetes.io/name']").unwrap();
    /// assert_eq!(path.to_string(), "metadata.labels['app.kubernetes.io/name']");
    /// assert!(FieldPath::parse(".spec").unwrap_err().to_string().contains("without the leading"));
    /// ```
    pub fn parse(path: &str) -> Result<Self, FieldPathError> {
        Parser { path, at: 0 }.path().map_err(|(at, expected)| FieldPathError { path: path.to_owned(), at, expected })
    }

    /// Inserts each missing `[*]` after a list of a built-in type: `spec.containers.image` becomes `spec.containers[*].image`.
    /// Without `[*]`, such a path never matches. Returns `None` if no `[*]` is missing.
    pub(crate) fn with_lists(&self) -> Option<Self> {
        let mut steps = Vec::with_capacity(self.steps.len() + 1);
        for step in &self.steps {
            let behind_list = matches!(steps.last(), Some(PathStep::Member(name)) if LISTS.contains(&&**name));
            if behind_list && matches!(step, PathStep::Member(_)) {
                steps.push(PathStep::Each);
            }
            steps.push(step.clone());
        }
        (steps.len() > self.steps.len()).then_some(Self { steps })
    }

    /// Returns the path with these steps, of which there is at least one.
    pub(crate) fn from_steps(steps: &[PathStep]) -> Self {
        Self { steps: steps.to_vec() }
    }

    /// Returns the steps; there is at least one.
    pub(crate) fn steps(&self) -> &[PathStep] {
        &self.steps
    }
}

/// Parser of one path; an error is an offset and an expectation.
struct Parser<'a> {
    path: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn path(mut self) -> Result<FieldPath, (usize, &'static str)> {
        match self.rest().chars().next() {
            None => return Err((0, "expected a path, such as `spec.nodeName`")),
            Some('$') => return Err((0, "write the path without the leading `$`, such as `spec.nodeName`")),
            Some('.') => return Err((0, "write the path without the leading `.`, such as `spec.nodeName`")),
            Some('[') => {}
            Some(_) => return self.name().and_then(|first| self.steps(alias(first))),
        }
        self.steps(Vec::new())
    }

    fn steps(&mut self, mut steps: Vec<PathStep>) -> Result<FieldPath, (usize, &'static str)> {
        while let Some(next) = self.rest().chars().next() {
            if steps.len() >= STEPS_MAX {
                return Err((self.at, "expected at most 32 steps"));
            }
            match next {
                '.' => {
                    self.at += 1;
                    steps.push(self.name()?);
                }
                '[' => steps.push(self.bracket()?),
                _ => return Err((self.at, "expected `.` or `[`")),
            }
        }
        // `owner` alone is an abbreviation; with further steps it is a member
        if steps == [PathStep::Member("owner".into())] && !self.path.starts_with('[') {
            steps = vec![member("metadata"), member("ownerReferences"), PathStep::Each, member("uid")];
        }
        Ok(FieldPath { steps })
    }

    /// Parses `name` or `*`.
    fn name(&mut self) -> Result<PathStep, (usize, &'static str)> {
        let rest = self.rest();
        let len = rest.find(|c: char| ".[]'\"$\\,".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
        let name = &rest[..len];
        if name.is_empty() {
            return Err((self.at, "expected a name or `*`"));
        }
        if name == "*" {
            self.at += len;
            return Ok(PathStep::Each);
        }
        if let Some(star) = name.find('*') {
            return Err((self.at + star, "expected `*` to stand alone: a part of a name cannot be matched"));
        }
        self.at += len;
        Ok(member(name))
    }

    /// Parses `[*]`, `['name']` or `["name"]`.
    fn bracket(&mut self) -> Result<PathStep, (usize, &'static str)> {
        self.at += 1;
        let step = match self.rest().chars().next() {
            Some('*') => {
                self.at += 1;
                PathStep::Each
            }
            Some(quote @ ('\'' | '"')) => self.quoted(quote)?,
            Some(c) if c.is_ascii_digit() => {
                return Err((self.at, "expected `[*]`: positions in arrays are not stable"));
            }
            Some(_) | None => return Err((self.at, "expected `*` or a name in quotes, such as `['a/b']`")),
        };
        if !self.rest().starts_with(']') {
            return Err((self.at, "expected `]`"));
        }
        self.at += 1;
        Ok(step)
    }

    fn quoted(&mut self, quote: char) -> Result<PathStep, (usize, &'static str)> {
        let mut name = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((offset, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, c @ ('\'' | '"' | '\\'))) => name.push(c),
                    _ => return Err((self.at + offset + 1, "expected a quote or a backslash after `\\`")),
                },
                c if c == quote => {
                    self.at += offset + 1;
                    return Ok(member(&name));
                }
                c => name.push(c),
            }
        }
        Err((self.path.len(), "expected the closing quote"))
    }

    fn rest(&self) -> &'a str {
        &self.path[self.at..]
    }
}

fn member(name: &str) -> PathStep {
    PathStep::Member(name.into())
}

fn alias(first: PathStep) -> Vec<PathStep> {
    match &first {
        PathStep::Member(name) if matches!(&**name, "labels" | "annotations") => vec![member("metadata"), first],
        _ => vec![first],
    }
}

impl fmt::Display for FieldPath {
    /// Writes the path so that [`FieldPath::parse`] reads the same path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                PathStep::Each => f.write_str("[*]")?,
                PathStep::Member(name) => write_member(f, name, index == 0)?,
            }
        }
        Ok(())
    }
}

/// Writes the step to a member in the syntax of [`FieldPath::parse`]; `first` is set for the first step of a path.
pub(super) fn write_member(out: &mut impl fmt::Write, name: &str, first: bool) -> fmt::Result {
    if !is_plain(name) || first && is_alias(name) {
        write!(out, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))
    } else if first {
        out.write_str(name)
    } else {
        write!(out, ".{name}")
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_alias(name: &str) -> bool {
    matches!(name, "labels" | "annotations" | "owner")
}

impl TryFrom<String> for FieldPath {
    type Error = FieldPathError;

    fn try_from(path: String) -> Result<Self, FieldPathError> {
        Self::parse(&path)
    }
}

impl From<FieldPath> for String {
    fn from(path: FieldPath) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_documented_path_spelling_is_parsed() {
        let check = |path: &str, canonical: &str| {
            let parsed = FieldPath::parse(path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.to_string(), canonical, "{path}");
            assert_eq!(FieldPath::parse(canonical).expect("canonical"), parsed, "{path}");
        };
        check("spec", "spec");
        check("spec.nodeName", "spec.nodeName");
        check("metadata.annotations['a/b']", "metadata.annotations['a/b']");
        check("metadata.annotations[\"a/b\"]", "metadata.annotations['a/b']");
        check("status.conditions[*].type", "status.conditions[*].type");
        check("data.*", "data[*]");
        check("*", "[*]");
        check("[*].a", "[*].a");
        check("labels['app']", "metadata.labels.app");
        check("labels", "metadata.labels");
        check("annotations.x", "metadata.annotations.x");
        check("['labels'].x", "['labels'].x");
        check("owner", "metadata.ownerReferences[*].uid");
        check("owner.name", "['owner'].name");
        check("['owner']", "['owner']");
        check(r"a['it\'s'].b", r"a['it\'s'].b");
        check("a['']", "a['']");
        check("spec.größe", "spec['größe']");
    }

    #[test]
    fn path_mistake_is_named_with_position() {
        let check = |path: &str, at: usize, word: &str| {
            let error = FieldPath::parse(path).expect_err(path);
            assert_eq!(error.at(), at, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        };
        check("", 0, "expected a path");
        check(".spec", 0, "without the leading `.`");
        check("$.spec", 0, "without the leading `$`");
        check("a..b", 2, "a name");
        check("a.", 2, "a name");
        check("a[0]", 2, "positions");
        check("a[b]", 2, "quotes");
        check("a[", 2, "quotes");
        check("a['b'", 5, "`]`");
        check("a['b", 4, "closing quote");
        check("a[*", 3, "`]`");
        check("a b", 1, "`.` or `[`");
        check("a.b*", 3, "alone");
        check(r"a['\n']", 4, "after `\\`");
        check(&["a"; 33].join("."), 63, "32 steps");
    }

    proptest! {
        #[test]
        fn any_text_is_path_or_error(path in r#"[a-c.\[\]'"*$\\é ]{0,12}"#) {
            if let Ok(parsed) = FieldPath::parse(&path) {
                prop_assert_eq!(FieldPath::parse(&parsed.to_string()), Ok(parsed));
            }
        }

        #[test]
        fn any_path_round_trips(steps in proptest::collection::vec(
            prop_oneof![any::<String>().prop_map(|name| PathStep::Member(name.into())), Just(PathStep::Each)], 1..6
        )) {
            let path = FieldPath { steps };
            prop_assert_eq!(FieldPath::parse(&path.to_string()), Ok(path));
        }
    }

    #[test]
    fn list_member_path_covers_each_element() {
        let meant = |path: &str| FieldPath::parse(path).expect("a path").with_lists().map(|path| path.to_string());
        assert_eq!(meant("spec.containers.image").as_deref(), Some("spec.containers[*].image"));
        assert_eq!(meant("spec.containers.env.value").as_deref(), Some("spec.containers[*].env[*].value"));
        for path in ["spec.containers[*].image", "spec.containers", "spec['containers'][*]", "owner", "containers"] {
            assert_eq!(meant(path), None, "{path}");
        }
    }
}
