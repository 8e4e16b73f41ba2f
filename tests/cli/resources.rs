//! `deltabus resources`: the types that the server offers, the configuration matches, and RBAC allows.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path, process::Command};

use crate::support::{
    cluster::Cluster,
    command::{deltabus, simulator},
};
use deltabus::internals::simulator::{RequestKind, ServerFault, Times};
use serde_json::Value;

/// Runs `deltabus resources` on a configuration; returns stdout and stderr.
fn resources(dir: &Path, kubeconfig: &str, config: &str, args: &[&str]) -> (String, String) {
    resources_with(dir, kubeconfig, config, args, &[])
}

fn resources_with(
    dir: &Path,
    kubeconfig: &str,
    config: &str,
    args: &[&str],
    environment: &[(&str, &str)],
) -> (String, String) {
    fs::write(dir.join("r.toml"), config).unwrap();
    let args = [&["resources", "-c", "r.toml"], args].concat();
    let (code, stdout, stderr) = deltabus(dir, Path::new(kubeconfig), &args, environment);
    assert_eq!(code, 0, "{stdout}{stderr}");
    (stdout, stderr)
}

const CONFIG: &str = "[resources.work]\nmatch = [\"deploy\", \"*.batch\", \"podz\"]\nexclude = [\"jobs\"]\n\
                      [resources.rest]\nmatch = [\"*.apps\", \"no\"]\n[handlers.out]\ntype = \"stdout\"\n";

#[test]
fn each_type_has_line_with_entry_and_pattern() {
    let (_simulator, dir, kubeconfig) = simulator();
    let (stdout, stderr) = resources(dir.path(), &kubeconfig, CONFIG, &[]);
    insta::assert_snapshot!("resources_table", stdout);
    let missing =
        "note: [resources.work] \"podz\" matches nothing now: the server serves no such type; did you mean pods?\n";
    assert!(stderr.starts_with(missing), "{stderr}");
}

#[test]
fn all_flag_also_shows_unmatched_types() {
    let (_simulator, dir, kubeconfig) = simulator();
    let (stdout, stderr) = resources(dir.path(), &kubeconfig, CONFIG, &["--all"]);
    let (matched, told) = resources(dir.path(), &kubeconfig, CONFIG, &[]);
    let others = stdout.lines().count() - matched.lines().count();
    assert!(
        others >= 10
            && told.ends_with(&format!("note: no entry matches {others} types of the server; --all shows them\n")),
        "{told}"
    );
    let pods = stdout.lines().find(|line| line.starts_with("pods ")).unwrap();
    let cells: Vec<&str> = pods.split_whitespace().collect();
    assert_eq!(cells, ["pods", "-", "v1", "Pod", "Namespaced", "-", "-", "list,", "watch"]);
    assert!(!stderr.contains("--all"), "{stderr}");
}

#[test]
fn forced_colours_change_no_text() {
    let (_simulator, dir, kubeconfig) = simulator();
    let (plain, _) = resources(dir.path(), &kubeconfig, CONFIG, &["--all"]);
    let (coloured, _) = resources_with(dir.path(), &kubeconfig, CONFIG, &["--all"], &[("CLICOLOR_FORCE", "1")]);
    assert!(!plain.contains('\x1b') && coloured.contains("\x1b[1mNAME"), "{coloured}");
    let escapes = regex::Regex::new("\x1b\\[[0-9;]*m").unwrap();
    assert_eq!(escapes.replace_all(&coloured, ""), plain);
}

#[test]
fn json_output_has_the_same_content() {
    let (simulator, dir, kubeconfig) = simulator();
    let refused = ServerFault::Status { code: 405, retry_after: None };
    simulator.faults().add("*selfsubjectaccessreviews", RequestKind::Any, Times::Always, refused).unwrap();
    let (stdout, stderr) = resources(dir.path(), &kubeconfig, CONFIG, &["-o", "json"]);
    assert_eq!(stderr, "");
    let document: Value = serde_json::from_str(&stdout).unwrap();
    let rows = document["resources"].as_array().unwrap();
    let (table, _) = resources(dir.path(), &kubeconfig, CONFIG, &[]);
    assert_eq!(rows.len(), table.lines().count() - 1, "{stdout}");
    let nodes = rows.iter().find(|row| row["name"] == "nodes").unwrap();
    // a server without access reviews gives no result
    let expected = serde_json::json!({
        "name": "nodes", "group": "", "version": "v1", "kind": "Node", "namespaced": false, "entry": "rest", "pattern": "no",
        "access": "unknown", "refused": [], "unknown": "the server does not report the rights of users",
    });
    assert_eq!(nodes, &expected);
    assert_eq!(document["unmatched"][0]["pattern"], "podz");
    assert_eq!((&document["conflicts"], &document["unavailable"]), (&serde_json::json!([]), &serde_json::json!([])));
}

#[test]
fn unreachable_server_is_exit_code_1_for_resources() {
    let (simulator, dir, kubeconfig) = simulator();
    let url = simulator.url();
    simulator.stop();
    fs::write(dir.path().join("r.toml"), CONFIG).unwrap();
    for command in ["resources", "rbac"] {
        let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args([command, "-c", "r.toml"])
            .current_dir(dir.path())
            .env_clear()
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(1), &b""[..]), "{stderr}");
        assert!(
            stderr.contains(&format!("error: cannot reach the API server {url}: failed to get /api: ")),
            "{stderr}"
        );
    }
}

#[test]
fn rbac_refusals_appear_in_their_line() {
    let Some(cluster) = Cluster::shared_or_skip("rbac_refusals_appear_in_their_line") else { return };
    cluster.apply(&serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "nodes" },
        "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["list"] }],
    }));
    cluster.apply(&serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "nodes" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nodes" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "limited" }],
    }));
    let nodes = serde_json::json!({ "resource": "nodes", "verb": "list" });
    cluster.wait_allowed(true, cluster.limited_kubeconfig(), &nodes);
    let dir = tempfile::tempdir().unwrap();
    let config = "[resources.all]\nmatch = [\"*\"]\nexclude = [\"secrets\"]\n[resources.mine]\nmatch = [\"pods\"]\n\
                  namespaces = [\"team-a\", \"team-b\"]\n[handlers.out]\ntype = \"stdout\"\n";
    let kubeconfig = |path: &Path| path.to_str().unwrap().to_owned();
    let (stdout, _) = resources(dir.path(), &kubeconfig(cluster.limited_kubeconfig()), config, &[]);
    let ends = |name: &str, access: &str| {
        let line =
            stdout.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{stdout}"));
        assert!(line.ends_with(access), "{line}");
    };
    ends("nodes", "*        no watch");
    ends("pods", "pods     no list, watch in team-a, team-b");
    assert!(!stdout.contains("secrets ") && stdout.matches("\nevents ").count() == 1, "{stdout}");
    let (stdout, stderr) = resources(dir.path(), &kubeconfig(cluster.kubeconfig()), config, &[]);
    assert!(!stdout.contains(" no list") && stdout.lines().count() > 40, "{stdout}{stderr}");
}
