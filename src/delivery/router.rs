//! Readers of the journal and their routes: readers of handlers, and feeds of event streams.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use super::{
    schedule::EventLoad,
    table::{Route, RouteTable, UnitOptions},
};
use crate::{
    journal::{
        Attachment, AttachmentKind, Bounds, ChangeSet, Journal, OpenReaderError, ReaderId, ReaderOptions, UnitId,
        store::StoredUnit,
    },
    mutex::lock,
    notification::{Event, UnitInfo},
};

/// Table of routes on a journal. It is shared by all code that adds units, handlers and feeds.
#[derive(Clone, Debug)]
pub struct Router {
    /// Journal of the routes.
    pub journal: Journal,
    table: Arc<Mutex<RouteTable>>,
}

impl Router {
    /// Makes a router without routes.
    pub fn new(journal: Journal) -> Self {
        Self { journal, table: Arc::default() }
    }

    /// Locks the table.
    pub fn table(&self) -> MutexGuard<'_, RouteTable> {
        lock(&self.table)
    }

    /// Opens the reader of the handler `name`, or of a feed if `name` is `None`. A new reader gets events that are released from
    /// now on. A handler of the last run continues where that run ended: for its route, this start is a reload. For a handler, also
    /// returns the running units that must add or remove this reader. Until a unit has added it, the reader gets no events of this
    /// unit (S-5).
    ///
    /// # Errors
    /// Fails if the journal cannot open a reader.
    pub fn open(
        &self,
        name: Option<&str>,
        route: Route,
        bounds: Bounds,
    ) -> Result<(ReaderId, Vec<(UnitId, Attachment)>), OpenReaderError> {
        let mut table = self.table();
        let returns = name.is_some_and(|name| self.journal.dormant_readers().iter().any(|known| known == name));
        let attach = if returns { RouteTable::ATTACH_ON_RELOAD } else { route.attach() };
        let (interest, name) = (table.interest(&route, |_| name.is_some()), name.map(str::to_owned));
        let reader = self.journal.open_reader(ReaderOptions { bounds, interest, name: name.clone() })?;
        let attached = self.journal.attached(reader);
        Ok((reader, table.open(reader, name, route, &attached, attach)))
    }

    /// Opens a reader of all changes of all units from now on, including later units. Unchanged objects and resyncs are
    /// left out. The reader ends with the process. Close it with [`Router::close`].
    ///
    /// # Errors
    /// Fails if the journal cannot open a reader.
    pub fn open_feed(&self, bounds: Bounds) -> Result<ReaderId, OpenReaderError> {
        let changes = ChangeSet::ALL.without(ChangeSet::UNCHANGED).without(ChangeSet::RESYNC);
        let route = Route::new(["*"], changes, Duration::ZERO).expect("\"*\" is a glob");
        Ok(self.open(None, route, bounds)?.0)
    }

    /// Replaces route and bounds of a reader, which keeps its waiting events. Returns the units that must add or remove the reader.
    pub fn set_route(&self, reader: ReaderId, route: Route, bounds: Bounds) -> Vec<(UnitId, Attachment)> {
        let mut table = self.table();
        let (interest, attachments) = table.set_route(reader, route);
        self.journal.set_bounds(reader, bounds);
        self.journal.set_interest(reader, &interest);
        attachments
    }

    /// Closes a reader.
    pub fn close(&self, reader: ReaderId) {
        self.table().routes.remove(&reader);
        self.journal.close_reader(reader);
    }

    /// Adds a unit. With `before`, the unit replaces the units of that entry, and has their readers. Returns the attachments that
    /// the unit must make: it adds readers that did not read the entry `before`, and drops readers on whose route it is not. Until
    /// the unit adds a reader, the reader gets no events of the unit (S-5). Call this before the unit appends any change.
    pub fn add_unit(
        &self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        before: Option<&str>,
    ) -> Vec<Attachment> {
        let mut table = self.table();
        let (terms, interests, attachments) = table.add_unit(unit, info, options, before);
        self.journal.add_unit(unit, terms);
        for (reader, interest) in &interests {
            self.journal.set_interest(*reader, interest);
        }
        for leaving in attachments.iter().filter(|asked| asked.kind == AttachmentKind::Detach) {
            self.journal.inherit(leaving.reader, unit);
        }
        attachments
    }

    /// Adds a unit of an earlier run. Call this before any reader is opened: [`Router::open`] compares the route of a reader with
    /// the units that it was attached to.
    pub fn restore_unit(&self, stored: &StoredUnit, info: UnitInfo, resync_period: Duration) {
        let StoredUnit { id, terms, retired, .. } = *stored;
        let options = UnitOptions { late: terms.late, resync_period, cached: terms.cached };
        self.table().restore_unit(id, info, options, terms.resource, retired);
    }

    /// Marks a unit as ended: it appends no more changes. [`Router::forget_units`] removes the unit when none of its events waits
    /// any more.
    pub fn remove_unit(&self, unit: UnitId) {
        self.table().retire_unit(unit, self.journal.retire_unit(unit));
    }

    /// Removes each ended unit after all readers have passed the unit's last event.
    pub fn forget_units(&self) {
        for unit in self.table().forget_units(self.journal.passed()) {
            self.journal.forget_unit(unit);
        }
    }

    /// Reads the next events of a handler, without waiting for more. Empty if no event waits. If the future is dropped before its
    /// end, no event counts as in flight.
    pub async fn read(&self, reader: ReaderId, room: EventLoad) -> Vec<Event> {
        loop {
            let records = self.journal.fetch(reader, room.events, room.bytes).await;
            let mut unknown: Vec<_> = records.iter().map(|record| record.sequence).collect();
            let events = self.table().events(records);
            if events.len() < unknown.len() {
                unknown.retain(|sequence| events.iter().all(|event| event.record.sequence != *sequence));
                tracing::warn!(events = unknown.len(), "did not deliver events of a unit that was removed");
                self.journal.ack_each(reader, &unknown);
            }
            if !events.is_empty() || unknown.is_empty() {
                return events;
            }
        }
    }
}
