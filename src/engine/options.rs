//! What the configuration means for each stage.

use crate::{
    backoff::BackoffConfig,
    config::{self, Config, Mode, Resource},
    delta_fifo::Order,
    indexer::{IndexerOptions, Recreated, index_func::IndexFunc},
    informer::InformerOptions,
    list_watch::kube::{ClusterAccess, Limits, Scope},
    object::{FieldPath, ResourceType, scan::ScanPlan},
    reflector::{ReflectorConfig, StreamingLists},
    supervisor::SupervisorConfig,
};

/// client-go's page size, and the default of `[kube] page_size`: left to the reflector's own choice.
const PAGE_SIZE_DEFAULT: u32 = 500;
/// What `kubectl apply` leaves behind: a whole copy of what was applied.
const LAST_APPLIED: &str = "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";

pub(super) fn limits(kube: &config::Kube) -> Limits {
    Limits { max_frame: bytes(kube.max_frame), ..Limits::default() }
}

/// `[cluster] name`, the kubeconfig context's name, or "kubernetes".
pub(super) fn cluster_name(config: &Config, access: &ClusterAccess) -> String {
    let name = config.cluster.name.as_deref().or_else(|| access.cluster_name());
    name.unwrap_or("kubernetes").to_owned()
}

pub(super) fn supervisor(supervision: &config::Supervision) -> SupervisorConfig {
    SupervisorConfig {
        backoff: backoff(&supervision.backoff),
        hung_after: supervision.hung_after,
        ping_period: supervision.hung_after / 3,
        degraded_after: supervision.degraded_after,
        ..SupervisorConfig::default()
    }
}

pub(super) fn backoff(backoff: &config::Backoff) -> BackoffConfig {
    BackoffConfig {
        initial: backoff.initial,
        factor: backoff.factor,
        jitter: backoff.jitter,
        max: backoff.max,
        reset_after: backoff.reset_after,
    }
}

/// Reads the options of one type of one entry.
///
/// # Errors
/// A path that cannot be read; loading the configuration has refused those before.
pub(super) fn informer(config: &Config, entry: &Resource, resource: &ResourceType) -> Result<InformerOptions, String> {
    let indexers = entry.index.iter().map(|index| IndexFunc::parse(index)).collect::<Result<Vec<_>, _>>();
    let indexers = indexers.map_err(|error| error.to_string())?;
    // D11: until values are redacted, Secrets are watched as metadata only.
    let hides_values = resource.group.is_empty() && resource.plural == "secrets";
    let mut drop = entry.options.drop.clone();
    if hides_values && !drop.iter().any(|path| path == LAST_APPLIED) {
        drop.push(LAST_APPLIED.to_owned()); // kubectl keeps a Secret's values there too
    }
    let paths = drop.iter().map(|path| FieldPath::parse(path)).collect::<Result<Vec<_>, _>>();
    let paths = paths.map_err(|error| error.to_string())?;
    let metadata_only = hides_values || entry.mode == Mode::Metadata;
    let selective = !entry.labels.is_empty() || !entry.fields.is_empty();
    Ok(InformerOptions {
        reflector: reflector(config, entry),
        scope: Scope { namespace: None, labels: entry.labels.clone(), fields: entry.fields.clone(), metadata_only },
        plan: ScanPlan::new(&paths, None),
        order: match entry.options.order {
            config::QueueOrder::Stream => Order::Stream,
            config::QueueOrder::PerKey => Order::PerKey,
        },
        fifo_max_bytes: bytes(entry.options.fifo_max_bytes),
        indexer: IndexerOptions {
            recreated: match entry.options.recreated {
                config::Recreated::DeleteAdd => Recreated::DeleteAdd,
                config::Recreated::Update => Recreated::Update,
            },
            selective,
        },
        indexers,
        warnings: warnings(entry, &drop, metadata_only),
        hides_values,
    })
}

fn reflector(config: &Config, entry: &Resource) -> ReflectorConfig {
    let kube = &config.kube;
    ReflectorConfig {
        streaming_lists: match kube.streaming_lists {
            config::StreamingLists::Auto => StreamingLists::Auto,
            config::StreamingLists::Always => StreamingLists::Always,
            config::StreamingLists::Never => StreamingLists::Never,
        },
        page_size: Some(kube.page_size).filter(|size| *size != PAGE_SIZE_DEFAULT),
        watch_timeout: kube.watch_timeout,
        stall_after: kube.stall_after,
        internal_error_retry: kube.internal_error_retry,
        resync_period: entry.options.resync,
        backoff: backoff(&kube.backoff),
        ..ReflectorConfig::default()
    }
}

/// What a reader of the whole type should know.
fn warnings(entry: &Resource, drop: &[String], metadata_only: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if !drop.is_empty() {
        warnings.push(format!("objects are kept without {}", drop.join(", ")).replace('"', "'"));
    }
    if metadata_only {
        warnings.push("only metadata is kept of this type".to_owned());
    }
    for (name, selector) in [("label", &entry.labels), ("field", &entry.fields)] {
        if !selector.is_empty() {
            warnings
                .push(format!("only objects that match the {name} selector {selector} are watched").replace('"', "'"));
        }
    }
    warnings
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
