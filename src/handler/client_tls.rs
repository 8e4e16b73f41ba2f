//! `tls` of `[handlers.<name>]`: certificate authorities, and the certificate of the client, in PEM files.

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

use crate::{regular_file, text::Optional};

/// TLS of a client: trusted authorities, and its own certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClientTls {
    /// PEM file of the trusted authorities, which replace the system's authorities. "": the system's authorities.
    #[serde(with = "Optional")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate. "": none.
    #[serde(with = "Optional")]
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client's key. "": none.
    #[serde(with = "Optional")]
    pub key_file: Option<PathBuf>,
}

impl ClientTls {
    /// Returns the client's certificate and key, if both are set.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(super) fn client(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }

    /// Returns the files of all options.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.ca_file, &self.cert_file, &self.key_file].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Returns the configuration of a client. Blocks while it reads the files.
    ///
    /// # Errors
    /// Returns the invalid option, and the problem.
    pub(crate) fn config(&self) -> Result<ClientConfig, (&'static str, String)> {
        let builder = builder();
        let of_authority = |error| ("ca_file", error);
        let builder = match &self.ca_file {
            Some(file) => builder.with_root_certificates(authorities(file).map_err(of_authority)?),
            None => builder.with_platform_verifier().map_err(|error| {
                let problem = "cannot use the certificate authorities of this system";
                of_authority(format!("{problem}: {error}; name some with `ca_file`"))
            })?,
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
pub(super) fn without_tls() -> ClientConfig {
    builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

/// Makes a builder with the crypto provider that is also used for the connection to the API server.
fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions' cipher suites")
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
