//! `deltabus run` and `demo` as processes: exit codes, output, and guarantees.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpListener,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use crate::support::engine::{self, Engine, text};
use deltabus::internals::simulator::{RequestKind, ServerFault, Simulator, SimulatorOptions, Times};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_mins(1);

/// Starts a simulated cluster with three config maps; returns it with a test directory that has its kubeconfig.
fn cluster() -> (Simulator, tempfile::TempDir) {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    for i in 0..3 {
        simulator.store().create("configmaps", json!({"metadata": {"name": format!("c{i}")}})).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    (simulator, dir)
}

/// Returns a configuration that watches config maps; `more` is appended.
fn config(dir: &Path, more: &str) -> String {
    format!("[kube]\nkubeconfig = {:?}\n[resources.maps]\nmatch = [\"configmaps\"]\n{more}\n", text(dir, "kubeconfig"))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltabus"));
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn kill(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Waits for the exit, and kills a process that does not exit in time.
fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    for _ in 0..timeout.as_millis() / 20 {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Runs a configuration that cannot start; returns exit code and stderr.
fn run_to_the_end(dir: &Path, config: &str) -> (i32, String) {
    fs::write(dir.join("config.toml"), config).unwrap();
    let mut child = command(&["run", "-c", &text(dir, "config.toml")]).spawn().unwrap();
    let status = wait(&mut child, SOON);
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    (status.unwrap_or_else(|| panic!("still runs\n{said}")).code().unwrap(), said)
}

#[track_caller]
fn refuses(dir: &Path, config: &str, expected: &[&str]) {
    let (code, said) = run_to_the_end(dir, config);
    assert_eq!(code, 1, "{said}");
    for part in expected {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn failed_start_exits_with_1_and_suggestion() {
    let (simulator, dir) = cluster();
    let dir = dir.path();
    let gone = config(dir, "").replace("/kubeconfig", "/no-such-kubeconfig");
    refuses(dir, &gone, &["failed to use kubeconfig", "no-such-kubeconfig"]);

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config_of = |more: &str| config(dir, &format!("[http]\nlisten = \"\"\n{more}"));
    let port = config(dir, &format!("[http]\nlisten = \"{address}\""));
    refuses(dir, &port, &[&format!("failed to listen on {address} ([http] listen)"), "set another address"]);

    fs::write(dir.join("plain"), "").unwrap();
    for path in [text(dir, "plain/below"), dir.to_str().unwrap().to_owned()] {
        let file = config_of(&format!("[handlers.audit]\ntype = \"file\"\npath = {path:?}"));
        refuses(
            dir,
            &file,
            &["failed to start handler audit: failed to open", &path, "set [handlers.audit] path to a file"],
        );
    }

    let missing = "[resources.odd]\nmatch = [\"configmapz\"]\non_missing = \"fail\"";
    refuses(dir, &config_of(missing), &["[resources.odd] match \"configmapz\"", "did you mean configmaps"]);
    drop(simulator);
}

#[test]
fn cluster_flag_survives_reload() {
    let (_simulator, dir) = cluster();
    let path = dir.path().join("config.toml");
    let write = |more: &str| {
        let config = format!(
            "[kube]\nkubeconfig = \"/no/such/file\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
             [resources.maps]\nmatch = [\"configmaps\"]\n{more}"
        );
        fs::write(&path, config).unwrap();
    };
    write("");
    let kubeconfig = text(dir.path(), "kubeconfig");
    let engine =
        Engine::spawn(&["run", "-c", path.to_str().unwrap(), "--kubeconfig", &kubeconfig, "--context", "simulator"]);
    engine.wait_ready(SOON);
    write("[resources.ns]\nmatch = [\"namespaces\"]\n");
    engine.wait_for_log("applied the changed configuration");
    assert!(!engine.log().contains("option changed; restart to apply"), "{}", engine.log());
    assert!(engine.terminate().success());
}

#[test]
fn missing_cluster_is_error_with_suggestion() {
    let (_simulator, dir) = cluster();
    let path = text(dir.path(), "config.toml");
    fs::write(&path, "[resources.maps]\nmatch = [\"configmaps\"]\n").unwrap();
    let kubeconfig = text(dir.path(), "kubeconfig");
    let engine = Engine::run(dir.path(), &config(dir.path(), ""));
    for arguments in [
        &["run", "-c", &path][..],
        &["validate", "-c", &path],
        &["resources", "-c", &path],
        &["rbac", "-c", &path],
        &["verify", "--engine", &engine.http],
    ] {
        let said = |more: &[&str]| {
            let output = command(&[arguments, more].concat()).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let missing = said(&["--kubeconfig", "/no/such/file"]);
        assert!(missing.contains("failed to use kubeconfig /no/such/file: there is no such file"), "{missing}");
        assert!(missing.contains("name another with --kubeconfig"), "{missing}");
        let unknown = said(&["--kubeconfig", &kubeconfig, "--context", "prod"]);
        let expected = format!("no context \"prod\" in kubeconfig {kubeconfig}, expected one of: simulator");
        assert!(unknown.contains(&expected), "{unknown}");
    }
}

#[test]
fn unreachable_api_server_is_awaited_and_reported() {
    let (simulator, dir) = cluster();
    simulator.go_down();
    let mut engine = Engine::run(dir.path(), &config(dir.path(), ""));
    let (code, said) = engine.get("/readyz").unwrap();
    assert_eq!(code, 503);
    assert!(said.contains("[-]discovery failed: the resource types of the API server are not known yet"), "{said}");
    engine.wait_for("heard", SOON, || engine.log().contains("cannot get the types of the API server"));
    engine.wait_for_log(&simulator.url());
    engine.wait_for("shown", SOON, || engine.json("/v1/resources")["resources"][0]["lastError"].is_string());
    assert!(engine.is_running());
    simulator.come_up();
    engine.wait_ready(SOON * 2);
    assert!(engine.terminate().success());
}

#[test]
fn broken_type_of_wildcard_delays_readiness_only_so_long() {
    let (simulator, dir) = cluster();
    let busy = ServerFault::Status { code: 503, retry_after: Some(1) };
    simulator.faults().add("/apis/apps/v1/deployments", RequestKind::Any, Times::Always, busy).unwrap();
    let ready_after = |limit: &str| format!("[supervision]\nready_after = \"{limit}\"\n");
    let all = format!("[resources.all]\nmatch = [\"*\"]\n{}", ready_after("3s"));
    let engine = Engine::run(dir.path(), &config(dir.path(), &all));
    let broken = || {
        let rows = engine.json("/v1/resources");
        rows["resources"].as_array().unwrap().iter().find(|row| row["plural"] == "deployments").unwrap().clone()
    };
    engine.wait_for_log("deployments");
    engine.wait_for("shown", SOON, || broken()["lastError"].is_string());
    assert!(broken()["lastError"].as_str().unwrap().contains("503"), "{}", broken());
    assert_eq!(broken()["state"], "backing_off");
    assert!(engine.log().contains("retrying") && engine.log().contains("503"), "{}", engine.log());
    engine.wait_ready(SOON);
    let (_, said) = engine.get("/readyz").unwrap();
    assert!(said.starts_with("[!]resource/all/deployments not required any more: not synced"), "{said}");
    assert!(said.contains("503") && said.ends_with("readyz check passed\n"), "{said}");
    engine.wait_for_log("ready without this type");
    assert_eq!(broken()["synced"], false);

    let named = format!("[resources.named]\nmatch = [\"deployments\"]\n{}", ready_after("0s"));
    let engine = Engine::run(dir.path(), &config(dir.path(), &named));
    engine.wait_for("discovered", SOON, || engine.get("/readyz").unwrap().1.contains("[+]discovery ok"));
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(engine.get("/readyz").unwrap().0, 503, "a type that is named exactly is required");
}

#[test]
fn outage_is_logged_once_per_type() {
    let (simulator, dir) = cluster();
    let options = "[kube.backoff]\ninitial = \"50ms\"\nmax = \"50ms\"";
    let engine = Engine::run(dir.path(), &config(dir.path(), options));
    engine.wait_ready(SOON);
    let requests = || engine.json("/v1/resources")["resources"][0]["watches"].as_u64().unwrap();
    let before = requests();
    simulator.go_down();
    engine.wait_for("twenty attempts", SOON * 2, || requests() >= before + 20);
    let warnings = || engine.log().lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect::<Vec<_>>();
    let said = warnings();
    assert!(said.len() == 1 && said[0].contains("\"resource\":\"configmaps"), "{said:#?}");
    simulator.come_up();
    engine.wait_for_log("watched again");
    assert_eq!(warnings(), said);
}

#[test]
fn removed_definition_causes_no_warning() {
    const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
    let (simulator, dir) = cluster();
    let names = json!({"kind": "Apple", "listKind": "AppleList", "plural": "apples", "singular": "apple"});
    let versions = json!([{"name": "v1", "served": true, "storage": true}]);
    let spec = json!({"group": "acme.io", "scope": "Namespaced", "names": names, "versions": versions});
    let definition = json!({"metadata": {"name": "apples.acme.io"}, "spec": spec});
    simulator.store().create(DEFINITIONS, definition).unwrap();
    let engine = Engine::run(dir.path(), &config(dir.path(), "[resources.fruit]\nmatch = [\"apples.acme.io\"]"));
    engine.wait_ready(SOON);
    simulator.store().delete(DEFINITIONS, "", "apples.acme.io").unwrap();
    engine.wait_for("gone", SOON, || !engine.watched().contains_key("apples.acme.io"));
    engine.wait_for_log("a watch of the type has ended");
    let log = engine.log_handle();
    assert!(engine.terminate().success());
    let log = log.lock().unwrap();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}

#[test]
fn stdout_carries_only_json_lines() {
    let (_simulator, dir) = cluster();
    let (base, local) = (text(dir.path(), "base.toml"), text(dir.path(), "local.toml"));
    fs::write(&base, config(dir.path(), "[http]\nlisten = \"\"\n[handlers.out]\ntype = \"blackhole\"")).unwrap();
    fs::write(&local, "[handlers.out]\ntype = \"stdout\"\n").unwrap();
    let mut child = command(&["run", "-c", &base, &local])
        .envs([("NO_COLOR", "1"), ("DELTABUS__HANDLERS__OUT__INITIAL", "send")])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut names: Vec<String> = Vec::new();
    for _ in 0..3 {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&event["specversion"], &event["cause"]), (&json!("1.0"), &json!("initial")), "{event}");
        names.push(event["name"].as_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["c0", "c1", "c2"]);
    kill(&child, "-TERM");
    assert!(wait(&mut child, SOON).unwrap().success());
    assert_eq!(lines.count(), 0);
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("stopped") && !said.contains('\x1b'), "{said}");
}

#[test]
fn closed_stdout_ends_program_cleanly() {
    let mut child = command(&["demo", "--listen", "127.0.0.1:0"]).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with(r#"{"specversion":"1.0""#), "{first}");
    let status = wait(&mut child, SOON);
    let mut said = String::new();
    child.stderr.unwrap().read_to_string(&mut said).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{status:?} {said}");
    assert!(said.lines().all(|line| !line.starts_with('{') && !line.starts_with("error:")), "it is quiet: {said}");
}

#[test]
fn second_signal_stops_at_once() {
    let (_simulator, dir) = cluster();
    // The pipe has no reader, so the handler never returns.
    let pipe = text(dir.path(), "pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let stuck = format!("[handlers.pipe]\ntype = \"file\"\npath = {pipe:?}\ninitial = \"send\"\n");
    let engine = config(dir.path(), &format!("{stuck}[http]\nlisten = \"127.0.0.1:0\""));
    fs::write(dir.path().join("config.toml"), engine).unwrap();
    let mut child = command(&["run", "-c", &text(dir.path(), "config.toml")]).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = stderr.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("every type that exists and is allowed is synced")));
    kill(&child, "-TERM");
    let announced = "a second signal stops at once, if it comes at least a second after the first";
    assert!(lines.any(|line| line.contains(announced)));
    kill(&child, "-TERM"); // counts as the first one
    assert_eq!(wait_a_moment(&mut child), None, "the first signal waits for the delivery");
    kill(&child, "-INT");
    assert_eq!(wait(&mut child, SOON).and_then(|status| status.code()), Some(1));
    assert!(lines.any(|line| line.contains("stopped by a second signal")));
}

/// Waits longer than the period in which several signals count as one.
fn wait_a_moment(child: &mut Child) -> Option<ExitStatus> {
    std::thread::sleep(Duration::from_millis(1_500));
    child.try_wait().unwrap()
}

/// Row 28 of the users' requests: Secrets in payloads, including the annotation of `kubectl apply`.
#[test]
fn secret_values_appear_nowhere() {
    const MARKER: &str = "bWFya2VyLXZhbHVl";
    let (simulator, dir) = cluster();
    let secret = |n: u32| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "s", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"data\":{{\"k\":\"{MARKER}\"}}}}"),
                "n": n.to_string(),
            }},
            "data": {"k": MARKER}, "stringData": {"k": MARKER},
        })
    };
    simulator.store().create("secrets", secret(1)).unwrap();
    let (audit, out) = (text(dir.path(), "audit.jsonl"), text(dir.path(), "stdout"));
    for spelling in ["secrets", "Secret", "secrets.v1."] {
        // The configuration drops no fields, and everything is logged.
        let config = config(
            dir.path(),
            &format!(
                "[resources.s]\nmatch = [{spelling:?}]\ndrop = []\n[log]\nlevel = \"trace\"\n\
                 [http]\nlisten = \"127.0.0.1:0\"\n[defaults.handlers]\ninitial = \"send\"\n\
                 [handlers.audit]\ntype = \"file\"\npath = {audit:?}\nfsync = \"always\"\n[handlers.out]\ntype = \"stdout\"\n"
            ),
        );
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let engine = Engine::spawn_writing(&["run", "-c", &text(dir.path(), "config.toml")], Path::new(&out));
        engine.wait_ready(SOON);
        simulator.store().delete("secrets", "default", "s").unwrap();
        simulator.store().create("secrets", secret(2)).unwrap();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let deleted_and_added = || {
            [&audit, &out]
                .iter()
                .all(|path| read(path).matches("\"subject\":\"/api/v1/namespaces/default/secrets/s\"").count() >= 3)
        };
        engine.wait_for("told", SOON, deleted_and_added);
        let mut seen = vec![read(&audit), read(&out), engine.log()];
        for path in [
            "/api/v1/secrets",
            "/api/v1/namespaces/default/secrets/s",
            "/v1/resources",
            "/v1/handlers",
            "/metrics",
            "/readyz?verbose",
        ] {
            seen.push(engine.get(path).unwrap().1);
        }
        assert!(engine.terminate().success());
        for text in seen {
            let at = text.find(MARKER).unwrap_or(0);
            assert!(!text.contains(MARKER), "{spelling}: {}", &text[at.saturating_sub(300)..at + 20]);
        }
        fs::remove_file(&audit).unwrap();
    }
}

