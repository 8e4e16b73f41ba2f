//! Templates of subjects.
//!
//! **Invariants:** every value is one token, and different values are different tokens. The token of a value is never
//! empty and contains no separator or wildcard of NATS.

use std::fmt::Write as _;

use crate::{journal::ChangeKind, notification::Event};

/// Maximum length of a subject. A server closes the connection after a command line of more than 4 KiB.
pub const SUBJECT_LEN_MAX: usize = 2048;

/// Value of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placeholder {
    /// Configured name of the cluster.
    Cluster,
    /// API group; `core` for the empty group.
    Group,
    /// Plural name of the type.
    Resource,
    /// Namespace; `_` for none.
    Namespace,
    /// Name of the object; `_` for `synced`, which has none.
    Name,
    /// Kind of the type.
    Kind,
    /// Version of the type's API.
    Version,
    /// `added`, `updated`, `deleted`, `removed`, `synced`.
    Event,
}

const PLACEHOLDERS: [(&str, Placeholder); 8] = [
    ("cluster", Placeholder::Cluster),
    ("group", Placeholder::Group),
    ("resource", Placeholder::Resource),
    ("namespace", Placeholder::Namespace),
    ("name", Placeholder::Name),
    ("kind", Placeholder::Kind),
    ("version", Placeholder::Version),
    ("event", Placeholder::Event),
];

/// One token: text with at most one placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    before: String,
    value: Option<(Placeholder, String)>,
}

/// A valid template of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectTemplate(Vec<Token>);

impl SubjectTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let tokens = text.split('.').map(Token::parse).collect::<Result<Vec<_>, _>>()?;
        if text.starts_with('$') {
            return Err("begins with \"$\", which is reserved for the server: expected another first token".to_owned());
        }
        Ok(Self(tokens))
    }

    /// Returns true if each object has its own subjects. Otherwise the sequence of a subject does not belong to one
    /// object.
    pub fn is_per_object(&self) -> bool {
        use Placeholder::{Group, Kind, Name, Namespace, Resource};
        let has = |wanted| self.0.iter().any(|token| token.placeholder() == Some(wanted));
        has(Group) && (has(Resource) || has(Kind)) && has(Namespace) && has(Name)
    }

    /// Returns the wildcard for all subjects of the template, for every cluster.
    pub fn wildcard(&self) -> String {
        let tokens: Vec<_> =
            self.0.iter().map(|token| if token.value.is_some() { "*" } else { token.before.as_str() }).collect();
        tokens.join(".")
    }

    /// Returns the subject of an event.
    pub fn subject(&self, cluster: &str, event: &Event) -> String {
        self.fill(|placeholder, out| write_value(out, placeholder, cluster, event))
    }

    fn fill(&self, write: impl Fn(Placeholder, &mut String)) -> String {
        let mut subject = String::with_capacity(96);
        for (i, token) in self.0.iter().enumerate() {
            if i > 0 {
                subject.push('.');
            }
            subject.push_str(&token.before);
            if let Some((placeholder, after)) = &token.value {
                write(*placeholder, &mut subject);
                subject.push_str(after);
            }
        }
        subject
    }
}

impl Token {
    fn placeholder(&self) -> Option<Placeholder> {
        self.value.as_ref().map(|(placeholder, _)| *placeholder)
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("has an empty token: expected text or a placeholder between the dots".to_owned());
        }
        let Some((before, rest)) = text.split_once('{') else {
            return Ok(Self { before: literal(text)?, value: None });
        };
        let Some((name, after)) = rest.split_once('}') else {
            return Err(format!("has no \"}}\" after \"{{{rest}\""));
        };
        let Some((_, placeholder)) = PLACEHOLDERS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = PLACEHOLDERS.iter().map(|(name, _)| format!("{{{name}}}")).collect();
            return Err(format!("has the unknown placeholder {{{name}}}: expected one of {}", known.join(" ")));
        };
        if after.contains('{') {
            return Err(format!("has two placeholders in \"{text}\": expected a \".\" between them"));
        }
        Ok(Self { before: literal(before)?, value: Some((*placeholder, literal(after)?)) })
    }
}

fn literal(text: &str) -> Result<String, String> {
    match text.chars().find(|letter| !letter.is_ascii_graphic() || matches!(letter, '*' | '>' | '}' | '%')) {
        Some(letter) => Err(format!("has {letter:?} in \"{text}\": expected printable ASCII other than * > }} %")),
        None => Ok(text.to_owned()),
    }
}

