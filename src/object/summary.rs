//! Summary of an update in one short line: `Pending → Running`, `replicas 3 → 5`, `image cart:1.1 → 1.2`.

use serde_json::Value;

use super::{
    difference::{Difference, differences},
    pod_status::{PodStatus, text},
};
use crate::printable::printable;

/// Maximum number of changes in a summary.
const CHANGES_MAX: usize = 3;
/// Number of characters above which a summary takes no further change.
const LENGTH_MAX: usize = 80;
/// Maximum number of characters of a path; the beginning of a longer path is cut.
const PATH_MAX: usize = 60;
/// Maximum number of characters of a value; longer values are cut in the middle.
const VALUE_MAX: usize = 24;
/// Like [`VALUE_MAX`], for images.
const IMAGE_MAX: usize = 40;

/// Counters that an object leaves out while they are 0, and their name in a summary.
const COUNTERS: [(&str, &str); 5] = [
    ("status.readyReplicas", "ready"),
    ("status.numberReady", "ready"),
    ("status.active", "active"),
    ("status.succeeded", "succeeded"),
    ("status.failed", "failed"),
];

/// Conditions that say whether an object works, or how it has ended.
const HEALTH: [&str; 5] = ["Ready", "Available", "Healthy", "Complete", "Failed"];

const LAST_APPLIED: &str = "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']";

/// Importance of a change; the most important is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Number of replicas, image.
    Fact,
    /// Condition of [`HEALTH`], counter.
    Health,
    /// Anything else outside `status`.
    Desired,
    /// Anything else in `status`.
    Status,
    /// Reason of a condition. It usually changes with the condition.
    Reason,
    /// Consequence of another change.
    Consequence,
    /// Change of every write.
    Version,
}

