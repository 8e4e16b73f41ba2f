//! TLS configuration from PEM files: trusted authorities and the client's certificate.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{handler::client_tls::ClientTls, regular_file, text::Optional};

/// TLS of a webhook's connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "WebhookTls")]
pub struct TlsOptions {
    /// PEM file of the trusted authorities; no others are trusted. Read again when it changes. "": those of the system.
    #[serde(with = "Optional")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's key; read again when it changes. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
    /// Name that the receiver's certificate must have. "": the host in `url`.
    #[serde(with = "Optional")]
    pub server_name: Option<String>,
}

impl From<&ClientTls> for TlsOptions {
    fn from(tls: &ClientTls) -> Self {
        let ClientTls { ca_file, cert_file, key_file } = tls.clone();
        Self { ca_file, cert_file, key_file, server_name: None }
    }
}

impl TlsOptions {
    /// Returns the files of all options.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        [&self.ca_file, &self.cert_file, &self.key_file].into_iter().flatten().cloned().collect()
    }

    /// Reads the files and checks that they are valid. Blocks while it reads them.
    ///
    /// # Errors
    /// Returns the invalid option, and the problem.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.config().map(drop)
    }

    pub(super) fn config(&self) -> Result<ClientConfig, (&'static str, String)> {
        let builder = builder();
        let of_authority = |error| ("ca_file", error);
        let builder = match &self.ca_file {
            Some(file) => builder.with_root_certificates(authorities(file).map_err(of_authority)?),
            None => builder.with_platform_verifier().map_err(|error| of_authority(untrusting(&error)))?,
        };
        let (cert_file, key_file) = match (&self.cert_file, &self.key_file) {
            (None, None) => return Ok(builder.with_no_client_auth()),
            (Some(cert_file), Some(key_file)) => (cert_file, key_file),
            (Some(_), None) => return Err(("cert_file", "expected `key_file` beside `cert_file`".to_owned())),
            (None, Some(_)) => return Err(("key_file", "expected `cert_file` beside `key_file`".to_owned())),
        };
        let chain = certificates(cert_file).map_err(|error| ("cert_file", error))?;
        let key = key(key_file).map_err(|error| ("key_file", error))?;
        let unfit = |error: rustls::Error| {
            let (key, cert) = (key_file.display(), cert_file.display());
            ("key_file", format!("{key} does not fit the certificate in {cert}: {error}"))
        };
        builder.with_client_auth_cert(chain, key).map_err(unfit)
    }
}

/// Returns the configuration of a client that never uses TLS.
pub(super) fn nobody() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Uses the crypto provider of the connection to the API server.
fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions' cipher suites")
}

fn untrusting(error: &rustls::Error) -> String {
    format!("cannot use the certificate authorities of this system: {error}; name some with `ca_file`")
}

fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let mut trusted = RootCertStore::empty();
    for certificate in certificates(file)? {
        let unfit = |error| format!("{} has a certificate that cannot be trusted: {error}", file.display());
        trusted.add(certificate).map_err(unfit)?;
    }
    Ok(trusted)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(file)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(format!("{} holds no certificate: expected PEM, \"-----BEGIN CERTIFICATE-----\"", file.display())),
    }
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|_| {
        format!("{} holds no unencrypted key: expected PEM, \"-----BEGIN PRIVATE KEY-----\"", file.display())
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    regular_file::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}
