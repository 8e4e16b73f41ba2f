//! [`ListWatch`] over HTTP, with the kube client. Only this module and [`discovery`](crate::discovery) use that client.
//!
//! ```text
//! query        ListRequest, WatchRequest → path?query (pure)
//! failure      the client's errors → Failure (pure)
//! transfer     one GET: answer → page, answer → batches of events
//! raw          one GET: answer → its bytes
//! access       kubeconfig, service account → ClusterAccess → connect → kube::Client
//! credentials  token, certificate, credential program: renewed when they expire, change or are refused
//! route        proxy between client and server
//! ```
//!
//! The kube crate does not decode objects: bodies go to [`decode`](super::decode) as they arrive.

mod access;
mod connect;
mod credentials;
mod failure;
mod kubeconfig;
mod query;
pub(crate) mod raw;
mod route;
mod transfer;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture};
pub(crate) use kube::Client;

use super::{Failure, ListPage, ListRequest, ListWatch, WatchRequest, WatchStream};
use crate::object::{
    ResourceType,
    scan::{ScanPlan, TypeMeta},
};

pub use access::{AccessError, ClusterAccess, KubeOptions};

/// The fixed part of all requests of one source (LW-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One namespace; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Label selector in API syntax; empty for none.
    pub labels: String,
    /// Field selector in API syntax; empty for none.
    pub fields: String,
    /// Field selector that excludes namespaces; requests combine it with `fields`. An object never changes its namespace, so an
    /// object that once matched this selector always matches it.
    pub namespace_fields: String,
    /// Requests `PartialObjectMetadata`: the server sends only `metadata`.
    pub metadata_only: bool,
}

impl Scope {
    /// Returns the type that the server writes into the objects: `PartialObjectMetadata` if only metadata is requested, otherwise
    /// `own`.
    pub(crate) fn served(&self, own: &TypeMeta) -> TypeMeta {
        if self.metadata_only { TypeMeta::new("meta.k8s.io/v1", "PartialObjectMetadata") } else { own.clone() }
    }
}

/// Limits on the size and duration of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest watch document and longest list item, in bytes: `[kube] max_frame`.
    pub max_frame: usize,
    /// Longest silence during a list, or before a watch is opened. The reflector has its own idle deadline for an open
    /// watch (D-6).
    pub idle: Duration,
}

impl Default for Limits {
    /// Returns 16 MiB and 60 s.
    fn default() -> Self {
        Self { max_frame: 16 << 20, idle: Duration::from_mins(1) }
    }
}

/// A source of one collection of an API server. Each call sends one GET.
#[derive(Clone)]
pub struct KubeListWatch {
    source: Arc<Source>,
}

/// State shared by all requests.
struct Source {
    client: Client,
    resource: Arc<ResourceType>,
    scope: Scope,
    /// Type of the objects as the server sends them.
    served: TypeMeta,
    plan: Arc<ScanPlan>,
    limits: Limits,
}

impl KubeListWatch {
    /// Creates a source. `client` belongs to the thread that will use it: see [`ClusterAccess::client`].
    ///
    /// Objects carry the type of `resource`, unless `plan` names another type.
    pub fn new(client: Client, resource: Arc<ResourceType>, scope: Scope, plan: ScanPlan, limits: Limits) -> Self {
        let own = TypeMeta::new(resource.api_version(), resource.kind.clone());
        let served = scope.served(&own);
        let plan = Arc::new(if plan.type_meta().is_some() { plan } else { plan.with_type_meta(own) });
        Self { source: Arc::new(Source { client, resource, scope, served, plan, limits }) }
    }
}

impl ListWatch for KubeListWatch {
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>> {
        let source = Arc::clone(&self.source);
        async move {
            let uri = query::list_uri(&source.resource, &source.scope, &request);
            transfer::list(&source, &uri).await
        }
        .boxed_local()
    }

    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>> {
        let source = Arc::clone(&self.source);
        async move {
            let uri = query::watch_uri(&source.resource, &source.scope, &request);
            Ok(transfer::open_watch(&source, &uri).await?.boxed_local())
        }
        .boxed_local()
    }
}
