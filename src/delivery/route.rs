//! Route of a handler: the resources, changes and rules that select its events.

use std::{sync::Arc, time::Duration};

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    journal::{ChangeSet, RecordFilter},
    rules::Rules,
};

/// Selection of a handler's events, from `[handlers.*]`.
#[derive(Clone, Debug)]
pub struct Route {
    resources: GlobSet,
    changes: ChangeSet,
    resync: Duration,
    rules: Option<RecordFilter>,
}

/// Options of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Globs of `[resources.*]` entries; `["*"]` means all.
    pub resources: Vec<String>,
    /// Kinds of changes in `on`: [`ChangeSet::ADDED`], [`UPDATED`](ChangeSet::UPDATED),
    /// [`DELETED`](ChangeSet::DELETED), [`REMOVED`](ChangeSet::REMOVED) and [`SYNCED`](ChangeSet::SYNCED). The other
    /// kinds have their own fields below.
    pub on: ChangeSet,
    /// `initial = "send"`: deliver objects of the first list, if `on` has added. Skipped objects count as added: their
    /// next event is an update or a deletion (I2).
    pub initial: bool,
    /// Deliver changes made while the process was down, if their kind is in `on`.
    pub catch_up: bool,
    /// Deliver unchanged objects of a relist as updates, if `on` has updated (S-4, D-8).
    pub deliver_unchanged: bool,
    /// Period of the resync events, if `on` has updated. Zero means never; the minimum is one second (S-10). It is
    /// rounded up to a multiple of the unit's own period (S-11).
    pub resync: Duration,
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            resources: vec!["*".to_owned()],
            on: ChangeSet::ADDED.with(ChangeSet::UPDATED).with(ChangeSet::DELETED).with(ChangeSet::REMOVED),
            initial: false,
            catch_up: true,
            deliver_unchanged: false,
            resync: Duration::ZERO,
        }
    }
}

impl Route {
    /// Makes a route; fails for an invalid glob.
    pub fn new(options: &RouteOptions) -> Result<Self, globset::Error> {
        let mut resources = GlobSetBuilder::new();
        for pattern in &options.resources {
            resources.add(Glob::new(pattern)?);
        }
        let switched = [ChangeSet::INITIAL, ChangeSet::UNCHANGED, ChangeSet::RESYNC, ChangeSet::DOWNTIME];
        let mut changes = switched.into_iter().fold(options.on, ChangeSet::without);
        if options.initial && changes.has(ChangeSet::ADDED) {
            changes = changes.with(ChangeSet::INITIAL);
        }
        if options.catch_up {
            changes = changes.with(ChangeSet::DOWNTIME);
        }
        if options.deliver_unchanged && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::UNCHANGED);
        }
        if !options.resync.is_zero() && changes.has(ChangeSet::UPDATED) {
            changes = changes.with(ChangeSet::RESYNC);
        }
        Ok(Self { resources: resources.build()?, changes, resync: options.resync, rules: None })
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

    /// Returns the changes on the route.
    pub fn changes(&self) -> ChangeSet {
        self.changes
    }

    /// Returns its rules, as a filter of records.
    pub fn filter(&self) -> Option<RecordFilter> {
        self.rules.clone()
    }

    /// Returns n if this route receives every n-th resync of a unit with this period; zero means none.
    pub fn resync_every(&self, period: Duration) -> u32 {
        if self.resync.is_zero() || period.is_zero() || !self.changes.has(ChangeSet::RESYNC) {
            return 0;
        }
        let wanted = self.resync.max(RESYNC_MIN).as_nanos();
        u32::try_from(wanted.div_ceil(period.as_nanos())).unwrap_or(u32::MAX)
    }
}

/// Minimum resync period of a handler (S-10).
pub(super) const RESYNC_MIN: Duration = Duration::from_secs(1);
