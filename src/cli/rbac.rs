//! `deltabus rbac`: the least rights that a configuration needs, as YAML.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
    str::FromStr,
};

use crate::{
    config::{Config, Loaded, Rediscover, ResourceConfig, TypePattern},
    discovery::{self, Catalog, Pattern, Resolution, Selection, Unmatched},
    object::ResourceType,
};
use clap::Args;
use serde_json::{Value, json};

use super::{ConfigArgs, report, server::ServerArgs, yaml};

/// Prints the least rights that a configuration needs, as YAML.
///
/// The output is a cluster role, and a role for each namespace that an entry names. With --service-account it also contains
/// their bindings. The command asks the API server which types the configuration selects. Discovery itself needs only the
/// rights that every authenticated user has (`system:discovery`).
#[derive(Debug, Args)]
pub(crate) struct RbacArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Binds the roles to this service account.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Option<ServiceAccount>,
    /// Name of the roles and bindings.
    #[arg(long, default_value = "deltabus")]
    name: String,
    /// Grants whole groups for `*.GROUP`, and everything for `*`, so that future types are allowed too.
    ///
    /// Without this option, the roles name each type that matches a wildcard now.
    #[arg(long)]
    wildcard: bool,
    /// Grants the rights in this namespace, not in the whole cluster; can be repeated.
    ///
    /// The engine then watches the types only where they are allowed. To find these namespaces, it gets the right to list and
    /// watch namespaces. The option does not affect cluster-scoped types, nor entries whose `namespaces` are all plain names.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
}

/// Account that gets the rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FromStr for ServiceAccount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = |part: &str| !part.is_empty() && !part.contains('/');
        let parts = text.split_once('/').filter(|(namespace, name)| is_valid(namespace) && is_valid(name));
        let (namespace, name) = parts.ok_or("expected NAMESPACE/NAME")?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// Namespace in which a right is needed, or `None` for the whole cluster.
pub(super) type Place = Option<String>;

/// Right to list and watch a type. Its parts are the namespace (`None` for the whole cluster), the group, the plural, and the name of
/// the only object (`None` for all objects).
type Right = (Place, String, String, Option<String>);

/// Limits of the granted rights: `--wildcard` and `--namespace`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent<'a> {
    /// Set if a pattern with a wildcard grants whole groups, not single types.
    pub(super) wildcard: bool,
    /// Namespaces of `--namespace`, to which the rights are limited. If empty, there is no such limit.
    pub(super) namespaces: &'a [String],
}

/// Rights to grant.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Grants {
    rights: BTreeSet<Right>,
    /// Set to also grant the right to read the namespace `kube-system`. The uid of this namespace identifies the cluster. The
    /// engine stores the uid in the state directory.
    knows_the_cluster: bool,
    /// Sentences about rights that the roles grant or do not grant.
    pub(super) remarks: Vec<String>,
}

/// Prints the roles.
pub(crate) async fn rbac(args: &RbacArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    let (catalog, selection) = ServerArgs::of(&config.kube, "").await?.select(&config).await?;
    let extent = Extent { wildcard: args.wildcard, namespaces: &args.namespaces };
    let grants = Grants::of(&config, &catalog, &selection, &extent);
    let yaml = grants.to_yaml(&args.name, args.service_account.as_ref());
    Ok(io::stdout().lock().write_all(yaml.as_bytes())?)
}

impl Grants {
    /// Returns the rights that a configuration needs on a server.
    pub(super) fn of(config: &Config, catalog: &Catalog, selection: &Selection, extent: &Extent<'_>) -> Self {
        let mut grants = Self { knows_the_cluster: config.state.dir.is_some(), ..Self::default() };
        // A Role with a wildcard grants no cluster-scoped types. The next loop grants those by name.
        for entry in config.resources.values().filter(|_| extent.wildcard) {
            for pattern in &entry.patterns {
                let group = match pattern.pattern() {
                    Pattern::All => "*",
                    Pattern::Group(group) => group,
                    Pattern::Custom | Pattern::Type { .. } => continue,
                };
                let (places, are_searched) = extent.places(entry, true);
                grants.add_in(places, are_searched, group, "*", entry.object_name().as_deref());
            }
        }
        for owned in &selection.owned {
            if let Some(entry) = config.resources.get(&owned.entry) {
                let ResourceType { group, plural, namespaced, .. } = &owned.resource;
                let (places, are_searched) = extent.places(entry, *namespaced);
                grants.add_in(places, are_searched, group, plural, entry.object_name().as_deref());
            }
        }
        // The engine itself watches CRDs to notice added and removed types. It watches namespaces for their labels.
        if config.kube.rediscover == Rediscover::CrdWatch && discovery::depends_on_crds(&config.wanted(), selection) {
            grants.add(None, "apiextensions.k8s.io", "customresourcedefinitions", None);
        }
        if config.resources.values().any(|entry| !entry.namespace_selector.is_empty()) {
            grants.add(None, "", "namespaces", None);
        }
        grants.merge();
        grants.remark(config, catalog, selection, extent);
        grants
    }

