//! kubectl with the simulator: every command has the effect that it has on a real API server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
    thread,
};

use crate::support::{cluster::Cluster, engine::text, living::Kubectl};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

/// Commands in order. kubectl runs each for both servers.
const COMMANDS: &[&str] = &[
    "create namespace tried",
    "create configmap settings --from-literal=a=1 --from-literal=b=",
    "create secret generic key --from-literal=a=1",
    "create deployment web --image=web:1 --replicas=2 --port=80",
    "create deployment web --image=web:1",
    "create service clusterip web --tcp=80:8080",
    "create job once --image=once:1 -- true",
    "create cronjob nightly --image=once:1 --schedule=@daily -- true",
    "create role reader --verb=get,list --resource=pods,deployments.apps",
    "create rolebinding reader --role=reader --serviceaccount=tried:robot",
    "create ingress web --rule=a.example/x*=web:80 --class=x",
    "create poddisruptionbudget web --selector=app=web --min-available=0",
    "create priorityclass tried --value=0 --description=low",
    "run single --image=web:1 --port=80 --labels=run=single",
    "auth can-i create pods",
    "set image deployment/web web=web:2",
    "set env deployment/web A=1",
    "scale deployment/web --replicas=3",
    "scale deployment/web --current-replicas=3 --replicas=4",
    "scale deployment/web --current-replicas=9 --replicas=1",
    "scale pod/single --replicas=2",
    "autoscale deployment web --min=2 --max=5 --cpu=80%",
    "label deployment web tier=front",
    "label deployment web tier=back --overwrite",
    "annotate configmap settings note=x",
    r#"patch deployment web -p {"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:1"}]}}}}"#,
    r#"patch deployment web --type=merge -p {"spec":{"paused":true}}"#,
    r#"patch deployment web --type=json -p [{"op":"remove","path":"/spec/paused"}]"#,
    r#"patch deployment web --subresource=scale --type=merge -p {"spec":{"replicas":5}}"#,
    r#"patch website home --type=merge -p {"spec":{"size":2}}"#,
    r#"patch website home -p {"spec":{"size":3}}"#,
    "edit deployment web",
    "edit website home",
    "apply -f applied.yaml",
    "apply -f changed.yaml",
    "delete pod single --now",
    "delete configmap settings",
    "delete configmap settings",
];

/// Objects after the commands, and their compared fields.
const OBJECTS: &[(&str, &[&str])] = &[
    (
        "/apis/apps/v1/namespaces/tried/deployments/web",
        &[
            "/spec/replicas",
            "/spec/paused",
            "/spec/selector",
            "/metadata/labels",
            "/metadata/generation",
            "/spec/template/metadata/labels",
            "/spec/template/spec/containers/0/name",
            "/spec/template/spec/containers/0/image",
            "/spec/template/spec/containers/0/env",
            "/spec/template/spec/containers/1/name",
            "/spec/template/spec/containers/1/image",
            "/spec/template/spec/containers/1/ports/0/containerPort",
            "/spec/template/spec/containers/1/env",
        ],
    ),
    (
        "/apis/apps/v1/namespaces/tried/deployments/applied",
        &[
            "/spec/template/spec/containers/0/name",
            "/spec/template/spec/containers/1/name",
            "/spec/template/spec/containers/0/image",
            "/spec/template/spec/containers/0/ports/0/containerPort",
            "/spec/template/spec/containers/0/ports/1/containerPort",
            "/metadata/annotations",
            "/metadata/labels",
        ],
    ),
    ("/api/v1/namespaces/tried/secrets/key", &["/data"]),
    ("/api/v1/namespaces/tried/services/web", &["/spec/ports", "/spec/selector", "/spec/type", "/metadata/labels"]),
    (
        "/apis/batch/v1/namespaces/tried/jobs/once",
        &["/spec/template/spec/restartPolicy", "/spec/template/spec/containers/0/command"],
    ),
    (
        "/apis/batch/v1/namespaces/tried/cronjobs/nightly",
        &["/spec/schedule", "/spec/jobTemplate/spec/template/spec/containers/0/image"],
    ),
    ("/apis/rbac.authorization.k8s.io/v1/namespaces/tried/roles/reader", &["/rules"]),
    ("/apis/rbac.authorization.k8s.io/v1/namespaces/tried/rolebindings/reader", &["/roleRef", "/subjects"]),
    ("/apis/networking.k8s.io/v1/namespaces/tried/ingresses/web", &["/spec"]),
    ("/apis/policy/v1/namespaces/tried/poddisruptionbudgets/web", &["/spec"]),
    (
        "/apis/autoscaling/v2/namespaces/tried/horizontalpodautoscalers/web",
        &["/spec/scaleTargetRef", "/spec/minReplicas", "/spec/maxReplicas", "/spec/metrics"],
    ),
    ("/apis/scheduling.k8s.io/v1/priorityclasses/tried", &["/value", "/description"]),
    ("/api/v1/namespaces/tried/pods/single", &["/reason"]),
    ("/api/v1/namespaces/tried/configmaps/settings", &["/reason"]),
    ("/apis/tried.dev/v1/namespaces/tried/websites/home", &["/spec"]),
];