/// Describes what an update has changed, in at most three changes, the most important first. `None` if nothing has changed.
///
/// - The state that `kubectl get` shows comes first, then replicas and images, then the health, then the other paths.
/// - Consequences of a described change are left out. If other changes are left out, their number is at the end.
/// - Long paths and values are cut. Characters that could control a terminal are escaped. Values of Secrets and of environment
///   variables are left out.
pub(crate) fn summary(old: &Value, new: &Value) -> Option<String> {
    let states = states(old, new);
    let found = differences(old, new);
    let mut ranked: Vec<_> = found.iter().map(|difference| (rank(difference, old, new), difference)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    let best = if states.is_empty() { ranked.first().map_or(Rank::Version, |(rank, _)| *rank) } else { Rank::Fact };
    ranked.retain(|(rank, _)| *rank <= best.max(Rank::Desired));
    let count = states.len() + ranked.len();
    if count == 0 {
        return None;
    }
    let others = ranked.iter().map(|(_, difference)| described(difference, old, new));
    let mut shown: Vec<String> = Vec::new();
    let mut length = 0;
    for change in states.into_iter().chain(others).take(CHANGES_MAX) {
        length += change.chars().count();
        if length > LENGTH_MAX && !shown.is_empty() {
            break;
        }
        shown.push(change);
    }
    if count > shown.len() {
        shown.push(format!("{} more", count - shown.len()));
    }
    Some(shown.join(", "))
}

/// Returns the changes of the state that `kubectl get` shows.
fn states(old: &Value, new: &Value) -> Vec<String> {
    let mut states = Vec::new();
    let mut compare = |name: &str, old: &str, new: &str| {
        let is_new = old != new && !new.is_empty();
        if is_new {
            let old = if old.is_empty() { "(none)" } else { old };
            states.push(change(name, &shortened(old, VALUE_MAX), &shortened(new, VALUE_MAX)));
        }
        is_new
    };
    if is_pod(new) {
        let (old, new) = (PodStatus::of(old), PodStatus::of(new));
        if !compare("", &old.reason, &new.reason) {
            compare("ready", &old.ready.to_string(), &new.ready.to_string());
        }
        compare("restarts", &old.restarts.count.to_string(), &new.restarts.count.to_string());
    } else if !compare("", text(&old["status"]["phase"]), text(&new["status"]["phase"])) {
        let is_terminating = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
        if is_terminating(new) && !is_terminating(old) {
            states.push("terminating".to_owned());
        }
    }
    states
}

fn is_pod(object: &Value) -> bool {
    object["kind"] == "Pod" && object["apiVersion"] == "v1"
}

fn rank(difference: &Difference<'_>, old: &Value, new: &Value) -> Rank {
    let path = &*difference.path;
    if let Some((name, member)) = condition(difference, old, new) {
        return match member {
            "" | ".status" if HEALTH.contains(&name) && !is_pod(new) => Rank::Health, // of a pod, `states` has it
            "" | ".status" => Rank::Status,
            ".reason" => Rank::Reason,
            _ => Rank::Consequence,
        };
    }
    match path {
        _ if path == "spec.replicas" || images(difference).is_some() => Rank::Fact,
        _ if counter(difference).is_some() => Rank::Health,
        "metadata.resourceVersion" | "metadata.generation" => Rank::Version,
        _ if path.starts_with("metadata.managedFields") => Rank::Version,
        _ if path.starts_with("metadata.annotations['deployment.kubernetes.io/") => Rank::Consequence,
        "metadata.deletionTimestamp"
        | "metadata.deletionGracePeriodSeconds"
        | LAST_APPLIED
        | "status.observedGeneration" => Rank::Consequence,
        _ if path == "status" || path.starts_with("status.") => Rank::Status,
        _ => Rank::Desired,
    }
}

/// Describes one change.
fn described(difference: &Difference<'_>, old: &Value, new: &Value) -> String {
    let path = &*difference.path;
    if let Some((before, after)) = images(difference) {
        return image(before, after);
    }
    let counter = counter(difference);
    let zero = counter.map(|_| Value::from(0));
    let before = difference.old.as_deref().or(zero.as_ref());
    let after = difference.new.as_deref().or(zero.as_ref());
    let (before, after, name) = match (condition(difference, old, new), counter) {
        // An added condition is described by its status.
        (Some((name, "" | ".status" | ".reason")), _) => {
            (before.map(status_of), after.map(status_of), shortened(name, PATH_MAX))
        }
        (_, Some(name)) => (before, after, name.to_owned()),
        _ if path == "spec.replicas" => (before, after, "replicas".to_owned()),
        _ => (before, after, shortened_path(path)),
    };
    let is_shown = |value: Option<&Value>| value.is_none_or(|value| !value.is_object() && !value.is_array());
    if is_shown(before) && is_shown(after) && !is_secret(path, new) {
        let one_line = |value: &Value| one_line(value, VALUE_MAX);
        let before = before.map_or_else(|| "(none)".to_owned(), one_line);
        return change(&name, &before, &after.map_or_else(|| "(gone)".to_owned(), one_line));
    }
    match (before, after) {
        (None, _) => format!("{name} added"),
        (_, None) => format!("{name} removed"),
        _ => format!("{name} changed"),
    }
}

/// Returns the type of a condition, and the path of the change in it.
fn condition<'a>(difference: &'a Difference<'_>, old: &'a Value, new: &'a Value) -> Option<(&'a str, &'a str)> {
    let (position, member) = difference.path.strip_prefix("status.conditions[")?.split_once(']')?;
    let object = if member.is_empty() && difference.new.is_none() { old } else { new };
    let name = object["status"]["conditions"].get(position.parse::<usize>().ok()?)?["type"].as_str()?;
    Some((name, member))
}

/// Returns the status of a condition. Returns any other value unchanged.
fn status_of(value: &Value) -> &Value {
    if value.is_object() { &value["status"] } else { value }
}

/// Returns the name of a counter.
fn counter(difference: &Difference<'_>) -> Option<&'static str> {
    let (_, name) = COUNTERS.iter().find(|(path, _)| *path == difference.path)?;
    // `status.active` of a CronJob is a list.
    let is_number = |value: Option<&Value>| value.is_none_or(Value::is_number);
    (is_number(difference.old.as_deref()) && is_number(difference.new.as_deref())).then_some(*name)
}

/// Returns true for a path whose value may be secret.
fn is_secret(path: &str, object: &Value) -> bool {
    object["kind"] == "Secret" || path.contains(".env[") || path == LAST_APPLIED
}

/// Returns the old and the new image of a container.
fn images<'a>(difference: &'a Difference<'_>) -> Option<(&'a str, &'a str)> {
    let path = difference.path.strip_prefix("spec.")?.strip_suffix("].image")?;
    let (list, _) = path.rsplit_once('[')?;
    let is_container = ["containers", "initContainers"].contains(&list.rsplit('.').next()?);
    let images = difference.old.as_deref()?.as_str().zip(difference.new.as_deref()?.as_str());
    images.filter(|_| is_container)
}

