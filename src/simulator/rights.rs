//! Access rights: everything is allowed unless it was forbidden.

/// Scope of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Area {
    /// All requests, namespaced and cluster-wide.
    Everywhere,
    /// Requests without a namespace: lists of all namespaces, and requests for cluster-scoped objects.
    ///
    /// The effect is that of a missing `ClusterRoleBinding`: requests within a namespace are still allowed.
    ClusterWide,
    /// One namespace. Cluster-wide requests are not affected, although RBAC would refuse them too.
    Namespace(String),
}

/// A requested action.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    /// RBAC verb, such as `list`; `*` for all verbs.
    pub(super) verb: &'a str,
    pub(super) group: &'a str,
    pub(super) plural: &'a str,
    /// Empty for a cluster-wide request.
    pub(super) namespace: &'a str,
}

/// A forbidden action.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    verb: String,
    resource: String,
    area: Area,
}

impl Refusal {
    pub(super) fn new(verb: &str, resource: &str, area: Area) -> Self {
        Self { verb: verb.to_owned(), resource: resource.to_owned(), area }
    }

    pub(super) fn concerns(&self, attempt: Attempt<'_>) -> bool {
        let (plural, group) = self.resource.split_once('.').unwrap_or((&self.resource, ""));
        let of_type = self.resource == "*" || (plural == "*" || plural == attempt.plural) && group == attempt.group;
        let is_there = match &self.area {
            Area::Everywhere => true,
            Area::ClusterWide => attempt.namespace.is_empty(),
            Area::Namespace(namespace) => namespace == attempt.namespace,
        };
        of_type && is_there && (self.verb == "*" || attempt.verb == "*" || self.verb == attempt.verb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::Faults;

    #[test]
    fn refusal_applies_to_its_verb_type_and_place() {
        let check = |refusal: (&str, &str, Area), attempt: [&str; 4], allowed: bool| {
            let rights = Faults::default();
            rights.forbid(refusal.0, refusal.1, refusal.2.clone());
            let [verb, group, plural, namespace] = attempt;
            assert_eq!(rights.allows(Attempt { verb, group, plural, namespace }), allowed, "{refusal:?} {attempt:?}");
        };
        let inside = || Area::Namespace("a".to_owned());
        check(("list", "pods", Area::Everywhere), ["list", "", "pods", ""], false);
        check(("list", "pods", Area::Everywhere), ["list", "", "pods", "a"], false);
        check(("list", "pods", Area::Everywhere), ["watch", "", "pods", "a"], true);
        check(("list", "pods", Area::Everywhere), ["*", "", "pods", "a"], false);
        check(("list", "pods", Area::ClusterWide), ["list", "", "pods", ""], false);
        check(("list", "pods", Area::ClusterWide), ["list", "", "pods", "a"], true);
        check(("*", "pods", inside()), ["watch", "", "pods", "a"], false);
        check(("*", "pods", inside()), ["watch", "", "pods", "b"], true);
        check(("*", "pods", inside()), ["watch", "", "pods", ""], true);
        check(("*", "deployments.apps", Area::Everywhere), ["get", "apps", "deployments", ""], false);
        check(("*", "*.apps", Area::Everywhere), ["get", "apps", "replicasets", ""], false);
        check(("*", "*.apps", Area::Everywhere), ["get", "", "pods", ""], true);
        check(("*", "*", Area::Everywhere), ["get", "batch", "jobs", "x"], false);
    }

    #[test]
    fn forbidden_request_can_be_allowed_again() {
        let rights = Faults::default();
        rights.forbid("list", "pods", Area::ClusterWide);
        rights.forbid("watch", "pods", Area::ClusterWide);
        rights.allow("list", "pods", &Area::Everywhere);
        assert!(!rights.allows(Attempt { verb: "list", group: "", plural: "pods", namespace: "" }));
        rights.allow("list", "pods", &Area::ClusterWide);
        assert!(rights.allows(Attempt { verb: "list", group: "", plural: "pods", namespace: "" }));
        assert!(rights.is_restricted());
    }
}
