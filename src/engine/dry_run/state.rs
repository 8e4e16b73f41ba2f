//! States of objects in files: pairs of states of one object, and values that an API server would add.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::discovery::ObjectType;

/// Default for a namespaced object without a namespace, as in kubectl.
const NAMESPACE_DEFAULT: &str = "default";
const VERSION: &str = "resourceVersion";

/// One state of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DryState {
    pub(super) value: Value,
    pub(super) key: Key,
}

/// Identity of an object in all versions of its type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Object before and after a change; at least one state exists.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: Key,
    pub(super) old: Option<DryState>,
    pub(super) new: Option<DryState>,
}

impl DryState {
    /// Parses an object.
    ///
    /// # Errors
    /// Fails if `apiVersion`, `kind` or `metadata.name` is missing. Also fails if one of these members, or the namespace, is not a
    /// string.
    pub(crate) fn new(value: Value) -> Result<Self, String> {
        // YAML reads `no` as false.
        let no_text = |member: &str, found: &Value| format!("expected {member} to be text, found {found}");
        let text = |pointer: &str, member: &str| match value.pointer(pointer) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            None | Some(Value::String(_)) => Err(format!("expected a Kubernetes object with {member}")),
            Some(other) => Err(no_text(member, other)),
        };
        let api_version = text("/apiVersion", "`apiVersion`")?;
        let of = ObjectType::new(&api_version, &text("/kind", "`kind`")?);
        let name = text("/metadata/name", "`metadata.name`")?;
        let namespace = match value.pointer("/metadata/namespace") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => return Err(no_text("`metadata.namespace`", other)),
        };
        Ok(Self { key: Key { group: of.group, kind: of.kind, namespace, name }, value })
    }

    pub(super) fn object_type(&self) -> ObjectType {
        ObjectType::new(self.value["apiVersion"].as_str().unwrap_or_default(), &self.key.kind)
    }

    pub(super) fn has_namespace(&self) -> bool {
        !self.key.namespace.is_empty()
    }

    /// Sets the default namespace if the object has none. Call it only for namespaced types.
    pub(super) fn complete_namespace(&mut self) {
        if !self.has_namespace() {
            NAMESPACE_DEFAULT.clone_into(&mut self.key.namespace);
            self.set("namespace", NAMESPACE_DEFAULT);
        }
    }

    /// Returns true if `other` is another object of the same name: both states have a uid, and the uids differ.
    pub(super) fn is_replaced_by(&self, other: &Self) -> bool {
        matches!((self.field("uid"), other.field("uid")), (Some(uid), Some(another)) if uid != another)
    }

    /// Returns the labels.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.value.pointer("/metadata/labels").and_then(Value::as_object);
        let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
        labels.into_iter().flatten().filter_map(text).collect()
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.value["metadata"][name].as_str().filter(|text| !text.is_empty())
    }

    fn set(&mut self, name: &str, text: &str) {
        self.value["metadata"][name] = json!(text);
    }

    fn set_missing(&mut self, name: &str, text: &str) {
        if self.field(name).is_none() {
            self.set(name, text);
        }
    }

    fn without_version(&self) -> Value {
        let mut value = self.value.clone();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove(VERSION);
        }
        value
    }
}

