//! Pages of the timeline. The key is the position directly before the first record of the page.

use std::num::NonZeroU64;

use fjall::OwnedWriteBatch;

use super::{
    Fault, Files, Store, StoreError,
    body::sequence_key,
    read::sequence_of,
    wire::{Wire, put_number},
};
use crate::journal::{
    Sequence, UnitId,
    timeline::{Epoch, Floor, Known, Step, TimelinePage, UnitProgress, UnitVersion},
};

/// Version of the encoding of pages.
const FORM: u8 = 1;

/// Kinds of [`UnitProgress`].
const NOTHING: u8 = 0;
const PARTIAL: u8 = 1;
const REACHED: u8 = 2;
const LOST: u8 = 3;

impl Store {
    /// Adds pages, or replaces those with the same first position.
    pub(crate) fn put_timeline(&self, pages: &[TimelinePage]) -> Result<(), StoreError> {
        self.with("save the timeline", |_, files| {
            let mut batch = files.db.batch();
            for page in pages {
                batch.insert(&files.timeline, sequence_key(page.floor.position.0), encode(page));
            }
            files.commit(batch)
        })
    }

    /// Returns the last page of which `is_before` holds for the floor. It must hold for all pages before one for which it holds. Reads
    /// only some pages.
    pub(crate) fn timeline_page(&self, is_before: &dyn Fn(&Floor) -> bool) -> Result<Option<TimelinePage>, StoreError> {
        self.with("read the timeline", |_, files| {
            let (Some(first), Some(last)) = (files.timeline.first_key_value(), files.timeline.last_key_value()) else {
                return Ok(None);
            };
            let key_of = |key: &[u8]| sequence_of(key).ok_or_else(|| bad(files, key));
            let (mut low, mut high) = (key_of(&first.key()?)?, key_of(&last.key()?)? + 1);
            // Binary search over positions: the pages before `low` are before, those from `high` on are not.
            let mut found = None;
            while low < high {
                let middle = low + (high - low) / 2;
                let Some(entry) = files.timeline.range(sequence_key(middle)..sequence_key(high)).next() else {
                    high = middle;
                    continue;
                };
                let (key, value) = entry.into_inner()?;
                let page = decode(key_of(&key)?, &value).ok_or_else(|| bad(files, &key))?;
                if is_before(&page.floor) {
                    low = page.floor.position.0 + 1;
                    found = Some(page);
                } else {
                    high = middle;
                }
            }
            Ok(found)
        })
    }
}

/// Reads the last page.
pub(super) fn last_page(files: &Files) -> Result<Option<TimelinePage>, Fault> {
    let Some(entry) = files.timeline.last_key_value() else { return Ok(None) };
    let (key, value) = entry.into_inner()?;
    let page = sequence_of(&key).and_then(|position| decode(position, &value));
    page.map(Some).ok_or_else(|| bad(files, &key))
}

/// Removes the pages that have only records before `first`.
pub(super) fn remove_before(files: &Files, batch: &mut OwnedWriteBatch, first: u64) -> Result<(), Fault> {
    // The last page that begins before `first` may reach beyond it.
    for entry in files.timeline.range(..sequence_key(first)).rev().skip(1) {
        batch.remove(&files.timeline, entry.key()?);
    }
    Ok(())
}

fn bad(files: &Files, key: &[u8]) -> Fault {
    Fault::corrupt(files.timeline.path(), format!("the page {key:02x?} of the timeline is unreadable"))
}

fn encode(page: &TimelinePage) -> Vec<u8> {
    let TimelinePage { floor, steps } = page;
    let mut out = Vec::with_capacity(16 + floor.units.len() * 12 + steps.len() * 12);
    out.push(FORM);
    put_number(&mut out, floor.micros.cast_unsigned());
    put_number(&mut out, floor.units.len() as u64);
    for (unit, known) in &floor.units {
        put_number(&mut out, unit.0.into());
        put_version(&mut out, known.version);
        put_number(&mut out, known.followed.map_or(0, |position| position.0 + 1));
    }
    put_number(&mut out, steps.len() as u64);
    let (mut position, mut micros) = (floor.position.0, floor.micros);
    for step in steps {
        put_number(&mut out, step.unit.0.into());
        // Restored steps may overlap, so a position may be before the last one.
        put_signed(&mut out, step.first.0.cast_signed() - position.cast_signed());
        put_number(&mut out, step.last.0 + 1 - step.first.0);
        match step.progress {
            UnitProgress::Nothing => out.push(NOTHING),
            UnitProgress::Partial => out.push(PARTIAL),
            UnitProgress::Reached(version) => {
                out.push(REACHED);
                put_version(&mut out, version);
            }
            UnitProgress::Lost(version) => {
                out.push(LOST);
                put_version(&mut out, version);
            }
        }
        put_number(&mut out, (step.micros - micros).cast_unsigned());
        (position, micros) = (step.last.0, step.micros);
    }
    out
}

