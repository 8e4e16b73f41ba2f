//! Lists that were cut into pages: their snapshots, and the tokens that continue them.

use std::{
    cmp::Reverse,
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
use crate::{journal::UnitId, mutex::lock, object::Object, subscribe::judge::StreamClient};

/// Time for which the rest of a paged list can be fetched.
const SNAPSHOT_LIFE: Duration = Duration::from_mins(5);

/// Maximum load of all stored lists together, in objects. A list takes 8 bytes per object. Above the maximum, the client with the
/// highest load loses its oldest list, but never the newest of all lists.
const LOAD_MAX: usize = 2 << 20;

/// Load of a list in addition to its objects. It limits the number of lists to two thousand.
const LOAD_OF_LIST: usize = 1 << 10;

/// Collection that a list shows: the type, the namespace (`None` for all) and the unit (`None` for all).
pub(super) type Collection = (String, Option<String>, Option<UnitId>);

/// Objects of one list, in order.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) collection: Collection,
    pub(super) resource_version: String,
    /// Set if each page reports how many objects come after it.
    pub(super) tells_remaining: bool,
    pub(super) items: Box<[Object]>,
}

impl Snapshot {
    fn load(&self) -> usize {
        self.items.len() + LOAD_OF_LIST
    }

    /// Returns true if both lists show the same objects. Objects of one version of the cache are shared.
    fn is_same(&self, other: &Self) -> bool {
        self.resource_version == other.resource_version
            && self.collection == other.collection
            && self.tells_remaining == other.tells_remaining
            && self.items.len() == other.items.len()
            && self.items.iter().zip(&other.items).all(|(one, other)| one.ptr_eq(other))
    }
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
    kept: Mutex<BTreeMap<u64, Kept>>,
}

/// Stored list of a client.
#[derive(Debug)]
struct Kept {
    client: StreamClient,
    snapshot: Arc<Snapshot>,
    /// Time of the last first page.
    since: Instant,
}

impl Kept {
    fn is_alive(&self) -> bool {
        self.since.elapsed() < SNAPSHOT_LIFE
    }
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
        let kept = lock(&self.kept);
        let alive = kept.get(&token.snapshot).filter(|kept| kept.is_alive());
        let snapshot = alive.map(|kept| Arc::clone(&kept.snapshot)).ok_or_else(ApiError::expired_token)?;
        if snapshot.collection != *collection {
            return Err(ApiError::bad_request("continue key is not valid: it belongs to another list"));
        }
        Ok((snapshot, token.offset))
    }

    /// Returns a page, and stores the snapshot for its client if there are more pages.
    pub(super) fn cut(
        &self,
        client: StreamClient,
        snapshot: Arc<Snapshot>,
        offset: usize,
        limit: Option<usize>,
    ) -> Page {
        let start = offset.min(snapshot.items.len());
        let rest = snapshot.items.len() - start;
        let range = start..start + limit.unwrap_or(rest).min(rest);
        let has_more = range.end < snapshot.items.len();
        let next = has_more.then(|| Token { snapshot: self.keep(client, &snapshot), offset: range.end });
        Page { snapshot, range, next }
    }

    /// Stores a snapshot and returns its id. If the client has a list of the same objects, stores no second one.
    fn keep(&self, client: StreamClient, snapshot: &Arc<Snapshot>) -> u64 {
        self.expire();
        let mut kept = lock(&self.kept);
        if let Some((id, _)) = kept.iter().find(|(_, kept)| Arc::ptr_eq(&kept.snapshot, snapshot)) {
            return *id; // a later page of the same list
        }
        let is_same = |kept: &Kept| kept.client == client && kept.snapshot.is_same(snapshot);
        if let Some((id, same)) = kept.iter_mut().find(|(_, kept)| is_same(kept)) {
            same.since = Instant::now();
            return *id;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        kept.insert(id, Kept { client, snapshot: Arc::clone(snapshot), since: Instant::now() });
        while let Some(excess) = most_dispensable(&kept, id) {
            kept.remove(&excess);
        }
        id
    }

    /// Drops expired snapshots.
    pub(in crate::serve) fn expire(&self) {
        lock(&self.kept).retain(|_, kept| kept.is_alive());
    }
}

