//! Kafka: its handler compared with its own producer, `org.apache.kafka.tools.ProducerPerformance`, each with a new broker.
//!
//! Both send the same texts, the handler's events in structured mode, with the same compression, and wait for all
//! acknowledgements. The producer is measured with its defaults and with its best batches; larger ones gain nothing on
//! this machine. The number of events is so large that start-up and just-in-time compilation take only a small part.

use std::{fs, path::Path, time::Duration};

use deltabus::internals::{
    cloud_event::{
        ContentMode::{self, Binary, Structured},
        Encoder,
    },
    handler::kafka::{KafkaCompression, KafkaHandler, KafkaOptions},
    notification::Notification,
};

use super::{CONCURRENCY, EVENTS, Row, Took, deliver};
use crate::{harness::Outcome, kafka::Broker};

const TOPIC: &str = "k8s.configmaps";
/// Repetitions of all events.
const TIMES: u32 = 5;
/// Producer options in addition to its defaults.
const LARGE_BATCHES: [&str; 3] = ["batch.size=262144", "linger.ms=10", "buffer.memory=134217728"];

/// Returns the rows.
pub(crate) fn rows(batches: &[Notification]) -> Vec<Row<'_>> {
    use KafkaCompression::{None, Zstd};
    let own = move |compression, options: &'static [&str]| own_producer(compression, options, batches);
    let handler = move |mode, compression| to_kafka(mode, compression, batches);
    vec![
        ("Kafka's producer, defaults", Box::new(move || own(None, &[]))),
        ("Kafka's producer, large batches", Box::new(move || own(None, &LARGE_BATCHES))),
        ("**kafka**, `structured`, `compression = \"none\"`", Box::new(move || handler(Structured, None))),
        ("Kafka's producer, `zstd`, defaults", Box::new(move || own(Zstd, &[]))),
        ("Kafka's producer, `zstd`, large batches", Box::new(move || own(Zstd, &LARGE_BATCHES))),
        ("**kafka**, `structured`, `zstd`", Box::new(move || handler(Structured, Zstd))),
        ("**kafka**, `binary`, `zstd`", Box::new(move || handler(Binary, Zstd))),
    ]
}

/// Starts a broker with the options of Kafka's own scripts; brokers of tests have options for a fast start.
fn broker() -> Outcome<Broker> {
    let broker = Broker::start_or_skip("sinks", |plan| plan.java = vec!["-Xmx1g".to_owned()]);
    let broker = broker.ok_or("there is no Kafka broker to measure with")?;
    broker.create_topic(TOPIC, &[]);
    Ok(broker)
}

fn own_producer(compression: KafkaCompression, options: &[&str], batches: &[Notification]) -> Outcome<Took> {
    let broker = broker()?;
    let texts = broker.file("events");
    write_texts(&texts, batches)?;
    let (events, texts) = (EVENTS * u64::from(TIMES), texts.display().to_string());
    let records = events.to_string();
    let servers = format!("bootstrap.servers={}", broker.address());
    let compression = format!("compression.type={}", compression.as_ref());
    let args = ["--topic", TOPIC, "--num-records", &records, "--payload-file", &texts, "--throughput", "-1"];
    let properties = ["--producer-props", &servers, "acks=all", &compression];
    let args = [&args[..], &properties, options].concat();
    let output = broker.java("org.apache.kafka.tools.ProducerPerformance", &args).output()?;
    let said = String::from_utf8(output.stdout)?;
    // The last such line is the total: `100000 records sent, 48875.9 records/sec (…), …`.
    let rate = said.lines().rfind(|line| line.starts_with(&format!("{records} records sent")));
    let rate = rate.and_then(|line| line.split(", ").nth(1)?.split(' ').next()?.parse().ok());
    let rate = rate.ok_or_else(|| format!("{said}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(Took { events, rate })
}

/// Writes events in structured mode, one per line; the producer sends random lines.
fn write_texts(file: &Path, batches: &[Notification]) -> Outcome<()> {
    let encoder = Encoder::new("prod", "9f2c");
    let mut texts = Vec::new();
    for event in batches.iter().flat_map(Notification::events).take(10_000) {
        encoder.encode(&mut texts, event);
        texts.push(b'\n');
    }
    Ok(fs::write(file, texts)?)
}

fn to_kafka(mode: ContentMode, compression: KafkaCompression, batches: &[Notification]) -> Outcome<Took> {
    let broker = broker()?;
    let options = KafkaOptions { brokers: vec![broker.address()], mode, compression, ..KafkaOptions::default() };
    let handler = KafkaHandler::new(options, Duration::from_mins(1), false, Encoder::new("prod", "9f2c"))?;
    deliver(&handler, batches, TIMES, CONCURRENCY)
}
