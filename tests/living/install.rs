//! `deltabus manifests` and the Helm chart, installed in a live cluster, and the program run like such a pod.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{
    command::deltabus,
    engine::Engine,
    helm::{self, Helm},
    living::LivingCluster,
};
use serde_json::{Value, json};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/deltabus");
/// User and group of the pod.
const USER: u32 = 65532;
/// Timeout for actions of the cluster.
const PATIENCE: Duration = Duration::from_mins(1);

const CONFIG: &str = r#"
[resources.work]
match = ["pods", "deployments.apps"]
[redact]
hmac_key = { file = "/run/secrets/keys/hmac" }
[kube]
streaming_lists = "never"
[state]
dir = "/var/lib/deltabus/state"
[handlers.out]
type = "file"
path = "/var/lib/deltabus/events/out.jsonl"
initial = "send"
"#;

fn manifests(cluster: &LivingCluster, dir: &Path, args: &[&str]) -> String {
    fs::write(dir.join("config.toml"), CONFIG).unwrap();
    let args = [&["manifests", "-c", "config.toml"], args].concat();
    let (code, stdout, stderr) = deltabus(dir, cluster.server.kubeconfig(), &args, &[]);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

/// Does an administrator's part: a volume, the Secret, and a namespace that accepts only restricted pods.
fn prepare(cluster: &LivingCluster, namespace: &str) {
    let label = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
    let metadata = json!({ "name": namespace, "labels": label });
    cluster.server.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    cluster.server.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys", "namespace": namespace },
        "stringData": { "hmac": "0123456789abcdef" },
    }));
    cluster.server.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": namespace },
        "spec": {
            "capacity": { "storage": "100Gi" }, "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": format!("/mnt/{namespace}") },
            "claimRef": { "namespace": namespace, "name": "deltabus" },
        },
    }));
}

fn wait_rolled_out(cluster: &LivingCluster, namespace: &str) {
    cluster.kubectl(&["rollout", "status", "statefulset/deltabus", "-n", namespace, "--timeout=120s"]);
}

/// Environment of a pod under a kubelet: a read-only root, volumes, and an unprivileged user.
struct Pod {
    dir: tempfile::TempDir,
    /// Number of configuration versions so far.
    versions: u32,
}

