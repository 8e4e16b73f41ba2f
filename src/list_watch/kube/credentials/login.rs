//! Settings of requests that are read from files.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::HeaderValue;
use kube::{
    Config,
    client::{ConfigExt as _, middleware::ExtraHeadersLayer},
    config::{AuthInfo, AuthProviderConfig},
};
use rustls::{ClientConfig, pki_types::ServerName};

use super::{
    super::kubeconfig::Entry,
    plugin::{Identity, Plugin},
};
use crate::{
    client_error::describe,
    secret::{ExposeSecret, SecretString},
};

/// Settings of requests, without what a credential program adds.
pub(super) struct Login {
    pub(super) user: User,
    pub(super) headers: ExtraHeadersLayer,
    /// TLS with the client certificate of the files.
    pub(super) tls: Arc<Tls>,
    /// TLS settings of the cluster, without a client certificate.
    cluster: Config,
}

/// Identification of a user, beside the client certificate.
pub(super) enum User {
    /// A fixed `Authorization` header, or none.
    Fixed(Option<HeaderValue>),
    /// A program that issues credentials.
    Plugin(Plugin),
}

/// TLS settings of connections.
pub(in super::super) struct Tls {
    pub(in super::super) config: ClientConfig,
    /// Name in the server's certificate, if it is not the host of the URL.
    pub(in super::super) server_name: Option<ServerName<'static>>,
}

impl Login {
    pub(super) fn new(entry: Entry) -> Result<Self, String> {
        let Entry { user: name, config, .. } = entry;
        let of_user = |error: String| format!("user {name:?}: {error}");
        let user = User::new(&name, &config.auth_info).map_err(of_user)?;
        let headers = config.extra_headers_layer().map_err(|error| of_user(describe(&error)))?;
        let auth = &config.auth_info;
        let identity = AuthInfo {
            client_certificate_data: auth.client_certificate_data.clone(),
            client_key_data: auth.client_key_data.clone(),
            ..AuthInfo::default()
        };
        let expect = |present: &str, missing: &str| {
            Err(of_user(format!("{present} without {missing}: set {missing} or {missing}-data too")))
        };
        match (&identity.client_certificate_data, &identity.client_key_data) {
            (Some(_), None) => return expect("client-certificate", "client-key"),
            (None, Some(_)) => return expect("client-key", "client-certificate"),
            _ => {}
        }
        let has_certificate = identity.client_certificate_data.is_some();
        let mut cluster = config;
        cluster.auth_info = identity;
        let tls = tls(&cluster).map_err(|error| if has_certificate { of_user(error) } else { error });
        let tls = Arc::new(tls?);
        cluster.auth_info = AuthInfo::default();
        Ok(Self { user, headers, tls, cluster })
    }

    /// Returns the header of the files.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        if let User::Fixed(header) = &self.user { header.clone() } else { None }
    }

    /// Returns the TLS settings with a client certificate of a credential program.
    pub(super) fn tls_of(&self, identity: &Identity) -> Result<Tls, String> {
        let mut config = self.cluster.clone();
        config.auth_info.client_certificate_data = Some(BASE64_STANDARD.encode(&identity.certificate));
        config.auth_info.client_key_data = Some(BASE64_STANDARD.encode(identity.key.expose_secret()).into());
        tls(&config)
    }
}

impl User {
    fn new(name: &str, auth: &AuthInfo) -> Result<Self, String> {
        if let Some(provider) = &auth.auth_provider {
            return id_token(provider).map(Some).map(Self::Fixed);
        }
        if let (Some(user), Some(password)) = (&auth.username, &auth.password) {
            let text = BASE64_STANDARD.encode(format!("{user}:{}", password.expose_secret()));
            return header(&format!("Basic {text}")).map(Some).map(Self::Fixed);
        }
        match (&auth.token, &auth.exec) {
            (Some(token), _) => bearer(token).map(Some).map(Self::Fixed),
            (None, Some(exec)) => Plugin::new(name, exec).map(Self::Plugin),
            (None, None) => Ok(Self::Fixed(None)),
        }
    }
}

/// Returns the header of an `auth-provider`. Like kubectl, supports no other provider than `oidc`; its token is not renewed.
fn id_token(provider: &AuthProviderConfig) -> Result<HeaderValue, String> {
    let token = provider.config.get("id-token").filter(|_| provider.name == "oidc");
    let unsupported = || {
        let name = &provider.name;
        format!("unsupported auth-provider {name:?}: use a credential program (`exec`), or `oidc` with an id-token")
    };
    bearer(&SecretString::from(token.ok_or_else(unsupported)?.as_str()))
}

/// Returns the header for a token. White space around the token, such as the line end of a file, does not count.
pub(super) fn bearer(token: &SecretString) -> Result<HeaderValue, String> {
    match token.expose_secret().trim() {
        "" => Err("the token is empty".to_owned()),
        token => header(&format!("Bearer {token}")),
    }
}

fn header(text: &str) -> Result<HeaderValue, String> {
    let invalid = |_| "the token has characters that no header can carry: expected printable ASCII".to_owned();
    let mut value = HeaderValue::from_str(text).map_err(invalid)?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls(config: &Config) -> Result<Tls, String> {
    let server_name = config.tls_server_name.as_ref().map(|name| {
        ServerName::try_from(name.clone())
            .map_err(|_| format!("invalid tls-server-name {name:?}: expected a host name"))
    });
    let tls = config.rustls_client_config().map_err(|error| describe(&error))?;
    Ok(Tls { config: tls, server_name: server_name.transpose()? })
}
