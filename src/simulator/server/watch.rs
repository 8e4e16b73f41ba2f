//! Watches: a cursor into the history of a type, read at the client's speed.
//!
//! No events are queued for a slow client: it reads the store's history. It is disconnected when the history no longer
//! reaches back to its cursor.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::{sync::watch as signal, time::Instant};

use super::{
    super::{
        StreamingSupport,
        error::ApiError,
        faults::{Next, StreamFault, StreamPlan},
        selector::RequestSelector,
        store::{HistoryKind, HistoryStep, ListQuery, Stored, TypeId},
        types::TypeInfo,
    },
    Shared,
    ask::Ask,
    body::{Batch, Body, broken_off},
    list::{parse_version, shaped, wait_for_version},
    request::{Call, Shape},
};

/// Maximum number of events and bytes in one chunk.
const CHUNK_EVENTS: usize = 256;
const CHUNK_BYTES: usize = 1 << 20;

struct Watch {
    shared: Arc<Shared>,
    resets: Arc<AtomicBool>,
    id: TypeId,
    info: Arc<TypeInfo>,
    namespace: Option<String>,
    selector: RequestSelector,
    shape: Shape,
    /// Version up to which all events are sent or in `queue`.
    cursor: u64,
    queue: VecDeque<(HistoryKind, Arc<Stored>)>,
    /// Set until the bookmark that ends the initial events is sent.
    marker: bool,
    /// An ERROR event to send before any other event.
    error: Option<ApiError>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    plan: StreamPlan,
    end: Option<End>,
    changes: signal::Receiver<u64>,
    /// Buffer for reads, kept to reuse its memory.
    read: Vec<HistoryStep>,
}

/// End of a watch after all due events are sent.
#[derive(Clone, Copy)]
enum End {
    Clean,
    Broken { reset: bool },
    Stalled,
}

/// Opens a watch. As on the real server, an error of its version is sent as an ERROR event.
pub(super) async fn watch(ask: Ask<'_>) -> Result<Body, ApiError> {
    let mut selector = ask.selector()?;
    let Ask { shared, resets, call, resource, id, info, faults } = ask;
    if let Some(name) = &resource.name {
        selector = selector.and_name(name);
    }
    let streaming = streaming(shared, call)?;
    let bookmarks = call.flag("allowWatchBookmarks");
    let lifetime = call.number("timeoutSeconds")?.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let now = Instant::now();
    shared.watches.fetch_add(1, Ordering::Relaxed);
    let mut watch = Watch {
        resets: Arc::clone(resets),
        id,
        info,
        namespace: resource.namespace.clone(),
        selector,
        shape: call.shape(),
        cursor: 0,
        queue: VecDeque::new(),
        marker: false,
        error: None,
        bookmarks,
        next_bookmark: now + shared.options.bookmark_interval,
        deadline: now + lifetime.unwrap_or(shared.options.watch_timeout),
        plan: StreamPlan::of(faults),
        end: None,
        changes: shared.store.changes(),
        read: Vec::new(),
        shared: Arc::clone(shared),
    };
    if let Err(error) = watch.start(call.param("resourceVersion"), streaming).await {
        if error.code == 400 {
            return Err(error);
        }
        watch.error = Some(error);
    }
    let frames = stream::unfold(watch, async |mut watch| {
        let frame = watch.next().await?;
        Some((frame.map(Frame::data), watch))
    });
    Ok(StreamBody::new(Box::pin(frames)).boxed_unsync())
}

