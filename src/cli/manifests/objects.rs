//! Objects of an installation. The templates in `deploy/helm/deltabus/templates` render the same objects.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value, json};

use super::{
    site::{SELECTOR, Site, is_empty},
    values::{SecretFiles, Storage, Values},
};
use crate::cli::rbac::{self, ServiceAccount};

/// Alerts in the format of Prometheus.
const ALERTS: &str = include_str!("../../../deploy/helm/deltabus/files/alerts.yaml");
/// Dashboards for Grafana.
const DASHBOARDS: [(&str, &str); 3] = [
    ("deltabus-handler.json", include_str!("../../../deploy/helm/deltabus/files/dashboards/deltabus-handler.json")),
    ("deltabus-overview.json", include_str!("../../../deploy/helm/deltabus/files/dashboards/deltabus-overview.json")),
    ("deltabus-type.json", include_str!("../../../deploy/helm/deltabus/files/dashboards/deltabus-type.json")),
];
/// Directory of the configuration in the pod.
const CONFIG_DIR: &str = "/config";
/// User id and group id of the process. The image of `deploy/Dockerfile` uses the same ids.
const USER: u32 = 65532;
/// Interval of the startup probe in seconds. The pod becomes ready at most this much later than the engine.
const STARTUP_PERIOD: u32 = 2;
/// Failures of the startup probe before the kubelet restarts the container. They take 30 minutes, in which the engine can read a large
/// state directory.
const STARTUP_FAILURES: u32 = 900;

/// Returns the objects in the order in which they are applied.
pub(super) fn objects(values: &Values, name: &str, namespace: &str) -> Vec<Value> {
    let labels = json!({ SELECTOR[0]: "deltabus", SELECTOR[1]: name });
    let installation = Installation { values, name, namespace, labels };
    let mut objects = Vec::new();
    // Namespaces that exist in every cluster are not created.
    if namespace != "default" && !namespace.starts_with("kube-") {
        objects.push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }));
    }
    let mut account = installation.object("v1", "ServiceAccount", json!({ "automountServiceAccountToken": false }));
    with(&mut account["metadata"], "annotations", json!(values.site.service_account.annotations));
    objects.push(account);
    objects.extend(installation.roles());
    let data: Map<_, _> = values.config.iter().map(|file| (file.name.clone(), json!(file.text))).collect();
    objects.push(installation.object("v1", "ConfigMap", json!({ "data": data })));
    if let Some(Storage { size, .. }) = &values.storage {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } });
        if let Some(class) = &values.site.storage_class {
            spec["storageClassName"] = json!(class);
        }
        objects.push(installation.specified("v1", "PersistentVolumeClaim", &spec));
    }
    let port = |(name, port): (&str, u16)| json!({ "name": name, "port": port, "targetPort": name });
    let ports: Vec<_> = installation.ports().into_iter().map(port).collect();
    objects.push(installation.specified("v1", "Service", &json!({ "selector": installation.labels, "ports": ports })));
    objects.push(installation.headless_service());
    objects.push(installation.network_policy());
    let stateful_set = json!({
        "replicas": 1,
        "serviceName": installation.headless_name(),
        "selector": installation.selector(),
        "template": { "metadata": installation.pod_metadata(), "spec": installation.pod() },
    });
    objects.push(installation.specified("apps/v1", "StatefulSet", &stateful_set));
    if values.monitoring {
        objects.extend(installation.monitoring());
    }
    objects
}

struct Installation<'a> {
    values: &'a Values,
    name: &'a str,
    namespace: &'a str,
    labels: Value,
}

