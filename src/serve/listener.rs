//! Accepts connections, each in a task, and closes overdue ones.
//!
//! `axum::serve` is not used, because it has no limits. Its support for HTTP/2 and upgrades also doubles the
//! memory of a connection. This memory matters, because every stream keeps a connection open.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::{Bytes, HttpBody},
    extract::Request,
    response::{IntoResponse as _, Response},
};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::{AbortHandle, Id, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tower::ServiceExt as _;

use super::{
    api_error::ApiError,
    budget::ResponseBudget,
    connection::{Activity, Answer, Endless, SharedActivity, WatchedStream},
    tls::Certificate,
};
use crate::{config::Http, failures::Failures, mutex::lock};

/// Pause after a failure to accept a connection, for example because too many files are open.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Interval at which the deadlines of open connections are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Maximum bytes of a request's head.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// Response to a connection above the limit `max_connections`.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 61\r\n\r\n\
all connections that [http] max_connections allows are in use";

/// Addresses of a connection, stored in each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// Address of the client.
    pub(super) peer: SocketAddr,
    /// Address that the client connected to.
    pub(super) local: SocketAddr,
}

/// Listener with its limits.
pub(super) struct Listener {
    /// Certificate for TLS; `None` for plain HTTP.
    pub(super) certificate: Option<Certificate>,
    pub(super) router: Router,
    pub(super) http: Arc<Http>,
    pub(super) max_connections: usize,
    pub(super) budget: Arc<ResponseBudget>,
    /// Response budget of `/metrics` alone. Metrics are served even while slow clients occupy all of `budget`.
    pub(super) metrics_budget: Arc<ResponseBudget>,
}

struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, SharedActivity)>,
    /// Counter of refused connections. Its times are durations since `start`.
    refused: Failures,
    start: Instant,
}

impl Listener {
    /// Serves connections until the future is dropped.
    pub(super) async fn serve(self, socket: TcpListener) {
        let this = Arc::new(self);
        let (tasks, open, refused) = (JoinSet::new(), HashMap::new(), Failures::default());
        let mut connections = Connections { tasks, open, refused, start: Instant::now() };
        let mut check = interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(ended) = connections.tasks.join_next_with_id() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    connections.open.remove(&id);
                }
                _ = check.tick(), if !connections.open.is_empty() => connections.close_overdue(&this.http),
                accepted = socket.accept() => match accepted {
                    Ok((stream, peer)) => this.admit(&mut connections, stream, peer),
                    Err(error) if is_of_connection(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "failed to accept a connection; retrying");
                        sleep(AFTER_FAILURE).await;
                    }
                },
            }
        }
    }

    fn admit(self: &Arc<Self>, connections: &mut Connections, stream: TcpStream, peer: SocketAddr) {
        let max = self.max_connections;
        if connections.open.len() >= max && !connections.close_longest_waiting() {
            if connections.refused.failed(connections.start.elapsed()).is_some() {
                tracing::warn!(%peer, max, "connection refused: all connections that [http] max_connections allows are in use");
            }
            if self.certificate.is_none() {
                // If the response does not fit the send buffer, the client sees only a closed connection.
                let _unsent = stream.try_write(FULL);
            }
            return;
        }
        let Ok(local) = stream.local_addr() else { return }; // the connection has ended
        // Small events must not wait for the acknowledgement of earlier ones.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let activity = Arc::new(Mutex::new(Activity::new(Instant::now())));
        let stream = WatchedStream::new(stream, Arc::clone(&activity));
        let (listener, addresses) = (Arc::clone(self), Addresses { peer, local });
        let requests = Requests { listener, activity: Arc::clone(&activity), addresses };
        let task = match &self.certificate {
            None => connections.tasks.spawn(requests.serve(stream)),
            Some(certificate) => {
                let acceptor = certificate.acceptor();
                connections.tasks.spawn(async move {
                    match acceptor.accept(stream).await {
                        Ok(stream) => requests.serve(stream).await,
                        Err(error) => tracing::trace!(%error, "a TLS handshake has failed"),
                    }
                })
            }
        };
        connections.open.insert(task.id(), (task, activity));
    }
}

impl Connections {
    fn close_overdue(&mut self, limits: &Http) {
        let now = Instant::now();
        self.open.retain(|_, (task, activity)| {
            let Some(option) = lock(activity).overdue(limits, now) else { return true };
            tracing::debug!(option, "closed a connection: its time limit has passed");
            task.abort();
            false
        });
    }

    /// Closes the connection that has waited longest for a request. Returns `false` if no connection waits for a request.
    fn close_longest_waiting(&mut self) -> bool {
        let waiting = self.open.iter().filter_map(|(id, (_, activity))| Some((lock(activity).waits_since()?, *id)));
        let longest = waiting.min_by_key(|(since, _)| *since).and_then(|(_, id)| self.open.remove(&id));
        longest.map(|(task, _)| task.abort()).is_some()
    }
}

/// Requests of one connection.
struct Requests {
    listener: Arc<Listener>,
    activity: SharedActivity,
    addresses: Addresses,
}

impl Requests {
    /// Answers requests until the connection ends.
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| self.answer(request));
        let connection =
            http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::trace!(%error, "a connection has ended");
        }
    }

    fn answer(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<impl HttpBody<Data = Bytes, Error = axum::Error> + use<>>, Infallible>> + use<>
    {
        let mut answer = Answer::begin(&self.activity);
        request.extensions_mut().insert(self.addresses);
        let is_scrape = request.uri().path() == "/metrics";
        let Listener { router, budget, metrics_budget, .. } = &*self.listener;
        let budget = Arc::clone(if is_scrape { metrics_budget } else { budget });
        let answering = router.clone().oneshot(request);
        async move {
            let mut response = answering.await?;
            if response.extensions().get::<Endless>().is_some() {
                answer.set_endless();
            }
            // The size of a list is not known here. The code that builds a list charges the budget.
            answer.charge = budget.charge(response.body().size_hint().exact().unwrap_or(0));
            if answer.charge.is_none() {
                response = ApiError::responses_full().into_response();
            }
            Ok(response.map(|body| body.inspect_frame(move |frame| answer.release(frame))))
        }
    }
}

/// Returns true if the error concerns only one connection: the client closed it before the server accepted it.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
