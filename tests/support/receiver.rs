//! A real HTTP server that records its requests, and certificates for it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Certificate of the client.
    pub(crate) peer: Option<Vec<u8>>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A function that answers a request; `None` means no answer at all.
type Answer = dyn Fn(&Seen) -> Option<Response<String>> + Send + Sync;

/// A server on its own port.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start(
        tls: Option<ServerConfig>,
        answer: impl Fn(&Seen) -> Option<Response<String>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server =
            Self { address: listener.local_addr().unwrap(), seen: Arc::default(), connections: Arc::default() };
        let (seen, connections) = (Arc::clone(&server.seen), Arc::clone(&server.connections));
        let (answer, tls): (Arc<Answer>, _) = (Arc::new(answer), tls.map(|config| TlsAcceptor::from(Arc::new(config))));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.fetch_add(1, Ordering::SeqCst);
                let (seen, answer, tls) = (Arc::clone(&seen), Arc::clone(&answer), tls.clone());
                tokio::spawn(async move {
                    let Some(tls) = tls else { return serve(stream, None, seen, answer).await };
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let peer = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
                    serve(stream, peer, seen, answer).await;
                });
            }
        });
        server
    }

    /// Starts a server with a fixed answer.
    pub(crate) async fn answering(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Self {
        let headers = headers.to_vec();
        Self::start(None, move |_| {
            let mut answer = Response::builder().status(status);
            for (name, value) in &headers {
                answer = answer.header(*name, *value);
            }
            Some(answer.body(body.to_owned()).unwrap())
        })
        .await
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Answers 200.
#[expect(clippy::unnecessary_wraps, reason = "others do not answer")]
pub(crate) fn fine(_: &Seen) -> Option<Response<String>> {
    Some(Response::new(String::new()))
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<Vec<u8>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<Answer>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, answer, peer) = (Arc::clone(&seen), Arc::clone(&answer), peer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (method, uri, version, headers) = (parts.method, parts.uri, parts.version, parts.headers);
            let request = Seen { method, uri, version, headers, body, peer };
            seen.lock().unwrap().push(request.clone());
            match answer(&request) {
                Some(answer) => Ok::<_, hyper::Error>(answer.map(Full::<Bytes>::from)),
                None => std::future::pending().await,
            }
        }
    });
    // disconnecting clients are part of the tests
    drop(auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
}

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct Signed {
    pub(crate) certificate: CertificateDer<'static>,
    pem: String,
    key: KeyPair,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn write(&self, file: &Path) {
        std::fs::write(file, self.0.pem()).unwrap();
    }

    /// Issues a certificate for a server with this name, or for a client.
    pub(crate) fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Signed { certificate: certificate.der().clone(), pem: certificate.pem(), key }
    }

    /// Returns the configuration of a server with this name; it requires a certificate of `clients`, if given.
    pub(crate) fn server(&self, name: &str, clients: Option<&Self>, protocols: &[&str]) -> ServerConfig {
        let Signed { certificate, key, .. } = self.sign(name, ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = match clients {
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.unwrap().with_client_cert_verifier(verifier)
            }
            None => builder.unwrap().with_no_client_auth(),
        };
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}

impl Signed {
    /// Replaces both files.
    pub(crate) fn write(&self, certificate: &Path, key: &Path) {
        for (file, content) in [(certificate, self.pem.clone()), (key, self.key.serialize_pem())] {
            replace(file, &content);
        }
    }
}

/// Replaces a file atomically.
pub(crate) fn replace(file: &Path, content: &str) {
    let next = file.with_extension("next");
    std::fs::write(&next, content).unwrap();
    std::fs::rename(&next, file).unwrap();
}
