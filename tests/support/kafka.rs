//! A real Kafka broker for tests, one node in `KRaft` mode: fetched by Maven on first use, run by Java.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
    metadata::MetadataPartition,
    producer::{BaseProducer, BaseRecord, Producer as _},
    types::RDKafkaErrorCode,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::{Unavailable, end_of, free_ports, last_lines, lock_file, note, or_skip, target_dir};

/// Cluster id in the node's storage; every broker is a separate cluster.
const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";
/// Start timeout; a start reads the log from the disk, which takes seconds.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// Number of partitions of topics created by the broker.
pub(crate) const PARTITIONS: usize = 4;

/// Options of a broker before its start.
pub(crate) struct Plan {
    /// Directory for files that `properties` refers to.
    pub(crate) dir: PathBuf,
    /// Address for handlers.
    pub(crate) front: SocketAddr,
    /// Advertised address of the broker; the gate's address if there is one.
    pub(crate) advertised: SocketAddr,
    /// Protocol of this address.
    pub(crate) protocol: &'static str,
    /// Further lines of its configuration.
    pub(crate) properties: String,
    /// Further arguments of the command that formats the storage.
    pub(crate) format: Vec<String>,
    /// Options of Java, for a fast start instead of long-term speed.
    pub(crate) java: Vec<String>,
}

/// A broker on free ports of 127.0.0.1, with its own data directory; killed when dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    libs: Libs,
    java: Vec<String>,
    dir: TempDir,
    /// Address for tests.
    direct: SocketAddr,
    front: SocketAddr,
    child: Option<Child>,
}

impl Broker {
    /// Starts a broker, or prints the reason for skipping to stderr and returns `None`. Blocks for some seconds.
    ///
    /// # Panics
    /// See [`or_skip`].
    pub(crate) fn start_or_skip(test_name: &str, plan: impl FnOnce(&mut Plan)) -> Option<Self> {
        or_skip(test_name, Self::start(plan))
    }

    fn start(configure: impl FnOnce(&mut Plan)) -> Result<Self, Unavailable> {
        let mut broker = Self::format(Libs::prepare()?, configure)?;
        broker.start_again()?;
        Ok(broker)
    }