impl Pair {
    /// Pairs the states of each object. Missing namespaces must be filled in first.
    ///
    /// # Errors
    /// Fails if `old` or `new` contains an object twice.
    pub(super) fn all(old: Vec<DryState>, new: Vec<DryState>) -> Result<Vec<Self>, String> {
        let mut pairs: BTreeMap<Key, Self> = BTreeMap::new();
        for (is_new, states) in [(false, old), (true, new)] {
            for state in states {
                let key = state.key.clone();
                let pair = pairs.entry(key.clone()).or_insert_with(|| Self { key, old: None, new: None });
                let side = if is_new { &mut pair.new } else { &mut pair.old };
                if side.replace(state).is_some() {
                    return Err(format!("{} is listed twice", pair.key));
                }
            }
        }
        Ok(pairs.into_values().collect())
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &DryState> {
        self.old.iter().chain(&self.new)
    }

    /// Fills in a uid and a resourceVersion, like an API server. The resourceVersion differs if the states differ.
    pub(super) fn complete(&mut self, number: usize) {
        let uid = self.states().find_map(|state| state.field("uid")).map(str::to_owned);
        let uid = uid.unwrap_or_else(|| format!("00000000-0000-0000-0000-{number:012}"));
        for state in self.old.iter_mut().chain(&mut self.new) {
            state.set_missing("uid", &uid);
        }
        let (Some(old), Some(new)) = (&mut self.old, &mut self.new) else {
            let state = self.old.as_mut().or(self.new.as_mut());
            return state.into_iter().for_each(|state| state.set_missing(VERSION, "1"));
        };
        let differs = old.without_version() != new.without_version();
        old.set_missing(VERSION, "1");
        let version = old.field(VERSION).unwrap_or_default().to_owned();
        new.set_missing(VERSION, &version);
        if differs && new.field(VERSION) == Some(&version) {
            new.set(VERSION, &next(&version));
        }
    }
}

/// Returns a version that differs from `version`. If `version` is a number, returns the next number.
fn next(version: &str) -> String {
    version.parse::<u64>().map_or_else(|_| format!("{version}.next"), |number| number.saturating_add(1).to_string())
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(metadata: &Value, data: &str) -> DryState {
        DryState::new(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data })).unwrap()
    }

    /// Completes two states, and returns their namespaces, uids and versions.
    fn completed(old: Option<DryState>, new: Option<DryState>) -> Vec<String> {
        let [old, new] = [old, new].map(|state| {
            let mut states: Vec<DryState> = state.into_iter().collect();
            states.iter_mut().for_each(DryState::complete_namespace);
            states
        });
        let mut pairs = Pair::all(old, new).unwrap();
        assert_eq!(pairs.len(), 1);
        pairs[0].complete(7);
        let said = |state: &DryState| {
            ["namespace", "uid", VERSION].map(|name| state.field(name).unwrap().to_owned()).join(" ")
        };
        pairs[0].states().map(said).collect()
    }

    #[test]
    fn missing_server_fields_are_filled_in() {
        const MADE: &str = "00000000-0000-0000-0000-000000000007";
        let bare = |data: &str| Some(state(&json!({ "name": "a" }), data));
        let with = |version: &str, data: &str| {
            Some(state(&json!({ "name": "a", "namespace": "n", "uid": "u", "resourceVersion": version }), data))
        };
        assert_eq!(completed(bare("1"), bare("2")), [format!("default {MADE} 1"), format!("default {MADE} 2")]);
        assert_eq!(
            completed(bare("1"), bare("1")),
            [format!("default {MADE} 1"), format!("default {MADE} 1")],
            "one state"
        );
        assert_eq!(completed(None, bare("1")), [format!("default {MADE} 1")]);
        assert_eq!(completed(with("7", "1"), None), ["n u 7"]);
        assert_eq!(completed(with("7", "1"), with("9", "2")), ["n u 7", "n u 9"]);
        assert_eq!(completed(with("7", "1"), with("7", "2")), ["n u 7", "n u 8"], "a file that was copied and edited");
        assert_eq!(completed(with("7", "1"), with("7", "1")), ["n u 7", "n u 7"]);
        let unversioned = Some(state(&json!({ "name": "a", "namespace": "n" }), "2"));
        assert_eq!(completed(with("x", "1"), unversioned), ["n u x", "n u x.next"]);
    }

    #[test]
    fn states_of_one_object_form_a_pair() {
        let named = |version: &str, name: &str| {
            let value = json!({ "apiVersion": version, "kind": "Deployment", "metadata": { "name": name } });
            DryState::new(value).unwrap()
        };
        let old = vec![named("apps/v1", "a"), named("apps/v1", "b")];
        let new = vec![named("apps/v1", "c"), named("apps/v2", "a")];
        let pairs = Pair::all(old, new).unwrap();
        let sides: Vec<_> =
            pairs.iter().map(|pair| (&*pair.key.name, pair.old.is_some(), pair.new.is_some())).collect();
        assert_eq!(sides, [("a", true, true), ("b", true, false), ("c", false, true)]);
        let error = Pair::all(vec![named("apps/v1", "a"), named("apps/v1", "a")], vec![]).unwrap_err();
        assert_eq!(error, "Deployment a is listed twice");
    }

    #[test]
    fn incomplete_objects_are_refused() {
        for (value, missing) in [
            (json!(7), "`apiVersion`"),
            (json!({ "apiVersion": "v1" }), "`kind`"),
            (json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "" } }), "`metadata.name`"),
            (json!({ "apiVersion": "v1", "kind": "Pod", "metadata": [] }), "`metadata.name`"),
        ] {
            assert_eq!(DryState::new(value).unwrap_err(), format!("expected a Kubernetes object with {missing}"));
        }
    }

    #[test]
    fn wrong_member_type_is_reported_with_value() {
        for (name, found) in
            [(json!(5), "5"), (json!(false), "false"), (Value::Null, "null"), (json!(["a"]), "[\"a\"]")]
        {
            let value = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } });
            let expected = format!("expected `metadata.name` to be text, found {found}");
            assert_eq!(DryState::new(value).unwrap_err(), expected);
        }
        let error = DryState::new(json!({ "apiVersion": 1, "kind": "Pod", "metadata": { "name": "a" } })).unwrap_err();
        assert_eq!(error, "expected `apiVersion` to be text, found 1");
    }
}
