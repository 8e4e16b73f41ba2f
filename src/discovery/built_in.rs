//! Built-in types of a Kubernetes API server, for use without a server.

use super::catalog::ServedType;
use crate::object::ResourceType;

const NAMESPACED: bool = true;
const CLUSTER: bool = false;

/// Group, version, kind, plural, short names and scope, in kubectl's order of preference.
const ROWS: &[(&str, &str, &str, &str, &str, bool)] = &[
    ("", "v1", "ConfigMap", "configmaps", "cm", NAMESPACED),
    ("", "v1", "Endpoints", "endpoints", "ep", NAMESPACED),
    ("", "v1", "Event", "events", "ev", NAMESPACED),
    ("", "v1", "LimitRange", "limitranges", "limits", NAMESPACED),
    ("", "v1", "Namespace", "namespaces", "ns", CLUSTER),
    ("", "v1", "Node", "nodes", "no", CLUSTER),
    ("", "v1", "PersistentVolume", "persistentvolumes", "pv", CLUSTER),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", NAMESPACED),
    ("", "v1", "Pod", "pods", "po", NAMESPACED),
    ("", "v1", "PodTemplate", "podtemplates", "", NAMESPACED),
    ("", "v1", "ReplicationController", "replicationcontrollers", "rc", NAMESPACED),
    ("", "v1", "ResourceQuota", "resourcequotas", "quota", NAMESPACED),
    ("", "v1", "Secret", "secrets", "", NAMESPACED),
    ("", "v1", "Service", "services", "svc", NAMESPACED),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", NAMESPACED),
    ("apiregistration.k8s.io", "v1", "APIService", "apiservices", "", CLUSTER),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", "", NAMESPACED),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", NAMESPACED),
    ("apps", "v1", "Deployment", "deployments", "deploy", NAMESPACED),
    ("apps", "v1", "ReplicaSet", "replicasets", "rs", NAMESPACED),
    ("apps", "v1", "StatefulSet", "statefulsets", "sts", NAMESPACED),
    ("events.k8s.io", "v1", "Event", "events", "ev", NAMESPACED),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", NAMESPACED),
    ("batch", "v1", "CronJob", "cronjobs", "cj", NAMESPACED),
    ("batch", "v1", "Job", "jobs", "", NAMESPACED),
    ("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", "csr", CLUSTER),
    ("networking.k8s.io", "v1", "IPAddress", "ipaddresses", "ip", CLUSTER),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", NAMESPACED),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "", CLUSTER),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", NAMESPACED),
    ("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", "", CLUSTER),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", NAMESPACED),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", CLUSTER),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", NAMESPACED),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", NAMESPACED),
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", "", CLUSTER),
    ("storage.k8s.io", "v1", "CSINode", "csinodes", "", CLUSTER),
    ("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", "", NAMESPACED),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", CLUSTER),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "", CLUSTER),
    ("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", "vac", CLUSTER),
    (
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        "",
        CLUSTER,
    ),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "", CLUSTER),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "",
        CLUSTER,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "",
        CLUSTER,
    ),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd,crds", CLUSTER),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", CLUSTER),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", NAMESPACED),
    ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", "", CLUSTER),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", NAMESPACED),
    ("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", "", CLUSTER),
    ("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", "", CLUSTER),
    ("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", "", CLUSTER),
    ("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", "", NAMESPACED),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", "", NAMESPACED),
    ("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", "", CLUSTER),
];

/// Returns the types that can be listed and watched, each in its preferred version.
pub(crate) fn built_in() -> Vec<ServedType> {
    let served = |&(group, version, kind, plural, short_names, namespaced): &(&str, &str, &str, &str, &str, _)| {
        let [group, version, kind, plural] = [group, version, kind, plural].map(str::to_owned);
        ServedType {
            short_names: short_names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            ..ServedType::watchable(ResourceType { group, version, kind, plural, namespaced })
        }
    };
    ROWS.iter().map(served).collect()
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
