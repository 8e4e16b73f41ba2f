//! Options of a handler of type `webhook`.

use std::{collections::BTreeMap, path::PathBuf};

use educe::Educe;
use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Auth;
use crate::{
    cloud_event::ContentMode,
    handler::client_tls::ClientTls,
    secret::PlainOrSecret,
    text::{Optional, required},
};

/// Options of a handler of type `webhook`.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
#[schemars(inline, transform = required("url"))]
pub struct WebhookOptions {
    /// URL for the events: `http://` or `https://`, without a user or password; or a secret that contains the URL.
    /// Required.
    #[schemars(regex(pattern = "^https?://"), extend("examples" = ["https://hooks.example.com/events"]))]
    #[educe(Default = PlainOrSecret::Plain(String::new()))]
    pub url: PlainOrSecret,
    /// Method of the requests.
    pub method: WebhookMethod,
    /// Form of an event: `structured`, one JSON object, or `binary`, with its attributes as `ce-` headers and its data as
    /// the body.
    pub mode: ContentMode,
    /// Further headers of every request; values are texts or secrets.
    pub headers: BTreeMap<String, PlainOrSecret>,
    /// Authentication of the sender, one of three kinds. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Auth")]
    pub auth: Option<Auth>,
    /// Trusted certificates of the server, and the certificate of the client.
    pub tls: WebhookTls,
    /// Header with the id of the event, so that a receiver can detect repetitions; for a batch, a hash of the ids of
    /// its events. "": none.
    #[serde(with = "Optional")]
    #[educe(Default = Some("Idempotency-Key".to_owned()))]
    pub idempotency_header: Option<String>,
    /// Statuses from 400 to 599 that end the retries of an event: the event goes to the `dead_letter` handler, or is
    /// dropped and counted. After 413, smaller forms of the event are tried first. All other statuses except 2xx are
    /// retried until `give_up_after`.
    #[schemars(inner(range(min = 400, max = 599)))]
    #[educe(Default = vec![400, 413, 422])]
    pub reject: Vec<u16>,
}

/// Method of a webhook's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum WebhookMethod {
    /// Default method.
    #[default]
    Post,
    /// Method for receivers that store the event.
    Put,
    /// Method for receivers that change a stored event.
    Patch,
}

impl From<WebhookMethod> for Method {
    fn from(method: WebhookMethod) -> Self {
        match method {
            WebhookMethod::Post => Self::POST,
            WebhookMethod::Put => Self::PUT,
            WebhookMethod::Patch => Self::PATCH,
        }
    }
}

/// TLS of a webhook's connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct WebhookTls {
    /// PEM file of the trusted authorities, which replace the system's authorities; read again when it changes. "": the system's
    /// authorities.
    #[serde(with = "Optional")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's key; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
    /// Name that the receiver's certificate must have. "": the host in `url`.
    #[serde(with = "Optional")]
    pub server_name: Option<String>,
}

impl WebhookTls {
    /// Returns all TLS options except `server_name`, which other handlers do not have.
    pub(crate) fn client(&self) -> ClientTls {
        let Self { ca_file, cert_file, key_file, .. } = self.clone();
        ClientTls { ca_file, cert_file, key_file }
    }
}
