//! Cluster and credentials: a kubeconfig or a service account, found in kubectl's order.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt, io,
    path::{Path, PathBuf},
};

use kube::{
    Config,
    config::{InClusterError, Kubeconfig, KubeconfigError},
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
#[non_exhaustive]
pub enum AccessError {
    /// No kubeconfig and no service account found.
    #[error(
        "no cluster access found: tried {0}; set [kube] kubeconfig or KUBECONFIG, or run in a pod with a service account"
    )]
    NotFound(String),
    /// The named kubeconfig does not exist.
    #[error(
        "failed to use kubeconfig {0}: there is no such file; name another with --kubeconfig, [kube] kubeconfig or KUBECONFIG"
    )]
    NoKubeconfig(String),
    /// A kubeconfig cannot be read, or lacks required entries.
    #[error("failed to use kubeconfig {path}")]
    Kubeconfig {
        /// The file, or the files of `KUBECONFIG`.
        path: String,
        /// Cause.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig does not have the requested context.
    #[error("no context {context:?} in kubeconfig {path}, expected one of: {known}")]
    UnknownContext {
        /// The file, or the files of `KUBECONFIG`.
        path: String,
        /// Requested context.
        context: String,
        /// Existing contexts.
        known: String,
    },
    /// No context was named, and the kubeconfig has no `current-context`.
    #[error("kubeconfig {path} has no current-context, set [kube] context to one of: {known}")]
    NoContext {
        /// The file, or the files of `KUBECONFIG`.
        path: String,
        /// Existing contexts.
        known: String,
    },
    /// The process runs in a pod, but cannot use the pod's service account.
    #[error("failed to use the pod's service account; is automountServiceAccountToken off?")]
    ServiceAccount(#[source] Box<InClusterError>),
    /// The server's address is not a URL.
    #[error("unexpected server address {0:?}, expected http://HOST[:PORT] or https://HOST[:PORT]")]
    ServerUrl(String),
    /// The cluster is only reachable through a proxy.
    #[error(
        "unsupported proxy {proxy} for {server}; put the server's host into NO_PROXY if it can be reached directly"
    )]
    Proxy {
        /// The proxy.
        proxy: String,
        /// The API server.
        server: String,
    },
    /// TLS or credentials cannot be set up.
    #[error("failed to set up the client for {server}")]
    Client {
        /// The API server.
        server: String,
        /// Cause.
        source: Box<kube::Error>,
    },
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
        let server = url.parse().map_err(|_| AccessError::ServerUrl(url.to_owned()))?;
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

    /// Returns the cluster's name in the kubeconfig context; `None` in a pod, where the cluster has no name.
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
        connect::client(&self.config)
            .map_err(|source| AccessError::Client { server: self.server_url(), source: Box::new(source) })
    }

    fn load_in(options: &KubeOptions, surroundings: &Surroundings) -> Result<Self, AccessError> {
        match find(options, surroundings)? {
            Source::ServiceAccount => {
                let config = Config::incluster().map_err(|error| AccessError::ServiceAccount(Box::new(error)))?;
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
            return Err(AccessError::ServerUrl(config.cluster_url.to_string()));
        }
        let proxy = config.proxy_url.take();
        // The reflector makes and shows the retries. It also has the idle deadline of streams, which stay open for minutes.
        config.default_retry = false;
        config.read_timeout = None;
        config.disable_compression = true;
        let access = Self { config, cluster_name };
        // the kube crate applies HTTPS_PROXY to http:// servers too, and compares NO_PROXY with the proxy itself
        let uri = &access.config.cluster_url;
        let is_needed = uri.scheme_str() == Some("https") && !is_direct(uri.host().unwrap_or_default(), no_proxy);
        match proxy.filter(|_| is_needed) {
            Some(proxy) => {
                let proxy = proxy.host().unwrap_or_default().to_owned();
                Err(AccessError::Proxy { proxy, server: access.server_url() })
            }
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
    let tried = ["[kube] kubeconfig (not set)", &from_environment, of_pod, &at_home];
    Err(AccessError::NotFound(tried.join(", ")))
}

fn expand_home(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.into(),
    }
}

/// Reads and merges kubeconfigs; returns the configuration of a context, and its name.
fn read(paths: &[PathBuf], context: &str) -> Result<(Config, String), AccessError> {
    let path = || {
        let list = env::join_paths(paths).unwrap_or_default();
        OsStr::to_string_lossy(&list).into_owned()
    };
    let failed = |source| AccessError::Kubeconfig { path: path(), source: Box::new(source) };
    let mut merged = Kubeconfig::default();
    for file in paths {
        regular_file::open(file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AccessError::NoKubeconfig(file.display().to_string()),
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
        ("", None) => return Err(AccessError::NoContext { path: path(), known: known() }),
        (named, _) => named.to_owned(),
    };
    if !merged.contexts.iter().any(|named| named.name == context) {
        return Err(AccessError::UnknownContext { path: path(), known: known(), context });
    }
    merged.current_context = Some(context.clone());
    Ok((Config::try_from(merged).map_err(failed)?, context))
}

/// Returns true if `NO_PROXY` contains `host`, a domain above it, or `*`. Loopback addresses never use the proxy.
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
mod tests {
    use super::*;

    const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: dev
contexts:
- {name: dev, context: {cluster: c, user: u}}
- {name: prod, context: {cluster: p, user: u}}
- {name: odd, context: {cluster: o}}
clusters:
- {name: c, cluster: {server: 'http://127.0.0.1:8080/'}}
- {name: p, cluster: {server: 'https://user:secret@prod.example:6443/k8s/'}}
- {name: o, cluster: {server: 'localhost'}}
users:
- {name: u, user: {token: t0ps3cret}}
";

    fn home() -> (tempfile::TempDir, Surroundings) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".kube")).unwrap();
        std::fs::write(dir.path().join(".kube/config"), KUBECONFIG).unwrap();
        let surroundings = Surroundings { home: Some(dir.path().into()), ..Surroundings::default() };
        (dir, surroundings)
    }

    fn options(kubeconfig: &str, context: &str) -> KubeOptions {
        KubeOptions { kubeconfig: kubeconfig.into(), context: context.into() }
    }

    #[test]
    fn cluster_access_follows_kubectl_order() {
        let (dir, at_home) = home();
        let other = dir.path().join("other");
        std::fs::write(&other, KUBECONFIG).unwrap();
        let in_pod = Surroundings { in_pod: true, ..at_home.clone() };
        let with_env = Surroundings { kubeconfig: Some(other.clone().into()), ..in_pod.clone() };
        let default_file = Source::Files(vec![dir.path().join(".kube/config")]);

        assert_eq!(find(&options("/x", ""), &with_env).unwrap(), Source::Files(vec!["/x".into()]));
        assert_eq!(find(&options("~/other", ""), &with_env).unwrap(), Source::Files(vec![other.clone()]));
        assert_eq!(find(&options("", ""), &with_env).unwrap(), Source::Files(vec![other.clone()]));
        assert_eq!(find(&options("", ""), &in_pod).unwrap(), Source::ServiceAccount);
        assert_eq!(find(&options("", "dev"), &in_pod).unwrap(), default_file);
        assert_eq!(find(&options("", ""), &at_home).unwrap(), default_file);
        let list = env::join_paths([dir.path().join("missing"), other.clone()]).unwrap();
        let with_list = Surroundings { kubeconfig: Some(list), ..at_home };
        assert_eq!(find(&options("", ""), &with_list).unwrap(), Source::Files(vec![other]));
    }

    #[test]
    fn missing_access_names_every_searched_location() {
        let dir = tempfile::tempdir().unwrap();
        let surroundings = Surroundings {
            home: Some(dir.path().into()),
            kubeconfig: Some("/missing".into()),
            ..Surroundings::default()
        };
        let error = ClusterAccess::load_in(&KubeOptions::default(), &surroundings).unwrap_err().to_string();
        for part in [
            "KUBECONFIG (/missing does not exist)",
            "not in a pod",
            ".kube/config (does not exist)",
            "[kube] kubeconfig",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn context_names_cluster_and_plain_http_works() {
        let (_dir, at_home) = home();
        let access = ClusterAccess::load_in(&KubeOptions::default(), &at_home).unwrap();
        assert_eq!((access.cluster_name(), &*access.server_url()), (Some("dev"), "http://127.0.0.1:8080"));
        assert!(!access.config.default_retry && access.config.disable_compression);
        assert_eq!(access.config.read_timeout, None);
        let access = ClusterAccess::load_in(&options("", "prod"), &at_home).unwrap();
        assert_eq!((access.cluster_name(), &*access.server_url()), (Some("prod"), "https://prod.example:6443/k8s"));
        let shown = format!("{access:?}");
        assert!(!shown.contains("secret") && !shown.contains("t0ps"), "{shown}");
    }

    #[test]
    fn invalid_kubeconfig_is_named_with_expectation() {
        let (dir, at_home) = home();
        let load = |options: &KubeOptions| ClusterAccess::load_in(options, &at_home).unwrap_err().to_string();
        assert!(load(&options("", "prdo")).contains("expected one of: dev, prod, odd"));
        assert!(load(&options("", "odd")).contains("expected http://"));
        assert!(load(&options("/missing", "")).contains("/missing"));
        let empty = dir.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        assert!(load(&options(empty.to_str().unwrap(), "")).contains("no current-context"));
        std::fs::write(&empty, "a: [").unwrap();
        assert!(load(&options(empty.to_str().unwrap(), "")).contains("failed to use kubeconfig"));
    }

    #[test]
    fn no_proxy_matches_hosts_and_domains() {
        for (host, no_proxy, expected) in [
            ("127.0.0.1", "", true),
            ("[::1]", "", true),
            ("localhost", "", true),
            ("api.example.com", "", false),
            ("api.example.com", "a, api.example.com", true),
            ("api.example.com", ".example.com", true),
            ("api.example.com", "example.com", true),
            ("badexample.com", "example.com", false),
            ("api.example.com", "*", true),
        ] {
            assert_eq!(is_direct(host, no_proxy), expected, "{host} {no_proxy:?}");
        }
    }
}
