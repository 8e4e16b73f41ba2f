//! Templates of topics and keys.
//!
//! **Invariants:** a topic contains only characters that Kafka allows; different values give different text in it. In a
//! key, values are not encoded.

use std::fmt::Write as _;

use crate::{change::Change, notification::Event};

/// Maximum length of a topic name.
pub const TOPIC_LEN_MAX: usize = 249;

/// Value of a placeholder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Cluster,
    Group,
    Resource,
    Namespace,
    Kind,
    Name,
    Uid,
}

/// Number of placeholders that a topic may have; a key may have all.
const OF_TOPICS: usize = 4;

const PLACEHOLDERS: [(&str, Placeholder); 7] = [
    ("cluster", Placeholder::Cluster),
    ("group", Placeholder::Group),
    ("resource", Placeholder::Resource),
    ("namespace", Placeholder::Namespace),
    ("kind", Placeholder::Kind),
    ("name", Placeholder::Name),
    ("uid", Placeholder::Uid),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Placeholder),
}

/// A valid template of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate(Vec<Part>);

/// A valid template of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate(Vec<Part>);

impl TopicTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = parse(text, &PLACEHOLDERS[..OF_TOPICS])?;
        for part in &parts {
            let Part::Text(text) = part else { continue };
            if let Some(letter) = text.chars().find(|letter| !is_plain(*letter) && *letter != '_') {
                let expected = "expected letters, digits, \".\", \"_\" and \"-\"";
                return Err(format!("has {letter:?} in \"{text}\": {expected}"));
            }
        }
        if matches!(text, "." | "..") {
            return Err(format!("is {text:?}, which is not a valid topic name: expected another name"));
        }
        Ok(Self(parts))
    }

    /// Returns the topic of an event. It may be longer than [`TOPIC_LEN_MAX`].
    pub fn topic(&self, cluster: &str, event: &Event) -> String {
        let mut topic = String::new();
        self.write(&mut topic, cluster, event);
        topic
    }

    /// Writes the topic of an event to `topic`, replacing its content.
    pub(super) fn write(&self, topic: &mut String, cluster: &str, event: &Event) {
        topic.clear();
        fill(&self.0, topic, |out, placeholder| match (placeholder, value(placeholder, cluster, event)) {
            // The empty group is written as `core`, so a group named `core` is encoded.
            (Placeholder::Group, "core") => out.push_str("_63ore"),
            (Placeholder::Group, "") => out.push_str("core"),
            (_, "") => out.push('_'),
            (_, value) => encode(out, value),
        });
    }
}

/// Writes a value with only the characters that a topic may have.
fn encode(out: &mut String, value: &str) {
    if value.bytes().all(|byte| is_plain(char::from(byte))) {
        return out.push_str(value);
    }
    for byte in value.bytes() {
        if is_plain(char::from(byte)) {
            out.push(char::from(byte));
        } else {
            write!(out, "_{byte:02X}").expect("writing to a string succeeds");
        }
    }
}

impl KeyTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse(text, &PLACEHOLDERS).map(Self)
    }

    /// Returns true if each object of a topic has its own key. Otherwise a tombstone of one object would delete another
    /// one.
    pub fn is_per_object(&self, topic: &TopicTemplate) -> bool {
        use Placeholder::{Group, Kind, Name, Namespace, Resource, Uid};
        let has = |parts: &[Part], wanted| parts.contains(&Part::Value(wanted));
        let either = |wanted| has(&self.0, wanted) || has(&topic.0, wanted);
        has(&self.0, Uid)
            || (has(&self.0, Name) && either(Namespace) && either(Group) && (either(Resource) || has(&self.0, Kind)))
    }

    /// Writes the key of an event to `key`, replacing its content; it is never empty. For an event without an object,
    /// the key is the name of the type.
    pub(super) fn write(&self, key: &mut String, cluster: &str, event: &Event) {
        key.clear();
        let resource = &event.unit.resource;
        if let Change::Synced { .. } = event.record.change {
            return write!(key, "{}/{}/{}.synced", resource.group, resource.version, resource.plural)
                .expect("writing to a string succeeds");
        }
        fill(&self.0, key, |out, placeholder| match value(placeholder, cluster, event) {
            "" if placeholder == Placeholder::Uid => {
                // Same form as in ids, because objects of some aggregated APIs have no uid.
                let [namespace, name] = [Placeholder::Namespace, Placeholder::Name].map(|of| value(of, cluster, event));
                write!(out, "{}/{}/{namespace}/{name}", resource.group, resource.plural)
                    .expect("writing to a string succeeds");
            }
            value => out.push_str(value),
        });
        if key.is_empty() {
            key.push('_');
        }
    }
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-')
}

