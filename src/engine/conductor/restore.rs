//! State of an earlier run in the state directory. The units of that run continue from their saved caches.
//!
//! **Rule:** a start is the start of the last run's units and readers, followed by a reload. So this file only recreates what the
//! last run had:
//!
//! 1. [`LastRun::read`] puts the units into the table of routes. Then each handler is opened, and
//!    [`Router::open`](crate::delivery::router::Router::open) compares its route with the units that it was attached to. The differences
//!    are attachments, as in a reload.
//! 2. [`Conductor::restore`] recreates the units. They make these attachments before they start, from their saved objects. So an attachment is
//!    made even if the API server cannot be reached, or if the unit is replaced and never starts.
//! 3. After the first discovery, the units that differ from the plan are replaced or retired, as in a reload.
//!
//! A unit whose spec is unchanged keeps its id. Its cache is readable at once, its watch resumes at the saved version, and handlers
//! continue after their last acknowledged event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tracing::{debug, error, info, warn};

use super::{Conductor, state::Unit};
use crate::engine::{
    options,
    plan::reconcile::First,
    plan::{UnitSpec, reflector},
};
use crate::{
    change::{Cause, Reached},
    config::Config,
    delivery::router::Router,
    indexer::FirstList,
    informer::Seed,
    journal::{
        Attachment, Journal, UnitId,
        store::{Recovered, StoreError, StoredUnit},
    },
    mutex::lock,
};

/// Stored description of a unit, from which a later run recreates the unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Description {
    #[serde(flatten)]
    spec: UnitSpec,
    /// Set if the unit was created as [`First::Initial`] with `late`.
    late: bool,
    /// Set if the unit was created as [`First::Initial`]: its first list is not compared with cached objects.
    initial: bool,
    /// Units whose objects seed this unit.
    heir_of: Vec<u32>,
    /// Set if the whole seed of the unit is stored.
    complete: bool,
}

impl Description {
    fn first(&self, synced: bool) -> First {
        match synced {
            true => First::Done,
            false if self.initial => First::Initial { late: self.late },
            false => First::Compared(Cause::Downtime),
        }
    }
}

/// Stores the description of a unit for a later run. `complete` is true if the seed of the unit is stored too, or if the unit
/// replaces no other unit.
pub(in crate::engine) fn describe(
    journal: &Journal,
    unit: UnitId,
    spec: &UnitSpec,
    first: First,
    heir_of: &[UnitId],
    complete: bool,
) {
    if journal.is_stored() {
        let description = Description {
            spec: spec.clone(),
            late: matches!(first, First::Initial { late: true }),
            initial: matches!(first, First::Initial { .. }),
            heir_of: heir_of.iter().map(|unit| unit.0).collect(),
            complete,
        };
        let description = serde_json::to_value(description).expect("a description is text, numbers and lists");
        journal.describe_unit(unit, description);
    }
}

/// Stored unit that has not retired, and the units that it replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heir {
    pub(crate) unit: UnitId,
    /// Units whose objects seed this unit.
    pub(crate) of: Vec<UnitId>,
    /// Set if the whole seed of the unit is stored.
    pub(crate) complete: bool,
}

/// Returns the units that continue after a crash during a replacement, when both the old and the new units are stored. The new
/// units continue if the seeds of all of them are stored, otherwise the old units continue.
pub(crate) fn surviving(heirs: &[Heir]) -> BTreeSet<UnitId> {
    let mut usable: BTreeSet<UnitId> = heirs.iter().filter(|heir| heir.complete).map(|heir| heir.unit).collect();
    let heirs_of = |unit: UnitId| heirs.iter().filter(move |heir| heir.of.contains(&unit));
    loop {
        // An old unit continues if one of its heirs is not usable. Then its other heirs are not usable either.
        let is_lost = |heir: &&Heir| {
            let stored = heir.of.iter().filter(|of| heirs.iter().any(|other| other.unit == **of));
            stored.flat_map(|of| heirs_of(*of)).any(|other| !usable.contains(&other.unit))
        };
        let of_usable = heirs.iter().filter(|heir| usable.contains(&heir.unit));
        let lost: BTreeSet<_> = of_usable.filter(is_lost).map(|heir| heir.unit).collect();
        if lost.is_empty() {
            break;
        }
        usable = &usable - &lost;
    }
    let is_replaced = |unit: UnitId| heirs_of(unit).any(|heir| usable.contains(&heir.unit));
    usable.iter().copied().filter(|unit| !is_replaced(*unit)).collect()
}

