//! A TLS proxy in front of a real API server. It can replace a text in the server's answers by another of the same length.
//! It uses the server's own certificate.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

type Lies = Arc<Mutex<Vec<(String, String)>>>;

/// A running proxy; dropping it stops it.
pub(crate) struct Forger {
    /// Address for clients.
    pub(crate) address: SocketAddr,
    lies: Lies,
    _runtime: Runtime,
}

impl Forger {
    /// Starts a proxy to `upstream`; its keys are in a directory: `server.crt`, `server.key`, `ca.crt`.
    pub(crate) fn start(upstream: SocketAddr, keys: &Path) -> Self {
        let runtime = Runtime::new().expect("threads can be started");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a loopback port is free");
        let address = listener.local_addr().expect("it is bound");
        let (acceptor, connector) = (acceptor(keys), connector(keys));
        let lies = Lies::default();
        let told = Arc::clone(&lies);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, connector, lies) = (acceptor.clone(), connector.clone(), Arc::clone(&told));
                // A failed connection is closed, as on the server.
                tokio::spawn(async move { forward(client, upstream, &acceptor, &connector, &lies).await.ok() });
            }
        });
        Self { address, lies, _runtime: runtime }
    }

    /// Replaces `truth` by `lie` in the server's later answers, if it is within one read of a connection.
    pub(crate) fn tell(&self, truth: &str, lie: &str) {
        assert_eq!(truth.len(), lie.len(), "the length of a chunk stands before it");
        self.lies.lock().expect("not poisoned").push((truth.to_owned(), lie.to_owned()));
    }
}

fn acceptor(keys: &Path) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(keys.join("server.crt")).expect("the cluster has a certificate");
    let chain = chain.collect::<Result<_, _>>().expect("PEM");
    let key = PrivateKeyDer::from_pem_file(keys.join("server.key")).expect("the cluster has a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    let config = config.with_no_client_auth().with_single_cert(chain, key).expect("they belong together");
    TlsAcceptor::from(Arc::new(config))
}

fn connector(keys: &Path) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(keys.join("ca.crt")).expect("the cluster has an authority");
    roots.add(authority).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them");
    TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

async fn forward(
    client: TcpStream,
    upstream: SocketAddr,
    acceptor: &TlsAcceptor,
    connector: &TlsConnector,
    lies: &Lies,
) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    let client = acceptor.accept(client).await?;
    let server = connector.connect(upstream.ip().into(), server).await?;
    let (mut from_client, to_client) = tokio::io::split(client);
    let (from_server, mut to_server) = tokio::io::split(server);
    tokio::select! {
        ended = tokio::io::copy(&mut from_client, &mut to_server) => ended.map(drop),
        ended = forge(from_server, to_client, lies) => ended,
    }
}

async fn forge(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, lies: &Lies) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let said = &mut buffer[..read];
        for (truth, lie) in lies.lock().expect("not poisoned").iter() {
            for place in 0..said.len() {
                if said[place..].starts_with(truth.as_bytes()) {
                    said[place..place + lie.len()].copy_from_slice(lie.as_bytes());
                }
            }
        }
        to.write_all(said).await?;
        to.flush().await?;
    }
}
