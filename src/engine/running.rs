//! An engine at work, and its end.

use std::{net::SocketAddr, ops::Deref, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    EngineError, StopReport,
    auxiliary::Auxiliary,
    conductor::{Conductor, Fatal},
    handle::EngineHandle,
};
use crate::{
    informer::messages::StopUnit,
    mutex::lock,
    serve::HttpServer,
    subscribe::{
        frame::StreamFormat,
        hub::{Hub, SubscribeError},
        query::SubscriberQuery,
        subscriber::Subscriber,
    },
};

/// How often is looked whether no change of units is under way any more.
const LOOK: Duration = Duration::from_millis(20);
/// How long streams may take to read their end.
const STREAMS_END: Duration = Duration::from_secs(1);

/// An engine at work, and the means to end it. Dropping it stops nothing: see [`RunningEngine::stop`].
pub struct RunningEngine {
    handle: EngineHandle,
    servers: Vec<HttpServer>,
    hub: Arc<Hub>,
    conducting: JoinHandle<()>,
}

impl Deref for RunningEngine {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.handle
    }
}

impl RunningEngine {
    pub(super) fn new(
        handle: EngineHandle,
        servers: Vec<HttpServer>,
        hub: Arc<Hub>,
        conducting: JoinHandle<()>,
    ) -> Self {
        Self { handle, servers, hub, conducting }
    }

    /// Returns a handle that others may keep.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Returns where HTTP is served: `[http] listen` first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(HttpServer::address).collect()
    }

    /// Returns a stream of what happens, as `/v1/events` has it. Bounded by `[subscribe] max_subscribers`, as those are.
    ///
    /// # Errors
    /// When there are as many as may be, the engine stops, or the journal cannot be read.
    pub async fn subscribe(&self, query: SubscriberQuery, format: StreamFormat) -> Result<Subscriber, SubscribeError> {
        Subscriber::enter(&self.hub, query, format).await
    }

    /// Waits until the engine cannot go on: an entry with `on_missing = "fail"` names a type that is not served, or the
    /// state belongs to another cluster. The wait can be given up and begun again.
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

    /// Stops: no more requests to the API server, what was read is applied, what was applied is delivered, within
    /// `shutdown_timeout`. What is left is named (I4).
    pub async fn stop(self) -> StopReport {
        let conductor = &self.handle.conductor;
        let Some(delivery) = lock(&conductor.delivery).take() else { return StopReport::default() };
        let within = conductor.lock().known.config.shutdown_timeout;
        let started = Instant::now();
        self.conducting.abort();
        if timeout(within, stop_units(conductor)).await.is_err() {
            tracing::error!("units did not stop in time");
        }
        if let Err(error) = conductor.shared.journal.flush() {
            tracing::error!(%error, "failed to make the last changes durable: they are delivered after the next start");
        }
        let left = within.saturating_sub(started.elapsed()).max(Duration::from_millis(100));
        let report = delivery.stop(left, &conductor.registry).await;
        self.hub.close(Instant::now() + STREAMS_END).await;
        conductor.arbiters.stop();
        if let Err(error) = conductor.shared.journal.close() {
            tracing::error!(%error, "failed to close the state: the next start takes it up as after a crash");
        }
        report
    }
}

/// Stops what lists and watches, once no change of units is under way.
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
    join_all(units.into_iter().filter_map(|unit| unit.supervisor).map(|supervisor| async move {
        let _ended_by_itself = supervisor.send(StopUnit).await;
    }))
    .await;
}
