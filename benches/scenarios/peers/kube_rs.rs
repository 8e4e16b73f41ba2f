//! Reflectors of kube-rs.

use std::{fmt::Debug, hash::Hash};

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, Resource, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;

use super::rows::Peer;
use crate::harness::{Meter, Outcome, REST, now};

/// Parameters of a reflector.
pub(super) struct Task {
    pub(super) strip: bool,
    pub(super) pods: u64,
    pub(super) events: u64,
}

/// Runs a reflector to its end.
pub(super) fn play(role: &str, url: &str, authorities: Option<Vec<Vec<u8>>>, task: &Task) -> Outcome<()> {
    let mut config = Config::new(url.parse()?);
    config.root_cert = authorities;
    let (typed, dynamic) = (Peer::KubeTyped.id(), Peer::KubeDynamic.id());
    // same runtime as `#[tokio::main]`
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        if role == typed {
            reflect::<Pod>(config, (), task).await
        } else if role == dynamic {
            reflect::<DynamicObject>(config, ApiResource::erase::<Pod>(&()), task).await
        } else {
            Err(format!("unexpected role {role:?}").into())
        }
    })
}

/// Keeps a store of the objects as in kube-rs' documentation, with the default configuration.
async fn reflect<K>(config: Config, of: K::DynamicType, task: &Task) -> Outcome<()>
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let mut meter = Meter::start();
    let began = now();
    let api = Api::<K>::all_with(Client::try_from(config)?, &of);
    let writer = Writer::<K>::new(of);
    let store = writer.as_reader();
    let strip = task.strip;
    let events = watcher(api, watcher::Config::default()).default_backoff().modify(move |object| {
        if strip {
            object.managed_fields_mut().clear();
        }
    });
    let mut events = Box::pin(events.reflect(writer));
    wait_for_sync(&mut events).await?;
    let wall = began.elapsed();
    tokio::time::sleep(REST).await;
    assert_eq!(store.len() as u64, task.pods);
    meter.report(wall, 0);
    let mut first = None;
    let mut seen = 0;
    while seen < task.events {
        if let Event::Apply(_) = events.next().await.ok_or("the watch has ended")?? {
            first.get_or_insert_with(now);
            seen += 1;
        }
    }
    let wall = first.map(|first| first.elapsed()).unwrap_or_default();
    tokio::time::sleep(REST).await;
    meter.report(wall, 0);
    Ok(())
}

async fn wait_for_sync<K>(events: &mut (impl Stream<Item = Result<Event<K>, watcher::Error>> + Unpin)) -> Outcome<()> {
    while let Some(event) = events.next().await {
        if let Event::InitDone = event? {
            return Ok(());
        }
    }
    Err("the watch has ended".into())
}
