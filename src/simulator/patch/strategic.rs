//! Strategic merge patches: merge patches that merge some lists element by element.
//!
//! The Go structs of the API server say for each member how it is merged; [`Strategy::of`] has the same rules. The merge keys of
//! `object::merge_key` do not fit here: they are guessed, and include those of lists that a patch replaces. Directives in the patch
//! change the merge: `$patch`, `$retainKeys`, `$setElementOrder/LIST` and `$deleteFromPrimitiveList/LIST`.
//!
//! The result has no directives in unexpected places. On the API server, they are lost when the result is decoded.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::ApiError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder";
const DELETED_ELEMENTS: &str = "$deleteFromPrimitiveList";

const POD_CONTAINERS: &str = "containers initContainers ephemeralContainers";

/// Merge keys of lists: parent members, names of the lists, and the member that identifies an element. The members of an element
/// have the name of the list as parent.
const MERGE_KEYS: [(&str, &str, &str); 14] = [
    ("", "secrets", "name"),
    ("metadata", "ownerReferences", "uid"),
    ("spec", POD_CONTAINERS, "name"),
    ("spec", "volumes imagePullSecrets resourceClaims schedulingGates", "name"),
    ("spec", "hostAliases", "ip"),
    ("spec", "topologySpreadConstraints", "topologyKey"),
    ("spec", "ports", "port"),
    (POD_CONTAINERS, "env", "name"),
    (POD_CONTAINERS, "ports", "containerPort"),
    (POD_CONTAINERS, "volumeMounts", "mountPath"),
    (POD_CONTAINERS, "volumeDevices", "devicePath"),
    ("status", "conditions addresses", "type"),
    ("status", "podIPs hostIPs", "ip"),
    ("status", "resourceClaimStatuses", "name"),
];

/// Way in which a patch changes a member of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Objects are merged; all other values are replaced.
    Default,
    /// The value is replaced, even if it is an object.
    Replace,
    /// Elements of a list of objects are merged with those of the same merge key.
    Keyed(&'static str),
    /// Elements of a list of texts are added.
    Primitives,
}

impl Strategy {
    /// Returns the strategy of the member `name` of the member `parent`, for objects of a built-in kind.
    fn of(kind: &str, parent: &str, name: &str) -> Self {
        match (parent, name) {
            ("status", "conditions") if kind == "CustomResourceDefinition" => return Self::Default,
            ("spec", "selector") if kind == "PodDisruptionBudget" => return Self::Replace,
            ("metadata", "finalizers") | ("spec", "podCIDRs") => return Self::Primitives,
            _ => {}
        }
        let is_in = |names: &str, name| names.split(' ').any(|known| known == name);
        let mut rows = MERGE_KEYS.iter();
        let row = rows.find(|(parents, names, _)| is_in(parents, parent) && is_in(names, name));
        row.map_or(Self::Default, |(.., key)| Self::Keyed(key))
    }
}

/// Applies a strategic merge patch to an object of a built-in kind. A malformed patch has the status code of the API server.
pub fn strategic_merge(kind: &str, object: Value, patch: Value) -> Result<Value, ApiError> {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            Merge { kind }.merge_objects(object, patch, "").map(Value::Object)
        }
        _ => Err(ApiError::bad_request("a strategic merge patch is an object")),
    }
}

/// Merge of a patch into an object of one kind.
#[derive(Clone, Copy)]
struct Merge<'a> {
    kind: &'a str,
}

