//! `deltabus rbac` with a real API server: the printed roles are sufficient, and each of their verbs is needed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::support::{
    cluster::Cluster,
    command::deltabus,
    engine::{Engine, text},
};
use deltabus::internals::simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

/// Prints the roles of a configuration, by discovery on a kubeconfig's server.
fn roles(dir: &Path, kubeconfig: &Path, config: &str, args: &[&str]) -> String {
    fs::write(dir.join("rbac.toml"), config).unwrap();
    let (code, stdout, stderr) = deltabus(dir, kubeconfig, &[&["rbac", "-c", "rbac.toml"], args].concat(), &[]);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

const OUT: &str = "[handlers.out]\ntype = \"blackhole\"\n";

/// Wildcards, cluster-scoped types, literal namespaces, globs, a selector, Secrets, and missing types.
const ALL_KINDS: &str = "[resources.apps]\nmatch = [\"*.apps\", \"no\", \"podz\"]\nexclude = [\"replicasets\"]\n\
                         [resources.mine]\nmatch = [\"pods\", \"secrets\", \"deploy\"]\nnamespaces = [\"team-b\", \"team-a\"]\n\
                         mode = \"metadata\"\n\
                         [resources.some]\nmatch = [\"services\"]\nnamespaces = [\"team-*\"]\nnamespace_selector = \"a=b\"\n";

#[test]
fn roles_grant_each_right_once_where_needed() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let kubeconfig = PathBuf::from(text(dir.path(), "kubeconfig"));
    insta::assert_snapshot!("roles", roles(dir.path(), &kubeconfig, ALL_KINDS, &["--service-account", "ops/deltabus"]));
    insta::assert_snapshot!(
        "roles_of_wildcards",
        roles(dir.path(), &kubeconfig, ALL_KINDS, &["--wildcard", "--name", "x"])
    );
    let everything = "[resources.all]\nmatch = [\"*\"]\n[resources.mine]\nmatch = [\"pods\"]\nnamespaces = [\"a\"]\n";
    insta::assert_snapshot!("roles_of_everything", roles(dir.path(), &kubeconfig, everything, &["--wildcard"]));
    // no entry depends on CRDs, so the engine does not watch them
    let plain = roles(dir.path(), &kubeconfig, "[resources.mine]\nmatch = [\"pods\"]\nnamespaces = [\"a\"]\n", &[]);
    assert!(!plain.contains("ClusterRole") && !plain.contains("customresourcedefinitions"), "{plain}");
}

// ── on a real server ──

/// A user with only the rights of the service account `TEAM-a/deltabus`.
///
/// Namespaces and roles contain the team's name, so that users of several teams share one server.
struct User {
    cluster: &'static Cluster,
    team: &'static str,
    dir: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl User {
    /// Creates a team with the namespaces `TEAM-a`, `TEAM-b` and `other-TEAM`.
    fn start(test: &str, team: &'static str) -> Option<Self> {
        let cluster = Cluster::shared_or_skip(test)?;
        let [a, b, other] = [format!("{team}-a"), format!("{team}-b"), format!("other-{team}")];
        for namespace in [&a, &b, &other] {
            cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }));
        }
        for namespace in [&a, &b] {
            let metadata = json!({ "name": "settings", "namespace": namespace });
            cluster.apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }));
        }
        let metadata = json!({ "name": "deltabus", "namespace": a });
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata }));
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = PathBuf::from(text(dir.path(), "kubeconfig"));
        cluster.write_kubeconfig_of(&cluster.service_account_token(&a, "deltabus"), &kubeconfig);
        Some(Self { cluster, team, dir, kubeconfig })
    }

    /// Applies the output of `deltabus rbac` for a configuration; the command runs as this user, who may use discovery.
    fn grant(&self, config: &str) -> String {
        self.grant_with(config, &[])
    }

    /// Applies the output of `deltabus rbac` with further arguments; see [`User::grant`].
    fn grant_with(&self, config: &str, args: &[&str]) -> String {
        let account = format!("{}-a/deltabus", self.team);
        let args = [&["--name", self.team, "--service-account", &account], args].concat();
        let yaml = roles(self.dir.path(), &self.kubeconfig, config, &args);
        self.cluster.apply_yaml(&yaml);
        yaml
    }

    /// Runs the engine as this user, with paged lists: a streaming list needs no right to list.
    fn run(&self, config: &str) -> Engine {
        let kubeconfig = self.kubeconfig.to_str().unwrap();
        let kube = format!("[kube]\nkubeconfig = {kubeconfig:?}\nstreaming_lists = \"never\"\n");
        Engine::run(self.dir.path(), &format!("{kube}{config}"))
    }

    /// Replaces the rules of a role, and waits until the server refuses this verb.
    fn replace_rules(&self, path: &str, rules: &Value, namespace: &str, resource: (&str, &str), verb: &str) {
        let (code, answer) = self.cluster.request("PATCH", path, Some(&json!({ "rules": rules })));
        assert_eq!(code, 200, "{answer}");
        self.wait_allowed(false, namespace, resource, verb);
    }

    /// Waits until the server allows or refuses a verb according to the last rules.
    fn wait_allowed(&self, allowed: bool, namespace: &str, (group, plural): (&str, &str), verb: &str) {
        let attributes = json!({ "namespace": namespace, "group": group, "resource": plural, "verb": verb });
        self.cluster.wait_allowed(allowed, &self.kubeconfig, &attributes);
    }
}

