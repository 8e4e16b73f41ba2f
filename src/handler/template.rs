//! Templates of names: NATS subjects, Kafka topics and Kafka keys. Each is a text with placeholders for values of an
//! event.

use std::fmt::Write as _;

use strum::{EnumString, IntoStaticStr};

use crate::{journal::ChangeKind, notification::Event};

/// Value of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Placeholder {
    /// Configured name of the cluster.
    Cluster,
    Group,
    /// Plural name of the type.
    Resource,
    /// Namespace of the object or of the watch; empty for none.
    Namespace,
    /// Name of the object; empty for `synced`, which has none.
    Name,
    /// Kind of the type.
    Kind,
    /// Version of the type's API.
    Version,
    /// Uid of the object; empty for none.
    Uid,
    /// `added`, `updated`, `deleted`, `removed`, `synced`.
    Event,
}

impl Placeholder {
    /// Returns the value for an event; `cluster` is the configured name of the cluster.
    pub(super) fn value<'a>(self, cluster: &'a str, event: &'a Event) -> &'a str {
        let (resource, object) = (&event.unit.resource, event.record.object());
        match self {
            Self::Cluster => cluster,
            Self::Group => &resource.group,
            Self::Resource => &resource.plural,
            Self::Kind => &resource.kind,
            Self::Version => &resource.version,
            Self::Namespace => {
                object.map_or(event.unit.namespace.as_deref().unwrap_or_default(), |object| object.namespace())
            }
            Self::Name => object.map_or("", |object| object.name()),
            Self::Uid => object.map_or("", |object| object.uid()),
            Self::Event => ChangeKind::of(&event.record.change).as_str(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Placeholder),
}

/// Text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameTemplate {
    parts: Vec<Part>,
    /// Encoding of values; `None` leaves them unchanged.
    encoding: Option<NameEncoding>,
}

impl NameTemplate {
    /// Parses a template with these placeholders.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub(super) fn parse(text: &str, known: &[Placeholder], encoding: Option<NameEncoding>) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty: expected text or a placeholder".to_owned());
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            let Some((name, after)) = behind.split_once('}') else {
                return Err(format!("has no \"}}\" after \"{{{behind}\""));
            };
            let Some(placeholder) = name.parse::<Placeholder>().ok().filter(|placeholder| known.contains(placeholder))
            else {
                let known: Vec<_> = known.iter().map(|known| format!("{{{}}}", <&str>::from(known))).collect();
                return Err(format!("has the unknown placeholder {{{name}}}: expected one of {}", known.join(" ")));
            };
            parts.extend([Part::Text(before.to_owned()), Part::Value(placeholder)]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { parts, encoding })
    }

    /// Checks the text around the placeholders.
    ///
    /// # Errors
    /// Returns the first letter that is not allowed; `expected` describes the allowed letters.
    pub(super) fn check_text(&self, is_allowed: impl Fn(char) -> bool, expected: &str) -> Result<(), String> {
        for part in &self.parts {
            let Part::Text(text) = part else { continue };
            if let Some(letter) = text.chars().find(|letter| !is_allowed(*letter)) {
                return Err(format!("has {letter:?} in \"{text}\": expected {expected}"));
            }
        }
        Ok(())
    }

    /// Returns true if the template has this placeholder.
    pub(super) fn has(&self, wanted: Placeholder) -> bool {
        self.parts.contains(&Part::Value(wanted))
    }

    /// Appends the text of the template to `out`; `value` returns the value of a placeholder.
    pub(super) fn fill<'a>(&self, out: &mut String, value: impl Fn(Placeholder) -> &'a str) {
        for part in &self.parts {
            match (part, self.encoding) {
                (Part::Text(text), _) => out.push_str(text),
                (Part::Value(placeholder), Some(encoding)) => encoding.write(out, *placeholder, value(*placeholder)),
                (Part::Value(placeholder), None) => out.push_str(value(*placeholder)),
            }
        }
    }
}

/// Encoding of values. Letters, digits and the bytes of `plain` are unchanged; any other byte becomes `escape` and two
/// hexadecimal digits.
///
/// **Invariants:** the encoded text of a value is never empty, and different values have different encoded texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameEncoding {
    pub(super) escape: char,
    pub(super) plain: &'static str,
}

impl NameEncoding {
    /// Returns true if the encoding leaves this character unchanged.
    pub(super) fn is_plain(self, letter: char) -> bool {
        letter.is_ascii_alphanumeric() || self.plain.contains(letter)
    }

    /// Appends the encoded value of a placeholder to `out`.
    pub(super) fn write(self, out: &mut String, placeholder: Placeholder, value: &str) {
        match (placeholder, value) {
            (Placeholder::Group, "") => out.push_str("core"),
            // The empty group is written as `core`, so the first letter of a group named `core` is encoded.
            (Placeholder::Group, "core") => {
                out.push(self.escape);
                out.push_str("63ore");
            }
            (_, "") => out.push('_'),
            (_, value) if value.chars().all(|letter| self.is_plain(letter)) => out.push_str(value),
            (_, value) => {
                for byte in value.bytes() {
                    if self.is_plain(char::from(byte)) {
                        out.push(char::from(byte));
                    } else {
                        write!(out, "{}{byte:02X}", self.escape).expect("writing to a string succeeds");
                    }
                }
            }
        }
    }
}
