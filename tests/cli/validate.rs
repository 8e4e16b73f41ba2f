//! `deltabus validate` with an API server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path};

use crate::support::{
    cluster::Cluster,
    command::{deltabus, simulator},
};
use deltabus::internals::simulator::{RequestKind, ServerFault, Times};
use serde_json::json;

/// Validates a file `v.toml` in `dir`; returns exit code, stdout and stderr.
fn validate(dir: &Path, kubeconfig: &str, config: &str) -> (i32, String, String) {
    fs::write(dir.join("v.toml"), config).unwrap();
    deltabus(dir, Path::new(kubeconfig), &["validate", "-c", "v.toml"], &[])
}

const OUT: &str = "[handlers.out]\ntype = \"stdout\"\n";

#[test]
fn each_pattern_is_explained_with_its_location() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!("[resources.w]\nmatch = [\"po\", \"Deployment.v1.apps\", \"podz\"]\n{OUT}");
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["w", "po", "pods", "v1", "Pod", "list,", "watch", "v.toml:2:10"], "{stdout}");
    let deployments =
        ["w", "Deployment.v1.apps", "deployments.apps", "apps/v1", "Deployment", "list,", "watch", "v.toml:2:16"];
    assert_eq!(rows[2], deployments, "{stdout}");
    let missing = "warning: v.toml:2:38: resources.w.match[2]: the engine will wait for \"podz\": the server serves no such type; did you mean pods";
    assert!(stderr.contains(missing), "{stderr}");
    assert!(
        stderr.ends_with("note: the configuration is valid: 1 resource, 1 handler; 1 pattern not served now\n"),
        "{stderr}"
    );
}

#[test]
fn shared_and_missing_types_are_mistakes() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.a]\nmatch = [\"deploy\"]\n[resources.b]\nmatch = [\"deployments.apps\", \"po\", \"pods\"]\n\
         [resources.c]\nmatch = [\"gadgets\"]\non_missing = \"fail\"\n{OUT}"
    );
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 2, "{stderr}");
    for line in [
        "error: v.toml:4:10: resources.b.match[0]: \"deployments.apps\" selects deployments.apps, like \"deploy\" in [resources.a]: a type belongs to one entry, or to several entries with disjoint `namespaces`\n",
        "warning: v.toml:4:36: resources.b.match[2]: \"pods\" and \"po\" both select pods: remove one of them\n",
        "error: v.toml:6:10: resources.c.match[0]: \"gadgets\": the server serves no such type",
        "error: the configuration cannot be used: 2 errors, 1 warning\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
}

