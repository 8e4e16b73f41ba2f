//! Filter and transform of incoming objects: the namespace globs of a unit, and the user's transform. The transform skips objects
//! that [opt out](crate::object::IGNORE_ANNOTATION), and placeholders of objects that cannot be read.
//!
//! Items of excluded namespaces are removed from lists. Events of excluded namespaces are withheld, but still advance the stream's
//! version. Tombstones and resyncs are built from objects that were filtered and transformed before, so they skip both (F-60).

use std::{
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use futures_util::{FutureExt as _, StreamExt as _, future::LocalBoxFuture};

use super::{
    Failure, ListPage, ListRequest, ListWatch, PassedOver, WatchEvent, WatchRequest, WatchStream, transform::Transform,
};
use crate::{object::Object, scope::Namespaces};

/// Filter and transform of incoming objects.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Admitted namespaces; objects without a namespace always pass.
    pub namespaces: Namespaces,
    /// Transform for every incoming object; `None` leaves objects unchanged.
    pub transform: Option<Transform>,
    /// Transform for objects that were saved or cached after they had passed a gate. `None` leaves objects unchanged.
    pub of_cached: Option<Transform>,
    /// Number of times that the transform could not evaluate the condition of a redaction rule, and therefore applied the rule.
    pub doubts: Arc<AtomicU64>,
}

impl Gate {
    /// Returns true if every incoming object passes unchanged.
    pub fn is_open(&self) -> bool {
        self.namespaces.is_all() && self.transform.is_none()
    }

    /// Applies `of_cached` to a saved or cached object. Returns `None` if the transform fails; consumers must then not see the
    /// object.
    pub fn pass_cached(&self, object: Object) -> Option<Object> {
        match &self.of_cached {
            Some(transform) => transform.apply(object).ok(),
            None => Some(object),
        }
    }

    /// Filters and transforms one object.
    fn pass(&self, object: Object) -> Result<Object, PassedOver> {
        if !object.namespace().is_empty() && !self.namespaces.matches(object.namespace()) {
            return Err(PassedOver::Foreign);
        }
        let Some(transform) = self.transform.as_ref().filter(|_| !object.is_placeholder()) else { return Ok(object) };
        transform.apply(object).map_err(PassedOver::TransformFailed)
    }

    /// Filters and transforms a page. One object that cannot be transformed fails the list (F-61, R-23).
    fn pass_page(&self, mut page: ListPage) -> Result<ListPage, Failure> {
        let mut items = Vec::with_capacity(page.items.len());
        for object in page.items {
            match self.pass(object) {
                Ok(object) => items.push(object),
                Err(PassedOver::TransformFailed(why)) => return Err(Failure::Transform(why)),
                Err(PassedOver::Foreign | PassedOver::TooDeep) => {}
            }
        }
        page.items = items;
        Ok(page)
    }

    /// Filters and transforms an event. A deletion does not need its final state: if the transform fails, it gets a placeholder.
    pub(crate) fn pass_event(&self, event: WatchEvent) -> WatchEvent {
        let is_deletion = matches!(event, WatchEvent::Deleted(_));
        let (object, event): (_, fn(Object) -> WatchEvent) = match event {
            WatchEvent::Added(object) => (object, WatchEvent::Added),
            WatchEvent::Modified(object) => (object, WatchEvent::Modified),
            WatchEvent::Deleted(object) => (object, WatchEvent::Deleted),
            WatchEvent::PassedOver { object, why: PassedOver::TooDeep } => {
                (object, |object| WatchEvent::PassedOver { object, why: PassedOver::TooDeep })
            }
            other => return other,
        };
        let incoming = object.clone();
        match self.pass(object) {
            Ok(object) => event(object),
            Err(PassedOver::TransformFailed(_)) if is_deletion => event(incoming.unread()),
            Err(why) => WatchEvent::PassedOver { object: incoming.unread(), why },
        }
    }
}

/// A source behind a [`Gate`].
pub(crate) struct Scoped {
    inner: Rc<dyn ListWatch>,
    gate: Rc<Gate>,
}

impl Scoped {
    /// Returns a source that passes the answers of `inner` through `gate`. For an open gate, returns `inner` itself.
    pub(crate) fn wrap(inner: Rc<dyn ListWatch>, gate: &Gate) -> Rc<dyn ListWatch> {
        if gate.is_open() { inner } else { Rc::new(Self { inner, gate: Rc::new(gate.clone()) }) }
    }
}

