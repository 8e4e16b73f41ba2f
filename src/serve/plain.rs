//! HTTP without TLS: connections are taken one by one, each a task.
//!
//! Not by `axum::serve`: what that keeps for a connection, HTTP/2 and upgrades included, is twice as much, and a stream is a
//! connection.

use std::{io, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{net::TcpListener, time::sleep};

/// Pause where no connection can be taken: there are as many files open as may be.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            Err(error) => {
                tracing::error!(%error, "failed to accept a connection, trying again");
                sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        // Events are small, and not to wait for the answer to those before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection has ended");
            }
        });
    }
}

/// Returns whether the one who connected has gone before it was taken.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
