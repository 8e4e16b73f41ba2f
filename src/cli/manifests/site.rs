//! Values that depend on the cluster and not on the configuration: the file of `--values`.

use std::{collections::BTreeMap, fs, num::NonZeroU16, path::Path};

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::{
    cli::{BadUsage, yaml},
    printable::printable,
};

/// Labels of every object. The `StatefulSet` and the Services select the pod by them.
pub(super) const SELECTOR: [&str; 2] = ["app.kubernetes.io/name", "app.kubernetes.io/instance"];

/// Values of the Helm chart that no configuration determines. `deploy/helm/deltabus/values.yaml` documents each value. Kubernetes
/// checks objects that are nested deeper.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct Site {
    pub(super) image_pull_policy: Option<PullPolicy>,
    pub(super) image_pull_secrets: Vec<Named>,
    pub(super) node_selector: BTreeMap<String, String>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) affinity: Affinity,
    pub(super) priority_class_name: Option<String>,
    pub(super) pod_labels: BTreeMap<String, String>,
    pub(super) pod_annotations: BTreeMap<String, String>,
    pub(super) service_account: Account,
    /// Class of the volume claim. An empty text is a claim without a class, for a volume that exists.
    pub(super) storage_class: Option<String>,
    pub(super) init_containers: Vec<Named>,
    pub(super) extra_args: Vec<String>,
    /// Variables. Each replaces a variable of the same name that the configuration needs.
    pub(super) extra_env: Vec<Variable>,
    pub(super) extra_volumes: Vec<Named>,
    pub(super) extra_volume_mounts: Vec<Mount>,
    pub(super) extra_egress_ports: Vec<NonZeroU16>,
    pub(super) monitoring_labels: BTreeMap<String, String>,
    /// Requests and limits that replace the computed ones. The values of the installation contain the result.
    #[serde(skip_serializing)]
    pub(super) resources: Map<String, Value>,
}

/// `imagePullPolicy` of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Taint of nodes that the pod tolerates.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    rename_all = "camelCase",
    deny_unknown_fields,
    expecting = "a toleration, such as { key: NAME, operator: Exists }"
)]
pub(super) struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    toleration_seconds: Option<i64>,
}

/// Affinity of the pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Affinity {
    #[serde(skip_serializing_if = "Option::is_none")]
    node_affinity: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_affinity: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_anti_affinity: Option<Map<String, Value>>,
}

/// Service account of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Account {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// Object with a name, in a list of a pod.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(expecting = "an object with a name, such as { name: NAME }")]
pub(super) struct Named {
    name: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Environment variable.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a variable, such as { name: TEAM, value: shop }")]
pub(super) struct Variable {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_from: Option<Map<String, Value>>,
}

/// Mount of a volume.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", expecting = "a mount, such as { name: NAME, mountPath: /PATH }")]
pub(super) struct Mount {
    name: String,
    mount_path: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Site {
    /// Reads the file of `--values`. Blocks the thread.
    ///
    /// # Errors
    /// Returns all mistakes, with the name of the file.
    pub(super) fn read(path: &Path) -> Result<Self, BadUsage> {
        let text = fs::read_to_string(path).map_err(|error| vec![format!("failed to read the file: {error}")]);
        text.and_then(|text| Self::parse(&text)).map_err(|errors| {
            let lines = errors.iter().map(|error| printable(&format!("{}: {error}", path.display())));
            BadUsage::of(lines.collect::<Vec<_>>().join("\n"))
        })
    }

    fn parse(text: &str) -> Result<Self, Vec<String>> {
        let documents = yaml::parse(text).map_err(|error| vec![format!("invalid YAML: {error}")])?;
        let values = match documents.as_slice() {
            [] | [Value::Null] => return Ok(Self::default()),
            [Value::Object(values)] => values,
            _ => return Err(vec!["expected one mapping, such as `nodeSelector: { disk: ssd }`".to_owned()]),
        };
        // Helm removes values that are null; then the default applies.
        let values: Map<_, _> = values
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut errors = Vec::new();
        for (key, value) in &values {
            // One value at a time, so that each mistake is found and its key is known.
            match serde_json::from_value::<Self>(json!({ key: value })) {
                Ok(site) => errors.extend(site.reserved_label().map(|error| format!("{key}: {error}"))),
                Err(error) => errors.push(wrong(key, &error)),
            }
        }
        if errors.is_empty() {
            serde_json::from_value(values.into()).map_err(|error| vec![error.to_string()])
        } else {
            Err(errors)
        }
    }

    fn reserved_label(&self) -> Option<String> {
        let mut labels = self.pod_labels.keys().chain(self.monitoring_labels.keys());
        let label = labels.find(|label| SELECTOR.contains(&label.as_str()))?;
        Some(format!("the label {label} is fixed, because objects are selected by it: use another label"))
    }

    /// Returns true if a volume is mounted at a directory of this program, or in a directory of the search path for a program
    /// without a directory.
    pub(super) fn may_contain(&self, program: &Path) -> bool {
        let is_searched = program.components().count() == 1 && program.is_relative();
        self.extra_volume_mounts.iter().any(|mount| is_searched || program.starts_with(&mount.mount_path))
    }

    /// Serializes the values that are given.
    pub(super) fn given<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut values = json!(self);
        if let Some(values) = values.as_object_mut() {
            values.retain(|_, value| !is_empty(value));
        }
        values.serialize(serializer)
    }
}

/// Returns the message about a wrong value, with its key.
fn wrong(key: &str, error: &serde_json::Error) -> String {
    let message = error.to_string();
    if message.starts_with("unknown field `") && message.contains(&format!("`{key}`")) {
        return format!(
            "{key}: --values has no such value: {}. Other values follow from the configuration and the command line",
            message.split_once(", ").map_or("", |(_, expected)| expected)
        );
    }
    format!("{key}: {message}")
}

/// Returns true for a value that means the same as no value.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
