//! Parts of objects as CEL values that borrow the object's bytes.

use std::collections::HashMap;

use cel::common::{
    types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt},
    value::Val,
};

use super::reads::Part;
use crate::object::scan::{JsonCursor, ScanError};

/// CEL value of any type.
pub(super) type Any<'v> = Box<dyn Val + 'v>;

/// Decodes a part of a document. Fields that are not read are left out. If only the key of a member is read, its value
/// is null.
pub(super) fn decode<'v>(json: &'v [u8], part: &Part) -> Result<Any<'v>, ScanError> {
    value(&mut JsonCursor::new(json), Some(part))
}

/// Decodes `part` of the next value, or the whole value if `part` is `None`. The cursor limits the recursion depth.
fn value<'v>(cursor: &mut JsonCursor<'v>, part: Option<&Part>) -> Result<Any<'v>, ScanError> {
    let part = part.filter(|part| !part.whole);
    Ok(match cursor.peek()? {
        b'{' => Box::new(CelMap::from(members(cursor, part)?)),
        b'[' => Box::new(CelList::from(elements(cursor, part)?)),
        b'"' => Box::new(CelString::from(cursor.string("a string")?.decode()?)),
        _ => scalar(cursor.scalar()?),
    })
}

fn members<'v>(cursor: &mut JsonCursor<'v>, part: Option<&Part>) -> Result<HashMap<CelMapKey<'v>, Any<'v>>, ScanError> {
    let mut members = HashMap::with_capacity(part.map_or(0, |part| part.members.len()));
    if part.is_some_and(|part| part.members.is_empty() && !part.keys) {
        cursor.skip_value()?;
        return Ok(members);
    }
    cursor.enter(b'{', "an object")?;
    let mut first = true;
    while let Some(member) = cursor.next_member(&mut first)? {
        let below = match part {
            Some(part) => part.member(&member.key.bytes()?),
            None => None,
        };
        let value: Any<'v> = match (part, below) {
            (None, _) | (Some(_), Some(_)) => value(cursor, below)?,
            (Some(part), None) => {
                cursor.skip_value()?;
                if !part.keys {
                    continue;
                }
                Box::new(CelNull)
            }
        };
        members.insert(CelMapKey::String(CelString::from(member.key.decode()?)), value); // duplicate names: the last counts
    }
    Ok(members)
}

fn elements<'v>(cursor: &mut JsonCursor<'v>, part: Option<&Part>) -> Result<Vec<Any<'v>>, ScanError> {
    let mut elements = Vec::new();
    let below = part.and_then(|part| part.elements.as_deref());
    if part.is_some() && below.is_none() {
        cursor.skip_value()?;
        return Ok(elements);
    }
    cursor.enter(b'[', "an array")?;
    let mut first = true;
    while cursor.next_element(&mut first)?.is_some() {
        elements.push(value(cursor, below)?);
    }
    Ok(elements)
}

/// Decodes a number like Kubernetes does: as an integer if it is one.
fn scalar<'v>(text: &[u8]) -> Any<'v> {
    let text = match text {
        b"null" => return Box::new(CelNull),
        b"true" => return Box::new(CelBool::from(true)),
        b"false" => return Box::new(CelBool::from(false)),
        number => std::str::from_utf8(number).unwrap_or_default(),
    };
    if let Ok(number) = text.parse::<i64>() {
        Box::new(CelInt::from(number))
    } else if let Ok(number) = text.parse::<u64>() {
        Box::new(CelUInt::from(number))
    } else {
        Box::new(CelDouble::from(text.parse::<f64>().unwrap_or(f64::NAN)))
    }
}
