//! `deltabus validate` where there is an API server to ask.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{fs, path::Path, process::Command};

use deltabus::simulator::{Fault, Simulator, SimulatorOptions, Times, Verb};
use support::{cluster::Cluster, engine::text};

/// Validates a file `v.toml` from within `dir`: exit code, stdout, stderr.
fn validate(dir: &Path, kubeconfig: &str, config: &str) -> (i32, String, String) {
    fs::write(dir.join("v.toml"), config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(["validate", "-c", "v.toml"])
        .current_dir(dir)
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn simulator() -> (Simulator, tempfile::TempDir, String) {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let kubeconfig = text(dir.path(), "kubeconfig");
    (simulator, dir, kubeconfig)
}

const OUT: &str = "[handlers.out]\ntype = \"stdout\"\n";

#[test]
fn what_each_pattern_means_is_told_with_its_place() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!("[resources.w]\nmatch = [\"po\", \"Deployment.v1.apps\", \"podz\"]\n{OUT}");
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["w", "po", "pods", "v1", "Pod", "list,", "watch", "v.toml:2:10"], "{stdout}");
    let deployments =
        ["w", "Deployment.v1.apps", "deployments.apps", "apps/v1", "Deployment", "list,", "watch", "v.toml:2:16"];
    assert_eq!(rows[2], deployments, "{stdout}");
    let missing = "note: v.toml:2:38: resources.w.match[2]: \"podz\" will be waited for: the server serves no such type; did you mean pods";
    assert!(stderr.contains(missing), "{stderr}");
    assert!(stderr.ends_with("note: the configuration is valid: 1 resource, 1 handler\n"), "{stderr}");
}

#[test]
fn d12_two_entries_on_one_type_and_types_that_must_exist_are_mistakes() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.a]\nmatch = [\"deploy\"]\n[resources.b]\nmatch = [\"deployments.apps\", \"po\", \"pods\"]\n\
         [resources.c]\nmatch = [\"gadgets\"]\non_missing = \"fail\"\n{OUT}"
    );
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 2, "{stderr}");
    for line in [
        "error: v.toml:4:10: resources.b.match[0]: \"deployments.apps\" is deployments.apps, as \"deploy\" in [resources.a] is: a type belongs to one entry\n",
        "warning: v.toml:4:36: resources.b.match[2]: \"pods\" is pods, as \"po\" is: one of them is enough\n",
        "error: v.toml:6:10: resources.c.match[0]: \"gadgets\": the server serves no such type",
        "error: the configuration cannot be used: 2 errors, 1 warning\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
}

#[test]
fn a_server_that_reviews_no_access_leaves_it_unknown() {
    let (simulator, dir, kubeconfig) = simulator();
    let refused = Fault::Status { code: 404, retry_after: None };
    simulator.faults().add("*selfsubjectaccessreviews", Verb::Any, Times::Always, refused).unwrap();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &format!("[resources.w]\nmatch = [\"po\"]\n{OUT}"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(" unknown "), "{stdout}");
    assert!(stderr.contains("whether it may be listed and watched is not known: "), "{stderr}");
}

#[test]
fn a_server_that_cannot_be_asked_is_exit_code_1() {
    let (simulator, dir, kubeconfig) = simulator();
    let url = simulator.url();
    simulator.stop();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &format!("[resources.w]\nmatch = [\"po\"]\n{OUT}"));
    assert_eq!((code, &*stdout), (1, ""), "{stderr}");
    let said =
        format!("error: the API server {url} cannot be asked, --offline checks without it: failed to get /api: ");
    assert!(stderr.contains(&said), "{stderr}");
}

#[test]
fn what_rbac_refuses_is_told_with_what_to_grant() {
    let Some(cluster) = Cluster::start_or_skip("what_rbac_refuses_is_told_with_what_to_grant", &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = format!("[resources.w]\nmatch = [\"pods\", \"deployments.apps\"]\n{OUT}");
    let kubeconfig = |path: &Path| path.to_str().unwrap().to_owned();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig(cluster.kubeconfig()), &config);
    assert_eq!((code, stdout.matches("list, watch").count()), (0, 2), "{stdout}{stderr}");
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig(cluster.limited_kubeconfig()), &config);
    assert_eq!((code, stdout.matches("no list, watch").count()), (0, 2), "{stdout}{stderr}");
    let said = "warning: v.toml:2:18: resources.w.match[1]: this user may not list and watch deployments.apps: grant it by a \
                ClusterRole with apiGroups [\"apps\"], resources [\"deployments\"], verbs [\"list\", \"watch\"], and a \
                ClusterRoleBinding\n";
    assert!(stderr.contains(said), "{stderr}");
}
