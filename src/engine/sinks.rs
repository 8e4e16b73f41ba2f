//! Makes handlers that speak to other systems, of their configuration.

use std::{fmt::Display, io, sync::Arc};

use super::handlers::pace::Pace;
use crate::{
    cloud_event::Encoder,
    config::{DeliveryOrder, NatsSink, WebhookSink},
    handler::{AsyncHandler, asynchronous::OpenAsync, nats::NatsHandler, webhook::Webhook},
};

/// Makes a webhook. Several events are one request where its batches may have several.
pub(super) fn webhook(sink: &WebhookSink, pace: &Pace, encoder: Encoder) -> io::Result<OpenAsync> {
    let options = sink.options(pace.batch.max_events > 1, pace.timeout).map_err(|problems| refused(&problems))?;
    let webhook: Arc<dyn AsyncHandler> = Arc::new(Webhook::new(options, encoder).map_err(io::Error::other)?);
    Ok(Box::new(move || Ok(Arc::clone(&webhook))))
}

/// Makes a handler for NATS, of the cluster of this name; it connects with its first batch.
pub(super) fn nats(sink: &NatsSink, cluster: &str, pace: &Pace, encoder: Encoder) -> io::Result<OpenAsync> {
    let is_total = pace.order == DeliveryOrder::Total;
    let options = sink.options(cluster, is_total).map_err(|problems| refused(&problems))?;
    Ok(Box::new(move || Ok(Arc::new(NatsHandler::new(options.clone(), encoder.clone())))))
}

/// Says what a check of the configuration would have: it has let this through.
fn refused<K: AsRef<str>>(problems: &[(Vec<K>, impl Display)]) -> io::Error {
    let problem = |(keys, message): &(Vec<K>, _)| {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        format!("{}: {message}", keys.join("."))
    };
    io::Error::other(problems.iter().map(problem).collect::<Vec<_>>().join("; "))
}
