//! Built-in types of a Kubernetes API server, for use without a server.

use super::catalog::ServedType;
use crate::object::ResourceType;

const NAMESPACED: bool = true;
const CLUSTER: bool = false;

/// Group, version, kind, short names and scope, in kubectl's order of preference.
const ROWS: &[(&str, &str, &str, &str, bool)] = &[
    ("", "v1", "ConfigMap", "cm", NAMESPACED),
    ("", "v1", "Endpoints", "ep", NAMESPACED),
    ("", "v1", "Event", "ev", NAMESPACED),
    ("", "v1", "LimitRange", "limits", NAMESPACED),
    ("", "v1", "Namespace", "ns", CLUSTER),
    ("", "v1", "Node", "no", CLUSTER),
    ("", "v1", "PersistentVolume", "pv", CLUSTER),
    ("", "v1", "PersistentVolumeClaim", "pvc", NAMESPACED),
    ("", "v1", "Pod", "po", NAMESPACED),
    ("", "v1", "PodTemplate", "", NAMESPACED),
    ("", "v1", "ReplicationController", "rc", NAMESPACED),
    ("", "v1", "ResourceQuota", "quota", NAMESPACED),
    ("", "v1", "Secret", "", NAMESPACED),
    ("", "v1", "Service", "svc", NAMESPACED),
    ("", "v1", "ServiceAccount", "sa", NAMESPACED),
    ("apiregistration.k8s.io", "v1", "APIService", "", CLUSTER),
    ("apps", "v1", "ControllerRevision", "", NAMESPACED),
    ("apps", "v1", "DaemonSet", "ds", NAMESPACED),
    ("apps", "v1", "Deployment", "deploy", NAMESPACED),
    ("apps", "v1", "ReplicaSet", "rs", NAMESPACED),
    ("apps", "v1", "StatefulSet", "sts", NAMESPACED),
    ("events.k8s.io", "v1", "Event", "ev", NAMESPACED),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "hpa", NAMESPACED),
    ("batch", "v1", "CronJob", "cj", NAMESPACED),
    ("batch", "v1", "Job", "", NAMESPACED),
    ("certificates.k8s.io", "v1", "CertificateSigningRequest", "csr", CLUSTER),
    ("networking.k8s.io", "v1", "IPAddress", "ip", CLUSTER),
    ("networking.k8s.io", "v1", "Ingress", "ing", NAMESPACED),
    ("networking.k8s.io", "v1", "IngressClass", "", CLUSTER),
    ("networking.k8s.io", "v1", "NetworkPolicy", "netpol", NAMESPACED),
    ("networking.k8s.io", "v1", "ServiceCIDR", "", CLUSTER),
    ("policy", "v1", "PodDisruptionBudget", "pdb", NAMESPACED),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "Role", "", NAMESPACED),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "", NAMESPACED),
    ("storage.k8s.io", "v1", "CSIDriver", "", CLUSTER),
    ("storage.k8s.io", "v1", "CSINode", "", CLUSTER),
    ("storage.k8s.io", "v1", "CSIStorageCapacity", "", NAMESPACED),
    ("storage.k8s.io", "v1", "StorageClass", "sc", CLUSTER),
    ("storage.k8s.io", "v1", "VolumeAttachment", "", CLUSTER),
    ("storage.k8s.io", "v1", "VolumeAttributesClass", "vac", CLUSTER),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "", CLUSTER),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "", CLUSTER),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "", CLUSTER),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "", CLUSTER),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "crd,crds", CLUSTER),
    ("scheduling.k8s.io", "v1", "PriorityClass", "pc", CLUSTER),
    ("coordination.k8s.io", "v1", "Lease", "", NAMESPACED),
    ("node.k8s.io", "v1", "RuntimeClass", "", CLUSTER),
    ("discovery.k8s.io", "v1", "EndpointSlice", "", NAMESPACED),
    ("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "", CLUSTER),
    ("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "", CLUSTER),
    ("resource.k8s.io", "v1", "DeviceClass", "", CLUSTER),
    ("resource.k8s.io", "v1", "ResourceClaim", "", NAMESPACED),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "", NAMESPACED),
    ("resource.k8s.io", "v1", "ResourceSlice", "", CLUSTER),
];

/// Kinds of the category `all`.
const ALL: [&str; 10] = [
    "Pod",
    "ReplicationController",
    "Service",
    "DaemonSet",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "HorizontalPodAutoscaler",
    "CronJob",
    "Job",
];

/// Groups of the category `api-extensions`.
const EXTENSIONS: [&str; 3] = ["apiregistration.k8s.io", "apiextensions.k8s.io", "admissionregistration.k8s.io"];

/// Groups that the API server itself serves, but that have no type in [`ROWS`].
const OTHER_GROUPS: [&str; 4] =
    ["authentication.k8s.io", "authorization.k8s.io", "internal.apiserver.k8s.io", "storagemigration.k8s.io"];

/// Returns true for a group of the API server itself.
fn is_built_in_group(group: &str) -> bool {
    OTHER_GROUPS.contains(&group) || ROWS.iter().any(|(known, ..)| *known == group)
}

/// Returns true for a group that may have types of CRDs: it contains a dot, and is no group of the API server itself.
pub(super) fn may_be_custom(group: &str) -> bool {
    group.contains('.') && !is_built_in_group(group)
}

/// Returns the types that can be listed and watched, each in its preferred version.
pub(crate) fn built_in() -> Vec<ServedType> {
    let served = |&(group, version, kind, short_names, namespaced): &(&str, &str, &str, &str, _)| {
        let singular = kind.to_ascii_lowercase();
        let plural = if kind == "Endpoints" { singular } else { english_plural(&singular) };
        let categories = [("all", ALL.contains(&kind)), ("api-extensions", EXTENSIONS.contains(&group))];
        let categories = categories.iter().filter(|(_, is_member)| *is_member).map(|(name, _)| (*name).to_owned());
        let [group, version, kind] = [group, version, kind].map(str::to_owned);
        ServedType {
            categories: categories.collect(),
            short_names: short_names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            ..ServedType::watchable(ResourceType { group, version, kind, plural, namespaced })
        }
    };
    ROWS.iter().map(served).collect()
}

/// Returns the regular plural of a word.
pub(super) fn english_plural(word: &str) -> String {
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if ends(&["s", "x", "z", "ch", "sh"]) {
        format!("{word}es")
    } else if let Some(stem) = word.strip_suffix('y')
        && !stem.ends_with(['a', 'e', 'i', 'o', 'u'])
    {
        format!("{stem}ies")
    } else {
        format!("{word}s")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn built_in_types_are_unique_and_grouped() {
        let types = built_in();
        let names: HashSet<_> = types.iter().map(|served| served.resource.qualified_name()).collect();
        assert_eq!(names.len(), types.len());
        let mut groups: Vec<_> = types.iter().map(|served| served.resource.group.clone()).collect();
        groups.dedup();
        assert_eq!(groups.iter().collect::<HashSet<_>>().len(), groups.len(), "{groups:?}");
        assert!(types.iter().all(ServedType::is_watchable));
    }
}
