//! Watches: a cursor into the history of a type, read at the client's speed.
//!
//! Events for a slow client are not queued: its watch reads them later from the store's history. If the history no longer has all
//! events after the cursor, the client is disconnected.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::body::Body;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::{
    sync::watch as signal,
    time::{Instant, sleep_until},
};

use super::{
    super::{
        ApiError, SimulatorOptions, StreamingSupport,
        selector::RequestSelector,
        store::{HistoryKind, HistoryStep, ListQuery, Stored, TypeId},
        types::TypeInfo,
    },
    Shared,
    list::{parse_version, shaped, wait_for_version},
    request::{Ask, Call, Shape},
};

/// Maximum number of events in one chunk.
const CHUNK_EVENTS: usize = 256;
/// Size in bytes at which a chunk ends.
const CHUNK_BYTES: usize = 1 << 20;

struct Watch {
    shared: Arc<Shared>,
    id: TypeId,
    info: Arc<TypeInfo>,
    namespace: Option<String>,
    selector: RequestSelector,
    shape: Shape,
    /// Version up to which all events are sent or in `queue`.
    cursor: u64,
    queue: VecDeque<(HistoryKind, Arc<Stored>)>,
    /// Set if the watch must still send the bookmark that ends the initial events.
    marker: bool,
    /// An ERROR event to send before any other event.
    error: Option<ApiError>,
    timer: WatchTimer,
    /// Set when the stream ends.
    ended: bool,
    changes: signal::Receiver<u64>,
}

/// Times of the bookmarks and of the end of a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchTimer {
    /// Set if the client wants bookmarks.
    pub(crate) bookmarks: bool,
    interval: Duration,
    next_bookmark: Instant,
    deadline: Instant,
}

impl WatchTimer {
    /// Reads the parameters of a watch.
    pub(crate) fn new(call: &Call, options: &SimulatorOptions) -> Result<Self, ApiError> {
        let lifetime = call.number("timeoutSeconds")?.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let (now, interval) = (Instant::now(), options.bookmark_interval);
        let deadline = now + lifetime.unwrap_or(options.watch_timeout);
        let bookmarks = call.flag("allowWatchBookmarks");
        Ok(Self { bookmarks, interval, next_bookmark: now + interval, deadline })
    }

    /// Waits for the next bookmark, or for the end of the watch; returns true at the end.
    pub(crate) async fn due(&mut self) -> bool {
        let wake = if self.bookmarks { self.deadline.min(self.next_bookmark) } else { self.deadline };
        sleep_until(wake).await;
        self.next_bookmark = wake + self.interval;
        wake == self.deadline
    }
}

/// Opens a watch. As on the real server, a version that cannot be served is reported in an ERROR event.
pub(super) async fn watch(ask: Ask<'_>) -> Result<Body, ApiError> {
    let mut selector = ask.selector()?;
    let Ask { shared, call, target, id, info, .. } = ask;
    if let Some(name) = target.name {
        selector = selector.and_name(name);
    }
    let streaming = streaming(shared, call)?;
    let timer = WatchTimer::new(call, &shared.options)?;
    shared.watches.fetch_add(1, Ordering::Relaxed);
    let mut watch = Watch {
        id,
        info,
        namespace: target.namespace.map(str::to_owned),
        selector,
        shape: call.shape(),
        cursor: 0,
        queue: VecDeque::new(),
        marker: false,
        error: None,
        timer,
        ended: false,
        changes: shared.store.changes(),
        shared: Arc::clone(shared),
    };
    if let Err(error) = watch.start(call, streaming).await {
        if error.code == 400 {
            return Err(error);
        }
        watch.error = Some(error);
    }
    let chunks = stream::unfold(watch, async |mut watch| {
        let chunk = watch.next().await?;
        Some((Ok::<_, Infallible>(chunk), watch))
    });
    Ok(Body::from_stream(chunks))
}

