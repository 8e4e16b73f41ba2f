//! Discovery documents of old and new API servers.
//!
//! Unknown fields are ignored and missing ones are empty, because some aggregated APIs deviate from the format.

use serde::Deserialize;

use super::catalog::ServedType;
use crate::object::ResourceType;

/// `Accept` of `/api` and `/apis`: the aggregated document, or else the legacy one.
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

/// Answer of `/api` or `/apis`: the versions of every group, in order of preference.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    Types(Vec<GroupVersion>),
    /// Names only: each version has a document of its own.
    Names(Vec<GroupVersion>),
}

/// A discovery document of any kind. Only the member that belongs to this kind is set.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    kind: String,
    /// Set in a document of kind `APIGroupDiscoveryList`.
    items: Option<Vec<GroupJson>>,
    /// Set in a document of kind `APIVersions`.
    versions: Option<Vec<String>>,
    /// Set in a document of kind `APIGroupList`.
    groups: Option<Vec<GroupJson>>,
    /// Set in a document of kind `APIResourceList`.
    resources: Option<Vec<TypeJson>>,
}

/// A group in the aggregated or the legacy document. In the aggregated document, the group's name is in `metadata`, and its types
/// are in `versions`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupJson {
    metadata: Metadata,
    name: String,
    versions: Option<Vec<VersionJson>>,
    preferred_version: Option<VersionJson>,
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

/// A type in the aggregated or the legacy document.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeJson {
    #[serde(alias = "resource")]
    name: String,
    #[serde(alias = "singularResource")]
    singular_name: String,
    namespaced: bool,
    scope: String,
    kind: String,
    response_kind: Option<ResponseKind>,
    verbs: Option<Vec<String>>,
    short_names: Option<Vec<String>>,
    categories: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

fn read(json: &str) -> Result<Document, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

/// Reads the answer of `/api` or `/apis`. The error says what is unexpected in the document.
pub(super) fn read_root(json: &str) -> Result<Root, String> {
    let root = read(json)?;
    let versions = |groups: Option<Vec<GroupJson>>| groups.into_iter().flatten().flat_map(GroupJson::read).collect();
    match &*root.kind {
        "APIGroupDiscoveryList" => Ok(Root::Types(versions(root.items))),
        "APIGroupList" => Ok(Root::Names(versions(root.groups))),
        "APIVersions" => {
            let named = |version: String| GroupVersion { version, ..GroupVersion::default() };
            Ok(Root::Names(root.versions.into_iter().flatten().map(named).collect()))
        }
        kind => Err(format!("unexpected kind {kind:?}")),
    }
}

/// Reads the answer of `/api/v1` or `/apis/GROUP/VERSION`. The error says what is unexpected in the document.
pub(super) fn read_types(json: &str, group: &str, version: &str) -> Result<Vec<ServedType>, String> {
    let list = read(json)?;
    match &*list.kind {
        "APIResourceList" => Ok(types(list.resources, group, version)),
        kind => Err(format!("unexpected kind {kind:?}")),
    }
}

impl GroupJson {
    fn read(self) -> Vec<GroupVersion> {
        let group = if self.name.is_empty() { self.metadata.name } else { self.name };
        let preferred = self.preferred_version.map(|preferred| preferred.version);
        let mut versions: Vec<_> = self.versions.into_iter().flatten().map(|version| version.read(&group)).collect();
        // stable sort: after the preferred version, the server's order remains
        versions.sort_by_key(|served| Some(&served.version) != preferred.as_ref());
        versions
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
            kind: served.response_kind.map_or(served.kind, |response| response.kind),
            plural: served.name,
            namespaced: served.namespaced || served.scope == "Namespaced",
        },
        singular: served.singular_name,
        short_names: served.short_names.unwrap_or_default(),
        categories: served.categories.unwrap_or_default(),
        verbs: served.verbs.unwrap_or_default(),
        preferred: false,
    };
    let is_type = |ResourceType { plural, kind, .. }: &ResourceType| {
        !plural.is_empty() && !plural.contains('/') && !kind.is_empty()
    };
    served.into_iter().flatten().map(read).filter(|served| is_type(&served.resource)).collect()
}
