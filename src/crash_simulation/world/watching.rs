//! Watchers that resume at a version: the timeline, and its pages on disk.

use super::*;
use crate::journal::timeline::{OutOfReach, UnitVersion};

/// A watcher that has all changes of a unit up to a position.
pub(super) struct Watcher {
    journal_id: u64,
    unit: UnitId,
    position: Sequence,
    /// Version of the unit at that position.
    version: UnitVersion,
}

impl World<'_> {
    /// Writes the pages of the timeline that are not on disk.
    pub(super) fn save_timeline(&mut self) {
        let process = self.process();
        if process.pages.is_none() {
            let pages = process.journal.timeline.to_save();
            process.pages = Some(pages.clone());
            self.disk.write(Write::Timeline(pages));
        }
    }

    /// Adds a watcher of a random unit that is at the released watermark.
    pub(super) fn add_watcher(&mut self) {
        let Some(number) = self.any_unit() else { return };
        let Process { journal, units, journal_id, .. } = self.process();
        let (unit, position, journal_id) = (units[number].id, journal.released(), *journal_id);
        if let Some(version) = journal.timeline.at(unit, position) {
            self.watchers.push(Watcher { journal_id, unit, position, version });
        }
    }

    /// Checks that no watcher would miss a change if it resumed at its version.
    pub(super) fn check_watchers(&mut self) {
        let Self { process, disk, watchers, hits, fsync, .. } = self;
        let Some(Process { journal, journal_id, .. }) = process else { return };
        watchers.retain(|watcher| watcher.journal_id == *journal_id && journal.terms(watcher.unit).is_some());
        for Watcher { unit, position, version, .. } in watchers {
            let recent = journal.timeline.after(*unit, *version, journal.released());
            let found = match recent {
                Ok(Some(found)) => {
                    hits.add("a version is found in memory");
                    found
                }
                Ok(None) => {
                    let page = disk.now.timeline.values().rev().find(|page| page.floor.precedes(*unit, *version));
                    let Some(found) = page.and_then(|page| page.after(*unit, *version)) else { continue };
                    hits.add("a version is found on disk");
                    found
                }
                // With an interval, versions may be lost with the records.
                Err(OutOfReach::Future) if *fsync != Fsync::Group => continue,
                Err(why) => panic!("{unit:?} at {version:?}: {why}"),
            };
            let later = disk.now.records.range(position.0 + 1..).map(|(_, (record, only))| (record, only.as_deref()));
            let mut missed = later.filter(|(record, only)| {
                let is_change = !matches!(record.change, Change::Unchanged { .. } | Change::Synced { .. });
                record.unit == *unit && only.is_none() && is_change && record.sequence <= found
            });
            let missed = missed.next();
            assert!(
                missed.is_none(),
                "a watcher of {unit:?} at {version:?} resumes after {found:?}: misses {missed:?}"
            );
        }
    }
}