/// Describes the change of an image. A common repository is written once, and without its registry.
fn image(old: &str, new: &str) -> String {
    let ((repository, before), (other, after)) = (split_image(old), split_image(new));
    let (Some((separator, before)), Some((_, after)), true) = (before, after, repository == other) else {
        return change("image", &shortened(old, IMAGE_MAX), &shortened(new, IMAGE_MAX));
    };
    let name = repository.rsplit('/').next().unwrap_or(repository);
    let (name, before) = (shortened(name, IMAGE_MAX), shortened(before, VALUE_MAX));
    change("image", &format!("{name}{separator}{before}"), &shortened(after, VALUE_MAX))
}

/// Returns the repository of an image, and its tag or digest with the separator before it.
fn split_image(image: &str) -> (&str, Option<(char, &str)>) {
    if let Some((tagged, digest)) = image.split_once('@') {
        return (split_image(tagged).0, Some(('@', digest)));
    }
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some((':', tag))), // else the port of a registry
        _ => (image, None),
    }
}

fn change(name: &str, old: &str, new: &str) -> String {
    let gap = if name.is_empty() { "" } else { " " };
    format!("{name}{gap}{old} → {new}")
}

/// Returns a value as one line of at most `max` characters: a text without quotes, any other value as JSON.
pub(crate) fn one_line(value: &Value, max: usize) -> String {
    value.as_str().map_or_else(|| shortened(&value.to_string(), max), |text| shortened(text, max))
}

/// Returns a text as one line, or `""` if it is empty. Cuts a line of more than `max` characters in the middle.
fn shortened(text: &str, max: usize) -> String {
    let text = if text.is_empty() { "\"\"".to_owned() } else { printable(text) };
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= max {
        return text;
    }
    let half = (max - 1) / 2;
    letters[..half].iter().chain(&['…']).chain(&letters[letters.len() - half..]).collect()
}

