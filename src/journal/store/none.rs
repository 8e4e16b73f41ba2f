//! Stand-in for the store in a program without the feature `state`: it cannot be opened.

use std::{convert::Infallible, path::Path, sync::Arc};

use roaring::RoaringTreemap;

mod parts;

pub use self::parts::Append;
pub(crate) use self::parts::{LogPage, NOBODY, PageSize, Recovered, Retained, StoredReader, StoredUnit};
use super::{
    ChangeKind, Record, Sequence, UnitId,
    timeline::{Floor, TimelinePage},
};
use crate::{
    build_info,
    change::Cause,
    object::{Object, packer::Packer},
};

/// Error when a store was opened: this program cannot open stores.
#[derive(Debug, thiserror::Error)]
#[error("`[state] dir` {}", build_info::lacking("state"))]
pub struct StoreError(());

/// Stored record without its bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head<'a> {
    pub(crate) sequence: u64,
    pub(crate) unit: UnitId,
    pub(crate) kind: ChangeKind,
    pub(crate) cause: Option<Cause>,
    pub(crate) only: Option<&'a str>,
    never: Infallible,
}

impl Head<'_> {
    pub(crate) fn objects(&self) -> u64 {
        match self.never {}
    }
}

/// Data that one step of a compaction writes.
#[derive(Debug)]
pub(crate) struct CompactionStep {
    pub(crate) written: RoaringTreemap,
    pub(crate) superseded: RoaringTreemap,
}

/// Stand-in for the store of one directory. No value of this type exists.
#[derive(Clone, Debug)]
pub struct Store(Infallible);

impl Store {
    pub(crate) fn open(_: &Path, _: bool) -> Result<(Self, Recovered), StoreError> {
        Err(StoreError(()))
    }

    pub(crate) fn bind(&self, _: &str) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn close(&self) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn packer(&self, _: UnitId) -> Arc<Packer> {
        match self.0 {}
    }

    pub(crate) fn dir(&self) -> &Path {
        match self.0 {}
    }

    pub(crate) fn append(&self, _: &Append<'_>) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn load_for(&self, _: &str, _: &[u64]) -> Result<Vec<Record>, StoreError> {
        match self.0 {}
    }

    pub(crate) fn heads(&self, _: Sequence, _: &mut dyn FnMut(&Head<'_>)) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn objects(&self, _: UnitId, _: &mut dyn FnMut(Object)) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn put_unit(&self, _: &StoredUnit) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn forget_unit(&self, _: UnitId) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn put_readers(&self, _: &[StoredReader]) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn remove_reader(&self, _: &str) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn retain(&self, _: Sequence) -> Result<Retained, StoreError> {
        match self.0 {}
    }

    pub(crate) fn rewrite(self) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn page(
        &self,
        _: (Sequence, Sequence),
        _: PageSize,
        _: &dyn Fn(UnitId) -> bool,
    ) -> Result<LogPage, StoreError> {
        match self.0 {}
    }

    pub(crate) fn put_timeline(&self, _: &[TimelinePage]) -> Result<(), StoreError> {
        match self.0 {}
    }

    pub(crate) fn timeline_page(&self, _: &dyn Fn(&Floor) -> bool) -> Result<Option<TimelinePage>, StoreError> {
        match self.0 {}
    }

    pub(crate) fn put_compacted(&self, _: &CompactionStep, _: &StoredReader) -> Result<(), StoreError> {
        match self.0 {}
    }
}
