//! A user's function over every object that comes in (F-60 … F-62).

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde_json::Value;

use crate::object::Object;

/// Changes objects before anyone else sees them: cuts what is not needed, or adds what is.
///
/// **Contract:** what it makes of an object depends on the object alone, and namespace, name, uid and resourceVersion
/// stay (F-62). It runs on the thread of the unit, for every object: it must not block.
#[derive(Clone)]
pub struct Transform {
    func: Arc<Func>,
}

type Func = dyn Fn(&Object) -> Result<Option<Object>, TransformError> + Send + Sync;

/// Why an object could not be transformed; a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(pub String);

impl TransformError {
    /// Makes an error that says what `why` does.
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl Transform {
    /// Makes a transform of a function from an object to another one; `None` leaves it as it is.
    pub fn new(func: impl Fn(&Object) -> Result<Option<Object>, TransformError> + Send + Sync + 'static) -> Self {
        Self { func: Arc::new(func) }
    }

    /// Makes a transform of a function that changes the object as untyped JSON. Every object is decoded for it and
    /// encoded again, some ten times the cost of the rest of its way; `apiVersion` and `kind` stay whatever it does.
    pub fn of_values<E: fmt::Display>(func: impl Fn(&mut Value) -> Result<(), E> + Send + Sync + 'static) -> Self {
        Self::new(move |object| {
            let mut value = object.value().map_err(TransformError::new)?;
            let types = ["apiVersion", "kind"].map(|member| (member, value[member].clone()));
            func(&mut value).map_err(TransformError::new)?;
            let Value::Object(members) = &mut value else {
                return Err(TransformError::new("it made something of an object that is none"));
            };
            members.extend(types.map(|(member, text)| (member.to_owned(), text)));
            Object::from_json(value.to_string().as_bytes()).map(Some).map_err(TransformError::new)
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

    /// Returns what it makes of `object`. A panic in it is an error.
    /// A change of what identifies the object is one too.
    pub fn apply(&self, object: Object) -> Result<Object, TransformError> {
        let transformed = catch_unwind(AssertUnwindSafe(|| (self.func)(&object)));
        let transformed = transformed.unwrap_or_else(|_| Err(TransformError::new("it panicked")));
        match transformed {
            Ok(None) => Ok(object),
            Ok(Some(new)) if new.key() == object.key() && new.same_version(&object) => Ok(new.with_who(object.who())),
            Ok(Some(new)) => Err(TransformError(format!("{object:?} must keep its identity, it became {new:?}"))),
            Err(TransformError(why)) => Err(TransformError(format!("{}: {why}", object.key()))),
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

    fn pod() -> Object {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","resourceVersion":"7"},"spec":{"x":1}}"#;
        Object::from_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn f60_an_object_is_changed_as_json_and_keeps_its_type() {
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

    #[test]
    fn f60_who_changed_an_object_stays_known_whatever_is_made_of_it() {
        let object = Object::from_json(&pod().json()).unwrap().with_who(b"kubelet\xffUpdate\xff\xff");
        let cut = Transform::of_values(|value| {
            value["metadata"]["managedFields"] = Value::Null;
            Ok::<_, &str>(())
        });
        assert_eq!(cut.apply(object).unwrap().changed_by().unwrap().manager, "kubelet");
        assert_eq!(Transform::of_values(|_| Ok::<_, &str>(())).apply(pod()).unwrap().changed_by(), None);
    }

    #[test]
    fn f60_none_leaves_the_object_as_it_is() {
        let object = pod();
        let same = Transform::new(|_| Ok(None)).apply(object.clone()).unwrap();
        assert!(object.ptr_eq(&same));
    }

    #[test]
    fn f60_two_transforms_are_applied_one_after_the_other() {
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

    #[test]
    fn f61_f62_an_error_a_panic_and_another_identity_are_errors() {
        let error = |transform: Transform| transform.apply(pod()).unwrap_err().to_string();
        assert_eq!(error(Transform::new(|_| Err(TransformError::new("no")))), "n/a: no");
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
        assert!(error(none).contains("that is none"));
    }
}
