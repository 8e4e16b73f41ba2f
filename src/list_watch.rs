//! Where objects come from: one list call, one watch call, and what they answer (LW-1 … LW-5).
//!
//! [`ListWatch`] is a trait so that the reflector can be tried against a scripted source; `list_watch/kube.rs` is
//! the only file that knows the kube client.

pub mod decode;
pub mod kube;
mod retry;
pub mod scoped;
pub mod transform;

use std::time::Duration;

use futures_util::{future::LocalBoxFuture, stream::LocalBoxStream};

use crate::object::{Object, ResourceVersion};

/// A source of one resource type in one fixed scope (LW-1): type, namespace and selectors are the source's own,
/// everything else is in the requests.
pub trait ListWatch: 'static {
    /// Asks for one page (LW-2). The answer is decoded; transport repeats (T-1, T-3) are behind it.
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>>;

    /// Opens a watch. Dropping the stream closes it (LW-3).
    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>>;
}

/// What an open watch delivers: batches as large as what had arrived, in the server's order.
///
/// `None` is the normal end of the stream (EOF, also in the middle of a document). An `Err` is the end too.
pub type WatchStream = LocalBoxStream<'static, Result<Vec<WatchEvent>, Failure>>;

/// One GET of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// Left out of the query when unset.
    pub resource_version: ResourceVersion,
    /// Page size; no limit when `None`.
    pub limit: Option<u32>,
    /// Where the next page begins; `resource_version` must be unset then (P-2).
    pub continue_token: Option<String>,
}

/// One `watch=true&allowWatchBookmarks=true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// Left out of the query when unset.
    pub resource_version: ResourceVersion,
    /// Asks for a streaming list: `sendInitialEvents=true&resourceVersionMatch=NotOlderThan` (A-3, KEP-3157).
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
    /// The items, in list order, each with `apiVersion` and `kind`.
    pub items: Vec<Object>,
    /// Items that were refused: no name (K-4) or another type.
    pub rejected: u64,
}

/// One document of a watch stream.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// `ADDED`.
    Added(Object),
    /// `MODIFIED`.
    Modified(Object),
    /// `DELETED`, with the final state.
    Deleted(Object),
    /// `BOOKMARK`.
    Bookmark {
        /// How far the stream has come.
        resource_version: ResourceVersion,
        /// The annotation `k8s.io/initial-events-end` is exactly `"true"`.
        initial_events_end: bool,
    },
    /// `ERROR` with a `Status`.
    Error(Status),
    /// An event that is kept from the store by [`scoped`]; it counts, and the stream has come so far.
    PassedOver {
        /// Of its object.
        resource_version: ResourceVersion,
        /// Why.
        why: PassedOver,
    },
    /// A document that is skipped and does not count: another type, no metadata, a `Table`.
    Skipped(SkipReason),
    /// A document that cannot be read, an unknown event type, or an `ERROR` without a `Status`. The stream
    /// is not read further.
    Undecodable(String),
}

impl WatchEvent {
    /// Returns the object that there is now.
    pub(crate) fn object_mut(&mut self) -> Option<&mut Object> {
        match self {
            Self::Added(object) | Self::Modified(object) => Some(object),
            _ => None,
        }
    }
}

/// Why an event is kept from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedOver {
    /// Its namespace is not shown.
    Foreign,
    /// The transform failed (F-61); what it said.
    TransformFailed(String),
}

/// Why a document of a watch was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Its apiVersion and kind are not the expected ones.
    WrongType {
        /// What it said it was.
        found: String,
    },
    /// It has no `metadata.name` (K-4), or, as a bookmark, no `metadata.resourceVersion`.
    Nameless,
    /// It is nested more deeply than any object that can be decoded.
    TooDeep,
}

/// A `Status` object of the API, or an HTTP error without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// HTTP code.
    pub code: u16,
    /// Machine-readable reason, `Expired`; may be empty.
    pub reason: String,
    /// For people.
    pub message: String,
    /// A cause says `ResourceVersionTooLarge`, or the message begins "Too large resource version".
    pub too_large: bool,
    /// Seconds of `Retry-After`, or of `details.retryAfterSeconds`.
    pub retry_after: Option<Duration>,
}

impl Status {
    /// Returns whether the version asked for is too old: code 410, or reason `Expired` or `Gone`.
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

/// Why a request, or an open stream, failed. Sorted by what the reflector does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody listens at the address.
    #[error("connection refused")]
    Refused,
    /// EOF, reset or timeout on the way; what there is to say about it.
    #[error("connection lost: {0}")]
    Disconnected(String),
    /// The server answered with an error.
    #[error("server answered {0}")]
    Status(Status),
    /// The answer is not a list of the expected type: a `Table`, another kind.
    #[error("unexpected answer: {0}")]
    NotAList(String),
    /// The answer is not JSON.
    #[error("undecodable answer: {0}")]
    Undecodable(String),
    /// An event of a watch, or an item of a list, is longer than `[kube] max_frame`. The answer cannot be read further.
    #[error("object longer than {max_bytes} bytes, the limit of [kube] max_frame{}", named(object.as_deref()))]
    FrameTooLong {
        /// The configured maximum.
        max_bytes: usize,
        /// `namespace/name` of the object; `None` where its name comes after so many bytes.
        object: Option<String>,
    },
    /// The transform failed for an object of a list (F-61, R-23).
    #[error("the transform failed: {0}")]
    Transform(String),
    /// The request could not be made: credentials, TLS, a URL.
    #[error("failed to send the request: {0}")]
    Request(String),
}

fn named(object: Option<&str>) -> String {
    object.map(|object| format!(": {object}")).unwrap_or_default()
}

impl Failure {
    /// Returns the server's answer, if this is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}
