//! Response bodies made of shared pieces, which are not copied on their way to the socket.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;

/// A response body.
pub(super) type Body = UnsyncBoxBody<Batch, io::Error>;

/// Delay before a body breaks off, so that the bytes already sent reach the client.
const FLUSH: Duration = Duration::from_millis(20);

/// Pieces of bytes that are sent as one chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pieces: VecDeque<Bytes>,
    remaining: usize,
}

impl Batch {
    /// Appends a piece.
    pub(super) fn push(&mut self, piece: impl Into<Bytes>) {
        let piece = piece.into();
        if !piece.is_empty() {
            self.remaining += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Keeps the first `len` bytes.
    fn truncate(&mut self, len: usize) {
        while self.remaining > len {
            let Some(last) = self.pieces.back_mut() else { return };
            let surplus = (self.remaining - len).min(last.len());
            last.truncate(last.len() - surplus);
            self.remaining -= surplus;
            if last.is_empty() {
                self.pieces.pop_back();
            }
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.pieces);
        filled.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.remaining -= count;
        while let Some(front) = self.pieces.front_mut()
            && count > 0
        {
            if count < front.len() {
                front.advance(count);
                return;
            }
            count -= front.len();
            self.pieces.pop_front();
        }
    }
}

/// Makes a body of known length.
pub(super) fn full(batch: Batch) -> Body {
    Full::new(batch).map_err(|never| match never {}).boxed_unsync()
}

/// Cuts a body off after `limit` bytes, without the end that HTTP requires; with a reset if `resets` is given.
pub(super) fn cut(body: Body, limit: u64, resets: Option<Arc<AtomicBool>>) -> Body {
    let left = usize::try_from(limit).unwrap_or(usize::MAX);
    let frames = stream::unfold((body, left), move |(mut body, left)| {
        let resets = resets.clone();
        async move {
            if left == 0 {
                return Some((Err(broken_off(resets.as_deref()).await), (body, left)));
            }
            let frame = body.frame().await?;
            let mut data = frame.ok()?.into_data().ok()?;
            data.truncate(left);
            let left = left - data.remaining();
            Some((Ok(Frame::data(data)), (body, left)))
        }
    });
    StreamBody::new(Box::pin(frames)).boxed_unsync()
}

/// Waits until the sent bytes have left, and returns the error that breaks a body off; with a reset if `resets` is given.
pub(super) async fn broken_off(resets: Option<&AtomicBool>) -> io::Error {
    tokio::time::sleep(FLUSH).await;
    if let Some(resets) = resets {
        resets.store(true, Ordering::Relaxed);
    }
    io::Error::other("a fault breaks the body off")
}
