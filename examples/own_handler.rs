//! Uses an actix actor as a handler: counts the restarts of containers by namespace.
//!
//! `cargo run --example own_handler`

use std::{collections::BTreeMap, future::Future};

use actix::{Actor, Context, Handler, System};
use deltabus::{Change, Config, Engine, EngineError, FieldPath, HandlerOptions, Notification, Object, Stopped};

struct Restarts<F> {
    path: FieldPath,
    by_namespace: BTreeMap<String, u64>,
    tell: F,
}

impl<F: Unpin + 'static> Actor for Restarts<F> {
    type Context = Context<Self>;
}

impl<F: FnMut(&BTreeMap<String, u64>) + Unpin + 'static> Handler<Notification> for Restarts<F> {
    /// `Ok` acknowledges the batch. `Err` means that the handler has ended.
    type Result = Result<(), Stopped>;

    fn handle(&mut self, notification: Notification, _ctx: &mut Self::Context) -> Self::Result {
        for event in notification.events() {
            let Change::Updated { old, object, .. } = &event.record.change else { continue };
            let count = |pod: &Object| pod.pluck(&self.path).iter().filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
            *self.by_namespace.entry(object.namespace().to_owned()).or_default() +=
                count(object).saturating_sub(count(old));
        }
        (self.tell)(&self.by_namespace);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::from_toml_str("[resources.pods]\nmatch = [\"pods\"]\n")?;
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    Ok(System::new().block_on(count_restarts(config, |counts| println!("{counts:?}"), ctrl_c))?)
}

/// Reports the counts after every batch, until `done`.
pub(crate) async fn count_restarts(
    config: Config,
    tell: impl FnMut(&BTreeMap<String, u64>) + Unpin + 'static,
    done: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    let path = FieldPath::parse("status.containerStatuses[*].restartCount").expect("a path");
    let restarts = Restarts { path, by_namespace: BTreeMap::new(), tell }.start().recipient();
    let engine =
        Engine::builder().config(config).handler("restarts", HandlerOptions::default(), restarts).start().await?;
    done.await;
    engine.stop().await;
    Ok(())
}
