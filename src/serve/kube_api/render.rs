//! Objects and lists as bodies. A list is made piece by piece while it is sent: its bytes never lie in memory whole.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{form::Form, pages::Page};
use crate::object::Object;

/// A piece of a list is sent once it is this long.
const PIECE_BYTES: usize = 64 << 10;

/// Renders one object.
pub(super) fn object(object: &Object, form: Form) -> Vec<u8> {
    let mut body = Vec::new();
    push_object(&mut body, object, form);
    body
}

/// Renders a page, piece by piece.
pub(super) fn list(page: Page, api_version: &str, kind: &str, form: Form) -> impl Iterator<Item = Bytes> + use<> {
    let mut metadata = json!({"resourceVersion": page.resource_version});
    if let Some(token) = &page.next {
        metadata["continue"] = token.to_string().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let (api_version, kind) = match form {
        Form::Whole => (api_version, kind),
        Form::Metadata => ("meta.k8s.io/v1", "PartialObjectMetadata"),
    };
    let mut piece =
        format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":["#).into_bytes();
    let (first, mut at) = (page.range.start, page.range.start);
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        while piece.len() < PIECE_BYTES {
            if at == page.range.end {
                piece.extend_from_slice(b"]}");
                ended = true;
                break;
            }
            if at > first {
                piece.push(b',');
            }
            push_object(&mut piece, &page.items[at], form);
            at += 1;
        }
        Some(Bytes::from(std::mem::take(&mut piece)))
    })
}

fn push_object(body: &mut Vec<u8>, object: &Object, form: Form) {
    match form {
        Form::Whole => body.extend_from_slice(&object.json()),
        Form::Metadata => {
            body.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
            body.extend_from_slice(metadata(&object.json()).as_bytes());
            body.push(b'}');
        }
    }
}

/// Returns the raw text of an object's `metadata`.
fn metadata(json: &[u8]) -> &str {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    // What the scan let pass has metadata; where the rest is no JSON there is nothing to show.
    serde_json::from_slice::<Outline<'_>>(json).map_or("{}", |outline| outline.metadata.get())
}
