//! Checks of the project itself: layers, documents and examples.

mod architecture;
mod public_api;
mod docs;
mod examples;
#[path = "../support/mod.rs"]
mod support;