/// Returns the rows of `/v1/resources` with this plural.
fn rows(engine: &Engine, plural: &str) -> Vec<Value> {
    let document = engine.json("/v1/resources");
    let rows = document["resources"].as_array().unwrap();
    rows.iter().filter(|row| row["plural"] == plural).cloned().collect()
}

/// Returns the message of a row.
fn told(row: &Value) -> &str {
    row["message"].as_str().unwrap_or_else(|| panic!("{row}"))
}

fn all_synced(engine: &Engine, plurals: &[&str]) -> bool {
    plurals.iter().all(|plural| {
        let rows = rows(engine, plural);
        !rows.is_empty() && rows.iter().all(|row| row["synced"] == true && row["state"] == "watching")
    })
}

/// Row 27 of the users' requests: no right to read everything.
#[test]
fn printed_roles_are_sufficient_and_minimal() {
    let Some(user) = User::start("printed_roles_are_sufficient_and_minimal", "verbs") else { return };
    let config = format!("[resources.work]\nmatch = [\"pods\", \"deployments.apps\", \"nodes\"]\n{OUT}");
    user.grant(&config);
    user.wait_allowed(true, "", ("", "nodes"), "watch");
    let types = [("", "pods"), ("apps", "deployments"), ("", "nodes")];
    let plurals = types.map(|(_, plural)| plural);
    let engine = user.run(&config);
    engine.wait_for("synced", Duration::from_mins(1), || all_synced(&engine, &plurals));
    assert!(engine.terminate().success());

    for missing in types {
        for verb in ["list", "watch"] {
            let rule = |(group, plural): (&str, &str)| {
                let granted =
                    ["list", "watch"].into_iter().filter(|other| (group, plural) != missing || *other != verb);
                json!({ "apiGroups": [group], "resources": [plural], "verbs": granted.collect::<Vec<_>>() })
            };
            let rules: Value = types.into_iter().map(rule).collect();
            user.replace_rules("/apis/rbac.authorization.k8s.io/v1/clusterroles/verbs", &rules, "", missing, verb);
            let (group, plural) = missing;
            let engine = user.run(&config);
            let others: Vec<_> = plurals.into_iter().filter(|other| *other != plural).collect();
            engine.wait_for("forbidden", Duration::from_mins(1), || {
                rows(&engine, plural).iter().any(|row| row["state"] == "forbidden") && all_synced(&engine, &others)
            });
            let row = rows(&engine, plural).remove(0);
            let named = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
            let said = told(&row);
            assert!(said.starts_with(&format!("not allowed to {verb} {named}")), "without {verb} of {plural}: {said}");
            engine.wait_ready(Duration::from_mins(1));
            assert!(engine.terminate().success());
        }
    }
}