/// Returns true if initial events are requested; `None` if the version decides.
fn streaming(shared: &Shared, call: &Call) -> Result<Option<bool>, ApiError> {
    let invalid = |why: &str| Err(ApiError::new(422, format!("ListOptions.meta.k8s.io \"\" is invalid: {why}")));
    let matching = call.param("resourceVersionMatch");
    if !call.query.contains_key("sendInitialEvents") {
        if matching.is_empty() {
            return Ok(None);
        }
        return invalid(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        );
    }
    match shared.options.streaming_lists {
        StreamingSupport::Ignored => return Ok(None),
        StreamingSupport::Refused => {
            return invalid(
                "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
            );
        }
        StreamingSupport::Served => {}
    }
    if matching != "NotOlderThan" {
        return invalid(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    Ok(Some(call.flag("sendInitialEvents")))
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch {
    async fn start(&mut self, version: &str, streaming: Option<bool>) -> Result<(), ApiError> {
        let asked = if matches!(version, "" | "0") { None } else { Some(parse_version(version)?) };
        if streaming == Some(true)
            && let Some(asked) = asked
            && self.plan.lag == 0
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
        let lag = if asked.is_some() { self.plan.lag } else { 0 };
        self.cursor = store.version().saturating_sub(lag);
        if streaming != Some(false) {
            let query = ListQuery {
                namespace: self.namespace.clone(),
                selector: self.selector.clone(),
                exact: (lag > 0).then_some(self.cursor),
                ..ListQuery::default()
            };
            let page = store.list(self.id, &query)?;
            let items = if self.plan.empty { Vec::new() } else { page.items };
            self.queue = items.into_iter().map(|object| (HistoryKind::Added, object)).collect();
            self.marker = streaming == Some(true) && self.bookmarks;
        }
        Ok(())
    }

    /// Returns the next chunk; `None` at the end of the stream.
    async fn next(&mut self) -> Option<io::Result<Batch>> {
        loop {
            match self.end {
                Some(End::Clean) => return None,
                Some(End::Broken { reset }) => {
                    return Some(Err(broken_off(reset.then_some(&*self.resets)).await));
                }
                Some(End::Stalled) => std::future::pending().await,
                None => {}
            }
            let mut batch = Batch::default();
            if let Some(error) = self.error.take() {
                batch.push(error_frame(&error));
                self.end = Some(End::Clean);
                return Some(Ok(batch));
            }
            if let Some(what) = self.plan.due() {
                self.strike(what, &mut batch);
            } else {
                self.fill(&mut batch).await;
            }
            if batch.has_remaining() {
                return Some(Ok(batch));
            }
            if self.end.is_none() && self.queue.is_empty() && !self.refill() {
                self.wait(&mut batch).await;
                if batch.has_remaining() {
                    return Some(Ok(batch));
                }
            }
        }
    }

    /// Moves queued events into the chunk, then the marker if it is due.
    async fn fill(&mut self, batch: &mut Batch) {
        if self.plan.is_active() {
            if let Some((kind, object)) = self.queue.pop_front() {
                self.send_with_faults(kind, &object, batch).await;
                return;
            }
        } else {
            for _ in 0..CHUNK_EVENTS {
                if batch.remaining() >= CHUNK_BYTES {
                    return;
                }
                let Some((kind, object)) = self.queue.pop_front() else { break };
                push_event(self.shape, kind, &object, batch);
            }
        }
        if self.marker && self.queue.is_empty() {
            self.marker = false;
            if !self.plan.no_marker {
                batch.push(self.bookmark(true, 0));
            }
        }
    }

    async fn send_with_faults(&mut self, kind: HistoryKind, object: &Arc<Stored>, batch: &mut Batch) {
        match self.plan.next_event() {
            Next::Skip => return,
            Next::Send => {}
            Next::Do(StreamFault::Truncate) => {
                let mut frame = Batch::default();
                push_event(self.shape, kind, object, &mut frame);
                let half = frame.remaining() / 2;
                batch.push(frame.copy_to_bytes(half));
                self.end = Some(End::Clean);
                return;
            }
            Next::Do(what) => {
                self.queue.push_front((kind, Arc::clone(object)));
                self.strike(what, batch);
                return;
            }
        }
        if let Some(delay) = self.plan.delay {
            tokio::time::sleep(delay).await;
        }
        push_event(self.shape, kind, object, batch);
    }

    /// Reads more of the history; returns true if there may be something to send.
    fn refill(&mut self) -> bool {
        self.changes.mark_unchanged();
        let store = self.shared.store.lock();
        let read = store.read(self.id, self.cursor, CHUNK_EVENTS, &mut self.read);
        let removed = store.is_removed(self.id);
        drop(store);
        let Ok(cursor) = read else {
            self.end = Some(End::Clean); // the history is gone: disconnect the slow reader
            return true;
        };
        let moved = !self.read.is_empty();
        self.cursor = cursor;
        let read = std::mem::take(&mut self.read);
        for change in &read {
            if let Some(event) = self.judge(change) {
                self.queue.push_back(event);
            }
        }
        self.read = read;
        self.read.clear();
        if removed && !moved {
            self.end = Some(End::Clean);
            return true;
        }
        moved
    }

    /// Converts a change to the event that this watch sees, because objects enter and leave its selector.
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
            (Some(old), false) => {
                Some((HistoryKind::Deleted, Arc::new(old.restamped(HistoryKind::Deleted, change.version))))
            }
            (None, false) => None,
        }
    }

    /// Waits for a change, the next bookmark or the end of the watch.
    async fn wait(&mut self, batch: &mut Batch) {
        let bookmarks = self.bookmarks && !self.plan.no_bookmarks;
        let wake = if bookmarks { self.deadline.min(self.next_bookmark) } else { self.deadline };
        tokio::select! {
            changed = self.changes.changed() => if changed.is_err() { self.end = Some(End::Clean) },
            () = tokio::time::sleep_until(wake) => {
                if wake == self.deadline {
                    self.end = Some(End::Clean);
                }
                if bookmarks {
                    self.next_bookmark = wake + self.shared.options.bookmark_interval;
                    // the real server sends no bookmark before its version reaches the cursor
                    if self.cursor <= self.shared.store.version() {
                        batch.push(self.bookmark(false, 0));
                    }
                }
            }
        }
    }

    fn strike(&mut self, what: StreamFault, batch: &mut Batch) {
        let metadata = json!({"name": "stray", "namespace": "default", "resourceVersion": self.cursor.to_string()});
        match what {
            StreamFault::End | StreamFault::Truncate => self.end = Some(End::Clean),
            StreamFault::Cut => self.end = Some(End::Broken { reset: false }),
            StreamFault::Reset => self.end = Some(End::Broken { reset: true }),
            StreamFault::Stall => self.end = Some(End::Stalled),
            StreamFault::Error(code) => {
                let error = if code == 410 {
                    ApiError::too_old(self.cursor, self.cursor + 1)
                } else {
                    ApiError::new(code, "a fault on demand")
                };
                batch.push(error_frame(&error));
                self.end = Some(End::Clean);
            }
            StreamFault::Malformed => {
                batch.push(Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{:}}}\n"));
            }
            StreamFault::Unclosed => {
                batch.push(Bytes::from_static(b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"\n"));
            }
            StreamFault::WrongKind => {
                batch.push(frame(
                    "MODIFIED",
                    &json!({"kind": "Banana", "apiVersion": "fruit.example/v1", "metadata": metadata}),
                ));
            }
            StreamFault::Table => {
                let metadata = json!({"resourceVersion": metadata["resourceVersion"]});
                batch.push(frame("MODIFIED", &table(&metadata)));
            }
            StreamFault::LongFrame(bytes) => batch.push(self.bookmark(false, bytes)),
            StreamFault::Gap(_) => {}
        }
    }

    fn bookmark(&self, marker: bool, padding: usize) -> String {
        let mut metadata = json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if marker {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        if padding > 0 {
            metadata["annotations"] = json!({"padding": "x".repeat(padding)});
        }
        let (kind, version) = match self.shape {
            Shape::Whole => (self.info.resource.kind.as_str(), self.info.resource.api_version()),
            Shape::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        };
        frame("BOOKMARK", &json!({"kind": kind, "apiVersion": version, "metadata": metadata}))
    }
}

fn push_event(shape: Shape, kind: HistoryKind, object: &Stored, batch: &mut Batch) {
    let (prefix, rest) = object.frame(kind);
    if shape == Shape::Whole {
        if let Some(prefix) = prefix {
            batch.push(prefix);
        }
        batch.push(rest);
        return;
    }
    batch.push(kind.prefix());
    batch.push(shaped(object, shape));
    batch.push(&b"}\n"[..]);
}

fn error_frame(error: &ApiError) -> String {
    frame("ERROR", &error.status())
}

fn frame(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

/// Returns an empty answer in kubectl's table form.
pub(super) fn table(metadata: &Value) -> Value {
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": []})
}
