//! Decoders from response bytes to watch events, lists and errors. They do no I/O: the caller pushes bytes in.
//!
//! The decoders of lists and of watches accept chunks that are cut at any byte. The cuts change only one thing: how early a
//! malformed document is rejected. A document within one chunk is read in place; a document that spans chunks is collected first.
//! The decoding time is linear in the number of bytes.

mod list;
mod status;
#[cfg(test)]
pub(crate) mod tests;
mod watch;

use std::borrow::Cow;

pub use list::ListDecoder;
pub(crate) use status::decode_status;
pub use watch::WatchDecoder;

use super::{Failure, SkipReason};
use crate::object::scan::{JsonCursor, Nesting, Progress, ScanError, Scanned, TypeMeta};

/// Capacity in bytes to which [`clear`] shrinks a larger buffer. Such a buffer has collected a document that spanned chunks.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Maximum length of a frame in bytes, whatever is configured. An [`Object`](crate::object::Object) has 32-bit offsets into one
/// buffer, which holds its identity and its JSON.
const FRAME_MAX: usize = 1 << 31;

/// Empties a buffer that collected a document from several chunks.
fn clear(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(SPARE_BYTES_MAX);
}

/// Fails if a document, or the part that has arrived, is longer than `max_bytes`. The error names the object at `path`.
fn check_len(document: &[u8], max_bytes: usize, path: &[&str]) -> Result<(), Failure> {
    if document.len() <= max_bytes {
        return Ok(());
    }
    Err(Failure::FrameTooLong { max_bytes, object: object_name(&document[..max_bytes], path) })
}

/// Returns `namespace/name` of the object at `path`, or `None` if there is no name. The JSON may be truncated.
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
    // an error ends the loop: the JSON may be truncated
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