fn decode(position: u64, value: &[u8]) -> Option<TimelinePage> {
    let mut wire = Wire(value);
    (wire.byte()? == FORM).then_some(())?;
    let micros = wire.number()?.cast_signed();
    let mut floor = Floor { position: Sequence(position), micros, ..Floor::default() };
    for _ in 0..wire.number()? {
        let unit = UnitId(u32::try_from(wire.number()?).ok()?);
        let version = version(&mut wire)?;
        let followed = wire.number()?.checked_sub(1).map(Sequence);
        floor.units.insert(unit, Known { version, followed });
    }
    let (mut position, mut micros, mut steps) = (position, micros, Vec::new());
    for _ in 0..wire.number()? {
        let unit = UnitId(u32::try_from(wire.number()?).ok()?);
        let first = position.checked_add_signed(signed(&mut wire)?)?;
        let last = first.checked_add(wire.number()?)?.checked_sub(1)?;
        let progress = match wire.byte()? {
            NOTHING => UnitProgress::Nothing,
            PARTIAL => UnitProgress::Partial,
            REACHED => UnitProgress::Reached(version(&mut wire)?),
            LOST => UnitProgress::Lost(version(&mut wire)?),
            _ => return None,
        };
        micros = micros.checked_add(wire.number()?.cast_signed())?;
        position = last;
        steps.push(Step { unit, first: Sequence(first), last: Sequence(last), progress, micros });
    }
    Some(TimelinePage { floor, steps })
}

/// Appends a number that may be negative, small ones in few bytes.
fn put_signed(out: &mut Vec<u8>, number: i64) {
    put_number(out, (number << 1 ^ number >> 63).cast_unsigned());
}

fn signed(wire: &mut Wire<'_>) -> Option<i64> {
    let number = wire.number()?;
    Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
}

fn put_version(out: &mut Vec<u8>, version: UnitVersion) {
    put_number(out, version.version.get());
    put_number(out, version.epoch.0.into());
}

fn version(wire: &mut Wire<'_>) -> Option<UnitVersion> {
    let version = NonZeroU64::new(wire.number()?)?;
    Some(UnitVersion { version, epoch: Epoch(u32::try_from(wire.number()?).ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_survives_encoding() {
        let version = |epoch, version| UnitVersion { epoch: Epoch(epoch), version: NonZeroU64::new(version).unwrap() };
        let units = [
            (UnitId(0), Known { version: version(2, u64::MAX), followed: Some(Sequence(0)) }),
            (UnitId(300), Known { version: version(0, 1), followed: None }),
        ];
        let floor = Floor { position: Sequence(1 << 40), micros: -5, units: units.into() };
        let step = |unit, (first, last): (u64, u64), progress, micros| Step {
            unit: UnitId(unit),
            first: Sequence((1 << 40) + first),
            last: Sequence((1 << 40) + last),
            progress,
            micros,
        };
        let steps = vec![
            step(0, (1, 1), UnitProgress::Reached(version(3, 7)), -5),
            step(2, (2, 9), UnitProgress::Partial, -5),
            step(2, (10, 9), UnitProgress::Reached(version(0, 5)), -5),
            step(2, (10, 12), UnitProgress::Lost(version(0, 6)), -5),
            step(300, (2, 9), UnitProgress::Nothing, 1_800_000_000_000_000),
            step(1, (2, 9), UnitProgress::Reached(version(0, 1 << 63)), 1_800_000_000_000_000),
        ];
        let page = TimelinePage { floor, steps };
        let encoded = encode(&page);
        assert_eq!(decode(1 << 40, &encoded), Some(page));
        for cut in 0..encoded.len() {
            assert_eq!(decode(1 << 40, &encoded[..cut]), None, "cut at {cut}");
        }
    }
}
