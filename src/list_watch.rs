//! The source of objects: one list call, one watch call, and their decoded answers (LW-1 … LW-5).
//!
//! [`ListWatch`] is a trait so that tests can run the reflector against a scripted source. Only `list_watch/kube.rs`
//! and [`discovery`](crate::discovery) use the kube client.

pub(crate) mod decode;
pub(crate) mod kube;
pub(crate) mod retry;
pub(crate) mod scoped;
pub(crate) mod transform;

use std::time::Duration;

use futures_util::{future::LocalBoxFuture, stream::LocalBoxStream};

use crate::object::{Object, ResourceVersion};

/// A source of one resource type in one fixed scope (LW-1). The source holds type, namespace and selectors;
/// everything else is in the requests.
pub trait ListWatch: 'static {
    /// Requests one page and decodes the answer (LW-2). One call is one request: the caller repeats it (T-1, T-3).
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>>;

    /// Opens a watch. Dropping the stream closes it (LW-3).
    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>>;
}

/// Batches of an open watch, in the server's order. A batch holds the events that had arrived, up to a size limit.
///
/// `None` is the normal end of the stream (EOF, even within a document). An `Err` also ends the stream.
pub(crate) type WatchStream = LocalBoxStream<'static, Result<Vec<WatchEvent>, Failure>>;

/// One GET of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// Omitted from the query when unset.
    pub resource_version: ResourceVersion,
    /// Page size; no limit when `None`.
    pub limit: Option<u32>,
    /// Token of the next page; `resource_version` must then be unset (P-2).
    pub continue_token: Option<String>,
}

/// One GET with `watch=true&allowWatchBookmarks=true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Omitted from the query when unset.
    pub resource_version: ResourceVersion,
    /// Requests a streaming list: `sendInitialEvents=true&resourceVersionMatch=NotOlderThan` (A-3, KEP-3157).
    pub initial_events: bool,
    /// `timeoutSeconds`.
    pub timeout_seconds: u32,
}

/// One page of a list.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// `metadata.resourceVersion` of the list.
    pub resource_version: ResourceVersion,
    /// Set when there are more pages.
    pub continue_token: Option<String>,
    /// The items, in list order, each with `apiVersion` and `kind`. An item that is nested too deeply is a placeholder.
    pub items: Vec<Object>,
    /// Number of rejected items: no name (K-4) or another type.
    pub rejected: u64,
}

/// One document of a watch stream.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// `ADDED`.
    Added(Object),
    /// `MODIFIED`.
    Modified(Object),
    /// `DELETED`, with the final state, or with a placeholder if this state cannot be read.
    Deleted(Object),
    /// `BOOKMARK`.
    Bookmark {
        /// Position of the stream.
        resource_version: ResourceVersion,
        /// Set when the annotation `k8s.io/initial-events-end` is exactly `"true"`.
        initial_events_end: bool,
    },
    /// `ERROR` with a `Status`.
    Error(Status),
    /// An added or modified object that is withheld from the store. It still counts as an event, and the stream's version becomes
    /// the version of the object.
    PassedOver {
        /// Placeholder of the object.
        object: Object,
        /// Reason.
        why: PassedOver,
    },
    /// A document that the decoder skips for a [`SkipReason`]. It does not count as an event.
    Skipped(SkipReason),
    /// An unreadable document, an unknown event type, or an `ERROR` without a `Status`. The decoder stops here.
    Undecodable(String),
}

/// Reason why an event is withheld from the store. The store keeps the last state of an object that cannot be read or transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// The scope excludes the object's namespace.
    Foreign,
    /// The object is nested too deeply to be decoded.
    TooDeep,
    /// The transform failed (F-61), with this error.
    TransformFailed(String),
}

/// Reason why a watch document was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Another `apiVersion` or `kind` than expected.
    WrongType {
        /// Type given in the document.
        found: String,
    },
    /// The object has no `metadata.name` (K-4), or the bookmark has no `metadata.resourceVersion`.
    Nameless,
}

/// A `Status` object of the API, or an HTTP error without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP code.
    pub code: u16,
    /// Machine-readable reason, for example `Expired`; may be empty.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Set when a cause is `ResourceVersionTooLarge`, or a message begins with "Too large resource version".
    pub too_large: bool,
    /// Delay from `Retry-After` or `details.retryAfterSeconds`; `None` if the server gave none.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Returns true if the requested version is too old: code 410, or reason `Expired` or `Gone`.
    pub fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// Reason why a request or an open stream failed. The variant decides what the reflector does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The connection was refused: no process accepts connections at the address.
    #[error("connection refused")]
    Refused,
    /// EOF or reset in transit, with a description.
    #[error("connection lost: {0}")]
    Disconnected(String),
    /// The server was silent for this time, during a list or before a watch was opened.
    #[error("connection lost: no byte from the server for {0:?}")]
    TimedOut(Duration),
    /// The server answered with an error.
    #[error("server answered {0}")]
    Status(Status),
    /// The answer is not a list of the expected type, for example a `Table`.
    #[error("unexpected answer: {0}")]
    NotAList(String),
    /// The answer is not JSON.
    #[error("undecodable answer: {0}")]
    Undecodable(String),
    /// A watch event or a list item is longer than `[kube] max_frame`. The rest of the answer cannot be read.
    #[error("object longer than {max_bytes} bytes, the limit of [kube] max_frame{}", named(object.as_deref()))]
    FrameTooLong {
        /// The configured maximum.
        max_bytes: usize,
        /// `namespace/name` of the object. `None` if its name comes after the first `max_bytes` bytes.
        object: Option<String>,
    },
    /// The transform failed for an object of a list (F-61, R-23).
    #[error("the transform failed: {0}")]
    Transform(String),
    /// The request could not be sent: invalid credentials, TLS setup or URL.
    #[error("failed to send the request: {0}")]
    Request(String),
}

fn named(object: Option<&str>) -> String {
    object.map(|object| format!(": {object}")).unwrap_or_default()
}

impl Failure {
    /// Returns the server's error answer; `None` for any other failure.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}