    fn add(&mut self, place: Place, group: &str, plural: &str, name: Option<String>) {
        self.rights.insert((place, group.to_owned(), plural.to_owned(), name));
    }

    /// Grants the right to list and watch a type in `places`. The plural `*` means all types of the group. If `are_searched` is
    /// set, also grants the right to list and watch namespaces. The API server applies a right on `name` to requests whose field
    /// selector has this name.
    fn add_in(&mut self, places: Vec<Place>, are_searched: bool, group: &str, plural: &str, name: Option<&str>) {
        if are_searched {
            self.add(None, "", "namespaces", None);
        }
        for place in places {
            self.add(place, group, plural, name.map(str::to_owned));
        }
    }

    /// Removes each right that another, wider right includes.
    fn merge(&mut self) {
        let all = self.rights.clone();
        self.rights.retain(|right| {
            let (place, group, plural, name) = right;
            let scopes = [(place, name), (place, &None), (&None, name), (&None, &None)];
            let mut wider = scopes.into_iter().flat_map(|(place, name)| {
                let right =
                    |group: &str, plural: &str| (place.clone(), group.to_owned(), plural.to_owned(), name.clone());
                [right(group, plural), right(group, "*"), right("*", "*")]
            });
            !wider.any(|other| other != *right && all.contains(&other))
        });
    }

    /// Adds remarks for the reader of the roles.
    fn remark(&mut self, config: &Config, catalog: &Catalog, selection: &Selection, extent: &Extent<'_>) {
        let entries = config.resources.values();
        let patterns: Vec<_> = entries.flat_map(|entry| &entry.patterns).map(TypePattern::pattern).collect();
        if extent.wildcard && patterns.contains(&&Pattern::Custom) {
            let remark = "RBAC cannot grant all types of CRDs: crd:* includes only those that are served now.";
            self.remarks.push(remark.to_owned());
        }
        if patterns.iter().any(|pattern| pattern.is_wildcard()) {
            self.remarks.push(if extent.wildcard {
                "Future types are allowed too, and so are types that an entry excludes.".to_owned()
            } else {
                "Wildcards include only types that are served now. For new types, run this again or use --wildcard."
                    .to_owned()
            });
        }
        for Unmatched { entry, pattern, resolution } in &selection.unmatched {
            if let Resolution::Missing { .. } | Resolution::Empty { .. } = resolution {
                let text = config.pattern(entry, *pattern);
                self.remarks.push(format!(
                    "[resources.{entry}] \"{text}\" is not served now, so it is not granted: run this again later."
                ));
            }
        }
        for unavailable in catalog.unavailable() {
            self.remarks.push(format!("Discovery failed for {unavailable}: its types are not granted."));
        }
        for namespace in extent.namespaces {
            if !self.rights.iter().any(|(place, ..)| place.as_ref() == Some(namespace)) {
                self.remarks.push(format!("Nothing is granted in {namespace}: no entry selects a type there."));
            }
        }
        let reads_secrets =
            |(_, group, plural, _): &Right| matches!((&**group, &**plural), ("" | "*", "*") | ("", "secrets"));
        if self.rights.iter().any(reads_secrets) {
            self.remarks.push(
                "This right includes the values of Secrets: RBAC cannot grant metadata alone. deltabus does not keep \
                 the values."
                    .to_owned(),
            );
        }
    }

    /// Returns the rules of each role: the cluster role, and one role for each namespace.
    pub(super) fn rules(&self) -> BTreeMap<Place, Vec<Value>> {
        let mut groups: BTreeMap<(&Place, &str, &Option<String>), Vec<&str>> = BTreeMap::new();
        for (place, group, plural, name) in &self.rights {
            groups.entry((place, group, name)).or_default().push(plural);
        }
        let mut rules: BTreeMap<Place, Vec<Value>> = BTreeMap::new();
        for ((place, group, name), plurals) in groups {
            let mut rule = json!({ "apiGroups": [group], "resources": plurals, "verbs": ["list", "watch"] });
            if let Some(name) = name {
                rule["resourceNames"] = json!([name]);
            }
            rules.entry(place.clone()).or_default().push(rule);
        }
        if self.knows_the_cluster {
            rules.entry(None).or_default().push(json!({
                "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"],
            }));
        }
        rules
    }

    fn to_yaml(&self, name: &str, account: Option<&ServiceAccount>) -> String {
        let heading = ["The rights that deltabus needs for this configuration.".to_owned()];
        let comments = heading.iter().chain(&self.remarks);
        yaml::documents(comments, &roles(&self.rules(), &json!({ "name": name }), account))
    }
}

