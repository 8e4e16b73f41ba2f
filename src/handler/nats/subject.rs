//! Templates of subjects.
//!
//! **Invariants:** every value is one token, and different values are different tokens. The token of a value is never
//! empty and contains no separator or wildcard of NATS.

use crate::{
    handler::template::{NameEncoding, NameTemplate, Placeholder},
    notification::Event,
};

/// Maximum length of a subject. A server closes the connection after a command line of more than 4 KiB.
pub(crate) const SUBJECT_LEN_MAX: usize = 2048;

const PLACEHOLDERS: [Placeholder; 8] = [
    Placeholder::Cluster,
    Placeholder::Group,
    Placeholder::Resource,
    Placeholder::Namespace,
    Placeholder::Name,
    Placeholder::Kind,
    Placeholder::Version,
    Placeholder::Event,
];

const ENCODING: NameEncoding = NameEncoding { escape: '%', plain: "-" };

/// A valid template of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubjectTemplate {
    template: NameTemplate,
    wildcard: String,
}

impl SubjectTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tokens = || text.split('.');
        if tokens().any(str::is_empty) {
            return Err("has an empty token: expected text or a placeholder between the dots".to_owned());
        }
        if text.starts_with('$') {
            return Err("begins with \"$\", which is reserved for the server: expected another first token".to_owned());
        }
        let template = NameTemplate::parse(text, &PLACEHOLDERS, Some(ENCODING))?;
        let is_allowed = |letter: char| letter.is_ascii_graphic() && !matches!(letter, '*' | '>' | '}' | '%');
        template.check_text(is_allowed, "printable ASCII other than * > } %")?;
        if let Some(token) = tokens().find(|token| token.matches('{').count() > 1) {
            return Err(format!("has two placeholders in \"{token}\": expected a \".\" between them"));
        }
        let wildcard: Vec<_> = tokens().map(|token| if token.contains('{') { "*" } else { token }).collect();
        Ok(Self { template, wildcard: wildcard.join(".") })
    }

    /// Returns true if each object has its own subject. Otherwise, the last message of a subject may be about another object.
    pub(crate) fn is_per_object(&self) -> bool {
        use Placeholder::{Group, Kind, Name, Namespace, Resource};
        let has = |wanted| self.template.has(wanted);
        has(Group) && (has(Resource) || has(Kind)) && has(Namespace) && has(Name)
    }

    /// Returns the wildcard for all subjects of the template, for every cluster.
    pub(crate) fn wildcard(&self) -> &str {
        &self.wildcard
    }

    /// Returns the subject of an event.
    pub(crate) fn subject(&self, cluster: &str, event: &Event) -> String {
        let mut subject = String::with_capacity(96);
        self.template.fill(&mut subject, |placeholder| placeholder.value(cluster, event));
        subject
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(value: &str) -> String {
        let mut out = String::new();
        ENCODING.write(&mut out, Placeholder::Name, value);
        out
    }

    fn group(value: &str) -> String {
        let mut out = String::new();
        ENCODING.write(&mut out, Placeholder::Group, value);
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

        /// Tests short values with few different letters, because such values would most likely get equal subjects.
        #[test]
        fn different_objects_have_different_subjects(a in "[a_%.-]{0,3}", b in "[a_%.-]{0,3}", c in "[a_%.-]{0,3}", d in "[a_%.-]{0,3}") {
            let template = SubjectTemplate::parse("k8s.{group}.{resource}.{namespace}.{name}").unwrap();
            let subject = |namespace: &str, name: &str| {
                let mut subject = String::new();
                template.template.fill(&mut subject, |placeholder| match placeholder {
                    Placeholder::Namespace => namespace,
                    Placeholder::Name => name,
                    _ => "x",
                });
                subject
            };
            prop_assert_eq!((&a, &b) == (&c, &d), subject(&a, &b) == subject(&c, &d));
            prop_assert_eq!(subject(&a, &b).split('.').count(), 5);
        }
    }
}
