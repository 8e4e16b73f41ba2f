//! Reads of one type's caches: by key, by namespace, by selector, by index (L-1 … L-3, I-5, I-6, I-9, D-12).
//!
//! Every answer comes from one published version, without a lock. Several reads that must agree go through
//! [`Lister::snapshot`]. Objects are shared and immutable (I-10).

pub mod selector;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::de::DeserializeOwned;

pub use self::selector::{FieldSelector, LabelSelector, Selector, SelectorError};
use crate::{
    indexer::{
        index_func::{IndexFunc, NAMESPACE_INDEX},
        store::{Meta, ReadStore, Snapshot},
        union::UnionReader,
    },
    object::{KeyRef, Object, ObjectKey, ResourceType, ResourceVersion},
};

/// Why a read has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The key is not in the cache (L-1).
    #[error("{resource} {key:?} not found")]
    NotFound {
        /// Resource type, as kubectl qualifies it.
        resource: String,
        /// `name` or `namespace/name`.
        key: String,
    },
    /// There is no such index (I-6).
    #[error("{resource} has no index {index:?}, only {known}")]
    UnknownIndex {
        /// Resource type, as kubectl qualifies it.
        resource: String,
        /// The name asked for.
        index: String,
        /// The names there are.
        known: String,
    },
    /// The object is not of the type asked for.
    #[error("failed to decode {resource} {key:?}")]
    Undecodable {
        /// Resource type, as kubectl qualifies it.
        resource: String,
        /// `name` or `namespace/name`.
        key: String,
        /// What does not fit.
        source: serde_json::Error,
    },
}

/// Names one published version of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Counts versions.
    pub generation: u64,
    /// The server's version of the collection it shows (I-11).
    pub resource_version: ResourceVersion,
}

/// Reads one unit's cache. `Clone` and `Send`, not `Sync`: one clone a thread or task, not one a read.
#[derive(Clone)]
pub struct Lister<R = UnionReader> {
    reader: R,
    resource: Arc<ResourceType>,
}

impl<R: ReadStore> Lister<R> {
    /// Makes a lister of `resource` over a reader of its cache.
    pub fn new(reader: R, resource: Arc<ResourceType>) -> Self {
        Self { reader, resource }
    }

    /// Returns the resource type that is listed.
    pub fn resource(&self) -> &ResourceType {
        &self.resource
    }

    /// Answers several reads from one version (D-12).
    ///
    /// `query` runs while the version is held: it must be short, must not block, and must not run on the thread that
    /// publishes. Take pointers out, and decode after.
    pub fn snapshot<T>(&self, query: impl FnOnce(&Query<'_>) -> T) -> T {
        self.reader.read(|snapshot| query(&Query { snapshot, resource: &self.resource }))
    }

    /// Returns the object of `key` (L-1, I-5).
    pub fn get(&self, key: KeyRef<'_>) -> Result<Object, ReadError> {
        self.snapshot(|query| query.get(key))
    }

    /// Returns the object of `key`, decoded.
    pub fn get_as<T: DeserializeOwned>(&self, key: KeyRef<'_>) -> Result<T, ReadError> {
        let object = self.get(key)?;
        self.decode(&object)
    }

    /// Returns the objects of several keys from one version, in the order of the keys; `None` for one that is not there.
    /// All are looked up before the first is taken: in a large cache that takes a fraction of as many [`Lister::get`].
    pub fn get_all<'k>(&self, keys: impl IntoIterator<Item = KeyRef<'k>>) -> Vec<Option<Object>> {
        self.snapshot(|query| query.get_all(keys))
    }

    /// Returns every object that matches, in no order (L-2).
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

    /// Returns every object that matches, decoded, in no order.
    pub fn list_as<T: DeserializeOwned>(&self, selector: &Selector) -> Result<Vec<T>, ReadError> {
        self.list(selector).iter().map(|object| self.decode(object)).collect()
    }

    /// Returns the reads of one namespace; `""` is all of them (L-2).
    pub fn namespace<'a>(&'a self, namespace: &'a str) -> NamespaceLister<'a, R> {
        NamespaceLister { lister: self, namespace }
    }

    /// Returns the objects that have `value` in `index`, in no order (I-6).
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Object>, ReadError> {
        self.snapshot(|query| query.by_index(index, value))
    }

