//! Reading back: heads, records with their bodies, states of objects.

use std::sync::{PoisonError, atomic::Ordering::SeqCst};

use super::{
    Fault, Files, Head, Inner,
    body::{Pointer, decode_body, old_key, sequence_key, split_object_key},
    record::{Body, Old, StoredHead},
};
use crate::{
    journal::{Record, Sequence, UnitId},
    object::{KeyRef, SharedObject},
};

pub(super) fn load(inner: &Inner, files: &Files, sequences: &[u64]) -> Result<Vec<Record>, Fault> {
    let first = inner.first.load(SeqCst);
    let mut records = Vec::with_capacity(sequences.len());
    for &sequence in sequences.iter().filter(|sequence| **sequence >= first) {
        let Some(value) = files.records.get(sequence_key(sequence))? else { continue };
        let head = head_of(files, sequence, &value)?;
        let object = match head.body {
            Body::None => None,
            Body::Own => body(inner, files, head.unit, head.key, &sequence_key(sequence))?,
            Body::At(at) => body(inner, files, head.unit, head.key, &sequence_key(at))?,
        };
        let old = match (head.old, head.supersedes) {
            (Old::Own, _) => body(inner, files, head.unit, head.key, &old_key(sequence))?,
            (Old::Superseded, Some(at)) => body(inner, files, head.unit, head.key, &sequence_key(at))?,
            _ => None,
        };
        records.extend(head.record(object, old));
    }
    Ok(records)
}

pub(super) fn heads(
    inner: &Inner,
    files: &Files,
    after: Sequence,
    visit: &mut dyn FnMut(&Head<'_>),
) -> Result<(), Fault> {
    let from = after.0.saturating_add(1).max(inner.first.load(SeqCst));
    for entry in files.records.range(sequence_key(from)..) {
        let (key, value) = entry.into_inner()?;
        let sequence = sequence_of(&key).ok_or_else(|| unreadable(files, &key))?;
        visit(&head_of(files, sequence, &value)?.shown());
    }
    Ok(())
}

pub(super) fn objects(
    inner: &Inner,
    files: &Files,
    unit: UnitId,
    visit: &mut dyn FnMut(SharedObject),
) -> Result<(), Fault> {
    for entry in files.objects.prefix(unit.0.to_be_bytes()) {
        let (key, value) = entry.into_inner()?;
        let bad = |what: &str| {
            let what = format!("the state of {} {what}", String::from_utf8_lossy(&key));
            Fault::damaged(files.objects.path().to_owned(), what)
        };
        let state = Pointer::decode(&value).ok_or_else(|| bad("is unreadable"))?;
        let name = split_object_key(&key).ok_or_else(|| bad("has an unreadable key"))?;
        let object = body(inner, files, unit, name, &sequence_key(state.sequence))?;
        visit(object.ok_or_else(|| bad("is missing"))?);
    }
    Ok(())
}

/// Reads and unpacks one body.
fn body(
    inner: &Inner,
    files: &Files,
    unit: UnitId,
    name: KeyRef<'_>,
    key: &[u8],
) -> Result<Option<SharedObject>, Fault> {
    let Some(value) = files.bodies.get(key)? else { return Ok(None) };
    let unit = inner.unit(unit);
    let dictionaries = unit.dictionaries.read().unwrap_or_else(PoisonError::into_inner);
    let object = decode_body(name, &value, &dictionaries).map_err(|error| {
        Fault::damaged(files.bodies.path().to_owned(), format!("a body of {name} is unreadable: {error}"))
    })?;
    Ok(Some(object))
}

/// Reads the sequence that a key of a record is.
pub(super) fn sequence_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.try_into().ok()?))
}

pub(super) fn head_of<'a>(files: &Files, sequence: u64, value: &'a [u8]) -> Result<StoredHead<'a>, Fault> {
    StoredHead::decode(sequence, value).ok_or_else(|| unreadable(files, &sequence_key(sequence)))
}

/// Says which record is unreadable.
pub(super) fn unreadable(files: &Files, key: &[u8]) -> Fault {
    let name = sequence_of(key).map_or_else(|| format!("{key:02x?}"), |sequence| sequence.to_string());
    Fault::damaged(files.records.path().to_owned(), format!("the record {name} is unreadable"))
}
