//! Templates of topics and keys.
//!
//! **Invariants:** a topic contains only characters that Kafka allows. Different values have different texts in a topic. In a key,
//! values are not encoded.

use crate::{
    handler::template::{NameEncoding, NameTemplate, Placeholder},
    notification::Event,
    object::ResourceType,
};

/// Maximum length of a topic name.
#[cfg(feature = "kafka")]
pub(crate) const TOPIC_LEN_MAX: usize = 249;

const OF_TOPICS: [Placeholder; 4] =
    [Placeholder::Cluster, Placeholder::Group, Placeholder::Resource, Placeholder::Namespace];

const OF_KEYS: [Placeholder; 7] = [
    Placeholder::Cluster,
    Placeholder::Group,
    Placeholder::Resource,
    Placeholder::Namespace,
    Placeholder::Kind,
    Placeholder::Name,
    Placeholder::Uid,
];

const ENCODING: NameEncoding = NameEncoding { escape: '_', plain: ".-" };

/// A valid template of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicTemplate(NameTemplate);

/// A valid template of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTemplate(NameTemplate);

impl TopicTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let template = NameTemplate::parse(text, &OF_TOPICS, Some(ENCODING))?;
        let is_allowed = |letter| ENCODING.is_plain(letter) || letter == '_';
        template.check_text(is_allowed, "letters, digits, \".\", \"_\" and \"-\"")?;
        if matches!(text, "." | "..") {
            return Err(format!("is {text:?}, which is not a valid topic name: expected another name"));
        }
        Ok(Self(template))
    }

    /// Returns the topic of an event. It may be longer than [`TOPIC_LEN_MAX`].
    pub(crate) fn topic(&self, cluster: &str, event: &Event) -> String {
        let mut topic = String::new();
        self.write(&mut topic, cluster, event);
        topic
    }

    /// Replaces the content of `topic` with the topic of an event.
    pub(super) fn write(&self, topic: &mut String, cluster: &str, event: &Event) {
        topic.clear();
        self.0.fill(topic, |placeholder| placeholder.value(cluster, event));
    }
}

impl KeyTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the problem and the expected text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        NameTemplate::parse(text, &OF_KEYS, None).map(Self)
    }

    /// Returns true if each object of a topic has its own key. Otherwise a tombstone of one object would delete the
    /// messages of another one.
    pub(crate) fn is_per_object(&self, topic: &TopicTemplate) -> bool {
        use Placeholder::{Group, Kind, Name, Namespace, Resource, Uid};
        let either = |wanted| self.0.has(wanted) || topic.0.has(wanted);
        self.0.has(Uid)
            || (self.0.has(Name) && either(Namespace) && either(Group) && (either(Resource) || self.0.has(Kind)))
    }

    /// Replaces the content of `key` with the key of an event. The key is never empty. For an event without an object, the key is
    /// the type with the suffix `.synced`.
    pub(super) fn write(&self, key: &mut String, cluster: &str, event: &Event) {
        key.clear();
        let ResourceType { group, version, plural, .. } = &event.unit.resource;
        let Some(object) = event.record.object() else {
            *key = format!("{group}/{version}/{plural}.synced");
            return;
        };
        // Objects of some aggregated APIs have no uid. The object's type, namespace and name replace it, as in event ids.
        let lacks_uid = object.uid().is_empty() && self.0.has(Placeholder::Uid);
        let id = lacks_uid.then(|| format!("{group}/{plural}/{}/{}", object.namespace(), object.name()));
        self.0.fill(key, |placeholder| match (placeholder, &id) {
            (Placeholder::Uid, Some(id)) => id,
            _ => placeholder.value(cluster, event),
        });
        if key.is_empty() {
            key.push('_');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cloud_event::tests::{event, unit},
        journal::testing::{added, deleted, synced},
    };

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
