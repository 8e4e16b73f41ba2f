//! State of an earlier run in the state directory. The units of that run continue from their saved caches.
//!
//! A unit whose spec is unchanged keeps its id. Its cache is readable at once, its watch resumes at the saved version, and handlers
//! continue at their positions. After discovery, units that differ from the configuration are replaced or retired, as in a reload.
//!
//! After a crash during a replacement, both the old units and the new unit are stored. The new unit continues if its whole seed is
//! stored ([`Description::complete`]), otherwise the old units continue.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};
use tracing::{debug, error, info, warn};

use super::{
    conductor::Conductor,
    options,
    plan::{UnitSpec, reflector},
    reconcile::First,
    state::Unit,
};
use crate::{
    change::Cause,
    config::Config,
    indexer::FirstList,
    informer::Seed,
    journal::{
        Journal, UnitId,
        store::{Recovered, StoreError, StoredUnit},
    },
    mutex::lock,
};

/// Stored description of a unit, from which a later run recreates the unit.
#[derive(Debug, Serialize, Deserialize)]
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

/// Stores the description of a unit for a later run. `complete` is true if the seed of the unit is stored too, or is empty.
pub(super) fn describe(
    journal: &Journal,
    unit: UnitId,
    (spec, first): (&UnitSpec, First),
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

impl Conductor {
    /// Restores the units of an earlier run, before anything runs. Reads all objects, so it blocks the thread.
    ///
    /// # Errors
    /// Fails if the objects cannot be read.
    pub(super) fn restore(&self, recovered: &Recovered) -> Result<(), String> {
        let journal = &self.shared.journal;
        let known: BTreeSet<String> = recovered.readers.iter().map(|reader| reader.name.clone()).collect();
        let config = Arc::clone(&self.lock().config);
        let mut described = Vec::new();
        for stored in &recovered.units {
            match serde_json::from_value::<Description>(stored.description.clone()) {
                Ok(description) => described.push((stored, description)),
                Err(error) => {
                    error!(unit = stored.id.0, %error, "cannot read a unit in the state directory; its objects are listed again");
                    journal.retire_unit(stored.id);
                }
            }
        }
        let replaced: BTreeSet<u32> = described
            .iter()
            .filter(|(stored, description)| stored.retired.is_none() && description.complete)
            .flat_map(|(_, description)| description.heir_of.iter().copied())
            .collect();
        let (units, mut objects) = (described.len(), 0);
        for (stored, description) in described {
            let counts = description.complete && !replaced.contains(&stored.id.0);
            let restored = self.restore_unit(stored, description, counts, &config, &known);
            objects += restored.map_err(|error| error.to_string())?;
        }
        for name in journal.dormant_readers() {
            warn!(handler = name, "the handler is no longer configured: its undelivered events are dropped");
            journal.forget_reader(&name);
        }
        let mut state = self.lock();
        state.next_unit = journal.next_unit().0;
        self.show(&state);
        drop(state);
        if units > 0 {
            info!(
                units,
                objects,
                clean = recovered.clean,
                journal = journal.id(),
                "restored the state of the last run"
            );
        }
        Ok(())
    }

    /// Restores a unit, and returns the number of its objects.
    fn restore_unit(
        &self,
        stored: &StoredUnit,
        description: Description,
        counts: bool,
        config: &Config,
        known: &BTreeSet<String>,
    ) -> Result<usize, StoreError> {
        let (id, journal) = (stored.id, &self.shared.journal);
        let first = description.first(stored.reached.synced);
        let mut spec = description.spec;
        spec.reflector = reflector(config, config.resources.get(&spec.entry).unwrap_or(&spec.options));
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
        let terms = (stored.terms, stored.retired);
        let moves = self.router.restore_unit(id, spec.info(), unit_options, terms, known);
        if stored.retired.is_some() {
            return Ok(0);
        }
        if !counts {
            self.router.remove_unit(id);
            return Ok(0);
        }
        let mut objects = Vec::new();
        journal.objects(id, &mut |object| objects.extend(gate.pass_cached(object)))?;
        let count = objects.len();
        debug!(
            resource = %spec.resource, namespace = spec.namespace, objects = count,
            version = %stored.reached.store_version,
            "restored a unit"
        );
        let seed = match first {
            First::Done => Seed::Resume {
                objects,
                store_version: stored.reached.store_version.clone(),
                resume_version: stored.reached.resume_version.clone(),
                saved: true,
            },
            First::Initial { .. } => Seed::Relist { objects, first_list: FirstList::default() },
            First::Compared(cause) => {
                Seed::Relist { objects, first_list: FirstList { cause, bodies: unit_options.cached, complete: false } }
            }
        };
        let mut state = self.lock();
        let kept = state.types.entry(spec.type_name()).or_default();
        kept.settled = true;
        kept.late = stored.terms.late;
        let unit = Unit { saved: true, ..self.unit(id, spec, first, options, &kept.siblings, Some(seed)) };
        kept.versions.insert(unit.spec.entry.clone(), unit.spec.resource.clone());
        kept.units.push(unit);
        kept.moves.extend(moves.into_iter().map(|asked| (id, asked)));
        Ok(count)
    }
}
