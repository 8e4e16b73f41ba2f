//! Lines that show what an update has changed. Each changed path has its own line: `spec.replicas  2 → 3`.

use std::borrow::Cow;

use crate::{
    object::{
        difference::{Difference, differences},
        summary::one_line,
    },
    printable::printable,
};
use anstyle::{AnsiColor, Style};
use serde_json::Value;

/// Maximum length of values; longer values are cut in the middle.
const VALUE_MAX: usize = 60;

/// Paths that usually change because another path has changed. They are shown only if no other path has changed.
const BESIDES: [&str; 2] = ["metadata.resourceVersion", "metadata.generation"];

/// Compares two states of an object. Returns a line for each path at which the states differ. The lines have no line end.
pub(super) fn lines(old: &Value, new: &Value, colour: bool) -> Vec<String> {
    let mut found = differences(old, new);
    if found.iter().any(|difference| !is_beside(difference)) {
        found.retain(|difference| !is_beside(difference));
    }
    found.iter().map(|difference| line(difference, colour)).collect()
}

fn is_beside(difference: &Difference<'_>) -> bool {
    BESIDES.contains(&difference.path.as_str()) || difference.path.starts_with("metadata.managedFields")
}

fn line(difference: &Difference<'_>, colour: bool) -> String {
    let coloured = |colour_of: AnsiColor, text: String| {
        let style = if colour { Style::new().fg_color(Some(colour_of.into())) } else { Style::new() };
        format!("{style}{text}{style:#}")
    };
    let value = |value: &Option<Cow<'_, Value>>, colour_of: AnsiColor, missing: &str| match value {
        Some(value) => coloured(colour_of, one_line(value, VALUE_MAX)),
        None => missing.to_owned(),
    };
    let old = value(&difference.old, AnsiColor::Red, "(none)");
    let new = value(&difference.new, AnsiColor::Green, "(gone)");
    format!("{}  {old} → {new}", printable(&difference.path))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn diff_line_shows_old_and_new_value() {
        let old = json!({"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}, "spec": {"replicas": 2}});
        let new = json!({"metadata": {"resourceVersion": "2"}, "spec": {"replicas": 3, "image": "x\ny"}});
        assert_eq!(
            lines(&old, &new, false),
            ["metadata.labels  {\"a\":\"b\"} → (gone)", "spec.replicas  2 → 3", "spec.image  (none) → x\\ny"]
        );
        let only_version = json!({"metadata": {"resourceVersion": "3"}, "spec": {"replicas": 3, "image": "x\ny"}});
        assert_eq!(lines(&new, &only_version, false), ["metadata.resourceVersion  2 → 3"]);
    }

    #[test]
    fn diff_colours_values_and_shortens_long_ones() {
        let line = lines(&json!({"a": 1}), &json!({"a": "x".repeat(99)}), true).remove(0);
        assert!(line.starts_with("a  \u{1b}[31m1\u{1b}[0m → \u{1b}[32mxxx"), "{line:?}");
        assert!(line.contains('…') && line.chars().filter(|letter| *letter == 'x').count() == 58, "{line}");
    }
}
