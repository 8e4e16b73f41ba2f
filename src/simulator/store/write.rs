//! Create, update, patch and delete, with the API server's rules.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    super::{ApiError, patch::PatchKind, types::TypeInfo},
    HistoryKind, RawObject, SimulatorStore, Stored, TypeId, fields, scale,
};
use crate::object::ObjectKey;

/// Part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Whole object with the status, for writes from within the process.
    Whole,
    /// Whole object, but not the status if it is a subresource.
    Main,
    /// Only the status.
    Status,
    /// Only the number of replicas. The written object is a `Scale`.
    Scale,
}

impl Part {
    /// Returns the name of the subresource that a client writes; `None` for the object itself.
    fn subresource(self) -> Option<&'static str> {
        match self {
            Self::Whole | Self::Main => None,
            Self::Status => Some("status"),
            Self::Scale => Some("scale"),
        }
    }
}

/// Writer and time of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteContext<'a> {
    /// Current time in RFC 3339 with seconds.
    pub(crate) time: &'a str,
    pub(crate) manager: &'a str,
    pub(crate) part: Part,
}

/// Preconditions of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

/// Result of a deletion.
#[derive(Clone, Debug)]
pub enum Deletion {
    /// The object is deleted; this is its last state.
    Done(Arc<Stored>),
    /// Finalizers hold the object; it is marked for deletion.
    Waiting(Arc<Stored>),
}

