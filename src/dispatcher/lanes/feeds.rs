//! Readers that lead to no handler: they see everything, and what becomes of it is their owner's affair.

use std::sync::Arc;

use super::{Lanes, Route};
use crate::{
    dispatcher::{Event, RouteOptions, UnitInfo},
    journal::{Bounds, ChangeSet, OpenReaderError, ReaderId, ReaderOptions, Record, Start, UnitId},
    mutex::lock,
};

impl Lanes {
    /// Opens a reader of every change of every unit, those included that come later, from now on; unchanged objects and
    /// resyncs aside. It has no name, so that it ends with the process, and is to be closed by [`Lanes::close_feed`].
    ///
    /// # Errors
    /// When the journal opens no reader.
    pub fn open_feed(&self, bounds: Bounds) -> Result<ReaderId, OpenReaderError> {
        let on = RouteOptions::default().on.with(ChangeSet::SYNCED);
        let route = Route::new(&RouteOptions { on, initial: true, ..RouteOptions::default() });
        let mut table = lock(&self.table);
        let id = table.add_lane(route.expect("\"*\" is a glob"));
        let options = ReaderOptions { bounds, interest: table.interest(id), name: None };
        let reader = self.journal.open_reader(Start::Next, options).inspect_err(|_| table.remove_lane(id))?;
        lock(&self.feeds).push((id, reader));
        Ok(reader)
    }

    /// Closes what [`Lanes::open_feed`] opened; another reader has no effect.
    pub fn close_feed(&self, reader: ReaderId) {
        let mut table = lock(&self.table);
        lock(&self.feeds).retain(|(lane, feed)| {
            let is_it = *feed == reader;
            if is_it {
                table.remove_lane(*lane);
                self.journal.close_reader(reader);
            }
            !is_it
        });
    }

    /// Says of records what is known of their units; those of units that are forgotten are left out.
    pub fn events(&self, records: Vec<Record>) -> Vec<Event> {
        lock(&self.table).events(records)
    }

    /// Returns what is known of a unit.
    pub fn unit(&self, unit: UnitId) -> Option<Arc<UnitInfo>> {
        lock(&self.table).unit(unit)
    }
}
