//! Served resource types: built-in ones, and those of custom resource definitions.

use serde_json::Value;

use crate::{
    discovery::{ServedType, built_in},
    object::ResourceType,
};

/// One served resource type, with its discovery data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TypeInfo {
    pub(crate) resource: ResourceType,
    /// Lower-case singular, such as `pod`.
    pub(crate) singular: String,
    /// Short names of kubectl, such as `po`.
    pub(crate) short_names: Vec<String>,
    /// Groups of types that kubectl reads together, such as `all`.
    pub(crate) categories: Vec<String>,
    /// Set for a built-in type. The members of its objects have the order of the Go struct, and the items of its lists have no kind
    ///
    pub(crate) typed: bool,
    /// Set when `status` is a subresource.
    pub(crate) status: bool,
    /// Set when `scale` is a subresource.
    pub(crate) scale: bool,
}

impl TypeInfo {
    /// Returns the type that a custom resource definition defines, in its storage version.
    ///
    /// `None` if the definition is incomplete. Other served versions are not supported.
    pub(crate) fn of_definition(definition: &Value) -> Option<Self> {
        let spec = definition.get("spec")?;
        let names = spec.get("names")?;
        let versions = spec.get("versions")?.as_array()?;
        let version = versions.iter().find(|version| version["storage"] == true).or_else(|| versions.first())?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = text(&names["kind"])?;
        let texts = |value: &Value| value.as_array().into_iter().flatten().filter_map(text).collect();
        Some(Self {
            singular: text(&names["singular"]).unwrap_or_else(|| kind.to_lowercase()),
            short_names: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            typed: false,
            status: version.pointer("/subresources/status").is_some(),
            scale: false,
            resource: ResourceType {
                group: text(&spec["group"])?,
                version: text(&version["name"])?,
                plural: text(&names["plural"])?,
                namespaced: spec["scope"] != "Cluster",
                kind,
            },
        })
    }

    /// Returns true for the type `customresourcedefinitions`.
    pub(crate) fn is_definition(&self) -> bool {
        self.resource.plural == "customresourcedefinitions" && self.resource.group == "apiextensions.k8s.io"
    }

    /// Returns true for the type `namespaces`.
    pub(crate) fn is_namespace(&self) -> bool {
        self.resource.plural == "namespaces" && self.resource.group.is_empty()
    }

    /// Returns true for namespaces and definitions: their content is deleted with them.
    pub(super) fn is_lifecycle(&self) -> bool {
        self.is_definition() || self.is_namespace()
    }

    /// Returns the supported verbs.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if !self.typed {
            // in the order of real custom resources
            &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
        } else if self.is_namespace() {
            &["create", "delete", "get", "list", "patch", "update", "watch"]
        } else {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        }
    }

    /// Returns the fields that field selectors support, besides `metadata.name` and `metadata.namespace`.
    pub(crate) fn selectable_fields(&self) -> impl Iterator<Item = &'static str> + use<> {
        let fields = match (&*self.resource.group, &*self.resource.plural) {
            ("", "pods") => {
                "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork status.phase \
                 status.podIP status.nominatedNodeName"
            }
            ("", "nodes") => "spec.unschedulable",
            ("", "namespaces") => "status.phase",
            ("", "secrets") => "type",
            ("", "services") => "spec.clusterIP spec.type",
            ("", "events") => {
                "involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid \
                 involvedObject.apiVersion involvedObject.resourceVersion involvedObject.fieldPath reason \
                 reportingComponent source type"
            }
            ("batch", "jobs") => "status.successful",
            _ => "",
        };
        fields.split_whitespace()
    }
}

/// Returns true if the server itself serves a group, independent of definitions.
pub(super) fn is_builtin_group(group: &str) -> bool {
    ["authorization.k8s.io", "authentication.k8s.io"].contains(&group)
        || builtin().iter().any(|info| info.resource.group == group)
}

/// Built-in types in the order of discovery, each with its subresources.
const BUILT_IN: &str = "namespaces/status nodes/status persistentvolumes/status pods/status services/status configmaps secrets \
    serviceaccounts persistentvolumeclaims/status events deployments.apps/scale/status \
    replicasets.apps/scale/status statefulsets.apps/scale/status daemonsets.apps/status controllerrevisions.apps jobs.batch/status cronjobs.batch/status \
    horizontalpodautoscalers.autoscaling/status ingresses.networking.k8s.io/status ingressclasses.networking.k8s.io \
    networkpolicies.networking.k8s.io poddisruptionbudgets.policy/status roles.rbac.authorization.k8s.io \
    rolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io \
    clusterrolebindings.rbac.authorization.k8s.io storageclasses.storage.k8s.io priorityclasses.scheduling.k8s.io \
    leases.coordination.k8s.io endpointslices.discovery.k8s.io customresourcedefinitions.apiextensions.k8s.io/status";

/// Returns the built-in types, core first.
pub(super) fn builtin() -> Vec<TypeInfo> {
    let known = built_in();
    let info = |text: &str| {
        let (name, subresources) = text.split_once('/').unwrap_or((text, ""));
        let [scale, status] = ["scale", "status"].map(|name| subresources.split('/').any(|known| known == name));
        let is_it = |served: &&ServedType| served.resource.qualified_name() == name;
        let ServedType { resource, singular, short_names, categories, .. } =
            known.iter().find(is_it).expect("it is built in").clone();
        TypeInfo { resource, singular, short_names, categories, typed: true, status, scale }
    };
    BUILT_IN.split_whitespace().map(info).collect()
}