impl Merge<'_> {
    /// Merges the member `parent`.
    fn merge_objects(
        self,
        mut live: Map<String, Value>,
        mut patch: Map<String, Value>,
        parent: &str,
    ) -> Result<Map<String, Value>, ApiError> {
        match patch.remove(DIRECTIVE) {
            None => {}
            Some(directive) if directive == "replace" => return Ok(plain_members(patch)),
            Some(directive) if directive == "delete" => return Ok(Map::new()),
            Some(other) => return Err(unknown_directive(&other)),
        }
        retain_keys(&mut live, &mut patch)?;
        for (list, order) in take_lists(&mut patch, ELEMENT_ORDER)? {
            let found = patch.remove(&list);
            self.merge_lists(&mut live, list, found, Some(&order), parent)?;
        }
        for (list, deleted) in take_lists(&mut patch, DELETED_ELEMENTS)? {
            if let Some(Value::Array(elements)) = live.get_mut(&list) {
                let deleted: HashSet<_> = deleted.iter().collect();
                elements.retain(|element| !deleted.contains(element));
            }
        }
        for (name, value) in patch {
            let strategy = Strategy::of(self.kind, parent, &name);
            match (live.get_mut(&name), value) {
                (Some(Value::Array(_)), value @ Value::Array(_)) => {
                    self.merge_lists(&mut live, name, Some(value), None, parent)?;
                }
                (Some(Value::Object(below)), Value::Object(patch)) if strategy != Strategy::Replace => {
                    *below = self.merge_objects(std::mem::take(below), patch, &name)?;
                }
                (_, value) => set(&mut live, name, value),
            }
        }
        Ok(live)
    }

    /// Merges the list `name` of the member `parent`, and sorts its elements: first as in `order`, or else as in the patch.
    fn merge_lists(
        self,
        live: &mut Map<String, Value>,
        name: String,
        patch: Option<Value>,
        order: Option<&[Value]>,
        parent: &str,
    ) -> Result<(), ApiError> {
        let key = match Strategy::of(self.kind, parent, &name) {
            Strategy::Keyed(key) => Some(key),
            Strategy::Primitives => None,
            Strategy::Default | Strategy::Replace => {
                if let Some(patch) = patch {
                    set(live, name, patch);
                }
                return Ok(());
            }
        };
        let patch = match patch {
            None => Vec::new(),
            Some(Value::Array(patch)) => patch,
            Some(_) => return Err(ApiError::new(500, format!("{name} in the patch is not a list"))),
        };
        let elements = match live.get_mut(&name) {
            None | Some(Value::Null) if patch.is_empty() => return Ok(()),
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(elements)) => std::mem::take(elements),
            Some(_) => return Err(ApiError::new(500, format!("{name} is not a list"))),
        };
        let list = List { name: &name, key };
        list.check(elements.iter().chain(&patch).chain(order.into_iter().flatten()))?;
        if let Some(order) = order {
            list.check_order(&patch, order)?;
        }
        let before = list.positions(&elements);
        let wanted = list.positions(order.unwrap_or(&patch));
        let merged = self.merge_elements(list, elements, patch)?;
        live.insert(name.clone(), list.sorted(merged, &wanted, &before).into());
        Ok(())
    }

    /// Merges the elements of a list. New elements are appended.
    fn merge_elements(self, list: List<'_>, mut live: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, ApiError> {
        let (directives, patch): (Vec<_>, Vec<_>) =
            patch.into_iter().partition(|element| element.get(DIRECTIVE).is_some());
        let mut deleted = HashSet::new();
        let mut replaces = false;
        for element in &directives {
            match &element[DIRECTIVE] {
                directive if directive == "delete" => drop(deleted.insert(list.identity(element)?)),
                directive if directive == "replace" => replaces = true,
                other => return Err(unknown_directive(other)),
            }
        }
        if replaces {
            return Ok(patch.into_iter().filter_map(plain).collect());
        }
        if !deleted.is_empty() {
            live.retain(|element| !list.identity(element).is_ok_and(|identity| deleted.contains(&identity)));
        }
        let mut positions = list.positions(&live);
        for element in patch {
            let identity = list.identity(&element)?;
            match (positions.get(&identity), element) {
                (Some(at), Value::Object(patch)) => {
                    if let Some(Value::Object(found)) = live.get_mut(*at) {
                        *found = self.merge_objects(std::mem::take(found), patch, list.name)?;
                    }
                }
                (Some(_), _) => {}
                (None, element) => {
                    if let Some(element) = plain(element) {
                        positions.insert(identity, live.len());
                        live.push(element);
                    }
                }
            }
        }
        Ok(live)
    }
}

/// List whose elements are merged.
#[derive(Clone, Copy)]
struct List<'a> {
    name: &'a str,
    /// Member that identifies an element; `None` for a list of texts.
    key: Option<&'static str>,
}