#[test]
fn roles_in_named_namespaces_are_sufficient() {
    let Some(user) = User::start("roles_in_named_namespaces_are_sufficient", "named") else { return };
    let config = format!(
        "[resources.mine]\nmatch = [\"configmaps\", \"*.apps\"]\nnamespaces = [\"named-a\", \"named-b\"]\n{OUT}"
    );
    let yaml = user.grant(&config);
    assert!(yaml.contains("kind: Role\n") && !yaml.contains("kind: ClusterRole\n"), "{yaml}");
    for namespace in ["named-a", "named-b"] {
        user.wait_allowed(true, namespace, ("", "configmaps"), "watch");
    }
    // according to the server's access review
    let asked = ["resources", "-c", "rbac.toml", "-o", "json"];
    let (_, stdout, stderr) = deltabus(user.dir.path(), &user.kubeconfig, &asked, &[]);
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    let resources = document["resources"].as_array().unwrap();
    assert_eq!(resources.len(), 6, "{stdout}");
    assert!(resources.iter().all(|row| row["access"] == "allowed"), "{stdout}");
    let (code, _, stderr) = deltabus(user.dir.path(), &user.kubeconfig, &["validate", "-c", "rbac.toml"], &[]);
    assert!(code == 0 && !stderr.contains("may not"), "{stderr}");
    let engine = user.run(&config);
    let types = ["configmaps", "deployments", "daemonsets", "controllerrevisions"];
    engine.wait_for("synced", Duration::from_mins(1), || all_synced(&engine, &types));
    let namespaces: Vec<_> = rows(&engine, "configmaps").iter().map(|row| row["namespace"].clone()).collect();
    assert_eq!(namespaces, ["named-a", "named-b"]);
    assert!(engine.terminate().success());

    // one missing verb in one namespace is reported
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/named-b/roles/named";
    let rules = json!([
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] },
        { "apiGroups": ["apps"], "resources": ["*"], "verbs": ["list", "watch"] },
    ]);
    user.replace_rules(path, &rules, "named-b", ("", "configmaps"), "watch");
    let (code, stdout, stderr) = deltabus(user.dir.path(), &user.kubeconfig, &["validate", "-c", "rbac.toml"], &[]);
    assert!(stderr.contains("this user may not watch configmaps in named-b"), "{code} {stdout}{stderr}");
    let engine = user.run(&config);
    let of = |namespace: &str| rows(&engine, "configmaps").into_iter().find(|row| row["namespace"] == namespace);
    engine.wait_for("forbidden in named-b alone", Duration::from_mins(1), || {
        of("named-b").is_some_and(|row| row["state"] == "forbidden")
            && of("named-a").is_some_and(|row| row["synced"] == true && row["state"] == "watching")
            && all_synced(&engine, &["deployments", "daemonsets"])
    });
    let row = of("named-b").unwrap();
    assert!(told(&row).starts_with("not allowed to watch configmaps in namespace named-b"), "{row}");
    engine.wait_ready(Duration::from_mins(1));
    assert!(engine.terminate().success());
}

#[test]
fn role_for_one_named_object_suffices() {
    let Some(user) = User::start("role_for_one_named_object_suffices", "one") else { return };
    let entry = |namespaces: &str| {
        format!("[resources.one]\nmatch = [\"configmaps\"]\n{namespaces}fields = \"metadata.name=settings\"\n{OUT}")
    };
    let config = entry("namespaces = [\"one-a\"]\n");
    let yaml = user.grant(&config);
    assert!(yaml.contains("resourceNames:\n  - settings\n") && !yaml.contains("ClusterRole"), "{yaml}");
    let attributes = json!({ "namespace": "one-a", "resource": "configmaps", "verb": "watch", "name": "settings" });
    user.cluster.wait_allowed(true, &user.kubeconfig, &attributes);
    let validate = || deltabus(user.dir.path(), &user.kubeconfig, &["validate", "-c", "rbac.toml"], &[]);
    let (code, _, stderr) = validate();
    assert!(code == 0 && !stderr.contains("may not"), "{stderr}");
    let engine = user.run(&config);
    engine.wait_for("synced", Duration::from_mins(1), || all_synced(&engine, &["configmaps"]));
    assert_eq!(rows(&engine, "configmaps")[0]["objects"], 1);
    assert!(engine.terminate().success());
    // The engine finds the namespaces where it may watch this object.
    let searching = entry("");
    user.grant_with(&searching, &["--namespace", "one-a"]);
    user.wait_allowed(true, "", ("", "namespaces"), "watch");
    let engine = user.run(&searching);
    engine.wait_for("synced", Duration::from_mins(1), || all_synced(&engine, &["configmaps"]));
    assert_eq!(rows(&engine, "configmaps")[0]["namespace"], "one-a");
    assert!(engine.terminate().success());
    let (_, _, stderr) = validate();
    assert!(
        stderr.contains("may not list and watch configmaps") && stderr.contains("resourceNames [\"settings\"]"),
        "{stderr}"
    );
}

