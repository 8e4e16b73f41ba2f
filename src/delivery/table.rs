//! Routes of handlers, and the table of routes and units, which maps records to readers of the journal.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use educe::Educe;
use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    change::Cause,
    journal::{
        Attachment, AttachmentKind, ChangeSet, Interest, ReaderId, Record, RecordFilter, Sequence, TypeNumber, UnitId,
        UnitInterest, UnitTerms,
    },
    notification::{Event, UnitInfo},
    object::ResourceType,
    rules::Rules,
};

/// Selection of a handler's events, from `[handlers.*]`.
#[derive(Clone, Debug)]
pub struct Route {
    resources: GlobSet,
    /// Changes on the route.
    pub changes: ChangeSet,
    resync: Duration,
    rules: Option<RecordFilter>,
}

/// Minimum resync period of a handler (S-10).
const RESYNC_MIN: Duration = Duration::from_secs(1);

impl Route {
    /// Makes a route for these changes. It includes all units whose `[resources.*]` entry matches one of the globs. Fails for an
    /// invalid glob. `resync` is the period of the resync events. Zero means never. A shorter period than one second counts as one
    /// second (S-10).
    pub fn new<'a>(
        resources: impl IntoIterator<Item = &'a str>,
        changes: ChangeSet,
        resync: Duration,
    ) -> Result<Self, globset::Error> {
        let mut globs = GlobSetBuilder::new();
        for pattern in resources {
            globs.add(Glob::new(pattern)?);
        }
        Ok(Self { resources: globs.build()?, changes, resync, rules: None })
    }

    /// Restricts the route to changes that these rules accept.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        let rules = (!rules.is_empty()).then(|| RecordFilter::new(Arc::new(rules)));
        Self { rules, ..self }
    }

    /// Returns true if units of this `[resources.*]` entry are on the route.
    pub fn takes(&self, entry: &str) -> bool {
        self.resources.is_match(entry)
    }

    /// Returns n: the route receives every n-th resync of a unit whose resync period is `period`. Zero means no resync. The period
    /// of the route is rounded up to a multiple of the unit's period (S-11).
    fn resync_every(&self, period: Duration) -> u32 {
        if self.resync.is_zero() || period.is_zero() || !self.changes.has(ChangeSet::RESYNC) {
            return 0;
        }
        let wanted = self.resync.max(RESYNC_MIN).as_nanos();
        u32::try_from(wanted.div_ceil(period.as_nanos())).unwrap_or(u32::MAX)
    }

    /// Returns the request that makes a running unit add the reader of this route. If the route includes initial objects, the
    /// reader then gets the unit's objects.
    pub(super) fn attach(&self) -> AttachmentKind {
        AttachmentKind::Attach(self.changes.has(ChangeSet::INITIAL).then_some(Cause::Replay))
    }
}

/// Options of a unit. They determine which events its readers get.
#[derive(Clone, Copy, Debug, Educe, PartialEq, Eq)]
#[educe(Default)]
pub struct UnitOptions {
    /// Set if the unit's type was found after the first discovery. None of the unit's objects existed at the first start, so
    /// handlers that skip initial objects receive the unit's first list too.
    pub late: bool,
    /// Period of the unit's resyncs, `[resources.*] resync`; zero means never (S-10).
    pub resync_period: Duration,
    /// Set if the cache holds bodies: `cache = "full"`.
    #[educe(Default = true)]
    pub cached: bool,
}

/// Table of the readers' routes, and of the units.
#[derive(Debug, Default)]
pub struct RouteTable {
    pub(super) routes: BTreeMap<ReaderId, Routed>,
    units: HashMap<UnitId, Unit>,
    /// Number of types so far. Units with the same group and plural share a [`TypeNumber`], because all versions of a type have
    /// the same objects.
    types: u32,
}

/// Route of a reader.
#[derive(Debug)]
pub(super) struct Routed {
    /// Name of the reader's handler; `None` for a feed.
    pub(super) name: Option<String>,
    pub(super) route: Route,
}

#[derive(Debug)]
struct Unit {
    info: Arc<UnitInfo>,
    options: UnitOptions,
    number: TypeNumber,
    /// Sequence of the unit's last record, if the unit has ended.
    retired: Option<Sequence>,
}

/// Returns the attachments of a reader that had the units in `had`, and whose route now has the units in `has`.
fn attachments(
    reader: ReaderId,
    had: &BTreeSet<UnitId>,
    has: &BTreeSet<UnitId>,
    attach: AttachmentKind,
) -> Vec<(UnitId, Attachment)> {
    let detaches = had.difference(has).map(|unit| (*unit, AttachmentKind::Detach));
    let attaches = has.difference(had).map(|unit| (*unit, attach));
    detaches.chain(attaches).map(|(unit, kind)| (unit, Attachment { reader, kind })).collect()
}

impl RouteTable {
    /// Request to a unit that a changed route has added.
    pub const ATTACH_ON_RELOAD: AttachmentKind = AttachmentKind::Attach(Some(Cause::Reload));

    /// Returns the running units on a route.
    pub fn taken(&self, route: &Route) -> BTreeSet<UnitId> {
        let is_taken = |unit: &Unit| unit.retired.is_none() && route.takes(&unit.info.entry);
        self.units.iter().filter(|(_, unit)| is_taken(unit)).map(|(id, _)| *id).collect()
    }

