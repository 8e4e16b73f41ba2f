//! Encoding of an event as a message, by the Kafka binding of `CloudEvents` 1.0.2.

use rdkafka::message::{Header, OwnedHeaders};

use super::{KafkaHandler, template::TOPIC_LEN_MAX};
use crate::{
    cloud_event::{self, Attribute, ContentMode, Form},
    handler::HandlerError,
    notification::Event,
    trace::TraceContext,
};

const CONTENT_TYPE: &str = "content-type";

/// Message of one event.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub topic: String,
    /// Key of the message. Messages of one key are in one partition, in order.
    pub key: String,
    /// Headers of the message, in UTF-8.
    pub headers: Option<OwnedHeaders>,
    body: Vec<u8>,
    is_tombstone: bool,
}

impl Message {
    /// Adds the header with the trace context.
    pub(crate) fn trace(&mut self, context: TraceContext) {
        add(&mut self.headers, TraceContext::HEADER, &context.to_string());
    }

    /// Returns the value of the message. `None` means a tombstone, which deletes the key.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        (!self.is_tombstone).then_some(&*self.body)
    }
}

impl KafkaHandler {
    /// Replaces `message` with the message of an event. The events `deleted` and `removed` become tombstones, with their attributes
    /// as headers even in structured mode.
    ///
    /// # Errors
    /// `Rejected` if the topic would be longer than Kafka allows, or the event cannot be encoded in this format.
    /// `TooLarge` if the format has no smaller form.
    pub(super) fn write(&self, event: &Event, form: Form, message: &mut Message) -> Result<(), HandlerError> {
        let (encoder, mode) = (self.formatter.encoder(), self.options.mode);
        let Message { topic, key, headers, body, is_tombstone } = message;
        self.topic.write(topic, encoder.cluster(), event);
        if topic.len() > TOPIC_LEN_MAX {
            let (id, len) = (cloud_event::id(event), topic.len());
            let problem = format!("the topic of {id} has {len} letters: the limit is {TOPIC_LEN_MAX}");
            return Err(HandlerError::Rejected(problem));
        }
        self.key.write(key, encoder.cluster(), event);
        *is_tombstone = event.record.is_gone();
        *headers = None;
        if *is_tombstone || mode == ContentMode::Binary {
            encoder.each_attribute(event, |attribute, value| add(headers, attribute.kafka_header(), value));
        }
        body.clear();
        if !*is_tombstone {
            let content_type = match self.formatter.write_body(body, event, form, mode)? {
                "application/cloudevents+json" => "application/cloudevents+json; charset=UTF-8",
                other => other,
            };
            add(headers, CONTENT_TYPE, content_type);
        }
        Ok(())
    }
}

fn add(headers: &mut Option<OwnedHeaders>, key: &str, value: &str) {
    let before = headers.take().unwrap_or_else(|| OwnedHeaders::new_with_capacity(Attribute::ALL.len() + 2));
    *headers = Some(before.insert(Header { key, value: Some(value) }));
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use rdkafka::message::Headers as _;
    use serde_json::Value;

    use super::super::KafkaOptions;
    use super::*;
    use crate::{
        change::{Cause, Change},
        cloud_event::{
            Encoder,
            tests::{event, unit},
        },
        journal::testing::{added, deleted, pod, synced, updated},
    };

    fn handler(cluster: &str, topic: &str, mode: ContentMode) -> KafkaHandler {
        let options = KafkaOptions { topic: topic.to_owned(), mode, ..KafkaOptions::default() };
        KafkaHandler::new(options, Duration::ZERO, false, Encoder::new(cluster, "9f2c")).unwrap()
    }

    fn message(mode: ContentMode, change: Change, form: Form) -> Message {
        let handler = handler("prod", "k8s.{resource}", mode);
        let mut message = Message::default();
        // No previous content may remain in the message.
        for change in [updated("before", "v", 8, 9), deleted("before", "v", 9), change] {
            handler.write(&event(unit("", "pods", "Pod"), change), form, &mut message).unwrap();
        }
        message
    }

    fn headers(message: &Message) -> BTreeMap<&str, &str> {
        let headers = message.headers.iter().flat_map(OwnedHeaders::iter);
        headers.map(|header| (header.key, str::from_utf8(header.value.unwrap()).unwrap())).collect()
    }

    fn value(message: &Message) -> Value {
        serde_json::from_slice(message.value().unwrap()).unwrap()
    }

    #[test]
    fn structured_and_binary_mode_carry_the_same_event() {
        let whole = message(ContentMode::Structured, updated("web", "u", 1, 2), Form::Whole);
        assert_eq!((whole.topic.as_str(), whole.key.as_str()), ("k8s.pods", "u"));
        assert_eq!(headers(&whole), BTreeMap::from([(CONTENT_TYPE, "application/cloudevents+json; charset=UTF-8")]));
        let mut event = value(&whole);
        let apart = message(ContentMode::Binary, updated("web", "u", 1, 2), Form::Whole);
        let mut attributes = headers(&apart);
        assert_eq!(attributes.remove(CONTENT_TYPE), event["datacontenttype"].as_str());
        assert_eq!(value(&apart), event["data"].take());
        let event = event.as_object().unwrap();
        assert_eq!(attributes.len(), event.len() - 2);
        for (name, text) in attributes {
            assert_eq!(event[name.strip_prefix("ce_").unwrap()], text, "{name}");
        }
    }

    #[test]
    fn deletion_is_tombstone_with_headers() {
        let removed = || Change::Removed { object: pod("web", "u", 7), cause: Cause::Watch };
        for mode in [ContentMode::Structured, ContentMode::Binary] {
            for form in [Form::Whole, Form::Reference] {
                for (change, id) in [(deleted("web", "u", 7), "u.deleted"), (removed(), "u.7.removed")] {
                    let message = message(mode, change, form);
                    assert_eq!((message.value(), message.key.as_str()), (None, "u"));
                    let headers = headers(&message);
                    assert_eq!((headers["ce_id"], headers["ce_name"]), (id, "web"));
                    assert!(!headers.contains_key(CONTENT_TYPE), "the message has no value");
                }
            }
        }
        assert!(message(ContentMode::Structured, synced(3), Form::Whole).value().is_some());
    }

    #[test]
    fn smaller_form_has_less_data() {
        let members = |form| {
            let data = value(&message(ContentMode::Binary, updated("web", "u", 1, 2), form));
            data.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(members(Form::Whole), ["object", "old"]);
        assert_eq!(members(Form::WithoutOld), ["object"]);
        assert!(members(Form::Reference).is_empty());
    }

    #[test]
    fn invalid_topic_is_given_up() {
        let handler = handler(&"ö".repeat(60), "{cluster}", ContentMode::Binary);
        let event = event(unit("", "pods", "Pod"), added("web", "u", 1));
        let made = handler.write(&event, Form::Whole, &mut Message::default());
        assert!(matches!(made, Err(HandlerError::Rejected(text)) if text.contains("u.1 has 360 letters")));
    }
}