impl SimulatorStore {
    /// Creates an object in `namespace` (empty for a cluster-scoped type).
    pub(crate) fn create(
        &mut self,
        id: TypeId,
        namespace: &str,
        mut object: Value,
        context: &WriteContext<'_>,
    ) -> Result<Arc<Stored>, ApiError> {
        let info = Arc::clone(self.info(id));
        check_envelope_of(&info, namespace, &object)?;
        let metadata = metadata_mut(&mut object)?;
        self.check_is_open(id, namespace, text(metadata, "name").unwrap_or_default())?;
        if text(metadata, "resourceVersion").is_some_and(|version| !version.is_empty()) {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let generated = text(metadata, "generateName").map(str::to_owned);
        if text(metadata, "name").is_none_or(str::is_empty)
            && let Some(prefix) = generated.filter(|prefix| !prefix.is_empty())
        {
            metadata.insert("name".to_owned(), json!(format!("{prefix}{}", self.random.suffix(5))));
        }
        let Some(name) = text(metadata, "name").filter(|name| !name.is_empty()).map(str::to_owned) else {
            let why = "metadata.name: Required value: name or generateName is required";
            return Err(ApiError::invalid(&info, "", why));
        };
        if name.contains(['/', ' ']) || name.len() > 253 {
            let why = "metadata.name: Invalid value: a lowercase RFC 1123 subdomain";
            return Err(ApiError::invalid(&info, &name, why));
        }
        if self.get(id, &ObjectKey::new(namespace, &name)).is_some() {
            return Err(ApiError::already_exists(&info, &name));
        }
        if info.resource.namespaced {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        let uid = self.random.uuid();
        // writes within the process may set the uid, so that an object can refer to an owner that is created later
        let keep_uid = context.part == Part::Whole && text(metadata, "uid").is_some_and(|uid| !uid.is_empty());
        if !keep_uid {
            metadata.insert("uid".to_owned(), json!(uid));
        }
        if context.part != Part::Whole || !metadata.contains_key("creationTimestamp") {
            metadata.insert("creationTimestamp".to_owned(), json!(context.time));
        }
        metadata.remove("deletionTimestamp");
        let managed = metadata.contains_key("managedFields") && context.part == Part::Whole;
        if has_generation(&info, &object) {
            metadata_mut(&mut object)?.insert("generation".to_owned(), json!(1));
        }
        set_defaults(&info, &mut object, context);
        if !managed {
            metadata_mut(&mut object)?.remove("managedFields");
            fields::note(&info, &Value::Null, &mut object, context.manager, None, context.time);
        }
        let created = self.put(id, HistoryKind::Added, &object);
        if info.is_definition() {
            self.establish(id, object, context);
        }
        Ok(created)
    }

    /// Replaces an object. 409 if it has a version other than the current one.
    pub(crate) fn update(
        &mut self,
        id: TypeId,
        key: &ObjectKey,
        object: Value,
        context: &WriteContext<'_>,
    ) -> Result<Arc<Stored>, ApiError> {
        let present = self.present(id, key)?;
        self.replace(id, &present, object, context)
    }

    /// Patches an object. 409 if the patch has a version other than the current one.
    pub(crate) fn patch(
        &mut self,
        id: TypeId,
        key: &ObjectKey,
        patch: Value,
        kind: PatchKind,
        context: &WriteContext<'_>,
    ) -> Result<Arc<Stored>, ApiError> {
        if kind == PatchKind::Apply && context.part.subresource().is_none() && self.get(id, key).is_none() {
            let mut object = patch;
            metadata_mut(&mut object)?.insert("name".to_owned(), json!(key.as_ref().name));
            return self.create(id, key.as_ref().namespace, object, context);
        }
        let present = self.present(id, key)?;
        let object = match context.part {
            Part::Scale => kind.apply(scale::KIND, scale::of(&present.value()), patch)?,
            _ => kind.apply(&self.info(id).resource.kind, present.value(), patch)?,
        };
        self.replace(id, &present, object, context)
    }

    /// Deletes an object; if it has finalizers, only marks it for deletion.
    ///
    /// Deleting a namespace deletes its objects; deleting a definition deletes its objects and its type. On a real server,
    /// controllers do this.
    pub(crate) fn delete(
        &mut self,
        id: TypeId,
        key: &ObjectKey,
        expected: &Preconditions,
        context: &WriteContext<'_>,
    ) -> Result<Deletion, ApiError> {
        let info = Arc::clone(self.info(id));
        let name = key.as_ref().name;
        let present = self.present(id, key)?;
        let object = present.value();
        for (field, expected) in [("uid", &expected.uid), ("resourceVersion", &expected.resource_version)] {
            let found = object["metadata"][field].as_str().unwrap_or_default();
            if expected.as_ref().is_some_and(|expected| expected != found) {
                let why = format!("Precondition failed: {field} in precondition: {expected:?}, in object: {found}");
                return Err(ApiError::conflict(&info, name, &why));
            }
        }
        let deletion = self.delete_present(id, &present, context);
        let gone = self.settle().into_iter().find(|gone| gone.key() == key && info.is_lifecycle());
        Ok(gone.map_or(deletion, Deletion::Done))
    }

    /// Deletes or marks an existing object.
    pub(super) fn delete_present(&mut self, id: TypeId, present: &Arc<Stored>, context: &WriteContext<'_>) -> Deletion {
        let mut object = present.value();
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return Deletion::Waiting(Arc::clone(present));
        }
        if self.info(id).is_lifecycle() {
            return self.terminate(id, object, context);
        }
        if !has_finalizers(&object) {
            let gone = self.remove(id, present.key(), None).expect("the caller has just seen the object");
            return Deletion::Done(gone);
        }
        let metadata = &mut object["metadata"];
        metadata["deletionTimestamp"] = json!(context.time);
        metadata["deletionGracePeriodSeconds"] = json!(0);
        if let Some(generation) = metadata["generation"].as_i64() {
            metadata["generation"] = json!(generation + 1);
        }
        Deletion::Waiting(self.put(id, HistoryKind::Modified, &object))
    }

    /// Returns an object; 404 if it does not exist.
    pub(crate) fn present(&self, id: TypeId, key: &ObjectKey) -> Result<Arc<Stored>, ApiError> {
        let missing = || ApiError::not_found(&self.info(id).resource, key.as_ref().name);
        self.get(id, key).map(Arc::clone).ok_or_else(missing)
    }

    fn replace(
        &mut self,
        id: TypeId,
        present: &Arc<Stored>,
        mut object: Value,
        context: &WriteContext<'_>,
    ) -> Result<Arc<Stored>, ApiError> {
        let info = &Arc::clone(self.info(id));
        let old = present.value();
        let key = present.key().as_ref();
        if context.part == Part::Scale {
            check_envelope([scale::API_VERSION, scale::KIND], Some(key.namespace), &object)?;
            object = scale::applied(old.clone(), object)?;
        }
        check_envelope_of(info, key.namespace, &object)?;
        check_same(info, &old, &mut object, key.name)?;
        confine(info, &old, &mut object, context.part);
        keep_defaults(info, &old, &mut object);
        let spec_changed = has_generation(info, &old) && without_status(&old) != without_status(&object);
        let metadata = metadata_mut(&mut object)?;
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
            copy(field, &old["metadata"], metadata);
        }
        metadata.insert("name".to_owned(), json!(key.name));
        if info.resource.namespaced {
            metadata.insert("namespace".to_owned(), json!(key.namespace));
        }
        if spec_changed {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            metadata.insert("generation".to_owned(), json!(generation));
        }
        // writes within the process may set the writers
        let given = metadata.get("managedFields").filter(|_| context.part == Part::Whole);
        let managed = given.is_some_and(|given| *given != old["metadata"]["managedFields"]);
        if !metadata.contains_key("managedFields") {
            copy("managedFields", &old["metadata"], metadata);
        }
        metadata.insert("resourceVersion".to_owned(), json!(present.version().to_string()));
        if object == old {
            return Ok(Arc::clone(present));
        }
        if !managed {
            let subresource = context.part.subresource();
            fields::note(info, &old, &mut object, context.manager, subresource, context.time);
        }
        let is_marked = old["metadata"].get("deletionTimestamp").is_some();
        if is_marked && !has_finalizers(&object) && !info.is_lifecycle() {
            let last = RawObject::of_value(info, &object);
            let gone = self.remove(id, present.key(), last).expect("the caller has just seen the object");
            self.settle();
            return Ok(gone);
        }
        let stored = self.put(id, HistoryKind::Modified, &object);
        if info.is_definition() {
            self.follow_definition(&old, &object);
        }
        self.settle();
        Ok(stored)
    }