#[test]
fn missing_namespaces_are_reported_with_nearest_name() {
    let (simulator, dir, kubeconfig) = simulator();
    simulator.store().create("namespaces", json!({"metadata": {"name": "shop"}})).unwrap();
    let validate = |namespaces: &str| {
        let config = format!("[resources.p]\nmatch = [\"po\"]\nnamespaces = {namespaces}\n{OUT}");
        let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
        assert_eq!(code, 0, "{stderr}");
        stderr
    };
    let told = validate(r#"["shop", "shpo"]"#);
    let warning = "warning: v.toml:3:23: resources.p.namespaces[1]: namespace `shpo` does not exist now; it is watched once it exists; \
                   did you mean `shop`?\n";
    assert!(told.contains(warning) && told.matches("does not exist").count() == 1, "{told}");
    let told = validate(r#"["*", "!kube-sytem", "!*-sandbox"]"#);
    assert!(
        told.contains(
            "[1]: namespace `kube-sytem` does not exist now; nothing is left out; did you mean `kube-system`?"
        )
    );
    assert!(
        told.contains("note: v.toml:3:35: resources.p.namespaces[2]: no namespace matches `*-sandbox` now\n"),
        "{told}"
    );
    let all = validate(r#"["*"]"#);
    assert!(!all.contains("no namespace") && !all.contains("does not exist"), "{all}");
    let forbidden = ServerFault::Status { code: 403, retry_after: None };
    simulator.faults().add("/api/v1/namespaces*", RequestKind::Any, Times::Always, forbidden).unwrap();
    assert!(!validate(r#"["gone"]"#).contains("does not exist"), "without the right to list them nothing is reported");
}

#[test]
fn wildcards_are_counted_and_useless_options_warned() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.all]\nmatch = [\"*\", \"*.acme.io\"]\nexclude = [\"leases\", \"gadgets\"]\n\
         [resources.apps]\nmatch = [\"*.apps\"]\nexclude = [\"*.batch\"]\n\
         [resources.nodes]\nmatch = [\"nodes\", \"ns\"]\nnamespaces = [\"team-*\"]\nnamespace_selector = \"a=b\"\n\
         [resources.some]\nmatch = [\"po\", \"crd\", \"lease\", \"*.coordination.k8s.io\"]\nnamespaces = [\"a\"]\n{OUT}"
    );
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for (row, entry, pattern, least, place) in
        [(1, "all", "*", 7, "v.toml:2:10"), (2, "apps", "*.apps", 4, "v.toml:5:10")]
    {
        let count: usize = rows[row][2].parse().unwrap();
        assert!(count >= least, "{stdout}");
        assert_eq!(rows[row], [entry, pattern, rows[row][2], "types", "list,", "watch", place], "{stdout}");
    }
    for line in [
        "note: v.toml:2:15: resources.all.match[1]: the engine will wait for \"*.acme.io\": the server serves no type in the group acme.io",
        "warning: v.toml:3:22: resources.all.exclude[1]: \"gadgets\" excludes nothing: `match` selects no such type now\n",
        "warning: v.toml:6:12: resources.apps.exclude[0]: \"*.batch\" excludes nothing",
        "warning: v.toml:9:14: resources.nodes.namespaces: has no effect: no type of this entry has namespaces\n",
        "warning: v.toml:10:22: resources.nodes.namespace_selector: has no effect: no type of this entry has namespaces",
        "note: v.toml:13:14: resources.some.namespaces: has no effect on types without namespaces: customresourcedefinitions.apiextensions.k8s.io\n",
        "note: v.toml:12:32: resources.some.match[3]: \"*.coordination.k8s.io\" selects no type now: more specific patterns select all its types\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
}

#[test]
fn conflicting_wildcards_are_reported_once() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.a]\nmatch = [\"*.apps\"]\nexclude = [\"jobs\"]\n[resources.b]\nmatch = [\"*.apps\"]\n\
         [resources.c]\nmatch = [\"po\"]\nnamespaces = [\"default\"]\n[resources.d]\nmatch = [\"pods\"]\nnamespaces = [\"!default\"]\n{OUT}"
    );
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 2, "{stderr}");
    let line = "error: v.toml:5:10: resources.b.match[0]: \"*.apps\" selects deployments.apps, replicasets.apps, statefulsets.apps, ";
    assert!(
        stderr.contains(line) && stderr.contains(", like \"*.apps\" in [resources.a]: a type belongs to one entry")
    );
    assert!(stderr.contains("cannot be used: 1 error, 1 warning\n"), "{stderr}");
}

#[test]
fn missing_access_review_leaves_rights_unknown() {
    let (simulator, dir, kubeconfig) = simulator();
    let refused = ServerFault::Status { code: 404, retry_after: None };
    simulator.faults().add("*selfsubjectaccessreviews", RequestKind::Any, Times::Always, refused).unwrap();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &format!("[resources.w]\nmatch = [\"po\"]\n{OUT}"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(" unknown "), "{stdout}");
    assert!(
        stderr.contains(
            "cannot check the rights to list and watch types: the server does not report the rights of users\n"
        ),
        "{stderr}"
    );
}

#[test]
fn unreachable_server_is_exit_code_1_for_validate() {
    let (simulator, dir, kubeconfig) = simulator();
    let url = simulator.url();
    simulator.stop();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig, &format!("[resources.w]\nmatch = [\"po\"]\n{OUT}"));
    assert_eq!((code, &*stdout), (1, ""), "{stderr}");
    let said = format!(
        "error: cannot reach the API server {url} (use --offline to skip the checks that need it): failed to get /api: "
    );
    assert!(stderr.contains(&said), "{stderr}");
}

