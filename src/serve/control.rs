//! What can be asked of handlers at work: `POST /v1/handlers/NAME/pause`, `resume`, `replay`.
//!
//! Who may is said by `serve/auth.rs`, before.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::Response,
    response::IntoResponse as _,
};
use serde_json::json;

use super::{ServeState, status_object::StatusObject};
use crate::handler::status::Control;

/// Does what is asked, and answers with the handler as it is then.
pub(super) async fn control(
    State(state): State<ServeState>,
    Path((name, action)): Path<(String, String)>,
) -> Response<Body> {
    let control = match action.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "replay" => Control::Replay,
        _ => return StatusObject::no_such_path().into_response(),
    };
    if let Some((replayed, handler)) = (state.control)(&name, control) {
        return Json(json!({ "handler": handler, "replayed": replayed })).into_response();
    }
    let known: Vec<_> = (state.handlers)().into_iter().map(|handler| handler.name).collect();
    StatusObject::no_such_handler(&name, &known).into_response()
}
