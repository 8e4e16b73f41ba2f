//! Values of cells.

use jiff::Timestamp;
use serde_json::Value;

use crate::object::pod_status;
pub(super) use crate::object::pod_status::{items, text};

/// Object that becomes a row.
pub(super) struct Row<'a> {
    pub(super) object: &'a Value,
    pub(super) now: Timestamp,
}

impl<'a> Row<'a> {
    /// Returns the value at a JSON pointer; `null` if there is none.
    pub(super) fn at(&self, pointer: &str) -> &'a Value {
        self.object.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Returns a text; empty if there is none.
    pub(super) fn text(&self, pointer: &str) -> &'a str {
        text(self.at(pointer))
    }

    /// Returns a text, or the argument `none` if there is no text.
    pub(super) fn text_or(&self, pointer: &str, none: &'a str) -> &'a str {
        Some(self.text(pointer)).filter(|text| !text.is_empty()).unwrap_or(none)
    }

    /// Returns a whole number; 0 if there is none.
    pub(super) fn number(&self, pointer: &str) -> i64 {
        self.at(pointer).as_i64().unwrap_or_default()
    }

    /// Returns the items of an array; empty if there is no array.
    pub(super) fn items(&self, pointer: &str) -> &'a [Value] {
        items(self.at(pointer))
    }

    /// Returns the duration from the time at a JSON pointer until now.
    pub(super) fn since(&self, pointer: &str) -> String {
        since(self.now, self.at(pointer))
    }

    /// Returns the age of the object.
    pub(super) fn age(&self) -> Value {
        self.since("/metadata/creationTimestamp").into()
    }

    /// Returns true if the object is being deleted.
    pub(super) fn is_terminating(&self) -> bool {
        !self.at("/metadata/deletionTimestamp").is_null()
    }

    /// Returns the names and the images of containers.
    pub(super) fn containers(&self, pointer: &str) -> [Value; 2] {
        ["name", "image"].map(|field| {
            let fields: Vec<_> = self.items(pointer).iter().map(|container| text(&container[field])).collect();
            fields.join(",").into()
        })
    }

    /// Returns true if the condition of this type is true.
    pub(super) fn is_condition_true(&self, kind: &str) -> bool {
        pod_status::is_condition_true(self.object, kind)
    }
}

/// Returns the time between `time` and `now`; `<unknown>` if `time` is missing or invalid.
pub(super) fn since(now: Timestamp, time: &Value) -> String {
    match text(time).parse::<Timestamp>() {
        Ok(time) => human_duration(now.duration_since(time).as_secs()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Formats a number of seconds like kubectl: one or two units, such as `5m30s` or `3h`.
pub(super) fn human_duration(seconds: i64) -> String {
    let pair = |whole: i64, unit: char, rest: i64, small: char| {
        if rest == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{rest}{small}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

/// Formats a map of labels: `a=b,c=d`, or `<none>` if it is empty.
pub(super) fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let labels: Vec<_> = pairs.map(|(key, value)| format!("{key}={}", text(value))).collect();
    if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") }
}

/// Formats a label selector in the order of its keys; empty if the selector has no requirements.
pub(crate) fn label_selector(selector: &Value) -> String {
    let mut requirements: Vec<(&str, String)> = Vec::new();
    if let Some(equal) = selector["matchLabels"].as_object() {
        requirements.extend(equal.iter().map(|(key, value)| (&**key, format!("{key}={}", text(value)))));
    }
    for expression in items(&selector["matchExpressions"]) {
        let key = text(&expression["key"]);
        let mut values: Vec<_> = items(&expression["values"]).iter().map(text).collect();
        values.sort_unstable();
        let values = values.join(",");
        let requirement = match text(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        requirements.push((key, requirement));
    }
    requirements.sort_by_key(|(key, _)| *key);
    let requirements: Vec<_> = requirements.into_iter().map(|(_, requirement)| requirement).collect();
    requirements.join(",")
}