#[test]
fn rbac_refusal_names_missing_rights() {
    let Some(cluster) = Cluster::shared_or_skip("rbac_refusal_names_missing_rights") else { return };
    let dir = tempfile::tempdir().unwrap();
    let config = format!("[resources.w]\nmatch = [\"pods\", \"deployments.apps\"]\n{OUT}");
    let kubeconfig = |path: &Path| path.to_str().unwrap().to_owned();
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig(cluster.kubeconfig()), &config);
    assert_eq!((code, stdout.matches("list, watch").count()), (0, 2), "{stdout}{stderr}");
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig(cluster.limited_kubeconfig()), &config);
    assert_eq!((code, stdout.matches("no list, watch").count()), (0, 2), "{stdout}{stderr}");
    let said = "warning: v.toml:2:18: resources.w.match[1]: this user may not list and watch deployments.apps: grant it by a \
                ClusterRole with apiGroups [\"apps\"], resources [\"deployments\"], verbs [\"list\", \"watch\"], and its binding; \
                `deltabus rbac` prints all that is needed\n";
    assert!(stderr.contains(said), "{stderr}");
    // all types of a wildcard in one message; a namespace by its name
    let config = format!(
        "[resources.w]\nmatch = [\"*.apps\"]\n[resources.n]\nmatch = [\"pods\"]\nnamespaces = [\"team-a\", \"team-b\"]\n{OUT}"
    );
    let (code, stdout, stderr) = validate(dir.path(), &kubeconfig(cluster.limited_kubeconfig()), &config);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("5 types") && stdout.contains("no list, watch in team-a, team-b"), "{stdout}");
    for said in [
        "may not list and watch pods in team-a, team-b: grant it by a Role there with apiGroups [\"\"]",
        "resources.w.match[0]: this user may not list and watch controllerrevisions.apps, daemonsets.apps, ",
    ] {
        assert!(stderr.contains(said), "no {said:?} in\n{stderr}");
    }
}

#[test]
fn unsupported_selectors_are_errors() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.w]\nmatch = [\"pods\", \"deployments.apps\"]\nfields = \"status.phase!=Failed\"\n\
         [resources.n]\nmatch = [\"nodes\"]\nfields = \"metadata.name=a\"\n{OUT}"
    );
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 2, "{stderr}");
    let line = "error: v.toml:3:10: resources.w.fields: the server cannot select deployments.apps by these fields: field label not \
                supported: status.phase\n";
    assert!(stderr.contains(line), "{stderr}");
    assert!(stderr.ends_with("cannot be used: 1 error\n"), "{stderr}");
}

#[test]
fn selectors_refused_by_real_server_are_errors() {
    let Some(cluster) = Cluster::shared_or_skip("selectors_refused_by_real_server_are_errors") else { return };
    let dir = tempfile::tempdir().unwrap();
    let config =
        format!("[resources.w]\nmatch = [\"pods\", \"deployments.apps\"]\nfields = \"status.phase!=Failed\"\n{OUT}");
    let (code, _, stderr) = validate(dir.path(), cluster.kubeconfig().to_str().unwrap(), &config);
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("resources.w.fields: the server cannot select deployments.apps by these fields: "),
        "{stderr}"
    );
}

#[test]
fn mistakes_in_file_do_not_hide_missing_types() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!(
        "[resources.w]\nmatch = [\"gadgets\"]\non_missing = \"fail\"\n[resources.x]\nmatch = [\"pods\"]\nnamespaces = [\"nope\"]\n\
         {OUT}intial = \"send\"\n[handlers.b]\ntype = \"stdot\"\nbufer = {{}}\n"
    );
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 2, "{stderr}");
    for line in [
        "handlers.out.intial: unknown key; did you mean `initial`?",
        "handlers.b.type: expected one of",
        "handlers.b.bufer: unknown key; did you mean `buffer`?",
        "error: v.toml:2:10: resources.w.match[0]: \"gadgets\": the server serves no such type",
        "namespace `nope` does not exist now",
        "cannot be used: 4 errors, 1 warning\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
    let (code, _, stderr) = validate(dir.path(), "none", &config);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("note: configuration: the checks that need the API server were skipped: "), "{stderr}");
}

/// The simulator publishes no schemas.
#[test]
fn types_without_schema_are_named() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!("[resources.w]\nmatch = [\"pods\"]\n{OUT}changed = [\"spec.nodename\"]\n");
    let (code, _, stderr) = validate(dir.path(), &kubeconfig, &config);
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("cannot check fields of objects: the server publishes no schema of pods"), "{stderr}");
}