impl ListWatch for Scoped {
    fn list(&self, request: ListRequest) -> LocalBoxFuture<'static, Result<ListPage, Failure>> {
        let gate = Rc::clone(&self.gate);
        let page = self.inner.list(request);
        async move { gate.pass_page(page.await?) }.boxed_local()
    }

    fn watch(&self, request: WatchRequest) -> LocalBoxFuture<'static, Result<WatchStream, Failure>> {
        let gate = Rc::clone(&self.gate);
        let stream = self.inner.watch(request);
        async move {
            let stream = stream.await?;
            let pass = move |batch: Result<Vec<WatchEvent>, Failure>| {
                batch.map(|events| events.into_iter().map(|event| gate.pass_event(event)).collect())
            };
            Ok(stream.map(pass).boxed_local())
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{
        object::{Identity, Object},
        testing::FakeApiServer,
    };

    fn object(namespace: &str, name: &str, version: &str) -> Object {
        let identity = Identity { namespace, name, uid: name, resource_version: version };
        let json = format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}"}}}}"#);
        Object::assemble(identity, &[json.as_bytes()])
    }

    fn only(pattern: &str) -> Gate {
        Gate { namespaces: Namespaces::parse(&[pattern]).unwrap(), ..Gate::default() }
    }

    /// Returns a gate that fails for objects named `bad` and counts its calls.
    fn counting(calls: &Arc<AtomicU64>) -> Gate {
        let calls = Arc::clone(calls);
        let transform = Transform::new(move |object| {
            calls.fetch_add(1, Ordering::Relaxed);
            if object.name() == "bad" { Err("no".to_owned()) } else { Ok(None) }
        });
        Gate { transform: Some(transform), ..Gate::default() }
    }

    fn page(items: Vec<Object>) -> ListPage {
        ListPage { resource_version: "9".into(), continue_token: Some("next".into()), items, rejected: 2 }
    }

    #[test]
    fn list_omits_other_namespaces() {
        let items = vec![object("team-a", "x", "1"), object("other", "y", "2"), object("", "node", "3")];
        let passed = only("team-*").pass_page(page(items)).unwrap();
        let names: Vec<_> = passed.items.iter().map(Object::name).collect();
        assert_eq!((names, passed.rejected, passed.continue_token.as_deref()), (vec!["x", "node"], 2, Some("next")));
        assert_eq!(passed.resource_version.as_str(), "9");
    }

    /// Rule: R-51.
    #[test]
    fn event_of_other_namespace_moves_only_version() {
        let gate = only("team-*");
        for make in [WatchEvent::Added, WatchEvent::Modified, WatchEvent::Deleted] {
            let passed = gate.pass_event(make(object("other", "y", "7")));
            let is_it = |object: &Object| object.resource_version() == "7";
            assert!(
                matches!(&passed, WatchEvent::PassedOver { object, why: PassedOver::Foreign } if is_it(object)),
                "{passed:?}"
            );
        }
        assert!(matches!(gate.pass_event(WatchEvent::Deleted(object("team-b", "y", "7"))), WatchEvent::Deleted(_)));
        assert!(matches!(gate.pass_event(WatchEvent::Modified(object("team-b", "y", "7"))), WatchEvent::Modified(_)));
    }

    /// Rule: F-60.
    #[test]
    fn transform_runs_once_per_admitted_object() {
        let calls = Arc::default();
        let gate = Gate { namespaces: Namespaces::parse(&["!other"]).unwrap(), ..counting(&calls) };
        gate.pass_page(page(vec![object("n", "x", "1"), object("other", "bad", "2")])).unwrap();
        for make in [WatchEvent::Added, WatchEvent::Modified, WatchEvent::Deleted] {
            gate.pass_event(make(object("n", "x", "3")));
        }
        gate.pass_event(WatchEvent::Bookmark { resource_version: "4".into(), initial_events_end: false });
        assert_eq!(calls.load(Ordering::Relaxed), 4);
    }

    /// Rules: R-23, F-61.
    #[test]
    fn transform_error_fails_list_or_drops_event() {
        let gate = counting(&Arc::default());
        let failed = gate.pass_page(page(vec![object("n", "x", "1"), object("n", "bad", "2")])).unwrap_err();
        assert_eq!(failed, Failure::Transform("n/bad: no".into()));
        let bad = || object("n", "bad", "8");
        let WatchEvent::PassedOver { object, why } = gate.pass_event(WatchEvent::Modified(bad())) else {
            panic!("it passed");
        };
        assert_eq!((object.resource_version(), why), ("8", PassedOver::TransformFailed("n/bad: no".into())));
        // The deletion is known without the final state.
        let WatchEvent::Deleted(deleted) = gate.pass_event(WatchEvent::Deleted(bad())) else { panic!("it is dropped") };
        assert!(deleted.is_unread() && deleted.key() == bad().key());
    }

    #[test]
    fn placeholder_passes_without_transform() {
        let calls = Arc::default();
        let gate = Gate { namespaces: Namespaces::parse(&["!other"]).unwrap(), ..counting(&calls) };
        let deep = |namespace| WatchEvent::PassedOver {
            object: object(namespace, "x", "8").unread(),
            why: PassedOver::TooDeep,
        };
        for (namespace, expected) in [("n", PassedOver::TooDeep), ("other", PassedOver::Foreign)] {
            let passed = gate.pass_event(deep(namespace));
            assert!(matches!(&passed, WatchEvent::PassedOver { why, .. } if *why == expected), "{passed:?}");
        }
        assert!(matches!(gate.pass_event(WatchEvent::Deleted(object("n", "x", "8").unread())), WatchEvent::Deleted(_)));
        let items = vec![object("n", "x", "1").unread(), object("other", "y", "2").unread()];
        assert_eq!(gate.pass_page(page(items)).unwrap().items.len(), 1);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }

    /// Rule: LW-1.
    #[tokio::test]
    async fn gate_wraps_both_requests_unless_open() {
        let server = FakeApiServer::with_objects(&["a"]);
        let source: Rc<dyn ListWatch> = Rc::new(server.clone());
        let same = Scoped::wrap(Rc::clone(&source), &Gate::default());
        assert!(Rc::ptr_eq(&same, &source));
        let none = Scoped::wrap(source, &only("other"));
        let request = ListRequest { resource_version: "0".into(), limit: None, continue_token: None };
        assert!(none.list(request).await.unwrap().items.is_empty());
        let version = server.collection().version().to_string().as_str().into();
        let request = WatchRequest { resource_version: version, initial_events: false, timeout_seconds: 9 };
        let mut stream = none.watch(request).await.unwrap();
        server.change(|collection| collection.put("b"));
        let batch = stream.next().await.unwrap().unwrap();
        assert!(matches!(batch[..], [WatchEvent::PassedOver { .. }]), "{batch:?}");
    }
}
