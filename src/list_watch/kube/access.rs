//! Cluster and credentials: a kubeconfig or a service account, found in kubectl's order.

use std::{
    env,
    error::Error,
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{Kubeconfig, KubeconfigError},
};

use super::connect;
use crate::{regular_file, secret::SecretString};

/// Configuration of cluster access: `[kube] kubeconfig` and `context`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeOptions {
    /// Path of a kubeconfig. If empty: `KUBECONFIG`, then the service account of a pod, then `~/.kube/config`.
    pub kubeconfig: String,
    /// Context of the kubeconfig; if empty, its `current-context`. If a context is named, the service account is not
    /// considered.
    pub context: String,
}

/// Address and credentials of one cluster. It holds no connection; [`ClusterAccess::client`] creates clients.
#[derive(Clone)]
pub struct ClusterAccess {
    config: Config,
    cluster_name: Option<String>,
}

/// Reason why there is no access to a cluster. No request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AccessError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl AccessError {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    fn with_source(message: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self { message: message.into(), source: Some(Box::new(source)) }
    }

    fn server_url(url: &str) -> Self {
        Self::new(format!("unexpected server address {url:?}, expected http://HOST[:PORT] or https://HOST[:PORT]"))
    }
}

/// Parts of the process's environment that locate the cluster.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    kubeconfig: Option<OsString>,
    in_pod: bool,
    home: Option<PathBuf>,
    no_proxy: String,
}

impl Surroundings {
    fn of_process() -> Self {
        Self {
            kubeconfig: env::var_os("KUBECONFIG").filter(|value| !value.is_empty()),
            in_pod: env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty()),
            home: env::home_dir(),
            no_proxy: env::var("NO_PROXY").or_else(|_| env::var("no_proxy")).unwrap_or_default(),
        }
    }
}

/// Source of cluster access.
#[derive(Debug, PartialEq)]
enum Source {
    Files(Vec<PathBuf>),
    ServiceAccount,
}

impl ClusterAccess {
    /// Finds the cluster as kubectl does. The order is: the named kubeconfig, the files of `KUBECONFIG`, the service account
    /// of a pod, `~/.kube/config`. Reads files and sends no request.
    pub fn load(options: &KubeOptions) -> Result<Self, AccessError> {
        Self::load_in(options, &Surroundings::of_process())
    }

    /// Creates access to a server that needs no credentials, for example `http://127.0.0.1:8001`.
    pub fn without_credentials(url: &str, cluster_name: &str) -> Result<Self, AccessError> {
        let server = url.parse().map_err(|_| AccessError::server_url(url))?;
        Self::prepare(Config::new(server), Some(cluster_name.to_owned()), "")
    }

    /// Creates access to a server with token authentication, or with none. Only `authorities` (DER) are trusted;
    /// `None` trusts the system's authorities.
    pub fn with_token(
        url: &str,
        cluster_name: &str,
        token: Option<SecretString>,
        authorities: Option<Vec<Vec<u8>>>,
    ) -> Result<Self, AccessError> {
        let mut access = Self::without_credentials(url, cluster_name)?;
        access.config.auth_info.token = token;
        access.config.root_cert = authorities;
        Ok(access)
    }

    /// Returns the name of the kubeconfig context, or the `cluster_name` that the constructor was given. `None` for access with the
    /// service account of a pod.
    pub fn cluster_name(&self) -> Option<&str> {
        self.cluster_name.as_deref()
    }

    /// Returns the API server's address, without credentials.
    pub fn server_url(&self) -> String {
        let uri = &self.config.cluster_url;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{}://{host}{}", uri.scheme_str().unwrap_or("https"), uri.path().trim_end_matches('/'))
    }

    /// Creates a client whose connections belong to the current tokio runtime. Call it on the arbiter that uses the
    /// client, and use the client only there.
    ///
    /// Runs the kubeconfig's credential plugin, if any, and blocks until it ends.
    pub fn client(&self) -> Result<kube::Client, AccessError> {
        let failed =
            |source| AccessError::with_source(format!("failed to set up the client for {}", self.server_url()), source);
        connect::client(&self.config).map_err(failed)
    }

    fn load_in(options: &KubeOptions, surroundings: &Surroundings) -> Result<Self, AccessError> {
        match find(options, surroundings)? {
            Source::ServiceAccount => {
                let what = "failed to use the pod's service account; is automountServiceAccountToken off?";
                let config = Config::incluster().map_err(|error| AccessError::with_source(what, error))?;
                Self::prepare(config, None, &surroundings.no_proxy)
            }
            Source::Files(paths) => {
                let (config, context) = read(&paths, &options.context)?;
                Self::prepare(config, Some(context), &surroundings.no_proxy)
            }
        }
    }

