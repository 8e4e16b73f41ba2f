//! Lists that were cut into pages: their snapshots, and the tokens that continue them.

use std::{
    collections::BTreeMap,
    ops::Range,
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

/// Maximum number of stored paged lists. Above this number, the oldest list is dropped.
const SNAPSHOTS_MAX: usize = 64;

/// Maximum number of objects in all stored lists together. A list takes 8 bytes per object. Above the maximum, the oldest lists are
/// dropped, but never the newest.
const OBJECTS_MAX: usize = 2 << 20;

/// Collection that a list shows: the type, the namespace (`None` for all) and the unit (`None` for all).
pub(super) type Collection = (String, Option<String>, Option<UnitId>);

/// Objects of one list, in order.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) taken: Instant,
    pub(super) collection: Collection,
    pub(super) resource_version: String,
    /// Set if each page reports how many objects come after it.
    pub(super) tells_remaining: bool,
    pub(super) items: Box<[Object]>,
}

/// One page of a snapshot.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) snapshot: Arc<Snapshot>,
    /// Range of the page in the snapshot's items.
    pub(super) range: Range<usize>,
    /// Token of the next page, if there is one.
    pub(super) next: Option<Token>,
}

impl Page {
    /// Returns the objects of the page.
    pub(super) fn objects(&self) -> &[Object] {
        &self.snapshot.items[self.range.clone()]
    }
}

/// Position at which a paged list continues; opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    snapshot: u64,
    offset: usize,
}

impl Token {
    /// Parses a token; returns 400 for an invalid one.
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        let parse = |(snapshot, offset)| {
            let (snapshot, offset) = (u64::from_str_radix(snapshot, 16), usize::from_str_radix(offset, 16));
            Some(Self { snapshot: snapshot.ok()?, offset: offset.ok()? })
        };
        let token = text.split_once('.').and_then(parse);
        token.ok_or_else(|| ApiError::bad_request(format!("continue key is not valid: {text:?}")))
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}.{:x}", self.snapshot, self.offset)
    }
}

/// Lists whose later pages may still be requested.
#[derive(Debug)]
pub(in crate::serve) struct Snapshots {
    next_id: AtomicU64,
    kept: Mutex<BTreeMap<u64, Arc<Snapshot>>>,
}

impl Snapshots {
    /// Creates an empty store. Its ids begin at a random number, so that a token of an earlier run of the engine matches no
    /// snapshot.
    pub(in crate::serve) fn new() -> Self {
        Self { next_id: AtomicU64::new(u64::from(rand::random::<u32>()) << 32), kept: Mutex::default() }
    }

    /// Returns the snapshot and the offset of a token. Returns 410 if the snapshot has expired. Returns 400 if the snapshot is of
    /// another collection.
    pub(super) fn get(&self, token: &Token, collection: &Collection) -> Result<(Arc<Snapshot>, usize), ApiError> {
        let found = lock(&self.kept).get(&token.snapshot).cloned();
        let alive = found.filter(|snapshot| snapshot.taken.elapsed() < SNAPSHOT_LIFE);
        let snapshot = alive.ok_or_else(ApiError::expired_token)?;
        if snapshot.collection != *collection {
            return Err(ApiError::bad_request("continue key is not valid: it belongs to another list"));
        }
        Ok((snapshot, token.offset))
    }

    /// Returns a page, and stores the snapshot if there are more pages.
    pub(super) fn cut(&self, snapshot: Arc<Snapshot>, offset: usize, limit: Option<usize>) -> Page {
        let start = offset.min(snapshot.items.len());
        let rest = snapshot.items.len() - start;
        let range = start..start + limit.unwrap_or(rest).min(rest);
        let has_more = range.end < snapshot.items.len();
        let next = has_more.then(|| Token { snapshot: self.keep(&snapshot), offset: range.end });
        Page { snapshot, range, next }
    }

    /// Stores a snapshot and returns its id.
    fn keep(&self, snapshot: &Arc<Snapshot>) -> u64 {
        self.expire();
        let mut kept = lock(&self.kept);
        if let Some((id, _)) = kept.iter().find(|(_, kept)| Arc::ptr_eq(kept, snapshot)) {
            return *id; // a later page of the same list
        }
        let mut objects = kept.values().map(|kept| kept.items.len()).sum::<usize>() + snapshot.items.len();
        while kept.len() >= SNAPSHOTS_MAX || objects > OBJECTS_MAX {
            let Some((_, oldest)) = kept.pop_first() else { break };
            objects -= oldest.items.len();
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        kept.insert(id, Arc::clone(snapshot));
        id
    }

    /// Drops expired snapshots.
    pub(in crate::serve) fn expire(&self) {
        lock(&self.kept).retain(|_, kept| kept.taken.elapsed() < SNAPSHOT_LIFE);
    }
}
