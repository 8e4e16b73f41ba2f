//! Route of a handler: the resources, changes and rules that select its events.

use std::{sync::Arc, time::Duration};

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::{
    journal::{ChangeSet, RecordFilter},
    rules::Rules,
};

/// Selection of the events of a handler, as in `[handlers.*]`.
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
    /// Names of `[resources.*]` entries, globs; `["*"]` is everything.
    pub resources: Vec<String>,
    /// Those in `on` of [`ChangeSet::ADDED`], [`UPDATED`](ChangeSet::UPDATED), [`DELETED`](ChangeSet::DELETED),
    /// [`REMOVED`](ChangeSet::REMOVED) and [`SYNCED`](ChangeSet::SYNCED); others have switches below.
    pub on: ChangeSet,
    /// `initial = "send"`: also objects of the first list, where `on` has added. Skipped ones count as added: the
    /// next event of them is an update or a deletion (I2).
    pub initial: bool,
    /// Also what happened while the process was down, of what `on` has.
    pub catch_up: bool,
    /// A relist redelivers unchanged objects, as updates, where `on` has updated (S-4, D-8).
    pub deliver_unchanged: bool,
    /// How often it takes resync events, where `on` has updated: zero is never, and less than a second is a second
    /// (S-10). Rounded up to a multiple of the unit's own period (S-11).
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
    /// Makes a route; fails for a glob that cannot be read.
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

    /// Lets only what these rules say be on the route.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        let rules = (!rules.is_empty()).then(|| RecordFilter::new(Arc::new(rules)));
        Self { rules, ..self }
    }

    /// Returns whether units of this `[resources.*]` entry are on the route.
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

    /// Returns how many resyncs of a unit with this period make one for this route; zero means that it takes none.
    pub fn resync_every(&self, period: Duration) -> u32 {
        if self.resync.is_zero() || period.is_zero() || !self.changes.has(ChangeSet::RESYNC) {
            return 0;
        }
        let wanted = self.resync.max(RESYNC_MIN).as_nanos();
        u32::try_from(wanted.div_ceil(period.as_nanos())).unwrap_or(u32::MAX)
    }
}

/// Shortest resync period of a handler (S-10).
pub(super) const RESYNC_MIN: Duration = Duration::from_secs(1);
