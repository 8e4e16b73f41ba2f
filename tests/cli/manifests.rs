//! `deltabus manifests`: its objects are accepted by a real API server, and equal those of the Helm chart.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::support::{
    cluster::Cluster,
    command::{deltabus, simulator},
    engine::text,
    helm,
};
use serde_json::{Value, json};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/deltabus");

const SMALL: &str = "[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"stdout\"\n";

/// A configuration with secrets of each kind, two written directories, roles in two places, and HTTP for other pods.
const ALL_KINDS: &str = r#"
shutdown_timeout = "1m"
[resources.apps]
match = ["pods", "deployments.apps"]
[resources.mine]
match = ["configmaps"]
namespaces = ["shop"]
[kube]
context = "simulator"
[http]
listen = "0.0.0.0:8443"
auth = "token"
token = { file = "/run/secrets/deltabus/token" }
tls = { cert_file = "/run/secrets/tls/tls.crt", key_file = "/run/secrets/tls/tls.key" }
[state]
dir = "/var/lib/deltabus/state"
max_bytes = "8GiB"
[handlers.audit]
type = "file"
path = "/var/lib/deltabus/audit/%Y.jsonl"
rotate = { max_bytes = "1GiB", keep = 3 }
[handlers.hook]
type = "webhook"
url = "https://hooks.example.com:8444/events"
auth = { bearer = { env = "HOOK_TOKEN" } }
[handlers.bus]
type = "nats"
servers = ["nats://nats.nats"]
auth = { creds_file = "/etc/nats/creds" }
"#;

/// Every value that depends on the cluster.
const SITE: &str = r#"
imagePullPolicy: Always
imagePullSecrets: [{ name: registry }]
nodeSelector: { disk: ssd, "on": "true" }
tolerations: [{ key: dedicated, operator: Equal, value: infra, effect: NoSchedule }]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{ matchExpressions: [{ key: zone, operator: In, values: [a, b] }] }]
priorityClassName: system-cluster-critical
podLabels: { team: platform }
podAnnotations: { example.com/scan: "false" }
serviceAccount: { annotations: { example.com/role: watcher } }
storageClass: ""
initContainers:
  - { name: programs, image: "busybox:musl", command: [cp, /bin/busybox, /target], volumeMounts: [{ name: programs, mountPath: /target }] }
extraArgs: [--compact-state]
extraEnv:
  - { name: HOOK_TOKEN, valueFrom: { secretKeyRef: { name: hooks, key: token } } }
  - { name: DELTABUS__LOG__LEVEL, value: debug }
extraVolumes:
  - { name: programs, emptyDir: {} }
  - { name: scripts, configMap: { name: scripts, defaultMode: 0555 } }
extraVolumeMounts:
  - { name: programs, mountPath: /bin }
  - { name: scripts, mountPath: /scripts, readOnly: true }
extraEgressPorts: [25]
monitoringLabels: { release: kube-prometheus-stack }
resources: { limits: { memory: null, cpu: 2 } }
"#;

/// Values that neither `--values` nor the chart takes, and a part of the error of `--values`.
const WRONG_SITES: [(&str, &str); 11] = [
    ("nodeSelectr: {}", "nodeSelectr: --values has no such value: expected one of `imagePullPolicy`, "),
    ("nodeSelector: { gpu: true }", "nodeSelector: invalid type: boolean `true`, expected a string"),
    ("tolerations: [{ kye: dedicated }]", "tolerations: unknown field `kye`, expected one of `key`, "),
    ("affinity: { node: {} }", "affinity: unknown field `node`, expected one of `nodeAffinity`, "),
    ("imagePullPolicy: Sometimes", "imagePullPolicy: unknown variant `Sometimes`, expected one of `Always`, "),
    (
        "imagePullSecrets: [registry]",
        "imagePullSecrets: invalid type: string \"registry\", expected an object with a name",
    ),
    ("extraEnv: [{ name: A, value: 1 }]", "extraEnv: invalid type: integer `1`, expected a string"),
    ("extraVolumeMounts: [{ name: a }]", "extraVolumeMounts: missing field `mountPath`"),
    ("serviceAccount: { create: false }", "serviceAccount: unknown field `create`, expected `annotations`"),
    ("extraEgressPorts: [0]", "extraEgressPorts: invalid value: integer `0`, expected a nonzero u16"),
    ("podLabels: { app.kubernetes.io/name: x }", "podLabels: the label app.kubernetes.io/name is fixed"),
];

