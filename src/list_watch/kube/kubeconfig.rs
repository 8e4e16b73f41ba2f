//! Reading of kubeconfigs: the entry of one context, with the content of all files that it names.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::{
    Config,
    config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError},
};

use super::access::AccessError;
use crate::{
    client_error::describe,
    fresh::FilesSeen,
    regular_file,
    secret::{ExposeSecret as _, SecretString},
};

/// Cluster and user of one context. It needs no further files.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) context: String,
    /// Name of the user, for errors.
    pub(super) user: String,
    pub(super) config: Config,
    /// `proxy-url` of the cluster.
    pub(super) proxy_url: Option<String>,
}

/// Reads and merges kubeconfigs. Returns the entry of `context`, or of the current context if `context` is empty.
pub(super) fn read(paths: &[PathBuf], context: &str, files: &mut FilesSeen) -> Result<Entry, AccessError> {
    let all = env::join_paths(paths).unwrap_or_default();
    let all = OsStr::to_string_lossy(&all);
    let failed = |why: String| AccessError::new(format!("failed to use kubeconfig {all}: {why}"));
    let mut merged = Kubeconfig::default();
    for path in paths {
        let file = parse(path, files)?;
        merged = merged.merge(file).map_err(|error| failed(describe(&error)))?;
    }
    let context = select(&merged, context, &all)?;
    let named = merged.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.clone());
    let named = named.ok_or_else(|| failed(format!("context {context:?} has no cluster and no user")))?;
    let user = named.user.unwrap_or_default();
    let mut proxy_url = None;
    let clusters = merged.clusters.iter_mut().filter(|cluster| cluster.name == named.cluster);
    if let Some(cluster) = clusters.take(1).find_map(|cluster| cluster.cluster.as_mut()) {
        complete_cluster(cluster, files).map_err(|why| failed(format!("cluster {:?}: {why}", named.cluster)))?;
        proxy_url.clone_from(&cluster.proxy_url);
    }
    let users = merged.auth_infos.iter_mut().filter(|entry| entry.name == user);
    if let Some(auth) = users.take(1).find_map(|entry| entry.auth_info.as_mut()) {
        complete_user(auth, files).map_err(|why| failed(format!("user {user:?}: {why}")))?;
    }
    merged.current_context = Some(context.clone());
    let config = Config::try_from(merged).map_err(|error| failed(describe(&error)))?;
    Ok(Entry { context, user, config, proxy_url })
}

/// Reads one file. Empty values count as not set, so that a later file can set them.
fn parse(path: &Path, files: &mut FilesSeen) -> Result<Kubeconfig, AccessError> {
    let failed = |why: String| AccessError::new(format!("failed to use kubeconfig {}: {why}", path.display()));
    files.note(path);
    regular_file::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            failed("there is no such file; name another with --kubeconfig, [kube] kubeconfig or KUBECONFIG".to_owned())
        }
        _ => failed(format!("cannot read it: {error}")),
    })?;
    let mut file = Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::ReadConfig(error, _) => failed(format!("cannot read it: {error}")),
        // the parser's message shows lines of the file, which has secrets
        KubeconfigError::Parse(error) => failed(match error.location() {
            Some(at) => format!("it is not a kubeconfig in YAML, see line {}, column {}", at.line(), at.column()),
            None => "it is not a kubeconfig in YAML".to_owned(),
        }),
        error => failed(describe(&error)),
    })?;
    for value in [&mut file.current_context, &mut file.kind, &mut file.api_version] {
        unset_empty(value);
    }
    Ok(file)
}

/// Returns the name of the context to use.
fn select(merged: &Kubeconfig, context: &str, paths: &str) -> Result<String, AccessError> {
    let known = || match &merged.contexts[..] {
        [] => "(it has none)".to_owned(),
        contexts => contexts.iter().map(|context| &*context.name).collect::<Vec<_>>().join(", "),
    };
    let context = match (context, &merged.current_context) {
        ("", Some(current)) => current,
        ("", None) => {
            return Err(AccessError::new(format!(
                "kubeconfig {paths} has no current-context, set [kube] context to one of: {}",
                known()
            )));
        }
        (named, _) => named,
    };
    if !merged.contexts.iter().any(|named| named.name == context) {
        let known = known();
        return Err(AccessError::new(format!(
            "no context {context:?} in kubeconfig {paths}, expected one of: {known}"
        )));
    }
    Ok(context.to_owned())
}

/// Reads the file of the authorities into the entry, and checks the entry.
fn complete_cluster(cluster: &mut Cluster, files: &mut FilesSeen) -> Result<(), String> {
    unset_empty(&mut cluster.proxy_url);
    unset_empty(&mut cluster.tls_server_name);
    let data = &mut cluster.certificate_authority_data;
    complete("certificate-authority", &mut cluster.certificate_authority, data, files)?;
    if data.is_some() && cluster.insecure_skip_tls_verify == Some(true) {
        return Err("certificate-authority together with insecure-skip-tls-verify: remove one of them".to_owned());
    }
    Ok(())
}

/// Reads the files of a user into the entry.
fn complete_user(auth: &mut AuthInfo, files: &mut FilesSeen) -> Result<(), String> {
    complete("client-certificate", &mut auth.client_certificate, &mut auth.client_certificate_data, files)?;
    let mut key = auth.client_key_data.take().map(|key| key.expose_secret().to_owned());
    complete("client-key", &mut auth.client_key, &mut key, files)?;
    auth.client_key_data = key.map(SecretString::from);
    if auth.token.as_ref().is_some_and(|token| token.expose_secret().is_empty()) {
        auth.token = None;
    }
    unset_empty(&mut auth.token_file);
    if let Some(path) = auth.token_file.take()
        && auth.token.is_none()
    {
        auth.token = Some(token(Path::new(&path), files)?);
    }
    Ok(())
}

/// Reads the token of a file.
pub(super) fn token(path: &Path, files: &mut FilesSeen) -> Result<SecretString, String> {
    let bytes = files.read(path).map_err(|error| format!("cannot read tokenFile {}: {error}", path.display()))?;
    match String::from_utf8(bytes) {
        Ok(text) if !text.trim().is_empty() => Ok(text.into()),
        _ => Err(format!("tokenFile {} holds no token: expected text", path.display())),
    }
}

/// Reads a file into the option with its content. The content takes precedence, as in kubectl.
fn complete(
    name: &str,
    path: &mut Option<String>,
    data: &mut Option<String>,
    files: &mut FilesSeen,
) -> Result<(), String> {
    unset_empty(data);
    unset_empty(path);
    if let Some(path) = path.take()
        && data.is_none()
    {
        let content = files.read(Path::new(&path)).map_err(|error| format!("cannot read {name} {path}: {error}"))?;
        *data = Some(BASE64_STANDARD.encode(content));
    }
    Ok(())
}

fn unset_empty(value: &mut Option<String>) {
    *value = value.take().filter(|text| !text.is_empty());
}
