//! Cells of a pod.

use serde_json::{Value, json};

use super::cells::{Row, since, text};
use crate::object::pod_status::{PodStatus, Restarts, restarts_always};

/// Returns all cells.
pub(super) fn cells(row: &Row<'_>) -> Vec<Value> {
    let restartable = row.items("/spec/initContainers").iter().filter(|container| restarts_always(container)).count();
    let containers = row.items("/spec/containers").len() + restartable;
    let PodStatus { reason, ready, restarts: Restarts { count, last } } = PodStatus::of(row.object);
    let restarts = match last.filter(|_| count != 0) {
        Some(last) => format!("{count} ({} ago)", since(row.now, &last.to_string().into())),
        None => count.to_string(),
    };
    vec![
        row.text("/metadata/name").into(),
        format!("{ready}/{containers}").into(),
        reason.into(),
        restarts.into(),
        row.age(),
        row.text_or("/status/podIPs/0/ip", "<none>").into(),
        row.text_or("/spec/nodeName", "<none>").into(),
        row.text_or("/status/nominatedNodeName", "<none>").into(),
        readiness_gates(row).into(),
    ]
}

/// Returns the `conditions` of a row if the pod has ended; `None` for other pods.
pub(super) fn conditions(row: &Row<'_>) -> Option<Value> {
    let (reason, message) = match row.text("/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

fn readiness_gates(row: &Row<'_>) -> String {
    let gates = row.items("/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| row.is_condition_true(text(&gate["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}
