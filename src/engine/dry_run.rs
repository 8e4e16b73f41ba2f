//! Dry run of a configuration without a cluster. It finds which events are sent to each handler, and why the other events are not
//! sent. `deltabus test` and `deltabus tail --explain` use dry runs.
//!
//! Two states of an object pass through the same stages as in an engine, with the same options. The routes and rules of the
//! handlers then decide which changes are sent, and the formatters of the handlers write these changes.
//!
//! Facts that only a cluster knows are assumed: [`Assumed`] contains the types, and objects get the values that an API server would
//! fill in. The key of digests is the same in all dry runs.

mod door;
mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::{
    door::{Door, owners},
    state::Pair,
};
use super::{
    handlers::{changes, formatter, rules},
    plan::NamespaceLabels,
};
use crate::{
    change::{Cause, Change},
    cloud_event::{Encoder, Formatter},
    config::{Config, HandlerConfig, TypePattern},
    discovery::{Assumed, Catalog, ObjectType},
    journal::{ChangeKind, ChangeSet, Record, Sequence, UnitId},
    notification::Event,
    object::ResourceType,
    rules::Rules,
};

pub(crate) use state::DryState;

/// Name of the journal of a dry run.
const JOURNAL: &str = "dry-run";
/// Default name of the cluster, the same as in an engine without a kubeconfig.
const CLUSTER: &str = "kubernetes";
/// Reason why nothing is sent to a handler with `enabled = false`.
const DISABLED: &str = "it is not enabled";

/// Handlers of a configuration, ready for a dry run.
#[derive(Debug)]
pub(crate) struct DryRun {
    config: Config,
    lanes: BTreeMap<String, DryHandler>,
}

/// Filter and formatter of a handler's events.
#[derive(Debug)]
struct DryHandler {
    enabled: bool,
    /// Entries whose types the handler takes.
    entries: BTreeSet<String>,
    changes: ChangeSet,
    rules: Rules,
    formatter: Formatter,
}

/// Result of a dry run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DryReport {
    /// Objects in the order of group, kind, namespace and name.
    pub objects: Vec<ObjectReport>,
    /// Types whose plural and scope were guessed, because the types are not built in.
    pub guessed: Vec<ResourceType>,
}

/// Result for one object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectReport {
    /// Kind, namespace and name of the object, as text in the report.
    pub object: String,
    /// Changes of the object, in the order of events. If the list is empty, [`DryOutcome::not_sent`] has the reason.
    pub changes: Vec<ChangeKind>,
    /// Outcome of each handler, by its name.
    pub handlers: BTreeMap<String, DryOutcome>,
}

/// Outcome of a handler for one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DryOutcome {
    /// Events that are sent, one line each; a template may produce several lines.
    pub sent: Vec<String>,
    /// Reasons for events that are not sent.
    pub not_sent: Vec<String>,
}

impl DryRun {
    /// Prepares the handlers of a configuration. `cluster` is the name of the cluster in rules and in conditions of `[redact]`;
    /// the default is the configured name.
    ///
    /// # Errors
    /// Fails, with a message for the user, if the configuration has an error that loading did not find.
    pub(crate) fn new(config: &Config, cluster: Option<&str>) -> Result<Self, String> {
        let cluster = cluster.or(config.cluster.name.as_deref()).unwrap_or(CLUSTER);
        let encoder = Encoder::new(cluster, JOURNAL);
        let lane = |(name, handler): (&String, &HandlerConfig)| {
            let lane = DryHandler::new(config, handler, cluster, &encoder);
            lane.map(|lane| (name.clone(), lane)).map_err(|error| format!("[handlers.{name}]: {error}"))
        };
        let lanes = config.handlers.iter().map(lane).collect::<Result<_, _>>()?;
        let mut config = config.clone();
        cluster.clone_into(&mut config.redact.cluster);
        Ok(Self { config, lanes })
    }

