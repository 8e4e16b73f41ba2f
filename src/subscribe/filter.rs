//! Filter of a subscriber's events.

use super::ring::Entry;
use crate::{
    journal::ChangeKind,
    lister::LabelSelector,
    notification::{Event, UnitInfo},
    object::{Object, ResourceType},
};

/// Filter of a subscriber's events; the default accepts all events.
#[derive(Clone, Debug, Default)]
pub struct SubscriberFilter {
    /// Types, such as `pods` or `deployments.apps`, or names of `[resources.*]` entries. Empty: all.
    pub resources: Vec<String>,
    /// Namespaces. Empty: the objects of all namespaces, and cluster-scoped objects.
    pub namespaces: Vec<String>,
    /// Label selector. An update is sent if the old or the new state of the object matches.
    pub labels: LabelSelector,
    /// Kinds of events. Empty: all.
    pub kinds: Vec<ChangeKind>,
    /// Set if events of objects that existed before the engine started are wanted.
    pub initial: bool,
}

impl SubscriberFilter {
    /// Returns true if an event is wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        (self.initial || !entry.is_initial) && self.wants_event(&entry.event)
    }

    /// Checks an event like [`SubscriberFilter::wants`], but ignores `initial`.
    pub fn wants_event(&self, event: &Event) -> bool {
        let record = &event.record;
        self.wants_kind(ChangeKind::of(&record.change))
            && self.wants_unit(&event.unit)
            && self.wants_namespace(record.object().map(Object::namespace), &event.unit)
            && record.object().is_none_or(|object| {
                self.labels.matches(object) || record.old().is_some_and(|old| self.labels.matches(old))
            })
    }

    /// Returns true if events of this kind are wanted.
    pub fn wants_kind(&self, kind: ChangeKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// Returns true if events of this unit are wanted.
    pub fn wants_unit(&self, unit: &UnitInfo) -> bool {
        self.resources.is_empty() || self.resources.iter().any(|name| names(name, &unit.entry, &unit.resource))
    }

    /// Returns true if the namespace is wanted. For an event without an object, checks the namespace of its unit; accepts the event
    /// if the unit watches all namespaces.
    fn wants_namespace(&self, of_object: Option<&str>, unit: &UnitInfo) -> bool {
        if self.namespaces.is_empty() {
            return true;
        }
        let namespace = of_object.or(unit.namespace.as_deref());
        namespace.is_none_or(|namespace| self.namespaces.iter().any(|wanted| wanted == namespace))
    }
}

/// Returns true if `name` equals `entry`, or is the plural or `<plural>.<group>` of `resource`.
pub(crate) fn names(name: &str, entry: &str, resource: &ResourceType) -> bool {
    let of_group = || name.strip_prefix(&*resource.plural)?.strip_prefix('.');
    name == entry || name == resource.plural || of_group().is_some_and(|group| group == resource.group)
}

#[cfg(test)]
mod tests {
    use super::{
        super::ring::testing::{entry, event},
        *,
    };
    use crate::{
        change::{Cause, Change},
        journal::testing::{deleted, synced, updated},
        object::{Identity, Object},
    };

    fn labelled(app: &str) -> Object {
        let json = format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}}}}"#);
        let identity = Identity { namespace: "ns", name: "web", uid: "u", resource_version: "1" };
        Object::assemble(identity, &[json.as_bytes()])
    }

    fn filter(set: impl FnOnce(&mut SubscriberFilter)) -> SubscriberFilter {
        let mut filter = SubscriberFilter::default();
        set(&mut filter);
        filter
    }

    #[test]
    fn type_is_named_by_entry_plural_or_group() {
        let deployments = |group: &str| ResourceType {
            group: group.into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            namespaced: true,
        };
        for (name, group, expected) in [
            ("workloads", "apps", true),
            ("deployments", "apps", true),
            ("deployments.apps", "apps", true),
            ("deployments.extensions", "apps", false),
            ("deployments.apps", "", false),
            ("deploymentsapps", "apps", false),
            ("pods", "apps", false),
        ] {
            assert_eq!(names(name, "workloads", &deployments(group)), expected, "{name} of {group}");
        }
    }

    #[test]
    fn kinds_namespaces_and_resources_filter_events() {
        let added = entry(1);
        assert!(SubscriberFilter::default().wants(&added));
        assert!(!filter(|it| it.kinds = vec![ChangeKind::Deleted]).wants(&added));
        assert!(filter(|it| it.kinds = vec![ChangeKind::Deleted, ChangeKind::Added]).wants(&added));
        assert!(!filter(|it| it.namespaces = vec!["other".into()]).wants(&added));
        assert!(filter(|it| it.namespaces = vec!["other".into(), "ns".into()]).wants(&added));
        assert!(!filter(|it| it.resources = vec!["nodes".into()]).wants(&added));
        assert!(filter(|it| it.resources = vec!["nodes".into(), "pods".into()]).wants(&added));
        let end = event(2, synced(3));
        assert!(filter(|it| it.namespaces = vec!["other".into()]).wants_event(&end), "it belongs to all namespaces");
    }

    #[test]
    fn update_that_leaves_label_selection_is_shown() {
        let shown = |from: &str, to: &str| {
            let change = Change::Updated { old: labelled(from), object: labelled(to), cause: Cause::Watch };
            let labels = LabelSelector::parse("app=web").unwrap();
            filter(|it| it.labels = labels).wants_event(&event(1, change))
        };
        assert_eq!([shown("web", "web"), shown("api", "web"), shown("web", "api")], [true; 3]);
        assert!(!shown("api", "db"));
        let labels = || LabelSelector::parse("app=web").unwrap();
        assert!(!filter(|it| it.labels = labels()).wants_event(&event(1, deleted("x", "u", 1))));
        assert!(!filter(|it| it.labels = labels()).wants_event(&event(1, updated("x", "u", 1, 2))));
    }

    #[test]
    fn initial_objects_are_hidden_unless_requested() {
        let old = Entry::new(event(1, crate::journal::testing::initial("web", "u", 1)), true);
        assert!(!SubscriberFilter::default().wants(&old));
        assert!(filter(|it| it.initial = true).wants(&old));
    }
}
