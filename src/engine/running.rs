//! An engine at work, and its end.

use std::{net::SocketAddr, ops::Deref, time::Duration};

use futures_util::future::join_all;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{EngineError, StopReport, auxiliary::Auxiliary, conductor::Conductor, handle::EngineHandle};
use crate::{mutex::lock, serve::Server, supervisor::actor::StopUnit};

/// How often is looked whether no change of units is under way any more.
const LOOK: Duration = Duration::from_millis(20);

/// An engine at work, and the means to end it. Dropping it stops nothing: see [`RunningEngine::stop`].
pub struct RunningEngine {
    handle: EngineHandle,
    servers: Vec<Server>,
    conducting: JoinHandle<()>,
}

impl Deref for RunningEngine {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.handle
    }
}

impl RunningEngine {
    pub(super) fn new(handle: EngineHandle, servers: Vec<Server>, conducting: JoinHandle<()>) -> Self {
        Self { handle, servers, conducting }
    }

    /// Returns a handle that others may keep.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Returns where HTTP is served: `[http] listen` first.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Waits until the engine cannot go on; it can as long as no entry has `on_missing = "fail"`. The wait can be given
    /// up and begun again.
    pub async fn failed(&self) -> EngineError {
        let mut failed = self.conductor.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(missing) => EngineError::Missing(missing.clone().unwrap_or_default()),
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
        let left = within.saturating_sub(started.elapsed()).max(Duration::from_millis(100));
        let report = delivery.stop(left, &conductor.registry).await;
        conductor.arbiters.stop();
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
