//! A topic of a real Kafka broker that mirrors the cluster: keyed by uid, with a tombstone for each deletion.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use crate::support::{
    kafka::{Broker, Reader, Stored, compacted},
    sink::{Manner, Sink},
    stream::State,
};

const TOPIC: &str = "cluster";

/// The topic, and its broker.
pub(crate) struct Mirror {
    reader: Mutex<Reader>,
    broker: Broker,
}

impl Mirror {
    /// Returns a function that starts the broker, or logs the reason why it cannot.
    pub(crate) fn start_or_skip(name: &str) -> impl FnOnce(&Path) -> Option<Self> {
        move |_| {
            let broker = Broker::start_or_skip(name, |_| {})?;
            broker.create_topic(TOPIC, &[]);
            broker.warm_up();
            Some(Self { reader: Mutex::new(broker.reader(TOPIC)), broker })
        }
    }

    fn stored(&self) -> Vec<Stored> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.read().expect("the broker answers");
        reader.all.clone()
    }

    /// Compares the compacted topic with the server's state.
    pub(crate) fn assert_equals(&self, server: &State) {
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let mirrored: BTreeMap<_, _> = compacted(&self.stored())
            .into_iter()
            .map(|(key, event)| {
                assert_eq!(key, text(&event, "uid"), "{event}");
                (key, text(&event, "resourceversion"))
            })
            .collect();
        let expected: BTreeMap<_, _> = server.values().cloned().collect();
        assert!(!expected.is_empty());
        assert_eq!(mirrored, expected, "the compacted topic is not the cluster");
    }
}

impl Sink for Mirror {
    fn handler(&self) -> String {
        format!("type = \"kafka\"\nbrokers = [\"{}\"]\ntopic = \"{TOPIC}\"\nkey = \"{{uid}}\"", self.broker.address())
    }

    fn be(&mut self, manner: Manner) {
        assert_eq!(manner, Manner::Well, "it is the engine that fails here");
    }

    fn arrived(&self) -> Vec<Value> {
        self.stored().iter().map(Stored::event).collect()
    }

    /// The broker drops repetitions of its client.
    fn shows_repetitions(&self) -> bool {
        false
    }
}