/// Units and readers of the last run.
pub(in crate::engine) struct LastRun {
    /// Units that continue.
    units: Vec<(StoredUnit, Description)>,
    /// Entries whose units each reader was attached to.
    pub(in crate::engine) attached: BTreeMap<String, BTreeSet<String>>,
    clean: bool,
}

impl LastRun {
    /// Reads the units of the last run, and adds them to the table of routes. Ends the units that do not continue. Call it before
    /// any reader is opened.
    pub(in crate::engine) fn read(recovered: &Recovered, router: &Router) -> Self {
        let journal = &router.journal;
        let mut described = Vec::new();
        for stored in &recovered.units {
            match serde_json::from_value::<Description>(stored.description.clone()) {
                Ok(description) => described.push((stored.clone(), description)),
                Err(error) => {
                    error!(unit = stored.id.0, %error, "cannot read a unit in the state directory; its objects are listed again");
                    journal.retire_unit(stored.id);
                }
            }
        }
        let heirs = described.iter().filter(|(stored, _)| stored.retired.is_none()).map(|(stored, description)| Heir {
            unit: stored.id,
            of: description.heir_of.iter().map(|unit| UnitId(*unit)).collect(),
            complete: description.complete,
        });
        let surviving = surviving(&heirs.collect::<Vec<_>>());
        for (stored, Description { spec, .. }) in &described {
            router.restore_unit(stored, spec.info(), spec.options.options.resync);
            if stored.retired.is_none() && !surviving.contains(&stored.id) {
                router.remove_unit(stored.id);
            }
        }
        let entry = |unit: &UnitId| {
            let (_, description) = described.iter().find(|(stored, _)| stored.id == *unit)?;
            Some(description.spec.entry.clone())
        };
        let readers = recovered.readers.iter();
        let attached = readers.map(|reader| (reader.name.clone(), reader.attached.iter().filter_map(entry).collect()));
        let attached = attached.collect();
        described.retain(|(stored, _)| surviving.contains(&stored.id));
        Self { units: described, attached, clean: recovered.clean }
    }

    /// Returns the entries that the last run watched. Returns `None` if it had not finished its first list of any type. Then the
    /// objects of other types are still initial objects.
    fn entries(&self) -> Option<BTreeSet<String>> {
        let has_listed = self.units.iter().any(|(stored, _)| stored.reached.synced);
        has_listed.then(|| self.units.iter().map(|(_, description)| description.spec.entry.clone()).collect())
    }
}

impl Conductor {
    /// Recreates the units of the last run, before anything runs, and lets them make the attachments of readers. Reads all objects,
    /// so it blocks the thread.
    ///
    /// # Errors
    /// Fails if the objects cannot be read.
    pub(in crate::engine) fn restore(
        &self,
        last: LastRun,
        attachments: Vec<(UnitId, Attachment)>,
    ) -> Result<(), String> {
        let journal = &self.shared.journal;
        let config = Arc::clone(&self.lock().config);
        self.lock().entries_of_last_run = last.entries();
        let (units, clean, mut objects) = (last.units.len(), last.clean, 0);
        for (stored, description) in last.units {
            objects += self.restore_unit(&stored, description, &config).map_err(|error| error.to_string())?;
        }
        for name in journal.dormant_readers() {
            warn!(handler = name, "the handler is no longer configured: its undelivered events are dropped");
            journal.forget_reader(&name);
        }
        let mut state = self.lock();
        state.next_unit = journal.next_unit().0;
        self.show(&state);
        let names: Vec<_> = state.types.keys().cloned().collect();
        drop(state);
        self.queue_attachments(attachments);
        for name in &names {
            if let Err(why) = self.make_attachments_at_rest(name) {
                debug!(resource = %name, %why, "handlers are attached or detached when the journal accepts the events");
            }
        }
        if units > 0 {
            info!(units, objects, clean, journal = journal.id(), "restored the state of the last run");
        }
        Ok(())
    }

