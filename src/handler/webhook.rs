//! Sends events to an HTTP server, one per request or in batches, as `CloudEvents` 1.0 over HTTP.
//!
//! `webhook/response.rs` evaluates answers, `webhook/signing.rs` authenticates the sender, `webhook/tls.rs` configures
//! TLS. Files of secrets and certificates are read again when they change (`webhook/fresh.rs`).

mod fresh;
mod response;
mod signing;
mod target;
mod tls;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode,
    header::{CONTENT_TYPE, USER_AGENT},
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use jiff::Timestamp;
use rustls::pki_types::ServerName;
use tokio::time::timeout;

use self::{
    fresh::Fresh,
    signing::{hide, message_id},
    target::Target,
};
pub use self::{
    signing::Auth,
    target::{read_header, read_url},
    tls::TlsOptions,
};
use super::{AsyncHandler, Form, HandlerError};
use crate::{
    client_error::describe,
    cloud_event::{self, ContentMode, Formatter, MessageBody, header_value},
    notification::{Event, Notification},
    secret::PlainOrSecret,
    trace::TraceContext,
};

/// Number of bytes read of an answer. After a longer answer the connection is not reused.
const ANSWER_BYTES: usize = 4 << 10;
/// Number of bytes of an answer that an error shows.
const TOLD_BYTES: usize = 512;
/// Time to wait for the rest of an answer after its status.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Idle time after which a connection is closed. Servers usually allow more, so no request meets a closing
/// connection.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of pings on an HTTP/2 connection with open requests, and timeout of each ping.
const PING: Duration = Duration::from_secs(10);

/// Options of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// Target of the events; `http` or `https`, without user and password.
    pub url: PlainOrSecret,
    /// `POST`, `PUT` or `PATCH`.
    pub method: Method,
    /// Content mode of an event.
    pub mode: ContentMode,
    /// Send several events in one request, as a JSON array; otherwise each event is one request. Not with
    /// [`ContentMode::Binary`].
    pub batched: bool,
    /// Further headers of every request.
    pub headers: Vec<(HeaderName, PlainOrSecret)>,
    /// Header for the event's id; for a batch, a hash of its ids.
    pub idempotency_header: Option<HeaderName>,
    /// Statuses that reject an event at once; all others except 2xx are retried.
    pub reject: Vec<StatusCode>,
    /// Authentication of the sender.
    pub auth: Option<Auth>,
    /// TLS of an `https` connection.
    pub tls: TlsOptions,
    /// Timeout of a request, from connecting to the status of the answer.
    pub timeout: Duration,
}

type Client = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The handler of type `webhook`. It uses HTTP/1.1, or HTTP/2 if the server offers it in TLS, and reuses connections.
/// It uses no proxy and follows no redirect.
pub struct Webhook {
    options: WebhookOptions,
    formatter: Formatter,
    target: Fresh<Target>,
    client: Fresh<Client>,
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
    /// Makes a handler. Blocks while it reads the files and secrets of the options.
    ///
    /// # Errors
    /// Fails if one of them is missing or invalid. The error is a sentence for the user.
    pub fn new(options: WebhookOptions, formatter: impl Into<Formatter>) -> Result<Self, String> {
        let secrets = [&options.url].into_iter().chain(options.headers.iter().map(|(_, value)| value));
        let secrets = secrets.filter_map(PlainOrSecret::file);
        let secrets = secrets.chain(options.auth.as_ref().and_then(|auth| auth.secret().file())).map(ToOwned::to_owned);
        let (files, read) = (secrets.collect(), options.clone());
        let target = Fresh::new(files, move || Target::read(&read))?;
        // A secret URL may change from http to https.
        let needs_tls = options.url.is_secret() || target.get().url.scheme_str() == Some("https");
        let options_of_tls = options.tls.clone();
        let client = Fresh::new(if needs_tls { options_of_tls.files() } else { Vec::new() }, move || {
            let config = if needs_tls { options_of_tls.config().map_err(|(_, error)| error)? } else { tls::nobody() };
            let server_name = options_of_tls.server_name.clone().and_then(|name| ServerName::try_from(name).ok());
            Ok(connect(config, server_name))
        })?;
        Ok(Self { options, formatter: formatter.into(), target, client })
    }

    async fn send(&self, mut message: Message, trace: Option<TraceContext>) -> Result<(), HandlerError> {
        if let Some(trace) = trace {
            message.headers.insert(TraceContext::HEADER, attribute(&trace.to_string()));
        }
        let target = self.target.get();
        let at = |said: String| format!("{}: {}", target.place, hide(&target.hidden, &said));
        let failed = |said: String| HandlerError::Failed(at(said));
        let request = self.request(message, &target);
        let answer = match timeout(self.options.timeout, self.client.get().request(request)).await {
            Ok(answer) => answer.map_err(|error| failed(describe(&error)))?,
            Err(_) => return Err(failed(format!("no answer within {:?}", self.options.timeout))),
        };
        let (parts, body) = answer.into_parts();
        let text = response::printable(&beginning(body).await, TOLD_BYTES);
        response::verdict(&parts, &text, &self.options.reject, SystemTime::from(Timestamp::now()), at)
    }

    fn request(&self, message: Message, target: &Target) -> Request<Full<Bytes>> {
        let Message { content_type, headers, body, key, id } = message;
        let mut request = Request::new(Full::default());
        *request.method_mut() = self.options.method.clone();
        *request.uri_mut() = target.url.clone();
        let sent = request.headers_mut();
        sent.insert(USER_AGENT, HeaderValue::from_static(concat!("deltabus/", env!("CARGO_PKG_VERSION"))));
        sent.extend(target.headers.clone());
        sent.extend(headers);
        sent.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(name) = &self.options.idempotency_header {
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
    /// Delivers a batch. Without batching, each event is a request. The first failed request ends the batch, and all
    /// its events count as not delivered.
    fn deliver<'a>(&'a self, batch: &'a Notification, form: Form) -> BoxFuture<'a, Result<(), HandlerError>> {
        Box::pin(async move {
            match batch.events() {
                [] => Ok(()),
                events if self.options.batched => self.send(self.batched(events, form)?, batch.trace()).await,
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

fn connect(tls: rustls::ClientConfig, server_name: Option<ServerName<'static>>) -> Client {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(IDLE));
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = server_name {
        https = https.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING)
        .build(https.enable_all_versions().wrap_connector(http))
}