#[test]
fn paths_that_no_schema_has_are_warnings() {
    let Some(cluster) = Cluster::shared_or_skip("paths_that_no_schema_has_are_warnings") else { return };
    let dir = tempfile::tempdir().unwrap();
    let handler = |options: &str| {
        format!(
            "[resources.w]\nmatch = [\"deploy\", \"sts\"]\n[resources.crd]\nmatch = [\"crd\"]\n\
             [handlers.out]\ntype = \"stdout\"\nresources = [\"w\"]\n{options}\n"
        )
    };
    let run = |config: &str| {
        let (code, _, stderr) = validate(dir.path(), cluster.kubeconfig().to_str().unwrap(), config);
        assert_eq!(code, 0, "{stderr}");
        stderr
    };
    for (options, expected) in [
        (
            "changed = [\"spec.template.spec.container[*].image\"]",
            "handlers.out.changed[0]: `spec.template.spec` has no field `container`; did you mean `spec.template.spec.containers`?",
        ),
        (
            "when = \"object.spec.replica > 1\"",
            "handlers.out.when: `spec` has no field `replica`; did you mean `spec.replicas`?",
        ),
        (
            "when = 'object.spec.template.spec.containers.all(c, c.imagePullPolicy == \"always\")'",
            "`spec.template.spec.containers[*].imagePullPolicy` is never \"always\"; did you mean `Always`?",
        ),
        (
            "format = \"template\"\ntemplate = '{{ object.metadata.nme }}'",
            "handlers.out.template: `metadata` has no field `nme`; did you mean `metadata.name`?",
        ),
        ("when = 'object.metadata.name.x == 1'", "`metadata.name` has no fields: it is of type string"),
    ] {
        let stderr = run(&handler(options));
        assert!(stderr.contains(expected) && stderr.matches("warning: ").count() == 1, "{options}: {stderr}");
    }
    let index =
        "[resources.p]\nmatch = [\"po\"]\nindex = [\"spec.nodeNam\", \"owner\", \"namespace\"]\ndrop = [\"spec.x\"]\n";
    let stderr = run(&format!("{index}{}", handler("")));
    assert!(
        stderr.contains("resources.p.index[0]: `spec` has no field `nodeNam`; did you mean `spec.nodeName`?"),
        "{stderr}"
    );
    assert!(stderr.contains("resources.p.drop[0]: `spec` has no field `x`"), "{stderr}");
    assert_eq!(stderr.matches("warning: ").count(), 2, "{stderr}");
    let fine = "changed = [\"spec.serviceName\", \"labels['a/b']\", \"spec.replicas\"]\nwhen = '\"x\" in object.metadata.finalizers && \
                has(object.spec.template.spec.nodeSelector.any)'\nformat = \"template\"\ntemplate = '{% for c in \
                object.spec.template.spec.containers %}{{ c.image }}{% endfor %}{{ object.metadata.annotations[\"x\"] }}'";
    assert!(!run(&handler(fine)).contains("warning: "));
    // A schema of a CRD's own schema permits any value of an example.
    let stderr = run(&handler("")
        .replace("resources = [\"w\"]", "changed = [\"spec.versions[*].schema.openAPIV3Schema.example.a\"]"));
    assert!(!stderr.contains("warning: "), "{stderr}");
    let (code, _, stderr) = deltabus(dir.path(), Path::new("none"), &["validate", "--offline", "-c", "v.toml"], &[]);
    assert!(
        code == 0
            && stderr
                .contains("not checked without the API server: types, rights, namespaces, and the fields of objects\n"),
        "{stderr}"
    );
}

#[test]
fn unwritable_state_directory_is_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let state = |state: &str| {
        let config = format!("[state]\ndir = \"{state}\"\n[resources.w]\nmatch = [\"pods\"]\n{OUT}");
        fs::write(dir.path().join("v.toml"), config).unwrap();
        let (code, _, stderr) =
            deltabus(dir.path(), Path::new("none"), &["validate", "--offline", "-c", "v.toml"], &[]);
        (code, stderr.lines().next().unwrap_or_default().to_owned())
    };
    let at = "error: v.toml:2:7: state.dir: ";
    assert_eq!(state("file"), (2, format!("{at}cannot write to file: not a directory")));
    assert_eq!(state("file/a/b"), (2, format!("{at}cannot create file/a/b in file: not a directory")));
    // A read-only file system also refuses root.
    let (code, line) = state("/proc/deltabus");
    assert!(code == 2 && line.starts_with(&format!("{at}cannot create /proc/deltabus in /proc: ")), "{line}");
    assert_eq!(state("new/state").0, 0);
    assert!(!dir.path().join("new").exists());
}