/// Runs `deltabus manifests` for configurations, one file each.
fn run(dir: &Path, kubeconfig: &str, configs: &[(&str, &str)], args: &[&str]) -> (i32, String, String) {
    let mut command = vec!["manifests"];
    for (name, text) in configs {
        fs::write(dir.join(name), text).unwrap();
        command.extend(["-c", name]);
    }
    deltabus(dir, Path::new(kubeconfig), &[&command, args].concat(), &[("DELTABUS__LOG__LEVEL", "trace")])
}

fn documents(yaml: &str) -> Vec<Value> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(yaml, options).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// Returns objects by kind, namespace and name.
fn by_name(yaml: &str) -> BTreeMap<(String, String, String), Value> {
    let field =
        |object: &Value, path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let key = |object: &Value| {
        (field(object, "/kind"), field(object, "/metadata/namespace"), field(object, "/metadata/name"))
    };
    documents(yaml).into_iter().map(|object| (key(&object), object)).collect()
}

#[test]
fn manifests_install_configuration_with_least_rights() {
    let (simulator, dir, kubeconfig) = simulator();
    let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", ALL_KINDS)], &["--monitoring"]);
    assert_eq!(code, 0, "{stderr}");
    let port = simulator.url().rsplit(':').next().unwrap().to_owned();
    let objects = stdout.replace(&format!("port: {port}\n"), "port: (of the API server)\n");
    let (objects, _alerts) = objects.split_once("  groups:").unwrap();
    insta::assert_snapshot!("manifests", objects);
    for remark in [
        "kubectl -n deltabus create secret generic deltabus-env --from-literal=HOOK_TOKEN=…",
        "kubectl -n deltabus create secret generic tls --from-file=tls.crt=… --from-file=tls.key=…",
        "kubectl -n deltabus create secret generic nats --from-file=creds=…",
        "This cluster has no Prometheus operator",
    ] {
        assert!(stderr.contains(remark) && stdout.contains(remark), "{remark}: {stderr}");
    }
}

#[test]
fn files_are_merged_in_pod_in_given_order() {
    let (_simulator, dir, kubeconfig) = simulator();
    fs::create_dir(dir.path().join("more")).unwrap();
    fs::write(dir.path().join("more/b.toml"), "[log]\nlevel = \"debug\"\n").unwrap();
    fs::write(dir.path().join("more/a.toml"), "[log]\nlevel = \"warn\"\n").unwrap();
    let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("z.toml", SMALL)], &["-c", "more"]);
    assert_eq!(code, 0, "{stderr}");
    let config = &by_name(&stdout)[&("ConfigMap".to_owned(), "deltabus".to_owned(), "deltabus".to_owned())]["data"];
    let files: Vec<_> = config.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(files, ["00-z.toml", "01-a.toml", "02-b.toml", "03-pod.toml"]);
    assert_eq!(config["00-z.toml"], SMALL);
    // The environment of this process does not affect the pod.
    assert!(!stdout.contains("trace"), "{stdout}");

    // The pod's files are a configuration with the same meaning.
    let pod = dir.path().join("pod");
    fs::create_dir(&pod).unwrap();
    for (name, text) in config.as_object().unwrap() {
        fs::write(pod.join(name), text.as_str().unwrap()).unwrap();
    }
    let (code, shown, stderr) = deltabus(dir.path(), Path::new(&kubeconfig), &["config", "show", "-c", "pod"], &[]);
    assert_eq!(code, 0, "{stderr}");
    assert!(shown.contains("level = \"debug\"") && shown.contains("probe_listen = \"0.0.0.0:8081\""), "{shown}");
}

#[test]
fn wildcards_are_granted_as_groups_on_request() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = SMALL.replace("\"pods\"]", "\"pods\", \"*.apps\"]");
    for (args, expected) in [(&[][..], "  - statefulsets\n"), (&["--wildcard"], "  - apps\n  resources:\n  - \"*\"\n")]
    {
        let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", &config)], args);
        assert!(code == 0 && stdout.contains(expected), "{args:?}: {stderr}{stdout}");
    }
}

