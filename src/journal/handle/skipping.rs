//! Skipping of records that are delivered already.

use std::{collections::BTreeMap, num::NonZeroU64};

use roaring::RoaringTreemap;

use super::{AfterError, Journal};
use crate::journal::{
    ReaderId, Record, Sequence, UnitId,
    store::StoreError,
    timeline::{OutOfReach, UnitVersion, number},
};

/// Number of records that are looked at together.
const CHUNK: usize = 1_024;

impl Journal {
    /// Acknowledges the waiting records of a named reader that another process has delivered: for each unit, the changes up to a version,
    /// but not those of which `is_open` holds. Keeps a coalesced record that contains a later change. Records in flight stay in flight.
    /// Returns the number of skipped records. Has no effect on a reader without a saved state. Blocks on the disk.
    pub fn skip_to(
        &self,
        reader: ReaderId,
        versions: &BTreeMap<UnitId, UnitVersion>,
        is_open: &dyn Fn(&Record) -> bool,
    ) -> Result<u64, StoreError> {
        let Some(disk) = self.inner.disk() else { return Ok(0) };
        let mut until = BTreeMap::new();
        for (unit, version) in versions {
            until.extend(self.until(*unit, *version)?.map(|position| (*unit, (position, version.version))));
        }
        let last = until.values().map(|(position, _)| *position).max().unwrap_or_default();
        let waits = self.inner.with(reader, |reader| Some((reader.name()?.to_owned(), reader.pending_until(last))));
        let Some((name, waits)) = waits else { return Ok(0) };
        let is_covered = |record: &Record| {
            until.get(&record.unit).is_some_and(|(position, version)| {
                record.sequence <= *position && is_up_to(record, *version) && !is_open(record)
            })
        };
        let mut skipped = 0;
        for positions in waits.chunks(CHUNK) {
            let records = disk.store.load_for(&name, positions)?;
            let covered = records.iter().filter(|record| is_covered(record)).map(|record| record.sequence.0);
            let covered: RoaringTreemap = covered.collect();
            if !covered.is_empty() {
                skipped += self.inner.with(reader, |reader| reader.skip(&covered));
            }
        }
        if skipped > 0 {
            self.call_for_save();
        }
        Ok(skipped)
    }

    /// Returns the last position at which a unit has no change after a version; `None` if it is not known.
    fn until(&self, unit: UnitId, version: UnitVersion) -> Result<Option<Sequence>, StoreError> {
        let mut found = self.after(unit, version);
        if let Err(AfterError::OutOfReach(OutOfReach::Future)) = found
            && let Some(latest) = self.latest(unit).filter(|latest| latest.epoch == version.epoch)
        {
            found = self.after(unit, latest);
        }
        match found {
            Ok(position) => Ok(Some(position)),
            Err(AfterError::OutOfReach(_)) => Ok(None),
            Err(AfterError::Store(error)) => Err(error),
        }
    }
}

/// Returns true if a record has no change after a version. A coalesced record may be at the position of an earlier change.
fn is_up_to(record: &Record, version: NonZeroU64) -> bool {
    record.object().is_none_or(|object| number(object.resource_version()).is_some_and(|own| own <= version))
}
