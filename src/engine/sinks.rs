//! Creates handlers that connect to other systems, from their configuration.

use std::{io, sync::Arc};

use crate::{
    cloud_event::Formatter,
    config::{ExecSink, HandlerConfig, KafkaSink, NatsSink, WebhookSink},
    delivery::worker::OpenAsync,
    handler::{AsyncHandler, exec::Exec, webhook::Webhook},
};

/// Creates a webhook. A request may contain several events if a batch may contain several.
pub(super) fn webhook(sink: &WebhookSink, plan: &HandlerConfig, formatter: Formatter) -> io::Result<OpenAsync> {
    let options = sink.options(plan.batch().max_events > 1, plan.options.timeout).map_err(io::Error::other)?;
    let webhook: Arc<dyn AsyncHandler> = Arc::new(Webhook::new(options, formatter).map_err(io::Error::other)?);
    Ok(Arc::new(move || Ok(Arc::clone(&webhook))))
}

/// Creates a handler for NATS, for the cluster of this name; it connects with its first batch.
#[cfg(feature = "nats")]
pub(super) fn nats(sink: &NatsSink, cluster: &str, formatter: Formatter) -> io::Result<OpenAsync> {
    let options = sink.options(cluster).map_err(io::Error::other)?;
    Ok(Arc::new(move || Ok(Arc::new(crate::handler::nats::NatsHandler::new(options.clone(), formatter.clone())))))
}

/// Fails with the name of the missing feature.
#[cfg(not(feature = "nats"))]
pub(super) fn nats(_: &NatsSink, _: &str, _: Formatter) -> io::Result<OpenAsync> {
    Err(io::Error::other(format!("type: {}", crate::build_info::lacking("nats"))))
}

/// Creates a handler of this name that runs a program, for the cluster of this name.
pub(super) fn exec(sink: &ExecSink, name: &str, cluster: &str, formatter: Formatter) -> OpenAsync {
    let exec: Arc<dyn AsyncHandler> = Arc::new(Exec::new(sink.clone(), name, cluster, formatter));
    Arc::new(move || Ok(Arc::clone(&exec)))
}

/// Creates a handler for Kafka, for the cluster of this name; it connects with its first batch.
#[cfg(feature = "kafka")]
pub(super) fn kafka(
    sink: &KafkaSink,
    cluster: &str,
    plan: &HandlerConfig,
    formatter: Formatter,
) -> io::Result<OpenAsync> {
    let is_total = plan.options.order == crate::config::DeliveryOrder::Total;
    let options = sink.options(cluster, plan.options.timeout, is_total).map_err(io::Error::other)?;
    Ok(Arc::new(move || Ok(Arc::new(crate::handler::kafka::KafkaHandler::new(options.clone(), formatter.clone())))))
}

/// Fails with the name of the missing feature.
#[cfg(not(feature = "kafka"))]
pub(super) fn kafka(_: &KafkaSink, _: &str, _: &HandlerConfig, _: Formatter) -> io::Result<OpenAsync> {
    Err(io::Error::other(format!("type: {}", crate::build_info::lacking("kafka"))))
}