#[test]
fn configuration_unsuitable_for_pods_is_refused() {
    let (_simulator, dir, kubeconfig) = simulator();
    let check = |more: &str, args: &[&str], expected: &str| {
        let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", &format!("{SMALL}{more}"))], args);
        assert!(code == 2 && stdout.is_empty() && stderr.contains(expected), "{more}: {code} {stderr}{stdout}");
    };
    let file = |path: &str| format!("[handlers.f]\ntype = \"file\"\npath = \"{path}\"\n");
    check(&file("events.jsonl"), &[], "handlers.f.path: a pod can write only to volumes");
    check(&file("/events.jsonl"), &[], "expected an absolute path in a separate directory");
    check("[state]\ndir = \"state\"\n", &[], "state.dir: a pod can write only to volumes");
    check("[http]\nprobe_listen = \"127.0.0.1:8081\"\n", &[], "http.probe_listen: the kubelet cannot reach a loopback");
    let token = |path: &str| format!("[http]\nauth = \"token\"\ntoken = {{ file = \"{path}\" }}\n");
    check(&token("token"), &[], "cannot mount a Secret at token: expected a separate directory");
    check(&token("/token"), &[], "cannot mount a Secret at /token");
    check(&token("/run/secrets/a/to ken"), &[], "expected a name of letters");
    let inside = format!("{}[state]\ndir = \"/run/secrets/a/state\"\n", token("/run/secrets/a/token"));
    check(&inside, &[], "the engine writes to /run/secrets/a/state, which must be elsewhere");
    let nested =
        format!("{}[redact]\nhmac_key = {{ file = \"/run/secrets/a/b/key\" }}\n", token("/run/secrets/a/token"));
    check(&nested, &[], "a Secret is already mounted at /run/secrets/a/b");
    let program = "[handlers.script]\ntype = \"exec\"\ncommand = [\"/on-change\"]\n";
    check(program, &[], "--allow-exec");
    check(&format!("# {}\n", "x".repeat(1 << 20)), &[], "a ConfigMap holds 1048576");
    check("", &["-n", "Not_A_Name"], "lower-case letters");
    let (code, stdout, stderr) =
        run(dir.path(), &kubeconfig, &[("config.toml", &format!("{SMALL}{program}"))], &["--allow-exec"]);
    assert!(code == 0 && stdout.contains("- --allow-exec\n"), "{stderr}{stdout}");
}

