//! TLS: a certificate and its key from files, read again when they change.

use std::{
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use axum::Router;
use axum_server::tls_rustls::RustlsConfig;
use tokio::time::sleep;

/// How often is looked whether the files have changed: a certificate is renewed long before its end.
const LOOK: Duration = Duration::from_secs(10);

/// Where the certificate is; both are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and behind it those that lead to the CA's.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

impl TlsFiles {
    /// Reads both. Blocks on the disk for a moment.
    ///
    /// # Errors
    /// A file that cannot be read, or is not what it should be; the error names it.
    pub(super) async fn load(&self) -> io::Result<RustlsConfig> {
        // A provider that was installed before is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        self.readable()?;
        RustlsConfig::from_pem_file(&self.cert_file, &self.key_file).await.map_err(|error| self.unusable(&error))
    }

    fn readable(&self) -> io::Result<()> {
        for (key, path) in [("cert_file", &self.cert_file), ("key_file", &self.key_file)] {
            fs::File::open(path).map_err(|error| {
                io::Error::new(error.kind(), format!("[http] tls {key} {} cannot be read: {error}", path.display()))
            })?;
        }
        Ok(())
    }

    fn unusable(&self, error: &io::Error) -> io::Error {
        let (cert, key) = (self.cert_file.display(), self.key_file.display());
        let message = format!(
            "[http] tls: expected a PEM certificate in {cert} and its unencrypted private key in {key}: {error}"
        );
        io::Error::new(error.kind(), message)
    }

    /// Takes over what the files say whenever they change; a pair that does not fit is tried again.
    async fn follow(&self, config: &RustlsConfig) {
        let mut taken = self.stamps();
        loop {
            sleep(LOOK).await;
            let now = self.stamps();
            if now == taken {
                continue;
            }
            match config.reload_from_pem_file(&self.cert_file, &self.key_file).await {
                Ok(()) => {
                    taken = now;
                    tracing::info!(cert_file = %self.cert_file.display(), "took over the new certificate");
                }
                Err(error) => {
                    let error = self.unusable(&error);
                    tracing::warn!(%error, "failed to take over a new certificate, the one before stays");
                }
            }
        }
    }

    fn stamps(&self) -> [Option<SystemTime>; 2] {
        let stamp = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        [stamp(&self.cert_file), stamp(&self.key_file)]
    }
}

/// Serves until it fails.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    files: TlsFiles,
    config: RustlsConfig,
) -> io::Result<()> {
    let server = axum_server::from_tcp_rustls(listener, config.clone())?;
    tokio::select! {
        ended = server.serve(router.into_make_service()) => ended,
        () = files.follow(&config) => Ok(()),
    }
}
