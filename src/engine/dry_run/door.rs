//! Stages of an engine, in order. They turn two states of an object into the changes of a unit's cache.
//!
//! ```text
//! state ─selectors─▶ a watch event's bytes ─decode, cut─▶ gate ─▶ DeltaFifo ─▶ Indexer ─▶ changes
//! ```

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{DryState, left_out};
use crate::{
    change::Change,
    config::Config,
    delta_fifo::{DeltaFifo, QueueOrder},
    discovery::{Catalog, Owned, WantedEntry, identity, select},
    engine::{
        library::Library,
        options,
        plan::{KnownNamespaces, NamespaceLabels, UnitSpec, plan},
        redaction::DigestKey,
    },
    indexer::{Indexer, store::EvmapStore},
    informer::InformerOptions,
    list_watch::{PassedOver, WatchEvent, decode::WatchDecoder},
    lister::selector::{FieldSelector, LabelSelector},
    notification::UnitInfo,
    object::{
        IGNORE_ANNOTATION, Object, ResourceType,
        packer::{Compression, Packer},
        scan::TypeMeta,
    },
    redact::Key,
    reflector::ReflectorEvent,
};

/// Key of digests in all dry runs; it protects nothing.
const KEY: &[u8] = b"the key of dry runs";
/// Maximum size of an object in bytes.
const FRAME_MAX: usize = 64 << 20;

/// Stages of one unit, from the watch event to the cache.
pub(super) struct Door {
    pub(super) info: Arc<UnitInfo>,
    options: InformerOptions,
}

/// Returns the entries that select a type, in any version.
///
/// # Errors
/// Returns the reason if no entry selects the type.
pub(super) fn owners(config: &Config, catalog: &Catalog, resource: &ResourceType) -> Result<Vec<String>, String> {
    let wanted = config.wanted();
    let owned_by = |wanted: &[WantedEntry]| -> Vec<String> {
        let is_it = |owned: &&Owned| identity(&owned.resource) == identity(resource);
        select(catalog, wanted).owned.iter().filter(is_it).map(|owned| owned.entry.clone()).collect()
    };
    let entries = owned_by(&wanted);
    if !entries.is_empty() {
        return Ok(entries);
    }
    let all: Vec<_> = wanted.into_iter().map(|entry| WantedEntry { exclude: Vec::new(), ..entry }).collect();
    Err(match owned_by(&all).into_iter().next() {
        Some(entry) => format!("`exclude` of [resources.{entry}] matches {}", resource.qualified_name()),
        None => format!("no entry of [resources] selects {resource} ({})", resource.api_version()),
    })
}

impl Door {
    /// Finds the unit that shows objects of a type in a namespace; `""` means no namespace. `labels` are the known labels of
    /// namespaces.
    ///
    /// # Errors
    /// Returns the reason if there is no such unit.
    pub(super) fn find(
        config: &Config,
        catalog: &Catalog,
        resource: &ResourceType,
        namespace: &str,
        labels: &NamespaceLabels,
    ) -> Result<Self, String> {
        let entries = owners(config, catalog, resource)?;
        let owned = |entry: &String| Owned { entry: entry.clone(), pattern: 0, resource: resource.clone() };
        let types: Vec<_> = entries.iter().map(owned).collect();
        let plan = plan(config, &types, &KnownNamespaces::Known(labels.clone()), &BTreeMap::new());
        for planned in plan.types.into_values().flatten() {
            if let Some(spec) = planned.units.into_iter().find(|unit| unit.covers(namespace)) {
                return Self::of(&spec);
            }
            let is_meant = config
                .resources
                .get(&planned.entry)
                .is_some_and(|entry| entry.namespaces.matches(namespace) && !entry.namespace_selector.is_empty());
            if is_meant {
                let entry = planned.entry;
                return Err(if labels.contains_key(namespace) {
                    format!("`namespace_selector` of [resources.{entry}] does not match the labels of {namespace}")
                } else {
                    format!(
                        "[resources.{entry}] has a `namespace_selector`, but the labels of {namespace} are unknown: add \
                         the Namespace itself to the file of the object"
                    )
                });
            }
        }
        Err(left_out(&entries, namespace))
    }

    fn of(spec: &UnitSpec) -> Result<Self, String> {
        let key = Key::new(KEY)?;
        let library = Library { key: Some(DigestKey::lasting(key)), ..Library::default() };
        let packer = Arc::new(Packer::new(Compression::None));
        let options = options::informer(spec, &library, packer)?;
        Ok(Self { info: Arc::new(spec.info()), options })
    }

