//! Answers that are generated while they are sent, chunk by chunk.

use std::{convert::Infallible, iter, ops::Range, sync::Arc};

use axum::body::Body;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};

use super::{FLOW_STEP, Head, Shared};
use crate::{
    bench::{States, measure::monotonic},
    mutex::lock,
    simulator::{ApiError, Call, SimulatorOptions, WatchTimer, list_head, push_bookmark, push_event},
};

/// Minimum size of a chunk in bytes.
const CHUNK: usize = 128 << 10;

fn body(chunks: impl Stream<Item = Vec<u8>> + Send + 'static) -> Body {
    Body::from_stream(chunks.map(Ok::<_, Infallible>))
}

/// Returns a page of a list, from object `first` on. The objects are in their states after the change `at`.
pub(super) fn page(shared: Arc<Shared>, at: u64, first: u64, limit: Option<u64>) -> Body {
    let objects = shared.generator.objects();
    let first = first.min(objects);
    let end = limit.map_or(objects, |limit| objects.min(first.saturating_add(limit)));
    let resource = shared.generator.resource();
    let next = (end < objects).then(|| (format!("{at}.{end}"), usize::try_from(objects - end).ok()));
    let head = list_head(&resource.kind, &resource.api_version(), shared.generator.version(at), next);
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
    /// Set if the watch must still send the bookmark that ends the initial events.
    marker: bool,
    /// Last change that was sent.
    cursor: u64,
    timer: WatchTimer,
}

impl Watch {
    /// Opens a watch after the change `from`; with `None` it begins with all existing objects.
    pub(super) fn open(shared: Arc<Shared>, from: Option<u64>, call: &Call) -> Result<Self, ApiError> {
        let (present, timer) = (shared.changes(), WatchTimer::new(call, &SimulatorOptions::default())?);
        Ok(Self {
            initial: from.is_none().then(|| (shared.states(present), 0..shared.generator.objects())),
            marker: timer.bookmarks && call.flag("sendInitialEvents"),
            cursor: from.unwrap_or(present),
            head: shared.head.subscribe(),
            timer,
            shared,
        })
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
            let (cursor, flows) = (self.cursor, self.head.borrow().flow.is_some());
            let has_news = |head: &Head| head.changes > cursor || head.flow.is_some() && !flows;
            let mut head = self.head.clone();
            tokio::select! {
                changed = head.wait_for(has_news) => drop(changed.ok()?),
                () = sleep(FLOW_STEP), if flows => {}
                ended = self.timer.due() => {
                    if ended {
                        return None;
                    }
                    self.bookmark(&Value::Null, &mut chunk);
                    return Some(chunk);
                }
            }
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
                push_event("ADDED", chunk, |chunk| generator.write(number, states.last(number), chunk));
            }
            if !left.is_empty() {
                return true;
            }
            self.initial = None;
            if self.marker {
                self.bookmark(&json!({"k8s.io/initial-events-end": "true"}), chunk);
            }
        }
        let head = self.shared.changes();
        while self.cursor < head && chunk.len() < CHUNK {
            self.cursor += 1;
            let number = generator.drawn(self.cursor);
            push_event("MODIFIED", chunk, |chunk| generator.write(number, self.cursor, chunk));
            if let Some(sent) = &mut *lock(&self.shared.sent) {
                sent.push((generator.version(self.cursor), monotonic()));
            }
        }
        !chunk.is_empty()
    }

    fn bookmark(&self, annotations: &Value, chunk: &mut Vec<u8>) {
        let generator = &self.shared.generator;
        let resource = generator.resource();
        push_bookmark(&resource.kind, &resource.api_version(), generator.version(self.cursor), annotations, chunk);
    }
}
