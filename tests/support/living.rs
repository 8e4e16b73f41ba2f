//! A live cluster for tests: a real API server, controller-manager and scheduler, and kwok in the role of the nodes'
//! kubelets. All are in the Go module `tests/cluster`, built on first use.

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

/// One live cluster. Dropping it stops everything; leftovers of a killed test exit by themselves.
///
/// Every call blocks.
#[derive(Debug)]
pub(crate) struct LivingCluster {
    /// The controllers, declared first so that they are dropped before their server.
    controllers: Option<Controllers>,
    binary: PathBuf,
    nodes: usize,
    /// The API server, for actions that need no controllers.
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
    /// The first call in a checkout builds two binaries, which takes minutes. A start takes about ten seconds.
    pub(crate) fn start(nodes: usize) -> Result<Self, Unavailable> {
        let binary = build("living")?;
        let server = Cluster::start_with(&["--service-accounts"], &[])?;
        let mut cluster = Self { controllers: None, binary, nodes, server };
        cluster.start_controllers()?;
        cluster.deployment("first", "default", 50);
        cluster.wait_rollout("first", "default");
        Ok(cluster)
    }

    /// Starts a cluster like [`LivingCluster::start`], or prints the reason for skipping to stderr and returns `None`.
    ///
    /// # Panics
    /// See [`Cluster::start_or_skip`].
    pub(crate) fn start_or_skip(test_name: &str, nodes: usize) -> Option<Self> {
        or_skip(test_name, Self::start(nodes))
    }

    /// Runs kubectl as the administrator and returns its output; a failure fails the test.
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

    /// Applies a deployment, a service in front of it, and its namespace. Rollouts replace a quarter at a time.
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

    /// Starts the replacement of all pods of a deployment.
    pub(crate) fn rollout_restart(&self, name: &str, namespace: &str) {
        self.kubectl(&["rollout", "restart", &format!("deployment/{name}"), "-n", namespace]);
    }

    /// Waits until all pods of a deployment have its newest template and are available.
    pub(crate) fn wait_rollout(&self, name: &str, namespace: &str) {
        let deployment = format!("deployment/{name}");
        if let Err(error) = self.try_kubectl(&["rollout", "status", &deployment, "-n", namespace, "--timeout=300s"]) {
            let rest =
                self.kubectl(&["get", "deployment,replicaset,pod", "-n", namespace, "-l", &format!("app={name}")]);
            panic!("the rollout of {namespace}/{name} does not end: {error}\n{rest}");
        }
    }

    /// Creates a custom type and waits until it is served.
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

    /// Creates or changes `count` objects of a custom type.
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

    /// Removes a custom type with all its objects, and waits until it is gone.
    pub(crate) fn crd_remove(&self, plural: &str, group: &str) {
        self.kubectl(&["delete", "crd", &format!("{plural}.{group}"), "--wait", "--timeout=300s"]);
    }

    /// Restarts the API server on the same data. The controllers survive it.
    pub(crate) fn restart_api_server(&mut self) {
        self.server.restart();
    }

    /// Starts a proxy in front of the API server that can forge its answers.
    pub(crate) fn forger(&self) -> Forger {
        let upstream: SocketAddr =
            self.server.url().trim_start_matches("https://").parse().expect("a loopback address");
        Forger::start(upstream, &self.server.data_dir())
    }

    /// Writes a kubeconfig for a proxy in front of the API server.
    pub(crate) fn write_kubeconfig(&self, through: SocketAddr, path: &Path) {
        let direct = std::fs::read_to_string(self.server.kubeconfig()).expect("the fixture wrote it");
        let through = direct.replace(self.server.url(), &format!("https://{through}"));
        std::fs::write(path, through).expect("the directory is writable");
    }

    /// Stops controller-manager, scheduler and kwok, so that the cluster becomes idle. Nodes and pods stay.
    pub(crate) fn stop_controllers(&mut self) {
        self.controllers = None;
    }

    /// Starts the controllers after [`LivingCluster::stop_controllers`], and waits until all nodes are ready.
    pub(crate) fn start_controllers(&mut self) -> Result<(), Unavailable> {
        self.controllers = Some(Controllers::start(&self.binary, &self.server.data_dir(), self.nodes)?);
        Ok(())
    }

    /// Returns all watchable types with their objects, except the named types (`leases.coordination.k8s.io`). On a changing
    /// cluster each type is consistent, but not all types together.
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

/// The kubectl in the living binary, so that none needs to be installed.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl(PathBuf);

impl Kubectl {
    /// Builds the living binary, which takes minutes the first time in a checkout. Otherwise prints the reason for skipping to
    /// stderr and returns `None`.
    ///
    /// # Panics
    /// See [`Cluster::start_or_skip`].
    pub(crate) fn build_or_skip(test_name: &str) -> Option<Self> {
        or_skip(test_name, build("living")).map(Self)
    }

    /// Returns a command that takes kubectl's arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.arg("kubectl").stdin(Stdio::null());
        command
    }
}

fn namespace_of(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// Returns the kind of a plural: `gadgets` → `Gadgets`.
fn kind_of(plural: &str) -> String {
    let (first, rest) = plural.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// The parent process of the controllers. It and they exit when its stdin closes.
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
