//! Starts and stops watching types while the engine runs: watches each type of the command line in turn.
//!
//! `cargo run --example start_and_stop -- configmaps deployments.apps`

use std::time::Duration;

use actix::System;
use deltabus::{Engine, EngineBuilder, EngineError};

fn main() -> Result<(), EngineError> {
    let types: Vec<String> = std::env::args().skip(1).collect();
    for (name, objects) in System::new().block_on(one_by_one(Engine::builder(), &types))? {
        println!("{name}: {objects} objects");
    }
    Ok(())
}

/// Watches one type after the other, and returns the number of objects of each.
pub(crate) async fn one_by_one(builder: EngineBuilder, types: &[String]) -> Result<Vec<(String, u64)>, EngineError> {
    let engine = builder.start().await?;
    let mut counts = Vec::new();
    for name in types {
        // Handlers get the existing objects as `added`, cause `reload`. Other types are not affected.
        let entry = engine.watch_type(name, |options| options.mode = deltabus::Mode::Metadata)?;
        if !engine.wait_for_sync_within(Duration::from_secs(10)).await[&entry] {
            eprintln!("{name} is not in sync yet");
        }
        let objects = engine.listers(&entry).iter().map(deltabus::Lister::len).sum();
        counts.push((name.clone(), objects));
        // Handlers now get each object as `removed`.
        engine.unwatch(&entry)?;
    }
    engine.stop().await;
    Ok(counts)
}
