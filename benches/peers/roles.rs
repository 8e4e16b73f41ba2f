//! What the processes do that are this program: serve, or be deltabus or a reflector of kube-rs.

#![expect(clippy::disallowed_methods, reason = "a bench asks the real clock")]

use std::{error::Error, fmt::Debug, fs, hash::Hash, time::Instant};

use deltabus::list_watch::kube::ClusterAccess;
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
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::de::DeserializeOwned;

use crate::{
    rows::Peer,
    support::{
        engine::{CONFIG, REST, engine},
        observer::{Meter, report},
        simulated::{SIMULATOR, simulator},
    },
};

/// Goes behind [`CONFIG`]; the default is to drop `metadata.managedFields`.
const DROP_NOTHING: &str = "drop = []";

/// Plays a role to its end.
pub(crate) fn play(role: &str, args: &[String]) -> Result<(), Box<dyn Error>> {
    let [url, authority, strip, pods, events] = args else {
        return match (role, args) {
            (SIMULATOR, [pods, diverse]) => simulator(pods.parse()?, diverse.parse()?),
            _ => Err(format!("unexpected role {role:?} {args:?}").into()),
        };
    };
    let task = Task { strip: strip.parse()?, pods: pods.parse()?, events: events.parse()? };
    let authorities = if url.starts_with("https:") {
        Some(vec![CertificateDer::from_pem_slice(&fs::read(authority)?)?.to_vec()])
    } else {
        None
    };
    if role == Peer::Deltabus.id() {
        let access = ClusterAccess::with_token(url, "bench", None, authorities)?;
        return deltabus(access, &task);
    }
    let mut config = Config::new(url.parse()?);
    config.root_cert = authorities;
    let (typed, dynamic) = (Peer::KubeTyped.id(), Peer::KubeDynamic.id());
    // As `#[tokio::main]` has it.
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        if role == typed {
            reflect::<Pod>(config, (), &task).await
        } else if role == dynamic {
            reflect::<DynamicObject>(config, ApiResource::erase::<Pod>(&()), &task).await
        } else {
            Err(format!("unexpected role {role:?}").into())
        }
    })
}

/// What a peer is to do.
struct Task {
    strip: bool,
    pods: usize,
    events: usize,
}

fn deltabus(access: ClusterAccess, task: &Task) -> Result<(), Box<dyn Error>> {
    let config = if task.strip {
        CONFIG.to_owned()
    } else {
        CONFIG.replace("[resources.pods]", &format!("[resources.pods]\n{DROP_NOTHING}"))
    };
    engine(access, &config, u64::try_from(task.pods)?, u64::try_from(task.events)?)
}

/// Keeps a store of the objects as kube-rs' documentation has it, with the default configuration.
async fn reflect<K>(config: Config, of: K::DynamicType, task: &Task) -> Result<(), Box<dyn Error>>
where
    K: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let mut meter = Meter::start();
    let began = Instant::now();
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
    assert_eq!(store.len(), task.pods);
    report(meter.lap(wall));
    let mut first = None;
    let mut seen = 0;
    while seen < task.events {
        if let Event::Apply(_) = events.next().await.ok_or("the watch has ended")?? {
            first.get_or_insert_with(Instant::now);
            seen += 1;
        }
    }
    let wall = first.map(|first| first.elapsed()).unwrap_or_default();
    tokio::time::sleep(REST).await;
    report(meter.lap(wall));
    Ok(())
}

async fn wait_for_sync<K>(
    events: &mut (impl Stream<Item = Result<Event<K>, watcher::Error>> + Unpin),
) -> Result<(), Box<dyn Error>> {
    while let Some(event) = events.next().await {
        if let Event::InitDone = event? {
            return Ok(());
        }
    }
    Err("the watch has ended".into())
}
