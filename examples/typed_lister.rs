//! Reads the cache as types of k8s-openapi: pods of each node, by index.
//!
//! `cargo run --example typed_lister`

use actix::System;
use deltabus::{config::Config, engine::Engine, lister::ReadError};
use k8s_openapi::api::core::v1::Pod;

pub(crate) const CONFIG: &str = r#"
    [resources.pods]
    match = ["pods"]
    index = ["spec.nodeName"]
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::from_toml_str(CONFIG)?;
    config.http.listen = None;
    for (node, pods) in System::new().block_on(pods_by_node(config))? {
        println!("{node}");
        for pod in pods {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            println!("  {:<60} {phase}", pod.metadata.name.unwrap_or_default());
        }
    }
    Ok(())
}

/// Reads the pods that are on a node, once the cache is in sync.
pub(crate) async fn pods_by_node(config: Config) -> Result<Vec<(String, Vec<Pod>)>, Box<dyn std::error::Error>> {
    let engine = Engine::builder(config).start().await?;
    engine.wait_for_sync().await;
    let mut by_node = Vec::new();
    for lister in engine.listers("pods") {
        // One version answers all that is read inside.
        let read = lister.snapshot(|view| {
            let nodes = view.index_values("spec.nodeName").into_iter();
            nodes.map(|node| Ok((view.by_index("spec.nodeName", &node)?, node))).collect::<Result<Vec<_>, ReadError>>()
        })?;
        for (objects, node) in read {
            let pods = objects.iter().map(|object| object.decode()).collect::<Result<Vec<Pod>, _>>()?;
            by_node.push((node, pods));
        }
    }
    engine.stop().await;
    Ok(by_node)
}
