//! Encoding of events: `CloudEvents` 1.0 in JSON, one per line.
//!
//! An [`Encoder`] writes events into one buffer, and copies an object's bytes without parsing them. A [`Form`] selects
//! the parts of an event that are sent. A [`ContentMode`] chooses between headers and one JSON object. A [`DataFormat`]
//! chooses the content of `data`.
//!
//! Reasons: `docs/decisions/0011-equal-ids.md`.

mod binary;
pub(crate) mod error;
mod format;
pub(crate) mod template;

#[cfg(feature = "cli")]
use std::borrow::Cow;

use jiff::{Timestamp, fmt::temporal::DateTimePrinter};
#[cfg(feature = "cli")]
use percent_encoding::percent_decode_str;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    change::{Cause, Change},
    journal::{ChangeKind, Record},
    notification::{Event, UnitInfo},
    object::Object,
};

pub(crate) use binary::{Attribute, header_value};
pub use binary::{ContentMode, DATA_CONTENT_TYPE};
pub(crate) use error::FormatError;
pub(crate) use format::MessageBody;
pub use format::{DataFormat, Formatter};

/// Parts of an event that are sent. An event that is too large for a sink is retried in a smaller form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Form {
    /// The whole event, in the configured format.
    #[default]
    Whole,
    /// The event without `old`.
    WithoutOld,
    /// The attributes, which identify the object, without the object itself. A tombstone keeps `finalstateunknown`.
    Reference,
}

impl Form {
    /// Returns the next smaller form.
    #[must_use]
    pub fn smaller(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::WithoutOld),
            Self::WithoutOld => Some(Self::Reference),
            Self::Reference => None,
        }
    }
}

/// Encoder for the events of one engine.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// `,"source":"…","type":"dev.deltabus.resource.`
    source: Box<[u8]>,
    /// `,"journal":"…","sequence":"`
    journal: Box<[u8]>,
    /// Source and journal, not escaped.
    plain: (Box<str>, Box<str>),
    cluster: Box<str>,
}

/// Returns the attribute `source` of the events of a cluster. It must be a URI reference, but a name may have any characters: blanks,
/// for example, if it is that of a kubeconfig's context.
pub(crate) fn source(cluster: &str) -> String {
    format!("/clusters/{}", utf8_percent_encode(cluster, NOT_IN_PATH))
}

/// Returns the cluster of an attribute [`source`].
#[cfg(feature = "cli")]
pub(crate) fn cluster_of(source: &str) -> Option<String> {
    let name = source.strip_prefix("/clusters/")?;
    Some(percent_decode_str(name).decode_utf8().map_or_else(|_| name.to_owned(), Cow::into_owned))
}

/// Characters that the path of a URI cannot have (RFC 3986, `pchar` and `/`).
const NOT_IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