    /// Makes a broker whose storage is formatted, and which does not run.
    fn format(libs: Libs, configure: impl FnOnce(&mut Plan)) -> Result<Self, Unavailable> {
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let dir = tempfile::tempdir().map_err(failed)?;
        let [direct, front, controller] = free_ports().map_err(failed)?;
        let mut plan = Plan {
            dir: dir.path().to_owned(),
            front,
            advertised: front,
            protocol: "PLAINTEXT",
            properties: String::new(),
            format: Vec::new(),
            java: ["-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"].map(str::to_owned).to_vec(),
        };
        configure(&mut plan);
        let properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{controller}\n\
             listeners=DIRECT://{direct},FRONT://{front},CONTROLLER://{controller}\n\
             advertised.listeners=DIRECT://{direct},FRONT://{}\n\
             listener.security.protocol.map=DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT,FRONT:{}\n\
             inter.broker.listener.name=DIRECT\ncontroller.listener.names=CONTROLLER\nlog.dirs={}\n\
             broker.session.timeout.ms=1000\nbroker.heartbeat.interval.ms=200\n\
             num.partitions={PARTITIONS}\noffsets.topic.replication.factor=1\n\
             authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
             allow.everyone.if.no.acl.found=true\n{}\n",
            plan.advertised,
            plan.protocol,
            dir.path().join("data").display(),
            plan.properties,
        );
        fs::write(dir.path().join("server.properties"), properties).map_err(failed)?;
        let broker = Self { libs, java: plan.java, dir, direct, front, child: None };
        // The tool takes seconds, and writes the same files each time.
        if plan.format.is_empty() && broker.libs.formatted.exists() {
            copy_files(&broker.libs.formatted, &broker.file("data")).map_err(failed)?;
            return Ok(broker);
        }
        let mut format = vec!["format", "-t", CLUSTER_ID, "-c", "server.properties"];
        format.extend(plan.format.iter().map(String::as_str));
        let formatted = broker.java("kafka.tools.StorageTool", &format).output().map_err(failed)?;
        succeeded(&formatted)?;
        Ok(broker)
    }

    /// Starts the broker on its data and ports, and returns when it answers.
    pub(crate) fn start_again(&mut self) -> Result<(), Unavailable> {
        self.start_until("KILL")
    }

    /// Starts the broker. [`Broker::kill`], and any end of the test, sends it this signal.
    fn start_until(&mut self, signal: &str) -> Result<(), Unavailable> {
        assert!(self.child.is_none(), "the broker runs already");
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let log = File::options().create(true).append(true).open(self.log_file()).map_err(failed)?;
        let java = self.java("kafka.Kafka", &["server.properties"]);
        // Its stdin closes at any end of the test.
        let child = Command::new("sh")
            .args(["-c", "\"$@\" & broker=$!; cat >/dev/null; kill -$0 $broker; wait", signal])
            .arg(java.get_program())
            .args(java.get_args())
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .spawn()
            .map_err(failed)?;
        self.child = Some(child);
        let probe = self.consumer();
        match probe.fetch_metadata(None, START_TIMEOUT) {
            Ok(_) => Ok(()),
            Err(error) => Err(Unavailable::StartFailed(format!("{error}\n{}", end_of(&self.log_file())))),
        }
    }

    /// Kills the broker: connections break, its data stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.stdin.take());
            child.wait().expect("a child can be waited for");
        }
    }

    /// Returns the address for handlers without a gate.
    pub(crate) fn address(&self) -> String {
        self.front.to_string()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log_file(&self) -> PathBuf {
        self.file("server.log")
    }

    /// Runs one of Kafka's own tools to its end, at the tests' address.
    pub(crate) fn tool(&self, class: &str, args: &[&str]) -> Output {
        let direct = self.direct.to_string();
        let args = [&["--bootstrap-server", &direct], args].concat();
        let output = self.java(class, &args).output().expect("Java has run before");
        assert!(output.status.success(), "{class}: {output:?}");
        output
    }

    /// Changes the anonymous user's rights on a topic.
    pub(crate) fn acl(&self, args: &[&str]) {
        self.tool("org.apache.kafka.tools.AclCommand", args);
    }

    pub(crate) fn java(&self, class: &str, args: &[&str]) -> Command {
        let mut command = Command::new("java");
        command.current_dir(self.dir.path());
        command.args(&self.java);
        if self.libs.archive.exists() {
            command.arg(format!("-XX:SharedArchiveFile={}", self.libs.archive.display()));
        }
        let log = "-Dorg.slf4j.simpleLogger";
        command.arg(format!("{log}.defaultLogLevel=warn"));
        command.arg(format!("{log}.log.org.apache.kafka.common.network=info")); // logs the reason for refusing a client
        command.arg("-cp").arg(self.libs.jars.join("*"));
        command.arg(class).args(args);
        command
    }

    /// Returns the address for tests.
    pub(crate) fn direct(&self) -> String {
        self.direct.to_string()
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.direct.to_string()).set("group.id", "tests");
        config.set("enable.partition.eof", "true").set("enable.auto.commit", "false");
        config.set("reconnect.backoff.max.ms", "100").set("log_level", "0");
        config.create().expect("the options are right")
    }

    /// Creates a topic.
    pub(crate) fn create_topic(&self, name: &str, config: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", self.direct.to_string())
            .create()
            .expect("the options are right");
        let topic = NewTopic {
            name,
            num_partitions: i32::try_from(PARTITIONS).expect("it is small"),
            replication: TopicReplication::Fixed(1),
            config: config.to_vec(),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
        // after a pause of a second the broker is fenced, and has no room for a topic until its next heartbeat
        let fenced = [Err::<String, _>((name.to_owned(), RDKafkaErrorCode::InvalidReplicationFactor))];
        let make = || runtime.block_on(admin.create_topics([&topic], &AdminOptions::new()));
        let mut answer = make().expect("the broker answers");
        for _ in 0..100 {
            if answer != fenced {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            answer = make().expect("the broker answers");
        }
        assert_eq!(answer, [Ok(name.to_owned())]);
    }

    /// Makes the broker do its slow first steps (about a second), because contract tests have deadlines of seconds.
    pub(crate) fn warm_up(&self) {
        const TOPIC: &str = "warm-up";
        self.create_topic(TOPIC, &[]);
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.direct.to_string()).set("enable.idempotence", "true");
        let producer: BaseProducer = config.create().expect("the options are right");
        for number in 0..200_u32 {
            let key = number.to_string();
            producer.send(BaseRecord::to(TOPIC).key(&key).payload("x")).expect("there is room");
        }
        producer.flush(START_TIMEOUT).expect("the broker answers");
    }

    /// Returns a reader of a topic.
    pub(crate) fn reader(&self, topic: &str) -> Reader {
        Reader { consumer: self.consumer(), topic: topic.to_owned(), next: HashMap::new(), all: Vec::new() }
    }

    /// Reads all of a topic, each partition in order.
    pub(crate) fn stored(&self, topic: &str) -> Vec<Stored> {
        let mut reader = self.reader(topic);
        reader.read().expect("the broker answers");
        reader.all
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            note(&format!("end of the Kafka broker's log:\n{}", end_of(&self.log_file())));
        }
    }
}

