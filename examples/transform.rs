//! Changes objects before they are cached or sent: removes the values of environment variables from pods.
//!
//! `cargo run --example transform`

use actix::System;
use deltabus::{Engine, EngineBuilder, Selector, Transform};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for pod in System::new().block_on(pods_without_values(Engine::builder()))? {
        println!("{}: {:?}", pod.metadata.name.unwrap_or_default(), pod.spec.map(|spec| spec.containers));
    }
    Ok(())
}

/// Hides the values. An error fails a list; in a watch it drops the event.
fn hide_values(pod: &mut Value) -> Result<(), &'static str> {
    let spec = pod.get_mut("spec").ok_or("a pod has a spec")?;
    let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(value) = variable.get_mut("value") {
                *value = "***".into();
            }
        }
    }
    Ok(())
}

/// Returns the pods from the cache.
pub(crate) async fn pods_without_values(builder: EngineBuilder) -> Result<Vec<Pod>, Box<dyn std::error::Error>> {
    let builder = builder.watch::<Pod>().transform("pods", Transform::of_values(hide_values));
    let engine = builder.start().await?;
    engine.wait_for_sync().await;
    let pods = engine.lister_of::<Pod>().ok_or("every server has pods")?.list(&Selector::all());
    engine.stop().await;
    Ok(pods?)
}