fn parse(text: &str, known: &[(&str, Placeholder)]) -> Result<Vec<Part>, String> {
    if text.is_empty() {
        return Err("is empty: expected text or a placeholder".to_owned());
    }
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, after)) = behind.split_once('}') else {
            return Err(format!("has no \"}}\" after \"{{{behind}\""));
        };
        let Some((_, placeholder)) = known.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = known.iter().map(|(name, _)| format!("{{{name}}}")).collect();
            return Err(format!("has the unknown placeholder {{{name}}}: expected one of {}", known.join(" ")));
        };
        parts.extend((!before.is_empty()).then(|| Part::Text(before.to_owned())));
        parts.push(Part::Value(*placeholder));
        rest = after;
    }
    parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
    Ok(parts)
}

fn fill(parts: &[Part], out: &mut String, write: impl Fn(&mut String, Placeholder)) {
    for part in parts {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Value(placeholder) => write(out, *placeholder),
        }
    }
}

fn value<'a>(placeholder: Placeholder, cluster: &'a str, event: &'a Event) -> &'a str {
    let (resource, object) = (&event.unit.resource, event.record.object());
    match placeholder {
        Placeholder::Cluster => cluster,
        Placeholder::Group => &resource.group,
        Placeholder::Resource => &resource.plural,
        Placeholder::Kind => &resource.kind,
        Placeholder::Namespace => {
            object.map_or(event.unit.namespace.as_deref().unwrap_or_default(), |object| object.namespace())
        }
        Placeholder::Name => object.map_or("", |object| object.name()),
        Placeholder::Uid => object.map_or("", |object| object.uid()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{event, synced, unit};
    use super::*;
    use crate::journal::testing::{added, deleted};

    fn topic(text: &str, cluster: &str, group: &str) -> String {
        TopicTemplate::parse(text).unwrap().topic(cluster, &event(unit(group, "pods", "Pod"), added("web", "u1", 1)))
    }

    #[test]
    fn distinct_values_make_distinct_valid_topics() {
        for (text, cluster, group, expected) in [
            ("k8s.{resource}", "", "", "k8s.pods"),
            ("{cluster}.{group}-{namespace}", "prod", "apps", "prod.apps-ns"),
            ("{group}", "", "", "core"),
            ("{group}", "", "core", "_63ore"),
            ("{group}", "", "cert-manager.io", "cert-manager.io"),
            ("{cluster}", "arn:aws/a_b", "", "arn_3Aaws_2Fa_5Fb"),
            ("{cluster}", "größe", "", "gr_C3_B6_C3_9Fe"),
            ("{cluster}", "", "", "_"),
        ] {
            let topic = topic(text, cluster, group);
            assert_eq!(topic, expected);
            assert!(topic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
        }
    }

    #[test]
    fn key_stays_the_same_for_one_object() {
        let key = |text, change| {
            let mut key = "another".to_owned();
            KeyTemplate::parse(text).unwrap().write(&mut key, "prod", &event(unit("", "pods", "Pod"), change));
            key
        };
        for change in [added("web", "u1", 1), deleted("web", "u1", 7)] {
            assert_eq!(key("{uid}", change.clone()), "u1");
            assert_eq!(key("{cluster}/{kind}/{namespace}/{name}", change), "prod/Pod/ns/web");
        }
        assert_eq!(key("{uid}", added("web", "", 1)), "/pods/ns/web", "an object without a uid has its name");
        assert_eq!(key("{group}", added("web", "u1", 1)), "_", "a compacted topic accepts no message without a key");
        assert_eq!(key("{uid}", synced(3)), "/v1/pods.synced");
    }

    #[test]
    fn keys_shared_by_several_objects_are_detected() {
        for (topic, key, expected) in [
            ("t", "{uid}", true),
            ("t", "{group}/{resource}/{namespace}/{name}", true),
            ("k8s.{group}.{resource}", "{namespace}/{name}", true),
            ("k8s.{resource}", "{namespace}/{name}", false),
            ("t", "{namespace}/{name}", false),
            ("k8s.{group}.{resource}", "{name}", false),
            ("k8s.{group}.{resource}.{namespace}", "{name}", true),
            ("k8s.{resource}", "{namespace}", false),
        ] {
            let (topic, template) = (TopicTemplate::parse(topic).unwrap(), KeyTemplate::parse(key).unwrap());
            assert_eq!(template.is_per_object(&topic), expected, "{topic:?} {key}");
        }
    }

    #[test]
    fn bad_kafka_template_is_refused_with_reason() {
        for (text, expected) in [
            ("", "is empty"),
            ("k8s.{name}", "unknown placeholder {name}: expected one of {cluster} {group} {resource} {namespace}"),
            ("k8s.{group", "has no \"}\" after \"{group\""),
            ("k8s/{group}", "has '/' in \"k8s/\": expected letters, digits"),
            ("k8s.}", "has '}'"),
            ("..", "not a valid topic name"),
        ] {
            let error = TopicTemplate::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let error = KeyTemplate::parse("{nam}").unwrap_err();
        assert!(error.contains("unknown placeholder {nam}") && error.contains("{uid}"), "{error}");
    }
}