impl List<'_> {
    /// Returns the JSON text that identifies an element within the list.
    fn identity(self, element: &Value) -> Result<String, ApiError> {
        let Some(key) = self.key else { return Ok(element.to_string()) };
        let missing = || ApiError::new(500, format!("an element of {} has no merge key {key:?}: {element}", self.name));
        element.get(key).map(Value::to_string).ok_or_else(missing)
    }

    /// Returns the position of the first element with each identity.
    fn positions(self, elements: &[Value]) -> HashMap<String, usize> {
        let mut positions = HashMap::new();
        for (at, element) in elements.iter().enumerate() {
            if let Ok(identity) = self.identity(element) {
                positions.entry(identity).or_insert(at);
            }
        }
        positions
    }

    /// Checks that a list of texts has no other elements.
    fn check<'a>(self, mut elements: impl Iterator<Item = &'a Value>) -> Result<(), ApiError> {
        if self.key.is_none() && elements.any(|element| element.is_array() || element.is_object()) {
            return Err(ApiError::new(500, format!("{} is a list of texts, it has no lists or objects", self.name)));
        }
        Ok(())
    }

    /// Checks that the elements of the patch are in `order`, and in that order.
    fn check_order(self, patch: &[Value], order: &[Value]) -> Result<(), ApiError> {
        let mut rest = order.iter().map(|element| self.identity(element));
        for element in patch.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
            let identity = self.identity(element)?;
            if !order.is_empty() && !rest.any(|found| found.is_ok_and(|found| found == identity)) {
                let message =
                    format!("the order of {} in the patch does not match {ELEMENT_ORDER}/{}", self.name, self.name);
                return Err(ApiError::new(500, message));
            }
        }
        Ok(())
    }

    /// Sorts the elements. Those in `wanted` get that order. Each other element stays before the elements that followed it.
    fn sorted(
        self,
        merged: Vec<Value>,
        wanted: &HashMap<String, usize>,
        before: &HashMap<String, usize>,
    ) -> Vec<Value> {
        let rank = |positions: &HashMap<String, usize>, element: &Value| {
            self.identity(element).ok().and_then(|identity| positions.get(&identity).copied())
        };
        let (mut patched, mut others): (Vec<_>, Vec<_>) =
            merged.into_iter().partition(|element| rank(wanted, element).is_some());
        patched.sort_by_cached_key(|element| rank(wanted, element));
        others.sort_by_cached_key(|element| rank(before, element).unwrap_or(usize::MAX));
        let mut others = others.into_iter().peekable();
        let mut all = Vec::new();
        for element in patched {
            let own = rank(before, &element);
            all.extend(std::iter::from_fn(|| {
                others.next_if(|other| rank(before, other).zip(own).is_some_and(|(other, own)| other < own))
            }));
            all.push(element);
        }
        all.extend(others);
        all
    }
}

/// Removes and returns the members `PREFIX/LIST`, each with the name of its list.
fn take_lists(patch: &mut Map<String, Value>, prefix: &str) -> Result<Vec<(String, Vec<Value>)>, ApiError> {
    let names: Vec<_> = patch.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
    let take = |name: String| {
        let list = name[prefix.len()..].strip_prefix('/').map(str::to_owned);
        match (list, patch.remove(&name)) {
            (Some(list), Some(Value::Array(elements))) => Ok((list, elements)),
            (Some(_), _) => Err(ApiError::new(500, format!("{name} is not a list"))),
            (None, _) => Err(ApiError::bad_request(format!("{name} names no list: expected {prefix}/LIST"))),
        }
    };
    names.into_iter().map(take).collect()
}

/// Applies `$retainKeys`: removes all other members of the live object.
fn retain_keys(live: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(retained) = retained else {
        return Err(ApiError::bad_request(format!("{RETAIN_KEYS} is not a list")));
    };
    let retained: HashSet<_> = retained.iter().filter_map(Value::as_str).collect();
    for (name, value) in &*patch {
        if !value.is_null() && !is_directive(name) && !retained.contains(&**name) {
            return Err(ApiError::bad_request(format!("{RETAIN_KEYS} does not have {name}, which the patch sets")));
        }
    }
    live.retain(|name, _| retained.contains(&**name));
    Ok(())
}

fn is_directive(name: &str) -> bool {
    name == RETAIN_KEYS || name.starts_with(ELEMENT_ORDER) || name.starts_with(DELETED_ELEMENTS)
}

fn unknown_directive(directive: &Value) -> ApiError {
    ApiError::new(500, format!("unknown directive {DIRECTIVE}: {directive}"))
}

/// Replaces a member, or removes it.
fn set(members: &mut Map<String, Value>, name: String, value: Value) {
    match if value.is_null() { None } else { plain(value) } {
        Some(value) => drop(members.insert(name, value)),
        None => drop(members.shift_remove(&name)),
    }
}

/// Returns a value without directives and without null members. `None` if a directive removes the value itself.
fn plain(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => Some(plain_members(members).into()),
        Value::Array(elements) => Some(elements.into_iter().filter_map(plain).collect()),
        other => Some(other),
    }
}

fn plain_members(members: Map<String, Value>) -> Map<String, Value> {
    let members = members.into_iter().filter(|(name, value)| !value.is_null() && !is_directive(name));
    members.filter_map(|(name, value)| Some((name, plain(value)?))).collect()
}

#[cfg(test)]
mod tests;
