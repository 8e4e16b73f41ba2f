//! What an index is of: a function from an object to the values it is found by (I-1).

use std::{
    borrow::Cow,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::object::{FieldPath, Object, Plucker};

/// Name of the index that every cache has.
pub const NAMESPACE_INDEX: &str = "namespace";

/// A named index function: zero or more values an object (I-1).
///
/// **Contract:** the values depend on the object alone. They are computed again from the old state when an object
/// changes (I-2), so a function that answers differently the second time leaves wrong entries behind.
#[derive(Clone)]
pub struct IndexFunc {
    name: Arc<str>,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Namespace,
    Uid,
    Path(Arc<FieldPath>),
    Custom(Arc<CustomFunc>),
}

type CustomFunc = dyn Fn(&Object) -> Vec<String> + Send + Sync;

/// An index that cannot be made of its name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected index {0:?}, expected `namespace`, `metadata.uid`, `owner`, `labels['app']` or a field path")]
pub struct IndexNameError(String);

impl IndexFunc {
    /// Makes the index `namespace`; objects without a namespace have no value in it.
    pub fn namespace() -> Self {
        Self { name: NAMESPACE_INDEX.into(), kind: Kind::Namespace }
    }

    /// Makes an index of what the configuration names: `namespace`, `metadata.uid`, `owner` (the uids of the owner
    /// references), `labels['app']` or any path with its scalars. The text is the index's name.
    pub fn parse(text: &str) -> Result<Self, IndexNameError> {
        let kind = match text {
            NAMESPACE_INDEX | "metadata.namespace" => Kind::Namespace,
            "metadata.uid" => Kind::Uid,
            path => Kind::Path(Arc::new(FieldPath::parse(path).map_err(|_| IndexNameError(path.to_owned()))?)),
        };
        Ok(Self { name: text.into(), kind })
    }

    /// Makes an index of a function. A panic in it means "no values", is counted, and goes no further (I-8).
    pub fn custom(name: &str, func: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), kind: Kind::Custom(Arc::new(func)) }
    }

    /// Returns the name it is asked by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the values depend on the object's key alone, so that no update changes them.
    pub(crate) fn is_of_key(&self) -> bool {
        matches!(self.kind, Kind::Namespace)
    }

    /// Returns the values of `object`, sorted and distinct; `None` when the function panicked (I-8).
    pub(crate) fn values<'a>(&self, object: &'a Object) -> Option<Values<'a>> {
        self.values_with(object, |path| object.pluck(path))
    }

    /// Returns the values of `object`; `pluck` finds those at the path, if it is one.
    fn values_with<'a>(&self, object: &'a Object, pluck: impl FnOnce(&FieldPath) -> Vec<String>) -> Option<Values<'a>> {
        let one = |value: &'a str| if value.is_empty() { Vec::new() } else { vec![Cow::Borrowed(value)] };
        let texts = match &self.kind {
            Kind::Namespace => return Some(one(object.namespace())),
            Kind::Uid => return Some(one(object.uid())),
            Kind::Path(path) => pluck(path),
            Kind::Custom(func) => catch_unwind(AssertUnwindSafe(|| func(object))).ok()?,
        };
        let mut values: Vec<_> = texts.into_iter().map(Cow::Owned).collect();
        values.sort_unstable();
        values.dedup();
        Some(values)
    }
}

/// The values of one object in one index, sorted and distinct.
pub(crate) type Values<'a> = Vec<Cow<'a, str>>;

/// The indexes of one cache; the place of one is its id. All paths among them are read in one pass over an object.
#[derive(Clone, Debug, Default)]
pub struct IndexSet {
    funcs: Arc<[IndexFunc]>,
    plucker: Arc<Plucker>,
    of_keys: bool,
}

impl IndexSet {
    /// Makes a set of indexes whose names are distinct.
    pub(crate) fn new(funcs: Vec<IndexFunc>) -> Self {
        let path_of = |func: &IndexFunc| match &func.kind {
            Kind::Path(path) => Some(FieldPath::clone(path)),
            _ => None,
        };
        let paths: Vec<_> = funcs.iter().filter_map(path_of).collect();
        let of_keys = funcs.iter().all(IndexFunc::is_of_key);
        Self { funcs: funcs.into(), plucker: Arc::new(Plucker::new(&paths)), of_keys }
    }

