//! A watch of the API server, independent of the engine: the reference for the actual changes.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::Value;

use super::cluster::Cluster;

/// Actual life of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    /// `plural.group/namespace/name`.
    pub(crate) key: String,
    /// Its versions, in order, including that of its deletion.
    pub(crate) versions: Vec<String>,
    /// Set once its deletion was observed.
    pub(crate) deleted: bool,
}

/// A watch by another program since [`Observer::start`]; a gap would fail the test.
#[derive(Debug)]
pub(crate) struct Observer {
    child: Child,
    lives: Arc<Mutex<BTreeMap<String, Life>>>,
    reader: Option<JoinHandle<()>>,
}

impl Observer {
    /// Starts to watch, and returns when every watch is open.
    pub(crate) fn start(cluster: &Cluster, resources: &[&str]) -> Self {
        let mut command = cluster.command("observe", resources);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the cluster binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let lives: Arc<Mutex<BTreeMap<String, Life>>> = Arc::default();
        let (ready, is_ready) = mpsc::channel();
        let seen = Arc::clone(&lives);
        let reader = thread::spawn(move || {
            for line in stdout.lines() {
                let event: Value = serde_json::from_str(&line.expect("it prints text")).expect("it prints JSON");
                if event["type"] == "READY" {
                    ready.send(()).ok();
                } else {
                    note(&mut seen.lock().expect("not poisoned"), &event);
                }
            }
        });
        is_ready.recv_timeout(Duration::from_mins(1)).expect("the observer's watches open");
        Self { child, lives, reader: Some(reader) }
    }

    /// Waits until every watch has reached the current state; returns a revision that all have passed. To that end it writes an
    /// object of each type, because a watch's version is that of its last event.
    ///
    /// The observer cannot miss history that is compacted before that revision.
    pub(crate) fn catch_up(&self, cluster: &Cluster, markers: &[Value]) -> u64 {
        let write = |marker: &Value| {
            let metadata = cluster.apply(marker)["metadata"].take();
            let text = |field: &str| metadata[field].as_str().expect("a written object has it").to_owned();
            (text("uid"), text("resourceVersion"))
        };
        let written: Vec<_> = markers.iter().map(write).collect();
        let is_seen = |(uid, version): &(String, String)| {
            self.lives.lock().expect("not poisoned").get(uid).is_some_and(|life| life.versions.contains(version))
        };
        for _ in 0..2_400 {
            if written.iter().all(is_seen) {
                let revisions =
                    written.iter().map(|(_, version)| version.parse().expect("etcd's revisions are numbers"));
                return revisions.min().expect("there is a marker of each type");
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the observer's watches told nothing of {written:?} in two minutes");
    }

    /// Returns the life of every object, by uid.
    pub(crate) fn finish(mut self) -> BTreeMap<String, Life> {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("an own child can be waited for");
        assert!(status.success(), "the observer missed something; its stderr says why");
        self.reader.take().expect("it is joined once").join().expect("every line can be read");
        std::mem::take(&mut *self.lives.lock().expect("not poisoned"))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn note(lives: &mut BTreeMap<String, Life>, event: &Value) {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let life = lives
        .entry(text("uid"))
        .or_insert_with(|| Life { key: format!("{}/{}", text("resource"), text("key")), ..Life::default() });
    life.versions.push(text("resourceVersion"));
    life.deleted |= text("type") == "DELETED";
}
