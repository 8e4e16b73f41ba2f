//! Columns and cells of the built-in kinds, after `pkg/printers/internalversion` of Kubernetes 1.36.

use std::borrow::Borrow;

use serde_json::Value;

use super::{
    cells::{Row, human_duration, items, label_selector, labels, text},
    pod,
};
use crate::object::ResourceType;

/// Conversion of the objects of one kind to rows.
#[derive(Debug)]
pub(in crate::serve::kube_api) struct Kind {
    /// Name of the type, as kubectl qualifies it.
    pub(super) name: &'static str,
    /// Names of the columns, separated by commas. `#NAME` is a column of integers, and `NAME:TYPE` a column of that type. All other
    /// columns are strings. Only `-o wide` shows the column `+NAME`.
    columns: &'static str,
    /// Function that returns a cell for every column.
    pub(super) cells: fn(&Row<'_>) -> Vec<Value>,
}

/// Columns that every object has.
pub(super) static NAME_AND_AGE: Kind = kind("", "Name, Age", |row| vec![name(row), row.age()]);

/// Returns the kind of a type, or [`NAME_AND_AGE`] for an unknown type.
pub(super) fn of(resource: &ResourceType) -> &'static Kind {
    let name = resource.qualified_name();
    KINDS.iter().find(|kind| kind.name == name).unwrap_or(&NAME_AND_AGE)
}

impl Kind {
    /// Returns the name and the type of each column. The flag is true if only `-o wide` shows the column.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        self.columns.split(", ").map(|column| {
            let is_wide = column.starts_with('+');
            let (name, kind) = match column.strip_prefix('#') {
                Some(name) => (name, "integer"),
                None => column.split_once(':').unwrap_or((column, "string")),
            };
            (name.trim_start_matches('+'), kind, is_wide)
        })
    }
}

