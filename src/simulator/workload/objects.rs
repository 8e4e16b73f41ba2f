//! Objects of the simulated cluster, other than pods and custom resources.

use serde_json::{Value, json};

use super::{
    Controller, Deployment,
    fill::{Fill, address},
};

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

pub(super) fn service(deployment: &Deployment, number: usize, uid: &str) -> Value {
    json!({
        "metadata": {
            "name": deployment.name, "namespace": deployment.namespace, "uid": uid, "labels": labels(deployment),
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", number / 250, number % 250 + 1),
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
            "selector": {"app.kubernetes.io/name": deployment.app},
        },
    })
}

/// Returns a deployment, with the status of its current rollout if there is one.
pub(super) fn deployment(deployment: &Deployment) -> Value {
    let wanted = deployment.replicas;
    let (replicas, updated, ready) = match &deployment.rollout {
        Some(rollout) => (rollout.old + rollout.new, rollout.new, rollout.old + rollout.ready),
        None => (wanted, wanted, wanted),
    };
    let reason = if deployment.rollout.is_some() { "ReplicaSetUpdated" } else { "NewReplicaSetAvailable" };
    json!({
        "metadata": {
            "name": deployment.name, "namespace": deployment.namespace, "uid": deployment.uid,
            "labels": labels(deployment),
            "annotations": {"deployment.kubernetes.io/revision": deployment.revision.to_string()},
        },
        "spec": {
            "replicas": wanted, "revisionHistoryLimit": 2,
            "selector": {"matchLabels": {"app.kubernetes.io/name": deployment.app}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template(deployment, deployment.revision),
        },
        "status": {
            "observedGeneration": deployment.generation, "replicas": replicas, "updatedReplicas": updated,
            "readyReplicas": ready, "availableReplicas": ready, "unavailableReplicas": replicas - ready,
            "conditions": [
                {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"},
                {"type": "Progressing", "status": "True", "reason": reason},
            ],
        },
    })
}

/// Returns the `ReplicaSet` of a deployment's current revision.
pub(super) fn replicaset(deployment: &Deployment) -> Value {
    let wanted = deployment.replicas;
    let (replicas, ready) =
        deployment.rollout.as_ref().map_or((wanted, wanted), |rollout| (rollout.new, rollout.ready));
    set_of(deployment, &deployment.hash, &deployment.set_uid, deployment.revision, [replicas, ready])
}

/// Returns the `ReplicaSet` that a rollout replaces.
pub(super) fn earlier_replicaset(deployment: &Deployment, replicas: usize) -> Value {
    let from = deployment.rollout.as_ref().map(|rollout| (&*rollout.from, &*rollout.from_uid));
    let (hash, uid) = from.unwrap_or((&deployment.hash, &deployment.set_uid));
    set_of(deployment, hash, uid, deployment.revision - 1, [replicas, replicas])
}

fn set_of(deployment: &Deployment, hash: &str, uid: &str, revision: usize, [replicas, ready]: [usize; 2]) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-{hash}", deployment.name), "namespace": deployment.namespace, "uid": uid,
            "labels": labels(deployment),
            "ownerReferences": [owner("apps/v1", "Deployment", &deployment.name, &json!(deployment.uid))],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": deployment.app, "pod-template-hash": hash}},
            "template": template(deployment, revision),
        },
        "status": {"replicas": replicas, "readyReplicas": ready, "availableReplicas": ready, "observedGeneration": 1},
    })
}

