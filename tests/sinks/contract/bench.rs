//! A simulated cluster, an engine with a state directory, and a sink; compares arrived and actual changes.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    ops::{Deref, DerefMut},
};

use serde_json::Value;

use crate::support::{
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::{Simulated, row},
    sink::{Manner, Sink},
};

/// Number of events of `[handlers.out]` that are kept in memory.
pub(crate) const BUFFER: u64 = 50;

/// Environment of a case.
pub(crate) struct Bench {
    cluster: Simulated,
    pub(crate) sink: Box<dyn Sink>,
}

impl Deref for Bench {
    type Target = Simulated;

    fn deref(&self) -> &Simulated {
        &self.cluster
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Simulated {
        &mut self.cluster
    }
}

impl Bench {
    /// Creates a bench with a working sink. Besides its handler there is `[handlers.free]`.
    pub(crate) fn new(cluster: Simulated, sink: Box<dyn Sink>) -> Self {
        let path = |name: &str| text(cluster.dir(), name);
        let config = format!(
            "shutdown_timeout = \"3s\"\n[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n[state]\ndir = {:?}\n\
             [supervision]\nbackoff = {{ initial = \"100ms\", max = \"200ms\" }}\n[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.free]\ntype = \"file\"\npath = {:?}\n[handlers.out]\nretry = {{ initial = \"20ms\", max = \"200ms\" }}\n\
             buffer = {{ max_events = {BUFFER} }}\n{}\n",
            path("kubeconfig"),
            path("state"),
            path("free.jsonl"),
            sink.handler()
        );
        Engine::configure(cluster.dir(), &config);
        Self { cluster, sink }
    }

    /// Runs an engine until it watches.
    pub(crate) fn run(&self) -> Engine {
        let engine = self.sink.run(self.dir());
        engine.wait_for("watching", PATIENCE, || engine.json("/v1/resources")["resources"][0]["state"] == "watching");
        engine
    }

    /// Gives later stops of the engine as much time as they need.
    pub(crate) fn stop_at_leisure(&self) {
        let file = self.dir().join("config.toml");
        let config = fs::read_to_string(&file).expect("it was written");
        let patient = config.replace("shutdown_timeout = \"3s\"", "shutdown_timeout = \"60s\"");
        assert_ne!(patient, config, "its line is found");
        fs::write(&file, patient).expect("it can be written");
    }

    /// Sets the behaviour of the sink from now on.
    pub(crate) fn be(&mut self, manner: Manner) {
        self.sink.be(manner);
    }

    /// Waits until all changes have arrived and are acknowledged; compares arrived and actual changes.
    pub(crate) fn settle(&self, engine: &Engine) -> Arrived {
        engine.wait_for("all delivered", PATIENCE * 2, || {
            let row = row(engine);
            row["queued"] == 0 && row["inFlight"] == 0 && self.missing() == 0
        });
        let row = row(engine);
        assert_eq!([&row["dropped"], &row["coalesced"], &row["oldsGivenUp"]], [0, 0, 0], "E4, E6: {row}");
        let arrived = Arrived::of(self.sink.arrived());
        assert!(arrived.repeated() == 0 || !self.sink.stores_once(), "repeated: {:?}", arrived.times);
        assert_eq!(arrived.stories, self.happened, "E2, E4: what arrived first of each change, and what happened");
        let last = |(name, story): (&String, &Vec<String>)| (name.clone(), story.last().cloned().unwrap_or_default());
        let expected: BTreeMap<_, _> = self.happened.iter().map(last).collect();
        assert_eq!(arrived.last, expected, "E1: what arrived last of each object, repetitions included");
        arrived
    }

    /// Returns the number of changes that have not arrived.
    fn missing(&self) -> usize {
        let arrived = Arrived::of(self.sink.arrived());
        let happened = self.happened.values().flatten();
        happened.filter(|id| !arrived.times.contains_key(*id)).count()
    }
}

/// Events that arrived at a sink.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// Ids of each object, in order of first arrival.
    pub(crate) stories: BTreeMap<String, Vec<String>>,
    /// Number of arrivals of each id.
    pub(crate) times: HashMap<String, usize>,
    /// Last arrived id of each object.
    last: BTreeMap<String, String>,
}

impl Arrived {
    /// Collects events; panics if one id stands for two changes.
    fn of(events: Vec<Value>) -> Self {
        let mut arrived = Self::default();
        let mut said: HashMap<String, Value> = HashMap::new();
        for event in events {
            let of = |attribute: &str| event[attribute].as_str().expect("it is an attribute").to_owned();
            let (id, name) = (of("id"), of("name"));
            *arrived.times.entry(id.clone()).or_default() += 1;
            arrived.last.insert(name.clone(), id.clone());
            if let Some(before) = said.get(&id) {
                for part in ["uid", "subject", "resourceversion", "sequence", "type", "data"] {
                    assert_eq!(before[part], event[part], "one id stands for one change: {before} {event}");
                }
            } else {
                arrived.stories.entry(name).or_default().push(id.clone());
                said.insert(id, event);
            }
        }
        arrived
    }

    /// Returns the number of repeated arrivals.
    pub(crate) fn repeated(&self) -> usize {
        self.times.values().map(|times| times - 1).sum()
    }
}
