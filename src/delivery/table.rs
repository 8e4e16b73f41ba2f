//! Table of routes and units; it maps records to readers of the journal.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::route::Route;
use crate::{
    journal::{ChangeSet, Interest, ReaderId, Record, Sequence, TypeNumber, UnitId, UnitInterest, UnitTerms},
    notification::{Event, UnitInfo},
    object::ResourceType,
};

/// Options of a unit that its readers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitOptions {
    /// Set if its type was found after the first discovery. None of its objects existed at the first start, so handlers
    /// that skip initial objects receive its first list too.
    pub late: bool,
    /// Period of its resyncs, `[resources.*] resync`; zero means never (S-10).
    pub resync_period: Duration,
    /// Set if the cache holds bodies: `cache = "full"`.
    pub cached: bool,
}

impl Default for UnitOptions {
    fn default() -> Self {
        Self { late: false, resync_period: Duration::ZERO, cached: true }
    }
}

/// Table of routes, by reader, and of units.
#[derive(Debug, Default)]
pub struct RouteTable {
    routes: BTreeMap<ReaderId, Routed>,
    units: HashMap<UnitId, Unit>,
    /// Types by group and plural: two versions of a type have the same objects.
    types: HashMap<(String, String), TypeNumber>,
    next_type: u32,
}

#[derive(Debug)]
struct Routed {
    /// Name of the reader's handler; `None` for a feed.
    name: Option<String>,
    route: Route,
    /// Units that were running when the reader was opened. The reader gets no events from a unit that has not added it.
    joins: HashSet<UnitId>,
}

#[derive(Debug)]
struct Unit {
    info: Arc<UnitInfo>,
    options: UnitOptions,
    /// Sequence of its last record, if it has ended.
    retired: Option<Sequence>,
}

/// Effect of a new route on running units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rerouted {
    /// Units that have to add the reader.
    pub joins: Vec<UnitId>,
    /// Units that have to remove it.
    pub leaves: Vec<UnitId>,
}

impl RouteTable {
    /// Returns the running units on a route, in order.
    pub fn taken(&self, route: &Route) -> Vec<UnitId> {
        let is_taken = |unit: &Unit| unit.retired.is_none() && route.takes(&unit.info.entry);
        let mut taken: Vec<_> = self.units.iter().filter(|(_, unit)| is_taken(unit)).map(|(id, _)| *id).collect();
        taken.sort_unstable();
        taken
    }

    /// Returns the interest of a route, whose reader receives no events of units in `joins` before they add it.
    pub fn interest_of(&self, route: &Route, joins: &HashSet<UnitId>) -> Interest {
        let taken = self.units.iter().filter(|(_, unit)| route.takes(&unit.info.entry));
        let interest = |(id, unit): (&UnitId, &Unit)| {
            let resync_every = route.resync_every(unit.options.resync_period);
            (*id, UnitInterest { joins: joins.contains(id), resync_every })
        };
        Interest { units: taken.map(interest).collect(), changes: route.changes(), filter: route.filter() }
    }

    /// Adds the route of a reader, with the name of its handler; the units in `joins` must add the reader (S-5).
    pub fn add_route(&mut self, reader: ReaderId, name: Option<String>, route: Route, joins: HashSet<UnitId>) {
        self.routes.insert(reader, Routed { name, route, joins });
    }

    /// Replaces the route of a reader.
    pub fn reroute(&mut self, reader: ReaderId, route: Route) -> Rerouted {
        let Some(before) = self.routes.get(&reader) else { return Rerouted::default() };
        let (had, has) = (self.taken(&before.route), self.taken(&route));
        let joins: Vec<_> = has.iter().copied().filter(|unit| !had.contains(unit)).collect();
        let leaves = had.into_iter().filter(|unit| !has.contains(unit)).collect();
        let routed = self.routes.get_mut(&reader).expect("just seen");
        routed.route = route;
        routed.joins.extend(&joins);
        Rerouted { joins, leaves }
    }

    /// Removes the route of a reader.
    pub fn remove_route(&mut self, reader: ReaderId) {
        self.routes.remove(&reader);
    }

    /// Adds a unit. Returns its terms for the journal, and the readers on whose route it is. Call this before the unit
    /// appends any change.
    pub fn add_unit(&mut self, unit: UnitId, info: UnitInfo, options: UnitOptions) -> (UnitTerms, Vec<ReaderId>) {
        let next = TypeNumber(self.next_type);
        let resource = *self.types.entry(type_of(&info.resource)).or_insert(next);
        self.next_type += u32::from(resource == next);
        let takers = self.readers_where(|routed| routed.route.takes(&info.entry));
        self.units.insert(unit, Unit { info: Arc::new(info), options, retired: None });
        (UnitTerms { resource, late: options.late, cached: options.cached }, takers)
    }

