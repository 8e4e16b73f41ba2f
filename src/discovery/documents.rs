//! The discovery documents of API servers, old and new, and what they say.
//!
//! Unknown fields are ignored, missing ones are empty: aggregated APIs are not all written with care.

use serde::Deserialize;

/// `Accept` of `/api` and `/apis`: the aggregated document, else the legacy one.
pub(super) const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                                 application/json";

/// One API group as it is served; versions in order of preference.
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
    /// Why the types are not known, or not for sure.
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

/// What `/api` or `/apis` answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Root {
    /// Everything.
    Groups(Vec<Group>),
    /// The names alone: each version is a further document.
    Names(Vec<Group>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RootJson {
    kind: String,
    /// `APIGroupDiscoveryList`
    #[serde(default)]
    items: Option<Vec<AggregatedGroup>>,
    /// `APIVersions`
    #[serde(default)]
    versions: Option<Vec<String>>,
    /// `APIGroupList`
    #[serde(default)]
    groups: Option<Vec<LegacyGroup>>,
}

#[derive(Deserialize)]
struct AggregatedGroup {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    versions: Option<Vec<AggregatedVersion>>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    #[serde(default)]
    resources: Option<Vec<AggregatedType>>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedType {
    resource: String,
    #[serde(default)]
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    verbs: Option<Vec<String>>,
    #[serde(default)]
    short_names: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct ResponseKind {
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyGroup {
    name: String,
    #[serde(default)]
    versions: Option<Vec<LegacyVersion>>,
    #[serde(default)]
    preferred_version: Option<LegacyVersion>,
}

#[derive(Deserialize)]
struct LegacyVersion {
    version: String,
}

#[derive(Deserialize)]
struct ResourceListJson {
    kind: String,
    #[serde(default)]
    resources: Option<Vec<LegacyType>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LegacyType {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    verbs: Option<Vec<String>>,
    #[serde(default)]
    short_names: Option<Vec<String>>,
}

/// Reads the answer of `/api` or `/apis`. The error says what came instead.
pub(super) fn read_root(json: &str) -> Result<Root, String> {
    let root: RootJson = serde_json::from_str(json).map_err(|error| error.to_string())?;
    match &*root.kind {
        "APIGroupDiscoveryList" => {
            Ok(Root::Groups(root.items.unwrap_or_default().into_iter().map(AggregatedGroup::read).collect()))
        }
        "APIVersions" => {
            let versions = root.versions.unwrap_or_default().into_iter().map(version_name).collect();
            Ok(Root::Names(vec![Group { name: String::new(), versions }]))
        }
        "APIGroupList" => Ok(Root::Names(root.groups.unwrap_or_default().into_iter().map(LegacyGroup::read).collect())),
        kind => Err(format!("unexpected kind {kind:?}")),
    }
}

/// Reads the answer of `/api/v1` or `/apis/GROUP/VERSION`. The error says what came instead.
pub(super) fn read_types(json: &str) -> Result<Vec<Type>, String> {
    let list: ResourceListJson = serde_json::from_str(json).map_err(|error| error.to_string())?;
    if list.kind != "APIResourceList" {
        return Err(format!("unexpected kind {:?}", list.kind));
    }
    let types = list.resources.unwrap_or_default().into_iter().map(|served| Type {
        plural: served.name,
        singular: served.singular_name,
        kind: served.kind,
        namespaced: served.namespaced,
        short_names: served.short_names.unwrap_or_default(),
        verbs: served.verbs.unwrap_or_default(),
    });
    Ok(types.filter(Type::is_type).collect())
}

fn version_name(name: String) -> Version {
    Version { name, ..Version::default() }
}

impl AggregatedGroup {
    fn read(self) -> Group {
        let versions = self.versions.unwrap_or_default().into_iter().map(AggregatedVersion::read).collect();
        Group { name: self.metadata.name, versions }
    }
}

impl AggregatedVersion {
    fn read(self) -> Version {
        let is_stale = self.freshness == "Stale";
        let types = self.resources.unwrap_or_default().into_iter().map(|served| Type {
            plural: served.resource,
            singular: served.singular_resource,
            kind: served.response_kind.unwrap_or_default().kind,
            namespaced: served.scope == "Namespaced",
            short_names: served.short_names.unwrap_or_default(),
            verbs: served.verbs.unwrap_or_default(),
        });
        Version {
            name: self.version,
            types: types.filter(Type::is_type).collect(),
            error: is_stale.then(|| "the server could not refresh its discovery document".to_owned()),
        }
    }
}

impl LegacyGroup {
    fn read(self) -> Group {
        let preferred = self.preferred_version.map(|preferred| preferred.version);
        let mut names: Vec<String> = self.versions.unwrap_or_default().into_iter().map(|v| v.version).collect();
        // stable: behind the preferred one the server's own order stays
        names.sort_by_key(|name| Some(name) != preferred.as_ref());
        Group { name: self.name, versions: names.into_iter().map(version_name).collect() }
    }
}

impl Type {
    /// `pods/log` is no type, and what has no kind has no objects.
    fn is_type(&self) -> bool {
        !self.plural.is_empty() && !self.plural.contains('/') && !self.kind.is_empty()
    }
}
