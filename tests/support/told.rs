//! Descriptions of a handler's events so far.

use std::{fs, path::Path};

use serde_json::Value;

use super::{engine::Engine, scripted::PATIENCE};

/// Returns the events in a file, one per line.
pub(crate) fn events(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    lines.map(|line| serde_json::from_str(line).expect("an event a line")).collect()
}

/// Returns the kind, resource and name of each event.
pub(crate) fn stories(events: &[Value]) -> Vec<String> {
    let of = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let kind = |event: &Value| of(event, "type").rsplit('.').next().unwrap_or_default().to_owned();
    let story = |event| format!("{} {} {}", kind(event), of(event, "resource"), of(event, "name"));
    events.iter().map(story).collect()
}

/// Waits for this number of events in a file, and returns them.
pub(crate) fn wait_events(engine: &Engine, file: &Path, count: usize) -> Vec<Value> {
    engine.wait_for(&format!("{count} events in {}", file.display()), PATIENCE, || events(file).len() >= count);
    events(file)
}
