//! Requests of commands to the API server: the types it serves, and the rights of this user.

use std::collections::BTreeSet;

use crate::{
    config::{Kube, ResourceConfig},
    discovery::{self, Catalog, DiscoveryError, TypeAccess},
    list_watch::kube::{Client, ClusterAccess},
    object::ResourceType,
};
use anyhow::Context as _;

use tokio::runtime::Runtime;

/// API server of a configuration.
pub(crate) struct ServerArgs {
    access: ClusterAccess,
    runtime: Runtime,
    /// Advice that follows an error, or an empty text.
    hint: &'static str,
}

impl ServerArgs {
    /// Locates the server; sends no request.
    pub(crate) fn of(kube: &Kube, hint: &'static str) -> anyhow::Result<Self> {
        let access =
            ClusterAccess::load(&kube.access()).with_context(|| format!("cannot reach the API server{hint}"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { access, runtime, hint })
    }

    /// Returns the name of the cluster in the kubeconfig.
    pub(crate) fn cluster_name(&self) -> Option<&str> {
        self.access.cluster_name()
    }

    /// Returns the port of the server.
    pub(crate) fn port(&self) -> Option<u16> {
        self.access.server_url().parse::<http::Uri>().ok()?.port_u16()
    }

    /// Runs a request on the runtime; fails if no client can be created. Blocks.
    fn ask<T>(&self, ask: impl AsyncFnOnce(Client) -> T) -> anyhow::Result<T> {
        self.runtime.block_on(async { Ok(ask(self.access.client()?).await) })
    }

    /// Counts the objects of types, in the namespaces that their entries name. Types that cannot be listed count as 0.
    /// Blocks.
    pub(crate) fn count(&self, types: &[(ResourceType, Option<&ResourceConfig>)]) -> u64 {
        let scopes = types
            .iter()
            .flat_map(|(resource, entry)| scopes(resource, *entry).into_iter().map(|scope| (resource.clone(), scope)));
        let scopes: Vec<_> = scopes.collect();
        let counts = self.ask(async |client| discovery::count_each(&client, &scopes).await);
        counts.into_iter().flatten().flatten().sum()
    }

    /// Discovers the served types. Blocks.
    pub(crate) fn catalog(&self) -> anyhow::Result<Catalog> {
        let catalog = self.ask(async |client| discovery::discover(&client).await);
        let catalog = catalog.and_then(|catalog| Ok(catalog?));
        catalog.with_context(|| format!("cannot reach the API server {}{}", self.access.server_url(), self.hint))
    }

    /// Lists the names of the namespaces; returns `None` if this user may not list them. Blocks.
    pub(crate) fn namespaces(&self) -> anyhow::Result<Option<Vec<String>>> {
        Ok(self.ask(async |client| discovery::namespaces(&client).await)??)
    }

    /// Returns the server's reason if a type does not support the `fields` of an entry. A list that fails for another reason
    /// counts as supported. Blocks.
    pub(crate) fn refuses_fields(
        &self,
        resource: &ResourceType,
        entry: &ResourceConfig,
    ) -> anyhow::Result<Option<String>> {
        let names = entry.namespaces.names().unwrap_or_default();
        let namespace = names.first().copied();
        self.ask(async |client| discovery::refused_fields(&client, resource, namespace, &entry.fields).await)
    }

    /// Returns this user's rights on each type, in the namespaces that its entry names. For a type without an entry, asks
    /// about all namespaces. Blocks.
    pub(crate) fn rights(&self, types: &[(&ResourceType, Option<&ResourceConfig>)]) -> anyhow::Result<Vec<Rights>> {
        let mut asked = Vec::new();
        let mut of_type = Vec::new();
        for (index, (resource, entry)) in types.iter().enumerate() {
            for scope in scopes(resource, *entry) {
                asked.push(((*resource).clone(), scope));
                of_type.push(index);
            }
        }
        let answers = self.ask(async |client| discovery::allowed_each(&client, &asked).await)?;
        let mut rights = vec![Rights::default(); types.len()];
        for (((_, namespace), answer), index) in asked.into_iter().zip(answers).zip(of_type) {
            rights[index].add(namespace.as_deref(), answer);
        }
        Ok(rights)
    }
}

/// Returns the namespaces in which a type is listed: those that its entry names, or all (`None`).
fn scopes(resource: &ResourceType, entry: Option<&ResourceConfig>) -> Vec<Option<String>> {
    let names = entry.and_then(|entry| entry.namespaces.names()).filter(|_| resource.namespaced);
    names.map_or(vec![None], |names| names.into_iter().map(|name| Some(name.to_owned())).collect())
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
                self.unknown = Some("the server does not report what a user may do".to_owned());
            }
            Err(error) => self.unknown = Some(error.to_string()),
        }
    }

    /// Returns the verbs that are refused in at least one place, each once.
    pub(crate) fn verbs(&self) -> Vec<&'static str> {
        let is_refused = |verb: &&str| self.refused.iter().any(|refused| refused.verb == *verb);
        ["list", "watch"].into_iter().filter(is_refused).collect()
    }

    /// Returns the namespaces where a verb is refused; empty if it is refused in all.
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
