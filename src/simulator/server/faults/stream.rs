//! Faults in the middle of a watch.

use std::{collections::VecDeque, io, sync::Arc};

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{
    super::{
        super::{
            ApiError,
            faults::{Next, StreamFault, StreamPlan},
        },
        Shared,
        list::parse_version,
        request::Call,
        watch::{push_bookmark, push_frame},
    },
    body::broken_off,
};
use crate::serve::kube_api::Target;

/// Frames of a watch, changed by its faults.
pub(super) struct FaultyStream {
    pieces: BodyDataStream,
    /// Received frames that are not sent yet.
    frames: VecDeque<Bytes>,
    plan: StreamPlan,
    /// Set while the watch sends initial events, up to the bookmark that ends them.
    initial: bool,
    /// Version of the last sent event.
    version: u64,
    /// Kind and `apiVersion` of bookmarks.
    of: (String, String),
    end: Option<End>,
}

/// Premature end of a stream.
#[derive(Clone, Copy)]
enum End {
    Clean,
    Broken(io::ErrorKind),
    Stalled,
}

impl FaultyStream {
    pub(super) fn new(shared: &Arc<Shared>, call: &Call, plan: StreamPlan, body: Body) -> Self {
        let store = shared.store.lock();
        let target = Target::parse(&call.seen.path);
        let id = target.and_then(|target| store.find(target.group, target.version, target.plural));
        let of = id.map(|id| call.shape().type_of(store.info(id))).map(|(kind, version)| (kind.to_owned(), version));
        let asked = parse_version(call.param("resourceVersion")).ok().flatten();
        Self {
            pieces: body.into_data_stream(),
            frames: VecDeque::new(),
            plan,
            initial: call.flag("sendInitialEvents"),
            version: asked.unwrap_or_else(|| store.version()),
            of: of.unwrap_or_default(),
            end: None,
        }
    }

    pub(super) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, async |mut frames| {
            let frame = frames.next().await?;
            Some((frame, frames))
        }))
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            match self.end {
                Some(End::Clean) => return None,
                Some(End::Broken(kind)) => return Some(Err(broken_off(kind).await)),
                Some(End::Stalled) => std::future::pending().await,
                None => {}
            }
            let mut sent = Vec::new();
            if let Some(what) = self.plan.due() {
                self.strike(what, &mut sent);
            } else if let Some(frame) = self.frames.pop_front() {
                self.pass(&frame, &mut sent);
            } else {
                let piece = self.pieces.next().await?.ok()?;
                self.frames.extend(piece.split_inclusive(|byte| *byte == b'\n').map(|frame| piece.slice_ref(frame)));
            }
            if !sent.is_empty() {
                return Some(Ok(sent.into()));
            }
        }
    }

    /// Sends a frame, unless a fault applies to it.
    fn pass(&mut self, frame: &[u8], sent: &mut Vec<u8>) {
        let json: Value = serde_json::from_slice(frame).unwrap_or_default();
        let metadata = &json["object"]["metadata"];
        let is_marker = !metadata["annotations"]["k8s.io/initial-events-end"].is_null();
        if !matches!(json["type"].as_str(), Some("ADDED" | "MODIFIED" | "DELETED")) {
            self.initial &= !is_marker;
            if !(is_marker && self.plan.no_marker) {
                sent.extend_from_slice(frame);
            }
            return;
        }
        if self.initial && self.plan.empty {
            return;
        }
        match self.plan.next_event() {
            Next::Skip => {}
            Next::Send => {
                self.version =
                    metadata["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
                sent.extend_from_slice(frame);
            }
            Next::Do(StreamFault::Truncate) => {
                sent.extend_from_slice(&frame[..frame.len() / 2]);
                self.end = Some(End::Clean);
            }
            Next::Do(what) => unreachable!("{what:?} has struck before"),
        }
    }

    fn strike(&mut self, what: StreamFault, sent: &mut Vec<u8>) {
        let version = self.version.to_string();
        match what {
            StreamFault::End | StreamFault::Truncate => self.end = Some(End::Clean),
            StreamFault::Cut => self.end = Some(End::Broken(io::ErrorKind::Other)),
            StreamFault::Reset => self.end = Some(End::Broken(io::ErrorKind::ConnectionReset)),
            StreamFault::Stall => self.end = Some(End::Stalled),
            StreamFault::Error(code) => {
                let error = match code {
                    410 => ApiError::too_old(self.version, self.version + 1),
                    code => ApiError::new(code, "a fault on demand"),
                };
                push_frame("ERROR", &error.status(), sent);
                self.end = Some(End::Clean);
            }
            StreamFault::Malformed => {
                sent.extend_from_slice(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{:}}}\n");
            }
            StreamFault::Unclosed => {
                sent.extend_from_slice(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"\n");
            }
            StreamFault::WrongKind => {
                let metadata = json!({"name": "stray", "namespace": "default", "resourceVersion": version});
                let stray = json!({"kind": "Banana", "apiVersion": "fruit.example/v1", "metadata": metadata});
                push_frame("MODIFIED", &stray, sent);
            }
            StreamFault::Table => push_frame("MODIFIED", &table(&version), sent),
            StreamFault::LongFrame(bytes) => {
                let (kind, api_version) = &self.of;
                let padding = json!({"padding": "x".repeat(bytes)});
                push_bookmark(kind, api_version, self.version, &padding, sent);
            }
            StreamFault::Gap(_) => {}
        }
    }
}

/// Returns an empty answer in kubectl's table form.
pub(super) fn table(version: &str) -> Value {
    let metadata = json!({"resourceVersion": version});
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": []})
}