#[test]
fn roles_in_single_namespaces_suffice_without_namespaces_option() {
    let Some(user) = User::start("roles_in_single_namespaces_suffice_without_namespaces_option", "single") else {
        return;
    };
    let config = format!(
        "[resources.all]\nmatch = [\"configmaps\", \"nodes\"]\n\
         [resources.some]\nmatch = [\"services\"]\nnamespaces = [\"*\", \"!single-b\"]\n\
         [resources.named]\nmatch = [\"pods\"]\nnamespaces = [\"other-single\"]\n{OUT}"
    );
    let yaml = user.grant_with(&config, &["--namespace", "single-a", "--namespace", "single-b"]);
    assert!(yaml.contains("- namespaces\n  - nodes\n"), "{yaml}");
    for (namespace, plural) in [
        ("", "nodes"),
        ("single-a", "configmaps"),
        ("single-b", "configmaps"),
        ("single-a", "services"),
        ("other-single", "pods"),
    ] {
        user.wait_allowed(true, namespace, ("", plural), "watch");
    }
    let engine = user.run(&config);
    let watched = |plural: &str| {
        let rows = rows(&engine, plural);
        let synced = rows.iter().filter(|row| row["synced"] == true && row["state"] == "watching");
        synced.map(|row| row["namespace"].as_str().unwrap_or("*").to_owned()).collect::<Vec<_>>()
    };
    engine.wait_for("where it is allowed", Duration::from_mins(1), || {
        watched("configmaps") == ["single-a", "single-b"]
            && watched("services") == ["single-a"]
            && watched("pods") == ["other-single"]
            && watched("nodes") == ["*"]
    });
    assert!(engine.terminate().success());
    let yaml = roles(user.dir.path(), &user.kubeconfig, &config, &["--namespace", "team-x", "--wildcard"]);
    assert!(yaml.contains("namespace: team-x\n") && !yaml.contains("Nothing is granted"), "{yaml}");
    let named = "[resources.named]\nmatch = [\"pods\"]\nnamespaces = [\"other\"]\n";
    let yaml = roles(user.dir.path(), &user.kubeconfig, named, &["--namespace", "team-a"]);
    assert!(yaml.contains("# Nothing is granted in team-a") && !yaml.contains("ClusterRole"), "{yaml}");
}

#[test]
fn watches_of_engine_itself_are_granted_and_needed() {
    let Some(user) = User::start("watches_of_engine_itself_are_granted_and_needed", "itself") else { return };
    let config = format!(
        "[resources.labelled]\nmatch = [\"configmaps\"]\nnamespaces = [\"itself-*\"]\nnamespace_selector = \"team=a\"\n\
         [resources.globs]\nmatch = [\"services\"]\nnamespaces = [\"itself-*\"]\n\
         [resources.custom]\nmatch = [\"*.acme.io\"]\n{OUT}"
    );
    let metadata = json!({ "name": "itself-a", "labels": { "team": "a" } });
    user.cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }));
    let yaml = user.grant(&config);
    user.wait_allowed(true, "", ("", "namespaces"), "list");
    let engine = user.run(&config);
    engine.wait_for("synced", Duration::from_mins(1), || all_synced(&engine, &["configmaps", "services"]));
    assert_eq!(rows(&engine, "configmaps")[0]["namespace"], "itself-a");
    assert!(!engine.log().contains("forbidden"), "{}", engine.log());
    assert!(engine.terminate().success());

    // without the right to list namespaces their labels are unknown; everything else works
    assert!(yaml.contains("- configmaps\n  - namespaces\n  - services\n"), "{yaml}");
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["list", "watch"] }]);
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/itself";
    user.replace_rules(path, &rules, "", ("", "namespaces"), "list");
    let engine = user.run(&config);
    engine.wait_for("forbidden", Duration::from_mins(1), || {
        rows(&engine, "configmaps").iter().any(|row| row["state"] == "forbidden") && all_synced(&engine, &["services"])
    });
    let row = rows(&engine, "configmaps").remove(0);
    assert!(told(&row).contains("list and watch namespaces"), "{row}");
    engine.wait_ready(Duration::from_mins(1));
    assert!(engine.terminate().success());
}
