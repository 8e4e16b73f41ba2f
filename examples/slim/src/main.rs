//! Uses deltabus as a slim library: one type, a function as a handler, and reads of the cache.
//!
//! `cargo run --package slim`

use actix::System;
use deltabus::{Engine, EngineError, HandlerOptions, Notification};
use k8s_openapi::api::core::v1::Pod;

fn main() -> Result<(), EngineError> {
    System::new().block_on(async {
        // The function runs on its own thread and may block. A failed batch is retried as set in the options.
        let on_change = |notification: &Notification| {
            for object in notification.events().iter().filter_map(|event| event.record.object()) {
                println!("{} has changed", object.key());
            }
            Ok(())
        };
        let builder = Engine::builder().watch::<Pod>().on_change("changes", HandlerOptions::default(), on_change);
        let engine = builder.start().await?;
        engine.wait_for_sync().await;
        let pods = engine.lister_of::<Pod>().map_or(0, |pods| pods.untyped().len());
        println!("{pods} pods");
        drop(tokio::signal::ctrl_c().await);
        engine.stop().await;
        Ok(())
    })
}
