//! `deltabus manifests`: its objects are accepted by a real API server, and equal those of the Helm chart.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeMap, fs, path::Path};

use crate::support::{
    cluster::Cluster,
    command::{deltabus, simulator},
    helm,
};
use serde_json::Value;

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

/// Renders the chart's values with helm, and compares the objects with those of `deltabus manifests`.
#[test]
fn helm_chart_makes_the_same_objects() {
    let Some(helm) = helm::build_or_skip("helm_chart_makes_the_same_objects") else { return };
    let (_simulator, dir, kubeconfig) = simulator();
    for (config, args) in [
        (SMALL, &["-n", "watch", "--name", "bus"][..]),
        (ALL_KINDS, &["-n", "watch", "--name", "bus", "--monitoring", "--image", "registry.example.com/deltabus:1"]),
    ] {
        let of = |output: &[&str]| {
            let (code, stdout, stderr) =
                run(dir.path(), &kubeconfig, &[("config.toml", config)], &[args, output].concat());
            assert_eq!(code, 0, "{stderr}");
            stdout
        };
        let mut expected = by_name(&of(&[]));
        expected
            .remove(&("Namespace".to_owned(), String::new(), "watch".to_owned()))
            .expect("helm's --create-namespace");
        let values = dir.path().join("values.yaml");
        fs::write(&values, of(&["-o", "values"])).unwrap();
        let mut made = by_name(&helm.run(&["template", "bus", CHART, "-n", "watch", "-f", values.to_str().unwrap()]));
        assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (key, object) in &expected {
            if key.0 == "PersistentVolumeClaim" {
                let kept = made.get_mut(key).unwrap()["metadata"].as_object_mut().unwrap().remove("annotations");
                assert_eq!(kept.unwrap(), serde_json::json!({ "helm.sh/resource-policy": "keep" }));
            }
            assert_eq!(made[key], *object, "{key:?}");
        }
    }
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
    let (code, stdout, stderr) = run(dir.path(), kubeconfig, &[("config.toml", &config)], &["-n", "manifests"]);
    assert_eq!(code, 0, "{stderr}");
    let applied = cluster.apply_yaml(&stdout);
    assert_eq!(applied.len(), documents(&stdout).len());
    let set = &cluster.get("/apis/apps/v1/namespaces/manifests/statefulsets/deltabus")["spec"];
    assert_eq!(set["template"]["spec"]["terminationGracePeriodSeconds"], 75);
    let service = set["serviceName"].as_str().unwrap();
    let service = cluster.get(&format!("/api/v1/namespaces/manifests/services/{service}"));
    assert_eq!(service["spec"]["clusterIP"], "None");
}
