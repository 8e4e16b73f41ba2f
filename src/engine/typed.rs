//! Reads of the cache as types of `k8s_openapi`.

use std::marker::PhantomData;

use k8s_openapi::Resource as Typed;
use serde::de::DeserializeOwned;

use crate::{
    lister::{Lister, ReadError, Selector},
    object::{KeyRef, Object},
};

/// Returns how `match` of a configuration spells a type: `pods`, `deployments.v1.apps`.
pub(super) fn pattern_of<K: Typed>() -> String {
    let plural = K::URL_PATH_SEGMENT;
    if K::GROUP.is_empty() { plural.to_owned() } else { format!("{plural}.{}.{}", K::VERSION, K::GROUP) }
}

/// A [`Lister`] that decodes what it reads.
#[derive(Clone)]
pub struct TypedLister<K> {
    lister: Lister,
    typed: PhantomData<fn() -> K>,
}

impl<K: Typed + DeserializeOwned> TypedLister<K> {
    pub(super) fn new(lister: Lister) -> Self {
        Self { lister, typed: PhantomData }
    }

    /// Returns the object of this name; `namespace` is empty for cluster-scoped ones (L-1).
    ///
    /// # Errors
    /// When it is not in the cache, or not of the type.
    pub fn get(&self, namespace: &str, name: &str) -> Result<K, ReadError> {
        self.lister.get_as(KeyRef { namespace, name })
    }

    /// Returns every object that matches, in no order (L-2).
    ///
    /// # Errors
    /// When one is not of the type.
    pub fn list(&self, selector: &Selector) -> Result<Vec<K>, ReadError> {
        self.lister.list_as(selector)
    }

    /// Returns the objects that have `value` in `index`, in no order (I-6).
    ///
    /// # Errors
    /// When there is no such index, or an object is not of the type.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<K>, ReadError> {
        let objects = self.lister.by_index(index, value)?;
        let undecodable = |object: &Object, source| ReadError::Undecodable {
            resource: self.lister.resource().to_string(),
            key: object.key().to_string(),
            source,
        };
        objects.iter().map(|object| object.decode().map_err(|source| undecodable(object, source))).collect()
    }

    /// Returns the lister of undecoded objects.
    pub fn untyped(&self) -> &Lister {
        &self.lister
    }
}
