//! Warns of fields in `--when` that no object has: they are probably misspelt.

use serde_json::Value;

use crate::{
    cli::{engine_client::EngineClient, report},
    discovery::Catalog,
    object::ResourceType,
    rules::{Rules, RulesOptions},
    suggestion::nearest,
};

/// Maximum number of objects to read for each type.
const SAMPLE: usize = 100;
/// Maximum number of types to read if the events of all types are shown.
const TYPES_MAX: usize = 20;

/// Prints a note for each field that the expression reads and that no cached object of the types has. Ignores errors, because the
/// request for the stream reports them.
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
    for field in
        rules.fields().iter().filter(|field| !objects.is_empty() && !objects.iter().any(|it| at(it, field).is_some()))
    {
        let Some((name, parent)) = field.split_last() else { continue };
        let known =
            objects.iter().filter_map(|object| at(object, parent)?.as_object()).flat_map(|members| members.keys());
        let near = nearest(name, known.map(String::as_str));
        let path = |name: &str| [&["object"], parent, &[name]].concat().join(".");
        let hint = near.map(|near| format!("; did you mean `{}`?", path(near))).unwrap_or_default();
        report::note(&format!("--when: none of {} cached objects has `{}`{hint}", objects.len(), path(name)));
    }
}

/// Returns the value at a path. Each part of the path is the name of a member.
fn at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, name| value.get(name))
}
