//! Values of an installation. This program makes the Kubernetes objects from these values, and so does the Helm chart.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    config::{Config, ConfigErrors, External, Finding, Loaded, SinkConfig, merge, webhook::is_loopback},
    secret::PlainOrSecret,
};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{ManifestsArgs, site::Site};
use crate::cli::{BadUsage, rbac::Place, server::ServerArgs};

/// Address of probes and metrics if the configuration has none.
const PROBE_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8081);
/// Directory in which Kubernetes mounts the token of the service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Maximum size of a `ConfigMap` in bytes.
const CONFIG_MAP_BYTES: usize = 1 << 20;
/// Usual ports of API servers. The network policy allows these ports and the port in the kubeconfig. A network policy checks the
/// port of the API server itself, not the port of the service `kubernetes`.
const API_SERVER_PORTS: [u16; 2] = [443, 6443];
/// Time that is added to `shutdown_timeout`. The sum is the `terminationGracePeriodSeconds` of the pod.
const GRACE: Duration = Duration::from_secs(15);

/// Memory of an engine that watches nothing. docs/operations.md contains the measurements.
const BYTES_IDLE: u64 = 64 << 20;
/// Additional memory for each cached object.
const BYTES_OBJECT: u64 = 4 << 10;
/// Volume space for a file handler that never removes old files.
const FILE_BYTES: u64 = 10 << 30;

/// Values of an installation. The Helm chart in `deploy/helm/deltabus` documents each value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Values {
    pub(super) image: String,
    pub(super) config: Vec<ConfigFile>,
    pub(super) allow_exec: bool,
    /// Rules of each RBAC role. The key is the namespace of the role, or `None` for the cluster role.
    #[serde(rename = "rbac", serialize_with = "rbac")]
    pub(super) rules: BTreeMap<Place, Vec<Value>>,
    pub(super) secrets: Secrets,
    pub(super) storage: Option<Storage>,
    pub(super) ports: Ports,
    pub(super) egress_ports: BTreeSet<u16>,
    pub(super) termination_grace_period_seconds: u64,
    /// Requests and limits of the container. Null is no limit, as in values of Helm.
    pub(super) resources: Map<String, Value>,
    pub(super) monitoring: bool,
    #[serde(flatten, serialize_with = "Site::given")]
    pub(super) site: Site,
}

/// Configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ConfigFile {
    /// Name of the file. The engine reads the files in the order of their names.
    pub(super) name: String,
    pub(super) text: String,
}

/// Secrets that must exist.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Secrets {
    /// Names of environment variables. Each name is a key of the Secret `<name>-env`.
    pub(super) env: Vec<String>,
    /// Secrets that are mounted as files.
    pub(super) files: Vec<SecretFiles>,
}

/// Secret that is mounted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SecretFiles {
    pub(super) secret: String,
    pub(super) path: PathBuf,
    #[serde(skip)]
    keys: Vec<String>,
}

/// Volume for files that the engine writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Storage {
    pub(super) size: String,
    /// Directories on the volume.
    pub(super) paths: Vec<PathBuf>,
}

/// Ports of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Ports {
    pub(super) probe: u16,
    /// Port of `[http] listen`, if other pods can reach it.
    pub(super) http: Option<u16>,
}

/// Serializes rules as the Helm chart expects them. `clusterRules` is a list, and `namespaceRules` has a list for each namespace.
fn rbac<S: Serializer>(rules: &BTreeMap<Place, Vec<Value>>, serializer: S) -> Result<S::Ok, S::Error> {
    let namespaces: BTreeMap<_, _> = rules.iter().filter_map(|(place, rules)| Some((place.as_ref()?, rules))).collect();
    let cluster = rules.get(&None).map_or(&[][..], Vec::as_slice);
    json!({ "clusterRules": cluster, "namespaceRules": namespaces }).serialize(serializer)
}