fn write_value(out: &mut String, placeholder: Placeholder, cluster: &str, event: &Event) {
    let resource = &event.unit.resource;
    let object = event.record.object();
    match placeholder {
        Placeholder::Cluster => encode_or(out, cluster, "_"),
        Placeholder::Group => write_group(out, &resource.group),
        Placeholder::Resource => encode_or(out, &resource.plural, "_"),
        Placeholder::Kind => encode_or(out, &resource.kind, "_"),
        Placeholder::Version => encode_or(out, &resource.version, "_"),
        Placeholder::Namespace => {
            let of_unit = event.unit.namespace.as_deref().unwrap_or_default();
            encode_or(out, object.map_or(of_unit, |object| object.namespace()), "_");
        }
        Placeholder::Name => encode_or(out, object.map_or("", |object| object.name()), "_"),
        Placeholder::Event => out.push_str(ChangeKind::of(&event.record.change).as_str()),
    }
}

/// Writes a group. The empty group is written as `core`, so the first letter of a group named `core` is encoded.
fn write_group(out: &mut String, group: &str) {
    match group.strip_prefix('c') {
        Some("ore") => out.push_str("%63ore"),
        _ => encode_or(out, group, "core"),
    }
}

/// Writes a value as a token: letters, digits and `-` are unchanged, every other byte becomes `%XX`.
fn encode_or(out: &mut String, value: &str, empty: &str) {
    if value.is_empty() {
        out.push_str(empty);
    }
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string succeeds");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(value: &str) -> String {
        let mut out = String::new();
        encode_or(&mut out, value, "_");
        out
    }

    fn group(value: &str) -> String {
        let mut out = String::new();
        write_group(&mut out, value);
        out
    }

    #[test]
    fn values_become_tokens() {
        for (value, expected) in [
            ("web-1", "web-1"),
            ("cert-manager.io", "cert-manager%2Eio"),
            ("system:node:a", "system%3Anode%3Aa"),
            ("*", "%2A"),
            ("_", "%5F"),
            ("%2E", "%252E"),
            ("größe", "gr%C3%B6%C3%9Fe"),
            ("", "_"),
        ] {
            assert_eq!(token(value), expected);
        }
        assert_eq!([group(""), group("core"), group("apps")], ["core", "%63ore", "apps"]);
    }

    #[test]
    fn bad_subject_template_is_refused_with_reason() {
        for (text, expected) in [
            ("k8s..{name}", "has an empty token"),
            ("", "has an empty token"),
            ("k8s.{nam}", "unknown placeholder {nam}: expected one of {cluster} {group}"),
            ("k8s.{name", "has no \"}\""),
            ("k8s.{kind}-{name}", "has two placeholders in \"{kind}-{name}\""),
            ("k8s.>", "has '>'"),
            ("k8s.a b", "has ' '"),
            ("$JS.{name}", "begins with \"$\""),
        ] {
            let error = SubjectTemplate::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn template_knows_wildcard_and_object_uniqueness() {
        let template = |text| SubjectTemplate::parse(text).unwrap();
        let full = template("k8s.{cluster}.{group}.{resource}.{namespace}.{name}");
        assert_eq!(full.wildcard(), "k8s.*.*.*.*.*");
        assert!(full.is_per_object());
        assert_eq!(template("a.x-{kind}.b").wildcard(), "a.*.b");
        for text in
            ["k8s.{group}.{resource}.{name}", "k8s.{resource}.{namespace}.{name}", "k8s.{group}.{namespace}.{name}"]
        {
            assert!(!template(text).is_per_object(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn different_values_are_different_valid_tokens(a in ".*", b in ".*") {
            for (encode, empty) in [(token as fn(&str) -> String, "_"), (group, "core")] {
                let (token_a, token_b) = (encode(&a), encode(&b));
                prop_assert_eq!(a == b, token_a == token_b);
                for (value, token) in [(&a, &token_a), (&b, &token_b)] {
                    prop_assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-%_".contains(&byte)));
                    prop_assert!(!token.is_empty());
                    prop_assert_eq!(value.is_empty(), token == empty);
                }
            }
        }

        /// Short values with few different letters, so that equal subjects are likely.
        #[test]
        fn different_objects_have_different_subjects(a in "[a_%.-]{0,3}", b in "[a_%.-]{0,3}", c in "[a_%.-]{0,3}", d in "[a_%.-]{0,3}") {
            let template = SubjectTemplate::parse("k8s.{group}.{resource}.{namespace}.{name}").unwrap();
            let subject = |namespace: &str, name: &str| template.fill(|placeholder, out| match placeholder {
                Placeholder::Namespace => encode_or(out, namespace, "_"),
                Placeholder::Name => encode_or(out, name, "_"),
                _ => out.push('x'),
            });
            prop_assert_eq!((&a, &b) == (&c, &d), subject(&a, &b) == subject(&c, &d));
            prop_assert_eq!(subject(&a, &b).split('.').count(), 5);
        }
    }
}
