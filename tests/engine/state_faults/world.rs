//! A simulated cluster, and an engine with faults on demand in the disk of its state directory and in its webhook.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    disk::Disk,
    engine::{Engine, text},
    scripted::PATIENCE,
    simulated::{Simulated, row},
    sink::{Sink as _, webhook::Hook},
};

/// A simulated cluster with an engine's disk and webhook.
pub(crate) struct World {
    pub(crate) cluster: Simulated,
    /// Disk of the state directory.
    pub(crate) disk: Disk,
    pub(crate) sink: Hook,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_state("")
    }

    /// Creates a world for tests that stop the engine during a fault of its sink or disk. Such a stop always lasts until
    /// `shutdown_timeout`. The state keeps undelivered events, and the batch in flight may be sent again.
    pub(crate) fn stopping_soon() -> Self {
        Self::with("1s", "")
    }

    /// Creates a world with further lines in `[state]`.
    pub(crate) fn with_state(more: &str) -> Self {
        Self::with("5s", more)
    }

    fn with(shutdown_timeout: &str, more: &str) -> Self {
        let cluster = Simulated::start();
        let (state, sink) = (cluster.dir().join("state"), Hook::start());
        fs::create_dir(&state).expect("the directory is writable");
        let path = |name: &str| text(cluster.dir(), name);
        let config = format!(
            "shutdown_timeout = {shutdown_timeout:?}\n[cluster]\nname = \"test\"\n[kube]\nkubeconfig = {:?}\n\
             backoff = {{ initial = \"50ms\", max = \"200ms\" }}\n[state]\ndir = {:?}\n{more}[resources.maps]\nmatch = [\"configmaps\"]\n\
             [handlers.out]\nretry = {{ initial = \"20ms\", max = \"200ms\" }}\nbuffer = {{ max_events = 50 }}\n\
             order = \"total\"\n{}\n",
            path("kubeconfig"),
            path("state"),
            sink.handler(),
        );
        Engine::configure(cluster.dir(), &config);
        Self { disk: Disk::under(&state), sink, cluster }
    }

    /// Returns the state directory.
    pub(crate) fn state(&self) -> String {
        text(self.cluster.dir(), "state")
    }

    /// Runs an engine with further environment variables until it watches.
    pub(crate) fn run(&self, more: &[(&'static str, PathBuf)]) -> Engine {
        let engine = Engine::run_again(self.cluster.dir(), &self.environment(more));
        engine.wait_for("watching", PATIENCE, || engine.json("/v1/resources")["resources"][0]["state"] == "watching");
        engine
    }

    /// Returns the environment; the preloaded layers of both are stacked.
    fn environment(&self, more: &[(&'static str, PathBuf)]) -> Vec<(&'static str, PathBuf)> {
        let mut environment = self.disk.environment();
        for (name, value) in more {
            match environment.iter_mut().find(|(known, _)| known == name) {
                Some((_, layers)) => *layers = format!("{}:{}", layers.display(), value.display()).into(),
                None => environment.push((name, value.clone())),
            }
        }
        environment
    }

    /// Runs an engine that fails to start; returns its output.
    pub(crate) fn refusal(&self) -> String {
        let log = self.cluster.dir().join("refusal.log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["run", "-c", &text(self.cluster.dir(), "config.toml")])
            .envs(self.disk.environment())
            .env("NO_COLOR", "1")
            .stderr(fs::File::create(&log).expect("the directory is writable"))
            .spawn()
            .expect("the binary was built with the tests");
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match child.try_wait().expect("the child is ours") {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        drop(child.kill());
        child.wait().expect("the child is ours");
        let said = fs::read_to_string(log).expect("it is text");
        assert_eq!(status.and_then(|status| status.code()), Some(1), "it is refused: {said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// Returns the file that the store is writing to.
    pub(crate) fn journal_file(&self) -> PathBuf {
        let entries = fs::read_dir(Path::new(&self.state()).join("db")).expect("there is a store");
        let files = entries.map(|entry| entry.expect("it is readable").path());
        let journals = files.filter(|file| file.extension().is_some_and(|extension| extension == "jnl"));
        journals.max().expect("there is one")
    }

    /// Returns the store's files in directories with this name.
    pub(crate) fn files_in(&self, name: &str) -> Vec<PathBuf> {
        let (mut files, mut dirs) = (Vec::new(), vec![PathBuf::from(self.state())]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).expect("it is ours") {
                let path = entry.expect("it is readable").path();
                if path.is_dir() {
                    dirs.push(path);
                } else if dir.ends_with(name) {
                    files.push(path);
                }
            }
        }
        files
    }

    /// Waits until all changes are delivered.
    pub(crate) fn wait_delivered(&self, engine: &Engine) {
        engine.wait_for("all delivered", PATIENCE, || {
            let ids: Vec<_> = self.sink.arrived().iter().map(|event| event["id"].clone()).collect();
            let happened = self.cluster.happened.values().flatten();
            row(engine)["queued"] == 0 && happened.clone().all(|id| ids.iter().any(|there| there == id.as_str()))
        });
    }

    /// Returns the delivered ids of each object, in order; without repetitions if `is_once`.
    pub(crate) fn stories(&self, is_once: bool) -> BTreeMap<String, Vec<String>> {
        let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut last: BTreeMap<String, String> = BTreeMap::new();
        for event in self.sink.arrived() {
            let of = |attribute: &str| event[attribute].as_str().expect("it is an attribute").to_owned();
            let story = stories.entry(of("name")).or_default();
            if !is_once || !story.contains(&of("id")) {
                story.push(of("id"));
                let before = last.insert(of("journal"), of("sequence"));
                assert!(before.as_ref() < Some(&of("sequence")), "E3: {} after {before:?}", of("sequence"));
            }
        }
        stories
    }

    /// Checks that all changes were delivered once and in order.
    pub(crate) fn check_each_once(&self) {
        assert_eq!(self.stories(false), self.cluster.happened);
    }

    /// Like [`World::check_each_once`], but events may be repeated.
    pub(crate) fn check_stories(&self) {
        assert_eq!(self.stories(true), self.cluster.happened);
    }
}
