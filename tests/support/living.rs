//! A living cluster for tests: a real API server, controller-manager and scheduler, and kwok that plays the nodes'
//! kubelets. All of it is the Go module in `tests/cluster`, built on first use.

use std::{
    collections::BTreeSet,
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::{
    cluster::{Cluster, Unavailable, build, end_of, first_line, note, or_skip},
    forger::Forger,
    stream::State,
};

/// One living cluster. Dropping it stops everything; what a killed test leaves ends by itself.
///
/// Every call blocks.
#[derive(Debug)]
pub(crate) struct LivingCluster {
    /// The controllers first: they are dropped before their server.
    controllers: Option<Controllers>,
    binary: PathBuf,
    nodes: usize,
    /// The API server, for all that needs no controllers.
    pub(crate) server: Cluster,
}

impl Drop for LivingCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for component in ["controllers", "kube-controller-manager", "kube-scheduler", "kwok"] {
                let log = self.server.data_dir().join(component).with_extension("log");
                note(&format!("end of the log of {component}:\n{}", end_of(&log)));
            }
        }
    }
}

impl LivingCluster {
    /// Starts a cluster and returns when its nodes are ready and a deployment of 50 replicas, `default/first`, runs.
    /// The first call in a checkout builds two binaries: minutes. A start takes about ten seconds.
    pub(crate) fn start(nodes: usize) -> Result<Self, Unavailable> {
        let binary = build("living")?;
        let server = Cluster::start_with(&["--service-accounts"], &[])?;
        let mut cluster = Self { controllers: None, binary, nodes, server };
        cluster.start_controllers()?;
        cluster.deployment("first", "default", 50);
        cluster.wait_rollout("first", "default");
        Ok(cluster)
    }

    /// Starts a cluster as [`LivingCluster::start`], or says on stderr why the test is skipped and returns `None`.
    ///
    /// # Panics
    /// As [`Cluster::start_or_skip`].
    pub(crate) fn start_or_skip(test_name: &str, nodes: usize) -> Option<Self> {
        or_skip(test_name, Self::start(nodes))
    }