impl Values {
    /// Returns the values that install the configuration `loaded`. `files` contains the text of its files, and `rules` the rules of
    /// the roles. The memory request is for an engine that caches `objects` objects. `site` has the values of the cluster.
    ///
    /// # Errors
    /// Fails if a path cannot be on a volume, if the probe address is a loopback address, or if the configuration is too large.
    pub(super) fn of(
        loaded: &Loaded,
        files: Vec<(PathBuf, String)>,
        server: &ServerArgs,
        objects: u64,
        rules: BTreeMap<Place, Vec<Value>>,
        args: &ManifestsArgs,
        site: Site,
    ) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let mut external = config.external();
        let mut errors = Vec::new();
        let directories = directories(loaded, &external, &mut errors);
        let files_of_secrets = secret_files(&external, &directories)?;
        let probe = config.http.probe_listen.unwrap_or(PROBE_LISTEN);
        if probe.ip().is_loopback() {
            let message =
                format!("the kubelet cannot reach a loopback address: expected \"{PROBE_LISTEN}\", or omit the key");
            errors.push(loaded.finding(&["http", "probe_listen"], message));
        }
        if !errors.is_empty() {
            return Err(ConfigErrors::new(errors, Vec::new()).into());
        }
        let http = config.http.listen.filter(|address| !address.ip().is_loopback()).map(|address| address.port());
        let mut egress_ports = std::mem::take(&mut external.ports);
        egress_ports.extend(API_SERVER_PORTS);
        egress_ports.extend(server.access.server_url().parse::<http::Uri>().ok().and_then(|url| url.port_u16()));
        external.variables.retain(|name| !site.extra_env.iter().any(|variable| variable.name == *name));
        let mut resources = resources(config, objects);
        merge(&mut resources, site.resources.clone());
        Ok(Self {
            image: args.image.clone(),
            config: config_map(config, files, server.access.cluster_name())?,
            allow_exec: args.allow_exec,
            rules,
            secrets: Secrets { env: external.variables.into_iter().collect(), files: files_of_secrets },
            storage: (!directories.is_empty()).then(|| Storage { size: volume_size(config), paths: directories }),
            ports: Ports { probe: probe.port(), http },
            egress_ports,
            termination_grace_period_seconds: (config.shutdown_timeout + GRACE).as_secs(),
            resources,
            monitoring: args.monitoring,
            site,
        })
    }

    /// Returns remarks for the user, such as secrets to create.
    pub(super) fn remarks(&self, name: &str, namespace: &str, config: &Config) -> Vec<String> {
        let mut remarks = Vec::new();
        let create = |secret: &str, from: &str, keys: &[String]| {
            let keys = keys.iter().map(|key| format!(" --from-{from}={key}=…")).collect::<Vec<_>>().concat();
            format!("The pod needs a secret: kubectl -n {namespace} create secret generic {secret}{keys}")
        };
        if !self.secrets.env.is_empty() {
            remarks.push(create(&format!("{name}-env"), "literal", &self.secrets.env));
        }
        for SecretFiles { secret, keys, .. } in &self.secrets.files {
            remarks.push(create(secret, "file", keys));
        }
        remarks.extend(self.missing_programs(config));
        remarks.extend(local_sinks(config));
        if config.state.dir.is_none() {
            remarks.push(
                "[state] dir is not set: changes made while the pod is down are not delivered. Set it to \
                 \"/var/lib/deltabus/state\" for a volume."
                    .to_owned(),
            );
        }
        let has_secret_url = |handler: &crate::config::HandlerConfig| {
            handler.enabled && matches!(&handler.sink, SinkConfig::Webhook(webhook) if webhook.url.is_secret())
        };
        if config.handlers.values().any(has_secret_url) {
            remarks.push("The network policy allows port 443 for webhooks whose URL is a secret.".to_owned());
        }
        remarks
    }

    /// Returns a remark for each handler whose program may be missing in the pod.
    fn missing_programs(&self, config: &Config) -> impl Iterator<Item = String> {
        let handlers = config.handlers.iter().filter(|(_, handler)| handler.enabled);
        handlers.filter_map(|(name, handler)| {
            let SinkConfig::Exec(exec) = &handler.sink else { return None };
            let program = exec.command.first().filter(|program| !self.site.may_contain(Path::new(program)))?;
            Some(format!(
                "[handlers.{name}] runs {program:?}. The image of deploy/Dockerfile has no shell and no programs: see \"Programs for \
                 exec handlers\" in docs/install.md."
            ))
        })
    }
}