const APPLIED: &str = "\
{apiVersion: apps/v1, kind: Deployment, metadata: {name: applied, labels: {a: b}}, spec: {selector: {matchLabels: {app: applied}}, template: {
metadata: {labels: {app: applied}}, spec: {containers: [{name: one, image: x, ports: [{containerPort: 80}]}, {name: two, image: x}]}}}}
";

const CHANGED: &str = "\
{apiVersion: apps/v1, kind: Deployment, metadata: {name: applied, labels: {c: d}}, spec: {selector: {matchLabels: {app: applied}}, template: {
metadata: {labels: {app: applied}}, spec: {containers: [{name: three, image: x, ports: [{containerPort: 81}, {containerPort: 82}]}, {name: one, image: z}]}}}}
";

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "websites.tried.dev"},
        "spec": {
            "group": "tried.dev", "scope": "Namespaced", "names": {"kind": "Website", "plural": "websites", "singular": "website"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}

/// Runs one command of kubectl in the namespace `tried`. As an editor, it replaces `:2` by `:3`, and a size of 2 by 4.
fn run(kubectl: &Kubectl, dir: &Path, kubeconfig: &Path, command: &str) -> Output {
    let mut run = kubectl.command();
    run.arg("--kubeconfig").arg(kubeconfig).args(["--namespace", "tried"]).args(command.split(' '));
    run.env("HOME", dir).env("KUBE_EDITOR", r"sed -i -e s/:2$/:3/ -e s/\(size:.\)2/\14/").current_dir(dir);
    run.output().expect("kubectl runs")
}

#[test]
fn kubectl_changes_simulator_like_real_server() {
    let name = "kubectl_changes_simulator_like_real_server";
    let Some(kubectl) = Kubectl::build_or_skip(name) else { return };
    let Some(cluster) = Cluster::shared_or_skip(name) else { return };
    let simulator = Simulator::start(SimulatorOptions::default()).expect("a loopback port is free");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let simulated = PathBuf::from(text(dir.path(), "simulated.kubeconfig"));
    for (name, content) in
        [("simulated.kubeconfig", &*simulator.kubeconfig()), ("applied.yaml", APPLIED), ("changed.yaml", CHANGED)]
    {
        fs::write(dir.path().join(name), content).expect("the directory is writable");
    }
    cluster.apply(&definition());
    simulator
        .store()
        .create("customresourcedefinitions.apiextensions.k8s.io", definition())
        .expect("a valid definition");
    let both = [cluster.kubeconfig(), &simulated];
    let mut wrong = Vec::new();
    for command in COMMANDS {
        let outputs = thread::scope(|scope| {
            both.map(|kubeconfig| scope.spawn(|| run(&kubectl, dir.path(), kubeconfig, command)))
                .map(|thread| thread.join().expect("kubectl runs"))
        });
        let [real, simulated] = outputs.map(|output| {
            let said = if output.status.success() {
                String::new()
            } else {
                String::from_utf8_lossy(&output.stderr).into_owned()
            };
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said)
        });
        if simulated != real {
            wrong.push(format!("kubectl {command}: {simulated:?}, but the real server: {real:?}"));
        }
        if *command == "create namespace tried" {
            let home = json!({
                "apiVersion": "tried.dev/v1", "kind": "Website", "metadata": {"name": "home", "namespace": "tried"},
                "spec": {"size": 1},
            });
            cluster.apply(&home);
            simulator.store().create("websites.tried.dev", home).expect("a valid object");
        }
    }
    for (path, fields) in OBJECTS {
        let [real, simulated] = both.map(|kubeconfig| {
            let (_, object) = cluster.request_as(kubeconfig, "GET", path, None);
            fields.iter().map(|field| (*field, object.pointer(field).cloned())).collect::<Vec<_>>()
        });
        if simulated != real {
            wrong.push(format!("{path}: {simulated:?}, but the real server: {real:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
