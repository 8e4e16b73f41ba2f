//! Stream of a running engine, resumed after a break.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};

use super::{Sink, sse::Reader};
use crate::cli::{
    BadUsage,
    engine_client::{EngineClient, Opened},
    report,
};

/// Time without data after which the stream is opened again. By default, an engine sends a heartbeat every fifteen seconds. If the
/// heartbeats of an engine are further apart than this time, there are unnecessary but harmless reconnects.
const SILENCE: Duration = Duration::from_secs(90);
/// Delays in milliseconds before attempts to connect again. The last delay is repeated.
const AGAIN: [u64; 4] = [200, 500, 1_000, 2_000];

/// Prints events until the reader of stdout closes it; resumes a broken stream at its position.
///
/// # Errors
/// Fails if the first request fails, if the engine refuses a later request, or if stdout cannot be written.
pub(super) async fn follow(engine: &EngineClient, path: &str, sink: &mut Sink) -> anyhow::Result<()> {
    let mut place: Option<String> = None;
    let mut attempt = 0;
    loop {
        let mut headers = vec![("accept", "text/event-stream")];
        headers.extend(place.as_deref().map(|place| ("last-event-id", place)));
        let refused = match engine.open(path, &headers).await {
            Ok(opened) if opened.code == 200 => {
                if attempt > 0 {
                    report::note("reconnected");
                }
                attempt = 0;
                read(opened, &mut place, sink).await?;
                None
            }
            Ok(opened) => Some((opened.code, engine.refused(opened).await)),
            Err(error) => Some((0, error)),
        };
        match refused {
            Some((400, error)) => return Err(BadUsage(error).into()),
            Some((401..=428 | 430..=499, error)) => return Err(error),
            Some((_, error)) if place.is_none() && attempt == 0 => return Err(error),
            _ => {} // another attempt may succeed
        }
        if attempt == 0 {
            report::note(&format!("the stream from {} ended, reconnecting", engine.url));
        }
        sleep(Duration::from_millis(AGAIN[attempt.min(AGAIN.len() - 1)])).await;
        attempt += 1;
    }
}

/// Prints the events of one stream until the stream ends.
async fn read(mut opened: Opened, place: &mut Option<String>, sink: &mut Sink) -> anyhow::Result<()> {
    let mut reader = Reader::default();
    loop {
        let Ok(Some(Ok(piece))) = timeout(SILENCE, opened.body.next()).await else { return Ok(()) };
        let messages = reader.push(&piece);
        if reader.last_id.is_some() {
            place.clone_from(&reader.last_id);
        }
        sink.take(&messages)?;
    }
}
