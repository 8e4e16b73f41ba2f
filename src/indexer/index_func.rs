//! Index functions: each maps an object to the values by which it is found (I-1).

use std::{
    borrow::Cow,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::object::{FieldPath, Object, Plucker};

/// Name of the index that every cache has.
pub(crate) const NAMESPACE_INDEX: &str = "namespace";

/// A named index function. It returns zero or more values per object (I-1).
///
/// **Contract:** the values depend on the object alone. When an object changes, the function is called again with the previous
/// state of the object (I-2). If it then returns other values than before, wrong entries stay in the index.
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

/// Error: the name does not define an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected index {0:?}, expected `namespace`, `metadata.uid`, `owner`, `labels['app']` or a field path")]
pub struct IndexNameError(String);

impl IndexFunc {
    /// Returns the index `namespace`. Objects without a namespace have no value in it.
    pub fn namespace() -> Self {
        Self { name: NAMESPACE_INDEX.into(), kind: Kind::Namespace }
    }

    /// Returns an index by its name in the configuration: `namespace`, `metadata.uid`, `owner` (uids of the owner references),
    /// `labels['app']`, or any path to scalars.
    pub fn parse(text: &str) -> Result<Self, IndexNameError> {
        let kind = match text {
            NAMESPACE_INDEX | "metadata.namespace" => Kind::Namespace,
            "metadata.uid" => Kind::Uid,
            path => Kind::Path(Arc::new(FieldPath::parse(path).map_err(|_| IndexNameError(path.to_owned()))?)),
        };
        Ok(Self { name: text.into(), kind })
    }

    /// Returns an index with a custom function. If the function panics, the panic is counted and the object has no values (I-8).
    pub fn custom(name: &str, func: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), kind: Kind::Custom(Arc::new(func)) }
    }

    /// Returns the name of the index, as used in queries.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the values of `object`, sorted and distinct; `None` if the function panicked (I-8).
    pub(crate) fn values<'a>(&self, object: &'a Object) -> Option<Values<'a>> {
        self.values_with(object, |path| object.pluck(path))
    }

    /// Returns the values of `object`; `None` if the function panicked. `pluck` reads the values at a path, for an index of a path.
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

/// Values of one object in one index, sorted and distinct.
pub(crate) type Values<'a> = Vec<Cow<'a, str>>;

/// Indexes of one cache; the id of an index is its position. One pass over an object reads the values of all paths.
#[derive(Clone, Debug, Default)]
pub struct IndexSet {
    funcs: Arc<[IndexFunc]>,
    plucker: Arc<Plucker>,
    /// Set if all values depend on keys alone, so that no update changes them.
    pub(super) of_keys: bool,
}

impl IndexSet {
    /// Returns a set of indexes with distinct names.
    pub(crate) fn new(funcs: Vec<IndexFunc>) -> Self {
        let path_of = |func: &IndexFunc| match &func.kind {
            Kind::Path(path) => Some(FieldPath::clone(path)),
            _ => None,
        };
        let paths: Vec<_> = funcs.iter().filter_map(path_of).collect();
        let of_keys = funcs.iter().all(|func| matches!(func.kind, Kind::Namespace));
        Self { funcs: funcs.into(), plucker: Arc::new(Plucker::new(&paths)), of_keys }
    }

    /// Returns the indexes in the order of their ids.
    pub fn as_slice(&self) -> &[IndexFunc] {
        &self.funcs
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

    /// Rule: I-1.
    #[test]
    fn index_has_zero_or_more_values_per_object() {
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
    fn invalid_index_name_is_refused() {
        for wrong in ["", ".spec", "spec.", "spec[0]", "labels['a", "a b"] {
            let error = IndexFunc::parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("expected `namespace`"), "{error}");
        }
    }

    #[test]
    fn index_set_equals_its_indexes_alone() {
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

    /// Rule: I-8.
    #[test]
    fn panicking_index_function_gives_no_values() {
        let object = object_with("ns/web", "u1", "7", "");
        let bad = IndexFunc::custom("bad", |_| panic!("on purpose"));
        assert_eq!((bad.values(&object), format!("{bad:?}").as_str()), (None, "IndexFunc(bad)"));
    }
}
