//! The client: its configuration, and its reports on messages and brokers.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    error::KafkaError,
    message::DeliveryResult,
    producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer},
    types::RDKafkaErrorCode,
};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    task::spawn_blocking,
};

use super::{
    KafkaOptions,
    failure::code_of,
    message::Message,
    sent::{Answer, Report},
};
use crate::{handler::HandlerError, mutex::lock, secret::ExposeSecret as _};

/// Timeout of a request for the metadata of a topic.
const METADATA_WAIT: Duration = Duration::from_secs(3);

/// A client of one Kafka cluster. It reconnects to its brokers by itself. If it is dropped in an async runtime, another thread
/// closes it, because closing may block.
pub(super) struct Client {
    producer: Option<ThreadedProducer<Reporter>>,
    /// Topics that did not exist when a message was sent to them.
    missing: Mutex<BTreeSet<String>>,
}

/// Errors of the brokers and the network. The client reports them with a small delay.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    /// Last error; cleared when a message is stored.
    pub(super) last: Option<Arc<str>>,
    /// Number of errors that stopped all progress.
    pub(super) stops: u64,
    /// Set if this client must be replaced by a new client, which reads the secrets and files again.
    pub(super) is_over: bool,
}

impl Client {
    /// Makes a client, which connects in the background. Blocks while it reads files and secrets.
    ///
    /// # Errors
    /// Fails if an option is invalid.
    pub(super) fn new(options: &KafkaOptions, timeout: Duration, is_total: bool) -> Result<Self, HandlerError> {
        let reporter = Reporter { brokers: options.brokers.join(", "), ..Reporter::default() };
        let failed = |error: KafkaError| HandlerError::Failed(format!("failed to create the Kafka client: {error}"));
        let config = config(options, timeout, is_total)?;
        let producer = ThreadedProducer::from_config_and_context(&config, reporter).map_err(failed)?;
        Ok(Self { producer: Some(producer), missing: Mutex::default() })
    }

    fn producer(&self) -> &ThreadedProducer<Reporter> {
        self.producer.as_ref().expect("set until the client is dropped")
    }

    /// Returns the errors so far.
    pub(super) fn trouble(&self) -> watch::Ref<'_, Trouble> {
        self.producer().context().trouble.borrow()
    }

    /// Queues a message behind all queued messages of its partition. Returns the receiver of the result: the broker's answer, or an
    /// error of the client.
    pub(super) fn send(&self, message: &mut Message) -> Report {
        let (answer, report) = oneshot::channel();
        let mut record = BaseRecord::with_opaque_to(&message.topic, Box::new(answer));
        record.headers = message.headers.take();
        record.key = Some(message.key.as_str());
        record.payload = message.value();
        if let Err((error, record)) = self.producer().send(record) {
            let _is_awaited = record.delivery_opaque.send(Err(code_of(&error)));
        }
        report
    }

    /// Records a topic that does not exist yet.
    pub(super) fn miss(&self, topic: String) {
        lock(&self.missing).insert(topic);
    }

    /// Asks the brokers for the missing topics again, so that the client learns which of these topics exist now.
    pub(super) async fn look_again(&self) {
        let missing = std::mem::take(&mut *lock(&self.missing));
        for topic in missing {
            let producer = self.producer().clone();
            let looking = spawn_blocking(move || {
                // The result is not needed: the next message shows whether the topic exists.
                drop(producer.client().fetch_metadata(Some(&topic), METADATA_WAIT));
            });
            drop(looking.await);
        }
    }

    /// Waits for the next error that stops all progress; `stops` is the number of earlier errors of this kind. Returns the reason.
    pub(super) async fn stopped(&self, stops: u64) -> String {
        match self.producer().context().trouble.subscribe().wait_for(|trouble| trouble.stops != stops).await {
            Ok(trouble) => trouble.last.as_deref().unwrap_or("no broker answers").to_owned(),
            Err(_) => "the client has ended".to_owned(),
        }
    }

    /// Drops all messages that are not acknowledged. Brokers may still store messages that were already sent.
    pub(super) fn give_up(&self) {
        self.producer().purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let producer = self.producer.take();
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(producer))),
            Err(_) => drop(producer),
        }
    }
}

/// Receiver of the client's reports.
#[derive(Default)]
struct Reporter {
    brokers: String,
    trouble: watch::Sender<Trouble>,
    /// Set while `trouble` has a last error. If this flag is set, a stored message clears the error.
    is_troubled: AtomicBool,
}

