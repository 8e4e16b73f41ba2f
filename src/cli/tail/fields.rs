//! Warns of fields in `--when` that no object has: they are probably misspelt.

use crate::{
    discovery::Catalog,
    object::ResourceType,
    rules::{Rules, RulesOptions},
};
use serde_json::Value;

use crate::cli::{engine_client::EngineClient, report};

/// Objects that are read of each type.
const SAMPLE: usize = 100;
/// Types that are read, where the events of all types are shown.
const TYPES_MAX: usize = 20;

/// Compares the fields that the expression reads with cached objects of the types. Errors are ignored: the engine reports its own.
pub(super) async fn warn(engine: &EngineClient, catalog: &Catalog, types: &[String], when: &str) {
    let options = RulesOptions { when: Some(when.to_owned()), ..RulesOptions::default() };
    let Ok(rules) = Rules::compile(options) else { return };
    let is_meant = |resource: &&ResourceType| types.is_empty() || types.contains(&resource.qualified_name());
    let served = catalog.types().iter().filter(|served| served.is_readable()).map(|served| &served.resource);
    let mut objects = Vec::new();
    for resource in served.filter(is_meant).take(TYPES_MAX) {
        let path = format!("{}?limit={SAMPLE}", resource.path(None));
        let Ok(mut list) = engine.get_json::<Value>(&path).await else { continue };
        if let Value::Array(items) = list["items"].take() {
            objects.extend(items);
        }
    }
    for field in rules.fields().iter().filter(|field| !objects.is_empty() && !objects.iter().any(|it| has(it, field))) {
        let known = objects.iter().filter_map(|object| parent(object, field)?.as_object());
        let known: Vec<&str> = known.flat_map(|parent| parent.keys()).map(String::as_str).collect();
        let name = field.last().copied().unwrap_or_default();
        let near = known.iter().copied().min_by_key(|known| strsim::osa_distance(name, known));
        let near = near.filter(|near| strsim::osa_distance(name, near) <= 1 + name.len() / 4);
        let path = |name: &str| [&["object"], &field[..field.len() - 1], &[name]].concat().join(".");
        let hint = near.map(|near| format!("; did you mean `{}`?", path(near))).unwrap_or_default();
        report::note(&format!(
            "--when: none of {} cached objects has `object.{}`{hint}",
            objects.len(),
            field.join(".")
        ));
    }
}

fn has(object: &Value, field: &[&str]) -> bool {
    field.iter().try_fold(object, |value, name| value.get(name)).is_some()
}

fn parent<'a>(object: &'a Value, field: &[&str]) -> Option<&'a Value> {
    field.split_last()?.1.iter().try_fold(object, |value, name| value.get(name))
}
