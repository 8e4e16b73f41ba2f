//! Protobuf bodies: `kubectl create deployment` and other clients with generated types send them. Pure.
//!
//! `protobuf.txt` has the messages that the simulator reads. A field that is not in it is refused, unless it has its zero value.

use std::{collections::HashMap, str, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::super::ApiError;

pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// First bytes of every body. The message that follows has the kind of the object and the bytes of its message.
const PREFIX: &[u8] = b"k8s\0";

/// Largest depth of messages in a skipped field.
const MAX_SKIPPED_DEPTH: u32 = 8;

/// Fields of each message, by number.
static MESSAGES: LazyLock<HashMap<&str, HashMap<u64, Field>>> = LazyLock::new(|| {
    let lines = include_str!("protobuf.txt").lines().filter(|line| !line.starts_with('#'));
    let field = |text: &'static str| {
        let mut words = text.split(' ');
        let number = words.next()?.parse().ok()?;
        let (name, of) = (words.next()?, words.next()?);
        let inside = |open, close| of.strip_prefix(open)?.strip_suffix(close);
        let (shape, of) = match (inside('[', ']'), inside('{', '}'), of.strip_suffix('?')) {
            (Some(of), ..) => (Shape::List, of),
            (_, Some(of), _) => (Shape::Map, of),
            (.., Some(of)) => (Shape::Pointer, of),
            _ if name == "-" => (Shape::Inlined, of),
            _ => (Shape::Plain, of),
        };
        Some((number, Field { name, shape, of }))
    };
    let message = |(name, fields): (&'static str, &'static str)| (name, fields.split(", ").filter_map(field).collect());
    lines.filter_map(|line| line.split_once(": ")).map(message).collect()
});

/// Field of a message.
#[derive(Clone, Copy, Debug)]
struct Field {
    name: &'static str,
    shape: Shape,
    /// Type of the value, or of the elements of a list or map.
    of: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Field that JSON has only with a value other than zero.
    Plain,
    Pointer,
    List,
    Map,
    /// Message whose fields belong to the outer message in JSON.
    Inlined,
}

/// Decodes the object of a body.
pub(super) fn decode(body: &[u8]) -> Result<Value, ApiError> {
    let envelope = body.strip_prefix(PREFIX).ok_or_else(malformed)?;
    let (mut api_version, mut kind, mut message) = ("", "", &[][..]);
    for field in Fields(envelope) {
        match field? {
            (1, Wire::Bytes(type_meta)) => {
                for field in Fields(type_meta) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => message = bytes,
            _ => {}
        }
    }
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    object.append(&mut members(kind, message)?);
    Ok(object.into())
}

/// Decodes the fields of a message.
fn members(message: &str, bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let known = MESSAGES.get(message).ok_or_else(|| unread(&format!("{message} objects")))?;
    let mut members = Map::new();
    for field in Fields(bytes) {
        let (number, wire) = field?;
        match known.get(&number) {
            Some(field) => field.decode(wire, &mut members)?,
            None if wire.is_zero(MAX_SKIPPED_DEPTH) => {}
            None => return Err(unread(&format!("field {number} of {message}"))),
        }
    }
    Ok(members)
}

impl Field {
    /// Adds the decoded field to the members of its message.
    fn decode(self, wire: Wire<'_>, members: &mut Map<String, Value>) -> Result<(), ApiError> {
        match self.shape {
            Shape::Plain | Shape::Pointer => {
                let value = value(self.of, wire)?;
                let is_zero = value == false || value == 0 || value == "" || value == json!({});
                if !is_zero || matches!(self.shape, Shape::Pointer) {
                    members.insert(self.name.to_owned(), value);
                }
            }
            Shape::Inlined => {
                if let Value::Object(mut inlined) = value(self.of, wire)? {
                    members.append(&mut inlined);
                }
            }
            Shape::List => {
                let list = members.entry(self.name).or_insert_with(|| json!([]));
                list.as_array_mut().ok_or_else(malformed)?.push(value(self.of, wire)?);
            }
            Shape::Map => {
                let Wire::Bytes(entry) = wire else { return Err(malformed()) };
                let (mut key, mut of_key) = ("", value(self.of, Wire::Bytes(&[]))?);
                for field in Fields(entry) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => key = text(bytes)?,
                        (2, wire) => of_key = value(self.of, wire)?,
                        _ => {}
                    }
                }
                members.entry(self.name).or_insert_with(|| json!({}))[key] = of_key;
            }
        }
        Ok(())
    }
}

/// Decodes a value of a type.
fn value(of: &str, wire: Wire<'_>) -> Result<Value, ApiError> {
    Ok(match (of, wire) {
        ("text", Wire::Bytes(bytes)) => text(bytes)?.into(),
        ("bytes", Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        ("bool", Wire::Number(number)) => (number != 0).into(),
        ("integer", Wire::Number(number)) => number.cast_signed().into(),
        ("integer-or-text", Wire::Bytes(bytes)) => {
            let (mut is_text, mut number, mut value) = (false, 0, "");
            for field in Fields(bytes) {
                match field? {
                    (1, Wire::Number(kind)) => is_text = kind == 1,
                    (2, Wire::Number(found)) => number = found.cast_signed(),
                    (3, Wire::Bytes(bytes)) => value = text(bytes)?,
                    _ => {}
                }
            }
            if is_text { value.into() } else { number.into() }
        }
        ("text" | "bytes" | "bool" | "integer" | "integer-or-text", _) | (_, Wire::Number(_)) => {
            return Err(malformed());
        }
        (message, Wire::Bytes(bytes)) => members(message, bytes)?.into(),
    })
}

/// Value of a field as encoded.
#[derive(Clone, Copy, Debug)]
enum Wire<'a> {
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    /// Returns true for zero, an empty text, and a message of such fields. A message deeper than `depth` is not zero.
    fn is_zero(self, depth: u32) -> bool {
        match self {
            Self::Number(number) => number == 0,
            Self::Bytes([]) => true,
            Self::Bytes(_) if depth == 0 => false,
            Self::Bytes(bytes) => Fields(bytes).all(|field| field.is_ok_and(|(_, wire)| wire.is_zero(depth - 1))),
        }
    }
}

