//! Which events a subscriber asked for.

use super::ring::Entry;
use crate::{
    journal::ChangeKind,
    lister::LabelSelector,
    notification::{Event, UnitInfo},
    object::{Object, ResourceType},
};

/// What a subscriber wants to see; everything where nothing is said.
#[derive(Clone, Debug, Default)]
pub struct SubscriberFilter {
    /// Of these entries or types: `pods`, `deployments.apps`, or the name of an entry; empty: of all.
    pub resources: Vec<String>,
    /// In these namespaces; empty: in all, and in none.
    pub namespaces: Vec<String>,
    /// With these labels: an update is shown where the object has them before or after it.
    pub labels: Option<LabelSelector>,
    /// Of these kinds; empty: of all.
    pub kinds: Vec<ChangeKind>,
    /// Also of objects that existed before the engine did.
    pub initial: bool,
}

impl SubscriberFilter {
    /// Returns whether an event is wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        (self.initial || !entry.is_initial()) && self.wants_event(entry.event())
    }

    /// As [`SubscriberFilter::wants`], whatever existed when.
    pub fn wants_event(&self, event: &Event) -> bool {
        let record = &event.record;
        self.wants_kind(ChangeKind::of(&record.change))
            && self.wants_unit(&event.unit)
            && self.wants_namespace(record.object().map(Object::namespace), &event.unit)
            && self.labels.as_ref().is_none_or(|labels| match record.object() {
                Some(object) => labels.matches(object) || record.old().is_some_and(|old| labels.matches(old)),
                None => true,
            })
    }

    /// Returns whether events of a kind are wanted.
    pub fn wants_kind(&self, kind: ChangeKind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// Returns whether events of a unit are wanted.
    pub fn wants_unit(&self, unit: &UnitInfo) -> bool {
        self.resources.is_empty() || self.resources.iter().any(|name| names(name, &unit.entry, &unit.resource))
    }

    /// What has no object speaks of all namespaces that its unit shows.
    fn wants_namespace(&self, of_object: Option<&str>, unit: &UnitInfo) -> bool {
        if self.namespaces.is_empty() {
            return true;
        }
        let namespace = of_object.or(unit.namespace.as_deref());
        namespace.is_none_or(|namespace| self.namespaces.iter().any(|wanted| wanted == namespace))
    }
}

/// Returns whether a name means a type, or the entry that watches it.
pub fn names(name: &str, entry: &str, resource: &ResourceType) -> bool {
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
    fn a_type_is_named_by_its_entry_its_plural_or_its_plural_and_group() {
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
    fn kinds_namespaces_and_resources_narrow_what_is_shown() {
        let added = entry(1);
        assert!(SubscriberFilter::default().wants(&added));
        assert!(!filter(|it| it.kinds = vec![ChangeKind::Deleted]).wants(&added));
        assert!(filter(|it| it.kinds = vec![ChangeKind::Deleted, ChangeKind::Added]).wants(&added));
        assert!(!filter(|it| it.namespaces = vec!["other".into()]).wants(&added));
        assert!(filter(|it| it.namespaces = vec!["other".into(), "ns".into()]).wants(&added));
        assert!(!filter(|it| it.resources = vec!["nodes".into()]).wants(&added));
        assert!(filter(|it| it.resources = vec!["nodes".into(), "pods".into()]).wants(&added));
        let end = event(2, synced(3));
        assert!(filter(|it| it.namespaces = vec!["other".into()]).wants_event(&end), "it speaks of all namespaces");
    }

    #[test]
    fn an_update_that_takes_the_label_away_is_shown_too() {
        let shown = |from: &str, to: &str| {
            let change = Change::Updated { old: labelled(from), object: labelled(to), cause: Cause::Watch };
            let labels = LabelSelector::parse("app=web").unwrap();
            filter(|it| it.labels = Some(labels)).wants_event(&event(1, change))
        };
        assert_eq!([shown("web", "web"), shown("api", "web"), shown("web", "api")], [true; 3]);
        assert!(!shown("api", "db"));
        let labels = || Some(LabelSelector::parse("app=web").unwrap());
        assert!(!filter(|it| it.labels = labels()).wants_event(&event(1, deleted("x", "u", 1))));
        assert!(!filter(|it| it.labels = labels()).wants_event(&event(1, updated("x", "u", 1, 2))));
    }

    #[test]
    fn what_existed_before_the_engine_is_no_news_unless_asked_for() {
        let old = Entry::new(event(1, crate::journal::testing::initial("web", "u", 1)), true);
        assert!(!SubscriberFilter::default().wants(&old));
        assert!(filter(|it| it.initial = true).wants(&old));
    }
}
