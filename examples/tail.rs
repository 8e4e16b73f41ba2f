//! Prints every change of the types you name, like `kubectl get TYPE -A -w` for many types at once.
//!
//! `cargo run --example tail -- pods deployments.apps`

use std::future::Future;

use actix::System;
use deltabus::{Config, ConfigErrors, Engine, EngineError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pods = ["pods".to_owned()];
    let types: Vec<String> = std::env::args().skip(1).collect();
    let config = config(if types.is_empty() { &pods } else { &types })?;
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    Ok(System::new().block_on(tail(config, ctrl_c))?)
}

/// Returns the configuration that `deltabus run` would read from a file.
pub(crate) fn config(types: &[String]) -> Result<Config, ConfigErrors> {
    let mut config = Config::from_toml_str(&format!(
        "[resources.all]\nmatch = {types:?}\n[handlers.out]\ntype = \"stdout\"\ninitial = \"send\"\n"
    ))?;
    config.http.listen = None;
    Ok(config)
}

/// Runs an engine until `done`, and delivers the events accepted by then.
pub(crate) async fn tail(config: Config, done: impl Future<Output = ()>) -> Result<(), EngineError> {
    let engine = Engine::builder().config(config).start().await?;
    done.await;
    engine.stop().await;
    Ok(())
}
