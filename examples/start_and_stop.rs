//! Starts and stops watching types while the engine runs: each type named on the command line for a while.
//!
//! `cargo run --example start_and_stop -- configmaps deployments.apps`

use std::time::Duration;

use actix::System;
use deltabus::engine::{Engine, EngineBuilder, EngineError};

fn main() -> Result<(), EngineError> {
    let types: Vec<String> = std::env::args().skip(1).collect();
    for (name, objects) in System::new().block_on(one_by_one(Engine::builder(), &types))? {
        println!("{name}: {objects} objects");
    }
    Ok(())
}

/// Watches one type after the other, and says how many objects each has.
pub(crate) async fn one_by_one(builder: EngineBuilder, types: &[String]) -> Result<Vec<(String, u64)>, EngineError> {
    let engine = builder.start().await?;
    let mut counts = Vec::new();
    for name in types {
        // Handlers hear of what is there as `added`, cause `reload`; others of its objects go on meanwhile.
        let entry = engine.watch_type(name, |options| options.mode = deltabus::config::Mode::Metadata)?;
        if !engine.wait_for_sync_within(Duration::from_secs(10)).await[&entry] {
            eprintln!("{name} is not in sync yet");
        }
        let objects = engine.listers(&entry).iter().map(deltabus::lister::Lister::len).sum();
        counts.push((name.clone(), objects));
        // And now that each of them was `removed`.
        engine.unwatch(&entry)?;
    }
    engine.stop().await;
    Ok(counts)
}
