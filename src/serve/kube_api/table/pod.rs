//! Cells of a pod.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{Row, since, text};

/// Number of restarts of containers, and the time of the last restart.
#[derive(Clone, Copy, Default)]
struct Restarts {
    count: i64,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += status["restartCount"].as_i64().unwrap_or_default();
        self.last = self.last.max(text(&status["lastState"]["terminated"]["finishedAt"]).parse().ok());
    }
}

/// Summary of the containers of a pod.
struct Summary {
    reason: String,
    ready: usize,
    restarts: Restarts,
}

/// Returns all cells.
pub(super) fn cells(row: &Row<'_>) -> Vec<Value> {
    let restartable = row.items("/spec/initContainers").iter().filter(|container| restarts_always(container)).count();
    let containers = row.items("/spec/containers").len() + restartable;
    let Summary { reason, ready, restarts: Restarts { count, last } } = summary(row);
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

fn restarts_always(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn summary(row: &Row<'_>) -> Summary {
    let mut reason = row.text_or("/status/reason", row.text("/status/phase")).to_owned();
    let gated = |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
    if row.items("/status/conditions").iter().any(gated) {
        "SchedulingGated".clone_into(&mut reason);
    }
    let mut summary = Summary { reason, ready: 0, restarts: Restarts::default() };
    let (is_initializing, sidecars) = summary.initialize(row);
    if !is_initializing || row.is_condition_true("Initialized") {
        summary.restarts = sidecars;
        summary.run(row);
    }
    let ended = matches!(row.text("/status/phase"), "Succeeded" | "Failed");
    if row.is_terminating() && row.text("/status/reason") == "NodeLost" {
        "Unknown".clone_into(&mut summary.reason);
    } else if row.is_terminating() && !ended {
        "Terminating".clone_into(&mut summary.reason);
    }
    summary
}

impl Summary {
    /// Adds the init containers to the summary, up to the first that is not done. Returns true if an init container is not done.
    /// Also returns the restarts of the sidecars. A sidecar is an init container that keeps running; it is done once it has
    /// started.
    fn initialize(&mut self, row: &Row<'_>) -> (bool, Restarts) {
        let specs = row.items("/spec/initContainers");
        let mut sidecars = Restarts::default();
        for (i, status) in row.items("/status/initContainerStatuses").iter().enumerate() {
            self.restarts.add(status);
            let stays = specs.iter().any(|spec| spec["name"] == status["name"] && restarts_always(spec));
            if stays {
                sidecars.add(status);
            }
            let terminated = &status["state"]["terminated"];
            let waiting = text(&status["state"]["waiting"]["reason"]);
            if !terminated.is_null() && exit_code(terminated) == 0 {
                continue;
            }
            if stays && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            self.reason = if !terminated.is_null() {
                format!("Init:{}", ended(terminated))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", specs.len())
            };
            return (true, sidecars);
        }
        (false, sidecars)
    }

    /// Adds the containers to the summary, from the last to the first. The reason of an earlier container replaces the reason of a
    /// later one.
    fn run(&mut self, row: &Row<'_>) {
        let (mut has_running, mut error) = (false, String::new());
        for status in row.items("/status/containerStatuses").iter().rev() {
            self.restarts.add(status);
            let state = &status["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if !state["terminated"].is_null() {
                self.reason = ended(&state["terminated"]);
                if exit_code(&state["terminated"]) != 0 {
                    error.clone_from(&self.reason);
                }
            } else if status["ready"] == true && !state["running"].is_null() {
                has_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if has_running && row.is_condition_true("Ready") {
                "Running".clone_into(&mut self.reason);
            } else if !error.is_empty() {
                self.reason = error;
            } else if has_running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or_default()
}

/// Returns the reason for the end of a container.
fn ended(terminated: &Value) -> String {
    let signal = terminated["signal"].as_i64().unwrap_or_default();
    match text(&terminated["reason"]) {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", exit_code(terminated)),
        reason => reason.to_owned(),
    }
}

fn readiness_gates(row: &Row<'_>) -> String {
    let gates = row.items("/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| row.is_condition_true(text(&gate["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}
