//! Options of each stage, from the configuration.

use std::sync::Arc;

use super::{library::Library, plan::UnitSpec, redaction::DigestKey};
use crate::{
    config::{self, Config, Mode},
    indexer::{IndexerOptions, index_func::IndexFunc},
    informer::InformerOptions,
    list_watch::{
        kube::{ClusterAccess, Limits, Scope},
        scoped::Gate,
        transform::Transform,
    },
    object::{
        FieldPath, IGNORE_ANNOTATION, IgnoredPaths, Keep, ResourceType,
        packer::Packer,
        scan::{ScanPlan, TypeMeta},
    },
    redact::{Rule, Treatment, is_secrets},
    reflector::ReflectorConfig,
    rules::RuleError,
    serve::PROBE_CONNECTIONS,
};

/// Annotation of `kubectl apply`: a whole copy of the applied object.
const LAST_APPLIED: &str = "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";

/// Error text if values must be redacted, but there is no key.
const NO_KEY: &str = "no key for redacting values";

/// Queue size of auxiliary informers: names and labels of namespaces or CRDs are small.
const AUXILIARY_FIFO_BYTES: usize = 16 << 20;

pub(super) fn limits(kube: &config::Kube) -> Limits {
    Limits { max_frame: size(kube.max_frame), ..Limits::default() }
}

/// Returns `[cluster] name`, else the name of the kubeconfig's context, else "kubernetes".
pub(super) fn cluster_name(config: &Config, access: &ClusterAccess) -> String {
    let name = config.cluster.name.as_deref().or_else(|| access.cluster_name());
    name.unwrap_or("kubernetes").to_owned()
}

/// Number of open files reserved for the store, the handlers, and the requests to the API server.
const OTHER_FILES: u32 = 512;

/// Returns `[http] max_connections`, or fewer if the process is not allowed to open enough files.
pub(super) fn max_connections(http: &config::Http) -> u32 {
    let configured = http.max_connections;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.and_then(|files| u32::try_from(files).ok()).unwrap_or(u32::MAX);
    let possible = files.saturating_sub(OTHER_FILES + PROBE_CONNECTIONS).max(PROBE_CONNECTIONS);
    if possible < configured && http.listen.is_some() {
        tracing::warn!(
            "[http] max_connections is {possible} instead of {configured}: the process may open only {files} files; \
             raise the limit (ulimit -n)"
        );
    }
    configured.min(possible)
}

/// Returns the options of one unit. They come from the unit's entry, and from what a program adds to the entry in `library`.
/// `packer` compresses the bodies of the unit's objects.
///
/// # Errors
/// Fails on an invalid path. Loading the configuration has already refused such paths.
pub(super) fn informer(spec: &UnitSpec, library: &Library, packer: Arc<Packer>) -> Result<InformerOptions, String> {
    let UnitSpec { resource, options: entry, .. } = spec;
    let gate = gate(spec, library)?;
    let indexers = entry.index.iter().map(|index| IndexFunc::parse(index).map_err(|error| error.to_string()));
    let own = library.indexes.get(&spec.entry).into_iter().flatten().cloned();
    let indexers = indexers.chain(own.map(Ok)).collect::<Result<_, String>>()?;
    let mut drop = entry.options.drop.clone();
    if !spec.redaction.rules.is_empty() && !drop.iter().any(|path| path == LAST_APPLIED) {
        drop.push(LAST_APPLIED.to_owned()); // this copy contains the values that must be redacted
    }
    let ignored = paths(&entry.options.ignore_changes)?;
    let metadata_only = spec.redaction.metadata_only || entry.mode == Mode::Metadata;
    let mut plan = ScanPlan::new(&paths(&drop)?, None);
    (plan.heeds_opt_out, plan.notes_who_changed) = (spec.heeds_opt_out, spec.notes_who_changed);
    Ok(InformerOptions {
        reflector: spec.reflector,
        scope: Scope {
            namespace: spec.namespace.clone(),
            labels: entry.labels.clone(),
            fields: entry.fields.clone(),
            namespace_fields: spec.namespace_fields.clone(),
            metadata_only,
        },
        gate,
        plan,
        order: entry.options.order,
        fifo_max_bytes: size(entry.options.fifo_max_bytes),
        indexer: IndexerOptions {
            recreated: entry.options.recreated,
            ignored: (!ignored.is_empty()).then(|| Arc::new(IgnoredPaths::new(&ignored))),
            selective: !entry.labels.is_empty() || !entry.fields.is_empty(),
            keep: match entry.cache {
                config::Cache::Full => Keep::Packed(packer),
                config::Cache::None => {
                    Keep::Stub(Arc::new(TypeMeta::new(resource.api_version(), resource.kind.clone())))
                }
            },
        },
        indexers,
        warnings: warnings(spec, &drop, metadata_only),
    })
}

fn paths(paths: &[String]) -> Result<Vec<FieldPath>, String> {
    paths.iter().map(|path| FieldPath::parse(path).map_err(|error| error.to_string())).collect()
}

