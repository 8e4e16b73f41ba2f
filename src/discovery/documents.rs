//! Discovery documents of API servers, in the aggregated form of Kubernetes 1.26 and later.
//!
//! Unknown fields are ignored and missing ones are empty, because some aggregated APIs deviate from the format.

use serde::Deserialize;

use super::catalog::ServedType;
use crate::object::ResourceType;

/// `Accept` of `/api` and `/apis`. An old server answers with its own form, so that the error can name that form.
pub(super) const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                                 application/json";

/// One version of an API group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GroupVersion {
    /// Empty for the core group.
    pub(super) group: String,
    pub(super) version: String,
    pub(super) types: Vec<ServedType>,
    /// Reason why the types are unknown or uncertain.
    pub(super) error: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    kind: String,
    items: Option<Vec<GroupJson>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupJson {
    metadata: Metadata,
    versions: Option<Vec<VersionJson>>,
}

/// Metadata of a group, an object or a list.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) remaining_item_count: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionJson {
    version: String,
    resources: Option<Vec<TypeJson>>,
    freshness: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeJson {
    resource: String,
    singular_resource: String,
    scope: String,
    response_kind: Option<ResponseKind>,
    verbs: Option<Vec<String>>,
    short_names: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

/// Reads the answer of `/api` or `/apis`: the versions of every group, in order of preference. The error describes the actual
/// document.
pub(super) fn read(json: &str) -> Result<Vec<GroupVersion>, String> {
    let document: Document = serde_json::from_str(json).map_err(|error| error.to_string())?;
    match &*document.kind {
        "APIGroupDiscoveryList" => Ok(document.items.into_iter().flatten().flat_map(GroupJson::read).collect()),
        kind => Err(format!("unexpected kind {kind:?}, expected the aggregated form of Kubernetes 1.26 and later")),
    }
}

impl GroupJson {
    fn read(self) -> impl Iterator<Item = GroupVersion> {
        let group = self.metadata.name;
        self.versions.into_iter().flatten().map(move |version| version.read(&group))
    }
}

impl VersionJson {
    fn read(self, group: &str) -> GroupVersion {
        let is_stale = self.freshness == "Stale";
        let error = is_stale.then(|| "the server could not refresh its discovery document".to_owned());
        let types = types(self.resources, group, &self.version);
        GroupVersion { group: group.to_owned(), version: self.version, types, error }
    }
}

/// Returns the types in `served`, without subresources such as `pods/log` and without entries that have no name or no kind.
fn types(served: Option<Vec<TypeJson>>, group: &str, version: &str) -> Vec<ServedType> {
    let read = |served: TypeJson| ServedType {
        resource: ResourceType {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: served.response_kind.unwrap_or_default().kind,
            plural: served.resource,
            namespaced: served.scope == "Namespaced",
        },
        singular: served.singular_resource,
        short_names: served.short_names.unwrap_or_default(),
        verbs: served.verbs.unwrap_or_default(),
        preferred: false,
    };
    let is_type = |ResourceType { plural, kind, .. }: &ResourceType| {
        !plural.is_empty() && !plural.contains('/') && !kind.is_empty()
    };
    served.into_iter().flatten().map(read).filter(|served| is_type(&served.resource)).collect()
}