impl Pod {
    fn new(token: &str, ca: &Path, config: &Value) -> Self {
        let mut pod = Self { dir: tempfile::tempdir().unwrap(), versions: 0 };
        fs::set_permissions(pod.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for dir in ["config", "var/run/secrets/kubernetes.io/serviceaccount", "run/secrets/keys", "var/lib/deltabus"] {
            fs::create_dir_all(pod.path(dir)).unwrap();
        }
        let account = pod.path("var/run/secrets/kubernetes.io/serviceaccount");
        fs::write(account.join("token"), token).unwrap();
        fs::write(account.join("namespace"), "deltabus").unwrap();
        fs::write(account.join("ca.crt"), fs::read(ca).unwrap()).unwrap();
        let key = pod.path("run/secrets/keys/hmac");
        fs::write(&key, "0123456789abcdef").unwrap();
        chown(&key, None, Some(USER)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o440)).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_deltabus"), pod.path("deltabus")).unwrap();
        pod.configure(config);
        pod
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// Returns a directory of the volume, which belongs to the pod's group.
    fn volume(&self, name: &str) -> PathBuf {
        self.dir.path().join("volume").join(name)
    }

    /// Changes the files of the `ConfigMap` like a kubelet: atomically, by a symlink.
    fn configure(&mut self, files: &Value) {
        self.versions += 1;
        let (config, version) = (self.path("config"), format!("..{}", self.versions));
        fs::create_dir(config.join(&version)).unwrap();
        for (name, text) in files.as_object().unwrap() {
            fs::write(config.join(&version).join(name), text.as_str().unwrap()).unwrap();
            symlink(format!("..data/{name}"), config.join(name))
                .or_else(|error| if config.join(name).exists() { Ok(()) } else { Err(error) })
                .unwrap();
        }
        symlink(version, config.join("..new")).unwrap();
        fs::rename(config.join("..new"), config.join("..data")).unwrap();
    }

    /// Runs the program with an empty volume.
    fn run(&self, server: &str) -> Engine {
        fs::remove_dir_all(self.dir.path().join("volume")).ok();
        let root = self.dir.path().join("root");
        let mut script = vec!["mount --rbind \"$ROOT\" \"$ROOT\"".to_owned()];
        for dir in ["usr", "lib", "lib64", "dev", "proc"].iter().filter(|dir| Path::new("/").join(dir).exists()) {
            fs::create_dir_all(self.path(dir)).unwrap();
            script.push(format!("mount --rbind /{dir} \"$ROOT/{dir}\""));
        }
        for name in ["state", "events"] {
            fs::create_dir_all(self.path("var/lib/deltabus").join(name)).unwrap();
            fs::create_dir_all(self.volume(name)).unwrap();
            chown(self.volume(name), None, Some(USER)).unwrap();
            fs::set_permissions(self.volume(name), fs::Permissions::from_mode(0o2770)).unwrap();
            script.push(format!("mount --bind \"$VOLUME/{name}\" \"$ROOT/var/lib/deltabus/{name}\""));
        }
        script.push("mount -o remount,bind,ro \"$ROOT\"".to_owned());
        script.push(
            "exec chroot \"$ROOT\" /usr/bin/setpriv --reuid=65532 --regid=65532 --clear-groups --no-new-privs \
             --bounding-set=-all --inh-caps=-all /deltabus run -c /config"
                .to_owned(),
        );
        let (host, port) = server.trim_start_matches("https://").rsplit_once(':').unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", &script.join("\n")]).env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("ROOT", root);
        command.env("VOLUME", self.dir.path().join("volume"));
        command.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
        // Other tests use ports too.
        command.env("DELTABUS__HTTP__LISTEN", "127.0.0.1:0").env("DELTABUS__HTTP__PROBE_LISTEN", "127.0.0.1:0");
        command.stdout(Stdio::null());
        Engine::spawn_command(command)
    }
}

#[test]
fn installed_bus_rolls_out_with_minimal_rights() {
    let name = "installed_bus_rolls_out_with_minimal_rights";
    let Some(helm) = helm::build_or_skip(name) else { return };
    let Some(cluster) = LivingCluster::start_or_skip(name, 1) else { return };
    let dir = tempfile::tempdir().unwrap();

    for namespace in ["deltabus", "charted"] {
        prepare(&cluster, namespace);
    }
    let yaml = manifests(&cluster, dir.path(), &[]);
    cluster.apply(&yaml);
    install_chart(&cluster, &helm, dir.path());
    wait_rolled_out(&cluster, "deltabus");
    wait_rolled_out(&cluster, "charted");
    pod_has_a_name(&cluster, "deltabus");
    volume_survives_uninstall(&cluster, &helm, dir.path());

    if !may_make_roots() {
        eprintln!("{name}: this user may not mount: the program is not run as the pod runs it");
        return;
    }
    let token = &cluster.server.service_account_token("deltabus", "deltabus");
    let config = cluster.server.get("/api/v1/namespaces/deltabus/configmaps/deltabus")["data"].clone();
    let mut pod = Pod::new(token, &cluster.server.ca_file(), &config);

    let engine = pod.run(cluster.server.url());
    engine.wait_ready(PATIENCE);
    let events = pod.volume("events").join("out.jsonl");
    engine.wait_for("delivered", PATIENCE, || {
        fs::read_to_string(&events).unwrap_or_default().contains("/namespaces/charted/pods/deltabus-0")
    });
    // A changed configuration is applied without a restart.
    let mut changed = config.clone();
    changed["00-config.toml"] = json!(CONFIG.replace("\"deployments.apps\"", "\"deployments.apps\", \"statefulsets\""));
    let path = "/api/v1/namespaces/deltabus/configmaps/deltabus";
    assert_eq!(cluster.server.request("PATCH", path, Some(&json!({ "data": changed }))).0, 200);
    pod.configure(&changed);
    engine.wait_for_log("applied the changed configuration");
    assert!(engine.terminate().success());

    pod.configure(&config);
    each_verb_is_needed(&cluster, &pod, token, dir.path());
}

/// Checks that the Service of the stateful set resolves to the pod.
fn pod_has_a_name(cluster: &LivingCluster, namespace: &str) {
    let set = cluster.server.get(&format!("/apis/apps/v1/namespaces/{namespace}/statefulsets/deltabus"));
    let service = format!("kubernetes.io/service-name={}", set["spec"]["serviceName"].as_str().unwrap());
    let jsonpath = "jsonpath={.items[*].endpoints[*].hostname}";
    let host = cluster.kubectl(&["get", "endpointslices", "-n", namespace, "-l", &service, "-o", jsonpath]);
    assert_eq!(host, "deltabus-0");
}

/// Uninstalls the chart and installs it again: the new pod gets the volume of the old one.
fn volume_survives_uninstall(cluster: &LivingCluster, helm: &Helm, dir: &Path) {
    let claim = "/api/v1/namespaces/charted/persistentvolumeclaims/deltabus";
    let uid = cluster.server.get(claim)["metadata"]["uid"].clone();
    let kubeconfig = cluster.server.kubeconfig().to_str().unwrap();
    helm.run(&["uninstall", "deltabus", "-n", "charted", "--wait", "--kubeconfig", kubeconfig]);
    install_chart(cluster, helm, dir);
    wait_rolled_out(cluster, "charted");
    let kept = &cluster.server.get(claim)["metadata"];
    assert!(kept["uid"] == uid && kept["deletionTimestamp"].is_null(), "{kept}");
}

/// Returns true if this user may create mounts for a process; root may, outside of most containers.
fn may_make_roots() -> bool {
    let status = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn install_chart(cluster: &LivingCluster, helm: &Helm, dir: &Path) {
    let values = dir.join("values.yaml");
    fs::write(&values, manifests(cluster, dir, &["-n", "charted", "-o", "values"])).unwrap();
    let (values, kubeconfig) = (values.to_str().unwrap(), cluster.server.kubeconfig().to_str().unwrap());
    let notes = helm.run(&["install", "deltabus", CHART, "-n", "charted", "-f", values, "--kubeconfig", kubeconfig]);
    assert!(notes.contains("port-forward deltabus-0"), "{notes}");
}

/// Removes each verb of the role in turn: the engine reports the missing one.
fn each_verb_is_needed(cluster: &LivingCluster, pod: &Pod, token: &str, dir: &Path) {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/deltabus-deltabus";
    let rules = cluster.server.get(path)["rules"].clone();
    let kubeconfig = dir.join("kubeconfig");
    cluster.server.write_kubeconfig_of(token, &kubeconfig);
    let mut count = 0;
    for (at, rule) in rules.as_array().unwrap().iter().enumerate() {
        for (place, verb) in rule["verbs"].as_array().unwrap().iter().enumerate() {
            let mut fewer = rules.clone();
            fewer[at]["verbs"].as_array_mut().unwrap().remove(place);
            if fewer[at]["verbs"] == json!([]) {
                fewer.as_array_mut().unwrap().remove(at);
            }
            assert_eq!(cluster.server.request("PATCH", path, Some(&json!({ "rules": fewer }))).0, 200);
            let (group, plural, verb) = (&rule["apiGroups"][0], &rule["resources"][0], verb.as_str().unwrap());
            let name = &rule["resourceNames"][0];
            let asked = json!({ "group": group, "resource": plural, "verb": verb, "name": name });
            cluster.server.wait_allowed(false, &kubeconfig, &asked);
            let engine = pod.run(cluster.server.url());
            let plural = plural.as_str().unwrap();
            if name.is_null() {
                let says = format!("not allowed to {verb} {plural}");
                engine.wait_for(&says, PATIENCE, || {
                    let rows = engine.json("/v1/resources");
                    rows["resources"].as_array().unwrap().iter().any(|row| {
                        row["plural"] == plural && row["message"].as_str().is_some_and(|said| said.starts_with(&says))
                    })
                });
            } else {
                engine.wait_for_log("no right to read the namespace kube-system");
            }
            assert!(engine.terminate().success());
            count += 1;
        }
    }
    assert_eq!(count, 5, "list and watch of two types, get of a namespace: {rules}");
}
