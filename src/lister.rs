//! Reads from the caches of one type: by key, namespace, selector or index (L-1 … L-3, I-5, I-6, I-9, D-12).
//!
//! Every answer comes from one published version, without a lock. Use [`Lister::snapshot`] for several reads from the
//! same version. Objects are shared and immutable (I-10).

pub(crate) mod selector;
#[cfg(test)]
mod tests;
pub(crate) mod typed;

use std::sync::Arc;

use serde::de::DeserializeOwned;

pub use self::{
    selector::{FieldSelector, LabelSelector, Selector, SelectorError},
    typed::TypedLister,
};
use crate::{
    indexer::{
        index_func::{IndexFunc, NAMESPACE_INDEX},
        store::{Meta, ReadStore, Snapshot},
        union::UnionReader,
    },
    object::{KeyRef, Object, ObjectKey, ResourceType, ResourceVersion},
};

/// Reason why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The key is not in the cache (L-1).
    #[error("{resource} {key:?} not found")]
    NotFound {
        /// Resource type in kubectl's form, such as `pods` or `deployments.apps`.
        resource: String,
        /// `name` or `namespace/name`.
        key: String,
    },
    /// No index has this name (I-6).
    #[error("{resource} has no index {index:?}, only {known}")]
    UnknownIndex {
        /// Resource type in kubectl's form, such as `pods` or `deployments.apps`.
        resource: String,
        /// The requested name.
        index: String,
        /// The names of the existing indexes.
        known: String,
    },
    /// The object does not decode as the requested type.
    #[error("failed to decode {resource} {key:?}")]
    Undecodable {
        /// Resource type in kubectl's form, such as `pods` or `deployments.apps`.
        resource: String,
        /// `name` or `namespace/name`.
        key: String,
        /// The decoding error.
        source: serde_json::Error,
    },
}

/// Identity of one published version of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Number of the version.
    pub generation: u64,
    /// Resource version that this version of the cache has reached (I-11).
    pub resource_version: ResourceVersion,
}

/// Reader of a type's caches. It is `Clone` and `Send`, not `Sync`: make one clone for each thread or task, not for
/// each read.
#[derive(Clone)]
pub struct Lister<R = UnionReader> {
    reader: R,
    resource: Arc<ResourceType>,
}

impl<R: ReadStore> Lister<R> {
    /// Makes a lister of `resource` with a reader of its cache.
    pub fn new(reader: R, resource: Arc<ResourceType>) -> Self {
        Self { reader, resource }
    }

    /// Returns the listed resource type.
    pub fn resource(&self) -> &ResourceType {
        &self.resource
    }

    /// Runs several reads on one version (D-12).
    ///
    /// The version is held while `query` runs. So `query` must be short, must not block, and must not run on the thread that
    /// publishes. Clone the objects, which copies only pointers, and decode the clones later.
    pub fn snapshot<T>(&self, query: impl FnOnce(&Query<'_>) -> T) -> T {
        self.reader.read(|snapshot| query(&Query { snapshot, resource: &self.resource }))
    }

    /// Returns the object with this key (L-1, I-5).
    pub fn get(&self, key: KeyRef<'_>) -> Result<Object, ReadError> {
        self.snapshot(|query| query.get(key))
    }

    /// Returns the object with this key, decoded.
    pub fn get_as<T: DeserializeOwned>(&self, key: KeyRef<'_>) -> Result<T, ReadError> {
        let object = self.get(key)?;
        self.decode(&object)
    }

    /// Returns the objects of several keys from one version, in the order of the keys; `None` for a missing object. In
    /// a large cache this is several times as fast as one [`Lister::get`] for each key, because the lookups overlap.
    pub fn get_all<'k>(&self, keys: impl IntoIterator<Item = KeyRef<'k>>) -> Vec<Option<Object>> {
        self.snapshot(|query| query.get_all(keys))
    }

    /// Returns all matching objects, in no order (L-2).
    pub fn list(&self, selector: &Selector) -> Vec<Object> {
        self.select(selector.fields.namespace().filter(|namespace| !namespace.is_empty()), selector)
    }

    fn select(&self, namespace: Option<&str>, selector: &Selector) -> Vec<Object> {
        if selector.is_nothing() {
            return Vec::new();
        }
        let mut objects = self.snapshot(|query| match namespace {
            Some(namespace) => query.in_namespace(namespace),
            None => query.list(),
        });
        if !selector.is_all() {
            objects.retain(|object| selector.matches(object));
        }
        objects
    }

    /// Returns all matching objects, decoded, in no order.
    pub fn list_as<T: DeserializeOwned>(&self, selector: &Selector) -> Result<Vec<T>, ReadError> {
        self.list(selector).iter().map(|object| self.decode(object)).collect()
    }

    /// Returns a lister of one namespace; `""` means all namespaces (L-2).
    pub fn namespace<'a>(&'a self, namespace: &'a str) -> NamespaceLister<'a, R> {
        NamespaceLister { lister: self, namespace }
    }

    /// Returns the objects with `value` in `index`, in no order (I-6).
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Object>, ReadError> {
        self.snapshot(|query| query.by_index(index, value))
    }

