//! A real NATS server for tests: a binary of the Go module in `tests/cluster`, built on first use.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use async_nats::{
    Client, ConnectOptions,
    jetstream::{
        self,
        consumer::{AckPolicy, pull},
    },
};
use deltabus::internals::{
    change::{Cause, Change},
    handler::nats::{JetStreamOptions, NatsOptions},
    journal::{Record, Sequence, UnitId},
    notification::{Event, Notification, UnitInfo},
    object::{Object, ResourceType},
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::{Unavailable, build, end_of, first_line, free_ports, or_skip};

/// A server on a free port of 127.0.0.1, with its own data directory; killed when dropped.
#[derive(Debug)]
pub(crate) struct NatsServer {
    binary: PathBuf,
    dir: TempDir,
    port: u16,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts a server, or prints the reason for skipping to stderr and returns `None`. `configure` returns its configuration;
    /// port, log file and store directory are provided. Blocks.
    ///
    /// # Panics
    /// See [`or_skip`].
    pub(crate) fn start_or_skip(test_name: &str, configure: impl FnOnce(&Keys) -> String) -> Option<Self> {
        or_skip(test_name, Self::start(configure))
    }

    fn start(configure: impl FnOnce(&Keys) -> String) -> Result<Self, Unavailable> {
        let binary = build("nats")?;
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let dir = tempfile::tempdir().map_err(failed)?;
        let output = Command::new(&binary).arg("keys").arg(dir.path()).output().map_err(failed)?;
        let public: Value = serde_json::from_slice(&output.stdout).map_err(|error| failed(error.into()))?;
        let keys = Keys { dir: dir.path().to_owned(), nkey: public["nkey"].as_str().unwrap_or_default().to_owned() };
        fs::write(dir.path().join("server.conf"), configure(&keys)).map_err(failed)?;
        let [address] = free_ports().map_err(failed)?;
        let mut server = Self { binary, dir, port: address.port(), child: None };
        server.start_again()?;
        Ok(server)
    }

    /// Starts the server on its data and port.
    pub(crate) fn start_again(&mut self) -> Result<(), Unavailable> {
        assert!(self.child.is_none(), "the server runs already");
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let log = File::options().create(true).append(true).open(self.log_file()).map_err(failed)?;
        let mut child = Command::new(&self.binary)
            .args(["server", "-a", "127.0.0.1", "-p", &self.port.to_string()])
            .arg("-c")
            .arg(self.dir.path().join("server.conf"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        let line = first_line(child.stdout.take().expect("stdout is piped"));
        self.child = Some(child);
        line.map(drop).ok_or_else(|| Unavailable::StartFailed(end_of(&self.log_file())))
    }

    /// Kills the server: connections break, its data stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("an own child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log_file(&self) -> PathBuf {
        self.file("server.log")
    }

    /// Returns handler options for this server, with a stream `K8S` that the handler creates.
    pub(crate) fn options(&self) -> NatsOptions {
        NatsOptions {
            servers: vec![format!("nats://{}", self.address())],
            name: "test".to_owned(),
            jetstream: Some(stream()),
            ..NatsOptions::default()
        }
    }

    /// Connects without credentials.
    pub(crate) async fn client(&self) -> Client {
        self.client_as(ConnectOptions::new()).await
    }

    pub(crate) async fn client_as(&self, options: ConnectOptions) -> Client {
        options.connect(self.address()).await.expect("the server runs")
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            super::cluster::note(&format!("end of the NATS server's log:\n{}", end_of(&self.log_file())));
        }
    }
}

/// Credentials of a server and its clients.
pub(crate) struct Keys {
    pub(crate) dir: PathBuf,
    /// Public key of `nkey.seed`.
    pub(crate) nkey: String,
}

impl Keys {
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Returns a configuration that enables `JetStream`.
    pub(crate) fn jetstream(&self) -> String {
        format!("jetstream {{ store_dir: {:?} }}\n", self.path("js"))
    }
}

/// Returns the options of a stream `K8S`.
pub(crate) fn stream() -> JetStreamOptions {
    JetStreamOptions { stream: "K8S".to_owned(), ..JetStreamOptions::default() }
}

/// A message of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) subject: String,
    pub(crate) headers: async_nats::HeaderMap,
    pub(crate) payload: Vec<u8>,
}

impl Stored {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(async_nats::HeaderValue::as_str).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> String {
        self.header("Nats-Msg-Id").to_owned()
    }
}

/// Reads all messages of a stream in order.
pub(crate) async fn stored(client: &Client, stream: &str) -> Vec<Stored> {
    let mut stream = jetstream::new(client.clone()).get_stream(stream).await.expect("there is the stream");
    let messages = stream.info().await.expect("there is the stream").state.messages;
    let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
    let consumer = stream.create_consumer(config).await.expect("it can be read");
    let mut all = Vec::new();
    let mut reading = consumer.messages().await.expect("it can be read");
    while (all.len() as u64) < messages {
        let message = reading.next().await.expect("more is there").expect("it can be read");
        all.push(Stored {
            subject: message.subject.to_string(),
            headers: message.headers.clone().unwrap_or_default(),
            payload: message.payload.to_vec(),
        });
    }
    all
}

/// Returns a config map in a version, with `size` bytes of data.
pub(crate) fn config_map(name: &str, version: u64, size: usize) -> Object {
    let json = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": version.to_string() },
        "data": { "x": "y".repeat(size) },
    });
    Object::from_json(json.to_string().as_bytes()).expect("it is an object")
}

pub(crate) fn unit() -> Arc<UnitInfo> {
    let resource = ResourceType {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
    };
    Arc::new(UnitInfo { entry: "maps".to_owned(), resource, namespace: None })
}

/// Returns an event with the current time.
pub(crate) fn event(sequence: u64, change: Change) -> Event {
    let time_micros = jiff::Timestamp::now().as_microsecond();
    Event {
        unit: unit(),
        record: Record { sequence: Sequence(sequence), unit: UnitId(0), time_micros, change, old_lost: false },
    }
}

pub(crate) fn added(name: &str, version: u64) -> Event {
    event(version, Change::Added { object: config_map(name, version, 10), cause: Cause::Watch })
}

pub(crate) fn updated(name: &str, version: u64) -> Event {
    let (old, object) = (config_map(name, version - 1, 10), config_map(name, version, 10));
    event(version, Change::Updated { old, object, cause: Cause::Watch })
}

pub(crate) fn deleted(name: &str, version: u64) -> Event {
    event(version, Change::Deleted { object: config_map(name, version, 10), tombstone: false, cause: Cause::Watch })
}

pub(crate) fn batch(events: &[Event]) -> Notification {
    Notification::new(events.to_vec())
}

/// Returns the content of a file in the test's directory.
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("it was written")
}
