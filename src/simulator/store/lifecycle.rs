//! Life cycle of custom resource definitions and of namespaces. The store does at once what controllers do on a real server.
//!
//! A watch shows the same steps as on a real server. A definition is added without conditions, then its names are accepted, then it
//! is established. A deleted definition or namespace is first marked. Then its content is deleted, and finally the definition or
//! namespace itself.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    super::{ApiError, types::TypeInfo},
    HistoryKind, SimulatorStore, Stored, TypeId,
    write::{Deletion, WriteContext},
};
use crate::object::ObjectKey;

/// Finalizer that a definition has until its objects are deleted.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// A deleted namespace or definition that still has content or finalizers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terminating {
    id: TypeId,
    key: ObjectKey,
    pub(super) holds: Holds,
}

/// Content that must be deleted before the namespace or the definition itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// All objects in the deleted namespace.
    Namespace,
    /// All objects of the type that the definition defines; `None` if the definition was invalid.
    Type(Option<TypeId>),
}

impl SimulatorStore {
    /// Refuses new objects in a namespace, or of a type, that is being deleted.
    pub(super) fn check_is_open(&self, id: TypeId, namespace: &str, name: &str) -> Result<(), ApiError> {
        if self.is_terminating(id) {
            return Err(ApiError::new(405, "create not allowed while custom resource definition is terminating"));
        }
        let closes = |thing: &Terminating| thing.holds == Holds::Namespace && thing.key.as_ref().name == namespace;
        if !namespace.is_empty() && self.terminating.iter().any(closes) {
            return Err(ApiError::namespace_terminating(self.info(id), namespace, name));
        }
        Ok(())
    }

    /// Accepts the names of a new definition, and serves its type.
    pub(super) fn establish(&mut self, id: TypeId, mut definition: Value, context: &WriteContext<'_>) {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "lastTransitionTime": context.time, "reason": reason, "message": message});
        let accepted = condition("NamesAccepted", "True", "NoConflicts", "no conflicts found");
        definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
        for (status, reason) in [("False", "Installing"), ("True", "InitialNamesAccepted")] {
            let established = condition("Established", status, reason, "the initial names have been accepted");
            definition["status"]["conditions"] = json!([accepted, established]);
            self.put(id, HistoryKind::Modified, &definition);
        }
        if let Some(defined) = TypeInfo::of_definition(&definition) {
            self.add_type(defined);
        }
    }

    /// Updates a type after a change of its definition.
    pub(super) fn follow_definition(&mut self, before: &Value, after: &Value) {
        if let (Some(id), Some(info)) = (self.defined_by(before), TypeInfo::of_definition(after)) {
            self.types[id.0].info = Arc::new(info);
        }
    }

    fn defined_by(&self, definition: &Value) -> Option<TypeId> {
        let resource = TypeInfo::of_definition(definition)?.resource;
        self.find(&resource.group, &resource.version, &resource.plural)
    }

    /// Marks a namespace or a definition as terminating, and deletes its content. [`Self::settle`] later removes the marked object.
    pub(super) fn terminate(&mut self, id: TypeId, mut object: Value, context: &WriteContext<'_>) -> Deletion {
        object["metadata"]["deletionTimestamp"] = json!(context.time);
        let (holds, marked) = if self.info(id).is_definition() {
            (Holds::Type(self.defined_by(&object)), self.mark_definition(id, object, context))
        } else {
            object["status"] = json!({"phase": "Terminating"});
            (Holds::Namespace, self.put(id, HistoryKind::Modified, &object))
        };
        let thing = Terminating { id, key: marked.key().clone(), holds };
        let objects = self.content(&thing);
        self.terminating.push(thing);
        for (of, object) in objects {
            self.delete_present(of, &object, context);
        }
        Deletion::Waiting(marked)
    }

    fn mark_definition(&mut self, id: TypeId, mut definition: Value, context: &WriteContext<'_>) -> Arc<Stored> {
        let mut finalizers = definition["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(json!(CLEANUP));
        definition["metadata"]["finalizers"] = Value::Array(finalizers);
        let before = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut mark = |reason: &str, message: &str| {
            let mut conditions = before.clone();
            conditions.push(json!({
                "type": "Terminating", "status": "True", "lastTransitionTime": context.time, "reason": reason,
                "message": message,
            }));
            definition["status"]["conditions"] = Value::Array(conditions);
            self.put(id, HistoryKind::Modified, &definition)
        };
        let begins = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        mark("InstanceDeletionPending", begins);
        mark("InstanceDeletionInProgress", "CustomResource deletion is in progress")
    }

    /// Removes and returns the marked namespaces and definitions that have no content left, and no finalizers except the store's
    /// own.
    pub(super) fn settle(&mut self) -> Vec<Arc<Stored>> {
        let mut gone = Vec::new();
        while let Some(at) = self.terminating.iter().position(|thing| self.is_released(thing)) {
            let Terminating { id, key, holds } = self.terminating.swap_remove(at);
            gone.extend(self.remove(id, &key, None));
            if let Holds::Type(Some(of)) = holds {
                self.types[of.0].removed = true;
            }
        }
        gone
    }

    fn is_released(&self, thing: &Terminating) -> bool {
        let Some(object) = self.get(thing.id, &thing.key) else { return true };
        let finalizers = object.value()["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        let own = usize::from(matches!(thing.holds, Holds::Type(_)));
        finalizers <= own && self.content(thing).is_empty()
    }

    /// Returns the objects that must be deleted before a namespace or a definition.
    fn content(&self, thing: &Terminating) -> Vec<(TypeId, Arc<Stored>)> {
        let mut content = Vec::new();
        for (at, entry) in self.types.iter().enumerate() {
            let is_inside = |object: &&Arc<Stored>| match thing.holds {
                Holds::Namespace => object.key().as_ref().namespace == thing.key.as_ref().name,
                Holds::Type(of) => of == Some(TypeId(at)),
            };
            content.extend(entry.objects.values().filter(is_inside).map(|object| (TypeId(at), Arc::clone(object))));
        }
        content
    }
}
