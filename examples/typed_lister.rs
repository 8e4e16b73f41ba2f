//! Reads the cache as types of k8s-openapi: lists the pods of each node through an index.
//!
//! `cargo run --example typed_lister`

use actix::System;
use deltabus::{Engine, EngineBuilder};
use k8s_openapi::api::core::v1::Pod;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (node, pods) in System::new().block_on(pods_by_node(Engine::builder()))? {
        println!("{node}");
        for pod in pods {
            let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
            println!("  {:<60} {phase}", pod.metadata.name.unwrap_or_default());
        }
    }
    Ok(())
}

/// Returns the pods of each node, after the sync.
pub(crate) async fn pods_by_node(
    builder: EngineBuilder,
) -> Result<Vec<(String, Vec<Pod>)>, Box<dyn std::error::Error>> {
    let by_node = |pods: &mut deltabus::ResourceConfig| pods.index = vec!["spec.nodeName".to_owned()];
    let engine = builder.watch_type("pods", by_node).start().await?;
    engine.wait_for_sync().await;
    let pods = engine.lister_of::<Pod>().ok_or("every server has pods")?;
    let nodes = pods.untyped().snapshot(|view| view.index_values("spec.nodeName"));
    let read = nodes.into_iter().map(|node| {
        let pods = pods.by_index("spec.nodeName", &node)?;
        Ok((node, pods))
    });
    let read = read.collect();
    engine.stop().await;
    read
}