/// Row 26 of the users' requests: a configuration change without a restart.
#[test]
fn changed_files_are_applied_or_refused_once() {
    let (_simulator, dir) = cluster();
    let engine = Engine::run(dir.path(), &config(dir.path(), ""));
    engine.wait_ready(SOON);
    let write = |more: &str| {
        let text = format!("{}\n[http]\nlisten = \"127.0.0.1:0\"\n", config(dir.path(), more));
        fs::write(dir.path().join("config.toml"), text).unwrap();
    };
    let names = || -> Vec<String> {
        let rows = engine.json("/v1/resources")["resources"].as_array().unwrap().clone();
        rows.iter().map(|row| row["plural"].as_str().unwrap().to_owned()).collect()
    };

    write("[resources.ns]\nmatch = [\"namespaces\"]\n[log]\nlevel = \"debug\"\n[kube.backoff]\nmax = \"10s\"");
    engine.wait_for("watching namespaces", SOON, || names().contains(&"namespaces".to_owned()));
    engine.wait_for("applied", SOON, || engine.log().contains("applied the changed configuration"));
    assert!(!engine.log().contains("option changed; restart to apply"), "{}", engine.log());

    write("[resources.ns]\nmatch = [\"namespaces\"]\nmod = \"full\"\n[handlers.o]\ntype = \"nothing\"");
    engine.wait_for("refused", SOON, || engine.log().contains("refused the changed configuration"));
    let findings = ["resources.ns.mod", "handlers.o.type"];
    for finding in findings {
        engine.wait_for_log(finding);
    }
    std::thread::sleep(Duration::from_millis(2_500));
    for finding in findings {
        let log = engine.log();
        let count = log.matches(finding).count();
        assert_eq!(count, 1, "{finding}: {log}");
    }
    assert!(names().contains(&"namespaces".to_owned()));
    let (_, metrics) = engine.get("/metrics").unwrap();
    for line in
        ["deltabus_config_reloads_total{result=\"applied\"} 1", "deltabus_config_reloads_total{result=\"refused\"} 1"]
    {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(metrics.contains("deltabus_config_last_reload_success_timestamp_seconds"), "{metrics}");

    write("[supervision]\ndegraded_after = 9");
    engine.wait_for("back", SOON, || !names().contains(&"namespaces".to_owned()));
    engine.wait_for("told", SOON, || engine.log().contains("option changed; restart to apply"));
    assert!(engine.terminate().success());
}

#[test]
fn sighup_applies_unwatched_files() {
    let (_simulator, dir) = cluster();
    let unwatched = "[reload]\nwatch = false";
    let path = dir.path().join("config.toml");
    let http = "\n[http]\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&path, format!("{}{http}", config(dir.path(), unwatched))).unwrap();
    let engine = Engine::spawn(&["run", "-c", path.to_str().unwrap()]);
    engine.wait_ready(SOON);
    let more = format!("{unwatched}\n[resources.ns]\nmatch = [\"namespaces\"]");
    fs::write(&path, format!("{}{http}", config(dir.path(), &more))).unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(!engine.log().contains("applied the changed configuration"), "{}", engine.log());
    engine.signal("-HUP");
    engine.wait_for("applied", SOON, || engine.log().contains("applied the changed configuration"));
    assert!(engine.terminate().success());
}

/// Runs an engine on a terminal of its own (`script`), closes the terminal, and returns true if the engine stops.
fn stops_with_terminal(prefix: &str) -> bool {
    let (_simulator, dir) = cluster();
    fs::write(dir.path().join("config.toml"), config(dir.path(), "[handlers.none]\ntype = \"blackhole\"\n")).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let program = env!("CARGO_BIN_EXE_deltabus");
    let line = format!("{prefix} {program} run -c config.toml --listen {address}");
    let mut terminal = Command::new("script")
        .args(["-qec", &format!("echo $$ >pid; exec {line}"), "/dev/null"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_ready = || engine::request(&address, "GET", "/readyz", &[]).is_ok_and(|answer| answer.code == 200);
    let waited = (0..SOON.as_millis() / 50).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        is_ready()
    });
    assert!(waited, "the engine never got ready");
    terminal.kill().unwrap(); // closes the master of the terminal
    terminal.wait().unwrap();
    let has_stopped = (0..60).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !is_ready()
    });
    let id = fs::read_to_string(dir.path().join("pid")).unwrap();
    drop(Command::new("kill").args(["-KILL", id.trim()]).stderr(Stdio::null()).status());
    has_stopped
}

#[test]
fn closed_terminal_stops_engine_unless_nohup() {
    assert!(stops_with_terminal(""));
    assert!(!stops_with_terminal("nohup"));
}

#[test]
fn listen_flag_overrides_file_and_environment() {
    let (_simulator, dir) = cluster();
    let path = text(dir.path(), "config.toml");
    fs::write(&path, config(dir.path(), "[http]\nlisten = \"127.0.0.1:1\"\n")).unwrap();
    let mut command = command(&["run", "-c", &path, "--listen", "127.0.0.1:0"]);
    command.env("DELTABUS__HTTP__LISTEN", "127.0.0.1:2").stdout(Stdio::null());
    let engine = Engine::spawn_command(command);
    engine.wait_ready(SOON);
    assert!(engine.terminate().success());
    let output = self::command(&["run", "-c", &path, "--listen", "0.0.0.0:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: --listen: http.listen: "), "{said}");
}
