//! A live cluster: deployments roll out, and pods, types and namespaces are added and removed. One seed gives one history.

mod fill;
mod life;
mod objects;
mod populate;
mod rollout;
mod running;
mod seasons;
mod types;

use std::collections::VecDeque;

use self::{fill::Fill, rollout::Rollout, seasons::Seasons};
use super::{
    ApiError,
    random::Random,
    shared::{SharedStore, now},
};

pub(crate) use running::News;
pub use running::Running;
pub use types::bench_type;

pub(crate) const POD: &str = include_str!("workload/pod.json");
pub(crate) const RUNNING: &str = include_str!("workload/pod_running.json");
pub(crate) const WEBSITE: &str = include_str!("workload/website.json");

/// Fills those holes of a template that have the same content in all objects. This content contains the holes `${APP}` and `${NS}`,
/// which are filled later.
pub(crate) fn with_plain_values(template: &str) -> String {
    let values = [
        ("${MEM}", "512Mi"),
        ("${CPU}", "250m"),
        ("${TAG}", "x7k2p"),
        ("${ARG}", "--verbosity=2"),
        ("${NOTE}", r#"revision of ${APP}, \"quoted\" once"#),
        ("${E1}", "info"),
        ("${E2}", "postgres://${APP}@postgres.${NS}.svc.cluster.local:5432/${APP}"),
        ("${E3}", "redis://redis.${NS}.svc.cluster.local:6379/0"),
        ("${E4}", "checkout-v2,fast-search,dark-mode"),
    ];
    values.iter().fold(template.to_owned(), |text, (hole, value)| text.replace(hole, value))
}

pub(crate) const APPS: [&str; 10] =
    ["web", "api", "search", "checkout", "cart", "payments", "catalog", "mailer", "reports", "gateway"];

const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const WEBSITES: &str = "websites.demo.deltabus.dev";

/// Numbers of objects for [`Workload::populate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Nodes. Each node has a lease and a daemonset pod.
    pub nodes: usize,
    /// Namespaces in addition to those that every cluster has. Each namespace has a database and a cron job.
    pub namespaces: usize,
    /// Deployments, spread over the namespaces. Each deployment has a service with endpoints, and a configmap.
    pub deployments: usize,
    /// Pods of each deployment.
    pub replicas: usize,
    /// Custom resources of type `websites.demo.deltabus.dev`.
    pub websites: usize,
}

impl Default for Sizes {
    /// Returns the sizes of a cluster with about 180 pods.
    fn default() -> Self {
        Self { nodes: 10, namespaces: 6, deployments: 40, replicas: 4, websites: 12 }
    }
}

/// Changes of a live cluster, step by step.
#[derive(Debug, Default)]
pub struct Workload {
    random: Random,
    nodes: usize,
    namespaces: Vec<String>,
    deployments: Vec<Deployment>,
    databases: Vec<Controller>,
    cron_jobs: Vec<Controller>,
    pods: Vec<Fill>,
    websites: Vec<Fill>,
    /// Events that are not deleted yet, oldest first: namespace and name.
    events: VecDeque<(String, String)>,
    serial: usize,
    seasons: Seasons,
    news: News,
}

/// State of a deployment's controller.
#[derive(Clone, Debug)]
struct Deployment {
    namespace: String,
    name: String,
    app: String,
    uid: String,
    replicas: usize,
    revision: usize,
    /// Number of writes of the spec.
    generation: usize,
    /// Hash of the current revision's `ReplicaSet`.
    hash: String,
    set_uid: String,
    rollout: Option<Rollout>,
    /// Hashes of the `ReplicaSet`s of earlier revisions.
    earlier: VecDeque<String>,
}

/// Owner of pods or jobs, other than a deployment.
#[derive(Clone, Debug)]
struct Controller {
    namespace: String,
    name: String,
    uid: String,
}

impl Workload {
    /// Creates a workload. Two workloads with the same seed make the same changes to equal stores; only the times differ.
    pub fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), ..Self::default() }
    }

    /// Makes one change to the cluster. To add or delete a type or a namespace, a step makes many writes. Any other step makes at
    /// most about eight writes.
    pub fn step(&mut self, store: &SharedStore) -> Result<(), ApiError> {
        let time = now();
        self.season_goes_on(store, &time)?;
        match self.random.below(100) {
            0..30 => self.pod_lives(store, &time),
            30..56 => self.rollout_goes_on(store, &time),
            56..59 => self.rollout_starts(store),
            59..62 => self.deployment_scales(store, &time),
            62..66 => self.cron_job_fires(store, &time),
            66..69 => self.database_fails_over(store, &time),
            69..78 => self.lease_is_renewed(store, &time),
            78..83 => self.node_reports(store, &time),
            83..88 => self.configmap_changes(store),
            88..94 => self.website_changes(store, time),
            _ => self.pod_fails(store, &time),
        }
    }

    /// Returns a reader of the news.
    pub(crate) fn news(&self) -> News {
        self.news.clone()
    }
}

#[cfg(test)]
mod tests;
