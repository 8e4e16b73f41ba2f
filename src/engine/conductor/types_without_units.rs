//! Rows for types without units: patterns that match no served type, and types without a matching namespace.

use std::sync::Arc;

use tracing::{error, info, warn};

use super::{Conductor, Fatal, state::State};
use crate::engine::plan::{Outlook, Planned, TypeName, UnitSpec, WaitingReason};
use crate::{
    config::OnMissing,
    discovery::{Resolution, Unmatched},
    registry::{WaitingRows, why_unsynced},
    status::{UnitState, UnitStatus},
};

impl Conductor {
    /// Shows every pattern as waiting, before the server's first answer.
    pub(in crate::engine) fn show_all_waiting(&self, state: &mut State) {
        let config = Arc::clone(&state.config);
        let patterns = config.resources.iter().flat_map(|(entry, resource)| {
            resource.patterns.iter().map(move |pattern| (entry.clone(), pattern.as_str().to_owned()))
        });
        let rows = patterns.map(|(entry, pattern)| {
            let row = Arc::new(UnitStatus::waiting(&entry, &pattern));
            ((entry, pattern), row)
        });
        state.waiting = rows.collect();
        self.show(state);
    }

    /// Shows patterns and types without units, with the reason, and logs each once.
    pub(in crate::engine) fn show_waiting(&self, Outlook { plan, selection, .. }: &Outlook) {
        let mut state = self.lock();
        let mut rows = WaitingRows::new();
        for unmatched in &selection.unmatched {
            self.row_of_pattern(&mut state, unmatched, &mut rows);
        }
        for planned in plan.types.values().flatten() {
            row_of_type(&mut state, planned, &mut rows);
            self.require(&mut state, planned);
        }
        for conflict in &selection.conflicts {
            let (first, second) = (&conflict.first.entry, &conflict.second.entry);
            let told = (second.clone(), format!("conflict {}", conflict.resource));
            if state.told.insert(told) {
                let resource = &conflict.resource;
                error!(%resource, "[resources.{first}] already watches the type: ignored in [resources.{second}]");
            }
        }
        let changed = !rows.keys().eq(state.waiting.keys());
        state.waiting = rows;
        if changed {
            self.show(&state);
        }
    }

    /// Limits the time for which a type delays readiness, if only a wildcard selects the type. Logs once that this time has passed.
    fn require(&self, state: &mut State, planned: &Planned) {
        let limit = planned.by_wildcard.then_some(self.shared.supervision.ready_after);
        let kept = state.types.get(&TypeName::of(&planned.resource));
        for unit in kept.iter().flat_map(|kept| &kept.units).filter(|unit| unit.spec.entry == planned.entry) {
            unit.informer.status.require_for(limit);
            let view = unit.informer.status.lock();
            let Some(why) = why_unsynced(&view).filter(|_| !view.is_required()) else { continue };
            let UnitSpec { entry, resource, namespace, .. } = &unit.spec;
            if state.told.insert((entry.clone(), format!("not required {resource} {namespace:?}"))) {
                warn!(entry, %resource, namespace, why, "ready without this type: it did not sync within [supervision] ready_after");
            }
        }
    }

    fn row_of_pattern(&self, state: &mut State, unmatched: &Unmatched, rows: &mut WaitingRows) {
        let Unmatched { entry, pattern, resolution } = unmatched;
        let config = Arc::clone(&state.config);
        let Some(resource) = config.resources.get(entry) else { return };
        let Some(pattern) = resource.patterns.get(*pattern) else { return };
        let why = resolution.why_not();
        let key = (entry.clone(), pattern.as_str().to_owned());
        let first = state.told.insert(key.clone());
        match resource.options.on_missing {
            OnMissing::Fail if is_certain(resolution) && !self.registry.is_discovered() => {
                let message = format!("[resources.{entry}] match {:?}: {why}", pattern.as_str());
                self.failed.send_replace(Some(Fatal::Missing(message)));
            }
            OnMissing::Warn if is_certain(resolution) => {
                if first {
                    warn!(entry, %pattern, why, "continuing without this type");
                }
                return;
            }
            _ if !first => {}
            _ if matches!(resolution, Resolution::Unwatchable { .. }) => {
                warn!(entry, %pattern, why, "the type cannot be watched");
            }
            _ if matches!(&resolution, Resolution::Missing { suggestions, .. } if !suggestions.is_empty()) => {
                warn!(entry, %pattern, why, "waiting for the type to be served");
            }
            _ => info!(entry, %pattern, why, "waiting for the type to be served"),
        }
        let waiting = || Arc::new(UnitStatus::waiting(entry, pattern.as_str()));
        let row = state.waiting.get(&key).cloned().unwrap_or_else(waiting);
        row.lock().last_error = Some(why);
        rows.insert(key, row);
    }
}

/// Returns true if every group that may serve the type has answered. Otherwise the type may exist, so the engine neither fails nor
/// continues without the type.
fn is_certain(resolution: &Resolution) -> bool {
    match resolution {
        Resolution::Missing { unavailable, .. } | Resolution::Empty { unavailable, .. } => unavailable.is_empty(),
        _ => true,
    }
}

fn row_of_type(state: &mut State, planned: &Planned, rows: &mut WaitingRows) {
    let Some(waiting) = &planned.waiting else { return };
    let (unit_state, why) = match waiting {
        // Not `Waiting`: a row in that state counts as ready.
        WaitingReason::Namespaces => (UnitState::Listing, "the namespaces are not listed yet"),
        WaitingReason::NamespacesForbidden => {
            (UnitState::Forbidden, "namespace_selector needs the right to list and watch namespaces")
        }
        WaitingReason::NoNamespace => (UnitState::Waiting, "no namespace matches"),
    };
    let key = (planned.entry.clone(), planned.resource.qualified_name());
    if state.told.insert(key.clone()) && *waiting != WaitingReason::Namespaces {
        warn!(entry = planned.entry, resource = %planned.resource, why, "the type is watched in no namespace");
    }
    let waiting = || Arc::new(UnitStatus::new(&planned.entry, &planned.resource, None));
    let row = state.waiting.get(&key).cloned().unwrap_or_else(waiting);
    let mut view = row.lock();
    view.state = unit_state;
    view.message = Some(why.to_owned());
    drop(view);
    rows.insert(key, row);
}
