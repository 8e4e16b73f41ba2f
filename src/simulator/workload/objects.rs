//! The smaller objects of the simulated cluster.

use serde_json::{Value, json};

use super::{Deployment, template::Fill};

pub(super) fn node(number: usize, time: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "", "lastHeartbeatTime": time,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let name = format!("node-{number:04}");
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
            },
        },
        "spec": {"podCIDR": format!("10.{number}.0.0/24")},
        "status": {
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "allocatable": {"cpu": "15800m", "memory": "62Gi", "pods": "110"},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [{"type": "InternalIP", "address": format!("172.0.0.{number}")}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "simulated", "containerRuntimeVersion": "containerd://2.1"},
        },
    })
}

pub(super) fn lease(node: usize, time: &str) -> Value {
    let name = format!("node-{node:04}");
    let time = time.replace('Z', ".000000Z");
    json!({
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": time},
    })
}

pub(super) fn configmap(deployment: &Deployment, revision: usize) -> Value {
    json!({
        "metadata": {"name": format!("{}-config", deployment.name), "namespace": deployment.namespace, "labels": labels(deployment)},
        "data": {"config.yaml": format!("revision: {revision}\nlisten: :8080\napp: {}\n", deployment.app)},
    })
}

pub(super) fn service(deployment: &Deployment, number: usize) -> Value {
    json!({
        "metadata": {"name": deployment.name, "namespace": deployment.namespace, "labels": labels(deployment)},
        "spec": {
            "type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", number / 250, number % 250 + 1),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
            "selector": {"app.kubernetes.io/name": deployment.app},
        },
    })
}

pub(super) fn deployment(deployment: &Deployment, replicas: usize) -> Value {
    json!({
        "metadata": {
            "name": deployment.name, "namespace": deployment.namespace, "uid": deployment.uid,
            "labels": labels(deployment),
            "annotations": {"deployment.kubernetes.io/revision": deployment.revision.to_string()},
        },
        "spec": {
            "replicas": replicas, "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app.kubernetes.io/name": deployment.app}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": template(deployment),
        },
        "status": {
            "observedGeneration": deployment.revision, "replicas": replicas, "readyReplicas": replicas,
            "updatedReplicas": if deployment.rolling_from.is_some() { 0 } else { replicas },
        },
    })
}

pub(super) fn replicaset(deployment: &Deployment, hash: &str, uid: &str, replicas: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-{hash}", deployment.name), "namespace": deployment.namespace, "uid": uid,
            "labels": labels(deployment),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name, "uid": deployment.uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": deployment.app, "pod-template-hash": hash}},
            "template": template(deployment),
        },
        "status": {"replicas": replicas, "readyReplicas": replicas, "observedGeneration": 1},
    })
}

pub(super) fn job(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "import"}},
        "spec": {
            "parallelism": 1, "completions": 1, "backoffLimit": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "import", "image": "import:2.0.1"}]}},
        },
        "status": {"active": 1},
    })
}

pub(super) fn event(pod: &Fill, reason: &str, kind: &str, time: &str, number: u64) -> Value {
    json!({
        "metadata": {"name": format!("{}.{number:016x}", pod.name), "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
        },
        "reason": reason, "type": kind, "message": format!("{reason} container {}", pod.app),
        "source": {"component": "kubelet"}, "count": 1, "firstTimestamp": time, "lastTimestamp": time,
        "reportingComponent": "kubelet", "reportingInstance": "",
    })
}

pub(super) fn pending(time: &str) -> String {
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": time});
    let status = json!({"conditions": [condition], "qosClass": "Burstable"});
    with_phase("Pending", &status)
}

pub(super) fn ended(phase: &str, time: &str) -> String {
    let ready = json!({"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": time});
    with_phase(phase, &json!({"conditions": [ready], "startTime": time, "qosClass": "Burstable"}))
}

fn with_phase(phase: &str, status: &Value) -> String {
    let rest = status.to_string();
    format!(r#"{{"phase":"{phase}",{}"#, rest.strip_prefix('{').unwrap_or(&rest))
}

pub(super) fn website_definition() -> Value {
    json!({
        "metadata": {"name": "websites.demo.deltabus.dev"},
        "spec": {
            "group": "demo.deltabus.dev", "scope": "Namespaced",
            "names": {
                "kind": "Website", "listKind": "WebsiteList", "plural": "websites", "singular": "website",
                "shortNames": ["site"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn labels(deployment: &Deployment) -> Value {
    json!({"app.kubernetes.io/name": deployment.app, "app.kubernetes.io/part-of": "shop"})
}

fn template(deployment: &Deployment) -> Value {
    json!({
        "metadata": {"labels": labels(deployment)},
        "spec": {
            "serviceAccountName": deployment.app,
            "containers": [{
                "name": deployment.app,
                "image": format!("registry.example.com/shop/{}:1.{}.0", deployment.app, deployment.revision),
                "ports": [{"name": "http", "containerPort": 8080}],
            }],
        },
    })
}
