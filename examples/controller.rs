//! A controller that writes the number of `ReplicaSets` of each Deployment into an annotation of the Deployment.
//!
//! `cargo run --example controller`; on Ctrl-C or SIGTERM it finishes the queued work first.

use actix::{Actor, Context, Handler, System};
use deltabus::{
    ClusterAccess, Config, Engine, FieldPath, HandlerOptions, Initial, Lister, Notification, Stopped, WorkQueue,
};
use futures_util::FutureExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, api::Patch, api::PatchParams};
use serde_json::json;
use std::{error::Error, future::Future, time::Duration};
use tokio::signal::{ctrl_c, unix};

const OWNS: &str = "example.com/owns";
const OWNER: &str = "metadata.ownerReferences[*].uid";
pub(crate) const CONFIG: &str = r#"http.listen = ""
resources.owners = { match = ["deployments.apps"], index = ["metadata.uid"], resync = "10m" }
resources.owned = { match = ["replicasets.apps"], index = ["metadata.ownerReferences[*].uid"] }"#;

struct Enqueue(WorkQueue<String>, FieldPath);
impl Actor for Enqueue {
    type Context = Context<Self>;
}

impl Handler<Notification> for Enqueue {
    type Result = Result<(), Stopped>;
    /// Queues the uids of the changed object and of its current and previous owners.
    fn handle(&mut self, batch: Notification, _: &mut Context<Self>) -> Self::Result {
        for event in batch.events() {
            for object in event.record.old().into_iter().chain(event.record.object()) {
                self.0.add(object.uid().to_owned());
                object.pluck(&self.1).into_iter().for_each(|owner| self.0.add(owner));
            }
        }
        Ok(())
    }
}

async fn count(uid: &str, client: &Client, owners: &Lister, owned: &Lister) -> Result<(), Box<dyn Error>> {
    let Some(object) = owners.by_index("metadata.uid", uid)?.pop() else { return Ok(()) };
    let owns = owned.by_index(OWNER, uid)?.len().to_string();
    let metadata = object.decode::<Deployment>()?.metadata;
    if metadata.annotations.unwrap_or_default().get(OWNS) != Some(&owns) {
        // The patch names the version that was read. If another client has written since, it is a conflict and is retried.
        let new = json!({"metadata": {"resourceVersion": metadata.resource_version, "annotations": {OWNS: owns}}});
        let api: Api<Deployment> = Api::namespaced(client.clone(), object.namespace());
        api.patch(object.name(), &PatchParams::default(), &Patch::Merge(new)).await?;
    }
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    System::new().block_on(control(Config::from_toml_str(CONFIG)?, async {
        let mut terminate = unix::signal(unix::SignalKind::terminate()).expect("it can be handled");
        tokio::select! { _ = terminate.recv() => {}, _ = ctrl_c() => {} }
    }))
}

pub(crate) async fn control(config: Config, stop: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    let client = ClusterAccess::load(&config.kube.access())?.client();
    let queue = WorkQueue::default();
    let enqueue = Enqueue(queue.clone(), FieldPath::parse(OWNER)?).start().recipient();
    let wish = HandlerOptions { initial: Initial::Send, resync: Duration::from_mins(10), ..HandlerOptions::default() };
    let engine = Engine::builder().config(config).handler("enqueue", wish, enqueue).start().await?;
    engine.wait_for_sync().await;
    let [owners, owned] = ["owners", "owned"].map(|entry| engine.listers(entry).pop().expect("it is in sync"));
    tokio::join!(stop.then(|()| queue.shut_down_with_drain()), async {
        while let Some(uid) = queue.take().await {
            match count(&uid, &client, &owners, &owned).await {
                Ok(()) => uid.finish(),
                Err(error) => eprintln!("{error}; again in {:?}", uid.retry()),
            }
        }
    });
    engine.stop().await;
    Ok(())
}