/// Reader of a topic from its beginning; each read continues.
pub(crate) struct Reader {
    consumer: BaseConsumer,
    topic: String,
    /// Next offset of each partition.
    next: HashMap<i32, i64>,
    /// Messages read so far, each partition in order.
    pub(crate) all: Vec<Stored>,
}

impl Reader {
    /// Reads to the end. A missing topic counts as empty.
    pub(crate) fn read(&mut self) -> Result<(), KafkaError> {
        const WAIT: Duration = Duration::from_secs(30);
        let metadata = self.consumer.fetch_metadata(Some(&self.topic), WAIT)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let partitions = topic.map_or(&[][..], |topic| topic.partitions());
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            let next = self.next.get(&partition.id()).copied().unwrap_or(0);
            list.add_partition_offset(&self.topic, partition.id(), Offset::Offset(next))?;
        }
        self.consumer.assign(&list)?;
        let mut unread: BTreeSet<i32> = partitions.iter().map(MetadataPartition::id).collect();
        while !unread.is_empty() {
            match self.consumer.poll(WAIT) {
                Some(Ok(message)) => {
                    self.next.insert(message.partition(), message.offset() + 1);
                    self.all.push(Stored::of(&message));
                }
                // repeated for the same partition after a reconnect
                Some(Err(KafkaError::PartitionEOF(partition))) => drop(unread.remove(&partition)),
                Some(Err(KafkaError::MessageConsumption(_))) => {} // it reconnects
                Some(Err(error)) => return Err(error),
                None => panic!("nothing was heard of {} for {WAIT:?}", self.topic),
            }
        }
        Ok(())
    }
}

/// A message of a topic.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) key: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) value: Option<Vec<u8>>,
}

impl Stored {
    fn of(message: &rdkafka::message::BorrowedMessage<'_>) -> Self {
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).expect("it is UTF-8");
        let headers = message.headers().into_iter().flat_map(rdkafka::message::Headers::iter);
        let headers = headers.map(|header| (header.key.to_owned(), text(header.value))).collect();
        Self { key: text(message.key()), headers, value: message.payload().map(<[u8]>::to_vec) }
    }

    /// Returns the event in structured mode; one without data for a tombstone or in binary mode.
    pub(crate) fn event(&self) -> Value {
        match &self.value {
            Some(value) if !self.headers.contains_key("ce_id") => serde_json::from_slice(value).expect("it is JSON"),
            _ => {
                let attributes = self.headers.iter();
                let attributes = attributes.filter_map(|(name, value)| Some((name.strip_prefix("ce_")?, value)));
                json!(attributes.collect::<BTreeMap<_, _>>())
            }
        }
    }

    pub(crate) fn id(&self) -> String {
        self.event()["id"].as_str().expect("each event has one").to_owned()
    }

    pub(crate) fn name(&self) -> String {
        self.event()["name"].as_str().expect("it is of an object").to_owned()
    }
}

