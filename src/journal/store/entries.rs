//! Reading and removing the entries of coalesced records.

use fjall::OwnedWriteBatch;
use roaring::RoaringTreemap;

use super::{
    Fault, Files, Inner,
    body::{Part, compacted_body_key, compacted_key},
    record::Head,
    wire::Wire,
};
use crate::mutex::lock;

/// Number of entries removed per batch.
pub(super) const ENTRIES_A_BATCH: usize = 4096;

/// Decodes an entry. Returns its head, and the position that the object comes from.
pub(super) fn decode_entry<'a>(files: &Files, place: u64, value: &'a [u8]) -> Result<(u64, Head<'a>), Fault> {
    let mut wire = Wire(value);
    let decoded = wire.number().and_then(|behind| Some((place + behind, Head::decode(place, wire.0)?)));
    decoded.ok_or_else(|| unreadable(files, place))
}

pub(super) fn unreadable(files: &Files, place: u64) -> Fault {
    Fault::corrupt(files.compacted.path(), format!("the coalesced record {place} is unreadable"))
}

/// Removes the entries of a reader that are not in `needed`.
pub(super) fn forget_all_but(inner: &Inner, files: &Files, reader: &str, needed: &RoaringTreemap) -> Result<(), Fault> {
    let mut known = known_of(inner, reader);
    let stale: Vec<u64> = (&known - needed).iter().collect();
    for part in stale.chunks(ENTRIES_A_BATCH) {
        remove_entries(files, reader, part)?;
        known -= part.iter().copied().collect::<RoaringTreemap>();
        lock(&inner.compacted).insert(reader.to_owned(), known.clone());
    }
    if known.is_empty() && !stale.is_empty() {
        lock(&inner.compacted).remove(reader);
    }
    Ok(())
}

pub(super) fn remove_entries(files: &Files, reader: &str, positions: &[u64]) -> Result<(), Fault> {
    let mut batch = files.db.batch();
    for position in positions {
        remove_entry(files, &mut batch, reader, *position);
    }
    files.commit(batch)
}

pub(super) fn remove_entry(files: &Files, batch: &mut OwnedWriteBatch, reader: &str, position: u64) {
    batch.remove(&files.compacted, compacted_key(reader, position));
    for part in [Part::Object, Part::Old] {
        batch.remove(&files.bodies, compacted_body_key(reader, position, part));
    }
}

pub(super) fn known_of(inner: &Inner, reader: &str) -> RoaringTreemap {
    lock(&inner.compacted).get(reader).cloned().unwrap_or_default()
}