    /// Returns the keys of the objects that have `value` in `index`, sorted (I-6).
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, ReadError> {
        let mut keys: Vec<_> = self.by_index(index, value)?.iter().map(|object| object.key().to_owned()).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns the objects that share any value of `object` in `index`, each once (I-6).
    pub fn index(&self, index: &str, object: &Object) -> Result<Vec<Object>, ReadError> {
        self.snapshot(|query| query.index(index, object))
    }

    /// Returns the values of `index` with at least one object, sorted; none for an unknown index (I-6). Looks at the
    /// whole cache.
    pub fn list_index_values(&self, index: &str) -> Vec<String> {
        let mut values = self.snapshot(|query| query.index_values(index));
        values.sort_unstable();
        values
    }

    /// Returns the version that reads see now.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method's path names no lifetime that fits")]
    pub fn version(&self) -> Version {
        self.snapshot(|query| query.version())
    }

    /// Returns whether the initial state is complete.
    pub fn has_synced(&self) -> bool {
        self.snapshot(|query| query.meta().synced)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> u64 {
        self.snapshot(|query| query.meta().objects)
    }

    /// Returns whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what the store knows of the version that reads see now.
    pub fn meta(&self) -> Meta {
        self.snapshot(|query| query.meta().clone())
    }

    fn decode<T: DeserializeOwned>(&self, object: &Object) -> Result<T, ReadError> {
        object.decode().map_err(|source| ReadError::Undecodable {
            resource: self.resource.qualified_name(),
            key: object.key().to_string(),
            source,
        })
    }
}

/// Reads one namespace (L-1).
pub struct NamespaceLister<'a, R = UnionReader> {
    lister: &'a Lister<R>,
    namespace: &'a str,
}

impl<R: ReadStore> NamespaceLister<'_, R> {
    /// Returns the object of this name.
    pub fn get(&self, name: &str) -> Result<Object, ReadError> {
        self.lister.get(KeyRef { namespace: self.namespace, name })
    }

    /// Returns the object of this name, decoded.
    pub fn get_as<T: DeserializeOwned>(&self, name: &str) -> Result<T, ReadError> {
        self.lister.get_as(KeyRef { namespace: self.namespace, name })
    }

    /// Returns every object of the namespace that matches, in no order; found by the index `namespace` (L-3).
    pub fn list(&self, selector: &Selector) -> Vec<Object> {
        match self.namespace {
            "" => self.lister.list(selector),
            namespace => self.lister.select(Some(namespace), selector),
        }
    }
}

/// Reads of one version; see [`Lister::snapshot`].
pub struct Query<'a> {
    snapshot: &'a dyn Snapshot,
    resource: &'a ResourceType,
}

impl Query<'_> {
    /// Returns what belongs to the version.
    pub fn meta(&self) -> &Meta {
        self.snapshot.meta()
    }

    /// Returns the version's name.
    pub fn version(&self) -> Version {
        let Meta { generation, store_version, .. } = self.meta();
        Version { generation: *generation, resource_version: store_version.clone() }
    }

    /// Returns the object of `key`.
    pub fn get(&self, key: KeyRef<'_>) -> Result<Object, ReadError> {
        let not_found = || ReadError::NotFound { resource: self.resource.qualified_name(), key: key.to_string() };
        self.find(key).cloned().ok_or_else(not_found)
    }

    /// Returns the object of `key`, which no reference is counted for: in a large cache the processor waits for several at
    /// once, where [`Query::get`] waits for one after the other.
    pub fn find(&self, key: KeyRef<'_>) -> Option<&Object> {
        self.snapshot.get(key)
    }

    /// Returns the objects of several keys, in their order; `None` for one that is not there.
    pub fn get_all<'k>(&self, keys: impl IntoIterator<Item = KeyRef<'k>>) -> Vec<Option<Object>> {
        // all are found before the first is counted: reading alone, the processor waits for many of them at once
        self.snapshot.get_all(&mut keys.into_iter()).into_iter().map(Option::<&_>::cloned).collect()
    }

    /// Returns every object, in no order.
    pub fn list(&self) -> Vec<Object> {
        let mut objects = Vec::with_capacity(usize::try_from(self.meta().objects).unwrap_or_default());
        self.snapshot.for_each(&mut |object| objects.push(object.clone()));
        objects
    }

    /// Returns every object of one namespace, in no order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Object> {
        self.by_index(NAMESPACE_INDEX, namespace).unwrap_or_default() // every store has this index
    }

    /// Returns the objects that have `value` in `index`, in no order.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Object>, ReadError> {
        let index = self.index_id(index)?;
        let mut objects = Vec::new();
        self.snapshot.for_each_with(index, value, &mut |object| objects.push(object.clone()));
        Ok(objects)
    }

    /// Returns the objects that share any value of `object` in `index`, each once.
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

    /// Returns the values of `index` with at least one object, in no order; none for an unknown index.
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