/// Fields of an encoded message, each with its number. Ends after an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.number()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            _ => return None, // Kubernetes' types have no other fields
        };
        Some((tag >> 3, wire))
    }

    /// Reads a varint.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(malformed))
    }
}

fn text(bytes: &[u8]) -> Result<&str, ApiError> {
    str::from_utf8(bytes).map_err(|_| malformed())
}

fn malformed() -> ApiError {
    ApiError::bad_request("the body is not a Kubernetes object in protobuf")
}

fn unread(what: &str) -> ApiError {
    let message = format!(
        "the simulator does not read {what} in protobuf: send JSON, for example with \
         `kubectl create … --dry-run=client -o json | kubectl create -f -`"
    );
    ApiError::new(415, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a field with bytes; all lengths in these tests are below 128.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[(number << 3) | 2, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
    }

    fn body(kind: &str, message: &[u8]) -> Vec<u8> {
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [PREFIX, &field(1, &type_meta)[..], &field(2, message), &field(3, b"")].concat()
    }

    #[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
    #[track_caller]
    fn check(kind: &str, message: &[u8], expected: Result<Value, u16>) {
        let decoded = decode(&body(kind, message));
        assert_eq!(decoded.map_err(|error| error.code), expected, "{kind} {message:?}");
    }

    #[test]
    fn fields_have_their_json_names() {
        let metadata = field(1, &[field(1, b"a"), field(2, b""), field(8, b"")].concat());
        let entry = |key: &[u8], value: &[u8]| field(2, &[field(1, key), field(2, value)].concat());
        let map = [metadata.clone(), entry(b"x", b"1"), entry(b"y", b""), vec![4 << 3, 0]].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1", "y": ""},
            "immutable": false,
        });
        check("ConfigMap", &map, Ok(expected));
        let secret = [metadata.clone(), entry(b"x", b"1")].concat();
        let expected = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"x": "MQ=="}});
        check("Secret", &secret, Ok(expected));
        let target = |fields: &[u8]| [vec![3 << 3, 80], field(4, fields)].concat();
        let ports = [field(1, &target(&[8, 0, 16, 90])), field(1, &target(&[8, 1, 16, 0, 26, 1, b'w']))].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "Service",
            "spec": {"ports": [{"port": 80, "targetPort": 90}, {"port": 80, "targetPort": "w"}]},
        });
        check("Service", &field(2, &ports), Ok(expected));
    }

    #[test]
    fn unread_fields_and_kinds_are_refused() {
        check("Lease", b"", Err(415));
        let container = |rest: &[u8]| field(2, &field(3, &field(2, &field(2, &[&field(1, b"a")[..], rest].concat()))));
        check("Deployment", &container(&field(8, &field(1, &field(1, b"cpu")))), Err(415));
        let containers = json!([{"name": "a"}]);
        let expected = json!({
            "apiVersion": "v1", "kind": "Deployment", "spec": {"template": {"spec": {"containers": containers}}},
        });
        check("Deployment", &container(&field(8, &field(1, b""))), Ok(expected));
        let error = decode(&body("Lease", b"")).unwrap_err();
        assert!(error.message.contains("Lease objects") && error.message.contains("kubectl create -f -"), "{error}");
    }

    #[test]
    fn malformed_bodies_are_bad_requests() {
        for body in [
            &b""[..],
            b"k8s",
            b"{}",
            b"k8s\0\x0a",
            b"k8s\0\x0a\x05ab",
            b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(decode(body).unwrap_err().code, 400, "{body:?}");
        }
        check("ConfigMap", b"\x08\x01", Err(400));
        check("ConfigMap", &field(1, &field(1, b"\xff")), Err(400));
        check("ConfigMap", b"\x09\0\0\0\0\0\0\0\0", Err(400));
        // a skipped field of many messages in one another
        let deep = (0..20).fold(Vec::new(), |inner, _| field(1, &inner));
        check("ConfigMap", &field(9, &deep), Err(415));
    }

    #[test]
    fn every_field_has_known_type() {
        let basic = ["text", "bytes", "bool", "integer", "integer-or-text"];
        assert!(MESSAGES.len() > 40);
        for (message, fields) in &*MESSAGES {
            assert!(!fields.is_empty(), "{message}");
            for field in fields.values() {
                assert!(basic.contains(&field.of) || MESSAGES.contains_key(field.of), "{message} {field:?}");
            }
        }
        let fields: usize = MESSAGES.values().map(HashMap::len).sum();
        let listed = include_str!("protobuf.txt").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(fields, listed.map(|line| line.matches(", ").count() + 1).sum::<usize>());
    }
}
