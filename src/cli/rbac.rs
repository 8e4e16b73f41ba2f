//! `deltabus rbac`: the least rights that a configuration needs, as YAML.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write as _},
    str::FromStr,
};

use clap::Args;
use deltabus::{
    config::{Config, Loaded, Rediscover, ResourceConfig, TypePattern},
    discovery::{self, Catalog, Pattern, Resolution, Selection, Unmatched, WantedEntry},
    object::ResourceType,
};
use serde_json::{Value, json};

use super::{ConfigArgs, report, server::ServerArgs, yaml};

/// Prints the least rights that a configuration needs, as YAML: a cluster role, a role for each namespace that an
/// entry names, and their bindings where --service-account says to whom.
///
/// The API server is asked which types the configuration means. Discovery itself needs the rights that every
/// authenticated user has (`system:discovery`).
#[derive(Debug, Args)]
pub(crate) struct RbacArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Bind the roles to this service account.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    service_account: Option<ServiceAccount>,
    /// Name of the roles and bindings.
    #[arg(long, default_value = "deltabus")]
    name: String,
    /// Grant whole groups for `*.GROUP`, and everything for `*`, so that types to come are allowed too.
    ///
    /// Without it each type of a wildcard is named as it is served now.
    #[arg(long)]
    wildcard: bool,
    /// Grant what would be granted in the whole cluster in this namespace alone; can be given again.
    ///
    /// The engine then watches those types where they are allowed. For that it may list and watch namespaces. Entries
    /// whose `namespaces` are names alone are not touched, and neither are types without namespaces.
    #[arg(long = "namespace", value_name = "NAMESPACE")]
    namespaces: Vec<String>,
}

/// Who gets the rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceAccount {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl FromStr for ServiceAccount {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err("expected NAMESPACE/NAME"),
        }
    }
}

/// Where a right is needed: everywhere, or in one namespace.
pub(super) type Place = Option<String>;

/// The right to list and watch: where, which group, which plural.
type Right = (Place, String, String);

/// How far rights may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent<'a> {
    /// To whole groups.
    pub(super) wildcard: bool,
    /// To these namespaces; everywhere if there are none.
    pub(super) namespaces: &'a [String],
}

/// What has to be granted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Grants {
    rights: BTreeSet<Right>,
    /// The state directory is bound to the cluster, by the uid of `kube-system`.
    knows_the_cluster: bool,
    /// Sentences on what the roles grant, or do not.
    pub(super) remarks: Vec<String>,
}

/// Prints the roles.
pub(crate) fn rbac(args: &RbacArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    let catalog = ServerArgs::of(&config.kube, "")?.catalog()?;
    let grants = Grants::of(&config, &catalog, &Extent { wildcard: args.wildcard, namespaces: &args.namespaces });
    let yaml = grants.to_yaml(&args.name, args.service_account.as_ref());
    io::stdout().lock().write_all(yaml.as_bytes())?;
    Ok(())
}

impl Grants {
    /// Returns what a configuration needs on a server.
    pub(super) fn of(config: &Config, catalog: &Catalog, extent: &Extent<'_>) -> Self {
        let wanted = config.wanted();
        let selection = discovery::select(catalog, &wanted);
        let mut grants = Self::default();
        if extent.wildcard {
            grants.wildcards(config, extent);
        }
        for owned in &selection.owned {
            if let Some(entry) = config.resources.get(&owned.entry) {
                let ResourceType { group, plural, namespaced, .. } = &owned.resource;
                grants.add_in(extent.places(entry, *namespaced), group, plural);
            }
        }
        grants.of_the_engine(config, &wanted, &selection);
        grants.knows_the_cluster = config.state.dir.is_some();
        grants.merge();
        grants.remark(config, catalog, &selection, extent);
        grants
    }

    fn add(&mut self, place: Place, group: &str, plural: &str) {
        self.rights.insert((place, group.to_owned(), plural.to_owned()));
    }

    /// Grants a type, or a group, in some places. What is granted in single namespaces, but not because the entry names
    /// them, the engine finds only if it knows the namespaces.
    fn add_in(&mut self, (places, are_searched): (Vec<Place>, bool), group: &str, plural: &str) {
        if are_searched {
            self.add(None, "", "namespaces");
        }
        for place in places {
            self.add(place, group, plural);
        }
    }

    /// Grants groups as a whole. What of them has no namespaces cannot be had by a Role.
    fn wildcards(&mut self, config: &Config, extent: &Extent<'_>) {
        for entry in config.resources.values() {
            for pattern in &entry.patterns {
                let group = match pattern.pattern() {
                    Pattern::All => "*",
                    Pattern::Group(group) => group,
                    Pattern::Type { .. } => continue,
                };
                self.add_in(extent.places(entry, true), group, "*");
            }
        }
    }

    /// What the engine watches for itself: CRDs, to notice types that come and go; namespaces, to know their labels.
    fn of_the_engine(&mut self, config: &Config, wanted: &[WantedEntry], selection: &Selection) {
        if config.kube.rediscover == Rediscover::CrdWatch && discovery::depends_on_crds(wanted, selection) {
            self.add(None, "apiextensions.k8s.io", "customresourcedefinitions");
        }
        if config.resources.values().any(|entry| !entry.namespace_selector.is_empty()) {
            self.add(None, "", "namespaces");
        }
    }

