//! The client: how it is made of options, what it reports of messages and of its brokers.

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
    message::{DeliveryResult, Header, OwnedHeaders},
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
    failure::Failure,
    message::Message,
    sent::{Answer, Report},
};
use crate::{
    handler::{HandlerError, webhook::TlsOptions},
    mutex::lock,
    secret::ExposeSecret as _,
};

/// How long a broker may take to say which topics there are.
const METADATA_WAIT: Duration = Duration::from_secs(3);

/// A client of one cluster, which finds its brokers anew as long as it lives. It is ended on a thread where that may
/// take time.
pub(super) struct Client {
    producer: Option<ThreadedProducer<Reporter>>,
    trouble: Arc<watch::Sender<Trouble>>,
    /// Topics that were not there when they were last written to.
    missing: Mutex<BTreeSet<String>>,
}

/// What the brokers and the network did. The client tells it a little later.
#[derive(Clone, Debug, Default)]
struct Trouble {
    /// The last thing that was wrong, until a message is stored.
    last: Option<Arc<str>>,
    /// How often nothing went on.
    stops: u64,
    /// Another client has to be made, of what the secrets and files hold then.
    is_over: bool,
}

impl Client {
    /// Makes a client; it connects by itself. Reads files and secrets: blocks for so long.
    ///
    /// # Errors
    /// What of the options is of no use.
    pub(super) fn new(options: &KafkaOptions) -> Result<Self, HandlerError> {
        let trouble = Arc::new(watch::Sender::new(Trouble::default()));
        let reporter = Reporter {
            brokers: options.brokers.join(", "),
            trouble: Arc::clone(&trouble),
            is_troubled: AtomicBool::new(false),
        };
        let failed = |error: KafkaError| HandlerError::Failed(format!("failed to make a client of Kafka: {error}"));
        let producer = ThreadedProducer::from_config_and_context(&config(options)?, reporter).map_err(failed)?;
        Ok(Self { producer: Some(producer), trouble, missing: Mutex::default() })
    }

    fn producer(&self) -> &ThreadedProducer<Reporter> {
        self.producer.as_ref().expect("it is there until the client is dropped")
    }

    /// Gives a message to the client, which sends it behind all others of its partition. Returns where its answer arrives,
    /// also where the client does not accept it.
    pub(super) fn send(&self, message: &Message) -> Report {
        let (answer, report) = oneshot::channel();
        let parts = message.headers.iter();
        let headers = OwnedHeaders::new_with_capacity(parts.len());
        let headers = parts.fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(value) }));
        let mut record = BaseRecord::with_opaque_to(&message.topic, Box::new(answer)).headers(headers);
        record.key = Some(message.key.as_str());
        record.payload = message.value();
        if let Err((error, record)) = self.producer().send(record) {
            drop(record.delivery_opaque.send(Err(Failure::of(&error))));
        }
        report
    }

    /// Notes a topic that is not there: it may come.
    pub(super) fn miss(&self, topic: String) {
        lock(&self.missing).insert(topic);
    }

    /// Asks the brokers for the topics that were not there, so that the client knows those that are.
    pub(super) async fn look_again(&self) {
        let missing = std::mem::take(&mut *lock(&self.missing));
        for topic in missing {
            let producer = self.producer().clone();
            let looking = spawn_blocking(move || {
                // Whether it is there is heard from the next message.
                drop(producer.client().fetch_metadata(Some(&topic), METADATA_WAIT));
            });
            drop(looking.await);
        }
    }

    /// Returns who waits for trouble from now on.
    pub(super) fn watch(&self) -> Watch {
        let mut trouble = self.trouble.subscribe();
        let stops = trouble.borrow_and_update().stops;
        Watch { trouble, stops }
    }

    /// Returns whether another client has to be made.
    pub(super) fn is_over(&self) -> bool {
        self.trouble.borrow().is_over
    }

    /// Gives up what is not sent, and what is sent and not acknowledged: what is not stored yet will hardly be.
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

/// Who waits for trouble.
pub(super) struct Watch {
    trouble: watch::Receiver<Trouble>,
    stops: u64,
}

impl Watch {
    /// Waits until nothing goes on any more, and says why.
    pub(super) async fn stopped(&mut self) -> String {
        let stops = self.stops;
        match self.trouble.wait_for(|trouble| trouble.stops != stops).await {
            Ok(trouble) => trouble.last.as_deref().unwrap_or("no broker answers").to_owned(),
            Err(_) => "the client has ended".to_owned(),
        }
    }