    /// Adds a unit that replaces the units of the entry `before`, like [`RouteTable::add_unit`]. Also returns the
    /// readers that did not read the old units; the unit must add them (S-5).
    pub fn add_successor(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        before: &str,
    ) -> (UnitTerms, Vec<ReaderId>, Vec<ReaderId>) {
        let (terms, takers) = self.add_unit(unit, info, options);
        let mut new = takers.clone();
        new.retain(|reader| !self.routes[reader].route.takes(before));
        for reader in &new {
            self.will_join(*reader, unit);
        }
        (terms, takers, new)
    }

    /// Adds a unit of an earlier run, which has a number and may have ended; returns its readers.
    pub fn restore_unit(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        number: TypeNumber,
        retired: Option<Sequence>,
    ) -> Vec<ReaderId> {
        self.types.insert(type_of(&info.resource), number);
        self.next_type = self.next_type.max(number.0 + 1);
        let (_, takers) = self.add_unit(unit, info, options);
        self.units.get_mut(&unit).expect("just added").retired = retired;
        takers
    }

    /// Returns true if a reader of this entry skips changes made during downtime.
    pub fn skips_downtime(&self, entry: &str) -> bool {
        let mut takers = self.routes.values().filter(|routed| routed.route.takes(entry));
        takers.any(|routed| !routed.route.changes().has(ChangeSet::DOWNTIME))
    }

    /// Records that a unit must add a reader that read none of its events in an earlier run.
    pub fn will_join(&mut self, reader: ReaderId, unit: UnitId) {
        if let Some(routed) = self.routes.get_mut(&reader) {
            routed.joins.insert(unit);
        }
    }

    /// Returns the readers of handlers, with name and changes.
    pub fn handlers(&self) -> impl Iterator<Item = (ReaderId, &str, ChangeSet)> {
        let routes = self.routes.iter();
        routes.filter_map(|(reader, routed)| Some((*reader, routed.name.as_deref()?, routed.route.changes())))
    }

    /// Returns the readers whose route does not include units of an entry.
    pub fn readers_without(&self, entry: &str) -> Vec<ReaderId> {
        self.readers_where(|routed| !routed.route.takes(entry))
    }

    fn readers_where(&self, is_meant: impl Fn(&Routed) -> bool) -> Vec<ReaderId> {
        self.routes.iter().filter(|(_, routed)| is_meant(routed)).map(|(reader, _)| *reader).collect()
    }

    /// Records that a unit appends nothing after `last`. Its description stays, because its last events may still be
    /// waiting.
    pub fn retire_unit(&mut self, unit: UnitId, last: Sequence) {
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.retired = Some(last);
        }
    }

    /// Removes and returns the units that have ended and have no event after `passed`.
    pub fn forget_units(&mut self, passed: Sequence) -> Vec<UnitId> {
        let is_over = |unit: &Unit| unit.retired.is_some_and(|last| last <= passed);
        let forgotten: Vec<_> = self.units.extract_if(|_, unit| is_over(unit)).map(|(unit, _)| unit).collect();
        if !forgotten.is_empty() {
            let units = &self.units;
            self.types.retain(|resource, _| units.values().any(|unit| type_of(&unit.info.resource) == *resource));
            for routed in self.routes.values_mut() {
                routed.joins.retain(|unit| units.contains_key(unit));
            }
        }
        forgotten
    }

    /// Returns the interest of a reader.
    pub fn interest(&self, reader: ReaderId) -> Interest {
        let routed = self.routes.get(&reader);
        routed.map(|routed| self.interest_of(&routed.route, &routed.joins)).unwrap_or_default()
    }

    /// Returns the running types on a reader's route, as `plural.group`, in order.
    pub fn types(&self, reader: ReaderId) -> Vec<String> {
        let Some(Routed { route, .. }) = self.routes.get(&reader) else { return Vec::new() };
        let name = |unit| {
            let ResourceType { group, plural, .. } = &self.units[&unit].info.resource;
            if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") }
        };
        let names: BTreeSet<_> = self.taken(route).into_iter().map(name).collect();
        names.into_iter().collect()
    }

    /// Returns the description of a unit.
    pub fn unit(&self, unit: UnitId) -> Option<Arc<UnitInfo>> {
        self.units.get(&unit).map(|unit| Arc::clone(&unit.info))
    }

    /// Adds to each record the description of its unit. Leaves out records of unknown units, which are a mistake of the
    /// caller.
    pub fn events(&self, records: Vec<Record>) -> Vec<Event> {
        let mut last: Option<(UnitId, &Arc<UnitInfo>)> = None;
        let mut events = Vec::with_capacity(records.len());
        for record in records {
            if last.is_none_or(|(unit, _)| unit != record.unit) {
                last = self.units.get(&record.unit).map(|unit| (record.unit, &unit.info));
            }
            if let Some((_, unit)) = last {
                events.push(Event { unit: Arc::clone(unit), record });
            }
        }
        events
    }
}

fn type_of(resource: &ResourceType) -> (String, String) {
    (resource.group.clone(), resource.plural.clone())
}
