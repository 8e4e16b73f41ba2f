//! From the bytes of a response to what they say: watch streams, lists, errors. No I/O: bytes are pushed in.
//!
//! Both decoders are fed chunks as they arrive, however they are cut, and give the same answer for every cut at a cost
//! linear in the bytes. What lies within one chunk is read where it is; what is cut is collected first.
//! Only how soon a malformed document is refused depends on the cut.

mod list;
mod status;
#[cfg(test)]
pub(crate) mod tests;
mod watch;

use std::borrow::Cow;

pub use list::ListDecoder;
pub use status::decode_status;
pub use watch::WatchDecoder;

use super::SkipReason;
use crate::object::scan::{JsonCursor, Nesting, Progress, ScanError, Scanned, TypeMeta};

/// Above this a buffer for what is cut between chunks is given back after use.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// The largest frame there can be: offsets within an object are 32 bits wide, and its identity is stored beside it.
const FRAME_MAX: usize = 1 << 31;

/// Empties a buffer for what is cut between chunks.
fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(SPARE_BYTES_MAX);
}

/// Returns `namespace/name` of the object at `path`. The JSON may be cut off; `None` where the name is.
fn object_name(json: &[u8], path: &[&str]) -> Option<String> {
    let mut cursor = JsonCursor::new(json);
    for step in path.iter().chain(&["metadata"]) {
        cursor.enter(b'{', "an object").ok()?;
        let mut first = true;
        while *cursor.next_member(&mut first).ok()??.key.bytes().ok()? != *step.as_bytes() {
            cursor.skip_value().ok()?;
        }
    }
    cursor.enter(b'{', "an object").ok()?;
    let (mut namespace, mut name, mut first) = (None, None, true);
    // an error is the place where the object is cut off
    while let Ok(Some(member)) = cursor.next_member(&mut first) {
        let Ok(value) = cursor.skip_value() else { break };
        let text = || JsonCursor::new(value).string("a string").ok()?.decode().ok();
        match &*member.key.bytes().ok()? {
            b"namespace" => namespace = text(),
            b"name" => name = text(),
            _ => {}
        }
    }
    let name = name?;
    Some(namespace.map_or_else(|| name.to_string(), |namespace| format!("{namespace}/{name}")))
}

fn type_name(api_version: &str, kind: &str) -> String {
    let known = |text: &str| if text.is_empty() { "?".to_owned() } else { text.to_owned() };
    format!("{} {}", known(api_version), known(kind))
}

/// Returns the bytes from the first one that is not whitespace.
fn trim_start(chunk: &[u8]) -> &[u8] {
    let len = chunk.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
    &chunk[len..]
}