impl Reporter {
    /// Records an error. `reason` names the broker and the cause.
    fn note(&self, code: RDKafkaErrorCode, reason: &str) {
        let brokers = &self.brokers;
        let (text, stops, is_over) = match code {
            RDKafkaErrorCode::Authentication => {
                (format!("Kafka at {brokers} refused the credentials: {reason}; check `sasl`"), true, true)
            }
            RDKafkaErrorCode::SSL => {
                (format!("failed to agree on TLS with Kafka at {brokers}: {reason}; check `tls`"), true, true)
            }
            RDKafkaErrorCode::Fatal => (format!("the Kafka client for {brokers} failed: {reason}"), true, true),
            RDKafkaErrorCode::AllBrokersDown => {
                let before = self.trouble.borrow().last.clone();
                let before = before.as_deref().unwrap_or(reason);
                (before.to_owned(), true, false)
            }
            _ => (format!("failed to reach Kafka at {brokers}: {reason}"), false, false),
        };
        self.trouble.send_modify(|trouble| {
            // A fatal error of the client has precedence over the connection errors that follow it.
            if is_over || !trouble.is_over || trouble.last.is_none() {
                trouble.last = Some(text.into());
            }
            trouble.stops += u64::from(stops);
            trouble.is_over |= is_over;
        });
        self.is_troubled.store(true, Ordering::Release);
    }
}

impl ClientContext for Reporter {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        tracing::debug!(?level, facility, text, "Kafka client");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.note(code_of(&error), reason);
    }
}

impl ProducerContext for Reporter {
    type DeliveryOpaque = Box<oneshot::Sender<Answer>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let answer = result.as_ref().map(drop).map_err(|(error, _)| code_of(error));
        if answer.is_ok() && self.is_troubled.swap(false, Ordering::AcqRel) {
            self.trouble.send_modify(|trouble| trouble.last = None);
        }
        let _is_awaited = report.send(answer); // the receiver was dropped if the attempt no longer needs it
    }
}

/// Returns the client's configuration. The client repeats a message until the message is stored. Only the handler decides when to
/// give up.
fn config(options: &KafkaOptions, timeout: Duration, is_total: bool) -> Result<ClientConfig, HandlerError> {
    // Larger batches reduce the load. With total order each message waits for the previous one, so there are no
    // batches.
    let linger_ms = if is_total { "0" } else { "5" };
    let timeout_ms = timeout.as_millis().clamp(1_000, 60_000).to_string();
    let mut config = ClientConfig::new();
    for (key, value) in [
        ("bootstrap.servers", options.brokers.join(",").as_str()),
        ("client.id", "deltabus"),
        ("acks", options.acks.as_ref()),
        ("enable.idempotence", if options.idempotent { "true" } else { "false" }),
        ("compression.type", options.compression.as_ref()),
        ("message.timeout.ms", "0"),
        ("request.timeout.ms", &timeout_ms),
        ("socket.timeout.ms", &timeout_ms),
        ("socket.keepalive.enable", "true"),
        ("socket.nagle.disable", "true"),
        ("reconnect.backoff.max.ms", "1000"),
        ("linger.ms", linger_ms),
        // The client sets no limits: the deliveries limit the queue, and the broker limits the size of a message.
        ("queue.buffering.max.messages", "0"),
        ("queue.buffering.max.kbytes", "2147483647"),
        ("message.max.bytes", "1000000000"),
        // A missing topic may be created later; the handler checks again.
        ("topic.metadata.propagation.max.ms", "2000"),
        // Uses the same partition for a key as Java's producers.
        ("partitioner", "murmur2_random"),
    ] {
        config.set(key, value);
    }
    if !options.idempotent {
        config.set("max.in.flight.requests.per.connection", "1"); // else later messages could overtake a repeated one
    }
    let protocol = match (&options.sasl, &options.tls) {
        (None, None) => "plaintext",
        (None, Some(_)) => "ssl",
        (Some(_), None) => "sasl_plaintext",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(sasl) = &options.sasl {
        let password = sasl.password.read().map_err(|error| HandlerError::Failed(format!("`sasl`: {error}")))?;
        config.set("sasl.mechanism", sasl.mechanism.as_ref());
        config.set("sasl.username", &sasl.username).set("sasl.password", password.expose_secret());
    }
    if let Some(tls) = &options.tls {
        // The error of librdkafka would not name the invalid file.
        tls.config().map_err(|(_, error)| HandlerError::Failed(format!("`tls`: {error}")))?;
        let path = |path: &std::path::Path| path.display().to_string();
        config.set("ssl.ca.location", tls.ca_file.as_deref().map_or_else(|| "probe".to_owned(), path));
        if let Some((certificate, key)) = tls.client() {
            config.set("ssl.certificate.location", path(certificate)).set("ssl.key.location", path(key));
        }
    }
    config.set_log_level(RDKafkaLogLevel::Info);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_cause_outlives_later_connection_errors() {
        let reporter = Reporter { brokers: "b:9092".to_owned(), ..Reporter::default() };
        let last = || reporter.trouble.borrow().last.clone().unwrap();
        reporter.note(RDKafkaErrorCode::BrokerTransportFailure, "refused");
        assert_eq!(&*last(), "failed to reach Kafka at b:9092: refused");
        reporter.note(RDKafkaErrorCode::SSL, "unknown authority");
        reporter.note(RDKafkaErrorCode::BrokerTransportFailure, "unknown authority");
        reporter.note(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down");
        assert_eq!(&*last(), "failed to agree on TLS with Kafka at b:9092: unknown authority; check `tls`");
        reporter.note(RDKafkaErrorCode::Authentication, "wrong password");
        assert_eq!(&*last(), "Kafka at b:9092 refused the credentials: wrong password; check `sasl`");
    }
}
