//! Lister that decodes cached objects into types of `k8s_openapi`.

use std::marker::PhantomData;

use k8s_openapi::Resource as Typed;
use serde::de::DeserializeOwned;

use super::{Lister, ReadError, Selector};
use crate::object::KeyRef;

/// [`Lister`] that decodes objects.
#[derive(Clone)]
pub struct TypedLister<K> {
    lister: Lister,
    typed: PhantomData<fn() -> K>,
}

impl<K: Typed + DeserializeOwned> TypedLister<K> {
    pub(crate) fn new(lister: Lister) -> Self {
        Self { lister, typed: PhantomData }
    }

    /// Returns the object of this name; `namespace` is empty for cluster-scoped objects (L-1).
    ///
    /// # Errors
    /// Fails if the object is not in the cache, or cannot be decoded as `K`.
    pub fn get(&self, namespace: &str, name: &str) -> Result<K, ReadError> {
        self.lister.get_as(KeyRef { namespace, name })
    }

    /// Returns every matching object, in no particular order (L-2).
    ///
    /// # Errors
    /// Fails if an object cannot be decoded as `K`.
    pub fn list(&self, selector: &Selector) -> Result<Vec<K>, ReadError> {
        self.lister.list_as(selector)
    }

    /// Returns the objects with `value` in `index`, in no particular order (I-6).
    ///
    /// # Errors
    /// Fails if there is no such index, or if an object cannot be decoded as `K`.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<K>, ReadError> {
        self.lister.by_index(index, value)?.iter().map(|object| self.lister.decode(object)).collect()
    }

    /// Returns the lister of undecoded objects.
    pub fn untyped(&self) -> &Lister {
        &self.lister
    }
}