    /// Returns the indexes in the order of their ids.
    pub fn as_slice(&self) -> &[IndexFunc] {
        &self.funcs
    }

    /// Returns whether the values depend on keys alone, so that no update changes any.
    pub(crate) fn is_of_keys(&self) -> bool {
        self.of_keys
    }

    /// Returns the values of `object` in every index, by id; see [`IndexFunc::values`].
    pub(crate) fn values<'a>(&self, object: &'a Object) -> Vec<Option<Values<'a>>> {
        let mut plucked =
            if self.plucker.is_empty() { Vec::new() } else { object.pluck_many(&self.plucker) }.into_iter();
        let values = |func: &IndexFunc| func.values_with(object, |_| plucked.next().unwrap_or_default());
        self.funcs.iter().map(values).collect()
    }
}

impl fmt::Debug for IndexFunc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexFunc({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta_fifo::tests::object_with;

    #[track_caller]
    fn check(index: &str, expected: &[&str]) {
        let more = r#","spec":{"nodeName":"n1","ports":[{"port":80},{"port":81},{"port":80}],"host":null,"on":true}"#;
        let object = object_with("ns/web", "u1", "7", more);
        let values = IndexFunc::parse(index).expect(index).values(&object).expect(index);
        assert_eq!(values, expected, "{index}");
    }

    #[test]
    fn i1_an_index_has_zero_or_more_values_an_object() {
        check("namespace", &["ns"]);
        check("metadata.uid", &["u1"]);
        check("owner", &[]);
        check("spec.nodeName", &["n1"]);
        check("spec.ports[*].port", &["80", "81"]);
        check("spec.on", &["true"]);
        check("spec.host", &[]);
        check("spec", &[]);
        check("labels['app.kubernetes.io/name']", &[]);
    }

    #[test]
    fn labels_and_owners_are_found() {
        let json = br#"{"metadata":{"labels":{"a/b":"x"},"ownerReferences":[{"uid":"o2"},{"uid":"o1"}]}}"#;
        let object = Object::assemble(crate::object::Identity { name: "web", ..<_>::default() }, &[json]);
        assert_eq!(IndexFunc::parse("labels['a/b']").unwrap().values(&object).unwrap(), ["x"]);
        assert_eq!(IndexFunc::parse("owner").unwrap().values(&object).unwrap(), ["o1", "o2"]);
        assert!(IndexFunc::namespace().values(&object).unwrap().is_empty());
    }

    #[test]
    fn a_name_that_is_no_path_is_refused() {
        for wrong in ["", ".spec", "spec.", "spec[0]", "labels['a", "a b"] {
            let error = IndexFunc::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("expected `namespace`"), "{error}");
        }
    }

    #[test]
    fn all_indexes_of_a_set_have_the_values_each_has_alone() {
        let more = r#","spec":{"nodeName":"n1","ports":[{"port":80},{"port":81}]}"#;
        let object = object_with("ns/web", "u1", "7", more);
        let names = ["namespace", "spec.ports[*].port", "metadata.uid", "spec.nodeName", "status.phase"];
        let mut funcs: Vec<_> = names.iter().map(|name| IndexFunc::parse(name).unwrap()).collect();
        funcs.insert(2, IndexFunc::custom("bad", |_| panic!("on purpose")));
        let set = IndexSet::new(funcs.clone());
        let alone: Vec<_> = funcs.iter().map(|func| func.values(&object)).collect();
        assert_eq!(set.values(&object), alone);
        assert_eq!(alone[1].as_deref(), Some(&["80".into(), "81".into()][..]));
    }

    #[test]
    fn i8_a_panic_is_no_values() {
        let object = object_with("ns/web", "u1", "7", "");
        let bad = IndexFunc::custom("bad", |_| panic!("on purpose"));
        assert_eq!((bad.values(&object), format!("{bad:?}").as_str()), (None, "IndexFunc(bad)"));
    }
}
