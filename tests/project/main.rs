//! What the project says of itself: layers, documents and examples.

mod architecture;
mod docs;
mod examples;
#[path = "../support/mod.rs"]
mod support;
