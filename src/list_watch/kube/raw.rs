//! Single requests with undecoded answers, for commands that query an engine, or compare an engine with its API server.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::{Request, Response, header, request::Builder};
use http_body_util::BodyExt;
use kube::client::Body;

use super::{ClusterAccess, failure};
use crate::list_watch::Failure;

/// An HTTP answer with any status code.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP code.
    pub code: u16,
    /// Texts of the `Warning` headers, without code and agent.
    pub warnings: Vec<String>,
    /// The body.
    pub body: Bytes,
}

/// An answer whose body is still being received.
pub struct Opened {
    /// HTTP code.
    pub code: u16,
    /// Body, in pieces.
    pub body: BoxStream<'static, Result<Bytes, Failure>>,
}

/// A client for single requests. The connections belong to the tokio runtime in which the client was created.
pub struct RawClient {
    client: kube::Client,
}

impl RawClient {
    /// Creates a client; sends no request.
    pub fn new(access: &ClusterAccess) -> Self {
        Self { client: access.client() }
    }

    /// GETs a path. The whole answer is held in memory and must arrive within `timeout`.
    /// An error status of the server is returned as an [`Answer`].
    pub async fn get(&self, path: &str, accept: &str, timeout: Duration) -> Result<Answer, Failure> {
        self.send(Request::get(path).header(header::ACCEPT, accept), timeout).await
    }

    /// POSTs an empty body to a path. See [`RawClient::get`].
    pub async fn post(&self, path: &str, timeout: Duration) -> Result<Answer, Failure> {
        self.send(Request::post(path).header(header::ACCEPT, "application/json"), timeout).await
    }

    /// GETs a path with an endless answer. Waits up to `timeout` for the headers, and then returns the code and the stream of the
    /// body. If the connection fails later, the failure is the last item of this stream.
    pub async fn open(&self, path: &str, headers: &[(&str, &str)], timeout: Duration) -> Result<Opened, Failure> {
        let request = headers.iter().fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        let answer = self.answer(request.header(header::ACCEPT_ENCODING, "identity"));
        let (head, body) = within(timeout, answer).await?.into_parts();
        let body = body.into_data_stream().map_err(|error| failure::sort(&error)).boxed();
        Ok(Opened { code: head.status.as_u16(), body })
    }

    async fn send(&self, request: Builder, timeout: Duration) -> Result<Answer, Failure> {
        let exchange = async {
            let (head, body) = self.answer(request).await?.into_parts();
            let body = body.collect().await.map_err(|error| failure::sort(&error))?.to_bytes();
            let warnings = head.headers.get_all(header::WARNING).iter();
            let warnings = warnings.filter_map(|value| value.to_str().ok()).map(warning_text).collect();
            Ok(Answer { code: head.status.as_u16(), warnings, body })
        };
        within(timeout, exchange).await
    }

    async fn answer(&self, request: Builder) -> Result<Response<Body>, Failure> {
        let request = request.body(Body::empty()).map_err(|error| Failure::Request(error.to_string()))?;
        self.client.send(request).await.map_err(|error| failure::sort(&error))
    }
}

async fn within<T>(timeout: Duration, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let silent = |_| Failure::Disconnected(format!("no answer within {timeout:?}"));
    tokio::time::timeout(timeout, answer).await.map_err(silent)?
}

/// Returns the text of a warning: `299 agent "text"` → `text`.
fn warning_text(value: &str) -> String {
    let quoted = value.splitn(3, ' ').nth(2).unwrap_or(value);
    quoted.trim_matches('"').replace("\\\\", "\\").replace("\\\"", "\"")
}
