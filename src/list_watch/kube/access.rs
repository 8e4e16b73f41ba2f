//! Cluster and credentials: a kubeconfig or a service account, found in kubectl's order.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::Uri;
use kube::Config;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{
    connect,
    credentials::{CredentialError, Credentials},
    kubeconfig::{self, Entry},
    route::Route,
};
use crate::{client_error::describe, fresh::FilesSeen, secret::SecretString};

/// Configuration of cluster access: `[kube] kubeconfig` and `context`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeOptions {
    /// Path of a kubeconfig. If empty: `KUBECONFIG`, then the service account of a pod, then `~/.kube/config`.
    pub kubeconfig: String,
    /// Context of the kubeconfig; if empty, its `current-context`. If a context is named, the service account is not
    /// considered.
    pub context: String,
}

/// Address and credentials of one cluster. It holds no connection; [`ClusterAccess::client`] creates clients, which share the
/// credentials.
#[derive(Clone)]
pub struct ClusterAccess {
    server: Uri,
    route: Route,
    cluster_name: Option<String>,
    credentials: Arc<Credentials>,
}

/// Reason why there is no access to a cluster, with its causes. No request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AccessError {
    message: String,
}

impl AccessError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }

    fn server_url(url: &str) -> Self {
        Self::new(format!("unexpected server address {url:?}, expected http://HOST[:PORT] or https://HOST[:PORT]"))
    }
}

impl From<CredentialError> for AccessError {
    fn from(error: CredentialError) -> Self {
        Self::new(error.to_string())
    }
}

/// Parts of the process's environment that locate the cluster.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    kubeconfig: Option<OsString>,
    in_pod: bool,
    home: Option<PathBuf>,
    proxy: Option<String>,
    no_proxy: String,
}

impl Surroundings {
    fn of_process() -> Self {
        let either =
            |names: [&str; 2]| names.into_iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()));
        Self {
            kubeconfig: env::var_os("KUBECONFIG").filter(|value| !value.is_empty()),
            in_pod: env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty()),
            home: env::home_dir(),
            proxy: either(["HTTPS_PROXY", "https_proxy"]),
            no_proxy: either(["NO_PROXY", "no_proxy"]).unwrap_or_default(),
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
        Self::with_token(url, cluster_name, None, None)
    }

    /// Creates access to a server with token authentication, or with none. Only `authorities` (DER) are trusted;
    /// `None` trusts the system's authorities.
    pub fn with_token(
        url: &str,
        cluster_name: &str,
        token: Option<SecretString>,
        authorities: Option<Vec<Vec<u8>>>,
    ) -> Result<Self, AccessError> {
        let mut config = Config::new(url.parse().map_err(|_| AccessError::server_url(url))?);
        config.auth_info.token = token;
        config.root_cert = authorities;
        let user = String::new();
        let entry = Entry { context: cluster_name.to_owned(), user, config, proxy_url: None };
        let server = checked(&entry.config.cluster_url)?;
        Self::prepare(server, Some(cluster_name.to_owned()), Route::Direct, move |_| Ok(entry.clone()))
    }

    /// Returns the name of the kubeconfig context, or the `cluster_name` that the constructor was given. `None` for access with the
    /// service account of a pod.
    pub fn cluster_name(&self) -> Option<&str> {
        self.cluster_name.as_deref()
    }

    /// Returns the API server's address, without credentials.
    pub fn server_url(&self) -> String {
        let uri = &self.server;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{}://{host}{}", uri.scheme_str().unwrap_or("https"), uri.path().trim_end_matches('/'))
    }

    /// Creates a client whose connections belong to the current tokio runtime. Call it on the arbiter that uses the
    /// client, and use the client only there. A credential program of the kubeconfig runs before the first request.
    pub fn client(&self) -> kube::Client {
        connect::client(&self.server, &self.route, Arc::clone(&self.credentials))
    }

    /// Runs the kubeconfig's credential program, if any, and waits for its end. A program that asks the user needs more time than a
    /// request has.
    pub(crate) async fn log_in(&self) -> Result<(), AccessError> {
        self.credentials.current().await?;
        Ok(())
    }

    fn load_in(options: &KubeOptions, surroundings: &Surroundings) -> Result<Self, AccessError> {
        match find(options, surroundings)? {
            Source::ServiceAccount => {
                let server = checked(&of_pod(&mut FilesSeen::default())?.config.cluster_url)?;
                Self::prepare(server, None, Route::Direct, of_pod)
            }
            Source::Files(paths) => {
                let first = kubeconfig::read(&paths, &options.context, &mut FilesSeen::default())?;
                let server = checked(&first.config.cluster_url)?;
                let route = match first.proxy_url {
                    Some(proxy) => Route::of_kubeconfig(&proxy),
                    None => surroundings.route(&server),
                };
                let (of_server, context) = (server.clone(), first.context.clone());
                Self::prepare(server, Some(first.context), route.map_err(AccessError::new)?, move |files| {
                    // the context that was selected first, even if another one is the current context now
                    let entry = kubeconfig::read(&paths, &context, files)?;
                    if entry.config.cluster_url == of_server {
                        Ok(entry)
                    } else {
                        Err(AccessError::new(format!(
                            "the server of context {context:?} has changed; restart to use it"
                        )))
                    }
                })
            }
        }
    }

    fn prepare(
        server: Uri,
        cluster_name: Option<String>,
        route: Route,
        read: impl Fn(&mut FilesSeen) -> Result<Entry, AccessError> + Send + Sync + 'static,
    ) -> Result<Self, AccessError> {
        let credentials = Credentials::new(move |files| read(files).map_err(|error| error.to_string()));
        let credentials = Arc::new(credentials.map_err(|error| {
            let place = cluster_name.as_ref().map_or_else(String::new, |name| format!(" of context {name:?}"));
            AccessError::new(format!("failed to use the credentials{place}: {error}"))
        })?);
        Ok(Self { server, route, cluster_name, credentials })
    }
}