    /// Returns the interest of a reader in the running units on its route. `attaches` selects the units that the reader has not
    /// been attached to: the reader gets no events of such a unit until the unit adds the reader. `attaches` has no effect on a
    /// unit that is already in the reader's interest.
    pub fn interest(&self, route: &Route, attaches: impl Fn(UnitId) -> bool) -> Interest {
        let interest = |unit: UnitId| {
            let resync_every = route.resync_every(self.units[&unit].options.resync_period);
            (unit, UnitInterest { attaches: attaches(unit), resync_every })
        };
        Interest {
            units: self.taken(route).into_iter().map(interest).collect(),
            changes: route.changes,
            filter: route.rules.clone(),
        }
    }

    /// Adds the route of a reader that was just opened. `had` are the units that the reader is attached to already: those of the last
    /// run, or all units of a feed. Returns the running units that must add or remove the reader. `attach` is the request to units
    /// that the reader is not attached to.
    pub fn open(
        &mut self,
        reader: ReaderId,
        name: Option<String>,
        route: Route,
        had: &BTreeSet<UnitId>,
        attach: AttachmentKind,
    ) -> Vec<(UnitId, Attachment)> {
        let attachments = attachments(reader, had, &self.taken(&route), attach);
        self.routes.insert(reader, Routed { name, route });
        attachments
    }

    /// Replaces the route of a reader. Returns the reader's new interest, and the running units that must add or remove the reader.
    pub fn set_route(&mut self, reader: ReaderId, route: Route) -> (Interest, Vec<(UnitId, Attachment)>) {
        let Some(Routed { name, route: before }) = self.routes.remove(&reader) else { return Default::default() };
        let had = self.taken(&before);
        let interest = self.interest(&route, |unit| !had.contains(&unit));
        (interest, self.open(reader, name, route, &had, Self::ATTACH_ON_RELOAD))
    }

    /// Adds a unit. With `before`, the unit replaces the units of that entry, and has their readers. Returns the unit's terms for the
    /// journal, and the new interests of the readers on whose route it is. Also returns the attachments that the unit must make: it
    /// adds readers that did not read the entry `before` (S-5), and drops readers on whose route it is not. Call this before the
    /// unit appends any change.
    pub fn add_unit(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        before: Option<&str>,
    ) -> (UnitTerms, Vec<(ReaderId, Interest)>, Vec<Attachment>) {
        let type_of = |resource: &ResourceType| (resource.group.clone(), resource.plural.clone());
        let known = self.units.values().find(|other| type_of(&other.info.resource) == type_of(&info.resource));
        let number = known.map_or(TypeNumber(self.types), |known| known.number);
        let entry = info.entry.clone();
        self.restore_unit(unit, info, options, number, None);
        let (mut interests, mut attachments) = (Vec::new(), Vec::new());
        for (reader, Routed { route, .. }) in &self.routes {
            let (had, has) = (before.map(|before| route.takes(before)), route.takes(&entry));
            let kind = match had {
                Some(false) if has => Some(Self::ATTACH_ON_RELOAD),
                Some(true) if !has => Some(AttachmentKind::Detach),
                _ => None,
            };
            attachments.extend(kind.map(|kind| Attachment { reader: *reader, kind }));
            if has {
                interests.push((*reader, self.interest(route, |id| id == unit && kind.is_some())));
            }
        }
        (UnitTerms { resource: number, late: options.late, cached: options.cached }, interests, attachments)
    }

    /// Adds a unit of an earlier run, which already has a number, and may have ended. Call this before any reader is opened.
    pub fn restore_unit(
        &mut self,
        unit: UnitId,
        info: UnitInfo,
        options: UnitOptions,
        number: TypeNumber,
        retired: Option<Sequence>,
    ) {
        self.types = self.types.max(number.0 + 1);
        self.units.insert(unit, Unit { info: Arc::new(info), options, number, retired });
    }

    /// Returns true if at least one reader of this entry skips the changes that were made during downtime.
    pub fn skips_downtime(&self, entry: &str) -> bool {
        let mut routes = self.routes.values().map(|routed| &routed.route);
        routes.any(|route| route.takes(entry) && !route.changes.has(ChangeSet::DOWNTIME))
    }

    /// Marks a unit as ended: it appends nothing after `last`. The table keeps the unit's description, because its last events may
    /// still wait.
    pub fn retire_unit(&mut self, unit: UnitId, last: Sequence) {
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.retired = Some(last);
        }
    }

    /// Removes and returns the units that have ended and have no event after `passed`.
    pub fn forget_units(&mut self, passed: Sequence) -> Vec<UnitId> {
        let is_over = |unit: &Unit| unit.retired.is_some_and(|last| last <= passed);
        self.units.extract_if(|_, unit| is_over(unit)).map(|(unit, _)| unit).collect()
    }

    /// Returns the types of the running units on a reader's route, as `plural.group`, in order.
    pub fn types(&self, reader: ReaderId) -> Vec<String> {
        let Some(Routed { route, .. }) = self.routes.get(&reader) else { return Vec::new() };
        let name = |unit| self.units[&unit].info.resource.qualified_name();
        let names: BTreeSet<_> = self.taken(route).into_iter().map(name).collect();
        names.into_iter().collect()
    }

    /// Returns the description of a unit.
    pub fn unit(&self, unit: UnitId) -> Option<Arc<UnitInfo>> {
        self.units.get(&unit).map(|unit| Arc::clone(&unit.info))
    }

    /// Makes an event of each record, by adding the description of the record's unit. Leaves out records of unknown units.
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