/// Returns the value of `sendInitialEvents`, or `None` if the parameter is absent or ignored. With `None`, the requested version
/// determines whether the watch begins with initial events.
fn streaming(shared: &Shared, call: &Call) -> Result<Option<bool>, ApiError> {
    let is_asked = call.seen.query.contains_key("sendInitialEvents");
    let matching = call.param("resourceVersionMatch");
    let mistake = match shared.options.streaming_lists {
        _ if !is_asked && matching.is_empty() => return Ok(None),
        _ if !is_asked => {
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        }
        StreamingSupport::Ignored => return Ok(None),
        StreamingSupport::Refused => {
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        }
        StreamingSupport::Served if matching != "NotOlderThan" => {
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        }
        StreamingSupport::Served => return Ok(Some(call.flag("sendInitialEvents"))),
    };
    Err(ApiError::invalid_options(mistake))
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    async fn start(&mut self, call: &Call, streaming: Option<bool>) -> Result<(), ApiError> {
        let asked = parse_version(call.param("resourceVersion"))?;
        if streaming == Some(true)
            && call.past.is_none()
            && let Some(asked) = asked
        {
            wait_for_version(&self.shared, asked).await?;
        }
        let store = self.shared.store.lock();
        match asked {
            Some(asked) if streaming != Some(true) => {
                self.cursor = asked;
                return store.check_watch(self.id, asked);
            }
            _ => {}
        }
        self.cursor = call.past.unwrap_or_else(|| store.version());
        if streaming != Some(false) {
            let (namespace, selector) = (self.namespace.clone(), self.selector.clone());
            let query = ListQuery { namespace, selector, exact: call.past, ..ListQuery::default() };
            let page = store.list(self.id, &query)?;
            self.queue = page.items.into_iter().map(|object| (HistoryKind::Added, object)).collect();
            self.marker = streaming == Some(true) && self.timer.bookmarks;
        }
        Ok(())
    }

    /// Returns the next chunk; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut chunk = Vec::new();
        if let Some(error) = self.error.take() {
            push_frame("ERROR", &error.status(), &mut chunk);
            self.ended = true;
            return Some(chunk);
        }
        while !self.ended {
            self.fill(&mut chunk);
            if chunk.is_empty() && !self.refill() {
                self.wait(&mut chunk).await;
            }
            if !chunk.is_empty() {
                return Some(chunk);
            }
        }
        None
    }

    /// Moves queued events into the chunk, then the marker if it is due.
    fn fill(&mut self, chunk: &mut Vec<u8>) {
        for _ in 0..CHUNK_EVENTS {
            if chunk.len() >= CHUNK_BYTES {
                return;
            }
            let Some((kind, object)) = self.queue.pop_front() else { break };
            push_event(kind.as_ref(), chunk, |chunk| chunk.extend_from_slice(&shaped(&object, self.shape)));
        }
        if self.marker && self.queue.is_empty() {
            self.marker = false;
            self.push_bookmark(&json!({"k8s.io/initial-events-end": "true"}), chunk);
        }
    }

    /// Reads more of the history; returns true if there may be something to send.
    fn refill(&mut self) -> bool {
        self.changes.mark_unchanged();
        let mut changes = Vec::new();
        let store = self.shared.store.lock();
        let read = store.read(self.id, self.cursor, CHUNK_EVENTS, &mut changes);
        let removed = store.is_removed(self.id);
        drop(store);
        let Ok(cursor) = read else {
            self.ended = true; // the history is gone: disconnect the slow reader
            return true;
        };
        self.cursor = cursor;
        let events: Vec<_> = changes.iter().filter_map(|change| self.judge(change)).collect();
        self.queue.extend(events);
        if removed && changes.is_empty() {
            self.ended = true;
        }
        self.ended || !changes.is_empty()
    }

    /// Converts a change to an event of this watch; `None` if the watch does not see the change. An object that starts to match the
    /// selector is added; an object that no longer matches is deleted.
    fn judge(&self, change: &HistoryStep) -> Option<(HistoryKind, Arc<Stored>)> {
        let key = change.new.key().as_ref();
        if self.namespace.as_ref().is_some_and(|namespace| namespace != key.namespace) {
            return None;
        }
        if self.selector.is_empty() {
            return Some((change.kind, Arc::clone(&change.new)));
        }
        let matches = |object: &Arc<Stored>| self.selector.matches(key, || object.facts(&self.info));
        let before = change.old.as_ref().filter(|old| matches(old));
        let after = change.kind != HistoryKind::Deleted && matches(&change.new);
        match (before, after) {
            (None, true) => Some((HistoryKind::Added, Arc::clone(&change.new))),
            (Some(_), true) => Some((HistoryKind::Modified, Arc::clone(&change.new))),
            (Some(_), false) if change.kind == HistoryKind::Deleted => {
                Some((HistoryKind::Deleted, Arc::clone(&change.new)))
            }
            (Some(old), false) => Some((HistoryKind::Deleted, Arc::new(old.restamped(change.new.version())))),
            (None, false) => None,
        }
    }

    /// Waits for a change, the next bookmark or the end of the watch.
    async fn wait(&mut self, chunk: &mut Vec<u8>) {
        tokio::select! {
            changed = self.changes.changed() => self.ended = changed.is_err(),
            ended = self.timer.due() => {
                self.ended = ended;
                // the real server sends no bookmark before its version reaches the cursor
                if self.timer.bookmarks && self.cursor <= self.shared.store.version() {
                    self.push_bookmark(&Value::Null, chunk);
                }
            }
        }
    }

    fn push_bookmark(&self, annotations: &Value, chunk: &mut Vec<u8>) {
        let (kind, api_version) = self.shape.type_of(&self.info);
        push_bookmark(kind, &api_version, self.cursor, annotations, chunk);
    }
}

/// Appends an event; `write` appends its object.
pub(crate) fn push_event(kind: &str, chunk: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    chunk.extend_from_slice(b"{\"type\":\"");
    chunk.extend_from_slice(kind.as_bytes());
    chunk.extend_from_slice(b"\",\"object\":");
    write(chunk);
    chunk.extend_from_slice(b"}\n");
}

/// Appends a bookmark.
pub(crate) fn push_bookmark(kind: &str, api_version: &str, version: u64, annotations: &Value, chunk: &mut Vec<u8>) {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if !annotations.is_null() {
        metadata["annotations"] = annotations.clone();
    }
    push_frame("BOOKMARK", &json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}), chunk);
}

pub(super) fn push_frame(kind: &str, object: &Value, chunk: &mut Vec<u8>) {
    chunk.extend_from_slice(format!("{}\n", json!({"type": kind, "object": object})).as_bytes());
}