/// Returns a role for each place in `rules`. If `account` is given, also returns a binding of each role to this account. Every
/// object has `metadata`. A `Role` and its binding also have a namespace.
pub(super) fn roles(
    rules: &BTreeMap<Place, Vec<Value>>,
    metadata: &Value,
    account: Option<&ServiceAccount>,
) -> Vec<Value> {
    const API: &str = "rbac.authorization.k8s.io";
    let mut objects = Vec::new();
    for (place, rules) in rules {
        let kind = if place.is_some() { "Role" } else { "ClusterRole" };
        let mut metadata = metadata.clone();
        if let Some(namespace) = place {
            metadata["namespace"] = json!(namespace);
        }
        let api_version = format!("{API}/v1");
        objects.push(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules }));
        if let Some(ServiceAccount { namespace, name: account }) = account {
            objects.push(json!({
                "apiVersion": api_version,
                "kind": format!("{kind}Binding"),
                "metadata": metadata,
                "roleRef": { "apiGroup": API, "kind": kind, "name": metadata["name"] },
                "subjects": [{ "kind": "ServiceAccount", "namespace": namespace, "name": account }],
            }));
        }
    }
    objects
}

impl Extent<'_> {
    /// Returns the namespaces in which an entry needs rights on its types. The flag is true if these namespaces come from
    /// `--namespace`, not from the entry. The engine then needs the right to list namespaces.
    fn places(&self, entry: &ResourceConfig, namespaced: bool) -> (Vec<Place>, bool) {
        if let Some(names) = entry.namespaces.names().filter(|_| namespaced) {
            return (names.into_iter().map(|name| Some(name.to_owned())).collect(), false);
        }
        if self.namespaces.is_empty() || !namespaced {
            return (vec![None], false);
        }
        let meant = self.namespaces.iter().filter(|namespace| entry.namespaces.matches(namespace));
        (meant.cloned().map(Some).collect(), true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(rights: &[(Option<&str>, &str, &str)]) -> Grants {
        let mut grants = Grants::default();
        for (place, group, plural) in rights {
            grants.add(place.map(str::to_owned), group, plural, None);
        }
        grants.merge();
        grants
    }

    #[test]
    fn wider_grant_replaces_narrower_one() {
        #[track_caller]
        fn check(rights: &[(Option<&str>, &str, &str)], left: &[(Option<&str>, &str, &str)]) {
            let mut expected = Grants::default();
            for (place, group, plural) in left {
                expected.add(place.map(str::to_owned), group, plural, None);
            }
            assert_eq!(grants(rights), expected);
        }
        let (pods, pods_in_a) = ((None, "", "pods"), (Some("a"), "", "pods"));
        check(&[pods, pods_in_a, (Some("b"), "", "nodes")], &[pods, (Some("b"), "", "nodes")]);
        check(&[pods_in_a, (Some("b"), "", "*"), (Some("b"), "", "pods")], &[pods_in_a, (Some("b"), "", "*")]);
        check(&[(None, "apps", "*"), (None, "apps", "deployments"), (Some("a"), "apps", "*")], &[(None, "apps", "*")]);
        check(&[(None, "*", "*"), pods, pods_in_a, (None, "apps", "*")], &[(None, "*", "*")]);
        check(&[(Some("a"), "*", "*"), pods, pods_in_a], &[(Some("a"), "*", "*"), pods]);
    }

    #[test]
    fn named_object_limits_the_right() {
        let rules = |rights: &[(Option<&str>, Option<&str>)]| {
            let mut grants = Grants::default();
            for (place, name) in rights {
                grants.add(place.map(str::to_owned), "", "secrets", name.map(str::to_owned));
            }
            grants.merge();
            let rules = grants.rules().into_values().flatten();
            rules.map(|rule| rule["resourceNames"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(rules(&[(Some("a"), Some("x")), (Some("b"), Some("y"))]), [json!(["x"]), json!(["y"])]);
        assert_eq!(rules(&[(Some("a"), Some("x")), (Some("a"), None)]), [Value::Null]);
        assert_eq!(rules(&[(Some("a"), Some("x")), (None, Some("x"))]), [json!(["x"])]);
        assert_eq!(rules(&[(Some("a"), Some("x")), (None, Some("y"))]), [json!(["y"]), json!(["x"])]);
        assert_eq!(rules(&[(Some("a"), None), (None, Some("y"))]), [json!(["y"]), Value::Null]);
    }

    #[test]
    fn roles_are_bound_in_each_place() {
        let mut grants = grants(&[(None, "apps", "deployments"), (None, "", "nodes"), (Some("a"), "", "pods")]);
        grants.remarks.push("A remark.".to_owned());
        let account = "ops/deltabus".parse::<ServiceAccount>();
        insta::assert_snapshot!(grants.to_yaml("watcher", account.as_ref().ok()));
        assert!(!grants.to_yaml("watcher", None).contains("Binding"));
    }

    #[test]
    fn state_directory_needs_right_to_identify_cluster() {
        let own = "resourceNames:\n  - kube-system\n  verbs:\n  - get\n";
        let mut grants = grants(&[(Some("a"), "", "pods")]);
        assert!(!grants.to_yaml("watcher", None).contains(own));
        grants.knows_the_cluster = true;
        let yaml = grants.to_yaml("watcher", None);
        assert!(yaml.contains(own) && yaml.matches("kind: ClusterRole\n").count() == 1, "{yaml}");
    }

    #[test]
    fn service_account_has_namespace_and_name() {
        for text in ["deltabus", "/deltabus", "ops/", "a/b/c", ""] {
            assert!(text.parse::<ServiceAccount>().is_err(), "{text}");
        }
    }
}
