//! Status of a pod, in the words of `kubectl get pods`: `ContainerCreating`, `CrashLoopBackOff`, `Terminating`.

use jiff::Timestamp;
use serde_json::Value;

/// Number of restarts of containers, and the time of the last restart.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Restarts {
    pub(crate) count: i64,
    pub(crate) last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count = self.count.saturating_add(status["restartCount"].as_i64().unwrap_or_default());
        self.last = self.last.max(text(&status["lastState"]["terminated"]["finishedAt"]).parse().ok());
    }
}

/// Summary of the containers of a pod.
#[derive(Clone, Debug)]
pub(crate) struct PodStatus {
    /// Column STATUS of kubectl.
    pub(crate) reason: String,
    /// Number of ready containers.
    pub(crate) ready: usize,
    pub(crate) restarts: Restarts,
}

impl PodStatus {
    /// Returns the status of a pod.
    pub(crate) fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let phase = text(&status["phase"]);
        let reason = Some(text(&status["reason"])).filter(|reason| !reason.is_empty()).unwrap_or(phase);
        let mut summary = Self { reason: reason.to_owned(), ready: 0, restarts: Restarts::default() };
        let gated = |condition: &Value| condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated";
        if items(&status["conditions"]).iter().any(gated) {
            "SchedulingGated".clone_into(&mut summary.reason);
        }
        let (is_initializing, sidecars) = summary.initialize(pod);
        if !is_initializing || is_condition_true(pod, "Initialized") {
            summary.restarts = sidecars;
            summary.run(pod);
        }
        let is_terminating = !pod["metadata"]["deletionTimestamp"].is_null();
        if is_terminating && status["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut summary.reason);
        } else if is_terminating && !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut summary.reason);
        }
        summary
    }

    /// Adds the init containers to the summary, up to the first that is not done. Returns true if an init container is not done.
    /// Also returns the restarts of the sidecars. A sidecar is an init container that keeps running; it is done once it has
    /// started.
    fn initialize(&mut self, pod: &Value) -> (bool, Restarts) {
        let specs = items(&pod["spec"]["initContainers"]);
        let mut sidecars = Restarts::default();
        for (i, status) in items(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
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
    fn run(&mut self, pod: &Value) {
        let (mut has_running, mut error) = (false, String::new());
        for status in items(&pod["status"]["containerStatuses"]).iter().rev() {
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
            if has_running && is_condition_true(pod, "Ready") {
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

/// Returns true for an init container that keeps running: a sidecar.
pub(crate) fn restarts_always(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// Returns true if the condition of this type is true.
pub(crate) fn is_condition_true(object: &Value, kind: &str) -> bool {
    let condition = items(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind);
    condition.is_some_and(|condition| condition["status"] == "True")
}

/// Returns a text; empty if the value is not text.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the items of an array; empty if the value is not an array.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
