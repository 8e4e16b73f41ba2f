//! Control of handlers: `POST /v1/handlers/NAME/pause`, `resume`, `replay`. Each request is logged with its client.

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use serde_json::{Value, json};

use super::{ServeState, api_error::ApiError, auth::Caller};
use crate::delivery::status::Control;

/// Controls the handler, and responds with its new state.
pub(super) async fn control(
    State(state): State<ServeState>,
    Extension(Caller { address, token }): Extension<Caller>,
    Path((name, action)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let control = match action.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "replay" => Control::Replay,
        _ => return Err(ApiError::no_such_path()),
    };
    let (address, token) = (address.map(|address| address.to_string()), token.as_deref());
    if let Some((replayed, handler)) = state.handlers.control(&name, control) {
        tracing::info!(handler = name, action, address, token, replayed, "handler control requested over HTTP");
        return Ok(Json(json!({ "handler": handler, "replayed": replayed })));
    }
    tracing::info!(handler = name, action, address, token, "handler control requested over HTTP: no such handler");
    let known: Vec<_> = state.handlers.views().into_iter().map(|handler| handler.name).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let error = ApiError::new(404, format!("no handler {name:?}; configured: {known}"));
    Err(error.with(json!({"kind": "handlers", "name": name})))
}