const fn kind(name: &'static str, columns: &'static str, cells: fn(&Row<'_>) -> Vec<Value>) -> Kind {
    Kind { name, columns, cells }
}

static KINDS: [Kind; 15] = [
    kind("pods", "Name, Ready, Status, Restarts, Age, +IP, +Node, +Nominated Node, +Readiness Gates", pod::cells),
    kind(
        "nodes",
        "Name, Status, Roles, Age, Version, +Internal-IP, +External-IP, +OS-Image, +Kernel-Version, +Container-Runtime",
        node,
    ),
    kind("services", "Name, Type, Cluster-IP, External-IP, Port(s), Age, +Selector", service),
    kind("namespaces", "Name, Status, Age", |row| vec![name(row), row.text("/status/phase").into(), row.age()]),
    kind("configmaps", "Name, Data, Age", config_map),
    kind("events", "Last Seen, Type, Reason, Object, +Subobject, +Source, Message, +First Seen, +Count, +Name", event),
    kind(
        "persistentvolumeclaims",
        "Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, +VolumeMode",
        volume_claim,
    ),
    kind("deployments.apps", "Name, Ready, Up-to-date, Available, Age, +Containers, +Images, +Selector", deployment),
    kind("replicasets.apps", "Name, #Desired, #Current, #Ready, Age, +Containers, +Images, +Selector", replica_set),
    kind("statefulsets.apps", "Name, Ready, Age, +Containers, +Images", stateful_set),
    kind(
        "daemonsets.apps",
        "Name, #Desired, #Current, #Ready, #Up-to-date, #Available, Node Selector, Age, +Containers, +Images, +Selector",
        daemon_set,
    ),
    kind("jobs.batch", "Name, Status, Completions, Duration, Age, +Containers, +Images, +Selector", job),
    kind(
        "cronjobs.batch",
        "Name, Schedule, Timezone, Suspend:boolean, #Active, Last Schedule, Age, +Containers, +Images, +Selector",
        cron_job,
    ),
    kind("ingresses.networking.k8s.io", "Name, Class, Hosts, Address, Ports, Age", ingress),
    kind("customresourcedefinitions.apiextensions.k8s.io", "Name, Created At:date", |row| {
        vec![name(row), row.text("/metadata/creationTimestamp").into()]
    }),
];

/// JSON pointer to the containers in the pod template of a workload.
const TEMPLATE: &str = "/spec/template/spec/containers";

fn name(row: &Row<'_>) -> Value {
    row.text("/metadata/name").into()
}

/// Joins texts with commas. Returns the argument `none` if `texts` is empty.
fn joined<S: Borrow<str>>(texts: &[S], none: &str) -> Value {
    if texts.is_empty() { none.into() } else { texts.join(",").into() }
}

/// Returns the number of wanted replicas; 1 if `spec.replicas` is not set.
fn replicas(row: &Row<'_>) -> i64 {
    row.at("/spec/replicas").as_i64().unwrap_or(1)
}

fn selector_or_none(selector: &Value) -> Value {
    let selector = label_selector(selector);
    if selector.is_empty() { "<none>".into() } else { selector.into() }
}

fn config_map(row: &Row<'_>) -> Vec<Value> {
    let entries = ["/data", "/binaryData"].map(|map| row.at(map).as_object().map_or(0, serde_json::Map::len));
    vec![name(row), (entries[0] + entries[1]).into(), row.age()]
}

fn deployment(row: &Row<'_>) -> Vec<Value> {
    let counts = ["/status/updatedReplicas", "/status/availableReplicas"].map(|count| row.number(count).into());
    let selector = label_selector(row.at("/spec/selector")).into();
    [&[name(row), ready(row)], &counts[..], &[row.age()], &row.containers(TEMPLATE), &[selector]].concat()
}

fn replica_set(row: &Row<'_>) -> Vec<Value> {
    let counts = [replicas(row), row.number("/status/replicas"), row.number("/status/readyReplicas")];
    let selector = selector_or_none(row.at("/spec/selector"));
    [&[name(row)], &counts.map(Value::from)[..], &[row.age()], &row.containers(TEMPLATE), &[selector]].concat()
}

fn stateful_set(row: &Row<'_>) -> Vec<Value> {
    [&[name(row), ready(row), row.age()][..], &row.containers(TEMPLATE)].concat()
}

fn daemon_set(row: &Row<'_>) -> Vec<Value> {
    let counts = [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ];
    let counts = counts.map(|count| Value::from(row.number(&format!("/status/{count}"))));
    let nodes = [labels(row.at("/spec/template/spec/nodeSelector")).into(), row.age()];
    let selector = selector_or_none(row.at("/spec/selector"));
    [&[name(row)], &counts[..], &nodes, &row.containers(TEMPLATE), &[selector]].concat()
}

/// Returns the numbers of ready and of wanted replicas: `2/3`.
fn ready(row: &Row<'_>) -> Value {
    format!("{}/{}", row.number("/status/readyReplicas"), replicas(row)).into()
}

fn node(row: &Row<'_>) -> Vec<Value> {
    let ready = row.items("/status/conditions").iter().rfind(|condition| condition["type"] == "Ready");
    let mut status = match ready {
        Some(condition) if condition["status"] == "True" => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if row.at("/spec/unschedulable") == true {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in row.at("/metadata/labels").as_object().into_iter().flatten() {
        let role = key.strip_prefix("node-role.kubernetes.io/");
        roles.extend(
            role.or_else(|| (key == "kubernetes.io/role").then(|| text(value))).filter(|role| !role.is_empty()),
        );
    }
    roles.sort_unstable();
    roles.dedup();
    let address = |kind: &str| {
        let addresses = row.items("/status/addresses").iter();
        addresses.filter(|address| address["type"] == kind).map(|address| text(&address["address"])).next()
    };
    let info = |field: &str| row.text_or(&format!("/status/nodeInfo/{field}"), "<unknown>").to_owned();
    let mut kernel = info("kernelVersion");
    let architecture = row.text("/status/nodeInfo/architecture");
    if !architecture.is_empty() {
        kernel.extend([" (", architecture, ")"]);
    }
    vec![
        name(row),
        status.into(),
        joined(&roles, "<none>"),
        row.age(),
        row.text("/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").unwrap_or("<none>").into(),
        address("ExternalIP").unwrap_or("<none>").into(),
        info("osImage").into(),
        kernel.into(),
        info("containerRuntimeVersion").into(),
    ]
}

fn service(row: &Row<'_>) -> Vec<Value> {
    let kind = row.text("/spec/type");
    let external: Vec<_> = row.items("/spec/externalIPs").iter().map(text).collect();
    let external = match kind {
        "ClusterIP" | "NodePort" => joined(&external, "<none>"),
        "LoadBalancer" => joined(&[balancers(row), external].concat(), "<pending>"),
        "ExternalName" => row.text("/spec/externalName").into(),
        _ => "<unknown>".into(),
    };
    let port = |port: &Value| {
        let (number, protocol) = (&port["port"], text(&port["protocol"]));
        match port["nodePort"].as_i64() {
            Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    };
    let ports: Vec<_> = row.items("/spec/ports").iter().map(port).collect();
    vec![
        name(row),
        kind.into(),
        row.text_or("/spec/clusterIPs/0", "<none>").into(),
        external,
        joined(&ports, "<none>"),
        row.age(),
        labels(row.at("/spec/selector")).into(),
    ]
}

/// Returns the sorted addresses of the load balancers.
fn balancers<'a>(row: &Row<'a>) -> Vec<&'a str> {
    let address = |ingress: &'a Value| {
        let [ip, host] = ["ip", "hostname"].map(|field| text(&ingress[field]));
        if ip.is_empty() { host } else { ip }
    };
    let mut addresses: Vec<_> =
        row.items("/status/loadBalancer/ingress").iter().map(address).filter(|text| !text.is_empty()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn event(row: &Row<'_>) -> Vec<Value> {
    let is_told = |pointer: &str| !row.text(pointer).is_empty();
    let first = row.since(if is_told("/firstTimestamp") { "/firstTimestamp" } else { "/eventTime" });
    let series = row.at("/series");
    let (last, count) = if series.is_object() {
        (row.since("/series/lastObservedTime"), row.number("/series/count"))
    } else {
        let last = if is_told("/lastTimestamp") { row.since("/lastTimestamp") } else { first.clone() };
        (last, row.at("/count").as_i64().filter(|count| *count != 0).unwrap_or(1))
    };
    let kind = row.text("/involvedObject/kind").to_lowercase();
    let object = match row.text("/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component = row.text_or("/source/component", row.text("/reportingComponent"));
    let host = row.text_or("/source/host", row.text("/reportingInstance"));
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    vec![
        last.into(),
        row.text("/type").into(),
        row.text("/reason").into(),
        object.into(),
        row.text("/involvedObject/fieldPath").into(),
        source.into(),
        row.text("/message").trim().into(),
        first.into(),
        count.into(),
        name(row),
    ]
}

fn volume_claim(row: &Row<'_>) -> Vec<Value> {
    let volume = row.text("/spec/volumeName");
    let short = |mode: &Value| match text(mode) {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        _ => "RWOP",
    };
    let modes: Vec<_> = row.items("/status/accessModes").iter().map(short).collect();
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (row.text("/status/capacity/storage"), modes.join(",")),
    };
    let phase = if row.is_terminating() { "Terminating" } else { row.text("/status/phase") };
    let class = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";
    vec![
        name(row),
        phase.into(),
        volume.into(),
        capacity.into(),
        modes.into(),
        row.text_or(class, row.text("/spec/storageClassName")).into(),
        row.text_or("/spec/volumeAttributesClassName", "<unset>").into(),
        row.age(),
        row.text_or("/spec/volumeMode", "<unset>").into(),
    ]
}

fn job(row: &Row<'_>) -> Vec<Value> {
    let (succeeded, parallelism) = (row.number("/status/succeeded"), row.number("/spec/parallelism"));
    let completions = match row.at("/spec/completions").as_i64() {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let time = |pointer: &str| row.text(pointer).parse::<jiff::Timestamp>().ok();
    let duration = time("/status/startTime").map(|start| {
        let end = time("/status/completionTime").unwrap_or(row.now);
        human_duration(end.duration_since(start).as_secs())
    });
    let find = |states: &[&'static str]| states.iter().copied().find(|state| row.is_condition_true(state));
    let terminating = row.is_terminating().then_some("Terminating");
    let under_way = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    let status = find(&["Complete", "Failed"]).or(terminating).or_else(|| find(&under_way)).unwrap_or("Running");
    let state = [name(row), status.into(), completions.into(), duration.unwrap_or_default().into(), row.age()];
    [&state[..], &row.containers(TEMPLATE), &[selector_or_none(row.at("/spec/selector"))]].concat()
}

fn cron_job(row: &Row<'_>) -> Vec<Value> {
    let last = "/status/lastScheduleTime";
    let last = if row.at(last).is_null() { "<none>".to_owned() } else { row.since(last) };
    let suspend = row.at("/spec/suspend").as_bool().map_or("<unset>", |on| if on { "True" } else { "False" });
    let state = [
        name(row),
        row.text("/spec/schedule").into(),
        row.text_or("/spec/timeZone", "<none>").into(),
        suspend.into(),
        row.items("/status/active").len().into(),
        last.into(),
        row.age(),
    ];
    let containers = row.containers("/spec/jobTemplate/spec/template/spec/containers");
    [&state[..], &containers, &[selector_or_none(row.at("/spec/jobTemplate/spec/selector"))]].concat()
}

fn ingress(row: &Row<'_>) -> Vec<Value> {
    const SHOWN: usize = 3;
    let rules = row.items("/spec/rules");
    let mut hosts = Vec::new();
    let mut more = false;
    for host in rules.iter().map(|rule| text(&rule["host"])) {
        more |= hosts.len() == SHOWN;
        if !more && !host.is_empty() {
            hosts.push(host);
        }
    }
    let hosts = match hosts.join(",") {
        hosts if hosts.is_empty() => "*".to_owned(),
        hosts if more => format!("{hosts} + {} more...", rules.len() - SHOWN),
        hosts => hosts,
    };
    vec![
        name(row),
        row.text_or("/spec/ingressClassName", "<none>").into(),
        hosts.into(),
        balancers(row).join(",").into(),
        if items(row.at("/spec/tls")).is_empty() { "80" } else { "80, 443" }.into(),
        row.age(),
    ]
}