    /// Returns the events that each handler gets when objects change from the states `old` to the states `new`. An object only
    /// in `old` is deleted, and an object only in `new` is added. The labels of namespaces come from the `Namespace` objects in
    /// `old` and `new`.
    ///
    /// # Errors
    /// Fails if `old` or `new` contains an object twice.
    pub(crate) fn run(
        &self,
        mut old: Vec<DryState>,
        mut new: Vec<DryState>,
        time_micros: i64,
    ) -> Result<DryReport, String> {
        let Assumed { catalog, types, guessed } = self.assumed([old.as_slice(), new.as_slice()]);
        for state in old.iter_mut().chain(&mut new) {
            if types.get(&state.object_type()).is_some_and(|resource| resource.namespaced) {
                state.complete_namespace();
            }
        }
        let mut pairs = Pair::all(old, new)?;
        let labels = labels_of_namespaces(&pairs);
        let mut report = DryReport { guessed, ..DryReport::default() };
        let mut sequences = 1..;
        for (number, pair) in (1..).zip(&mut pairs) {
            let newest = pair.states().last().map(DryState::object_type);
            let Some(resource) = newest.and_then(|kind| types.get(&kind)) else { continue };
            pair.complete(number);
            let namespace = if resource.namespaced { pair.key.namespace.as_str() } else { "" };
            let door = Door::find(&self.config, &catalog, resource, namespace, &labels);
            let events = door.and_then(|door| {
                let event = |(change, sequence): (Change, u64)| {
                    let (sequence, old_lost) = (Sequence(sequence), change.lacks_old());
                    let record = Record { sequence, unit: UnitId(0), time_micros, change, old_lost };
                    Event { unit: Arc::clone(&door.info), record }
                };
                let changes = door.changes(pair.old.as_ref(), pair.new.as_ref())?;
                Ok(changes.into_iter().zip(&mut sequences).map(event).collect::<Vec<_>>())
            });
            report.objects.push(self.report(pair.key.to_string(), &events));
        }
        Ok(report)
    }

    /// Returns the types that can be derived from the objects and the configuration.
    fn assumed(&self, sides: [&[DryState]; 2]) -> Assumed {
        let states = || sides.into_iter().flatten();
        // A kind that is namespaced in one version is namespaced in all.
        let group_kind = |state: &DryState| (state.key.group.clone(), state.key.kind.clone());
        let spread: BTreeSet<_> = states().filter(|state| state.has_namespace()).map(group_kind).collect();
        let kinds: BTreeMap<ObjectType, bool> =
            states().map(|state| (state.object_type(), spread.contains(&group_kind(state)))).collect();
        let entries = self.config.resources.values();
        let patterns = entries.flat_map(|entry| entry.patterns.iter().chain(&entry.exclude));
        Assumed::of(&kinds, &patterns.map(TypePattern::pattern).collect::<Vec<_>>())
    }

    fn report(&self, object: String, events: &Result<Vec<Event>, String>) -> ObjectReport {
        let outcome = |lane: &DryHandler| match events {
            Ok(events) => lane.outcome(events),
            Err(why) => {
                let why = if lane.enabled { why.as_str() } else { DISABLED };
                DryOutcome { not_sent: vec![why.to_owned()], ..DryOutcome::default() }
            }
        };
        let handlers = self.lanes.iter().map(|(name, lane)| (name.clone(), outcome(lane))).collect();
        let kind = |event: &Event| ChangeKind::of(&event.record.change);
        ObjectReport { object, changes: events.iter().flatten().map(kind).collect(), handlers }
    }

