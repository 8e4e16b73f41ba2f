//! HTTP client below a [`kube::Client`]: HTTP/1.1, one connection per watch, detection of dead peers.
//!
//! Reasons: `docs/decisions/0015-http-1.md`.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, Uri, header::AUTHORIZATION};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, middleware::BaseUriLayer};
use tower::{BoxError, Layer as _, Service, ServiceBuilder};

use super::{
    credentials::{Credential, Credentials, Tls},
    route::{Connector, Route},
};
use crate::mutex::lock;

/// Longest time to open a TCP connection, and to get through a proxy. After this time, the server counts as unreachable.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without traffic after which the kernel probes a connection, and interval of further probes. HTTP/1.1 has no ping (T-5).
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Number of unanswered probes after which the peer counts as dead.
const KEEPALIVE_PROBES: u32 = 3;

/// Time after which an unused connection is closed. Load balancers close unused connections later, so few requests meet a
/// connection that is already closed.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a connection's read buffer. A list enlarges the buffer, and the buffer keeps this size during the later watch.
/// With hyper's default of 400 KiB, the buffer would be most of the memory that a type needs.
const READ_BUFFER: usize = 64 << 10;

type HttpClient = legacy::Client<HttpsConnector<Connector>, Body>;

/// Creates a client on the current tokio runtime.
///
/// Unlike the kube crate's own client, this client applies the limits of this module. It does not retry, because such retries
/// would be invisible. It does not log, because each 404 would be logged as an error.
pub(super) fn client(server: &Uri, route: &Route, credentials: Arc<Credentials>) -> kube::Client {
    let authenticated = Authenticated { credentials, route: route.clone(), session: Arc::default() };
    let service = ServiceBuilder::new().layer(BaseUriLayer::new(server.clone())).service(authenticated);
    kube::Client::new(service, "default")
}

/// Service that adds the credentials to each request. After an answer 401, it repeats the request once if there are new credentials.
#[derive(Clone)]
struct Authenticated {
    credentials: Arc<Credentials>,
    route: Route,
    session: Arc<Mutex<Option<Session>>>,
}

/// Client with the connections of one client certificate and one set of authorities.
struct Session {
    tls: Arc<Tls>,
    http: HttpClient,
}

impl Authenticated {
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let (parts, body) = request.into_parts();
        let copy = body.try_clone().map(|body| Request::from_parts(parts.clone(), body));
        let credential = self.credentials.current().await?;
        let answer = self.send_as(&credential, Request::from_parts(parts, body)).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            self.credentials.accepted(&credential);
            return Ok(answer);
        }
        match (self.credentials.refused(&credential).await?, copy) {
            (Some(renewed), Some(copy)) => self.send_as(&renewed, copy).await,
            _ => Ok(answer),
        }
    }

    async fn send_as(
        &self,
        credential: &Credential,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, BoxError> {
        if let Some(value) = &credential.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        let mut service = credential.headers.layer(self.http(&credential.tls));
        Ok(service.call(request).await?)
    }

    /// Returns the client of the current TLS settings. If they have changed, its predecessor closes its idle connections, and those
    /// in use after their answers.
    fn http(&self, tls: &Arc<Tls>) -> HttpClient {
        let mut session = lock(&self.session);
        match &*session {
            Some(session) if Arc::ptr_eq(&session.tls, tls) => session.http.clone(),
            _ => {
                let http = http_client(&self.route, tls);
                *session = Some(Session { tls: Arc::clone(tls), http: http.clone() });
                http
            }
        }
    }
}

impl Service<Request<Body>> for Authenticated {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { this.send(request).await })
    }
}

fn http_client(route: &Route, tls: &Tls) -> HttpClient {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls.config.clone()).https_or_http();
    if let Some(name) = &tls.server_name {
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
    }
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .http1_max_buf_size(READ_BUFFER)
        .build(https.enable_http1().wrap_connector(route.connector(tcp)))
}
