//! Execution of one GET: its answer becomes a page or batches of events.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::{Request, header};
use http_body_util::{BodyDataStream, BodyExt};
use kube::client::Body;

use super::{Source, failure, query};
use crate::list_watch::{
    Failure, ListPage, WatchEvent,
    decode::{ListDecoder, WatchDecoder, decode_status},
};

/// Number of received bytes after which a batch ends, even if more have arrived. It limits latency and memory under load. A
/// single event may be longer: only `[kube] max_frame` limits it.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Number of events after which a batch ends.
const BATCH_EVENTS_MAX: usize = 4096;

/// Largest part of an error body that is read.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Gets one page.
pub(super) async fn list(source: &Source, uri: &str) -> Result<ListPage, Failure> {
    let request = Request::get(uri).header(header::ACCEPT, query::accept(&source.scope, true));
    let idle = source.limits.idle;
    let mut body = send(source, request).await?;
    let mut decoder = ListDecoder::new(source.served.clone(), source.plan.clone(), source.limits.max_frame);
    loop {
        match within(idle, next_chunk(&mut body)).await? {
            None => return decoder.finish(),
            Some(chunk) => decoder.push(&chunk?)?,
        }
    }
}

/// Opens a watch. The stream is independent of `source`; dropping it closes the connection.
pub(super) async fn open_watch(
    source: &Source,
    uri: &str,
) -> Result<impl Stream<Item = Result<Vec<WatchEvent>, Failure>> + use<>, Failure> {
    // a server may compress each event of a watch separately, which costs both sides more than it saves
    let request = Request::get(uri).header(header::ACCEPT, query::accept(&source.scope, false));
    let request = request.header(header::ACCEPT_ENCODING, "identity");
    let body = send(source, request).await?;
    let decoder = WatchDecoder::new(source.served.clone(), source.plan.clone(), source.limits.max_frame);
    let batches = Batches { body, decoder, end: None, events: 0 };
    Ok(stream::unfold(batches, |mut batches| async move { Some((batches.next().await?, batches)) }))
}

/// An open watch.
struct Batches {
    body: BodyDataStream<Body>,
    decoder: WatchDecoder,
    /// Set when no more bytes will be read. A failure is passed to the consumer after the events that arrived before it.
    end: Option<Result<(), Failure>>,
    /// Number of events in the last batch, used as the initial capacity of the next batch.
    events: usize,
}

impl Batches {
    /// Returns all events that have arrived; waits if there are none.
    async fn next(&mut self) -> Option<Result<Vec<WatchEvent>, Failure>> {
        let mut events = Vec::with_capacity(self.events);
        let mut bytes = 0;
        let mut is_dry = false;
        while self.end.is_none() && (events.is_empty() || bytes < BATCH_BYTES_MAX && events.len() < BATCH_EVENTS_MAX) {
            let chunk = if events.is_empty() {
                next_chunk(&mut self.body).await
            } else if let Some(chunk) = next_chunk(&mut self.body).now_or_never() {
                chunk
            } else if is_dry {
                break;
            } else {
                // The connection's task runs on this thread and hands over one chunk at a time. Yield, so that the task can hand
                // over the next chunk. The body counts as empty only if no chunk follows.
                is_dry = true;
                tokio::task::yield_now().await;
                continue;
            };
            is_dry = false;
            match chunk {
                None => self.end = Some(Ok(())),
                Some(Err(failure)) => self.end = Some(Err(failure)),
                Some(Ok(chunk)) => {
                    bytes += chunk.len();
                    self.decode(&chunk, &mut events);
                }
            }
        }
        self.events = events.len();
        if !events.is_empty() {
            return Some(Ok(events));
        }
        self.end.replace(Ok(()))?.err().map(Err)
    }

    fn decode(&mut self, chunk: &[u8], events: &mut Vec<WatchEvent>) {
        if let Err(failure) = self.decoder.push(chunk, events) {
            self.end = Some(Err(failure));
        } else if let Some(WatchEvent::Undecodable(_)) = events.last() {
            self.end = Some(Ok(()));
        }
    }
}

/// Sends a request and returns the body of the answer; an unsuccessful status is a failure.
async fn send(source: &Source, request: http::request::Builder) -> Result<BodyDataStream<Body>, Failure> {
    let request = request.body(Body::empty()).map_err(|error| Failure::Request(error.to_string()))?;
    let idle = source.limits.idle;
    let answer = within(idle, source.client.send(request)).await?.map_err(|error| failure::sort(&error))?;
    let (head, body) = answer.into_parts();
    let mut body = body.into_data_stream();
    if head.status.is_success() {
        return Ok(body);
    }
    let text = error_text(&mut body, idle).await;
    let retry_after = head.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let status = decode_status(head.status.as_u16(), retry_after, &text);
    Err(Failure::Status(status))
}

/// Reads the body of an error, up to a limit or the first failure.
async fn error_text(body: &mut BodyDataStream<Body>, idle: Duration) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < ERROR_BYTES_MAX
        && let Ok(Some(Ok(chunk))) = within(idle, next_chunk(body)).await
    {
        text.extend_from_slice(&chunk);
    }
    text
}

/// Returns the next piece of a body, or `None` at its end.
async fn next_chunk(body: &mut BodyDataStream<Body>) -> Option<Result<Bytes, Failure>> {
    Some(body.next().await?.map_err(|error| failure::sort(&error)))
}

/// Limits a future to `idle`.
async fn within<T>(idle: Duration, future: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(idle, future).await.map_err(|_| Failure::TimedOut(idle))
}
