//! What is allowed and hardly meant: paths that lead nowhere, and events that never come.

use std::collections::BTreeMap;

use super::{EventType, HandlerConfig, ResourceConfig, error::Problem};
use crate::object::FieldPath;

/// Returns what is odd in a `[resources.*]` entry.
pub(super) fn of_resource(resource: &ResourceConfig) -> Vec<Problem> {
    let options = &resource.options;
    let paths = [("index", &resource.index), ("drop", &options.drop), ("ignore_changes", &options.ignore_changes)];
    paths.into_iter().flat_map(|(key, paths)| into_lists(key, paths)).collect()
}

/// Returns what is odd in a `[handlers.*]` section.
pub(super) fn of_handler(handler: &HandlerConfig, resources: &BTreeMap<String, ResourceConfig>) -> Vec<Problem> {
    into_lists("changed", &handler.options.changed).chain(never_deleted(handler, resources)).collect()
}

/// Paths that take a list for an object: nothing is ever found there, and nothing says so.
fn into_lists<'a>(key: &'a str, paths: &'a [String]) -> impl Iterator<Item = Problem> + 'a {
    paths.iter().enumerate().filter_map(move |(i, path)| {
        let meant = FieldPath::parse(path).ok()?.with_lists()?;
        let message = format!("goes into a list without `[*]`, where nothing is found; did you mean `{meant}`?");
        Some((vec![key.to_owned(), format!("[{i}]")], message))
    })
}

/// Deletions alone, of entries with a selector: the server's word is the same for what was deleted and for what does not
/// match any more, so that both are `removed`.
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
        "[resources.{name}] has a selector, of which the server does not say whether an object is gone or does not match \
         any more: both are `removed` there, and never `deleted`; did you mean both?"
    );
    Some((vec!["on".to_owned()], message))
}