    /// Explains a change that a running engine has reported. Returns for each handler the reason why the change is not sent,
    /// or `None` if it is sent. `catalog` contains the types of that engine. If an update lacks the previous object, the
    /// rules decide as in an engine that does not know the previous object.
    pub(crate) fn explain(
        &self,
        catalog: &Catalog,
        resource: &ResourceType,
        record: &Record,
    ) -> BTreeMap<&str, Option<String>> {
        let namespace = record.object().map_or("", |object| object.namespace());
        let entries = owners(&self.config, catalog, resource);
        let entry = entries.and_then(|entries| {
            let means = |entry: &&String| {
                let namespaces = self.config.resources.get(*entry).map(|entry| &entry.namespaces);
                namespace.is_empty() || namespaces.is_some_and(|namespaces| namespaces.matches(namespace))
            };
            let entry = entries.iter().find(means).cloned();
            entry.ok_or_else(|| left_out(&entries, namespace))
        });
        let why_not = |lane: &DryHandler| match &entry {
            _ if !lane.enabled => Some(DISABLED.to_owned()),
            Ok(entry) => lane.refuses(entry, record),
            Err(why) => Some(why.clone()),
        };
        self.lanes.iter().map(|(name, lane)| (name.as_str(), why_not(lane))).collect()
    }
}

/// Returns the labels of the namespaces among the objects: the new labels, or the old labels of a deleted namespace.
fn labels_of_namespaces(pairs: &[Pair]) -> NamespaceLabels {
    let is_namespace = |pair: &&Pair| pair.key.group.is_empty() && pair.key.kind == "Namespace";
    let labels = |pair: &Pair| Some((pair.key.name.clone(), pair.states().last()?.labels()));
    pairs.iter().filter(is_namespace).filter_map(labels).collect()
}

/// Returns the reason why an object is left out: no entry of its type includes its namespace.
fn left_out(entries: &[String], namespace: &str) -> String {
    let entries: Vec<_> = entries.iter().map(|entry| format!("[resources.{entry}]")).collect();
    format!("`namespaces` of {} leaves out {namespace}", entries.join(" and of "))
}

impl DryHandler {
    fn new(config: &Config, handler: &HandlerConfig, cluster: &str, encoder: &Encoder) -> Result<Self, String> {
        Ok(Self {
            enabled: handler.enabled,
            entries: config.resources.keys().filter(|entry| handler.takes(entry)).cloned().collect(),
            changes: changes(&handler.options),
            rules: rules(&handler.options, cluster)?,
            formatter: formatter(encoder, handler.options.format, handler.template.as_deref())?,
        })
    }

    /// Returns the reason why the change in `record` is not sent to the handler; `None` if it is sent. `entry` is the entry that
    /// watches the object.
    fn refuses(&self, entry: &str, record: &Record) -> Option<String> {
        if !self.enabled {
            return Some(DISABLED.to_owned());
        }
        if !self.entries.contains(entry) {
            return Some(format!("`resources` does not include {entry:?}"));
        }
        let (change, kind) = (&record.change, ChangeKind::of(&record.change));
        if let Change::Added { cause: Cause::Replay, .. } = change {
            return Some("existing objects are shown only to this stream".to_owned());
        }
        let changes = self.changes;
        if !changes.contains(change) {
            let is_initial = matches!(change, Change::Added { cause: Cause::Initial, .. });
            return Some(match kind {
                ChangeKind::Added if is_initial && changes.has(ChangeSet::ADDED) => {
                    "`initial`: objects that existed before are skipped".to_owned()
                }
                _ if changes.with(ChangeSet::DOWNTIME).contains(change) => {
                    "`catch_up`: changes made while no engine ran are left out".to_owned()
                }
                kind => format!("`on` does not include {:?}", kind.as_str()),
            });
        }
        self.rules.explain(kind, record.old(), record.object()?)
    }

    fn outcome(&self, events: &[Event]) -> DryOutcome {
        let mut outcome = DryOutcome::default();
        for event in events {
            match self.refuses(&event.unit.entry, &event.record).map_or_else(|| self.written(event), Err) {
                Ok(line) => outcome.sent.push(line),
                Err(why) => outcome.not_sent.push(why),
            }
        }
        outcome
    }

    fn written(&self, event: &Event) -> Result<String, String> {
        let mut line = Vec::new();
        let written = self.formatter.line(&mut line, event);
        written.map_err(|error| format!("the event is given up: {error}"))?;
        Ok(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned())
    }
}