/// Returns the endpoints of a service: its reachable pods.
pub(super) fn endpoints(deployment: &Deployment, service_uid: &Value, pods: &[&Fill]) -> Value {
    let endpoint = |pod: &&Fill| {
        json!({
            "addresses": [address(10, pod.number)], "nodeName": format!("node-{:04}", pod.node),
            "conditions": {"ready": pod.ready, "serving": pod.ready, "terminating": false},
            "targetRef": {"kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        })
    };
    json!({
        "metadata": {
            "name": format!("{}-endpoints", deployment.name), "namespace": deployment.namespace,
            "labels": {"kubernetes.io/service-name": deployment.name},
            "ownerReferences": [owner("v1", "Service", &deployment.name, service_uid)],
        },
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

pub(super) fn daemonset(agent: &Controller, nodes: usize) -> Value {
    json!({
        "metadata": metadata_of(agent),
        "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": agent.name}}, "template": plain_template(&agent.name)},
        "status": {
            "currentNumberScheduled": nodes, "desiredNumberScheduled": nodes, "numberReady": nodes,
            "numberMisscheduled": 0, "observedGeneration": 1,
        },
    })
}

pub(super) fn statefulset(database: &Controller, replicas: usize, ready: usize) -> Value {
    json!({
        "metadata": metadata_of(database),
        "spec": {
            "replicas": replicas, "serviceName": database.name,
            "selector": {"matchLabels": {"app.kubernetes.io/name": database.name}},
            "template": plain_template(&database.name),
        },
        "status": {"replicas": replicas, "readyReplicas": ready, "currentReplicas": replicas, "observedGeneration": 1},
    })
}

/// Returns a cron job, with the last job that it started.
pub(super) fn cron_job(cron_job: &Controller, last: Option<(&Controller, &str)>) -> Value {
    let status = last.map_or_else(
        || json!({}),
        |(job, time)| json!({"lastScheduleTime": time, "active": [{"kind": "Job", "namespace": job.namespace, "name": job.name}]}),
    );
    json!({
        "metadata": metadata_of(cron_job),
        "spec": {
            "schedule": "*/5 * * * *", "concurrencyPolicy": "Allow",
            "jobTemplate": {"spec": {"template": plain_template("report")}},
        },
        "status": status,
    })
}

pub(super) fn job(job: &Controller, cron_job: &Controller) -> Value {
    let mut metadata = metadata_of(job);
    metadata["ownerReferences"] = json!([owner("batch/v1", "CronJob", &cron_job.name, &json!(cron_job.uid))]);
    json!({
        "metadata": metadata,
        "spec": {"parallelism": 1, "completions": 1, "backoffLimit": 2, "template": plain_template("report")},
        "status": {"active": 1},
    })
}

/// Returns the patch for the end of a job.
pub(super) fn job_ended(succeeded: bool, time: &str) -> Value {
    let (kind, count) = if succeeded { ("Complete", "succeeded") } else { ("Failed", "failed") };
    let condition = json!({"type": kind, "status": "True", "lastTransitionTime": time});
    json!({"status": {"active": null, count: 1, "conditions": [condition]}})
}

fn metadata_of(of: &Controller) -> Value {
    let labels = json!({"app.kubernetes.io/name": of.name});
    json!({"name": of.name, "namespace": of.namespace, "uid": of.uid, "labels": labels})
}

fn owner(api_version: &str, kind: &str, name: &str, uid: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn plain_template(app: &str) -> Value {
    let container = json!({"name": app, "image": format!("registry.example.com/{app}:2.0.1")});
    json!({
        "metadata": {"labels": {"app.kubernetes.io/name": app}},
        "spec": {"serviceAccountName": "default", "containers": [container]},
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
    json!({"phase": "Pending", "conditions": [condition], "qosClass": "Burstable"}).to_string()
}

pub(super) fn ended(phase: &str, time: &str) -> String {
    let ready = json!({"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": time});
    json!({"phase": phase, "conditions": [ready], "startTime": time, "qosClass": "Burstable"}).to_string()
}

/// Returns the definition of a namespaced type in version v1. The kind is the plural, capitalized, without the final s.
pub(super) fn definition(group: &str, plural: &str) -> Value {
    let singular = plural.strip_suffix('s').unwrap_or(plural);
    let kind = singular[..1].to_uppercase() + &singular[1..];
    json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
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

fn template(deployment: &Deployment, revision: usize) -> Value {
    json!({
        "metadata": {"labels": labels(deployment)},
        "spec": {
            "serviceAccountName": deployment.app,
            "containers": [{
                "name": deployment.app,
                "image": format!("registry.example.com/shop/{}:1.{}.0", deployment.app, revision),
                "ports": [{"name": "http", "containerPort": 8080}],
            }],
        },
    })
}
