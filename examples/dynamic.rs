//! Reads types by their kubectl names, without Rust types: counts the objects of each namespace.
//!
//! `cargo run --example dynamic -- pods deployments.apps certificates.cert-manager.io`

use std::{collections::BTreeMap, time::Duration};

use actix::System;
use deltabus::{Engine, EngineBuilder, EngineError};

/// Number of objects by type and namespace.
pub(crate) type Counts = BTreeMap<String, BTreeMap<String, usize>>;

fn main() -> Result<(), EngineError> {
    let types: Vec<String> = std::env::args().skip(1).collect();
    for (resource, by_namespace) in System::new().block_on(count(Engine::builder(), &types))? {
        println!("{resource}: {by_namespace:?}");
    }
    Ok(())
}

/// Counts the cached objects of some types, after the sync or after ten seconds.
pub(crate) async fn count(mut builder: EngineBuilder, types: &[String]) -> Result<Counts, EngineError> {
    for name in types {
        builder = builder.watch_type(name, |_| {});
    }
    let engine = builder.start().await?;
    for (entry, synced) in engine.wait_for_sync_within(Duration::from_secs(10)).await {
        if !synced {
            eprintln!("{entry} is not in sync yet");
        }
    }
    let mut counts = Counts::new();
    for watched in engine.registry().types() {
        let by_namespace = counts.entry(watched.resource.to_string()).or_default();
        for object in watched.lister().list(&deltabus::Selector::all()) {
            *by_namespace.entry(object.namespace().to_owned()).or_default() += 1;
        }
    }
    engine.stop().await;
    Ok(counts)
}