/// Returns a remark for each webhook that calls this machine: in a pod it would call the pod.
fn local_sinks(config: &Config) -> impl Iterator<Item = String> {
    let handlers = config.handlers.iter().filter(|(_, handler)| handler.enabled);
    handlers.filter_map(|(name, handler)| {
        let SinkConfig::Webhook(webhook) = &handler.sink else { return None };
        let PlainOrSecret::Plain(url) = &webhook.url else { return None };
        let uri = url.parse::<http::Uri>().ok()?;
        let host = uri.host().filter(|host| is_loopback(host))?;
        Some(format!(
            "[handlers.{name}] url has the host {host}. In a pod that is the pod itself: name the receiver's Service."
        ))
    })
}

/// Returns the files in the `ConfigMap`: the files of the configuration in order, then a file that overrides some options for the
/// pod.
fn config_map(
    config: &Config,
    files: Vec<(PathBuf, String)>,
    context: Option<&str>,
) -> anyhow::Result<Vec<ConfigFile>> {
    let name = context.filter(|_| config.cluster.name.is_none());
    let cluster = name.map(|name| format!("[cluster]\nname = {}\n", toml::Value::from(name)));
    let http = config.http.probe_listen.is_none().then(|| format!("[http]\nprobe_listen = \"{PROBE_LISTEN}\"\n"));
    let names_cluster = config.kube.kubeconfig.is_some() || config.kube.context.is_some();
    let kube = names_cluster.then(|| "[kube]\ncontext = \"\"\nkubeconfig = \"\"\n".to_owned());
    let sections: Vec<_> = [cluster, http, kube].into_iter().flatten().collect();
    let own = "# Written by `deltabus manifests`: options that differ in a pod.\n".to_owned() + &sections.join("\n");
    let files = files.into_iter().chain([(PathBuf::from("pod.toml"), own)]).enumerate();
    let files = files.map(|(place, (path, text))| {
        let name = key(&path.file_name().unwrap_or_default().to_string_lossy());
        ConfigFile { name: format!("{place:02}-{name}"), text }
    });
    let files: Vec<_> = files.collect();
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    if bytes > CONFIG_MAP_BYTES {
        return Err(BadUsage::of(format!(
            "the configuration has {bytes} bytes, but a ConfigMap holds {CONFIG_MAP_BYTES}: move [[tests]] and \
             comments to separate files"
        ))
        .into());
    }
    Ok(files)
}

/// Converts a text to a valid key of a `ConfigMap` or Secret: replaces each invalid character by `-`.
fn key(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' }).collect()
}

/// Returns the directories that need a volume, without directories inside another one. Adds an error for each directory that cannot
/// be on a volume.
fn directories(loaded: &Loaded, external: &External, errors: &mut Vec<Finding>) -> Vec<PathBuf> {
    let mut outermost: Vec<PathBuf> = Vec::new();
    for (directory, keys) in &external.directories {
        if !directory.is_absolute() || directory.components().count() < 3 {
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            let message = "a pod can write only to volumes: expected an absolute path in a separate directory, such as \
                           one in /var/lib/deltabus";
            errors.push(loaded.finding(&keys, message));
        } else if !outermost.iter().any(|outer| directory.starts_with(outer)) {
            outermost.push(directory.clone());
        }
    }
    outermost
}

