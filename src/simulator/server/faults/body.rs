//! Response bodies that break off.

use std::{io, time::Duration};

use axum::body::Body;
use futures_util::{StreamExt as _, stream};

/// Delay before a body breaks off, so that the bytes already sent reach the client.
const FLUSH: Duration = Duration::from_millis(20);

/// Cuts a body off after `limit` bytes, without the end that HTTP requires. The kind of the error decides how the connection
/// closes.
pub(super) fn cut(body: Body, limit: u64, kind: io::ErrorKind) -> Body {
    let left = usize::try_from(limit).unwrap_or(usize::MAX);
    let pieces = stream::unfold((body.into_data_stream(), left), move |(mut pieces, left)| async move {
        if left == 0 {
            return Some((Err(broken_off(kind).await), (pieces, left)));
        }
        let mut piece = pieces.next().await?.ok()?;
        piece.truncate(left);
        let left = left - piece.len();
        Some((Ok(piece), (pieces, left)))
    });
    Body::from_stream(pieces)
}

/// Waits until the sent bytes have left, and returns the error that breaks a body off.
pub(super) async fn broken_off(kind: io::ErrorKind) -> io::Error {
    tokio::time::sleep(FLUSH).await;
    io::Error::new(kind, "a fault breaks the body off")
}