impl Encoder {
    /// Makes an encoder; `cluster` is the configured name of the cluster, `journal` is the journal's id.
    pub fn new(cluster: &str, journal: &str) -> Self {
        let plain_source = self::source(cluster);
        let mut source = br#","source":""#.to_vec();
        escape(&mut source, &plain_source);
        source.extend_from_slice(br#"","type":"dev.deltabus.resource."#);
        let mut place = br#","journal":""#.to_vec();
        escape(&mut place, journal);
        place.extend_from_slice(br#"","sequence":""#);
        let plain = (plain_source.into(), journal.into());
        Self { source: source.into(), journal: place.into(), plain, cluster: cluster.into() }
    }

    /// Returns the name of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Appends the event to `out`, as one line without a line break at the end. `data` also has `changed_by` if it is known
    /// who changed the object.
    pub fn encode(&self, out: &mut Vec<u8>, event: &Event) {
        self.write_attributes(out, event, DATA_CONTENT_TYPE);
        out.extend_from_slice(br#","data":{"#);
        write_data(out, &event.record, Form::Whole);
        write_changed_by(out, &event.record);
        out.extend_from_slice(b"}}");
    }

    /// Writes all members except `data`, without the closing brace; `content_type` is the type of `data`.
    fn write_attributes(&self, out: &mut Vec<u8>, event: &Event, content_type: &str) {
        let Event { unit, record } = event;
        out.extend_from_slice(br#"{"specversion":"1.0","id":""#);
        write_id(out, unit, record, escape);
        out.push(b'"');
        out.extend_from_slice(&self.source);
        out.extend_from_slice(ChangeKind::of(&record.change).as_str().as_bytes());
        out.extend_from_slice(br#"","subject":""#);
        write_subject(out, unit, record, escape);
        out.extend_from_slice(br#"","time":""#);
        write_time(out, record.time_micros);
        out.extend_from_slice(br#"","datacontenttype":""#);
        out.extend_from_slice(content_type.as_bytes());
        out.extend_from_slice(br#"","cause":""#);
        out.extend_from_slice(cause(&record.change).as_bytes());
        out.push(b'"');
        out.extend_from_slice(&self.journal);
        write_digits(out, record.sequence.0, 20);
        out.push(b'"');
        member(out, "apiversion", &[&unit.resource.group, slash(unit), &unit.resource.version]);
        member(out, "kind", &[&unit.resource.kind]);
        member(out, "resource", &[&unit.resource.plural]);
        for (attribute, value) in identity_attributes(record) {
            member(out, attribute.name(), &[value]);
        }
    }
}

/// Returns the attributes that identify the object and its version, except empty ones.
fn identity_attributes(record: &Record) -> impl Iterator<Item = (Attribute, &str)> {
    let identity = record.object().map(|object| object.identity());
    let attributes = identity.map(|of| {
        [
            (Attribute::Namespace, of.namespace),
            (Attribute::Name, of.name),
            (Attribute::Uid, of.uid),
            (Attribute::ResourceVersion, of.resource_version),
        ]
    });
    attributes.into_iter().flatten().filter(|(_, value)| !value.is_empty())
}

/// Returns the event's id. The same change always has the same id.
pub fn id(event: &Event) -> String {
    plain(|out| write_id(out, &event.unit, &event.record, copy))
}

/// Writes the event's id. `text` writes one part of the id: [`escape`] for JSON, [`copy`] for plain text.
fn write_id(out: &mut Vec<u8>, unit: &UnitInfo, record: &Record, text: fn(&mut Vec<u8>, &str)) {
    let resource = &unit.resource;
    if let Change::Synced { resource_version, .. } = &record.change {
        for part in [&resource.group, slash(unit), &resource.version, "/", &resource.plural, ".synced."] {
            text(out, part);
        }
        return text(out, resource_version.as_str());
    }
    let Some(object) = record.object() else { return };
    if object.uid().is_empty() {
        for part in [&resource.group, "/", &resource.plural, "/", object.namespace(), "/", object.name()] {
            text(out, part);
        }
    } else {
        text(out, object.uid());
    }
    if !matches!(record.change, Change::Deleted { .. }) {
        out.push(b'.');
        text(out, object.resource_version());
    }
    match record.change {
        Change::Deleted { .. } => out.extend_from_slice(b".deleted"),
        Change::Removed { .. } => out.extend_from_slice(b".removed"),
        _ => {}
    }
}

/// Writes the API path of the object, or of the collection for `synced`.
fn write_subject(out: &mut Vec<u8>, unit: &UnitInfo, record: &Record, text: fn(&mut Vec<u8>, &str)) {
    let (resource, object) = (&unit.resource, record.object());
    let root = if resource.group.is_empty() { "/api/" } else { "/apis/" };
    let namespace = object.map_or(unit.namespace.as_deref().unwrap_or(""), |object| object.namespace());
    let of_namespace = if namespace.is_empty() { ["", ""] } else { ["/namespaces/", namespace] };
    let of_object = object.map_or(["", ""], |object| ["/", object.name()]);
    let of_type = [root, &resource.group, slash(unit), &resource.version];
    for part in of_type.into_iter().chain(of_namespace).chain(["/", &resource.plural]).chain(of_object) {
        text(out, part);
    }
}

/// Writes the members of `data`. A `synced` event has no object, so its `data` is the same in every form.
fn write_data(out: &mut Vec<u8>, record: &Record, form: Form) {
    match &record.change {
        Change::Synced { objects, resource_version } => {
            out.extend_from_slice(br#""objects":"#);
            out.extend_from_slice(objects.to_string().as_bytes());
            member(out, "resourceversion", &[resource_version.as_str()]);
        }
        Change::Deleted { tombstone, .. } if form == Form::Reference => {
            if *tombstone {
                out.extend_from_slice(br#""finalstateunknown":true"#);
            }
        }
        _ if form == Form::Reference => {}
        Change::Added { object, .. } | Change::Removed { object, .. } | Change::Refreshed { object } => {
            write_object(out, object);
        }
        Change::Updated { object, .. } => {
            write_object(out, object);
            if let Some(old) = record.old()
                && form == Form::Whole
            {
                write_old(out, old);
            }
        }
        Change::Unchanged { object, .. } => {
            write_object(out, object);
            if form == Form::Whole {
                write_old(out, object);
            }
        }
        Change::Deleted { object, tombstone, .. } => {
            write_object(out, object);
            if *tombstone {
                out.extend_from_slice(br#","finalstateunknown":true"#);
            }
        }
    }
}

fn write_object(out: &mut Vec<u8>, object: &Object) {
    out.extend_from_slice(br#""object":"#);
    write_json(out, object);
}

fn write_old(out: &mut Vec<u8>, old: &Object) {
    out.extend_from_slice(br#","old":"#);
    write_json(out, old);
}

/// Writes `changed_by` after another member. Writes nothing if it is not known who changed the object.
fn write_changed_by(out: &mut Vec<u8>, record: &Record) {
    if let Some(changed_by) = record.changed_by() {
        out.extend_from_slice(br#","changed_by":"#);
        out.extend_from_slice(&serde_json::to_vec(&changed_by).expect("strings can be encoded"));
    }
}

/// Copies an object's JSON, and replaces each line break by a blank. This keeps the content, because a JSON string contains no raw
/// line break.
fn write_json(out: &mut Vec<u8>, object: &Object) {
    let json = object.json();
    let start = out.len();
    out.extend_from_slice(&json);
    let mut from = start;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &out[from..]) {
        out[from + at] = b' ';
        from += at + 1;
    }
}

fn cause(change: &Change) -> &'static str {
    match change {
        Change::Synced { .. } => Cause::Initial,
        _ => change.cause().unwrap_or(Cause::Watch), // changes without a cause reach no reader
    }
    .into()
}

fn slash(unit: &UnitInfo) -> &'static str {
    if unit.resource.group.is_empty() { "" } else { "/" }
}

/// Writes `,"name":"value"`; the value is given in parts.
fn member(out: &mut Vec<u8>, name: &str, value: &[&str]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":\"");
    for part in value {
        escape(out, part);
    }
    out.push(b'"');
}

/// Writes text unchanged.
fn copy(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// Calls `write` and returns the text that it wrote. `write` must use [`copy`], not [`escape`].
fn plain(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::with_capacity(64);
    write(&mut out);
    String::from_utf8(out).expect("it consists of text")
}

/// Writes text as the content of a JSON string.
fn escape(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        let byte = rest[at];
        out.extend_from_slice(&rest[..at]);
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Writes a time as RFC 3339 in UTC with microseconds.
fn write_time(out: &mut Vec<u8>, micros: i64) {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));
    let time = Timestamp::from_microsecond(micros).unwrap_or_default();
    PRINTER.print_timestamp(&time, out).expect("writing into memory succeeds");
}

/// Writes the last `width` digits of a number, with leading zeros.
fn write_digits(out: &mut Vec<u8>, mut number: u64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("below ten");
        number /= 10;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        journal::{Sequence, UnitId, testing::*},
        object::{Identity, ResourceType},
    };

    pub(crate) fn unit(group: &str, plural: &str, kind: &str) -> Arc<UnitInfo> {
        let resource = ResourceType {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            namespaced: true,
        };
        Arc::new(UnitInfo { entry: "x".into(), resource, namespace: None })
    }

    pub(crate) fn event(unit: Arc<UnitInfo>, change: Change) -> Event {
        let time_micros = 1_795_243_203_123_456;
        Event {
            unit,
            record: Record { sequence: Sequence(12345), unit: UnitId(0), time_micros, change, old_lost: false },
        }
    }

    pub(super) fn encoder() -> Encoder {
        Encoder::new("prod-eu1", "9f2c41d07b6e")
    }

    pub(super) fn attributes(event: &Event) -> std::collections::BTreeMap<&'static str, String> {
        let mut attributes = std::collections::BTreeMap::new();
        encoder().each_attribute(event, |which, value| drop(attributes.insert(which.name(), value.to_owned())));
        attributes
    }

    fn text(event: &Event) -> String {
        let mut out = Vec::new();
        encoder().encode(&mut out, event);
        String::from_utf8(out).unwrap()
    }

    fn value(event: &Event) -> Value {
        serde_json::from_str(&text(event)).unwrap()
    }

    pub(super) fn object(namespace: &str, name: &str, uid: &str, json: &str) -> Object {
        let identity = Identity { namespace, name, uid, resource_version: "7" };
        Object::assemble(identity, &[json.as_bytes()])
    }

    #[test]
    fn update_is_encoded_field_by_field() {
        let pod = |version: &str| {
            let identity = Identity { namespace: "default", name: "web-1", uid: "5f1c", resource_version: version };
            Object::assemble(identity, &[br#"{"a":"#, version.as_bytes(), b"}"])
        };
        let change = Change::Updated { old: pod("1"), object: pod("48211"), cause: Cause::Watch };
        let expected = concat!(
            r#"{"specversion":"1.0","id":"5f1c.48211","source":"/clusters/prod-eu1","#,
            r#""type":"dev.deltabus.resource.updated","subject":"/api/v1/namespaces/default/pods/web-1","#,
            r#""time":"2026-11-21T06:40:03.123456Z","datacontenttype":"application/json","cause":"watch","#,
            r#""journal":"9f2c41d07b6e","sequence":"00000000000000012345","#,
            r#""apiversion":"v1","kind":"Pod","resource":"pods","namespace":"default","name":"web-1","#,
            r#""uid":"5f1c","resourceversion":"48211","data":{"object":{"a":48211},"old":{"a":1}}}"#
        );
        assert_eq!(text(&event(unit("", "pods", "Pod"), change)), expected);
    }

    #[test]
    fn source_is_uri_reference_for_any_cluster_name() {
        for (cluster, expected) in [
            ("prod-eu1", "/clusters/prod-eu1"),
            ("arn:aws:eks:eu-west-1:1:cluster/prod", "/clusters/arn:aws:eks:eu-west-1:1:cluster/prod"),
            ("admin@prod", "/clusters/admin@prod"),
            ("my test cluster", "/clusters/my%20test%20cluster"),
            ("a?b#c%d\"e\\f[1]", "/clusters/a%3Fb%23c%25d%22e%5Cf%5B1%5D"),
            ("größe", "/clusters/gr%C3%B6%C3%9Fe"),
        ] {
            let encoder = Encoder::new(cluster, "9f2c");
            let event = event(unit("", "pods", "Pod"), Change::Synced { objects: 0, resource_version: "7".into() });
            let mut out = Vec::new();
            encoder.encode(&mut out, &event);
            let written: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!((written["source"].as_str(), encoder.cluster()), (Some(expected), cluster));
            expected.parse::<http::Uri>().unwrap();
            let mut sources = Vec::new();
            encoder.each_attribute(&event, |which, value| {
                sources.extend((which == Attribute::Source).then(|| value.to_owned()));
            });
            assert_eq!(sources, [expected]);
            #[cfg(feature = "cli")]
            assert_eq!(cluster_of(expected).as_deref(), Some(cluster));
        }
    }

    /// Rule: G-6.
    #[test]
    fn event_ids_name_object_and_change() {
        let pods = || unit("", "pods", "Pod");
        for (change, expected) in [
            (added("a", "u", 3), "u.3"),
            (updated("a", "u", 3, 4), "u.4"),
            (deleted("a", "u", 5), "u.deleted"),
            (removed("a", "u", 4), "u.4.removed"),
            (synced(2), "v1/pods.synced.77"),
        ] {
            let event = event(pods(), change);
            assert_eq!(id(&event), expected);
            assert_eq!(value(&event)["id"], expected);
        }
        let grouped = |change| event(unit("metrics.k8s.io", "nodes", "NodeMetrics"), change);
        assert_eq!(id(&grouped(synced(2))), "metrics.k8s.io/v1/nodes.synced.77");
        let without_uid = || object("", "n1", "", "{}");
        let change = Change::Added { object: without_uid(), cause: Cause::Relist };
        assert_eq!(id(&grouped(change)), "metrics.k8s.io/nodes//n1.7");
        let change = Change::Deleted { object: without_uid(), tombstone: false, cause: Cause::Relist };
        assert_eq!(id(&grouped(change)), "metrics.k8s.io/nodes//n1.deleted");
    }

    #[test]
    fn event_data_depends_on_change() {
        let pods = || unit("", "pods", "Pod");
        let gone = Change::Deleted { object: object("", "n1", "u", "{}"), tombstone: true, cause: Cause::Relist };
        let gone = value(&event(unit("x.io", "nodes", "Node"), gone));
        assert_eq!(gone["data"], json!({"object": {}, "finalstateunknown": true}));
        assert_eq!((&gone["subject"], &gone["cause"]), (&json!("/apis/x.io/v1/nodes/n1"), &json!("relist")));
        assert_eq!((gone.get("namespace"), &gone["apiversion"]), (None, &json!("x.io/v1")));
        let done = value(&event(pods(), synced(12)));
        assert_eq!(done["data"], json!({"objects": 12, "resourceversion": "77"}));
        assert_eq!(
            (&done["subject"], done.get("name"), &done["cause"]),
            (&json!("/api/v1/pods"), None, &json!("initial"))
        );
        let same =
            Change::Unchanged { object: object("ns", "a", "u", r#"{"a":1}"#), cause: Cause::Resync { round: 1 } };
        let same = value(&event(pods(), same));
        assert_eq!(same["data"], json!({"object": {"a": 1}, "old": {"a": 1}}));
        assert_eq!((&same["type"], &same["cause"]), (&json!("dev.deltabus.resource.updated"), &json!("resync")));
        let mut lost = event(pods(), updated("a", "u", 1, 2));
        lost.record.old_lost = true;
        assert_eq!(value(&lost)["data"].get("old"), None);
        assert!(value(&event(pods(), deleted("a", "u", 1)))["data"].get("finalstateunknown").is_none());
    }

    #[test]
    fn odd_times_are_encoded() {
        for (micros, expected) in [(0, "1970-01-01T00:00:00.000000Z"), (-1, "1969-12-31T23:59:59.999999Z")] {
            let mut out = Vec::new();
            write_time(&mut out, micros);
            assert_eq!(out, expected.as_bytes());
        }
        write_time(&mut Vec::new(), i64::MIN);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![any::<i64>().prop_map(Value::from), any::<String>().prop_map(Value::from), Just(Value::Null)];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Any object, with any layout and any name, becomes one line of JSON without loss.
        #[test]
        fn any_object_is_encoded_as_one_line(content in any_json(), name in any::<String>(), pretty: bool, crlf: bool) {
            let json = if pretty { serde_json::to_string_pretty(&content) } else { serde_json::to_string(&content) }.unwrap();
            let json = if crlf { json.replace('\n', "\r\n") } else { json };
            let object = object("ns", &name, &name, &json);
            let event = event(unit("g", "things", "Thing"), Change::Added { object, cause: Cause::Watch });
            let line = text(&event);
            prop_assert!(!line.contains(['\n', '\r']));
            let parsed: Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(&parsed["data"]["object"], &content);
            if !name.is_empty() {
                prop_assert_eq!(&parsed["name"], &Value::from(name));
            }
            prop_assert_eq!(&parsed["id"], &Value::from(id(&event)));
        }
    }
}
