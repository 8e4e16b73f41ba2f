//! Answers that are generated while they are sent, chunk by chunk.

use std::{convert::Infallible, iter, ops::Range, sync::Arc, time::Duration};

use axum::body::Body;
use futures_util::{Stream, StreamExt, stream};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use super::{Asked, Head, Shared, is_true};
use crate::{
    bench::{States, measure::monotonic},
    mutex::lock,
};

/// Minimum size of a chunk in bytes.
const CHUNK: usize = 128 << 10;
const BOOKMARKS_EVERY: Duration = Duration::from_mins(1);
const TIMEOUT_DEFAULT: Duration = Duration::from_mins(45);

fn body(chunks: impl Stream<Item = Vec<u8>> + Send + 'static) -> Body {
    Body::from_stream(chunks.map(Ok::<_, Infallible>))
}

/// Returns a list from object `first` on, in the states after the change `at`.
pub(super) fn page(shared: Arc<Shared>, at: u64, first: u64, limit: Option<u64>) -> Body {
    let objects = shared.generator.objects();
    let first = first.min(objects);
    let end = limit.map_or(objects, |limit| objects.min(first.saturating_add(limit)));
    let resource = shared.generator.resource();
    let mut metadata = json!({"resourceVersion": shared.generator.version(at).to_string()});
    if end < objects {
        metadata["continue"] = json!(format!("{at}.{end}"));
        metadata["remainingItemCount"] = json!(objects - end);
    }
    let (kind, version) = (&resource.kind, resource.api_version());
    let head = format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
    let (states, mut left) = (shared.states(at), first..end);
    let mut begun = Some(head.into_bytes());
    body(stream::iter(iter::from_fn(move || {
        let mut chunk = begun.take()?;
        chunk.reserve(CHUNK + (CHUNK >> 3));
        while chunk.len() < CHUNK
            && let Some(number) = left.next()
        {
            shared.generator.write_item(number, states.last(number), &mut chunk);
            if !left.is_empty() {
                chunk.push(b',');
            }
        }
        if left.is_empty() {
            chunk.extend_from_slice(b"]}\n");
        } else {
            begun = Some(Vec::new());
        }
        Some(chunk)
    })))
}

/// A watch: a position in the sequence of changes.
pub(super) struct Watch {
    shared: Arc<Shared>,
    head: watch::Receiver<Head>,
    /// Initial objects that are not sent yet.
    initial: Option<(Arc<States>, Range<u64>)>,
    /// Set until the bookmark that ends the initial events is sent.
    marker: bool,
    /// Last change that was sent.
    cursor: u64,
    bookmarks: bool,
    bookmark_at: Instant,
    deadline: Instant,
}

impl Watch {
    /// Opens a watch after the change `from`; with `None` it begins with all existing objects.
    pub(super) fn open(shared: Arc<Shared>, from: Option<u64>, asked: &Asked) -> Self {
        let now = Instant::now();
        let head = shared.head.subscribe();
        let present = head.borrow().changes;
        let timeout = asked.timeout_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let bookmarks = is_true(&asked.allow_watch_bookmarks);
        Self {
            initial: from.is_none().then(|| (shared.states(present), 0..shared.generator.objects())),
            marker: bookmarks && is_true(&asked.send_initial_events),
            cursor: from.unwrap_or(present),
            bookmarks,
            bookmark_at: now + BOOKMARKS_EVERY,
            deadline: now + timeout.unwrap_or(TIMEOUT_DEFAULT),
            head,
            shared,
        }
    }

    pub(super) fn into_body(self) -> Body {
        body(stream::unfold(self, async |mut watch| {
            let chunk = watch.next().await?;
            Some((chunk, watch))
        }))
    }

    /// Returns the next chunk; `None` ends the watch.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut chunk = Vec::new();
        loop {
            if self.fill(&mut chunk) {
                return Some(chunk);
            }
            self.shared.flood_behind(self.cursor);
            let cursor = self.cursor;
            let wake = if self.bookmarks { self.deadline.min(self.bookmark_at) } else { self.deadline };
            let mut changed = self.head.clone();
            let awake = tokio::select! {
                changed = changed.wait_for(|head| head.changes > cursor) => changed.is_ok(),
                () = tokio::time::sleep_until(wake) => false,
            };
            if awake {
                continue;
            }
            if wake == self.deadline {
                return None;
            }
            self.bookmark_at = wake + BOOKMARKS_EVERY;
            self.bookmark(false, &mut chunk);
            return Some(chunk);
        }
    }

    /// Appends the events that are due; returns true if there were any.
    fn fill(&mut self, chunk: &mut Vec<u8>) -> bool {
        chunk.reserve(CHUNK + (CHUNK >> 3));
        let generator = &self.shared.generator;
        if let Some((states, left)) = &mut self.initial {
            while chunk.len() < CHUNK
                && let Some(number) = left.next()
            {
                frame("ADDED", chunk, |chunk| generator.write(number, states.last(number), chunk));
            }
            if !left.is_empty() {
                return true;
            }
            self.initial = None;
            if self.marker {
                self.bookmark(true, chunk);
            }
        }
        let head = self.head.borrow().changes;
        while self.cursor < head && chunk.len() < CHUNK {
            self.cursor += 1;
            let number = generator.drawn(self.cursor);
            frame("MODIFIED", chunk, |chunk| generator.write(number, self.cursor, chunk));
            if let Some(sent) = &mut *lock(&self.shared.sent) {
                sent.push((generator.version(self.cursor), monotonic()));
            }
        }
        !chunk.is_empty()
    }

    fn bookmark(&self, marker: bool, chunk: &mut Vec<u8>) {
        let generator = &self.shared.generator;
        let resource = generator.resource();
        let mut metadata = json!({"resourceVersion": generator.version(self.cursor).to_string()});
        if marker {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata});
        frame("BOOKMARK", chunk, |chunk| chunk.extend_from_slice(object.to_string().as_bytes()));
    }
}

fn frame(kind: &str, chunk: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    chunk.extend_from_slice(b"{\"type\":\"");
    chunk.extend_from_slice(kind.as_bytes());
    chunk.extend_from_slice(b"\",\"object\":");
    write(chunk);
    chunk.extend_from_slice(b"}\n");
}
