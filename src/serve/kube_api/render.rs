//! Bodies of objects and lists. A list is rendered piece by piece while it is sent; it is never in memory as a whole.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    form::{Form, Include, MetaVersion},
    pages::Page,
    table::Table,
};
use crate::object::Object;

/// Minimum length of a piece of a list; only the last piece may be shorter.
const PIECE_BYTES: usize = 64 << 10;

/// Estimated bytes of an object's metadata, or of its row in a table.
const METADATA_BYTES: u64 = 1 << 10;

/// Format of the objects of one type.
#[derive(Debug)]
pub(super) enum Style {
    /// Whole objects, with their apiVersion and kind.
    Whole(String, String),
    /// `PartialObjectMetadata`.
    Metadata(MetaVersion),
    /// Rows of a table. Ages in the rows are relative to the `Timestamp`.
    Table(Table, MetaVersion, Include, Timestamp),
}

impl Style {
    /// Creates the style of a form; `table` is called only for tables.
    pub(super) fn new(form: Form, api_version: &str, kind: &str, table: impl FnOnce() -> Table) -> Self {
        match form {
            Form::Whole => Self::Whole(api_version.to_owned(), kind.to_owned()),
            Form::Metadata(version) => Self::Metadata(version),
            Form::Table(version, include) => Self::Table(table(), version, include, Timestamp::now()),
        }
    }

    /// Returns the JSON text before the first item of a list. The text ends with `[`.
    fn head(&self, metadata: &Value) -> String {
        match self {
            Self::Whole(api_version, kind) => list_head(api_version, kind, metadata),
            Self::Metadata(version) => list_head(version, "PartialObjectMetadata", metadata),
            Self::Table(table, version, ..) => {
                let columns = Value::from(table.columns());
                format!(
                    r#"{{"kind":"Table","apiVersion":"{version}","metadata":{metadata},"columnDefinitions":{columns},"rows":["#
                )
            }
        }
    }

    /// Estimates the bytes of an object in a response.
    pub(super) fn estimate(&self, object: &Object) -> u64 {
        match self {
            Self::Whole(..) | Self::Table(_, _, Include::Object, _) => object.json_bytes() as u64,
            Self::Metadata(_) | Self::Table(..) => METADATA_BYTES,
        }
    }

    fn push(&self, body: &mut Vec<u8>, object: &Object) {
        match self {
            Self::Whole(..) => body.extend_from_slice(&object.json()),
            Self::Metadata(version) => push_metadata(body, object, version),
            Self::Table(table, version, include, now) => {
                let (cells, conditions) = table.row(object, *now);
                body.extend_from_slice(format!(r#"{{"cells":{cells}"#).as_bytes());
                if let Some(conditions) = conditions {
                    body.extend_from_slice(format!(r#","conditions":{conditions}"#).as_bytes());
                }
                body.extend_from_slice(br#","object":"#);
                match include {
                    Include::None => body.extend_from_slice(b"null"),
                    Include::Metadata => push_metadata(body, object, version),
                    Include::Object => body.extend_from_slice(&object.json()),
                }
                body.push(b'}');
            }
        }
    }
}

/// Renders one object. With the style `Table`, the result is a table with one row.
pub(super) fn object(object: &Object, style: &Style) -> Vec<u8> {
    let mut body = Vec::new();
    if matches!(style, Style::Table(..)) {
        body.extend_from_slice(style.head(&json!({"resourceVersion": object.resource_version()})).as_bytes());
    }
    style.push(&mut body, object);
    if matches!(style, Style::Table(..)) {
        body.extend_from_slice(b"]}");
    }
    body
}

/// Renders a page piece by piece.
pub(super) fn list(page: Page, style: Style) -> impl Iterator<Item = Bytes> + use<> {
    let Page { snapshot, range, next } = page;
    let mut metadata = json!({"resourceVersion": snapshot.resource_version});
    if let Some(token) = next {
        metadata["continue"] = token.to_string().into();
        if snapshot.tells_remaining {
            metadata["remainingItemCount"] = (snapshot.items.len() - range.end).into();
        }
    }
    let mut piece = style.head(&metadata).into_bytes();
    let (first, mut rest) = (range.start, Some(range));
    std::iter::from_fn(move || {
        let items = rest.as_mut()?;
        while piece.len() < PIECE_BYTES {
            let Some(at) = items.next() else {
                piece.extend_from_slice(b"]}");
                rest = None;
                break;
            };
            if at > first {
                piece.push(b',');
            }
            style.push(&mut piece, &snapshot.items[at]);
        }
        Some(Bytes::from(std::mem::take(&mut piece)))
    })
}

fn list_head(api_version: &str, kind: &str, metadata: &Value) -> String {
    format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
}

fn push_metadata(body: &mut Vec<u8>, object: &Object, version: MetaVersion) {
    body.extend_from_slice(
        format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"{version}","metadata":"#).as_bytes(),
    );
    body.extend_from_slice(metadata_of(&object.json()).as_bytes());
    body.push(b'}');
}

/// Returns the raw text of an object's `metadata`.
pub(crate) fn metadata_of(json: &[u8]) -> &str {
    #[derive(Deserialize)]
    struct Outline<'a> {
        #[serde(borrow)]
        metadata: &'a RawValue,
    }
    // The scan has checked that there is metadata. If the rest is invalid JSON, there is nothing to show.
    serde_json::from_slice::<Outline<'_>>(json).map_or("{}", |outline| outline.metadata.get())
}
