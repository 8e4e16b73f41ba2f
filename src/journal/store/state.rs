//! Encoding of units and readers.

use std::collections::{BTreeSet, HashSet};

use roaring::RoaringTreemap;

use super::{
    Fault, Files, Store, StoreError, StoredReader, StoredUnit,
    compact::forget_all_but,
    wire::{Wire, put_number, put_text},
};
use crate::{
    change::Reached,
    journal::{Sequence, UnitId},
    mutex::lock,
    object::ResourceVersion,
};

/// Version of the encoding of units and readers.
const FORM: u8 = 1;

/// Flag: the value of a reader contains the list of pending records. Earlier versions left out an empty list.
const WITH_PENDING: u8 = 1;

/// Last byte of a unit's key: which part of the unit the value contains.
const DESCRIPTION: u8 = b'd';
const FORGOTTEN: u8 = b'f';
const REACHED: u8 = b'r';

fn unit_key(unit: UnitId, part: u8) -> [u8; 5] {
    let [a, b, c, d] = unit.0.to_be_bytes();
    [a, b, c, d, part]
}

/// Returns the key of the versions that a unit has reached.
pub(super) fn reached_key(unit: UnitId) -> [u8; 5] {
    unit_key(unit, REACHED)
}

pub(super) fn encode_reached(reached: &Reached) -> Vec<u8> {
    let mut out = vec![FORM, u8::from(reached.synced)];
    put_number(&mut out, reached.generation);
    put_text(&mut out, reached.store_version.as_str());
    put_text(&mut out, reached.resume_version.as_str());
    out
}

fn decode_reached(value: &[u8]) -> Option<Reached> {
    let mut wire = Wire(value);
    (wire.byte()? == FORM).then_some(())?;
    let synced = wire.byte()? != 0;
    let generation = wire.number()?;
    let store_version = ResourceVersion::from(wire.text()?);
    Some(Reached { generation, store_version, resume_version: wire.text()?.into(), synced })
}

impl Store {
    /// Adds or replaces a unit, including the versions it has reached.
    pub fn put_unit(&self, unit: &StoredUnit) -> Result<(), StoreError> {
        self.with("save a unit", |inner, files| {
            let described = serde_json::to_vec(unit).expect("numbers and JSON");
            let mut batch = files.db.batch();
            batch.insert(&files.units, unit_key(unit.id, DESCRIPTION), described);
            batch.insert(&files.units, unit_key(unit.id, REACHED), encode_reached(&unit.reached));
            batch.remove(&files.units, unit_key(unit.id, FORGOTTEN));
            files.commit(batch)?;
            lock(&inner.forgotten).remove(&unit.id);
            Ok(())
        })
    }
}

/// Marks a unit as forgotten, in the batch that removes its last data.
pub(super) fn remove_unit(files: &Files, batch: &mut fjall::OwnedWriteBatch, unit: UnitId) {
    batch.remove(&files.units, unit_key(unit, DESCRIPTION));
    batch.remove(&files.units, unit_key(unit, REACHED));
    batch.insert(&files.units, unit_key(unit, FORGOTTEN), [FORM]);
}

/// Reads the units, and the ids of forgotten units.
pub(super) fn units(files: &Files) -> Result<(Vec<StoredUnit>, HashSet<UnitId>), Fault> {
    let mut units: Vec<StoredUnit> = Vec::new();
    let mut forgotten = HashSet::new();
    for entry in files.units.iter() {
        let (key, value) = entry.into_inner()?;
        let bad = || Fault::corrupt(files.units.path(), format!("the unit {key:02x?} is unreadable"));
        let (id, part) = key.split_first_chunk::<4>().ok_or_else(bad)?;
        let id = UnitId(u32::from_be_bytes(*id));
        match part {
            // the keys of a unit are sorted in this order
            [DESCRIPTION] => {
                let described: StoredUnit = serde_json::from_slice(&value).map_err(|_| bad())?;
                units.push(StoredUnit { id, ..described });
            }
            [FORGOTTEN] => drop(forgotten.insert(id)),
            [REACHED] => {
                let reached = decode_reached(&value).ok_or_else(bad)?;
                if let Some(unit) = units.last_mut().filter(|unit| unit.id == id) {
                    unit.reached = reached;
                }
            }
            _ => return Err(bad()),
        }
    }
    Ok((units, forgotten))
}

impl Store {
    /// Adds or replaces readers, atomically. Removes their coalesced entries that are not in [`StoredReader::compacted`].
    pub fn put_readers(&self, readers: &[StoredReader]) -> Result<(), StoreError> {
        self.with("save the readers", |inner, files| {
            let mut batch = files.db.batch();
            for reader in readers {
                batch.insert(&files.readers, reader.name.as_bytes(), encode_reader(reader));
            }
            files.commit(batch)?;
            inner.sealer.wrote(readers);
            readers.iter().try_for_each(|reader| forget_all_but(inner, files, &reader.name, &reader.compacted))
        })
    }

    /// Removes a reader and its coalesced records.
    pub fn remove_reader(&self, name: &str) -> Result<(), StoreError> {
        self.with("forget a reader", |inner, files| {
            inner.sealer.remove(&inner.dir, name)?;
            let mut batch = files.db.batch();
            batch.remove(&files.readers, name.as_bytes());
            files.commit(batch)?;
            forget_all_but(inner, files, name, &RoaringTreemap::new())
        })
    }
}

pub(super) fn readers(files: &Files) -> Result<Vec<StoredReader>, Fault> {
    let mut readers = Vec::new();
    for entry in files.readers.iter() {
        let (key, value) = entry.into_inner()?;
        let reader = std::str::from_utf8(&key).ok().and_then(|name| decode_reader(name, &value));
        let name = String::from_utf8_lossy(&key);
        let what = || format!("the position of the reader {name:?} is unreadable");
        readers.push(reader.ok_or_else(|| Fault::corrupt(files.readers.path(), what()))?);
    }
    Ok(readers)
}

pub(super) fn encode_reader(reader: &StoredReader) -> Vec<u8> {
    let mut out = vec![FORM, WITH_PENDING];
    put_number(&mut out, reader.position.0);
    put_number(&mut out, reader.attached.len() as u64);
    for unit in &reader.attached {
        put_number(&mut out, unit.0.into());
    }
    for positions in [&reader.pending, &reader.given_up] {
        put_number(&mut out, positions.serialized_size() as u64);
        positions.serialize_into(&mut out).expect("a Vec takes everything");
    }
    out
}

fn decode_reader(name: &str, value: &[u8]) -> Option<StoredReader> {
    let mut wire = Wire(value);
    (wire.byte()? == FORM).then_some(())?;
    let has_pending = wire.byte()? != 0;
    let position = Sequence(wire.number()?);
    let mut attached = BTreeSet::new();
    for _ in 0..wire.number()? {
        attached.insert(UnitId(u32::try_from(wire.number()?).ok()?));
    }
    let pending = if has_pending { positions(&mut wire)? } else { RoaringTreemap::new() };
    let (name, given_up) = (name.to_owned(), positions(&mut wire)?);
    Some(StoredReader { name, position, pending, attached, given_up, compacted: RoaringTreemap::new() })
}

fn positions(wire: &mut Wire<'_>) -> Option<RoaringTreemap> {
    let len = usize::try_from(wire.number()?).ok()?;
    RoaringTreemap::deserialize_from(wire.bytes(len)?).ok()
}
