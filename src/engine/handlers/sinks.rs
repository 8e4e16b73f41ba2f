//! Creates handlers that connect to other systems, from their configuration.

use std::{io, sync::Arc};

use crate::{
    cloud_event::Formatter,
    config::{ExecOptions, HandlerConfig, KafkaOptions, NatsOptions, WebhookOptions},
    delivery::worker::OpenAsync,
    handler::{AsyncHandler, HandlerError, exec::Exec, webhook::Webhook},
};

/// Creates a webhook. A request may contain several events if a batch may contain several.
pub(super) fn webhook(options: &WebhookOptions, plan: &HandlerConfig, formatter: Formatter) -> io::Result<OpenAsync> {
    let is_batched = plan.batch().max_events > 1;
    let webhook = Webhook::new(options.clone(), is_batched, plan.options.timeout, formatter);
    Ok(shared(Arc::new(webhook.map_err(io::Error::other)?)))
}

/// Creates a handler for NATS. The handler connects when it gets the first batch.
#[cfg(feature = "nats")]
pub(super) fn nats(options: &NatsOptions, formatter: Formatter) -> io::Result<OpenAsync> {
    let options = options.clone();
    opener(move || crate::handler::nats::NatsHandler::new(options.clone(), formatter.clone()))
}

/// Fails with the name of the missing feature.
#[cfg(not(feature = "nats"))]
pub(super) fn nats(_: &NatsOptions, _: Formatter) -> io::Result<OpenAsync> {
    Err(io::Error::other(format!("type: {}", crate::build_info::lacking("nats"))))
}

/// Creates the handler `name`, which runs a program.
pub(super) fn exec(options: &ExecOptions, name: &str, formatter: Formatter) -> OpenAsync {
    shared(Arc::new(Exec::new(options.clone(), name, formatter)))
}

/// Creates a handler for Kafka. The handler connects when it gets the first batch.
#[cfg(feature = "kafka")]
pub(super) fn kafka(options: &KafkaOptions, plan: &HandlerConfig, formatter: Formatter) -> io::Result<OpenAsync> {
    let (options, timeout) = (options.clone(), plan.options.timeout);
    let is_total = plan.options.order == crate::config::DeliveryOrder::Total;
    opener(move || crate::handler::kafka::KafkaHandler::new(options.clone(), timeout, is_total, formatter.clone()))
}

/// Fails with the name of the missing feature.
#[cfg(not(feature = "kafka"))]
pub(super) fn kafka(_: &KafkaOptions, _: &HandlerConfig, _: Formatter) -> io::Result<OpenAsync> {
    Err(io::Error::other(format!("type: {}", crate::build_info::lacking("kafka"))))
}

/// Returns an opener that gives the same handler to all threads.
pub(super) fn shared(handler: Arc<dyn AsyncHandler>) -> OpenAsync {
    Arc::new(move || Ok(Arc::clone(&handler)))
}

/// Returns an opener that makes a new handler for each thread. First makes one handler, to find an invalid option early.
fn opener<H: AsyncHandler>(make: impl Fn() -> Result<H, String> + Send + Sync + 'static) -> io::Result<OpenAsync> {
    make().map_err(io::Error::other)?;
    Ok(Arc::new(move || Ok(Arc::new(make().map_err(HandlerError::Failed)?))))
}
