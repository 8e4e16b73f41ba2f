//! Sends events to an HTTP server, one per request or in batches, as `CloudEvents` 1.0 over HTTP.
//!
//! `webhook/response.rs` evaluates answers, `webhook/signing.rs` authenticates the sender. Files of secrets and
//! certificates are read again when they change ([`Fresh`]).

mod options;
mod response;
mod signing;
mod target;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio::time::timeout;

pub(crate) use self::target::header_name;
pub(crate) use self::target::{read_header, read_url};
pub use self::{
    options::{WebhookMethod, WebhookOptions, WebhookTls},
    signing::Auth,
};
use self::{
    signing::{hide, message_id},
    target::Target,
};
use super::{AsyncHandler, Form, HandlerError};
use crate::{
    client_error::describe,
    cloud_event::{self, ContentMode, Formatter, MessageBody, header_value},
    fresh::Fresh,
    notification::{Event, Notification},
    trace::TraceContext,
};

/// Maximum number of bytes of an answer that are read. After a longer answer the connection is not reused.
const ANSWER_BYTES: usize = 4 << 10;
/// Number of bytes of an answer that an error shows.
const TOLD_BYTES: usize = 512;
/// Time to wait for the rest of an answer after its status.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The handler of type `webhook`. It uses HTTP/1.1, or HTTP/2 if the server offers it in TLS, and reuses connections.
/// It uses no proxy and follows no redirect.
pub struct Webhook {
    options: WebhookOptions,
    /// Set if a request has several events, as a JSON array.
    is_batched: bool,
    /// Timeout of a request, from connecting to the status of the answer.
    timeout: Duration,
    formatter: Formatter,
    target: Fresh<Target>,
}

/// Request to send.
struct Message {
    content_type: &'static str,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Key that is the same for every attempt with the same events.
    key: String,
    /// Value of `webhook-id`.
    id: String,
}

impl Webhook {
    /// Makes a handler. With `is_batched`, a request has several events; otherwise each event is one request. `timeout` limits each
    /// request, from connecting to the status of the answer. Blocks while it reads the files and secrets of the options.
    ///
    /// # Errors
    /// Fails if a file or secret is missing or invalid. The error is a sentence for the user.
    pub fn new(
        options: WebhookOptions,
        is_batched: bool,
        timeout: Duration,
        formatter: impl Into<Formatter>,
    ) -> Result<Self, String> {
        let read = options.clone();
        let target = Fresh::new(move |files| {
            for file in &Target::files(&read) {
                files.note(file);
            }
            Target::read(&read)
        })?;
        Ok(Self { options, is_batched, timeout, formatter: formatter.into(), target })
    }

    async fn send(&self, mut message: Message, trace: Option<TraceContext>) -> Result<(), HandlerError> {
        if let Some(trace) = trace {
            message.headers.insert(TraceContext::HEADER, attribute(&trace.to_string()));
        }
        let target = self.target.get();
        let at = |said: String| format!("{}: {}", target.place, hide(&target.hidden, &said));
        let failed = |said: String| HandlerError::Failed(at(said));
        let request = self.request(message, &target);
        let answer = match timeout(self.timeout, target.client.request(request)).await {
            Ok(answer) => answer.map_err(|error| failed(describe(&error)))?,
            Err(_) => return Err(failed(format!("no answer within {:?}", self.timeout))),
        };
        let (parts, body) = answer.into_parts();
        let text = response::printable(&beginning(body).await, TOLD_BYTES);
        response::verdict(&parts, &text, &self.options.reject, SystemTime::from(Timestamp::now()), at)
    }

    fn request(&self, message: Message, target: &Target) -> Request<Full<Bytes>> {
        let Message { content_type, headers, body, key, id } = message;
        let mut request = Request::new(Full::default());
        *request.method_mut() = self.options.method.into();
        *request.uri_mut() = target.url.clone();
        let sent = request.headers_mut();
        sent.insert(USER_AGENT, HeaderValue::from_static(concat!("deltabus/", env!("CARGO_PKG_VERSION"))));
        sent.extend(target.headers.clone());
        sent.extend(headers);
        sent.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(name) = &target.key_header {
            sent.insert(name, attribute(&key));
        }
        target.credentials.sign(sent, &id, Timestamp::now().as_second(), &body);
        *request.body_mut() = body.into();
        request
    }

    fn single(&self, event: &Event, form: Form) -> Result<Message, HandlerError> {
        let key = cloud_event::id(event);
        let id = message_id([&*key]);
        let mut headers = HeaderMap::new();
        if self.options.mode == ContentMode::Binary {
            self.formatter.encoder().each_attribute(event, |which, value| {
                headers.insert(HeaderName::from_static(which.header()), attribute(value));
            });
        }
        let MessageBody { content_type, bytes: body } = self.formatter.body(event, form, self.options.mode)?;
        Ok(Message { content_type, headers, body, key, id })
    }

    fn batched(&self, events: &[Event], form: Form) -> Result<Message, HandlerError> {
        let ids: Vec<String> = events.iter().map(cloud_event::id).collect();
        let id = message_id(ids.iter().map(String::as_str));
        let MessageBody { content_type, bytes: body } = self.formatter.batch(events, form)?;
        Ok(Message { content_type, headers: HeaderMap::new(), body, key: id.clone(), id })
    }
}

impl AsyncHandler for Webhook {
    /// Delivers a batch. Without batching, each event is a request. The first failed request ends the batch, and all events of the
    /// batch count as not delivered.
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            match batch.events() {
                [] => Ok(()),
                events if self.is_batched => self.send(self.batched(events, form)?, batch.trace()).await,
                events => {
                    for event in events {
                        self.send(self.single(event, form)?, batch.trace()).await?;
                    }
                    Ok(())
                }
            }
        })
    }
}

/// Reads the beginning of a body. A short body is read to its end, so that the connection can be reused. If the body
/// fails or is slow, the rest is ignored, because the status is already known.
async fn beginning(mut body: Incoming) -> Vec<u8> {
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await
            && text.len() < ANSWER_BYTES
        {
            text.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..data.len().min(ANSWER_BYTES)]));
        }
    };
    drop(timeout(ANSWER_TIME, read).await);
    text
}

/// Makes the header value of an attribute.
fn attribute(value: &str) -> HeaderValue {
    HeaderValue::try_from(header_value(value)).expect("percent-encoded text is a valid header value")
}