/// Returns the gate of a unit, which filters and changes arriving objects. Values are redacted first.
fn gate(spec: &UnitSpec, library: &Library) -> Result<Gate, String> {
    let namespaces = spec.filter.clone().unwrap_or_default();
    let own = library.transforms.get(&spec.entry).cloned();
    let redaction = &spec.redaction;
    if redaction.rules.is_empty() {
        return Ok(Gate { namespaces, transform: own, ..Gate::default() });
    }
    let key = library.key.as_ref().ok_or(NO_KEY)?;
    if redaction.key.is_some() {
        key.say_how_long_it_lasts();
    }
    let doubts = Arc::default();
    let redact = key.transform(&spec.entry, &redaction.rules, &doubts).map_err(|error| unusable(&error))?;
    let redact_cached = redact_cached(key, &redaction.rules)?;
    let transform = match own {
        Some(own) => redact.then(own),
        None => redact,
    };
    Ok(Gate { namespaces, transform: Some(transform), of_cached: Some(redact_cached), doubts })
}

/// Returns a gate that redacts the cached objects of a unit. The gate applies the present rules of `config` for `entry`. The unit's
/// own rules, in `spec`, may be older. Saved objects, and the last events of an ended unit, must follow the present rules.
///
/// # Errors
/// Fails, with a message for the log, if values cannot be redacted. The caller must then show no object.
pub(super) fn gate_of_today(
    config: &Config,
    entry: &str,
    spec: &UnitSpec,
    key: Option<&DigestKey>,
) -> Result<Gate, String> {
    let mode = config.resources.get(entry).map_or(spec.options.mode, |options| options.mode);
    let today = config.redact.of(entry, &spec.resource, mode);
    if today.rules.is_empty() || today == *spec.redaction {
        return Ok(Gate::default());
    }
    let of_cached = redact_cached(key.ok_or(NO_KEY)?, &today.rules)?;
    Ok(Gate { of_cached: Some(of_cached), ..Gate::default() })
}

/// Returns the transform that redacts objects from a cache. The transform also drops the annotation of `kubectl apply`: a unit
/// without redaction has kept the annotation.
fn redact_cached(key: &DigestKey, rules: &[Rule]) -> Result<Transform, String> {
    let path = FieldPath::parse(LAST_APPLIED).map_err(|error| error.to_string())?;
    let last_applied = Rule { path, treatment: Treatment::Drop, base64: false, only: None };
    let rules: Vec<Rule> = rules.iter().cloned().chain([last_applied]).collect();
    key.transform_of_cached(&rules).map_err(|error| unusable(&error))
}

/// Returns the message for a condition that cannot be used.
fn unusable(error: &RuleError) -> String {
    format!("`where` of [redact] paths: {error}")
}

/// Returns the options of an informer for the engine itself.
pub(super) fn auxiliary(reflector: ReflectorConfig) -> InformerOptions {
    InformerOptions {
        reflector,
        scope: Scope { metadata_only: true, ..Scope::default() },
        plan: ScanPlan::new(&[], None),
        fifo_max_bytes: AUXILIARY_FIFO_BYTES,
        ..InformerOptions::default()
    }
}

/// Returns the warnings for readers of the whole type: which data is filtered or cut.
fn warnings(spec: &UnitSpec, drop: &[String], metadata_only: bool) -> Vec<String> {
    let entry = &spec.options;
    let mut warnings = Vec::new();
    if !drop.is_empty() {
        warnings.push(format!("objects are kept without {}", drop.join(", ")));
    }
    if metadata_only {
        warnings.push("only the metadata of this type is kept".to_owned());
    } else if is_secrets(&spec.resource) {
        warnings.push("values are redacted".to_owned());
    }
    let said = |rule: &Rule| format!("{}{}", rule.path, if rule.only.is_some() { " of some objects" } else { "" });
    let paths: Vec<_> = configured(&spec.redaction.rules, &spec.resource).map(said).collect();
    if !paths.is_empty() {
        warnings.push(format!("values are redacted at {}", paths.join(", ")));
    }
    for (name, selector) in [("label", &entry.labels), ("field", &entry.fields)] {
        if !selector.is_empty() {
            warnings.push(format!("only objects that match the {name} selector {selector} are watched"));
        }
    }
    if spec.resource.namespaced && !entry.namespaces.is_all() {
        warnings.push(format!("only objects in the namespaces {} are watched", entry.namespaces));
    }
    if spec.resource.namespaced && !entry.namespace_selector.is_empty() {
        let selector = &entry.namespace_selector;
        warnings.push(format!("only objects in namespaces that match the label selector {selector} are watched"));
    }
    if spec.heeds_opt_out {
        warnings.push(format!("objects with the annotation {IGNORE_ANNOTATION} are left out"));
    }
    for warning in &mut warnings {
        *warning = warning.replace('"', "'");
    }
    warnings
}

/// Returns the rules without the built-in rules for Secrets.
fn configured<'a>(rules: &'a [Rule], resource: &ResourceType) -> impl Iterator<Item = &'a Rule> {
    let built_in = rules.first().filter(|_| is_secrets(resource)).map(|first| Rule::of_secrets(first.treatment));
    rules.iter().skip(built_in.map_or(0, |rules| rules.len()))
}

pub(super) fn size(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
