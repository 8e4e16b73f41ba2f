//! Parser of YAML. It resolves scalars as kubectl does.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_saphyr::UserMessageFormatter;

/// Maximum depth of nested collections, the same as in `serde_json`.
pub(crate) const DEPTH_MAX: usize = 128;

/// Parses the documents of a text: `0644` is 420, and the key `on` is `true`. The size of the text is not limited.
///
/// # Errors
/// Returns a message of one line.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_documents: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_depth: DEPTH_MAX,
        },
        legacy_octal_numbers: true,
    };
    let parsed = serde_saphyr::from_multiple_with_options::<Node>(text, options).map_err(|error| {
        let error = error.render_with_formatter(&UserMessageFormatter);
        error.lines().next().unwrap_or_default().to_owned()
    })?;
    Ok(parsed.into_iter().map(|Node(value)| value).collect())
}

/// A value. Its keys are resolved like its scalars, and are then written as text, because a key of JSON is a text.
struct Node(Value);

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfNode).map(Self)
    }
}

struct OfNode;

impl<'de> Visitor<'de> for OfNode {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of YAML")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Node(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(Key(key)) = members.next_key()? {
            let Node(value) = members.next_value()?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} occurs twice")));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

/// A key as text: the boolean, number or text that it is.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(OfNode)? {
            Value::String(text) => Ok(Self(text)),
            key @ (Value::Bool(_) | Value::Number(_)) => Ok(Self(key.to_string())),
            key => Err(D::Error::custom(format!("expected a text as a key, found {key}: write it in quotes"))),
        }
    }
}
