//! Sections about the engine itself: `[cluster]`, `[kube]`, `[log]`, `[reload]`.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    StreamingLists,
    text::{Format, Optional, Text},
};
use crate::{backoff::BackoffConfig, list_watch::kube::KubeOptions};

/// Cluster that is watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cluster {
    /// Name of the cluster in the `source` of every event. Default "": the name of the kubeconfig's context.
    #[serde(with = "Optional")]
    #[schemars(transform = Format::ClusterName)]
    pub name: Option<String>,
}

/// Access to the API server, and the way its objects are read.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Kube {
    /// Kubeconfig file. Default "": the first of `$KUBECONFIG`, the service account of the pod, and `~/.kube/config`.
    #[serde(with = "Optional")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default "": its current context.
    #[serde(with = "Optional")]
    pub context: Option<String>,
    /// Use of streaming lists (`WatchList`) for the initial state: `auto` falls back to paged lists, `always` does not,
    /// and `never` requests only paged lists.
    pub streaming_lists: StreamingLists,
    /// Maximum number of objects in one page of a list.
    #[schemars(range(min = 1))]
    #[educe(Default = 500)]
    pub page_size: u32,
    /// Maximum number of concurrent lists. It limits the memory peak at the start and the load on the API server.
    #[schemars(range(min = 1))]
    #[educe(Default = 4)]
    pub max_concurrent_lists: u32,
    /// Maximum size of a watch event, and of an object in a list. A larger one ends the request, and is logged and
    /// counted. After a backoff, the engine lists again. Lists fail while the server has such an object.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 16 << 20)]
    pub max_frame: u64,
    /// Minimum duration of a watch, at least "1s". Each watch requests a random duration between this value and its
    /// double. After this duration, the engine resumes the watch.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(5))]
    pub watch_timeout: Duration,
    /// Period after the first error 500 on a watch. During this period, the engine resumes the watch after each error 500. Later
    /// errors 500 start a new list. "0s": every error 500 starts a new list.
    #[serde(with = "Text::<Duration>")]
    pub internal_error_retry: Duration,
    /// Maximum time without data on a watch. After this time, the engine reconnects the watch, and counts it as stalled. Applies
    /// only to types for which the server has sent a bookmark.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(3))]
    pub stall_after: Duration,
    /// Delay after a failed list or watch.
    pub backoff: BackoffConfig,
    /// Detection of added and removed types. `crd-watch` watches the CRDs, and checks the other APIs every two minutes;
    /// `never` keeps the types that were found at the start.
    pub rediscover: Rediscover,
}

impl Kube {
    /// Returns the kubeconfig and context, which select the cluster and the user of requests.
    pub fn access(&self) -> KubeOptions {
        KubeOptions {
            kubeconfig: self.kubeconfig.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            context: self.context.clone().unwrap_or_default(),
        }
    }
}

/// Detection of added and removed types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rediscover {
    /// Watches the CRDs.
    #[default]
    CrdWatch,
    /// Keeps the types that were found at the start.
    Never,
}

/// Reload of a changed configuration.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Reload {
    /// Applies changed files while the engine runs. Only changed parts restart. A file with errors is refused and
    /// reported.
    #[educe(Default = true)]
    pub watch: bool,
}

/// Level and format of the log, which goes to stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// Least important level that is logged.
    pub level: LogLevel,
    /// Format of the log. `auto`: pretty on a terminal, else json.
    pub format: LogFormat,
}

/// Level of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Failures that need action, and lost data.
    Error,
    /// Messages of `error`, and failures from which the engine recovered.
    Warn,
    /// Messages of `warn`, and starts, stops and state changes.
    #[default]
    Info,
    /// Messages of `info`, and decisions of each actor.
    Debug,
    /// Messages of `debug`, and one for every batch.
    Trace,
}

/// Format of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    #[default]
    Auto,
    /// One JSON object per line.
    Json,
    /// Readable text, not JSON.
    Pretty,
}
