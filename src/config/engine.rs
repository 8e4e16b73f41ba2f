//! The sections that tell the engine itself how to work: `[cluster]`, `[kube]`, `[supervision]`, `[log]`, `[reload]`.

use std::{path::PathBuf, time::Duration};

use educe::Educe;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    StreamingLists, schema,
    text::{Optional, Text},
};
use crate::{backoff::BackoffConfig as Backoff, list_watch::kube::KubeOptions};

/// The cluster that is watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cluster {
    /// Name of the cluster in every event's `source`. Default "": the name of the kubeconfig's context.
    #[serde(with = "Optional")]
    #[schemars(schema_with = "schema::cluster_name")]
    pub name: Option<String>,
}

/// How the API server is reached and how its objects are read.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Kube {
    /// The kubeconfig file. Default "": as kubectl does, `$KUBECONFIG`, in a pod its service account, else
    /// `~/.kube/config`.
    #[serde(with = "Optional")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default "": its current context.
    #[serde(with = "Optional")]
    pub context: Option<String>,
    /// Whether the first state comes as a streaming list (`WatchList`): `auto` falls back to paged lists, `always`
    /// does not, `never` asks for paged lists only.
    pub streaming_lists: StreamingLists,
    /// Objects in one page of a list.
    #[schemars(range(min = 1))]
    #[educe(Default = 500)]
    pub page_size: u32,
    /// Lists under way at a time; caps the memory peak at the start and the load on the API server.
    #[schemars(range(min = 1))]
    #[educe(Default = 4)]
    pub max_concurrent_lists: u32,
    /// Longest event of a watch, and longest object of a list. A longer one ends the request, is logged and counted, and is
    /// followed by a list after a backoff. Lists fail as long as the server has such an object.
    #[serde(with = "Text::<u64>")]
    #[educe(Default = 16 << 20)]
    pub max_frame: u64,
    /// Each watch asks the server for a random time between this and twice this; then it is resumed. At least "1s".
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(5))]
    pub watch_timeout: Duration,
    /// For so long after a first error 500 inside a watch, watch again at once instead of listing again. "0s": never.
    #[serde(with = "Text::<Duration>")]
    pub internal_error_retry: Duration,
    /// Once a bookmark was seen on a watch: neither event nor bookmark for so long makes it reconnect, and is counted.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_mins(3))]
    pub stall_after: Duration,
    /// Pause after a failed list or watch.
    pub backoff: Backoff,
    /// How types that come and go are noticed: `crd-watch`, by a watch on the CRDs, at once, with a look at the other APIs
    /// every two minutes; or `never`, the types of the start are kept.
    pub rediscover: Rediscover,
}

impl Kube {
    /// Returns which cluster is meant, and as whom.
    pub fn access(&self) -> KubeOptions {
        KubeOptions {
            kubeconfig: self.kubeconfig.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            context: self.context.clone().unwrap_or_default(),
        }
    }
}

/// How types that come and go are noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rediscover {
    /// By a watch on the CRDs.
    #[default]
    CrdWatch,
    /// Not at all.
    Never,
}

/// How units (reflector, queue and indexer of one type) and handlers are restarted.
#[derive(Clone, Debug, Educe, PartialEq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Supervision {
    /// Pause before a restart.
    pub backoff: Backoff,
    /// An actor that does not answer its heartbeat for so long is replaced.
    #[serde(with = "Text::<Duration>")]
    #[educe(Default = Duration::from_secs(30))]
    pub hung_after: Duration,
    /// So many restarts within five minutes are shown as the state `degraded`; restarts go on.
    #[schemars(range(min = 1))]
    #[educe(Default = 5)]
    pub degraded_after: u32,
}

/// How a changed configuration is applied.
#[derive(Clone, Debug, Educe, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[educe(Default)]
#[serde(default)]
pub struct Reload {
    /// Whether changed files are applied while the engine runs: only what changed restarts, a bad file is refused and
    /// reported.
    #[educe(Default = true)]
    pub watch: bool,
}

/// What is logged, and how. Logs go to stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// The least important level that is logged.
    pub level: LogLevel,
    /// `auto`: pretty on a terminal, else json.
    pub format: LogFormat,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// Someone must act, or data was lost.
    Error,
    /// And what was recovered from.
    Warn,
    /// And starts, stops and state changes.
    #[default]
    Info,
    /// And what each actor decides.
    Debug,
    /// And every batch.
    Trace,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}
