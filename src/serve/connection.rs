//! Activity of one connection, recorded by wrappers of the socket and of the responses.
//!
//! ```text
//! Activity      phase and time stamps, from which the deadlines follow (pure)
//! WatchedStream the socket: records bytes that arrive, and writes that block
//! Answer        a response: records its end, and releases its share of the response budget
//! ```

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

use super::budget::Charge;
use crate::{config::Http, mutex::lock};

/// Extension that marks a response without an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endless;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// TLS handshake, or a request whose head is incomplete.
    Head,
    /// No request since the last response.
    Idle,
    /// Request that is being answered.
    Answer,
}

/// Activity of a connection, from which its deadlines follow.
#[derive(Debug)]
pub(super) struct Activity {
    phase: Phase,
    /// Start of the phase.
    since: Instant,
    /// Set when bytes of another request have arrived during the response.
    is_pipelined: bool,
    /// Start of a write that waits for the client to read.
    blocked: Option<Instant>,
    /// Set if the response has no end.
    is_stream: bool,
}

/// Activity, shared by the connection's wrappers and the table of connections.
pub(super) type SharedActivity = Arc<Mutex<Activity>>;

impl Activity {
    /// Creates the activity of a new connection.
    pub(super) fn new(now: Instant) -> Self {
        Self { phase: Phase::Head, since: now, is_pipelined: false, blocked: None, is_stream: false }
    }

    fn received(&mut self, now: Instant) {
        match self.phase {
            Phase::Idle => (self.phase, self.since) = (Phase::Head, now),
            Phase::Answer => self.is_pipelined = true,
            Phase::Head => {}
        }
    }

    /// Records that a request has arrived, and that its response begins.
    fn requested(&mut self, now: Instant) {
        *self = Self { phase: Phase::Answer, blocked: self.blocked, ..Self::new(now) };
    }

    fn answered(&mut self, now: Instant) {
        let phase = if self.is_pipelined { Phase::Head } else { Phase::Idle };
        *self = Self { phase, blocked: self.blocked, ..Self::new(now) };
    }

    fn blocked(&mut self, now: Instant) {
        self.blocked.get_or_insert(now);
    }

    fn wrote(&mut self) {
        self.blocked = None;
    }

    /// Returns the name of the `[http]` option whose time limit the connection has exceeded, if there is one.
    pub(super) fn overdue(&self, limits: &Http, now: Instant) -> Option<&'static str> {
        let is_over = |since: Instant, timeout| now.saturating_duration_since(since) >= timeout;
        match (self.blocked, self.phase) {
            (Some(blocked), _) if !self.is_stream => is_over(blocked, limits.write_timeout).then_some("write_timeout"),
            (_, Phase::Head) => is_over(self.since, limits.header_timeout).then_some("header_timeout"),
            (_, Phase::Idle) => is_over(self.since, limits.idle_timeout).then_some("idle_timeout"),
            (_, Phase::Answer) => None,
        }
    }

    /// Returns the time at which the connection began to wait for a request; `None` during a response.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        (self.phase != Phase::Answer).then_some(self.since)
    }
}

/// Socket of a connection.
#[derive(Debug)]
pub(super) struct WatchedStream {
    stream: TcpStream,
    activity: SharedActivity,
}

impl WatchedStream {
    pub(super) fn new(stream: TcpStream, activity: SharedActivity) -> Self {
        Self { stream, activity }
    }

    fn record(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &polled {
            Poll::Ready(Ok(1..)) => lock(&self.activity).wrote(),
            Poll::Pending => lock(&self.activity).blocked(Instant::now()),
            Poll::Ready(_) => {}
        }
        polled
    }
}

impl Drop for WatchedStream {
    /// Makes the kernel discard bytes that the client has not read, because the kernel would otherwise keep them for minutes. The
    /// client sees a reset connection.
    fn drop(&mut self) {
        if lock(&self.activity).blocked.is_some()
            && let Err(error) = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
        {
            tracing::debug!(%error, "failed to set SO_LINGER");
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            lock(&self.activity).received(Instant::now());
        }
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.record(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.record(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Response in progress. Dropping this value records the end of the response.
#[derive(Debug)]
pub(super) struct Answer {
    activity: SharedActivity,
    /// Bytes of the response budget that this response occupies; `None` while the size of the response is unknown.
    pub(super) charge: Option<Charge>,
}

impl Answer {
    pub(super) fn begin(activity: &SharedActivity) -> Self {
        lock(activity).requested(Instant::now());
        Self { activity: Arc::clone(activity), charge: None }
    }

    /// Marks the response as endless.
    pub(super) fn set_endless(&self) {
        lock(&self.activity).is_stream = true;
    }

    /// Releases the bytes of `frame` from the response budget. `frame` is a part of the response that goes to the connection.
    pub(super) fn release(&mut self, frame: &Frame<Bytes>) {
        if let Some(charge) = &mut self.charge {
            charge.release(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        lock(&self.activity).answered(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the option whose limit an inactive connection exceeds first, and the number of seconds from `start` until then.
    fn closed_by(activity: &Activity, start: Instant) -> Option<(&'static str, u64)> {
        let limits = Http::default(); // 10 s, 2 min, 30 s
        (0..1000).find_map(|second| {
            activity.overdue(&limits, start + Duration::from_secs(second)).map(|option| (option, second))
        })
    }

    #[test]
    fn each_phase_has_its_own_timeout() {
        let start = Instant::now();
        let mut activity = Activity::new(start);
        assert_eq!(closed_by(&activity, start), Some(("header_timeout", 10)), "nothing was sent");
        activity.received(start + Duration::from_secs(9));
        assert_eq!(closed_by(&activity, start), Some(("header_timeout", 10)), "bytes do not prolong the head's time");
        activity.requested(start);
        assert_eq!(closed_by(&activity, start), None, "an answer may take its time");
        activity.answered(start);
        assert_eq!(closed_by(&activity, start), Some(("idle_timeout", 120)));
        activity.received(start + Duration::from_secs(100));
        assert_eq!(closed_by(&activity, start), Some(("header_timeout", 110)), "the next request");
    }

    #[test]
    fn partial_request_during_answer_has_header_timeout() {
        let start = Instant::now();
        let mut activity = Activity::new(start);
        activity.requested(start);
        activity.received(start);
        activity.answered(start);
        assert_eq!(closed_by(&activity, start), Some(("header_timeout", 10)));
    }

    #[test]
    fn only_finite_answer_is_cut_for_idle_reader() {
        let start = Instant::now();
        let mut activity = Activity::new(start);
        activity.requested(start);
        activity.blocked(start + Duration::from_secs(5));
        activity.blocked(start + Duration::from_secs(20));
        assert_eq!(closed_by(&activity, start), Some(("write_timeout", 35)));
        activity.wrote();
        assert_eq!(closed_by(&activity, start), None);
        activity.blocked(start + Duration::from_secs(40));
        activity.answered(start + Duration::from_secs(41));
        assert_eq!(closed_by(&activity, start), Some(("write_timeout", 70)), "the rest is in a buffer");
        activity.requested(start);
        activity.is_stream = true;
        assert_eq!(closed_by(&activity, start), None);
    }

    #[test]
    fn connection_idles_between_answers() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut activity = Activity::new(start);
        assert_eq!(activity.waits_since(), Some(start));
        activity.requested(later);
        assert_eq!(activity.waits_since(), None);
        activity.answered(later);
        assert_eq!(activity.waits_since(), Some(later));
    }
}
