//! User-given names of resource types.

use std::fmt;

use crate::object::ResourceType;

/// An element of `match`: a type in kubectl's syntax, or many types.
///
/// - `pods`, `pod`, `po`, `Pod`: plural, singular, short name or kind, in upper or lower case
/// - `deployments.apps`: with the group
/// - `deployments.v1.apps`, `pods.v1.`: with version and group; the name of the core group is empty
/// - `*.apps`: all types of a group
/// - `crd:*`: all types that a CRD defines. No group has a colon in its name.
/// - `*`: all types
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// `*`.
    All,
    /// `crd:*`.
    Custom,
    /// `*.GROUP`.
    Group(String),
    /// One type.
    Type {
        /// Plural, singular, short name or kind, in lower case.
        name: String,
        /// Text after the first dot: a group, or a version and a group. `None` if there is no dot. The text alone does not show
        /// which of the two it is: `cert-manager.io` may be a group, or the version `cert-manager` of the group `io`.
        rest: Option<String>,
    },
}

/// A text that is not a valid resource type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected resource type {text:?}, expected {expected}")]
pub struct PatternError {
    text: String,
    expected: &'static str,
}

impl Pattern {
    /// Parses a pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let fail = |expected| Err(PatternError { text: text.to_owned(), expected });
        let (name, rest) = match text.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        if text.contains('/') {
            return fail("a name as kubectl takes it, like deployments.v1.apps; subresources cannot be watched");
        }
        match (name, rest) {
            ("*", None) => Ok(Self::All),
            ("crd:*", None) => Ok(Self::Custom),
            ("*", Some(group)) if is_group(group) => Ok(Self::Group(group.to_ascii_lowercase())),
            ("*", Some(_)) => fail("*.GROUP, like *.apps"),
            (name, _) if !is_label(name) => {
                fail("a name like pods, deployments.apps or deployments.v1.apps, or *, *.GROUP or crd:*")
            }
            (_, Some(rest)) if !is_group(rest.strip_suffix('.').unwrap_or(rest)) => {
                fail("NAME.GROUP or NAME.VERSION.GROUP")
            }
            (name, rest) => Ok(Self::Type { name: name.to_ascii_lowercase(), rest: rest.map(str::to_ascii_lowercase) }),
        }
    }

    /// Returns true if the pattern names this type by its plural or its kind, in any version. Short names are unknown here.
    pub fn names(&self, resource: &ResourceType) -> bool {
        let Self::Type { name, rest } = self else { return false };
        let is_group =
            |rest: &str| rest == resource.group || rest.split_once('.').is_some_and(|(_, g)| g == resource.group);
        (*name == resource.plural || resource.kind.eq_ignore_ascii_case(name)) && rest.as_deref().is_none_or(is_group)
    }

    /// Returns true if the pattern can match many types.
    pub fn is_wildcard(&self) -> bool {
        !matches!(self, Self::Type { .. })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Custom => f.write_str("crd:*"),
            Self::Group(group) => write!(f, "*.{group}"),
            Self::Type { name, rest: None } => f.write_str(name),
            Self::Type { name, rest: Some(rest) } => write!(f, "{name}.{rest}"),
        }
    }
}

/// Returns true for a DNS label, in upper or lower case.
fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_group(text: &str) -> bool {
    text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_follow_kubectl_spelling() {
        let one = |name: &str, rest: Option<&str>| Pattern::Type { name: name.into(), rest: rest.map(Into::into) };
        for (text, expected) in [
            ("pods", one("pods", None)),
            ("Pod", one("pod", None)),
            ("deployments.apps", one("deployments", Some("apps"))),
            ("Deployment.v1.apps", one("deployment", Some("v1.apps"))),
            ("pods.v1.", one("pods", Some("v1."))),
            ("certificates.cert-manager.io", one("certificates", Some("cert-manager.io"))),
            ("*", Pattern::All),
            ("crd:*", Pattern::Custom),
            ("*.crd", Pattern::Group("crd".into())),
            ("crd", one("crd", None)),
            ("*.apps", Pattern::Group("apps".into())),
        ] {
            assert_eq!(Pattern::parse(text).unwrap(), expected, "{text}");
        }
        for (text, shown) in
            [("Deployment.V1.apps", "deployment.v1.apps"), ("*.apps", "*.apps"), ("*", "*"), ("crd:*", "crd:*")]
        {
            assert_eq!(Pattern::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for text in [
            "",
            ".",
            ".apps",
            "pods..",
            "pods..apps",
            "pods/status",
            "apps/v1",
            "po ds",
            "*pods",
            "*.",
            "**",
            "*.*",
            "-a",
            "a.b-",
            "pöds",
            "crd:",
            "crd:foos",
            "crd:*.acme.io",
            "*:crd",
        ] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
    }
}
