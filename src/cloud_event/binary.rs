//! The binary content mode: attributes in headers, data in the body, for sinks with headers.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Encoder, cause, copy, identity_attributes, slash, write_digits, write_id, write_subject, write_time};
use crate::{journal::ChangeKind, notification::Event};

/// Content type of JSON data that is neither a JSON Patch nor a JSON Merge Patch.
pub const DATA_CONTENT_TYPE: &str = "application/json";

/// Content mode of an event, for sinks with headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContentMode {
    /// Attributes and data in one JSON object.
    #[default]
    Structured,
    /// Attributes in headers; the body is only the data.
    Binary,
}

/// Declares [`Attribute`] and the names of its variants.
macro_rules! attributes {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal,)+) => {
        /// The attributes of an event, without `datacontenttype`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Attribute {
            $(#[doc = $doc] $variant,)+
        }

        impl Attribute {
            /// All attributes, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the attribute's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns the name of the attribute's header in HTTP and NATS.
            pub const fn header(self) -> &'static str {
                match self { $(Self::$variant => concat!("ce-", $name),)+ }
            }

            /// Returns the name of the attribute's header in Kafka.
            pub const fn kafka_header(self) -> &'static str {
                match self { $(Self::$variant => concat!("ce_", $name),)+ }
            }
        }
    };
}

attributes! {
    /// Id of the event; the same change always has the same id.
    Id = "id",
    /// API path of the object.
    Subject = "subject",
    /// Time at which the engine received the change.
    Time = "time",
    /// Position in the journal, twenty digits.
    Sequence = "sequence",
    /// Type of the event: the kind of change.
    Type = "type",
    /// Group and version of the object's type.
    ApiVersion = "apiversion",
    /// Version of the `CloudEvents` specification.
    SpecVersion = "specversion",
    /// The cluster.
    Source = "source",
    /// Source of the change: a list, a watch, a replay, and so on.
    Cause = "cause",
    /// Id of the journal that the sequence belongs to.
    Journal = "journal",
    /// Kind of the object.
    Kind = "kind",
    /// Plural name of the object's type.
    Resource = "resource",
    /// Namespace of the object, if it has one.
    Namespace = "namespace",
    /// Name of the object.
    Name = "name",
    /// Uid of the object, if it has one.
    Uid = "uid",
    /// Version of the object.
    ResourceVersion = "resourceversion",
}

impl Encoder {
    /// Calls `tell` once for each attribute, with the attribute and its unencoded value, for binary mode. [`header_value`] encodes
    /// a value for a header. `datacontenttype` is left out: each transport has its own header for it, with the value
    /// [`MessageBody::content_type`](super::MessageBody::content_type).
    pub fn each_attribute(&self, event: &Event, mut tell: impl FnMut(Attribute, &str)) {
        let Event { unit, record } = event;
        let resource = &unit.resource;
        let (source, journal) = &self.plain;
        let mut out = Vec::with_capacity(96);
        let mut written = |attribute, write: &dyn Fn(&mut Vec<u8>)| {
            out.clear();
            write(&mut out);
            tell(attribute, str::from_utf8(&out).expect("it consists of text"));
        };
        written(Attribute::Id, &|out| write_id(out, unit, record, copy));
        written(Attribute::Subject, &|out| write_subject(out, unit, record, copy));
        written(Attribute::Time, &|out| write_time(out, record.time_micros));
        written(Attribute::Sequence, &|out| write_digits(out, record.sequence.0, 20));
        written(Attribute::Type, &|out| {
            copy(out, "dev.deltabus.resource.");
            copy(out, ChangeKind::of(&record.change).as_str());
        });
        written(Attribute::ApiVersion, &|out| {
            for part in [&resource.group, slash(unit), &resource.version] {
                copy(out, part);
            }
        });
        tell(Attribute::SpecVersion, "1.0");
        tell(Attribute::Source, source);
        tell(Attribute::Cause, cause(&record.change));
        tell(Attribute::Journal, journal);
        tell(Attribute::Kind, &resource.kind);
        tell(Attribute::Resource, &resource.plural);
        for (attribute, value) in identity_attributes(record) {
            tell(attribute, value);
        }
    }
}

/// Encodes an attribute as a header value. Percent-encodes `"`, `%`, blanks and everything that is not printable ASCII
/// (`CloudEvents` 1.0.2, HTTP protocol binding, 3.1.3.2; other bindings refer to it).
pub(crate) fn header_value(value: &str) -> String {
    const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
    Cow::from(utf8_percent_encode(value, ENCODED)).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Form, Formatter, tests::*};
    use super::*;
    use crate::{
        change::{Cause, Change},
        journal::testing::{synced, updated},
    };

    fn all() -> Vec<Event> {
        let gone = |tombstone| Change::Deleted {
            object: object("ns", "größe \"1\"", "u", "{}"),
            tombstone,
            cause: Cause::Relist,
        };
        let same = Change::Unchanged { object: object("ns", "a", "u", "{}"), cause: Cause::Resync { round: 1 } };
        let changes = [updated("a", "u", 1, 2), gone(true), gone(false), same, synced(3)];
        changes.into_iter().map(|change| event(unit("apps", "things", "Thing"), change)).collect()
    }

    fn in_form(event: &Event, form: Form) -> Value {
        let body = Formatter::from(encoder()).body(event, form, ContentMode::Structured).unwrap();
        serde_json::from_slice(&body.bytes).unwrap()
    }

    #[test]
    fn form_selects_event_data() {
        let members = |event: &Event, form| {
            let value = in_form(event, form);
            value["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
        };
        let [update, tombstone, deletion, same, end] = &all()[..] else { panic!("five events") };
        for (event, whole, without_old, reference) in [
            (update, "object old", "object", ""),
            (tombstone, "object finalstateunknown", "object finalstateunknown", "finalstateunknown"),
            (deletion, "object", "object", ""),
            (same, "object old", "object", ""),
            (end, "objects resourceversion", "objects resourceversion", "objects resourceversion"),
        ] {
            let found = [Form::Whole, Form::WithoutOld, Form::Reference].map(|form| members(event, form));
            assert_eq!(found, [whole, without_old, reference], "{:?}", event.record.change);
        }
    }

    #[test]
    fn form_changes_only_data() {
        for event in all() {
            let mut whole = in_form(&event, Form::Whole);
            for form in [Form::WithoutOld, Form::Reference] {
                let mut less = in_form(&event, form);
                less["data"] = Value::Null;
                whole["data"] = Value::Null;
                assert_eq!(less, whole);
            }
        }
    }

    #[test]
    fn binary_mode_matches_structured_mode() {
        for event in all() {
            for form in [Form::Whole, Form::WithoutOld, Form::Reference] {
                let data = Formatter::from(encoder()).body(&event, form, ContentMode::Binary).unwrap().bytes;
                let mut joined = json!(attributes(&event));
                joined["data"] = serde_json::from_slice(&data).unwrap();
                joined["datacontenttype"] = DATA_CONTENT_TYPE.into();
                assert_eq!(joined, in_form(&event, form));
            }
        }
    }

    /// Examples of the specification, and characters that could end a header.
    #[test]
    fn header_values_follow_http_binding() {
        for (value, expected) in [
            ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
            ("100% \"x\"", "100%25%20%22x%22"),
            ("a\r\nB: c\u{7f}", "a%0D%0AB:%20c%7F"),
            ("/api/v1/pods~!#$&'()*+,;=@[]", "/api/v1/pods~!#$&'()*+,;=@[]"),
        ] {
            assert_eq!(header_value(value), expected);
        }
    }
}
