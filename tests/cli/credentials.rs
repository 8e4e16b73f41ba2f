//! Credential programs of a kubeconfig: their failures are explained, and their outputs never shown.

use std::fs;

use crate::support::{
    command::{deltabus, simulator},
    engine::Engine,
};

/// User whose program prints a secret and fails.
const USER: &str = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never, \
                    installHint: 'get it from tools.example', args: [-c, 'echo S3CRET; echo S3CRET >&2; exit 7']}}";
const EXPECTED: &str = "credential program \"/bin/sh\" of user \"simulator\" failed with exit status: 7";

#[test]
fn failing_credential_program_is_explained_without_its_output() {
    let (_simulator, dir, kubeconfig) = simulator();
    let text = fs::read_to_string(&kubeconfig).expect("it was just written");
    fs::write(&kubeconfig, text.replace("user: {}", &format!("user: {USER}"))).expect("the directory is writable");
    let config = "[resources.pods]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"blackhole\"\n";
    fs::write(dir.path().join("c.toml"), config).expect("the directory is writable");
    let check = |printed: &str| {
        assert!(printed.contains(EXPECTED) && printed.contains("installHint: get it from tools.example"), "{printed}");
        assert!(!printed.contains("S3CRET") && !printed.contains("Output {"), "{printed}");
    };
    for command in ["validate", "resources", "rbac"] {
        let (code, stdout, stderr) = deltabus(dir.path(), kubeconfig.as_ref(), &[command, "-c", "c.toml"], &[]);
        assert_ne!(code, 0, "{command}");
        let printed = format!("{stdout}{stderr}");
        check(&printed);
        assert_eq!(printed.matches(EXPECTED).count(), 1, "{command}: {printed}");
    }
    let engine = Engine::run(dir.path(), &format!("[kube]\nkubeconfig = {kubeconfig:?}\n{config}"));
    engine.wait_for_log("cannot get the types of the API server");
    check(&engine.log().replace("\\\"", "\""));
}
