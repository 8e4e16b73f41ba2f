//! Defines an index in Rust: finds the pods that run an image, with any tag.
//!
//! `cargo run --example custom_index -- nginx`

use actix::System;
use deltabus::{Engine, EngineBuilder, FieldPath, IndexFunc, Object};
use k8s_openapi::api::core::v1::Pod;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).unwrap_or_else(|| "nginx".to_owned());
    for name in System::new().block_on(pods_of_image(Engine::builder(), &image))? {
        println!("{name}");
    }
    Ok(())
}

/// Returns the names of the pods that run an image, as `namespace/name`, sorted.
pub(crate) async fn pods_of_image(
    builder: EngineBuilder,
    image: &str,
) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let images = FieldPath::parse("spec.containers[*].image")?;
    let without_tag = move |pod: &Object| -> Vec<String> {
        let images = pod.pluck(&images).into_iter();
        images.map(|image| image.split([':', '@']).next().unwrap_or_default().to_owned()).collect()
    };
    let builder = builder.watch::<Pod>().index("pods", IndexFunc::custom("image", without_tag));
    let engine = builder.start().await?;
    engine.wait_for_sync().await;
    let pods = engine.lister("pods").ok_or("every server has pods")?;
    let keys = pods.index_keys("image", image)?;
    engine.stop().await;
    Ok(keys.iter().map(ToString::to_string).collect())
}
