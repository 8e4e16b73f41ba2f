//! Discovery documents of old and new API servers.
//!
//! Unknown fields are ignored and missing ones are empty, because some aggregated APIs are sloppy.

use serde::Deserialize;

/// `Accept` of `/api` and `/apis`: the aggregated document, or else the legacy one.
pub(super) const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                                 application/json";

/// One served API group; versions in order of preference.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    /// Empty for the core group.
    pub(super) name: String,
    pub(super) versions: Vec<Version>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) types: Vec<Type>,
    /// Reason why the types are unknown or uncertain.
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Type {
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    pub(super) short_names: Vec<String>,
    pub(super) verbs: Vec<String>,
}

/// Answer of `/api` or `/apis`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    /// All types.
    Groups(Vec<Group>),
    /// Names only: each version has a document of its own.
    Names(Vec<Group>),
}

#[derive(Deserialize)]
struct RootJson {
    kind: String,
    /// `APIGroupDiscoveryList`
    items: Option<Vec<GroupJson>>,
    /// `APIVersions`
    versions: Option<Vec<String>>,
    /// `APIGroupList`
    groups: Option<Vec<GroupJson>>,
}

/// A group of either document. In the aggregated one, its name is in the metadata, and it has types.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupJson {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    name: String,
    versions: Option<Vec<VersionJson>>,
    preferred_version: Option<VersionJson>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionJson {
    version: String,
    resources: Option<Vec<TypeJson>>,
    #[serde(default)]
    freshness: String,
}

/// A type of either document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeJson {
    #[serde(alias = "resource")]
    name: String,
    #[serde(alias = "singularResource", default)]
    singular_name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    kind: String,
    response_kind: Option<ResponseKind>,
    verbs: Option<Vec<String>>,
    short_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
struct ResourceListJson {
    kind: String,
    resources: Option<Vec<TypeJson>>,
}

/// Reads the answer of `/api` or `/apis`. The error describes the actual document.
pub(super) fn read_root(json: &str) -> Result<Root, String> {
    let root: RootJson = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let read = |groups: Option<Vec<GroupJson>>| groups.into_iter().flatten().map(GroupJson::read).collect();
    match &*root.kind {
        "APIGroupDiscoveryList" => Ok(Root::Groups(read(root.items))),
        "APIGroupList" => Ok(Root::Names(read(root.groups))),
        "APIVersions" => {
            let named = |name: String| Version { name, ..Version::default() };
            let versions = root.versions.into_iter().flatten().map(named).collect();
            Ok(Root::Names(vec![Group { name: String::new(), versions }]))
        }
        kind => Err(format!("unexpected kind {kind:?}")),
    }
}

/// Reads the answer of `/api/v1` or `/apis/GROUP/VERSION`. The error describes the actual document.
pub(super) fn read_types(json: &str) -> Result<Vec<Type>, String> {
    let list: ResourceListJson = serde_json::from_str(json).map_err(|error| error.to_string())?;
    match &*list.kind {
        "APIResourceList" => Ok(types(list.resources)),
        kind => Err(format!("unexpected kind {kind:?}")),
    }
}

impl GroupJson {
    fn read(self) -> Group {
        let preferred = self.preferred_version.map(|preferred| preferred.version);
        let mut versions: Vec<Version> = self.versions.into_iter().flatten().map(VersionJson::read).collect();
        // stable sort: after the preferred version, the server's order remains
        versions.sort_by_key(|version| Some(&version.name) != preferred.as_ref());
        Group { name: if self.name.is_empty() { self.metadata.name } else { self.name }, versions }
    }
}

impl VersionJson {
    fn read(self) -> Version {
        let is_stale = self.freshness == "Stale";
        let error = is_stale.then(|| "the server could not refresh its discovery document".to_owned());
        Version { name: self.version, types: types(self.resources), error }
    }
}

fn types(served: Option<Vec<TypeJson>>) -> Vec<Type> {
    let read = |served: TypeJson| Type {
        plural: served.name,
        singular: served.singular_name,
        kind: served.response_kind.map_or(served.kind, |response| response.kind),
        namespaced: served.namespaced || served.scope == "Namespaced",
        short_names: served.short_names.unwrap_or_default(),
        verbs: served.verbs.unwrap_or_default(),
    };
    served.into_iter().flatten().map(read).filter(Type::is_type).collect()
}

impl Type {
    /// Returns true for a type: subresources such as `pods/log` are not types, and entries without kind have no objects.
    fn is_type(&self) -> bool {
        !self.plural.is_empty() && !self.plural.contains('/') && !self.kind.is_empty()
    }
}