    /// Returns the keys of the objects with `value` in `index`, sorted (I-6).
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, ReadError> {
        let mut keys: Vec<_> = self.by_index(index, value)?.iter().map(|object| object.key().to_owned()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns the objects that have at least one value in common with `object` in `index` (I-6). No object occurs twice.
    pub fn index(&self, index: &str, object: &Object) -> Result<Vec<Object>, ReadError> {
        self.snapshot(|query| query.index(index, object))
    }

    /// Returns the values that at least one object has in `index`, sorted; empty for an unknown index (I-6). Scans the
    /// whole cache.
    pub fn list_index_values(&self, index: &str) -> Vec<String> {
        let mut values = self.snapshot(|query| query.index_values(index));
        values.sort_unstable();
        values
    }

    /// Returns the current version.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method's path names no lifetime that fits")]
    pub fn version(&self) -> Version {
        self.snapshot(|query| query.version())
    }

    /// Returns true if the initial state is complete.
    pub fn has_synced(&self) -> bool {
        self.snapshot(|query| query.meta().synced)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> u64 {
        self.snapshot(|query| query.meta().objects)
    }

    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the metadata of the current version.
    pub fn meta(&self) -> Meta {
        self.snapshot(|query| query.meta().clone())
    }

    pub(crate) fn decode<T: DeserializeOwned>(&self, object: &Object) -> Result<T, ReadError> {
        object.decode().map_err(|source| ReadError::Undecodable {
            resource: self.resource.qualified_name(),
            key: object.key().to_string(),
            source,
        })
    }
}

/// Reader of one namespace (L-1).
pub struct NamespaceLister<'a, R = UnionReader> {
    lister: &'a Lister<R>,
    namespace: &'a str,
}

impl<R: ReadStore> NamespaceLister<'_, R> {
    /// Returns the object with this name.
    pub fn get(&self, name: &str) -> Result<Object, ReadError> {
        self.lister.get(KeyRef { namespace: self.namespace, name })
    }

    /// Returns the object with this name, decoded.
    pub fn get_as<T: DeserializeOwned>(&self, name: &str) -> Result<T, ReadError> {
        self.lister.get_as(KeyRef { namespace: self.namespace, name })
    }

    /// Returns all matching objects of the namespace, in no order. Uses the index `namespace` (L-3).
    pub fn list(&self, selector: &Selector) -> Vec<Object> {
        match self.namespace {
            "" => self.lister.list(selector),
            namespace => self.lister.select(Some(namespace), selector),
        }
    }
}

/// Reads from one version; see [`Lister::snapshot`].
pub struct Query<'a> {
    snapshot: &'a dyn Snapshot,
    resource: &'a ResourceType,
}

impl Query<'_> {
    /// Returns the metadata of this version.
    pub fn meta(&self) -> &Meta {
        self.snapshot.meta()
    }

    /// Returns the identity of this version.
    pub fn version(&self) -> Version {
        let Meta { generation, store_version, .. } = self.meta();
        Version { generation: *generation, resource_version: store_version.clone() }
    }

    /// Returns the object with this key.
    pub fn get(&self, key: KeyRef<'_>) -> Result<Object, ReadError> {
        let not_found = || ReadError::NotFound { resource: self.resource.qualified_name(), key: key.to_string() };
        self.find(key).cloned().ok_or_else(not_found)
    }

    /// Returns a reference to the object with this key. Unlike [`Query::get`], does not change the reference count of the object.
    /// In a large cache, the processor can then overlap the memory accesses of several calls.
    pub fn find(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.snapshot.get(key)
    }

    /// Returns the objects of several keys, in their order; `None` for a missing object.
    pub fn get_all<'k>(&self, keys: impl IntoIterator<Item = KeyRef<'k>>) -> Vec<Option<Object>> {
        // `get_all` finds all objects before the clones change reference counts. So the memory accesses of the lookups overlap.
        self.snapshot.get_all(&mut keys.into_iter()).into_iter().map(Option::<&_>::cloned).collect()
    }

    /// Returns all objects, in no order.
    pub fn list(&self) -> Vec<Object> {
        let mut objects = Vec::with_capacity(usize::try_from(self.meta().objects).unwrap_or_default());
        self.snapshot.for_each(&mut |object| objects.push(object.clone()));
        objects
    }

    /// Returns all objects of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Object> {
        self.by_index(NAMESPACE_INDEX, namespace).unwrap_or_default() // every store has this index
    }

    /// Returns the objects with `value` in `index`, in no order.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Object>, ReadError> {
        let index = self.index_id(index)?;
        let mut objects = Vec::new();
        self.snapshot.for_each_with(index, value, &mut |object| objects.push(object.clone()));
        Ok(objects)
    }

    /// Returns the objects that have at least one value in common with `object` in `index`. No object occurs twice.
    pub fn index(&self, index: &str, object: &Object) -> Result<Vec<Object>, ReadError> {
        let index = self.index_id(index)?;
        let values = self.meta().indexes.as_slice()[index as usize].values(object).unwrap_or_default();
        let mut objects = Vec::new();
        for value in &values {
            self.snapshot.for_each_with(index, value, &mut |object| objects.push(object.clone()));
        }
        if values.len() > 1 {
            objects.sort_unstable_by(|a, b| a.key().cmp(&b.key()));
            objects.dedup_by(|a, b| a.key() == b.key());
        }
        Ok(objects)
    }

    /// Returns the values that at least one object has in `index`, in no order; empty for an unknown index.
    pub fn index_values(&self, index: &str) -> Vec<String> {
        let mut values = Vec::new();
        if let Some(index) = self.meta().index_id(index) {
            self.snapshot.for_each_value(index, &mut |value| values.push(value.to_owned()));
        }
        values
    }

    fn index_id(&self, index: &str) -> Result<u32, ReadError> {
        self.meta().index_id(index).ok_or_else(|| ReadError::UnknownIndex {
            resource: self.resource.qualified_name(),
            index: index.to_owned(),
            known: self.meta().indexes.as_slice().iter().map(IndexFunc::name).collect::<Vec<_>>().join(", "),
        })
    }
}