/// Returns the Secrets that the pod mounts. All secret files in one directory are keys of the same Secret.
fn secret_files(external: &External, directories: &[PathBuf]) -> anyhow::Result<Vec<SecretFiles>> {
    let mut secrets: Vec<SecretFiles> = Vec::new();
    for file in external.files.iter().filter(|file| !file.starts_with(SERVICE_ACCOUNT)) {
        let wrong = |expected: &str| BadUsage::of(format!("cannot mount a Secret at {}: {expected}", file.display()));
        let own = file.parent().filter(|parent| parent.is_absolute() && parent.components().count() > 2);
        let path = own.ok_or_else(|| wrong("expected a separate directory, such as /run/secrets/NAME/KEY"))?;
        let name = file.file_name().and_then(|name| name.to_str()).filter(|name| *name == key(name));
        let name = name.ok_or_else(|| wrong("expected a name of letters, digits, `-`, `_` and `.`"))?.to_owned();
        if let Some(known) = secrets.iter_mut().find(|known| known.path == path) {
            known.keys.push(name);
            continue;
        }
        let mut others = secrets.iter().map(|other| &other.path);
        if let Some(other) = others.find(|other| path.starts_with(other) || other.starts_with(path)) {
            let other = other.display();
            let expected = format!("a Secret is already mounted at {other}, and one cannot contain the other");
            return Err(wrong(&expected).into());
        }
        if let Some(written) = directories.iter().find(|written| written.starts_with(path)) {
            return Err(wrong(&format!("the engine writes to {}, which must be elsewhere", written.display())).into());
        }
        let short = object_name(path.file_name().and_then(|name| name.to_str()).unwrap_or_default());
        let is_taken = secrets.iter().any(|other| other.secret == short);
        let secret = if is_taken { object_name(&path.to_string_lossy()) } else { short };
        secrets.push(SecretFiles { secret, path: path.to_owned(), keys: vec![name] });
    }
    Ok(secrets)
}

/// Converts a text to a valid name of a Kubernetes object.
fn object_name(text: &str) -> String {
    key(text).to_ascii_lowercase().replace(['.', '_'], "-").trim_matches('-').to_owned()
}

/// Returns the size of the volume, such as `12Gi`: the byte limits of the journal and of the file handlers, plus ten percent.
fn volume_size(config: &Config) -> String {
    let state = config.state.dir.as_ref().map_or(0, |_| config.state.journal.max_bytes);
    let files = config.handlers.values().filter(|handler| handler.enabled).map(|handler| match &handler.sink {
        SinkConfig::File(file) => {
            let bounded = file.rotate.as_ref().and_then(|rotate| Some((rotate.max_bytes, rotate.files_max()?)));
            bounded.map_or(FILE_BYTES, |(bytes, files)| bytes.saturating_mul(u64::from(files) + 1))
        }
        _ => 0,
    });
    let bytes = files.fold(state, u64::saturating_add);
    format!("{}Gi", (bytes + bytes / 10).div_ceil(1 << 30))
}

/// Unit to which requests and limits of memory are rounded up.
const MEMORY_STEP: u64 = 32 << 20;

/// Returns the requests and limits of the container. The memory request is for an engine that caches `objects` objects. The memory
/// limit is the memory request plus the byte limits in the configuration.
fn resources(config: &Config, objects: u64) -> Map<String, Value> {
    let request = BYTES_IDLE + objects.saturating_mul(BYTES_OBJECT);
    let handlers = config.handlers.values().filter(|handler| handler.enabled);
    let buffers: u64 = handlers.map(|handler| handler.options.buffer.max_bytes).sum();
    let http = config.http.listen.map_or(0, |_| config.http.max_response_bytes + config.subscribe.buffer_bytes);
    let queues = config.resources.values().map(|entry| entry.options.fifo_max_bytes).max().unwrap_or_default();
    let queues = queues.saturating_mul(u64::from(config.kube.max_concurrent_lists));
    let limit = [buffers, http, queues].into_iter().fold(request, u64::saturating_add);
    // Each run of the command counts another number of objects, and a pod restarts when its limits change. Rounding avoids most of
    // these changes.
    let memory = |bytes: u64| format!("{}Mi", bytes.div_ceil(MEMORY_STEP) * (MEMORY_STEP >> 20));
    let requests = json!({ "cpu": "100m", "memory": memory(request) });
    Map::from_iter([("requests".to_owned(), requests), ("limits".to_owned(), json!({ "memory": memory(limit) }))])
}