    /// Restores a unit, and returns the number of its objects.
    fn restore_unit(
        &self,
        stored: &StoredUnit,
        description: Description,
        config: &Config,
    ) -> Result<usize, StoreError> {
        let (id, journal) = (stored.id, &self.shared.journal);
        let first = description.first(stored.reached.synced);
        let mut spec = description.spec;
        spec.reflector = reflector(config, &spec.options);
        let key = lock(&self.library).key.clone();
        // A unit with other rules is replaced only after discovery. Until then, its objects must follow today's rules.
        let gate = options::gate_of_today(config, &spec.entry, &spec, key.as_ref());
        let options = self.unit_options(id, &spec, stored.terms.late);
        let (gate, (options, unit_options)) = match gate.and_then(|gate| Ok((gate, options?))) {
            Ok(prepared) => prepared,
            Err(error) => {
                error!(unit = id.0, %error, "cannot restore a unit from the state directory; its objects are listed again");
                self.router.remove_unit(id);
                return Ok(0);
            }
        };
        let mut objects = Vec::new();
        journal.objects(id, &mut |object| objects.extend(gate.pass_cached(object)))?;
        let count = objects.len();
        debug!(
            resource = %spec.resource, namespace = spec.namespace, objects = count,
            version = %stored.reached.store_version,
            "restored a unit"
        );
        let Reached { store_version, resume_version, .. } = stored.reached.clone();
        let seed = match first {
            First::Done => Seed::Resume { objects, store_version, resume_version, saved: true },
            First::Initial { .. } => Seed::Relist { objects, version: store_version, first_list: FirstList::default() },
            First::Compared(cause) => {
                let first_list = FirstList { cause, bodies: unit_options.cached, complete: false };
                Seed::Relist { objects, version: store_version, first_list }
            }
        };
        let mut state = self.lock();
        let kept = state.types.entry(spec.type_name()).or_default();
        kept.settled = true;
        kept.late = stored.terms.late;
        let unit = Unit { saved: true, ..self.unit(id, spec, first, options, &kept.siblings, Some(seed)) };
        kept.versions.insert(unit.spec.entry.clone(), unit.spec.resource.clone());
        kept.units.push(unit);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heir(unit: u32, of: &[u32], complete: bool) -> Heir {
        Heir { unit: UnitId(unit), of: of.iter().map(|unit| UnitId(*unit)).collect(), complete }
    }

    #[test]
    fn new_units_continue_once_all_are_complete() {
        let survive = |heirs: &[Heir]| surviving(heirs).into_iter().map(|unit| unit.0).collect::<Vec<_>>();
        let old = heir(1, &[], true);
        assert_eq!(survive(std::slice::from_ref(&old)), [1]);
        assert_eq!(survive(&[old.clone(), heir(2, &[1], false)]), [1]);
        assert_eq!(survive(&[old.clone(), heir(2, &[1], true)]), [2]);
        assert_eq!(survive(&[old.clone(), heir(2, &[1], true), heir(3, &[1], false)]), [1], "its objects are in both");
        assert_eq!(survive(&[old.clone(), heir(2, &[1], true), heir(3, &[1], true)]), [2, 3]);
        let other = heir(5, &[], true);
        assert_eq!(survive(&[old.clone(), other.clone(), heir(6, &[1, 5], true)]), [6]);
        assert_eq!(survive(&[old.clone(), other.clone(), heir(6, &[1, 5], false)]), [1, 5]);
        assert_eq!(survive(&[old.clone(), other, heir(6, &[1, 5], true), heir(7, &[1], false)]), [1, 5]);
        assert_eq!(survive(&[old, heir(2, &[1], true), heir(3, &[2], false)]), [2], "two replacements");
        assert_eq!(survive(&[heir(2, &[1], true)]), [2], "the old unit has retired");
        assert_eq!(survive(&[heir(2, &[1], false)]), [0; 0], "its seed is not whole, so it is listed again");
    }
}
