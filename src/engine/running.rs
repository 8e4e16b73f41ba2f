//! Running engine, and its stop.

use std::{net::SocketAddr, ops::Deref, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    EngineError, StopReport,
    conductor::{Conductor, Fatal, auxiliary::Auxiliary},
    handle::EngineHandle,
};
use crate::{
    informer::actor::StopUnit,
    mutex::lock,
    serve::HttpServer,
    subscribe::{
        frame::StreamFormat,
        hub::{Hub, SubscribeError},
        judge::StreamClient,
        query::SubscriberQuery,
        subscriber::Subscriber,
    },
};

/// Interval between two checks for unfinished changes of units.
const LOOK: Duration = Duration::from_millis(20);
/// Time limit for subscribers to read the remaining events of their streams.
const STREAMS_END: Duration = Duration::from_secs(1);

/// Running engine that can be stopped. Dropping it stops nothing: see [`RunningEngine::stop`].
pub struct RunningEngine {
    pub(super) handle: EngineHandle,
    pub(super) servers: Vec<HttpServer>,
    pub(super) hub: Arc<Hub>,
    pub(super) conducting: JoinHandle<()>,
}

impl Deref for RunningEngine {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.handle
    }
}

impl RunningEngine {
    /// Returns a handle that can be kept and cloned.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Returns the addresses of the HTTP servers: `[http] listen` first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(HttpServer::address).collect()
    }

    /// Returns a stream of events, like `/v1/events`. It counts towards `[subscribe] max_subscribers`.
    ///
    /// # Errors
    /// Fails at the maximum number of subscribers, if the engine stops, or if the journal cannot be read.
    pub async fn subscribe(&self, query: SubscriberQuery, format: StreamFormat) -> Result<Subscriber, SubscribeError> {
        Subscriber::enter(&self.hub, StreamClient::default(), query, format).await
    }

    /// Waits until the engine cannot continue. Reasons are an entry with `on_missing = "fail"` whose type is not served, and a
    /// state directory of another cluster. The wait can be cancelled and repeated.
    pub async fn failed(&self) -> EngineError {
        let mut failed = self.conductor.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(fatal) => match fatal.clone() {
                Some(Fatal::State(error)) => EngineError::State(error),
                Some(Fatal::Missing(missing)) => EngineError::Missing(missing),
                None => EngineError::Stopped,
            },
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops the engine: ends requests to the API server, applies the received changes, and delivers their events, all within
    /// `shutdown_timeout`. Returns the undelivered events by name (E4).
    pub async fn stop(self) -> StopReport {
        let conductor = &self.handle.conductor;
        let Some(delivery) = lock(&conductor.delivery).take() else { return StopReport::default() };
        let within = conductor.lock().config.shutdown_timeout;
        let started = Instant::now();
        self.conducting.abort();
        if timeout(within, stop_units(conductor)).await.is_err() {
            tracing::error!("units did not stop in time");
        }
        if let Err(error) = conductor.shared.journal.flush() {
            tracing::error!(
                %error,
                "failed to make the last changes durable; undelivered ones are delivered after the next start, which \
                 reads lost changes from the API server again"
            );
        }
        let left = within.saturating_sub(started.elapsed()).max(Duration::from_millis(100));
        let report = delivery.stop(left, &conductor.registry).await;
        self.hub.close(Instant::now() + STREAMS_END).await;
        conductor.shared.arbiters.stop();
        if let Err(error) = conductor.shared.journal.close() {
            tracing::error!(%error, "failed to close the state: the next start recovers it as after a crash");
        }
        report
    }
}

/// Stops all informers, after the current changes of units.
async fn stop_units(conductor: &Conductor) {
    let auxiliaries = {
        let mut kept = lock(&conductor.auxiliaries);
        [kept.namespaces.take(), kept.definitions.take()]
    };
    join_all(auxiliaries.into_iter().flatten().map(Auxiliary::stop)).await;
    while conductor.lock().types.values().any(|kept| kept.busy) {
        sleep(LOOK).await;
    }
    let units = conductor.lock().units();
    // An error means that the supervisor has ended by itself.
    join_all(units.iter().filter_map(|unit| unit.supervisor.as_ref()).map(|supervisor| supervisor.send(StopUnit)))
        .await;
}
