//! Control of handlers: `POST /v1/handlers/NAME/pause`, `resume`, `replay`. Each request is logged with its client.

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::Response,
    response::IntoResponse as _,
};
use serde_json::json;

use super::{ServeState, auth::Caller, api_error::ApiError};
use crate::delivery::status::Control;

/// Controls the handler, and responds with its new state.
pub(super) async fn control(
    State(state): State<ServeState>,
    Extension(Caller { address, token }): Extension<Caller>,
    Path((name, action)): Path<(String, String)>,
) -> Response<Body> {
    let control = match action.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "replay" => Control::Replay,
        _ => return ApiError::no_such_path().into_response(),
    };
    let (address, token) = (address.map(|address| address.to_string()), token.as_deref());
    if let Some((replayed, handler)) = (state.control)(&name, control) {
        tracing::info!(handler = name, action, address, token, replayed, "handler control requested over HTTP");
        return Json(json!({ "handler": handler, "replayed": replayed })).into_response();
    }
    tracing::info!(handler = name, action, address, token, "handler control requested over HTTP: no such handler");
    let known: Vec<_> = (state.handlers)().into_iter().map(|handler| handler.name).collect();
    ApiError::no_such_handler(&name, &known).into_response()
}
