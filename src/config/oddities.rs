//! Allowed but suspicious settings: paths at which nothing is found, and events that never come.

use std::collections::BTreeMap;

use super::{EventType, HandlerConfig, ResourceConfig, error::Problem};
use crate::object::FieldPath;

/// Returns suspicious settings of a `[resources.*]` entry.
pub(super) fn of_resource(resource: &ResourceConfig) -> Vec<Problem> {
    let options = &resource.options;
    let paths = [("index", &resource.index), ("drop", &options.drop), ("ignore_changes", &options.ignore_changes)];
    paths.into_iter().flat_map(|(key, paths)| into_lists(key, paths)).collect()
}

/// Returns suspicious settings of a `[handlers.*]` section.
pub(super) fn of_handler(handler: &HandlerConfig, resources: &BTreeMap<String, ResourceConfig>) -> Vec<Problem> {
    into_lists("changed", &handler.options.changed).chain(never_deleted(handler, resources)).collect()
}

/// Reports paths that treat a list as an object: nothing is ever found there, and no error appears at run time.
fn into_lists<'a>(key: &'a str, paths: &'a [String]) -> impl Iterator<Item = Problem> + 'a {
    paths.iter().enumerate().filter_map(move |(i, path)| {
        let meant = FieldPath::parse(path).ok()?.with_lists()?;
        let message = format!("goes into a list without `[*]`, so nothing is found; did you mean `{meant}`?");
        Some((vec![key.to_owned(), format!("[{i}]")], message))
    })
}

/// Reports a handler that gets `deleted` but not `removed` from an entry with a selector. The server does not
/// distinguish deleted objects from objects that no longer match, so both are `removed`.
fn never_deleted(handler: &HandlerConfig, resources: &BTreeMap<String, ResourceConfig>) -> Option<Problem> {
    let on = &handler.options.on;
    if !on.contains(&EventType::Deleted) || on.contains(&EventType::Removed) {
        return None;
    }
    let has_selector = |(name, entry): &(&String, &ResourceConfig)| {
        !(entry.labels.is_empty() && entry.fields.is_empty()) && handler.takes(name)
    };
    let (name, _) = resources.iter().find(has_selector)?;
    let message = format!(
        "[resources.{name}] has a selector, so the server does not distinguish deleted objects from objects that no \
         longer match: both are `removed`, never `deleted`; add \"removed\" to `on`"
    );
    Some((vec!["on".to_owned()], message))
}
