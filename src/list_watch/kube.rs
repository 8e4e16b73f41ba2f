//! [`ListWatch`] over HTTP, by the kube client: the only file, with its parts, that knows it besides
//! [`discovery`](crate::discovery).
//!
//! ```text
//! query      ListRequest, WatchRequest → path?query (pure)
//! failure    the client's errors → Failure (pure)
//! transfer   one GET: answer → page, answer → batches of events
//! raw        one GET, its answer as it is
//! access     kubeconfig, service account → ClusterAccess → connect → kube::Client
//! ```
//!
//! Objects are not decoded by the kube crate: bodies go to [`decode`](super::decode) as they arrive.

mod access;
mod connect;
mod failure;
mod query;
pub mod raw;
mod transfer;

#[cfg(test)]
mod tests;

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture};
pub use kube::Client;

use super::{Failure, ListPage, ListRequest, ListWatch, WatchRequest, WatchStream, retry::RequestRetry};
use crate::object::{
    ResourceType,
    scan::{ScanPlan, TypeMeta},
};

pub use access::{AccessError, ClusterAccess, KubeOptions};

/// The fixed part of all requests of one source (LW-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One namespace; all of them when `None`.
    pub namespace: Option<String>,
    /// Label selector, in the API's spelling; empty for none.
    pub labels: String,
    /// Field selector, in the API's spelling; empty for none.
    pub fields: String,
    /// Field selector that leaves namespaces out, joined with the one above. An object never changes its namespace, so
    /// this one makes no unit selective.
    pub namespace_fields: String,
    /// Ask for `PartialObjectMetadata`: `metadata` is all that travels.
    pub metadata_only: bool,
}

/// How much may arrive, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest document of a watch, and longest item of a list, in bytes: `[kube] max_frame`.
    pub max_frame: usize,
    /// How long a list, or the answer to the opening of a watch, may stay silent. An open watch's idle deadline is the
    /// reflector's (D-6).
    pub idle: Duration,
}

impl Default for Limits {
    /// 16 MiB and 60 s.
    fn default() -> Self {
        Self { max_frame: 16 << 20, idle: Duration::from_mins(1) }
    }
}

/// One collection of a real API server.
///
/// A GET is repeated as T-1 and T-3 say, with the same query; what was not mended by that is the caller's. A server that
/// falls silent is not asked again: that has cost [`Limits::idle`] already.
#[derive(Clone)]
pub struct KubeListWatch {
    source: Arc<Source>,
}

/// What all requests share.
struct Source {
    client: Client,
    resource: Arc<ResourceType>,
    scope: Scope,
    plan: Arc<ScanPlan>,
    limits: Limits,
}

impl KubeListWatch {
    /// Makes a source. `client` belongs to the thread that will use it: see [`ClusterAccess::client`].
    ///
    /// Objects carry the type of `resource` unless `plan` names another.
    pub fn new(client: Client, resource: Arc<ResourceType>, scope: Scope, plan: ScanPlan, limits: Limits) -> Self {
        let plan = match plan.type_meta() {
            Some(_) => plan,
            None => plan.with_type_meta(TypeMeta::new(resource.api_version(), resource.kind.clone())),
        };
        Self { source: Arc::new(Source { client, resource, scope, plan: Arc::new(plan), limits }) }
    }
}

impl ListWatch for KubeListWatch {
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>> {
        let source = Arc::clone(&self.source);
        async move {
            let uri = query::list_uri(&source.resource, &source.scope, &request);
            repeated(|| transfer::list(&source, &uri)).await
        }
        .boxed_local()
    }

    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>> {
        let source = Arc::clone(&self.source);
        async move {
            let uri = query::watch_uri(&source.resource, &source.scope, &request);
            let stream = repeated(|| transfer::open_watch(&source, &uri)).await?;
            Ok(stream.boxed_local())
        }
        .boxed_local()
    }
}

impl Source {
    /// The type of the objects as the server sends them.
    fn served(&self) -> TypeMeta {
        if self.scope.metadata_only {
            TypeMeta::new("meta.k8s.io/v1", "PartialObjectMetadata")
        } else {
            TypeMeta::new(self.resource.api_version(), self.resource.kind.clone())
        }
    }
}

/// One failed GET.
#[derive(Debug)]
struct Attempt {
    failure: Failure,
    /// Whether [`RequestRetry`] is asked. Not after silence, and not for an error without the `Retry-After` header, even if its
    /// body names seconds (T-1).
    may_repeat: bool,
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self { failure, may_repeat: true }
    }
}

/// Sends one GET until it is answered, or until [`RequestRetry`] passes the failure up (T-2).
async fn repeated<T, F: Future<Output = Result<T, Attempt>>>(mut send: impl FnMut() -> F) -> Result<T, Failure> {
    let mut retry = RequestRetry::default();
    loop {
        let Attempt { failure, may_repeat } = match send().await {
            Ok(answer) => return Ok(answer),
            Err(attempt) => attempt,
        };
        match retry.next(&failure).filter(|_| may_repeat) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(failure),
        }
    }
}
