//! Uses a function as a handler: prints each deleted pod, and whether its deletion was seen or found by a list.
//!
//! `cargo run --example closure_handler`

use std::future::Future;

use actix::System;
use deltabus::{Change, Engine, EngineBuilder, EngineError, HandlerOptions, Notification};
use k8s_openapi::api::core::v1::Pod;

fn main() -> Result<(), EngineError> {
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    System::new().block_on(watch_deletions(Engine::builder(), |line| println!("{line}"), ctrl_c))
}

/// Reports each deletion as a line, until `done`.
pub(crate) async fn watch_deletions(
    builder: EngineBuilder,
    mut say: impl FnMut(String) + Send + 'static,
    done: impl Future<Output = ()>,
) -> Result<(), EngineError> {
    // The function runs on its own thread and may block. A failed batch is retried as set in the options.
    let on_change = move |notification: &Notification| {
        for event in notification.events() {
            if let Change::Deleted { object, tombstone, .. } = &event.record.change {
                let how = if *tombstone { "was gone when we looked again" } else { "was deleted" };
                say(format!("{} {how}", object.key()));
            }
        }
        Ok(())
    };
    let builder = builder.watch::<Pod>().on_change("deletions", HandlerOptions::default(), on_change);
    let engine = builder.start().await?;
    done.await;
    engine.stop().await;
    Ok(())
}