    /// Returns the changes when `new` replaces `old` in the cache. Without `old`, the cache is empty before the change.
    ///
    /// # Errors
    /// Returns the reason if there are no changes.
    pub(super) fn changes<'a>(
        &self,
        old: Option<&'a DryState>,
        new: Option<&'a DryState>,
    ) -> Result<Vec<Change>, String> {
        const UNCHANGED: &str = "both states are the same";
        let shown = |state: Option<&'a DryState>| state.filter(|state| self.selects(state).is_ok());
        let mut cache = Cache::new(&self.options);
        if let Some(old) = shown(old) {
            cache.apply(self.passed("ADDED", &old.value)?);
        }
        let events = match (shown(old), shown(new)) {
            (Some(old), Some(new)) if old.is_replaced_by(new) => {
                vec![self.passed("DELETED", &old.value)?, self.passed("ADDED", &new.value)?]
            }
            (Some(_), Some(new)) => vec![self.passed("MODIFIED", &new.value)?],
            (None, Some(new)) => vec![self.passed("ADDED", &new.value)?],
            (Some(old), None) => vec![self.passed("DELETED", &last_selected(old, new))?],
            (None, None) => {
                let why = new.or(old).map(|state| self.selects(state));
                return Err(why.and_then(Result::err).unwrap_or_else(|| UNCHANGED.to_owned()));
            }
        };
        let changes: Vec<_> = events.into_iter().flat_map(|event| cache.apply(event)).collect();
        match &changes[..] {
            [] => Err(format!("the annotation {IGNORE_ANNOTATION} hides the object")), // in each state
            [Change::Unchanged { .. }] => Err(UNCHANGED.to_owned()),
            [Change::Refreshed { .. }] => {
                Err(format!("`ignore_changes` of [resources.{}] covers every difference", self.info.entry))
            }
            _ => Ok(changes),
        }
    }

    /// Checks, like the server, that the selectors match an object.
    fn selects(&self, state: &DryState) -> Result<(), String> {
        let scope = &self.options.scope;
        let object = Object::from_json(state.value.to_string().as_bytes()).map_err(|error| error.to_string())?;
        let labels = LabelSelector::parse(&scope.labels).map_err(|error| error.to_string())?;
        let fields = FieldSelector::parse(&scope.fields).map_err(|error| error.to_string())?;
        let option = match (labels.matches(&object), fields.matches(&object)) {
            (true, true) => return Ok(()),
            (false, _) => "labels",
            (true, false) => "fields",
        };
        Err(format!("`{option}` of [resources.{}] does not select the object", self.info.entry))
    }

    /// Decodes an object as the server sends it, and passes it through the gate.
    fn passed(&self, word: &str, object: &Value) -> Result<WatchEvent, String> {
        let own = TypeMeta::new(self.info.resource.api_version(), self.info.resource.kind.clone());
        let mut object = object.clone();
        let served = self.options.scope.served(&own);
        if self.options.scope.metadata_only {
            object = json!({ "metadata": object["metadata"] });
        }
        object["apiVersion"] = served.api_version.as_str().into();
        object["kind"] = served.kind.as_str().into();
        let plan = Arc::new(self.options.plan.clone().with_type_meta(own));
        let mut decoder = WatchDecoder::new(served, plan, FRAME_MAX);
        let frame = json!({ "type": word, "object": object }).to_string();
        let mut events = Vec::with_capacity(1);
        decoder.push(frame.as_bytes(), &mut events).map_err(|error| error.to_string())?;
        match events.pop().map(|event| self.options.gate.pass_event(event)) {
            Some(event @ (WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_))) => Ok(event),
            Some(
                WatchEvent::PassedOver { why: PassedOver::TransformFailed(why), .. } | WatchEvent::Undecodable(why),
            ) => Err(why),
            Some(WatchEvent::PassedOver { why: PassedOver::Foreign, .. }) => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                Err(left_out(std::slice::from_ref(&self.info.entry), namespace))
            }
            Some(WatchEvent::PassedOver { why: PassedOver::TooDeep, .. }) => {
                Err("the object is nested more than 127 levels deep".to_owned())
            }
            other => Err(format!("cannot decode the object: {other:?}")),
        }
    }
}

/// Returns the object that a server reports when an object is deleted or no longer selected: the old state. If there is a new
/// state, the reported object has the resourceVersion of the new state.
fn last_selected(old: &DryState, new: Option<&DryState>) -> Value {
    let mut last = old.value.clone();
    if let Some(new) = new {
        last["metadata"]["resourceVersion"] = new.value["metadata"]["resourceVersion"].clone();
    }
    last
}

/// Queue and cache of a unit that has synced.
struct Cache {
    fifo: DeltaFifo,
    indexer: Indexer,
}

impl Cache {
    fn new(options: &InformerOptions) -> Self {
        let fifo = DeltaFifo::new(QueueOrder::Stream, std::iter::empty(), true).keeping(options.indexer.keep.clone());
        Self { fifo, indexer: Indexer::new(EvmapStore::new(0, Vec::new()), options.indexer.clone()) }
    }

    /// Applies an event and returns the resulting changes.
    fn apply(&mut self, event: WatchEvent) -> Vec<Change> {
        self.fifo.push(match event {
            WatchEvent::Added(object) => ReflectorEvent::Added(object),
            WatchEvent::Modified(object) => ReflectorEvent::Updated(object),
            WatchEvent::Deleted(object) => ReflectorEvent::Deleted(object),
            _ => return Vec::new(),
        });
        let mut changes = Vec::new();
        while let Some(deltas) = self.fifo.pop() {
            let transaction = self.indexer.plan(deltas);
            self.indexer.commit(&transaction);
            self.indexer.publish();
            changes.extend(transaction.changes);
        }
        changes
    }
}
