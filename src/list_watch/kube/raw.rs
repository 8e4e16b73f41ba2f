//! One request whose answer is taken as it is: for tools that ask an engine, or hold it against its API server.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, header, request::Builder};
use http_body_util::BodyExt;
use kube::client::Body;

use super::{AccessError, ClusterAccess, failure};
use crate::list_watch::Failure;

/// An answer, whatever its code.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP code.
    pub code: u16,
    /// Texts of the `Warning` headers, without code and agent.
    pub warnings: Vec<String>,
    /// The body.
    pub body: Bytes,
}

/// Makes single requests, over connections of the current tokio runtime.
pub struct RawClient {
    client: kube::Client,
}

impl RawClient {
    /// Makes a client; sends nothing.
    ///
    /// # Errors
    /// As [`ClusterAccess::client`].
    pub fn new(access: &ClusterAccess) -> Result<Self, AccessError> {
        Ok(Self { client: access.client()? })
    }

    /// GETs a path. The whole answer is held in memory, and must have come within `timeout`.
    ///
    /// # Errors
    /// When there is no answer. An error that the server answers is an [`Answer`].
    pub async fn get(&self, path: &str, accept: &str, timeout: Duration) -> Result<Answer, Failure> {
        self.send(Request::get(path).header(header::ACCEPT, accept), timeout).await
    }

    /// POSTs nothing to a path; otherwise as [`RawClient::get`].
    ///
    /// # Errors
    /// As [`RawClient::get`].
    pub async fn post(&self, path: &str, timeout: Duration) -> Result<Answer, Failure> {
        self.send(Request::post(path).header(header::ACCEPT, "application/json"), timeout).await
    }

    async fn send(&self, request: Builder, timeout: Duration) -> Result<Answer, Failure> {
        let request = request.body(Body::empty());
        let request = request.map_err(|error| Failure::Request(error.to_string()))?;
        let exchange = async {
            let (head, body) = self.client.send(request).await.map_err(|error| failure::sort(&error))?.into_parts();
            let body = body.collect().await.map_err(|error| failure::sort(&error))?.to_bytes();
            let warnings = head.headers.get_all(header::WARNING).iter();
            let warnings = warnings.filter_map(|value| value.to_str().ok()).map(warning_text).collect();
            Ok(Answer { code: head.status.as_u16(), warnings, body })
        };
        let silent = |_| Failure::Disconnected(format!("no answer within {timeout:?}"));
        tokio::time::timeout(timeout, exchange).await.map_err(silent)?
    }
}

/// `299 agent "text"` → `text`.
fn warning_text(value: &str) -> String {
    let quoted = value.splitn(3, ' ').nth(2).unwrap_or(value);
    quoted.trim_matches('"').replace("\\\\", "\\").replace("\\\"", "\"")
}