/// Returns a path of at most [`PATH_MAX`] characters. The end of a path says more than its beginning.
fn shortened_path(path: &str) -> String {
    let path = printable(path);
    let surplus = path.chars().count().saturating_sub(PATH_MAX);
    if surplus == 0 {
        return path;
    }
    let end: String = path.chars().skip(surplus + 1).collect();
    let whole_member = end.find('.').map_or(&*end, |dot| &end[dot + 1..]);
    format!("…{whole_member}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(old: &Value, new: &Value, expected: &str) {
        assert_eq!(summary(old, new).as_deref(), Some(expected), "{old} {new}");
    }

    #[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
    fn pod(phase: &str, state: Value, restarts: u64) -> Value {
        let ready = state["running"].is_object();
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": { "containers": [{ "name": "app", "image": "web:1" }] },
            "status": {
                "phase": phase, "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
                "containerStatuses": [{ "name": "app", "ready": ready, "restartCount": restarts, "state": state }],
            },
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "a case is a literal")]
    fn deployment(replicas: u64, image: &str, status: Value) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "resourceVersion": replicas.to_string() + image },
            "spec": { "replicas": replicas, "template": { "spec": { "containers": [{ "name": "cart", "image": image }] } } },
            "status": status,
        })
    }

    #[test]
    fn pod_is_summarised_by_status_of_kubectl() {
        let waiting = |reason: &str| json!({ "waiting": { "reason": reason } });
        let running = json!({ "running": { "startedAt": "2026-11-21T06:40:03Z" } });
        let bare = |phase: &str| json!({ "apiVersion": "v1", "kind": "Pod", "status": { "phase": phase } });
        check(&bare("Pending"), &bare("Running"), "Pending → Running");
        let creating = pod("Pending", waiting("ContainerCreating"), 0);
        let started = pod("Running", running.clone(), 0);
        check(&creating, &started, "ContainerCreating → Running");
        let crashed = pod("Running", waiting("CrashLoopBackOff"), 0);
        check(&started, &crashed, "Running → CrashLoopBackOff");
        check(&crashed, &pod("Running", running.clone(), 1), "CrashLoopBackOff → Running, restarts 0 → 1");
        let mut deleted = started.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-11-21T06:40:03Z".into();
        check(&started, &deleted, "Running → Terminating");
        let mut unready = started.clone();
        unready["status"]["containerStatuses"][0]["ready"] = false.into();
        check(&started, &unready, "ready 1 → 0");
        let mut upgraded = started.clone();
        upgraded["spec"]["containers"][0]["image"] = "web:2".into();
        check(&started, &upgraded, "image web:1 → 2");
    }

    #[test]
    fn workload_is_summarised_by_replicas_and_images() {
        let status =
            |ready: u64| json!({ "readyReplicas": ready, "availableReplicas": ready, "observedGeneration": ready });
        let of = |replicas, image, ready| deployment(replicas, image, status(ready));
        check(&of(3, "cart:1.1", 3), &of(5, "cart:1.1", 3), "replicas 3 → 5");
        check(&of(3, "cart:1.1", 3), &of(3, "cart:1.2", 3), "image cart:1.1 → 1.2");
        check(&of(3, "cart:1.1", 3), &of(5, "cart:1.2", 4), "replicas 3 → 5, image cart:1.1 → 1.2, ready 3 → 4");
        check(&of(3, "cart:1.1", 2), &of(3, "cart:1.1", 3), "ready 2 → 3");
        check(&deployment(3, "a", json!({})), &of(3, "a", 1), "ready 0 → 1");
        let job = |active: Value| json!({ "kind": "CronJob", "status": { "active": active } });
        check(&job(json!(1)), &job(json!([{ "name": "report-1" }])), "status.active changed");
    }

    #[test]
    fn image_is_short_if_repository_is_same() {
        for (old, new, expected) in [
            ("registry.example:5000/shop/cart:1.1", "registry.example:5000/shop/cart:1.2", "image cart:1.1 → 1.2"),
            ("shop/cart:1.1", "acme/cart:1.1", "image shop/cart:1.1 → acme/cart:1.1"),
            ("registry:5000/cart", "registry:5000/cart:2", "image registry:5000/cart → registry:5000/cart:2"),
            ("cart:1@sha256:aa", "cart:2@sha256:bb", "image cart@sha256:aa → sha256:bb"),
            ("cart:1", "cart@sha256:bb", "image cart:1 → sha256:bb"),
            ("", "cart:1", "image \"\" → cart:1"),
        ] {
            check(&deployment(1, old, json!({})), &deployment(1, new, json!({})), expected);
        }
    }

    #[test]
    fn condition_is_named_by_its_type() {
        let with = |conditions: Value| json!({ "kind": "Certificate", "status": { "conditions": conditions } });
        let condition = |of: &str, status: &str, reason: &str| json!({ "type": of, "status": status, "reason": reason, "lastTransitionTime": reason });
        let pending = with(json!([condition("Issuing", "True", "Manual"), condition("Ready", "False", "Missing")]));
        let issued = with(json!([condition("Issuing", "False", "Done"), condition("Ready", "True", "Done")]));
        check(&pending, &issued, "Ready False → True");
        check(&with(json!([])), &pending, "Ready (none) → False");
        check(&issued, &with(json!([condition("Issuing", "False", "Done")])), "Ready True → (gone)");
        let other = with(json!([condition("Issuing", "True", "Automatic"), condition("Ready", "False", "Missing")]));
        check(&pending, &other, "Issuing Manual → Automatic");
        let hostile = with(json!([{ "type": "Ready", "status": { "a": 1 } }, { "status": 1 }]));
        check(&with(json!([])), &hostile, "Ready added");
    }

    #[test]
    fn other_objects_are_summarised_by_paths() {
        let old = json!({ "metadata": { "generation": 1, "resourceVersion": "1" }, "data": { "a": "1", "b": "2" } });
        let new = json!({
            "metadata": { "generation": 2, "resourceVersion": "2", "labels": { "x": "y" } }, "data": { "a": "", "c": true },
        });
        check(&old, &new, "metadata.labels added, data.a 1 → \"\", data.b 2 → (gone), 1 more");
        let claim = |phase: &str| json!({ "kind": "PersistentVolumeClaim", "status": { "phase": phase } });
        check(&claim("Pending"), &claim("Bound"), "Pending → Bound");
        check(&claim(""), &claim("Bound"), "(none) → Bound");
        check(&json!({ "metadata": {} }), &json!({ "metadata": { "deletionTimestamp": "t" } }), "terminating");
        let deep = |value: &str| json!({ "spec": { "template": { "spec": { "affinity": { "weights": { "first": value } } } } } });
        check(&deep("1"), &deep("2"), "spec.template.spec.affinity.weights.first 1 → 2");
        let deep = |value: &str| json!({ "spec": { "forProvider": { "instance": { "settings": deep(value) } } } });
        check(&deep("1"), &deep("2"), "…settings.spec.template.spec.affinity.weights.first 1 → 2");
    }

    #[test]
    fn noise_is_shown_only_alone() {
        let lease = |version: &str, time: &str| json!({ "metadata": { "resourceVersion": version }, "spec": { "renewTime": time } });
        check(&lease("1", "06:40"), &lease("2", "06:41"), "spec.renewTime 06:40 → 06:41");
        check(&lease("1", "06:40"), &lease("2", "06:40"), "metadata.resourceVersion 1 → 2");
        assert_eq!(summary(&lease("1", "06:40"), &lease("1", "06:40")), None);
        let node = |time: &str| {
            json!({ "metadata": { "resourceVersion": time }, "status": {
                "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }] } })
        };
        check(&node("06:40"), &node("06:45"), "status.conditions[0].lastHeartbeatTime 06:40 → 06:45");
    }

    #[test]
    fn secret_values_are_not_shown() {
        let secret = |value: &str| json!({ "kind": "Secret", "data": { "password": value }, "metadata": {} });
        check(&secret("c2VjcmV0"), &secret("aGlkZGVu"), "data.password changed");
        check(&secret("c2VjcmV0"), &json!({ "kind": "Secret", "data": {}, "metadata": {} }), "data.password removed");
        let env = |value: &str| json!({ "spec": { "containers": [{ "env": [{ "name": "TOKEN", "value": value }] }] } });
        check(&env("secret"), &env("hidden"), "spec.containers[0].env[0].value changed");
        let applied = |value: &str| json!({ "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": value } } });
        let said = summary(&applied("secret"), &applied("hidden")).unwrap();
        assert!(said.ends_with(" changed") && !said.contains("secret"), "{said}");
    }

    #[test]
    fn hostile_texts_stay_short_and_printable() {
        let object = |text: &str| json!({ text.repeat(30): text.repeat(3_000), "kind": text, "status": { "phase": text.repeat(99) } });
        for text in ["\u{1b}[2J", "\u{202e}", "\n", "ü", "['a.b']", "."] {
            let said = summary(&object("x"), &object(text)).unwrap();
            assert!(!said.contains(crate::printable::is_deceptive), "{said:?}");
            assert!(said.chars().count() < 250, "{said}");
        }
    }

    proptest! {
        #[test]
        fn no_object_panics_summary(paths in prop::collection::vec(
            (prop::sample::select(vec!["kind", "status", "phase", "conditions", "spec", "containers", "image", "replicas"]), 0..6_u8),
            0..12,
        )) {
            let mut states = [json!({ "kind": "Pod", "apiVersion": "v1" }), json!({ "kind": "Pod", "apiVersion": "v1" })];
            for (at, (name, value)) in paths.iter().enumerate() {
                let state = &mut states[at % 2];
                let value = match value {
                    0 => json!(null),
                    1 => json!([{ "type": 1, "name": "a", "image": "x" }, {}]),
                    2 => json!({ "conditions": [{ "type": "Ready" }], "containers": [{ "name": "a", "image": 1 }] }),
                    3 => json!(i64::MIN),
                    4 => json!({ "containerStatuses": [{ "restartCount": i64::MAX }, { "restartCount": i64::MAX }] }),
                    _ => json!("text"),
                };
                state[*name] = value;
            }
            let [old, new] = states;
            prop_assert_eq!(summary(&old, &new).is_none(), old == new);
        }
    }
}
