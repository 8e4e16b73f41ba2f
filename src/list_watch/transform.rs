//! User-defined functions applied to every incoming object (F-60 … F-62).

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde_json::Value;

use crate::object::Object;

/// A function that changes objects before any consumer sees them, for example to remove or to add fields.
///
/// **Contract:** the result depends on the object alone, and keeps namespace, name, uid and resourceVersion (F-62).
/// The function runs on the unit's thread for every object, so it must not block.
#[derive(Clone)]
pub struct Transform {
    func: Arc<Func>,
}

type Func = dyn Fn(&Object) -> Result<Option<Object>, String> + Send + Sync;

impl Transform {
    /// Creates a transform from a function. The function returns the new object, or `None` to leave it unchanged. An error text is
    /// shown to users.
    pub fn new(func: impl Fn(&Object) -> Result<Option<Object>, String> + Send + Sync + 'static) -> Self {
        Self { func: Arc::new(func) }
    }

    /// Creates a transform from a function that changes the object as untyped JSON. Every object is decoded and encoded
    /// again, at about ten times the cost of all other processing. The function cannot change `apiVersion` and `kind`.
    pub fn of_values<E: fmt::Display>(func: impl Fn(&mut Value) -> Result<(), E> + Send + Sync + 'static) -> Self {
        Self::new(move |object| {
            let mut value = object.value().map_err(|error| error.to_string())?;
            let types = ["apiVersion", "kind"].map(|member| (member, value[member].clone()));
            func(&mut value).map_err(|error| error.to_string())?;
            let Value::Object(members) = &mut value else {
                return Err("its result is not a valid object".to_owned());
            };
            members.extend(types.map(|(member, text)| (member.to_owned(), text)));
            Object::from_json(value.to_string().as_bytes()).map(Some).map_err(|error| error.to_string())
        })
    }

    /// Returns the transform that applies this one and then `next`.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self::new(move |object| {
            let first = (self.func)(object)?;
            let second = (next.func)(first.as_ref().unwrap_or(object))?;
            Ok(second.or(first))
        })
    }

    /// Returns the transformed `object`. A panic in the function and a change of the object's identity are errors.
    pub fn apply(&self, object: Object) -> Result<Object, String> {
        let transformed = catch_unwind(AssertUnwindSafe(|| (self.func)(&object)));
        let transformed = transformed.unwrap_or_else(|_| Err("it panicked".to_owned()));
        match transformed {
            Ok(None) => Ok(object),
            Ok(Some(new)) if new.key() == object.key() && new.same_version(&object) => Ok(new.with_who(object.who())),
            Ok(Some(new)) => Err(format!("{object:?} must keep its identity, it became {new:?}")),
            Err(why) => Err(format!("{}: {why}", object.key())),
        }
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transform")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ChangedBy;

    fn pod() -> Object {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"spec":{"x":1}}"#;
        Object::from_json(json.as_bytes()).unwrap()
    }

    /// Rule: F-60.
    #[test]
    fn object_transform_keeps_its_type() {
        let cut = Transform::of_values(|value| {
            let members = value.as_object_mut().ok_or("no object")?;
            members.remove("spec");
            members.remove("kind");
            Ok::<_, &str>(())
        });
        let value = cut.apply(pod()).unwrap().value().unwrap();
        assert_eq!(value["kind"], "Pod");
        assert!(value.get("spec").is_none());
    }

    /// Rule: F-60.
    #[test]
    fn transformed_object_keeps_changed_by() {
        let object = Object::from_json(&pod().json())
            .unwrap()
            .with_changed_by(&ChangedBy { manager: "kubelet".into(), ..ChangedBy::default() });
        let cut = Transform::of_values(|value| {
            value["metadata"]["managedFields"] = Value::Null;
            Ok::<_, &str>(())
        });
        assert_eq!(cut.apply(object).unwrap().changed_by().unwrap().manager, "kubelet");
        assert_eq!(Transform::of_values(|_| Ok::<_, &str>(())).apply(pod()).unwrap().changed_by(), None);
    }

    /// Rule: F-60.
    #[test]
    fn transform_returning_none_keeps_the_object() {
        let object = pod();
        let same = Transform::new(|_| Ok(None)).apply(object.clone()).unwrap();
        assert!(object.ptr_eq(&same));
    }

    /// Rule: F-60.
    #[test]
    fn two_transforms_run_in_sequence() {
        let set = |member: &'static str, from: &'static str| {
            Transform::of_values(move |value| {
                value[member] = value[from].clone();
                Ok::<_, &str>(())
            })
        };
        let same = || Transform::new(|_| Ok(None));
        let made = |transform: Transform| transform.apply(pod()).unwrap().value().unwrap()["b"]["x"].clone();
        assert_eq!(made(set("a", "spec").then(set("b", "a"))), 1);
        assert_eq!(made(same().then(set("b", "spec"))), 1);
        assert_eq!(made(set("b", "spec").then(same())), 1);
    }

    /// Rules: F-61, F-62.
    #[test]
    fn transform_error_panic_or_new_identity_fails() {
        let error = |transform: Transform| transform.apply(pod()).unwrap_err();
        assert_eq!(error(Transform::new(|_| Err("no".to_owned()))), "n/a: no");
        assert_eq!(error(Transform::of_values(|_| Err("never"))), "n/a: never");
        assert_eq!(error(Transform::new(|_| panic!("sorry"))), "n/a: it panicked");
        for member in ["name", "namespace", "uid", "resourceVersion"] {
            let other = Transform::of_values(move |value| {
                value["metadata"][member] = "other".into();
                Ok::<_, &str>(())
            });
            assert!(error(other).contains("must keep its identity"), "{member}");
        }
        let none = Transform::of_values(|value| {
            *value = 7.into();
            Ok::<_, &str>(())
        });
        assert!(error(none).contains("not a valid object"));
    }
}