    fn prepare(mut config: Config, cluster_name: Option<String>, no_proxy: &str) -> Result<Self, AccessError> {
        if config.cluster_url.host().is_none() || !matches!(config.cluster_url.scheme_str(), Some("http" | "https")) {
            return Err(AccessError::server_url(&config.cluster_url.to_string()));
        }
        let proxy = config.proxy_url.take();
        // Requests are repeated by `list_watch/kube.rs` and the reflector, not by the kube crate. The reflector also has the idle
        // deadline of streams, which stay open for minutes.
        config.default_retry = false;
        config.read_timeout = None;
        config.disable_compression = true;
        let access = Self { config, cluster_name };
        // decided here, because the kube crate applies HTTPS_PROXY to http:// servers too, and compares NO_PROXY with the proxy's
        // host
        let uri = &access.config.cluster_url;
        let is_needed = uri.scheme_str() == Some("https") && !is_direct(uri.host().unwrap_or_default(), no_proxy);
        match proxy.filter(|_| is_needed) {
            Some(proxy) => Err(AccessError::new(format!(
                "unsupported proxy {} for {}; put the server's host into NO_PROXY if it can be reached directly",
                proxy.host().unwrap_or_default(),
                access.server_url()
            ))),
            None => Ok(access),
        }
    }
}

impl fmt::Debug for ClusterAccess {
    /// Formats the access without its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config: _, cluster_name } = self;
        f.debug_struct("ClusterAccess").field("server", &self.server_url()).field("cluster_name", cluster_name).finish()
    }
}

/// Decides on the source of access.
fn find(options: &KubeOptions, surroundings: &Surroundings) -> Result<Source, AccessError> {
    if !options.kubeconfig.is_empty() {
        return Ok(Source::Files(vec![expand_home(&options.kubeconfig, surroundings.home.as_deref())]));
    }
    let from_environment = match &surroundings.kubeconfig {
        Some(list) => {
            // like kubectl, skip files that do not exist
            let named = env::split_paths(list).filter(|path| !path.as_os_str().is_empty());
            let files: Vec<PathBuf> = named.filter(|path| path.exists()).collect();
            if !files.is_empty() {
                return Ok(Source::Files(files));
            }
            format!("KUBECONFIG ({} does not exist)", list.to_string_lossy())
        }
        None => "KUBECONFIG (not set)".to_owned(),
    };
    let of_pod = match surroundings.in_pod {
        true if options.context.is_empty() => return Ok(Source::ServiceAccount),
        true => "no service account, as a context is named",
        false => "service account (not in a pod)",
    };
    let at_home = match surroundings.home.as_ref().map(|home| home.join(".kube").join("config")) {
        Some(file) if file.exists() => return Ok(Source::Files(vec![file])),
        Some(file) => format!("{} (does not exist)", file.display()),
        None => "~/.kube/config (no home directory)".to_owned(),
    };
    Err(AccessError::new(format!(
        "no cluster access found: tried [kube] kubeconfig (not set), {from_environment}, {of_pod}, {at_home}; set [kube] \
         kubeconfig or KUBECONFIG, or run in a pod with a service account"
    )))
}

fn expand_home(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

/// Reads and merges kubeconfigs. Returns the configuration of the selected context, and the context's name.
fn read(paths: &[PathBuf], context: &str) -> Result<(Config, String), AccessError> {
    let path = || {
        let list = env::join_paths(paths).unwrap_or_default();
        OsStr::to_string_lossy(&list).into_owned()
    };
    let failed =
        |source: KubeconfigError| AccessError::with_source(format!("failed to use kubeconfig {}", path()), source);
    let mut merged = Kubeconfig::default();
    for file in paths {
        regular_file::open(file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AccessError::new(format!(
                "failed to use kubeconfig {}: there is no such file; name another with --kubeconfig, [kube] kubeconfig or \
                 KUBECONFIG",
                file.display()
            )),
            _ => failed(KubeconfigError::ReadConfig(error, file.clone())),
        })?;
        merged = Kubeconfig::read_from(file).and_then(|next| merged.merge(next)).map_err(failed)?;
    }
    let known = || match &merged.contexts[..] {
        [] => "(it has none)".to_owned(),
        contexts => contexts.iter().map(|context| &*context.name).collect::<Vec<_>>().join(", "),
    };
    let current = merged.current_context.clone().filter(|name| !name.is_empty());
    let context = match (context, current) {
        ("", Some(current)) => current,
        ("", None) => {
            let (path, known) = (path(), known());
            return Err(AccessError::new(format!(
                "kubeconfig {path} has no current-context, set [kube] context to one of: {known}"
            )));
        }
        (named, _) => named.to_owned(),
    };
    if !merged.contexts.iter().any(|named| named.name == context) {
        let (path, known) = (path(), known());
        return Err(AccessError::new(format!("no context {context:?} in kubeconfig {path}, expected one of: {known}")));
    }
    merged.current_context = Some(context.clone());
    Ok((Config::try_from(merged).map_err(failed)?, context))
}

/// Returns true if requests to `host` bypass the proxy: `host` is a loopback address, or `NO_PROXY` contains `host`, a domain above
/// it, or `*`.
fn is_direct(host: &str, no_proxy: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare == "localhost" || bare.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    is_loopback
        || no_proxy.split(',').map(|entry| entry.trim().trim_start_matches('.')).any(|entry| {
            let above = || bare.strip_suffix(entry).is_some_and(|rest| rest.ends_with('.'));
            entry == "*" || !entry.is_empty() && (bare == entry || above())
        })
}

#[cfg(test)]
mod tests;