    /// Leaves out what is granted more widely already.
    fn merge(&mut self) {
        let all = self.rights.clone();
        self.rights.retain(|right| {
            let (place, group, plural) = right;
            let mut wider = [place.clone(), None].into_iter().flat_map(|place| {
                let right = |group: &str, plural: &str| (place.clone(), group.to_owned(), plural.to_owned());
                [right(group, plural), right(group, "*"), right("*", "*")]
            });
            !wider.any(|other| other != *right && all.contains(&other))
        });
    }

    /// Says what the reader should know of the roles.
    fn remark(&mut self, config: &Config, catalog: &Catalog, selection: &Selection, extent: &Extent<'_>) {
        let entries = config.resources.values();
        let mut patterns = entries.flat_map(|entry| &entry.patterns).map(TypePattern::pattern);
        if patterns.any(Pattern::is_wildcard) {
            self.remarks.push(if extent.wildcard {
                "Types to come are allowed too, and so are those that an entry excludes.".to_owned()
            } else {
                "The types of wildcards are those that are served now: new ones need a new run, or --wildcard."
                    .to_owned()
            });
        }
        for Unmatched { entry, pattern, resolution } in &selection.unmatched {
            if let Resolution::Missing { .. } | Resolution::Empty { .. } = resolution {
                let text = config.pattern(entry, *pattern);
                self.remarks.push(format!(
                    "[resources.{entry}] \"{text}\" is not served now and not granted: run this again when it is."
                ));
            }
        }
        for unavailable in catalog.unavailable() {
            self.remarks.push(format!("The types of {unavailable} could not be asked for, and are not granted."));
        }
        for namespace in extent.namespaces {
            if !self.rights.iter().any(|(place, ..)| place.as_ref() == Some(namespace)) {
                self.remarks.push(format!("Nothing is granted in {namespace}: no entry has a type there."));
            }
        }
        let reads_secrets =
            |(_, group, plural): &Right| matches!((&**group, &**plural), ("" | "*", "*") | ("", "secrets"));
        if self.rights.iter().any(reads_secrets) {
            self.remarks.push(
                "This right reads the values of Secrets, though deltabus keeps none: RBAC cannot grant metadata alone."
                    .to_owned(),
            );
        }
    }

    /// Returns the rules of each role: the cluster's, and those of namespaces.
    pub(super) fn rules(&self) -> BTreeMap<Place, Vec<Value>> {
        let mut groups: BTreeMap<(&Place, &str), Vec<&str>> = BTreeMap::new();
        for (place, group, plural) in &self.rights {
            groups.entry((place, group)).or_default().push(plural);
        }
        let mut rules: BTreeMap<Place, Vec<Value>> = BTreeMap::new();
        for ((place, group), plurals) in groups {
            let rule = json!({ "apiGroups": [group], "resources": plurals, "verbs": ["list", "watch"] });
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

/// Returns roles with these rules, and their bindings to an account. Each has this metadata beside its namespace.
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
    /// Returns where the rights on a type of an entry are needed, and whether the engine has to search for these places:
    /// the entry does not name them.
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
            grants.add(place.map(str::to_owned), group, plural);
        }
        grants.merge();
        grants
    }

    #[test]
    fn what_is_granted_more_widely_is_left_out() {
        #[track_caller]
        fn check(rights: &[(Option<&str>, &str, &str)], left: &[(Option<&str>, &str, &str)]) {
            let mut expected = Grants::default();
            for (place, group, plural) in left {
                expected.add(place.map(str::to_owned), group, plural);
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
    fn roles_are_bound_in_each_place() {
        let mut grants = grants(&[(None, "apps", "deployments"), (None, "", "nodes"), (Some("a"), "", "pods")]);
        grants.remarks.push("A remark.".to_owned());
        let account = "ops/deltabus".parse::<ServiceAccount>();
        insta::assert_snapshot!(grants.to_yaml("watcher", account.as_ref().ok()));
        assert!(!grants.to_yaml("watcher", None).contains("Binding"));
    }

    #[test]
    fn d7_who_binds_a_state_to_its_cluster_may_see_which_one_it_is() {
        let own = "resourceNames:\n  - kube-system\n  verbs:\n  - get\n";
        let mut grants = grants(&[(Some("a"), "", "pods")]);
        assert!(!grants.to_yaml("watcher", None).contains(own));
        grants.knows_the_cluster = true;
        let yaml = grants.to_yaml("watcher", None);
        assert!(yaml.contains(own) && yaml.matches("kind: ClusterRole\n").count() == 1, "{yaml}");
    }

    #[test]
    fn a_service_account_has_a_namespace_and_a_name() {
        for text in ["deltabus", "/deltabus", "ops/", "a/b/c", ""] {
            assert!(text.parse::<ServiceAccount>().is_err(), "{text}");
        }
    }
}