#[test]
fn wrong_values_of_the_cluster_are_all_named() {
    let (_simulator, dir, kubeconfig) = simulator();
    let check = |site: &str, expected: &[&str]| {
        fs::write(dir.path().join("site.yaml"), site).unwrap();
        let (code, stdout, stderr) =
            run(dir.path(), &kubeconfig, &[("config.toml", SMALL)], &["--values", "site.yaml"]);
        assert!(code == 2 && stdout.is_empty(), "{site}: {code} {stderr}{stdout}");
        for expected in expected {
            assert!(stderr.contains(&format!("site.yaml: {expected}")), "{site}: {stderr}");
        }
    };
    let all = WRONG_SITES.map(|(site, _)| site).join("\n");
    check(&all, &WRONG_SITES.map(|(_, expected)| expected));
    check("image: other:1", &["image: --values has no such value"]);
    check("nodeSelector: {}\nnodeSelector: {}\n", &["invalid YAML: "]);
    check("- nodeSelector", &["expected one mapping, such as "]);
    check("a: 1\n---\nb: 2\n", &["expected one mapping, such as "]);
    let (code, _, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", SMALL)], &["--values", "none.yaml"]);
    assert!(code == 2 && stderr.contains("none.yaml: failed to read the file: "), "{code} {stderr}");
}

#[test]
fn values_of_the_cluster_reach_the_objects() {
    let (_simulator, dir, kubeconfig) = simulator();
    fs::write(dir.path().join("site.yaml"), SITE).unwrap();
    let args = ["--monitoring", "--values", "site.yaml"];
    let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", ALL_KINDS)], &args);
    assert_eq!(code, 0, "{stderr}");
    let objects = by_name(&stdout);
    let object = |kind: &str| &objects[&(kind.to_owned(), "deltabus".to_owned(), "deltabus".to_owned())];
    let set = object("StatefulSet");
    let pod = "/spec/template/spec";
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    for (object, path, expected) in [
        (set, &*format!("{pod}/imagePullSecrets/0/name"), json!("registry")),
        (set, &format!("{pod}/nodeSelector"), json!({ "disk": "ssd", "on": "true" })),
        (set, &format!("{pod}/tolerations/0/effect"), json!("NoSchedule")),
        (set, &format!("{pod}/priorityClassName"), json!("system-cluster-critical")),
        (set, &format!("{pod}/initContainers/0/command/0"), json!("cp")),
        (set, "/spec/template/metadata/labels/team", json!("platform")),
        (set, "/spec/template/metadata/annotations", json!({ "example.com/scan": "false" })),
        (container, "/imagePullPolicy", json!("Always")),
        (container, "/args/3", json!("--compact-state")),
        (container, "/env/0/valueFrom/secretKeyRef", json!({ "name": "hooks", "key": "token" })),
        (container, "/env/1", json!({ "name": "DELTABUS__LOG__LEVEL", "value": "debug" })),
        (container, "/resources/limits", json!({ "cpu": 2 })),
        (object("ServiceAccount"), "/metadata/annotations", json!({ "example.com/role": "watcher" })),
        (object("PersistentVolumeClaim"), "/spec/storageClassName", json!("")),
        (object("ServiceMonitor"), "/metadata/labels/release", json!("kube-prometheus-stack")),
        (object("PrometheusRule"), "/metadata/labels/release", json!("kube-prometheus-stack")),
    ] {
        assert_eq!(object.pointer(path), Some(&expected), "{path}: {object}");
    }
    let has = |list: &Value, key: &str, value: &Value| list.as_array().unwrap().iter().any(|item| item[key] == *value);
    assert!(has(&container["volumeMounts"], "mountPath", &json!("/scripts")), "{container}");
    assert!(has(&set["spec"]["template"]["spec"]["volumes"], "name", &json!("scripts")), "{set}");
    assert!(has(&object("NetworkPolicy")["spec"]["egress"][0]["ports"], "port", &json!(25)));
    assert!(!set["spec"]["template"]["spec"]["affinity"]["nodeAffinity"].is_null(), "{set}");
    assert!(!stderr.contains("HOOK_TOKEN"), "its Secret is given: {stderr}");
}

#[test]
fn receiver_on_this_machine_is_remarked() {
    let (_simulator, dir, kubeconfig) = simulator();
    for (host, is_here) in [("127.0.0.1:9000", true), ("localhost", true), ("hooks.ops.svc", false)] {
        let config = format!("{SMALL}[handlers.hook]\ntype = \"webhook\"\nurl = \"http://{host}/\"\n");
        let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", &config)], &[]);
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(stdout.contains("In a pod that is the pod itself"), is_here, "{host}: {stdout}");
    }
}

#[test]
fn program_that_may_be_missing_is_remarked() {
    let (_simulator, dir, kubeconfig) = simulator();
    let remark = |program: &str, mounted: &str| {
        let config = format!("{SMALL}[handlers.script]\ntype = \"exec\"\ncommand = [\"{program}\"]\n");
        let site = format!("extraVolumeMounts: [{{ name: programs, mountPath: {mounted} }}]");
        fs::write(dir.path().join("site.yaml"), if mounted.is_empty() { "" } else { &site }).unwrap();
        let args = ["--allow-exec", "--values", "site.yaml"];
        let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", &config)], &args);
        assert_eq!(code, 0, "{stderr}");
        let remark = format!("[handlers.script] runs \"{program}\". The image of deploy/Dockerfile has no shell");
        assert_eq!(stdout.contains(&remark), stderr.contains(&remark), "{stdout}{stderr}");
        stdout.contains(&remark)
    };
    assert!(remark("/bin/sh", ""));
    assert!(remark("sh", ""));
    assert!(remark("/bin/sh", "/scripts"));
    assert!(remark("/binary", "/bin"));
    assert!(!remark("/bin/sh", "/bin"));
    assert!(!remark("sh", "/bin"));
}

/// Renders the chart's values with helm, and compares the objects with those of `deltabus manifests`.
#[test]
fn helm_chart_makes_the_same_objects() {
    let Some(helm) = helm::build_or_skip("helm_chart_makes_the_same_objects") else { return };
    let (_simulator, dir, kubeconfig) = simulator();
    for (config, site, args) in [
        (SMALL, "", &["-n", "watch", "--name", "bus"][..]),
        (
            ALL_KINDS,
            "",
            &["-n", "watch", "--name", "bus", "--monitoring", "--image", "registry.example.com/deltabus:1"],
        ),
        (ALL_KINDS, SITE, &["-n", "watch", "--name", "bus", "--monitoring"]),
    ] {
        fs::write(dir.path().join("site.yaml"), site).unwrap();
        let of = |output: &[&str]| {
            let (code, stdout, stderr) =
                run(dir.path(), &kubeconfig, &[("config.toml", config)], &[args, output].concat());
            assert_eq!(code, 0, "{stderr}");
            stdout
        };
        let mut expected = by_name(&of(&["--values", "site.yaml"]));
        expected
            .remove(&("Namespace".to_owned(), String::new(), "watch".to_owned()))
            .expect("helm's --create-namespace");
        let [values, site] = ["values.yaml", "site.yaml"].map(|name| text(dir.path(), name));
        // Either deltabus or Helm merges the values of the cluster.
        for (given, file) in [(&["--values", "site.yaml"][..], &values), (&[], &site)] {
            fs::write(&values, of(&[given, &["-o", "values"]].concat())).unwrap();
            let mut made = by_name(&helm.run(&["template", "bus", CHART, "-n", "watch", "-f", &values, "-f", file]));
            assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (key, object) in &expected {
                if key.0 == "PersistentVolumeClaim" {
                    let kept = made.get_mut(key).unwrap()["metadata"].as_object_mut().unwrap().remove("annotations");
                    assert_eq!(kept.unwrap(), json!({ "helm.sh/resource-policy": "keep" }));
                }
                assert_eq!(made[key], *object, "{key:?}");
            }
        }
    }
}

#[test]
fn chart_documents_and_checks_every_value() {
    let (_simulator, dir, kubeconfig) = simulator();
    fs::write(dir.path().join("site.yaml"), SITE).unwrap();
    let args = ["-o", "values", "--values", "site.yaml"];
    let (code, stdout, stderr) = run(dir.path(), &kubeconfig, &[("config.toml", ALL_KINDS)], &args);
    assert_eq!(code, 0, "{stderr}");
    let keys = |map: &Value| map.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let written = keys(&documents(&stdout)[0]);
    let documented = fs::read_to_string(format!("{CHART}/values.yaml")).unwrap();
    assert_eq!(keys(&documents(&documented)[0]), written);
    let schema = fs::read_to_string(format!("{CHART}/values.schema.json")).unwrap();
    let mut checked = keys(&serde_json::from_str::<Value>(&schema).unwrap()["properties"]);
    assert!(checked.remove("global"), "Helm sets it");
    assert_eq!(checked, written);
}

#[test]
fn helm_chart_is_valid_and_refuses_wrong_values() {
    let Some(helm) = helm::build_or_skip("helm_chart_is_valid_and_refuses_wrong_values") else { return };
    let linted = helm.run(&["lint", "--strict", CHART]);
    assert!(linted.contains("0 chart(s) failed"), "{linted}");
    let version = format!("appVersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(fs::read_to_string(format!("{CHART}/Chart.yaml")).unwrap().contains(&version), "{version}");
    for (wrong, expected) in [
        ("imagee=x", "imagee"),
        ("ports.probe=0", "probe"),
        ("rbac.clusterRules[0].verbs[0]=delete", "verbs"),
        ("storage.paths[0]=relative", "paths"),
        ("config[0].name=x.yaml", "config"),
    ] {
        let error = helm.try_run(&["template", "bus", CHART, "--set", wrong]).expect_err(wrong);
        assert!(error.contains("values don't meet the specifications") && error.contains(expected), "{error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    for (wrong, _) in WRONG_SITES {
        fs::write(file.path(), wrong).unwrap();
        let error = helm.try_run(&["template", "bus", CHART, "-f", file.path().to_str().unwrap()]).expect_err(wrong);
        let (key, _) = wrong.split_once(':').unwrap();
        assert!(error.contains("values don't meet the specifications") && error.contains(key), "{wrong}: {error}");
    }
}

#[test]
fn real_api_server_accepts_every_object() {
    let Some(cluster) = Cluster::shared_or_skip("real_api_server_accepts_every_object") else { return };
    let dir = tempfile::tempdir().unwrap();
    for namespace in ["manifests", "shop"] {
        cluster.apply_yaml(&format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n"));
    }
    let config = ALL_KINDS.replace("context = \"simulator\"", "");
    let kubeconfig = cluster.kubeconfig().to_str().unwrap();
    fs::write(dir.path().join("site.yaml"), SITE).unwrap();
    let args = ["-n", "manifests", "--values", "site.yaml"];
    let (code, stdout, stderr) = run(dir.path(), kubeconfig, &[("config.toml", &config)], &args);
    assert_eq!(code, 0, "{stderr}");
    let applied = cluster.apply_yaml(&stdout);
    assert_eq!(applied.len(), documents(&stdout).len());
    let set = &cluster.get("/apis/apps/v1/namespaces/manifests/statefulsets/deltabus")["spec"];
    assert_eq!(set["template"]["spec"]["terminationGracePeriodSeconds"], 75);
    let service = set["serviceName"].as_str().unwrap();
    let service = cluster.get(&format!("/api/v1/namespaces/manifests/services/{service}"));
    assert_eq!(service["spec"]["clusterIP"], "None");
}
