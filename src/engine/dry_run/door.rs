//! Path from two states of an object to the changes of a unit's cache, through the stages of an engine in
//! order.
//!
//! ```text
//! state ─selectors─▶ a watch event's bytes ─decode, cut─▶ gate ─▶ DeltaFifo ─▶ Indexer ─▶ changes
//! ```

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use super::{DryState, WhyNot};
use crate::{
    change::Change,
    config::Config,
    delta_fifo::{DeltaFifo, QueueOrder},
    discovery::{Catalog, Owned, WantedEntry, identity, select},
    engine::{
        options::{self, Extras},
        plan::{KnownNamespaces, NamespaceLabels, UnitSpec, World, plan},
        redaction::DigestKey,
    },
    indexer::{Indexer, store::EvmapStore},
    informer::InformerOptions,
    list_watch::{PassedOver, WatchEvent, decode::WatchDecoder},
    lister::selector::{FieldSelector, LabelSelector},
    notification::UnitInfo,
    object::{
        Object, ResourceType,
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
    spec: UnitSpec,
    options: InformerOptions,
}

/// Returns the entries that have a type, in any version.
///
/// # Errors
/// Returns the reason if there is none.
pub(super) fn owners(config: &Config, catalog: &Catalog, resource: &ResourceType) -> Result<Vec<String>, WhyNot> {
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
        Some(entry) => WhyNot::Excluded { resource: resource.qualified_name(), entry },
        None => WhyNot::NotWatched(format!("{resource} ({})", resource.api_version())),
    })
}

impl Door {
    /// Finds the unit that shows objects of a type in a namespace; `""` means no namespace. `labels` are the known labels of
    /// namespaces.
    ///
    /// # Errors
    /// Returns the reason if there is none.
    pub(super) fn find(
        config: &Config,
        catalog: &Catalog,
        resource: &ResourceType,
        namespace: &str,
        labels: &NamespaceLabels,
    ) -> Result<Self, WhyNot> {
        let entries = owners(config, catalog, resource)?;
        let owned = |entry: &String| Owned { entry: entry.clone(), pattern: 0, resource: resource.clone() };
        let types: Vec<_> = entries.iter().map(owned).collect();
        let namespaces = KnownNamespaces::Known(labels.clone());
        let world = World { types: &types, namespaces: &namespaces, refused: &BTreeMap::new() };
        let plan = plan(config, world, |entry| options::reflector(config, entry));
        for planned in plan.types.into_values().flatten() {
            if let Some(spec) = planned.units.into_iter().find(|unit| unit.covers(namespace)) {
                return Self::of(spec);
            }
            let is_meant = config
                .resources
                .get(&planned.entry)
                .is_some_and(|entry| entry.namespaces.matches(namespace) && !entry.namespace_selector.is_empty());
            if is_meant {
                let (namespace, known) = (namespace.to_owned(), labels.contains_key(namespace));
                return Err(WhyNot::NamespaceSelector { entry: planned.entry, namespace, known });
            }
        }
        Err(WhyNot::Namespaces { entries, namespace: namespace.to_owned() })
    }

    fn of(spec: UnitSpec) -> Result<Self, WhyNot> {
        let key = Key::new(KEY).map_err(|error| WhyNot::Refused(error.to_string()))?;
        let extras = Extras { key: Some(DigestKey::lasting(key)), ..Extras::default() };
        let packer = Arc::new(Packer::new(Compression::None));
        let options = options::informer(&spec, extras, packer).map_err(WhyNot::Refused)?;
        let (entry, namespace) = (spec.entry.clone(), spec.namespace.clone());
        let info = Arc::new(UnitInfo { entry, resource: spec.resource.clone(), namespace });
        Ok(Self { info, spec, options })
    }