/// Returns the oldest list of the client with the highest load, if the load of all lists is too high. Never returns `newest`.
fn most_dispensable(kept: &BTreeMap<u64, Kept>, newest: u64) -> Option<u64> {
    let mut loads = BTreeMap::new();
    for kept in kept.values() {
        *loads.entry(&kept.client).or_insert(0) += kept.snapshot.load();
    }
    if loads.values().sum::<usize>() <= LOAD_MAX {
        return None;
    }
    let candidates = kept.iter().filter(|(id, _)| **id != newest);
    let order = |(_, kept): &(&u64, &Kept)| (Reverse(loads[&kept.client]), kept.since);
    candidates.min_by_key(order).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn client(name: &str) -> StreamClient {
        StreamClient(name.to_owned())
    }

    /// Returns a list of `len` objects.
    fn snapshot(version: &str, len: usize) -> Arc<Snapshot> {
        let items = std::iter::repeat_n(object("a", version), len).collect();
        let collection = ("pods".to_owned(), None, None);
        Arc::new(Snapshot { collection, resource_version: version.to_owned(), tells_remaining: true, items })
    }

    fn is_kept(snapshots: &Snapshots, token: Option<&Token>) -> bool {
        snapshots.get(token.expect("there is more"), &("pods".to_owned(), None, None)).is_ok()
    }

    #[test]
    fn many_lists_of_another_client_end_no_token() {
        let snapshots = Snapshots::new();
        let first = snapshots.cut(client("a"), snapshot("1", 1_000), 0, Some(1)).next;
        for version in 0..5_000 {
            snapshots.cut(client("b"), snapshot(&version.to_string(), 1_000), 0, Some(1));
        }
        assert!(is_kept(&snapshots, first.as_ref()));
        let load: usize = lock(&snapshots.kept).values().map(|kept| kept.snapshot.load()).sum();
        assert!((LOAD_MAX / 2..=LOAD_MAX).contains(&load), "{load}");
    }

    #[test]
    fn equal_lists_of_one_client_are_stored_once() {
        let snapshots = Snapshots::new();
        let (one, other) = (snapshot("1", 1_000), snapshot("2", 1_000));
        let copy = |of: &Snapshot| {
            let (collection, resource_version) = (of.collection.clone(), of.resource_version.clone());
            Arc::new(Snapshot { collection, resource_version, tells_remaining: true, items: of.items.clone() })
        };
        let first = snapshots.cut(client("a"), Arc::clone(&one), 0, Some(1)).next;
        let same = snapshots.cut(client("a"), copy(&one), 0, Some(7)).next;
        assert_eq!(first.as_ref().unwrap().snapshot, same.as_ref().unwrap().snapshot);
        let another = snapshots.cut(client("a"), other, 0, Some(1)).next;
        assert_ne!(first.unwrap().snapshot, another.unwrap().snapshot);
        assert_eq!(lock(&snapshots.kept).len(), 2);
    }

    #[test]
    fn newest_list_is_kept_whatever_its_size() {
        let snapshots = Snapshots::new();
        snapshots.cut(client("a"), snapshot("1", 10), 0, Some(1));
        let large = snapshots.cut(client("b"), snapshot("2", LOAD_MAX + 1), 0, Some(1)).next;
        assert!(is_kept(&snapshots, large.as_ref()));
        let next = snapshots.cut(client("a"), snapshot("3", 10), 0, Some(1)).next;
        assert!(is_kept(&snapshots, next.as_ref()) && !is_kept(&snapshots, large.as_ref()));
    }
}
