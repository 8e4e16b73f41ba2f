//! Ownership of changed values, according to `fieldsV1`.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::ManagedEntry;
use crate::object::{
    Object,
    scan::{JsonCursor, ScanError},
};

/// Maximum number of bytes that one comparison reads: the size of both states for each candidate. It bounds the time that a large
/// object with many writers can take.
const BYTES_MAX: usize = 16 << 20;

/// Maximum number of members in the key of an element. The longest keys of Kubernetes have three.
const KEY_MEMBERS_MAX: usize = 8;

/// Returns the only candidate that owns a value which `new` has and `old` has not. `None` if several do, or none does.
pub(super) fn only_owner<'e, 'a>(
    candidates: &[&'e ManagedEntry<'a>],
    old: &Object,
    new: &Object,
) -> Option<&'e ManagedEntry<'a>> {
    if candidates.len().saturating_mul(old.json_bytes() + new.json_bytes()) > BYTES_MAX {
        return None;
    }
    let (old, new) = changed_members(&old.json(), &new.json()).ok()?;
    let owns_any = |entry: &&&ManagedEntry<'_>| {
        let fields = serde_json::from_slice::<Map<String, Value>>(entry.fields);
        fields.is_ok_and(|fields| owns_change_below(&fields, Some(&old), Some(&new)))
    };
    let mut owners = candidates.iter().filter(owns_any);
    let first = owners.next()?;
    owners.next().is_none().then_some(*first)
}

/// Decodes the top-level members whose bytes differ. API servers write equal values as equal bytes.
fn changed_members(old: &[u8], new: &[u8]) -> Result<(Value, Value), ScanError> {
    let (old, new) = (members(old)?, members(new)?);
    let decode = |members: &Members<'_>, other: &Members<'_>| {
        let changed = members.iter().filter(|(name, json)| other.get(*name) != Some(*json));
        let decoded = changed.filter_map(|(name, json)| Some((name.clone(), serde_json::from_slice(json).ok()?)));
        Value::Object(decoded.collect())
    };
    Ok((decode(&old, &new), decode(&new, &old)))
}

/// JSON of each member of an object.
type Members<'a> = HashMap<String, &'a [u8]>;

fn members(json: &[u8]) -> Result<Members<'_>, ScanError> {
    let mut cursor = JsonCursor::new(json);
    cursor.enter(b'{', "an object")?;
    let (mut members, mut first) = (HashMap::new(), true);
    while let Some(member) = cursor.next_member(&mut first)? {
        members.insert(member.key.decode()?.into_owned(), cursor.skip_value()?);
    }
    Ok(members)
}

/// Returns true if a value at one of the `fields` was added or changed. The decoder of `fields` limits the recursion.
fn owns_change(fields: &Value, old: Option<&Value>, new: Option<&Value>) -> bool {
    match fields.as_object() {
        Some(fields) if fields.is_empty() => new.is_some() && old != new,
        Some(fields) => owns_change_below(fields, old, new),
        None => false,
    }
}

/// Like [`owns_change`], for the members of `fields`: `f:name`, `k:{"name":"a"}` for an element of a list, `v:"a"` for an element of
/// a set, `i:0` for a position, and `.` for the value itself.
fn owns_change_below(fields: &Map<String, Value>, old: Option<&Value>, new: Option<&Value>) -> bool {
    let mut elements = None;
    fields.iter().any(|(step, below)| match step.split_once(':') {
        None => step == "." && old.is_none() && new.is_some(),
        Some(("f", name)) => owns_change(below, old.and_then(|old| old.get(name)), new.and_then(|new| new.get(name))),
        Some(("i", position)) => position.parse::<usize>().is_ok_and(|position| {
            owns_change(below, old.and_then(|old| old.get(position)), new.and_then(|new| new.get(position)))
        }),
        Some(("k" | "v", key)) => {
            let Ok(key) = serde_json::from_str::<Value>(key) else { return false };
            let elements = elements.get_or_insert_with(|| Elements::new(&key, old, new));
            let key = elements.text_of(&key);
            owns_change(below, elements.old.get(&key).copied(), elements.new.get(&key).copied())
        }
        Some(_) => false,
    })
}

/// Elements of a list in both states, by the text of their key.
struct Elements<'v> {
    /// Names of the members that form the key; `None` for a set, in which an element is its own key.
    names: Option<Vec<String>>,
    old: HashMap<String, &'v Value>,
    new: HashMap<String, &'v Value>,
}

impl<'v> Elements<'v> {
    /// Indexes both lists by the members of `key`. All keys of a list have the same members.
    fn new(key: &Value, old: Option<&'v Value>, new: Option<&'v Value>) -> Self {
        let names = key.as_object().filter(|key| key.len() <= KEY_MEMBERS_MAX);
        let names = names.map(|key| key.keys().cloned().collect());
        let mut elements = Self { names, old: HashMap::new(), new: HashMap::new() };
        let index = |list: Option<&'v Value>| {
            let list = list.and_then(Value::as_array).into_iter().flatten();
            list.map(|element| (elements.text_of(element), element)).collect()
        };
        (elements.old, elements.new) = (index(old), index(new));
        elements
    }

    fn text_of(&self, element: &Value) -> String {
        match &self.names {
            Some(names) => names.iter().map(|name| element.get(name).cloned()).collect::<Value>().to_string(),
            None => element.to_string(),
        }
    }
}