#[test]
fn configuration_for_elsewhere_needs_no_local_files() {
    let dir = tempfile::tempdir().unwrap();
    let state = "[state]\ndir = \"/proc/deltabus\"\n[resources.w]\nmatch = [\"pods\"]\n";
    let hook = "[handlers.hook]\ntype = \"webhook\"\nurl = \"https://x/\"\nauth = { bearer = { file = \"/run/secrets/hook/token\" } }\n";
    fs::write(dir.path().join("v.toml"), format!("{state}{hook}")).unwrap();
    let run = |more: &[&str]| {
        let args = [&["validate", "--offline", "-c", "v.toml"], more].concat();
        deltabus(dir.path(), Path::new("none"), &args, &[])
    };
    let (code, _, stderr) = run(&[]);
    assert!(code == 2 && stderr.contains("/run/secrets/hook/token"), "{stderr}");
    let (code, _, stderr) = run(&["--elsewhere"]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn strict_turns_warnings_and_notes_into_errors() {
    let (_simulator, dir, kubeconfig) = simulator();
    let config = format!("[resources.w]\nmatch = [\"pods\", \"po\", \"podz\"]\n{OUT}");
    let run = |more: &[&str]| {
        fs::write(dir.path().join("v.toml"), &config).unwrap();
        deltabus(dir.path(), Path::new(&kubeconfig), &[&["validate", "-c", "v.toml"], more].concat(), &[])
    };
    let (code, _, stderr) = run(&[]);
    assert_eq!(code, 0, "{stderr}");
    let (code, _, stderr) = run(&["--strict"]);
    assert_eq!(code, 2, "{stderr}");
    for line in [
        "error: v.toml:2:18: resources.w.match[1]: \"po\" and \"pods\" both select pods: remove one of them\n",
        "error: v.toml:2:24: resources.w.match[2]: the engine will wait for \"podz\": the server serves no such type; did you mean pods",
        "error: the configuration cannot be used: 2 errors\n",
    ] {
        assert!(stderr.contains(line), "no {line:?} in\n{stderr}");
    }
}

#[test]
fn json_output_has_every_finding_with_location() {
    let (_simulator, dir, kubeconfig) = simulator();
    let run = |config: &str, more: &[&str]| {
        fs::write(dir.path().join("v.toml"), config).unwrap();
        let args = [&["validate", "-o", "json", "-c", "v.toml"], more].concat();
        let (code, stdout, stderr) =
            deltabus(dir.path(), Path::new(&kubeconfig), &args, &[("DELTABUS__LOG__LEVEL", "info")]);
        assert_eq!(stderr, "");
        (code, serde_json::from_str::<serde_json::Value>(&stdout).unwrap())
    };
    let odd = format!("[resources.w]\nmatch = [\"pods\", \"po\", \"podz\"]\n{OUT}");
    let (code, document) = run(&odd, &[]);
    assert_eq!((code, &document["valid"]), (0, &json!(true)));
    assert_eq!([&document["errors"], &document["warnings"], &document["notes"]], [0, 2, 0], "{document}");
    let expected = json!({
        "level": "warning",
        "key": "resources.w.match[1]",
        "file": "v.toml",
        "line": 2,
        "column": 18,
        "variable": null,
        "message": "\"po\" and \"pods\" both select pods: remove one of them",
        "excerpt": null,
    });
    assert_eq!(document["findings"][1], expected);
    assert_eq!(document["findings"][0]["level"], "warning");
    let (code, document) = run(&odd, &["--strict"]);
    assert_eq!((code, &document["valid"], &document["errors"]), (2, &json!(false), &json!(2)));
    let (code, document) = run("[resources.w]\nmatch = = 1\n", &["--offline"]);
    assert_eq!((code, &document["findings"][0]["line"]), (2, &json!(2)));
    assert!(document["findings"][0]["excerpt"].as_str().unwrap().contains("match = = 1"));
}
