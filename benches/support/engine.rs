//! The engine as what is measured.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]

use std::{
    error::Error,
    pin::pin,
    time::{Duration, Instant},
};

use deltabus::{
    config::Config,
    engine::{Engine, RunningEngine},
    list_watch::kube::ClusterAccess,
};

use crate::support::observer::{Meter, Phase, report, report_progress};

/// The handler in [`CONFIG`].
pub(crate) const HANDLER: &str = r#"type = "blackhole""#;

/// As `deltabus run` has it, with one handler; no HTTP server.
pub(crate) const CONFIG: &str = r#"
    [resources.pods]
    match = ["pods"]

    [handlers.out]
    type = "blackhole"
"#;

/// Time for an engine to come to rest before its memory is looked at.
pub(crate) const REST: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Lets an engine of that configuration see so many pods and then so many updates.
pub(crate) fn engine(access: ClusterAccess, config: &str, pods: u64, events: u64) -> Result<(), Box<dyn Error>> {
    let mut meter = Meter::start();
    let mut config = Config::from_toml_str(config)?;
    config.http.listen = None;
    actix::System::new().block_on(async {
        let began = Instant::now();
        let engine = Engine::builder().config(config).cluster(access).start().await?;
        let objects = || engine.registry().views().first().map_or(0, |view| view.objects);
        let mut synced = pin!(engine.wait_for_sync());
        while actix_rt::time::timeout(LOOK_EVERY, &mut synced).await.is_err() {
            report_progress(objects());
        }
        report_progress(objects());
        let wall = began.elapsed();
        actix_rt::time::sleep(REST).await;
        let view = || engine.registry().views().swap_remove(0);
        let used = || usize::try_from(view().bytes).unwrap_or_default();
        assert_eq!(view().objects, pods);
        report(Phase { used: used(), ..meter.lap(wall) });
        let wall = see_updates(&engine, events).await;
        actix_rt::time::sleep(REST).await;
        report(Phase { used: used(), ..meter.lap(wall) });
        Ok(())
    })
}

/// Waits until so many updates were applied and delivered.
async fn see_updates(engine: &RunningEngine, events: u64) -> Duration {
    let updated = || engine.registry().views()[0].events.updated;
    while updated() == 0 {
        actix_rt::time::sleep(LOOK_EVERY).await;
    }
    let began = Instant::now();
    report_progress(updated());
    let is_delivered = || engine.handlers().iter().all(|handler| handler.queued == 0);
    while updated() < events || !is_delivered() {
        actix_rt::time::sleep(LOOK_EVERY).await;
        report_progress(updated());
    }
    began.elapsed()
}
