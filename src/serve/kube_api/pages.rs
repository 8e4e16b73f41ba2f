//! Lists that were cut into pages: their snapshots, and the tokens that continue them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::super::api_error::ApiError;
use crate::{journal::UnitId, mutex::lock, object::Object};

/// Time for which the rest of a paged list can be fetched.
const SNAPSHOT_LIFE: Duration = Duration::from_mins(5);

/// Maximum number of stored paged lists; the oldest is dropped.
const SNAPSHOTS_MAX: usize = 64;

/// Maximum number of objects in stored lists, 8 bytes each. The oldest list is dropped; the newest is always kept.
const OBJECTS_MAX: usize = 2 << 20;

/// Collection: the type, a namespace or all, a unit or all.
pub(super) type Collection = (String, Option<String>, Option<UnitId>);

/// Objects of one list, in order.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) taken: Instant,
    pub(super) collection: Collection,
    pub(super) resource_version: String,
    pub(super) tells_remaining: bool,
    pub(super) items: Arc<[Object]>,
}

/// One page of a snapshot.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) resource_version: String,
    /// Token of the next page, if there is one.
    pub(super) next: Option<Token>,
    /// Number of objects after this page, if it is reported.
    pub(super) remaining: Option<usize>,
    pub(super) items: Arc<[Object]>,
    /// Range of the page in `items`.
    pub(super) range: std::ops::Range<usize>,
}

impl Page {
    /// Returns the objects of the page.
    pub(super) fn objects(&self) -> &[Object] {
        &self.items[self.range.clone()]
    }
}

/// Position at which a paged list continues; opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Run of the engine: the snapshots of other runs are unknown.
    run: u64,
    snapshot: u64,
    offset: usize,
}

impl Token {
    /// Parses a token; returns 400 for an invalid one.
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let mut parts = text.split('.');
        let mut part = || u64::from_str_radix(parts.next()?, 16).ok();
        let token = (part(), part(), part().and_then(|offset| usize::try_from(offset).ok()));
        match (token, parts.next()) {
            ((Some(run), Some(snapshot), Some(offset)), None) => Ok(Self { run, snapshot, offset }),
            _ => Err(ApiError::bad_request(format!("continue key is not valid: {text:?}"))),
        }
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}.{:x}", self.run, self.snapshot, self.offset)
    }
}

/// Lists whose later pages may still be requested.
#[derive(Debug)]
pub(in crate::serve) struct Snapshots {
    run: u64,
    next_id: AtomicU64,
    kept: Mutex<HashMap<u64, Snapshot>>,
}

impl Snapshots {
    /// Creates an empty store; `run` is a random number.
    pub(in crate::serve) fn new(run: u64) -> Self {
        Self { run, next_id: AtomicU64::new(0), kept: Mutex::default() }
    }

    /// Returns the snapshot and the offset. Returns 410 if the snapshot has expired, 400 if it is of another collection.
    pub(super) fn get(&self, token: &Token, collection: &Collection) -> Result<(Snapshot, usize), ApiError> {
        let known = token.run == self.run;
        let found = lock(&self.kept).get(&token.snapshot).filter(|_| known).cloned();
        let alive = found.filter(|snapshot| snapshot.taken.elapsed() < SNAPSHOT_LIFE);
        let snapshot = alive.ok_or_else(ApiError::expired_token)?;
        if snapshot.collection != *collection {
            return Err(ApiError::bad_request("continue key is not valid: it belongs to another list"));
        }
        Ok((snapshot, token.offset))
    }

    /// Returns a page, and stores the snapshot if there are more pages.
    pub(super) fn cut(&self, snapshot: Snapshot, offset: usize, limit: Option<usize>) -> Page {
        let start = offset.min(snapshot.items.len());
        let rest = snapshot.items.len() - start;
        let range = start..start + limit.unwrap_or(rest).min(rest);
        let remaining = snapshot.items.len() - range.end;
        let (resource_version, items) = (snapshot.resource_version.clone(), Arc::clone(&snapshot.items));
        let tells = snapshot.tells_remaining;
        let next = (remaining > 0).then(|| Token { run: self.run, snapshot: self.keep(snapshot), offset: range.end });
        Page { resource_version, remaining: next.as_ref().filter(|_| tells).map(|_| remaining), next, items, range }
    }

    /// Stores a snapshot and returns its number.
    fn keep(&self, snapshot: Snapshot) -> u64 {
        self.expire();
        let mut kept = lock(&self.kept);
        if let Some((id, _)) = kept.iter().find(|(_, kept)| Arc::ptr_eq(&kept.items, &snapshot.items)) {
            return *id; // a later page of the same list
        }
        let objects = |kept: &HashMap<u64, Snapshot>| kept.values().map(|kept| kept.items.len()).sum::<usize>();
        while kept.len() >= SNAPSHOTS_MAX || objects(&kept) + snapshot.items.len() > OBJECTS_MAX {
            let Some(oldest) = kept.keys().min().copied() else { break };
            kept.remove(&oldest);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        kept.insert(id, snapshot);
        id
    }

    /// Drops expired snapshots.
    pub(in crate::serve) fn expire(&self) {
        lock(&self.kept).retain(|_, kept| kept.taken.elapsed() < SNAPSHOT_LIFE);
    }
}
