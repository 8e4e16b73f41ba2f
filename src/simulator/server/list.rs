//! Lists (A-2) and waiting for a version (A-6).

use std::{convert::Infallible, iter::once};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;

use super::{
    super::{
        ApiError,
        store::{Continue, ListQuery, ListedPage, Stored},
        types::TypeInfo,
    },
    Shared,
    request::{Ask, Shape},
};

/// Number of objects in one piece of a list.
const PIECE_ITEMS: usize = 64;

/// Answers a list request.
pub(super) async fn list(ask: &Ask<'_>) -> Result<Body, ApiError> {
    let Ask { shared, call, .. } = ask;
    let mut query = query(ask)?;
    if call.past.is_some() {
        query.exact = call.past;
    } else if let Some(asked) = parse_version(call.param("resourceVersion"))? {
        wait_for_version(shared, asked).await?;
        let exact = match call.param("resourceVersionMatch") {
            "Exact" => true,
            "" => query.limit.is_some(),
            _ => false,
        };
        query.exact = exact.then_some(asked);
    }
    let page = shared.store.lock().list(ask.id, &query)?;
    Ok(body(&ask.info, page, call.shape()))
}

fn query(ask: &Ask<'_>) -> Result<ListQuery, ApiError> {
    let call = ask.call;
    let version = call.param("resourceVersion");
    if call.seen.query.contains_key("sendInitialEvents") {
        return Err(ApiError::new(422, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"));
    }
    let after = match call.param("continue") {
        "" => None,
        _ if !version.is_empty() => {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        token => Some(Continue::parse(token)?),
    };
    match call.param("resourceVersionMatch") {
        "" => {}
        "Exact" if !matches!(version, "" | "0") => {}
        "NotOlderThan" if !version.is_empty() && after.is_none() => {}
        other => return Err(ApiError::bad_request(format!("resourceVersionMatch: Invalid value: {other:?}"))),
    }
    let limit = call.number("limit")?.filter(|limit| *limit > 0);
    let limit = limit.filter(|_| version != "0" || !ask.shared.options.watch_cache);
    Ok(ListQuery {
        namespace: ask.target.namespace.map(str::to_owned),
        selector: ask.selector()?,
        limit: limit.and_then(|limit| usize::try_from(limit).ok()),
        after,
        exact: None,
    })
}

/// Parses a `resourceVersion`. Returns `None` for an empty text and for 0: they request no specific version.
pub(super) fn parse_version(text: &str) -> Result<Option<u64>, ApiError> {
    if matches!(text, "" | "0") {
        return Ok(None);
    }
    let invalid = |_| ApiError::bad_request(format!("resourceVersion: Invalid value: {text:?}: not a version"));
    text.parse().map(Some).map_err(invalid)
}

/// Waits until the store has reached `version`; 504 if that takes too long (A-6).
pub(super) async fn wait_for_version(shared: &Shared, version: u64) -> Result<(), ApiError> {
    let mut changes = shared.store.changes();
    let reached = changes.wait_for(|current| *current >= version);
    match tokio::time::timeout(shared.options.fresh_timeout, reached).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(ApiError::too_large(version, shared.store.version())),
    }
}

fn body(info: &TypeInfo, page: ListedPage, shape: Shape) -> Body {
    let (kind, api_version) = shape.type_of(info);
    let next = page.next.as_ref().map(|next| (next.to_token(), next.remaining));
    let head = list_head(kind, &api_version, page.version, next);
    let (items, without_kind) = (page.items, shape == Shape::Whole && info.typed);
    let pieces = (0..items.len()).step_by(PIECE_ITEMS).map(move |start| {
        let mut piece = Vec::new();
        for (at, object) in items.iter().enumerate().skip(start).take(PIECE_ITEMS) {
            if at > 0 {
                piece.push(b',');
            }
            if without_kind {
                piece.push(b'{');
                piece.extend_from_slice(object.json_from_metadata());
            } else {
                piece.extend_from_slice(&shaped(object, shape));
            }
        }
        piece
    });
    let pieces = once(head.into_bytes()).chain(pieces).chain(once(b"]}".to_vec()));
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
}

/// Returns the JSON of a list up to its first item. `next` is the continue token, with the number of remaining objects if known.
pub(crate) fn list_head(kind: &str, api_version: &str, version: u64, next: Option<(String, Option<usize>)>) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let Some((token, remaining)) = next {
        metadata["continue"] = json!(token);
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":["#)
}

/// Returns an object's JSON, or its metadata as a `PartialObjectMetadata`.
pub(super) fn shaped(object: &Stored, shape: Shape) -> Bytes {
    match shape {
        Shape::Whole => object.json(),
        Shape::Metadata => {
            let metadata = object.metadata();
            format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{metadata}}}"#).into()
        }
    }
}