/// Returns the content of a compacted topic: the last value of each key, except tombstones.
pub(crate) fn compacted(messages: &[Stored]) -> BTreeMap<String, Value> {
    let mut last = BTreeMap::new();
    for message in messages {
        match &message.value {
            Some(_) => drop(last.insert(message.key.clone(), message.event())),
            None => drop(last.remove(&message.key)),
        }
    }
    last
}

/// What brokers start from, in the target directory.
#[derive(Clone, Debug)]
struct Libs {
    /// Directory of the Java libraries.
    jars: PathBuf,
    /// Files of a formatted storage.
    formatted: PathBuf,
    /// Archive of loaded classes: with it, a start takes half the time of the processor.
    archive: PathBuf,
}

impl Libs {
    /// Returns the paths. First fetches and makes what is missing.
    fn prepare() -> Result<Self, Unavailable> {
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/kafka/pom.xml");
        let version = fs::read_to_string(&pom).map_err(failed)?;
        let version = version.split(['<', '>']).skip_while(|part| *part != "kafka.version").nth(1).unwrap_or_default();
        let file = |suffix: &str| target_dir().join(format!("kafka-{version}{suffix}"));
        let libs = Self { jars: file(""), formatted: file(".formatted"), archive: file(".jsa") };
        // The archive is made last.
        if libs.archive.exists() {
            return Ok(libs);
        }
        fs::create_dir_all(target_dir()).map_err(failed)?;
        // Other processes wait here and then find the result.
        let lock = lock_file(&target_dir().join("kafka.lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        if !libs.jars.exists() {
            libs.fetch(&pom, version)?;
        }
        if !libs.archive.exists() {
            libs.prepare_starts()?;
        }
        Ok(libs)
    }

    /// Fetches the Java libraries.
    fn fetch(&self, pom: &Path, version: &str) -> Result<(), Unavailable> {
        let missing =
            |tool: &str, error: std::io::Error| Unavailable::Missing(format!("{tool} cannot be run: {error}"));
        let java = Command::new("java").arg("-version").output();
        java.map_err(|error| missing("java", error))?;
        note(&format!("fetching Kafka {version} by Maven (tests/support/kafka); half a minute the first time"));
        let unfinished = self.jars.with_extension("unfinished");
        let output = Command::new("mvn")
            .args([OsStr::new("-q"), OsStr::new("-B"), OsStr::new("-f"), pom.as_os_str()])
            .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
            .arg(format!("-DoutputDirectory={}", unfinished.display()))
            .output()
            .map_err(|error| missing("mvn", error))?;
        if !output.status.success() {
            let said = last_lines(&String::from_utf8_lossy(&output.stdout), 5);
            return Err(Unavailable::Missing(format!("Maven did not fetch Kafka: {said}")));
        }
        fs::rename(&unfinished, &self.jars).map_err(|error| Unavailable::StartFailed(error.to_string()))
    }

    /// Formats a storage, runs a broker on it, and keeps the files of the storage and the classes that the broker has loaded.
    fn prepare_starts(&self) -> Result<(), Unavailable> {
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let unfinished = self.archive.with_extension("unfinished");
        let mut broker = Broker::format(self.clone(), |_| {})?;
        copy_files(&broker.file("data"), &self.formatted).map_err(failed)?;
        broker.java.push(format!("-XX:ArchiveClassesAtExit={}", unfinished.display()));
        broker.start_until("TERM")?;
        broker.kill();
        fs::rename(&unfinished, &self.archive).map_err(failed)
    }
}

/// Copies the files of a directory, without its subdirectories. The target appears as a whole.
fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    let unfinished = to.with_extension("unfinished");
    fs::create_dir_all(&unfinished)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), unfinished.join(entry.file_name()))?;
    }
    fs::rename(unfinished, to)
}

fn succeeded(output: &Output) -> Result<(), Unavailable> {
    if output.status.success() {
        return Ok(());
    }
    let said = [&output.stdout[..], &output.stderr].concat();
    Err(Unavailable::StartFailed(last_lines(&String::from_utf8_lossy(&said), 20)))
}
