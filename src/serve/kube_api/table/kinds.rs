//! Columns and cells of the built-in kinds, after `pkg/printers/internalversion` of Kubernetes 1.36.

use serde_json::Value;

use super::{
    cells::{Row, human_duration, items, label_selector, labels, text},
    pod,
};
use crate::object::ResourceType;

/// A column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// Shown by `-o wide` alone.
    pub(super) wide: bool,
}

/// How objects of one kind become rows.
#[derive(Debug)]
pub(in crate::serve::kube_api) struct Kind {
    group: &'static str,
    plural: &'static str,
    pub(super) columns: &'static [Column],
    /// Returns a cell for every column.
    pub(super) cells: fn(&Row<'_>) -> Vec<Value>,
    /// Returns the row's conditions.
    pub(super) conditions: fn(&Row<'_>) -> Option<Value>,
}

/// What every object has.
pub(super) static NAME_AND_AGE: Kind = kind("", "", &[text_column("Name"), text_column("Age")], name_and_age);

/// Returns the kind of a type; name and age where it is not known.
pub(super) fn of(resource: &ResourceType) -> &'static Kind {
    let is_it = |kind: &&Kind| kind.group == resource.group && kind.plural == resource.plural;
    KINDS.iter().find(is_it).unwrap_or(&NAME_AND_AGE)
}

static KINDS: [Kind; 15] = [
    Kind {
        conditions: pod::conditions,
        ..kind(
            "",
            "pods",
            &[
                text_column("Name"),
                text_column("Ready"),
                text_column("Status"),
                text_column("Restarts"),
                text_column("Age"),
                wide("IP"),
                wide("Node"),
                wide("Nominated Node"),
                wide("Readiness Gates"),
            ],
            pod::cells,
        )
    },
    kind(
        "",
        "nodes",
        &[
            text_column("Name"),
            text_column("Status"),
            text_column("Roles"),
            text_column("Age"),
            text_column("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ],
        node,
    ),
    kind(
        "",
        "services",
        &[
            text_column("Name"),
            text_column("Type"),
            text_column("Cluster-IP"),
            text_column("External-IP"),
            text_column("Port(s)"),
            text_column("Age"),
            wide("Selector"),
        ],
        service,
    ),
    kind("", "namespaces", &[text_column("Name"), text_column("Status"), text_column("Age")], |row| {
        vec![name(row), row.text("/status/phase").into(), row.age()]
    }),
    kind("", "configmaps", &[text_column("Name"), text_column("Data"), text_column("Age")], |row| {
        let entries = ["/data", "/binaryData"].map(|map| row.at(map).as_object().map_or(0, serde_json::Map::len));
        vec![name(row), (entries[0] + entries[1]).into(), row.age()]
    }),
    kind(
        "",
        "events",
        &[
            text_column("Last Seen"),
            text_column("Type"),
            text_column("Reason"),
            text_column("Object"),
            wide("Subobject"),
            wide("Source"),
            text_column("Message"),
            wide("First Seen"),
            wide("Count"),
            wide("Name"),
        ],
        event,
    ),
    kind(
        "",
        "persistentvolumeclaims",
        &[
            text_column("Name"),
            text_column("Status"),
            text_column("Volume"),
            text_column("Capacity"),
            text_column("Access Modes"),
            text_column("StorageClass"),
            text_column("VolumeAttributesClass"),
            text_column("Age"),
            wide("VolumeMode"),
        ],
        volume_claim,
    ),
    kind(
        "apps",
        "deployments",
        &[
            text_column("Name"),
            text_column("Ready"),
            text_column("Up-to-date"),
            text_column("Available"),
            text_column("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        |row| {
            let ready = format!("{}/{}", row.number("/status/readyReplicas"), replicas(row));
            let counts = ["/status/updatedReplicas", "/status/availableReplicas"].map(|count| row.number(count).into());
            let selector = label_selector(row.at("/spec/selector")).into();
            concat([&[name(row), ready.into()], &counts, &[row.age()], &row.containers(TEMPLATE), &[selector]])
        },
    ),
    kind(
        "apps",
        "replicasets",
        &[
            text_column("Name"),
            number_column("Desired"),
            number_column("Current"),
            number_column("Ready"),
            text_column("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        |row| {
            let counts = [replicas(row), row.number("/status/replicas"), row.number("/status/readyReplicas")];
            let selector = [selector_or_none(row.at("/spec/selector"))];
            concat([&[name(row)], &counts.map(Value::from), &[row.age()], &row.containers(TEMPLATE), &selector])
        },
    ),
    kind(
        "apps",
        "statefulsets",
        &[text_column("Name"), text_column("Ready"), text_column("Age"), wide("Containers"), wide("Images")],
        |row| {
            let ready = format!("{}/{}", row.number("/status/readyReplicas"), replicas(row));
            concat([&[name(row), ready.into(), row.age()], &row.containers(TEMPLATE), &[], &[], &[]])
        },
    ),
    kind(
        "apps",
        "daemonsets",
        &[
            text_column("Name"),
            number_column("Desired"),
            number_column("Current"),
            number_column("Ready"),
            number_column("Up-to-date"),
            number_column("Available"),
            text_column("Node Selector"),
            text_column("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        |row| {
            let counts = [
                "/status/desiredNumberScheduled",
                "/status/currentNumberScheduled",
                "/status/numberReady",
                "/status/updatedNumberScheduled",
                "/status/numberAvailable",
            ];
            let counts = counts.map(|count| Value::from(row.number(count)));
            let nodes = [labels(row.at("/spec/template/spec/nodeSelector")).into(), row.age()];
            let selector = [selector_or_none(row.at("/spec/selector"))];
            concat([&[name(row)], &counts, &nodes, &row.containers(TEMPLATE), &selector])
        },
    ),
    kind(
        "batch",
        "jobs",
        &[
            text_column("Name"),
            text_column("Status"),
            text_column("Completions"),
            text_column("Duration"),
            text_column("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        job,
    ),
    kind(
        "batch",
        "cronjobs",
        &[
            text_column("Name"),
            text_column("Schedule"),
            text_column("Timezone"),
            Column { name: "Suspend", kind: "boolean", wide: false },
            number_column("Active"),
            text_column("Last Schedule"),
            text_column("Age"),
            wide("Containers"),
            wide("Images"),
            wide("Selector"),
        ],
        cron_job,
    ),
    kind(
        "networking.k8s.io",
        "ingresses",
        &[
            text_column("Name"),
            text_column("Class"),
            text_column("Hosts"),
            text_column("Address"),
            text_column("Ports"),
            text_column("Age"),
        ],
        ingress,
    ),
    kind(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &[text_column("Name"), Column { name: "Created At", kind: "date", wide: false }],
        |row| vec![name(row), row.text("/metadata/creationTimestamp").into()],
    ),
];

/// Where workloads keep their containers.
const TEMPLATE: &str = "/spec/template/spec/containers";

const fn kind(
    group: &'static str,
    plural: &'static str,
    columns: &'static [Column],
    cells: fn(&Row<'_>) -> Vec<Value>,
) -> Kind {
    Kind { group, plural, columns, cells, conditions: |_| None }
}

const fn text_column(name: &'static str) -> Column {
    Column { name, kind: "string", wide: false }
}

const fn number_column(name: &'static str) -> Column {
    Column { name, kind: "integer", wide: false }
}

const fn wide(name: &'static str) -> Column {
    Column { name, kind: "string", wide: true }
}

fn concat(parts: [&[Value]; 5]) -> Vec<Value> {
    parts.concat()
}

fn name(row: &Row<'_>) -> Value {
    row.text("/metadata/name").into()
}

fn name_and_age(row: &Row<'_>) -> Vec<Value> {
    vec![name(row), row.age()]
}

/// Returns how many are wanted; 1 where that is left to the server.
fn replicas(row: &Row<'_>) -> i64 {
    row.at("/spec/replicas").as_i64().unwrap_or(1)
}

fn selector_or_none(selector: &Value) -> Value {
    let selector = label_selector(selector);
    if selector.is_empty() { "<none>".into() } else { selector.into() }
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
    let roles = if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") };
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
        roles.into(),
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
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => external.join(","),
        "LoadBalancer" => {
            let mut all = balancers(row);
            all.extend(external);
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => row.text("/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    };
    let port = |port: &Value| {
        let (number, protocol) = (&port["port"], text(&port["protocol"]));
        match port["nodePort"].as_i64() {
            Some(node_port) if node_port > 0 => format!("{number}:{node_port}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    };
    let ports: Vec<_> = row.items("/spec/ports").iter().map(port).collect();
    let ports = if ports.is_empty() { "<none>".to_owned() } else { ports.join(",") };
    vec![
        name(row),
        kind.into(),
        row.text_or("/spec/clusterIPs/0", "<none>").into(),
        external.into(),
        ports.into(),
        row.age(),
        labels(row.at("/spec/selector")).into(),
    ]
}

/// Returns the addresses of the load balancers, sorted.
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
    let ended = [("Complete", "Complete"), ("Failed", "Failed")];
    let under_way = ["Suspended", "FailureTarget", "SuccessCriteriaMet"].map(|kind| (kind, kind));
    let find = |states: &[(&str, &'static str)]| {
        states.iter().find(|(kind, _)| row.is_condition_true(kind)).map(|(_, state)| *state)
    };
    let terminating = row.is_terminating().then_some("Terminating");
    let status = find(&ended).or(terminating).or_else(|| find(&under_way)).unwrap_or("Running");
    let state = [name(row), status.into(), completions.into(), duration.unwrap_or_default().into(), row.age()];
    concat([&state, &row.containers(TEMPLATE), &[selector_or_none(row.at("/spec/selector"))], &[], &[]])
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
    concat([&state, &containers, &[selector_or_none(row.at("/spec/jobTemplate/spec/selector"))], &[], &[]])
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