    /// Returns what was wrong last.
    pub(super) fn last(&self) -> Option<Arc<str>> {
        self.trouble.borrow().last.clone()
    }
}

/// Hears what the client says.
struct Reporter {
    brokers: String,
    trouble: Arc<watch::Sender<Trouble>>,
    /// Whether there is a last trouble: looked at for each message.
    is_troubled: AtomicBool,
}

impl Reporter {
    /// Notes what is wrong. The reason names broker and cause.
    fn note(&self, code: RDKafkaErrorCode, reason: &str) {
        let brokers = &self.brokers;
        let (text, stops, is_over) = match code {
            RDKafkaErrorCode::Authentication => {
                (format!("Kafka at {brokers} refused the credentials: {reason}; check `sasl`"), true, true)
            }
            RDKafkaErrorCode::SSL => {
                (format!("failed to agree on TLS with Kafka at {brokers}: {reason}; check `tls`"), true, true)
            }
            RDKafkaErrorCode::Fatal => (format!("the client of Kafka at {brokers} gave up: {reason}"), true, true),
            RDKafkaErrorCode::AllBrokersDown => {
                let before = self.trouble.borrow().last.clone();
                let before = before.as_deref().unwrap_or(reason);
                (before.to_owned(), true, false)
            }
            _ => (format!("failed to reach Kafka at {brokers}: {reason}"), false, false),
        };
        self.trouble.send_modify(|trouble| {
            // What ended the client says more than the connections that fail of it afterwards.
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
        self.note(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail), reason);
    }
}

impl ProducerContext for Reporter {
    type DeliveryOpaque = Box<oneshot::Sender<Answer>>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let answer = result.as_ref().map(drop).map_err(|(error, _)| Failure::of(error));
        if answer.is_ok() && self.is_troubled.swap(false, Ordering::AcqRel) {
            self.trouble.send_modify(|trouble| trouble.last = None);
        }
        drop(report.send(answer)); // an attempt that forgot the message has dropped its end
    }
}

/// Returns what the client is told. It repeats a message until it is stored: when to give up is the handler's affair.
fn config(options: &KafkaOptions) -> Result<ClientConfig, HandlerError> {
    // Larger batches cost everybody less. Where each message waits for the one before there are none.
    let linger_ms = if options.total_order { "0" } else { "5" };
    let timeout_ms = options.timeout.as_millis().clamp(1_000, 60_000).to_string();
    let mut config = ClientConfig::new();
    for (key, value) in [
        ("bootstrap.servers", options.brokers.join(",").as_str()),
        ("client.id", "deltabus"),
        ("acks", options.acks.as_str()),
        ("enable.idempotence", if options.idempotent { "true" } else { "false" }),
        ("compression.type", options.compression.as_ref()),
        ("message.timeout.ms", "0"),
        ("request.timeout.ms", &timeout_ms),
        ("socket.timeout.ms", &timeout_ms),
        ("socket.keepalive.enable", "true"),
        ("socket.nagle.disable", "true"),
        ("reconnect.backoff.max.ms", "1000"),
        ("linger.ms", linger_ms),
        // What waits is bounded by what is in delivery, and what is too large by the broker.
        ("queue.buffering.max.messages", "0"),
        ("queue.buffering.max.kbytes", "2147483647"),
        ("message.max.bytes", "1000000000"),
        // A topic that is not there may come: the handler looks again.
        ("topic.metadata.propagation.max.ms", "2000"),
        // One key is in the same partition as with Java's producers.
        ("partitioner", "murmur2_random"),
    ] {
        config.set(key, value);
    }
    if !options.idempotent {
        config.set("max.in.flight.requests.per.connection", "1"); // else a repetition could overtake
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
        config.set("sasl.mechanism", sasl.mechanism.as_str());
        config.set("sasl.username", &sasl.username).set("sasl.password", password.expose_secret());
    }
    if let Some(tls) = &options.tls {
        // librdkafka would not say which file is wrong.
        TlsOptions::from(tls).check().map_err(|(_, error)| HandlerError::Failed(format!("`tls`: {error}")))?;
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
    fn what_ended_the_client_is_told_though_connections_fail_of_it_afterwards() {
        let trouble = Arc::new(watch::Sender::new(Trouble::default()));
        let reporter = Reporter {
            brokers: "b:9092".to_owned(),
            trouble: Arc::clone(&trouble),
            is_troubled: AtomicBool::new(false),
        };
        let last = || trouble.borrow().last.clone().unwrap();
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
