//! The command line from a user's view.

mod bench;
mod config;
mod credentials;
mod demo;
mod exit_codes;
mod get;
mod manifests;
mod rbac;
mod resources;
mod run;
mod status;
#[path = "../support/mod.rs"]
mod support;
mod tail;
mod test_command;
mod validate;
mod verify;