    pub(super) fn put(&mut self, id: TypeId, kind: HistoryKind, object: &Value) -> Arc<Stored> {
        let raw = RawObject::of_value(self.info(id), object).expect("a checked object has metadata");
        self.commit(id, kind, raw)
    }
}

fn text<'a>(metadata: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    metadata.get(name).and_then(Value::as_str)
}

pub(super) fn metadata_mut(object: &mut Value) -> Result<&mut Map<String, Value>, ApiError> {
    let object = object.as_object_mut().ok_or_else(|| ApiError::bad_request("the body is not an object"))?;
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    metadata.as_object_mut().ok_or_else(|| ApiError::bad_request("metadata is not an object"))
}

/// Checks that the body matches the type and the namespace.
fn check_envelope_of(info: &TypeInfo, namespace: &str, object: &Value) -> Result<(), ApiError> {
    let namespace = info.resource.namespaced.then_some(namespace);
    check_envelope([&info.resource.api_version(), &info.resource.kind], namespace, object)
}

/// Checks that the body has this `apiVersion`, this kind and this namespace. Missing values are not checked.
fn check_envelope(type_of: [&str; 2], namespace: Option<&str>, object: &Value) -> Result<(), ApiError> {
    for (field, expected) in ["apiVersion", "kind"].into_iter().zip(type_of) {
        if let Some(found) = object.get(field).and_then(Value::as_str)
            && found != expected
        {
            let message = format!("{field} in the data ({found}) does not match the expected one ({expected})");
            return Err(ApiError::bad_request(message));
        }
    }
    let found = object.pointer("/metadata/namespace").and_then(Value::as_str);
    if let (Some(found), Some(namespace)) = (found, namespace)
        && found != namespace
    {
        let message =
            format!("the namespace of the provided object ({found}) does not match the request ({namespace})");
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

/// Checks that the caller's object has the same name, uid and version as the stored object. Missing values are not checked.
fn check_same(info: &TypeInfo, old: &Value, object: &mut Value, name: &str) -> Result<(), ApiError> {
    let metadata = metadata_mut(object)?;
    if text(metadata, "name").is_some_and(|found| found != name) {
        return Err(ApiError::bad_request("the name of the object does not match the name on the URL"));
    }
    let old = &old["metadata"];
    if let Some(version) = text(metadata, "resourceVersion")
        && !version.is_empty()
        && old["resourceVersion"] != version
    {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(ApiError::conflict(info, name, why));
    }
    if text(metadata, "uid").is_some_and(|uid| !uid.is_empty() && old["uid"] != uid) {
        return Err(ApiError::conflict(info, name, "Precondition failed: UID in precondition does not match"));
    }
    Ok(())
}

/// Restores the fields that this write must not change.
fn confine(info: &TypeInfo, old: &Value, object: &mut Value, part: Part) {
    match (part, object.as_object_mut()) {
        (Part::Main, Some(members)) if info.status => copy("status", old, members),
        (Part::Status, _) => {
            let status = object.get("status").cloned();
            object.clone_from(old);
            if let Some(status) = status {
                object["status"] = status;
            }
        }
        _ => {}
    }
}

/// Copies a member of an object to a map, or removes it from the map if the object lacks it.
pub(super) fn copy(name: &str, from: &Value, to: &mut Map<String, Value>) {
    match from.get(name) {
        Some(value) => to.insert(name.to_owned(), value.clone()),
        None => to.remove(name),
    };
}

fn without_status(object: &Value) -> Vec<(&String, &Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status" | "apiVersion" | "kind")).collect()
}

/// Returns true if the object has a `metadata.generation`: a custom resource, or a built-in object with a `spec`.
fn has_generation(info: &TypeInfo, object: &Value) -> bool {
    !info.typed || object.get("spec").is_some()
}

fn has_finalizers(object: &Value) -> bool {
    object.pointer("/metadata/finalizers").and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty())
}

/// Sets the defaults of a new object: the status, and the conditions of a definition.
fn set_defaults(info: &TypeInfo, object: &mut Value, context: &WriteContext<'_>) {
    if context.part != Part::Whole && info.status {
        object.as_object_mut().map(|object| object.remove("status"));
    }
    let absent = object.get("status").is_none();
    match info.resource.kind.as_str() {
        "Pod" if info.typed && absent => object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        "Namespace" if info.typed => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
            label_with_name(object);
        }
        "CustomResourceDefinition" if info.typed => {
            let stored = TypeInfo::of_definition(object).map(|defined| defined.resource.version);
            object["status"] = json!({
                "conditions": null, "acceptedNames": {"plural": "", "kind": ""},
                "storedVersions": stored.as_slice(),
            });
        }
        _ if info.typed && info.status && absent => object["status"] = json!({}),
        _ => {}
    }
}

/// Restores the fields that the server always keeps in namespaces and definitions.
fn keep_defaults(info: &TypeInfo, old: &Value, object: &mut Value) {
    if !info.is_lifecycle() {
        return;
    }
    for name in ["spec", "status"] {
        if object.get(name).is_none() {
            object[name] = old[name].clone();
        }
    }
    if info.is_namespace() {
        label_with_name(object);
    }
}

fn label_with_name(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].clone();
    if !namespace["metadata"]["labels"].is_object() {
        namespace["metadata"]["labels"] = json!({});
    }
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
}