impl Surroundings {
    /// Returns the route to a server without `proxy-url`.
    fn route(&self, server: &Uri) -> Result<Route, String> {
        let is_proxied =
            server.scheme_str() == Some("https") && !is_direct(server.host().unwrap_or_default(), &self.no_proxy);
        match self.proxy.as_ref().filter(|_| is_proxied) {
            Some(proxy) => Route::of_environment(proxy),
            None => Ok(Route::Direct),
        }
    }
}

/// Returns the address of a server, if requests can be sent to it.
fn checked(server: &Uri) -> Result<Uri, AccessError> {
    if server.host().is_none() || !matches!(server.scheme_str(), Some("http" | "https")) {
        return Err(AccessError::server_url(&server.to_string()));
    }
    Ok(server.clone())
}

/// Reads the service account of a pod.
fn of_pod(files: &mut FilesSeen) -> Result<Entry, AccessError> {
    let failed = |cause: &str| {
        let hint = "check that automountServiceAccountToken of the pod is not false";
        AccessError::new(format!("failed to use the pod's service account: {cause}; {hint}"))
    };
    let mut config = Config::incluster().map_err(|error| failed(&describe(&error)))?;
    if let Some(path) = config.root_cert_file.take() {
        let pem = files.read(&path).map_err(|error| failed(&format!("cannot read {}: {error}", path.display())))?;
        let certificates = CertificateDer::pem_slice_iter(&pem).map(|certificate| certificate.map(|der| der.to_vec()));
        let certificates = certificates.collect::<Result<Vec<_>, _>>();
        config.root_cert = Some(certificates.map_err(|error| failed(&format!("{}: {error}", path.display())))?);
    }
    if let Some(path) = config.auth_info.token_file.take() {
        config.auth_info.token = Some(kubeconfig::token(Path::new(&path), files).map_err(|error| failed(&error))?);
    }
    Ok(Entry { context: String::new(), user: String::new(), config, proxy_url: None })
}

impl fmt::Debug for ClusterAccess {
    /// Formats the access without its credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster_name = &self.cluster_name;
        f.debug_struct("ClusterAccess")
            .field("server", &self.server_url())
            .field("cluster_name", cluster_name)
            .finish_non_exhaustive()
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
