//! TLS: a certificate and its key from files, which are read again when they change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{task::spawn_blocking, time::sleep};
use tokio_rustls::TlsAcceptor;

use crate::regular_file;

/// Interval of checks for changed files. The delay is harmless, because certificates are renewed long before they expire.
const LOOK: Duration = Duration::from_secs(10);

/// Two PEM files. The first contains the certificate, followed by the intermediate certificates. The second contains the private
/// key.
type Files = [PathBuf; 2];

/// Certificate in use; clones share it.
#[derive(Clone)]
pub(super) struct Certificate {
    files: Files,
    config: Arc<ArcSwap<ServerConfig>>,
}

fn read(files: &Files) -> io::Result<ServerConfig> {
    let read = |key: &str, path: &Path| {
        regular_file::read(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read [http] tls {key} {}: {error}", path.display()))
        })
    };
    let (cert, key) = (read("cert_file", &files[0])?, read("key_file", &files[1])?);
    parse(&cert, &key).map_err(|error| {
        let [cert, key] = files.each_ref().map(|file| file.display());
        io::Error::other(format!(
            "[http] tls: expected a PEM certificate in {cert} and its unencrypted private key in {key}: {error}"
        ))
    })
}

fn stamps(files: &Files) -> [Option<SystemTime>; 2] {
    files.each_ref().map(|file| fs::metadata(file).and_then(|meta| meta.modified()).ok())
}

/// Returns the TLS configuration from two PEM texts.
fn parse(cert: &[u8], key: &[u8]) -> Result<ServerConfig, Box<dyn std::error::Error>> {
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(config)
}

impl Certificate {
    /// Loads a certificate from both files. Blocks briefly.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is invalid. The error names the file.
    pub(super) fn load(files: Files) -> io::Result<Self> {
        let config = Arc::new(ArcSwap::from_pointee(read(&files)?));
        Ok(Self { files, config })
    }

    /// Returns the acceptor for handshakes with the current certificate.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Checks the files of the certificate until the future is dropped. If a file has changed, loads the certificate again. If the
    /// new files are invalid, tries again at the next check.
    pub(super) async fn follow(self) {
        let mut taken = stamps(&self.files);
        loop {
            sleep(LOOK).await;
            let now = stamps(&self.files);
            if now == taken {
                continue;
            }
            let files = self.files.clone();
            match spawn_blocking(move || read(&files)).await.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(config) => {
                    self.config.store(Arc::new(config));
                    taken = now;
                    tracing::info!(cert_file = %self.files[0].display(), "loaded the new certificate");
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot load the new certificate; the previous one stays in use");
                }
            }
        }
    }
}
