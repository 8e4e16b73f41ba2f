//! Stream `/v1/events`: the events of [`subscribe`](crate::subscribe) for a subscriber, as the body of a response.

use std::convert::Infallible;

use axum::{
    Extension,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderName, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream::unfold;
use jiff::Timestamp;

use super::{ServeState, api_error::ApiError, auth::Caller, connection::Endless};
use crate::{
    registry::Registry,
    subscribe::{
        filter::names, frame::StreamFormat, hub::SubscribeError, query::SubscriberQuery, subscriber::Subscriber,
    },
    suggestion::suggestion,
};

/// Header that makes buffering proxies pass the stream on at once.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Responds with a stream of events. The stream ends when the engine or the connection ends.
pub(super) async fn events(
    State(state): State<ServeState>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let ServeState { hub, streams, .. } = state;
    let full = "too many open streams for [http] max_connections: try again later";
    let permit = streams.try_acquire_owned().map_err(|_| ApiError::too_many_requests(full))?;
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let no_such_stream = || ApiError::not_acceptable("text/event-stream, application/x-ndjson");
    let format = StreamFormat::accepted(text(header::ACCEPT)).ok_or_else(no_such_stream)?;
    let query = query.as_deref().unwrap_or_default();
    let query = SubscriberQuery::parse(query, text(HeaderName::from_static("last-event-id")), Timestamp::now())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    if query.when.is_some() && !hub.options.when {
        let why =
            "`when` is turned off by [subscribe] when = false; filter by resource, namespace, labelSelector and type";
        return Err(ApiError::not_allowed(why));
    }
    for name in &query.filter.resources {
        check_resource(&hub.registry, name)?;
    }
    let entered = Subscriber::enter(&hub, caller.stream_client(), query, format).await;
    let subscriber = entered.map_err(|error| match error {
        SubscribeError::Full(_) => ApiError::too_many_requests(&error.to_string()),
        SubscribeError::Stopping => ApiError::unavailable(&error.to_string()),
        SubscribeError::When(_) => ApiError::bad_request(error.to_string()),
        SubscribeError::Journal(_) | SubscribeError::Judge(_) => ApiError::internal_error(&error.to_string()),
    })?;
    let pieces = unfold((subscriber, permit), |(mut subscriber, permit)| async {
        let bytes = subscriber.next().await?;
        Some((Ok::<_, Infallible>(bytes), (subscriber, permit)))
    });
    let headers =
        [(header::CONTENT_TYPE, format.media_type()), (header::CACHE_CONTROL, "no-cache, private"), (UNBUFFERED, "no")];
    Ok((Extension(Endless), headers, Body::from_stream(pieces)).into_response())
}

/// Checks that `name` is a watched type or an entry of `[resources]`, because the stream of any other name would stay empty. Before
/// the first discovery, accepts all names.
fn check_resource(registry: &Registry, name: &str) -> Result<(), ApiError> {
    if !registry.is_discovered() {
        return Ok(());
    }
    let units = registry.informers();
    let waiting = registry.waiting();
    let is_watched = units.iter().any(|unit| names(name, &unit.entry, &unit.resource));
    if is_watched || waiting.keys().any(|(entry, pattern)| name == entry || name == pattern) {
        return Ok(());
    }
    let mut known: Vec<_> = units.iter().map(|unit| unit.resource.qualified_name()).collect();
    known.extend(units.iter().map(|unit| unit.entry.clone()));
    known.extend(waiting.into_keys().map(|(entry, _)| entry));
    known.sort_unstable();
    known.dedup();
    let which = match known.as_slice() {
        [] => "nothing is watched".to_owned(),
        known => suggestion(name, known.iter().map(String::as_str)),
    };
    let message = format!("resource: Invalid value: {name:?}: no watched type and no entry of [resources]; {which}");
    Err(ApiError::bad_request(message))
}