    /// Returns the changes when the second state replaces the first one, which is cached if it is given.
    ///
    /// # Errors
    /// Returns the reason if there are none.
    pub(super) fn changes<'a>(
        &self,
        old: Option<&'a DryState>,
        new: Option<&'a DryState>,
    ) -> Result<Vec<Change>, WhyNot> {
        let shown = |state: Option<&'a DryState>| state.filter(|state| self.selects(state).is_ok());
        let mut cache = Cache::new(&self.options);
        if let Some(old) = shown(old) {
            cache.apply(self.passed("ADDED", old.value())?);
        }
        let events = match (shown(old), shown(new)) {
            (Some(old), Some(new)) if old.is_replaced_by(new) => {
                vec![self.passed("DELETED", old.value())?, self.passed("ADDED", new.value())?]
            }
            (Some(_), Some(new)) => vec![self.passed("MODIFIED", new.value())?],
            (None, Some(new)) => vec![self.passed("ADDED", new.value())?],
            (Some(old), None) => vec![self.passed("DELETED", &last_selected(old, new))?],
            (None, None) => {
                let why = new.or(old).map(|state| self.selects(state));
                return Err(why.and_then(Result::err).unwrap_or(WhyNot::Unchanged));
            }
        };
        let changes: Vec<_> = events.into_iter().flat_map(|event| cache.apply(event)).collect();
        match &changes[..] {
            [] => Err(WhyNot::OptedOut), // hidden before and after
            [Change::Unchanged { .. }] => Err(WhyNot::Unchanged),
            [Change::Refreshed { .. }] => Err(WhyNot::IgnoreChanges(self.spec.entry.clone())),
            _ => Ok(changes),
        }
    }

    /// Checks whether the selectors match an object, like the server.
    fn selects(&self, state: &DryState) -> Result<(), WhyNot> {
        let refused = |error: String| WhyNot::Refused(error);
        let scope = &self.options.scope;
        let object = Object::from_json(state.value().to_string().as_bytes());
        let object = object.map_err(|error| refused(error.to_string()))?;
        let labels = LabelSelector::parse(&scope.labels).map_err(|error| refused(error.to_string()))?;
        let fields = FieldSelector::parse(&scope.fields).map_err(|error| refused(error.to_string()))?;
        if !labels.matches(&object) {
            return Err(WhyNot::Labels(self.spec.entry.clone()));
        }
        if !fields.matches(&object) {
            return Err(WhyNot::Fields(self.spec.entry.clone()));
        }
        Ok(())
    }

    /// Decodes an object as the server sends it, and passes it through the gate.
    fn passed(&self, word: &str, object: &Value) -> Result<WatchEvent, WhyNot> {
        let own = TypeMeta::new(self.info.resource.api_version(), self.info.resource.kind.clone());
        let mut object = object.clone();
        let mut served = own.clone();
        if self.options.scope.metadata_only {
            served = TypeMeta::new("meta.k8s.io/v1", "PartialObjectMetadata");
            object = json!({ "metadata": object["metadata"] });
        }
        object["apiVersion"] = served.api_version.as_str().into();
        object["kind"] = served.kind.as_str().into();
        let plan = Arc::new(self.options.plan.clone().with_type_meta(own));
        let mut decoder = WatchDecoder::new(served, plan, FRAME_MAX);
        let frame = json!({ "type": word, "object": object }).to_string();
        let mut events = Vec::with_capacity(1);
        decoder.push(frame.as_bytes(), &mut events).map_err(|error| WhyNot::Refused(error.to_string()))?;
        match events.pop().map(|event| self.options.gate.pass_event(event)) {
            Some(event @ (WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_))) => Ok(event),
            Some(
                WatchEvent::PassedOver { why: PassedOver::TransformFailed(why), .. } | WatchEvent::Undecodable(why),
            ) => Err(WhyNot::Refused(why)),
            Some(WatchEvent::PassedOver { why: PassedOver::Foreign, .. }) => {
                let entries = vec![self.spec.entry.clone()];
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
                Err(WhyNot::Namespaces { entries, namespace })
            }
            other => Err(WhyNot::Refused(format!("cannot decode the object: {other:?}"))),
        }
    }
}

/// Returns the object that a server reports for a deletion, or for an object that a selector no longer matches: the last
/// state that was sent, with the version of the change.
fn last_selected(old: &DryState, new: Option<&DryState>) -> Value {
    let mut last = old.value().clone();
    if let Some(new) = new {
        last["metadata"]["resourceVersion"] = new.value()["metadata"]["resourceVersion"].clone();
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
