//! Questions to the API server: the types that it serves, and the rights of this user.

use std::collections::BTreeSet;

use crate::{
    config::{Config, Kube, ResourceConfig},
    discovery::{self, Catalog, DiscoveryError, ScopedType, Selection, TypeAccess},
    list_watch::kube::{Client, ClusterAccess},
    object::ResourceType,
};
use anyhow::Context as _;

/// Type, and the `[resources]` entry that watches it; `None` if no entry does.
pub(crate) type Watched<'a> = (&'a ResourceType, Option<&'a ResourceConfig>);

/// API server of a configuration.
pub(crate) struct ServerArgs {
    pub(crate) access: ClusterAccess,
    pub(crate) client: Client,
    /// Advice for the user, which is appended to error messages; may be empty.
    hint: &'static str,
}

impl ServerArgs {
    /// Loads the address of the server and the credentials. May run a credential program. Sends no request.
    pub(crate) async fn of(kube: &Kube, hint: &'static str) -> anyhow::Result<Self> {
        let access =
            ClusterAccess::load(&kube.access()).with_context(|| format!("cannot reach the API server{hint}"))?;
        let logged_in = access.log_in().await;
        logged_in.with_context(|| format!("cannot reach the API server {}{hint}", access.server_url()))?;
        Ok(Self { client: access.client(), access, hint })
    }

    /// Returns the number of objects of all `types` together. Counts a type only in the namespaces that its entry names. A type
    /// that cannot be listed counts as 0.
    pub(crate) async fn count(&self, types: &[Watched<'_>]) -> u64 {
        let asked: Vec<_> = types.iter().flat_map(collections).collect();
        discovery::count_each(&self.client, &asked).await.into_iter().flatten().sum()
    }

    /// Discovers the served types, and selects those of a configuration.
    pub(crate) async fn select(&self, config: &Config) -> anyhow::Result<(Catalog, Selection)> {
        let unreachable = || format!("cannot reach the API server {}{}", self.access.server_url(), self.hint);
        let wanted = config.wanted();
        let catalog = discovery::discover_for(&self.client, &wanted).await.with_context(unreachable)?;
        let selection = discovery::select(&catalog, &wanted);
        Ok((catalog, selection))
    }

    /// Returns the rights of this user on each type, in the namespaces that the entry of the type names. If the type has no entry,
    /// returns the rights in all namespaces.
    pub(crate) async fn rights(&self, types: &[Watched<'_>]) -> Vec<Rights> {
        let asked: Vec<Vec<ScopedType>> = types.iter().map(collections).collect();
        let mut answers = discovery::allowed_each(&self.client, &asked.concat()).await.into_iter();
        let rights = |asked: &Vec<ScopedType>| {
            let mut rights = Rights::default();
            for (asked, answer) in asked.iter().zip(&mut answers) {
                rights.add(asked.namespace.as_deref(), answer);
            }
            rights
        };
        asked.iter().map(rights).collect()
    }
}

/// Returns the collections of a type that are listed: in each namespace that its entry names, or in all.
fn collections(&(resource, entry): &Watched<'_>) -> Vec<ScopedType> {
    let name = entry.and_then(ResourceConfig::object_name);
    let names = entry.and_then(|entry| entry.namespaces.names()).filter(|_| resource.namespaced);
    let namespaces = names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
    let collection = |namespace| ScopedType { name: name.clone(), ..ScopedType::of(resource, namespace) };
    namespaces.into_iter().map(collection).collect()
}

/// Rights of a user on a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// Verbs that the user may not use.
    pub(crate) refused: Vec<Refused>,
    /// Reason why the rights are unknown.
    pub(crate) unknown: Option<String>,
}

/// Verb that a user may not use.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Refused {
    /// `list` or `watch`.
    pub(crate) verb: &'static str,
    /// Namespace, or `None` for all.
    pub(crate) namespace: Option<String>,
    /// Explanation of the server; may be empty.
    pub(crate) reason: String,
}

impl Rights {
    fn add(&mut self, namespace: Option<&str>, answer: Result<TypeAccess, DiscoveryError>) {
        match answer {
            Ok(TypeAccess { list, watch, reason }) => {
                let verbs = [("list", list), ("watch", watch)].into_iter().filter(|(_, allowed)| !allowed);
                self.refused.extend(verbs.map(|(verb, _)| Refused {
                    verb,
                    namespace: namespace.map(str::to_owned),
                    reason: reason.clone(),
                }));
            }
            // a server without authorization does not have this API
            Err(error) if matches!(error.code, Some(404 | 405)) => {
                self.unknown = Some("the server does not report the rights of users".to_owned());
            }
            Err(error) => self.unknown = Some(error.to_string()),
        }
    }

    /// Returns the verbs that are refused in at least one namespace. Each verb occurs once.
    pub(crate) fn verbs(&self) -> Vec<&'static str> {
        let is_refused = |verb: &&str| self.refused.iter().any(|refused| refused.verb == *verb);
        ["list", "watch"].into_iter().filter(is_refused).collect()
    }

    /// Returns the namespaces in which at least one verb is refused. The list is empty if verbs are refused in all namespaces.
    pub(crate) fn namespaces(&self) -> Vec<&str> {
        let names: BTreeSet<_> = self.refused.iter().filter_map(|refused| refused.namespace.as_deref()).collect();
        names.into_iter().collect()
    }

    /// Formats the rights as a table cell.
    pub(crate) fn cell(&self) -> String {
        let verbs = self.verbs();
        if verbs.is_empty() {
            return if self.unknown.is_some() { "unknown" } else { "list, watch" }.to_owned();
        }
        let namespaces = self.namespaces();
        let place = if namespaces.is_empty() { String::new() } else { format!(" in {}", namespaces.join(", ")) };
        format!("no {}{place}", verbs.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_summarized_in_one_cell() {
        let access = |list, watch| Ok(TypeAccess { list, watch, reason: String::new() });
        let of = |answers: Vec<(Option<&str>, Result<TypeAccess, DiscoveryError>)>| {
            let mut rights = Rights::default();
            for (namespace, answer) in answers {
                rights.add(namespace, answer);
            }
            rights.cell()
        };
        assert_eq!(of(vec![(None, access(true, true))]), "list, watch");
        assert_eq!(of(vec![(None, access(false, false))]), "no list, watch");
        assert_eq!(of(vec![(Some("a"), access(true, true)), (Some("b"), access(true, false))]), "no watch in b");
        assert_eq!(
            of(vec![(Some("a"), access(false, true)), (Some("b"), access(true, false))]),
            "no list, watch in a, b"
        );
        let error = || DiscoveryError { code: Some(405), said: "no".to_owned() };
        assert_eq!(of(vec![(None, Err(error()))]), "unknown");
        assert_eq!(of(vec![(Some("a"), Err(error())), (Some("b"), access(false, true))]), "no list in b");
    }
}