impl Installation<'_> {
    /// Returns a Kubernetes object with the name, the namespace and the labels of the installation. `rest` has its other members.
    fn object(&self, api_version: &str, kind: &str, rest: Value) -> Value {
        let metadata = json!({ "name": self.name, "namespace": self.namespace, "labels": self.labels });
        let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
        if let (Value::Object(object), Value::Object(rest)) = (&mut object, rest) {
            object.extend(rest);
        }
        object
    }

    fn specified(&self, api_version: &str, kind: &str, spec: &Value) -> Value {
        self.object(api_version, kind, json!({ "spec": spec }))
    }

    fn selector(&self) -> Value {
        json!({ "matchLabels": self.labels })
    }

    fn roles(&self) -> Vec<Value> {
        let account = ServiceAccount { namespace: self.namespace.to_owned(), name: self.name.to_owned() };
        // A cluster role is in no namespace. The name of the namespace is part of its name, so that two installations do not
        // share a role.
        let metadata = json!({ "name": format!("{}-{}", self.namespace, self.name), "labels": self.labels });
        rbac::roles(&self.values.rules, &metadata, Some(&account))
    }

    /// Returns the name and the number of each port that other pods can reach.
    fn ports(&self) -> Vec<(&'static str, u16)> {
        let ports = self.values.ports;
        let http = ports.http.map(|port| ("http", port));
        [("metrics", ports.probe)].into_iter().chain(http).collect()
    }

    fn headless_name(&self) -> String {
        format!("{}-headless", self.name)
    }

    /// Returns the Service that gives the pod a DNS name. It has no ports, so that a `ServiceMonitor` does not scrape the pod twice.
    fn headless_service(&self) -> Value {
        let spec = json!({ "clusterIP": "None", "selector": self.labels });
        let mut service = self.specified("v1", "Service", &spec);
        service["metadata"]["name"] = self.headless_name().into();
        service
    }

    fn network_policy(&self) -> Value {
        let tcp = |port: u16| json!({ "protocol": "TCP", "port": port });
        let ingress: Vec<_> = self.ports().into_iter().map(|(_, port)| tcp(port)).collect();
        let dns = ["UDP", "TCP"].map(|protocol| json!({ "protocol": protocol, "port": 53 }));
        let more = self.values.site.extra_egress_ports.iter().map(|port| port.get());
        let egress: Vec<_> =
            dns.into_iter().chain(self.values.egress_ports.iter().copied().chain(more).map(tcp)).collect();
        let spec = json!({
            "podSelector": self.selector(),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "ports": ingress }],
            "egress": [{ "ports": egress }],
        });
        self.specified("networking.k8s.io/v1", "NetworkPolicy", &spec)
    }

    fn pod_metadata(&self) -> Value {
        let Site { pod_labels, pod_annotations, .. } = &self.values.site;
        let mut metadata = json!({ "labels": self.labels });
        extend(&mut metadata["labels"], pod_labels);
        with(&mut metadata, "annotations", json!(pod_annotations));
        metadata
    }

    fn pod(&self) -> Value {
        let (volumes, mounts) = self.volumes();
        let site = &self.values.site;
        let mut pod = json!({
            "serviceAccountName": self.name,
            "automountServiceAccountToken": true,
            "terminationGracePeriodSeconds": self.values.termination_grace_period_seconds,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [self.container(&mounts)],
            "volumes": volumes,
        });
        for (key, value) in [
            ("imagePullSecrets", json!(site.image_pull_secrets)),
            ("nodeSelector", json!(site.node_selector)),
            ("tolerations", json!(site.tolerations)),
            ("affinity", json!(site.affinity)),
            ("priorityClassName", json!(site.priority_class_name.as_deref().filter(|name| !name.is_empty()))),
            ("initContainers", json!(site.init_containers)),
        ] {
            with(&mut pod, key, value);
        }
        pod
    }

    fn container(&self, mounts: &[Value]) -> Value {
        let Values { image, allow_exec, secrets, resources, site, .. } = self.values;
        let mut args = vec!["run", "-c", CONFIG_DIR];
        if *allow_exec {
            args.push("--allow-exec");
        }
        args.extend(site.extra_args.iter().map(String::as_str));
        let variable = |name: &String| {
            let key = json!({ "name": format!("{}-env", self.name), "key": name });
            json!({ "name": name, "valueFrom": { "secretKeyRef": key } })
        };
        let variables = secrets.env.iter().map(variable).chain(site.extra_env.iter().map(|variable| json!(variable)));
        let ports = self.ports().into_iter().map(|(name, port)| json!({ "name": name, "containerPort": port }));
        let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "metrics" } });
        let mut startup = probe("/livez");
        startup["periodSeconds"] = STARTUP_PERIOD.into();
        startup["failureThreshold"] = STARTUP_FAILURES.into();
        let mut container = json!({
            "name": "deltabus",
            "image": image,
            "args": args,
            "ports": ports.collect::<Vec<_>>(),
            "startupProbe": startup,
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "resources": without_nulls(resources),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
            },
            "volumeMounts": mounts,
        });
        with(&mut container, "imagePullPolicy", json!(site.image_pull_policy));
        with(&mut container, "env", variables.collect());
        container
    }

    /// Returns the volumes and their mounts.
    fn volumes(&self) -> (Vec<Value>, Vec<Value>) {
        let mounted = |name: &str, path: &Path| json!({ "name": name, "mountPath": path, "readOnly": true });
        let mut volumes = vec![json!({ "name": "config", "configMap": { "name": self.name } })];
        let mut mounts = vec![mounted("config", Path::new(CONFIG_DIR))];
        for SecretFiles { secret, path, .. } in &self.values.secrets.files {
            let name = format!("secret-{secret}");
            mounts.push(mounted(&name, path));
            // Apart from root, only the group of the pod can read the files of the Secret.
            volumes.push(json!({ "name": name, "secret": { "secretName": secret, "defaultMode": 0o440 } }));
        }
        if let Some(storage) = &self.values.storage {
            volumes.push(json!({ "name": "data", "persistentVolumeClaim": { "claimName": self.name } }));
            // The subpath depends only on the path. So a directory stays the same on the volume when other directories are added
            // or removed.
            mounts.extend(storage.paths.iter().map(|path| {
                let sub_path = path.strip_prefix("/").unwrap_or(path);
                json!({ "name": "data", "mountPath": path, "subPath": sub_path })
            }));
        }
        volumes.extend(self.values.site.extra_volumes.iter().map(|volume| json!(volume)));
        mounts.extend(self.values.site.extra_volume_mounts.iter().map(|mount| json!(mount)));
        (volumes, mounts)
    }

    fn monitoring(&self) -> [Value; 3] {
        const API: &str = "monitoring.coreos.com/v1";
        let endpoints = json!([{ "port": "metrics", "path": "/metrics" }]);
        let monitor = json!({ "selector": self.selector(), "endpoints": endpoints });
        let data: Map<_, _> = DASHBOARDS.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        let mut dashboards = self.object("v1", "ConfigMap", json!({ "data": data }));
        dashboards["metadata"]["name"] = json!(format!("{}-dashboards", self.name));
        // Grafana finds dashboards by this label.
        dashboards["metadata"]["labels"]["grafana_dashboard"] = json!("1");
        let rules: Value = serde_saphyr::from_str(ALERTS).expect("a test reads this file");
        let [mut monitor, mut rules] = [("ServiceMonitor", monitor), ("PrometheusRule", rules)]
            .map(|(kind, spec)| self.specified(API, kind, &spec));
        for object in [&mut monitor, &mut rules] {
            extend(&mut object["metadata"]["labels"], &self.values.site.monitoring_labels);
        }
        [monitor, rules, dashboards]
    }
}

/// Returns a copy without the members that are null.
fn without_nulls(map: &Map<String, Value>) -> Value {
    let mut copy = json!({});
    json_patch::merge(&mut copy, &json!(map));
    copy
}

/// Sets a member of an object, unless the value is empty. An empty list would be a change at each `kubectl apply`.
fn with(object: &mut Value, key: &str, value: Value) {
    if !is_empty(&value) {
        object[key] = value;
    }
}

/// Adds labels to the labels of an object.
fn extend(labels: &mut Value, more: &BTreeMap<String, String>) {
    for (key, value) in more {
        labels[key] = json!(value);
    }
}
