//! A topic of a real Kafka broker, behind a gate.

use std::sync::Mutex;

use serde_json::Value;

use super::{Manner, Sink};
use crate::support::{
    gate::{Door, Gate},
    kafka::{Broker, Reader, Stored},
};

const TOPIC: &str = "k8s.core.configmaps";

/// The topic that a Kafka handler writes to.
pub(crate) struct Kafka {
    gate: Gate,
    reader: Mutex<Reader>,
    refuses: bool,
    broker: Broker,
}

impl Kafka {
    /// Starts the broker, or prints the reason for skipping.
    pub(crate) fn start_or_skip(name: &str) -> Option<Self> {
        let mut gate = None;
        let broker = Broker::start_or_skip(name, |plan| {
            let opened = Gate::before(plan.front);
            plan.advertised = opened.address;
            gate = Some(opened);
        })?;
        broker.create_topic(TOPIC, &[]);
        broker.warm_up();
        let (gate, reader) = (gate.expect("the broker was planned"), Mutex::new(broker.reader(TOPIC)));
        Some(Self { gate, reader, refuses: false, broker })
    }

    /// Removes the write permission of all users, or restores it.
    fn set_refusing(&mut self, refuses: bool) {
        if self.refuses != refuses {
            self.refuses = refuses;
            let change: &[&str] = if refuses { &["--add"] } else { &["--remove", "--force"] };
            // Once a topic has any ACL, everything not allowed is refused.
            let rights = ["--allow-principal", "User:ANONYMOUS", "--operation", "Read", "--operation", "Describe"];
            self.broker.acl(&[change, &rights, &["--topic", TOPIC]].concat());
        }
    }
}

impl Sink for Kafka {
    fn handler(&self) -> String {
        // Keyed by name, an object shares the partition with earlier objects of that name, so their order is visible.
        let options = "topic = \"k8s.{group}.{resource}\"\nkey = \"{namespace}/{name}\"\ntimeout = \"5s\"";
        format!("type = \"kafka\"\nbrokers = [\"{}\"]\n{options}", self.gate.address)
    }

    fn be(&mut self, manner: Manner) {
        self.set_refusing(manner == Manner::Refuses);
        self.gate.set(Door::of(manner));
    }

    fn arrived(&self) -> Vec<Value> {
        let mut reader = self.reader.lock().expect("not poisoned");
        reader.read().expect("the broker answers");
        reader.all.iter().map(Stored::event).collect()
    }

    /// The broker drops repetitions of its client.
    fn shows_repetitions(&self) -> bool {
        false
    }
}