    /// Runs kubectl as the administrator and returns what it prints; that it fails fails the test.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("kubectl {args:?}: {error}"))
    }

    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Kubectl(self.binary.clone()).command();
        let output = command.args(args).env("KUBECONFIG", self.server.kubeconfig()).output();
        let output = output.expect("the living binary runs");
        let text = |bytes| String::from_utf8(bytes).expect("kubectl prints UTF-8");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// Applies all YAML documents of a text (server-side, by force).
    pub(crate) fn apply(&self, yaml: &str) {
        self.server.apply_yaml(yaml);
    }

    /// Applies a deployment and a service in front of it, and its namespace. Rollouts replace a quarter at a time.
    pub(crate) fn deployment(&self, name: &str, namespace: &str, replicas: usize) {
        let labels = json!({ "app": name });
        let container = json!({ "name": "app", "image": "app:1", "resources": { "requests": { "cpu": "50m" } } });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
            },
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": namespace },
            "spec": { "selector": labels, "ports": [{ "port": 80 }] },
        });
        self.server.apply(&json!({
            "apiVersion": "v1", "kind": "List",
            "items": [namespace_of(namespace), deployment, service],
        }));
    }

    /// Begins to replace all pods of a deployment.
    pub(crate) fn rollout_restart(&self, name: &str, namespace: &str) {
        self.kubectl(&["rollout", "restart", &format!("deployment/{name}"), "-n", namespace]);
    }

    /// Waits until a deployment's pods are all of its newest template, and available.
    pub(crate) fn wait_rollout(&self, name: &str, namespace: &str) {
        let deployment = format!("deployment/{name}");
        if let Err(error) = self.try_kubectl(&["rollout", "status", &deployment, "-n", namespace, "--timeout=300s"]) {
            let rest =
                self.kubectl(&["get", "deployment,replicaset,pod", "-n", namespace, "-l", &format!("app={name}")]);
            panic!("the rollout of {namespace}/{name} does not end: {error}\n{rest}");
        }
    }

    /// Creates a custom type and returns when it is served.
    pub(crate) fn crd_create(&self, plural: &str, group: &str) {
        self.server.apply(&json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "plural": plural, "singular": format!("{plural}-one"), "kind": kind_of(plural) },
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                }],
            },
        }));
    }

    /// Writes `count` objects of a custom type, or changes them.
    pub(crate) fn crd_fill(&self, plural: &str, group: &str, count: usize) {
        let object = |number: usize| {
            let name = format!("{plural}-{number}");
            json!({
                "apiVersion": format!("{group}/v1"), "kind": kind_of(plural),
                "metadata": { "name": name, "namespace": "default" }, "spec": { "number": number, "of": count },
            })
        };
        let items: Vec<Value> = (0..count).map(object).collect();
        self.server.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }));
    }

    /// Removes a custom type with all its objects, and returns when it is gone.
    pub(crate) fn crd_remove(&self, plural: &str, group: &str) {
        self.kubectl(&["delete", "crd", &format!("{plural}.{group}"), "--wait", "--timeout=300s"]);
    }

    /// Restarts the API server on the same data. The controllers ride it out.
    pub(crate) fn restart_api_server(&mut self) {
        self.server.restart();
    }

    /// Starts a proxy in front of the API server that can forge what it says.
    pub(crate) fn forger(&self) -> Forger {
        let upstream: SocketAddr =
            self.server.url().trim_start_matches("https://").parse().expect("a loopback address");
        Forger::start(upstream, &self.server.data_dir())
    }

    /// Writes a kubeconfig that leads to a proxy in front of the API server.
    pub(crate) fn write_kubeconfig(&self, through: SocketAddr, path: &Path) {
        let direct = std::fs::read_to_string(self.server.kubeconfig()).expect("the fixture wrote it");
        let through = direct.replace(self.server.url(), &format!("https://{through}"));
        std::fs::write(path, through).expect("the directory is writable");
    }

    /// Ends controller-manager, scheduler and kwok: the cluster comes to rest. Nodes and pods stay as they are.
    pub(crate) fn stop_controllers(&mut self) {
        self.controllers = None;
    }

    /// Starts the controllers after [`LivingCluster::stop_controllers`], and returns when all nodes are ready.
    pub(crate) fn start_controllers(&mut self) -> Result<(), Unavailable> {
        self.controllers = Some(Controllers::start(&self.binary, &self.server.data_dir(), self.nodes)?);
        Ok(())
    }

    /// Returns every type that can be listed and watched, but for the types named (`leases.coordination.k8s.io`), and
    /// all their objects. While the cluster lives this is one moment of each type, not of all together.
    pub(crate) fn dump_all(&self, except: &[&str]) -> (BTreeSet<String>, State) {
        let dump = self.server.dump_all(except);
        let (mut types, mut objects) = (BTreeSet::new(), State::new());
        for (resource, list) in dump.as_object().expect("a dump has types") {
            types.insert(resource.clone());
            for (key, object) in list["items"].as_object().expect("a dumped type has items") {
                let field = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
                let key = if key.contains('/') { key.clone() } else { format!("/{key}") };
                objects.insert(format!("{resource}/{key}"), (field("uid"), field("resourceVersion")));
            }
        }
        (types, objects)
    }
}

/// The kubectl that the living binary has inside: no test needs one on the machine.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl(PathBuf);

impl Kubectl {
    /// Builds the living binary, minutes the first time in a checkout, or says on stderr why the test is skipped and
    /// returns `None`.
    ///
    /// # Panics
    /// As [`Cluster::start_or_skip`].
    pub(crate) fn build_or_skip(test_name: &str) -> Option<Self> {
        or_skip(test_name, build("living")).map(Self)
    }

    /// Makes a command whose arguments are kubectl's.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.arg("kubectl").stdin(Stdio::null());
        command
    }
}

fn namespace_of(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// `gadgets` → `Gadgets`.
fn kind_of(plural: &str) -> String {
    let (first, rest) = plural.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// The process that keeps the controllers. It and they end when its stdin closes.
#[derive(Debug)]
struct Controllers(Child);

impl Controllers {
    fn start(binary: &Path, data_dir: &Path, nodes: usize) -> Result<Self, Unavailable> {
        let log = data_dir.join("controllers.log");
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let stderr = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let mut command = Command::new(binary);
        command.arg("controllers").arg("--data-dir").arg(data_dir).args(["--nodes", &nodes.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).spawn().map_err(failed)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let controllers = Self(child);
        match first_line(stdout) {
            Some(_) => Ok(controllers),
            None => Err(Unavailable::StartFailed(end_of(&log))),
        }
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It waits for its own children, which write into a directory that is removed next.
        self.0.wait().ok();
    }
}
