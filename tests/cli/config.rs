//! Loading of configurations: accepted ones, rejected ones, and their messages.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod json_schema;

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use deltabus::internals::cloud_event::ContentMode;
use deltabus::internals::config::{
    Cache, Compression, Config, ConfigErrors, DataFormat, EventType, FileFsync, Finding, Http, Initial, Loaded,
    LogLevel, Mode, OnMissing, OnRemoved, QueueOrder, Rediscover, SinkConfig, ValueOrigin, WhenFull, schema::schema,
};
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

const MINIMAL: &str = "[resources.pods]\nmatch = [\"pods\"]\n\n[handlers.out]\ntype = \"stdout\"\n";

fn load(files: &[&Path], environment: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
    Config::load(files, environment.iter().map(|(name, value)| (name.into(), value.into())))
}

/// Formats a result like `validate`.
fn tell(outcome: &Result<Loaded, ConfigErrors>) -> String {
    let (errors, warnings) = match outcome {
        Ok(loaded) => (&[][..], &loaded.warnings),
        Err(errors) => (&errors.errors[..], &errors.warnings),
    };
    let errors = errors.iter().map(|error| format!("error: {error}\n"));
    errors.chain(warnings.iter().map(|warning| format!("warning: {warning}\n"))).collect()
}

#[test]
fn each_broken_configuration_is_reported_in_full() {
    let mut names: Vec<_> =
        fs::read_dir("tests/configs/broken").unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert!(names.len() >= 40);
    for name in names {
        let path = Path::new("tests/configs/broken").join(&name);
        let (texts, environment) = fixture(&path);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
        let outcome = load(&[&path], &environment);
        assert!(outcome.is_err(), "{} loads", path.display());
        let name = name.to_str().unwrap().trim_end_matches(".toml");
        insta::with_settings!({ description => texts, omit_expression => true }, {
            insta::assert_snapshot!(name, tell(&outcome));
        });
    }
}

/// Reads a broken configuration (a file or a directory), with the environment from its lines `#env NAME=VALUE`.
fn fixture(path: &Path) -> (String, Vec<(String, String)>) {
    let mut files = if path.is_dir() {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    } else {
        vec![path.to_owned()]
    };
    files.sort();
    let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let variables = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("#env "));
    let variables = variables.map(|line| line.split_once('=').unwrap());
    let environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    (texts.join("# ── the next file ──\n"), environment)
}

// ── files and the environment ──

/// Writes files into a directory and loads the paths given, relative to it.
#[track_caller]
fn load_files(files: &[(&str, &str)], paths: &[&str], environment: &[(&str, &str)]) -> Result<Loaded, String> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let paths: Vec<_> = paths.iter().map(|path| directory.path().join(path)).collect();
    let paths: Vec<&Path> = paths.iter().map(AsRef::as_ref).collect();
    let root = format!("{}/", directory.path().display());
    load(&paths, environment).map_err(|errors| errors.to_string().replace(&root, ""))
}

#[track_caller]
fn override_minimal(environment: &[(&str, &str)]) -> Result<Config, String> {
    load_files(&[("a.toml", MINIMAL)], &["a.toml"], environment).map(|loaded| loaded.config)
}

#[test]
fn later_files_merge_tables_and_replace_other_values() {
    let base = "[resources.pods]\nmatch = [\"pods\"]\nindex = [\"owner\", \"spec.nodeName\"]\nlabels = \"a=b\"\n\
                [handlers.out]\ntype = \"stdout\"\nretry = { initial = \"1s\", max = \"2s\" }\n";
    let local = "[resources.pods]\nindex = [\"metadata.uid\"]\n[resources.nodes]\nmatch = [\"nodes\"]\n\
                 [handlers.out.retry]\nmax = \"3s\"\n";
    let config = load_files(&[("a", base), ("b", local)], &["a", "b"], &[]).unwrap().config;
    assert_eq!(config.resources.keys().collect::<Vec<_>>(), ["nodes", "pods"]);
    assert_eq!(config.resources["pods"].index, ["metadata.uid"]);
    assert_eq!(config.resources["pods"].labels, "a=b");
    let retry = &config.handlers["out"].options.retry;
    assert_eq!((retry.initial, retry.max), (Duration::from_secs(1), Duration::from_secs(3)));
}

#[test]
fn directory_loads_its_toml_files_by_name_order() {
    let files = [
        ("conf/10-base.toml", MINIMAL),
        ("conf/20-more.toml", "[log]\nlevel = \"warn\"\n"),
        ("conf/30-most.toml", "[log]\nlevel = \"error\"\n"),
        ("conf/notes.txt", "this is not TOML"),
        ("conf/deeper/40.toml", "nor is this read"),
    ];
    assert_eq!(load_files(&files, &["conf"], &[]).unwrap().config.log.level, LogLevel::Error);
    let empty = load_files(&[("empty/x.txt", "")], &["empty", "gone.toml"], &[]).unwrap_err();
    assert!(
        empty.starts_with("empty: no *.toml files in this directory\ngone.toml: failed to read the file"),
        "{empty}"
    );
}

#[test]
fn non_utf8_variables_are_refused_by_name() {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    fs::write(&file, MINIMAL).unwrap();
    let variables = [
        (b"DELTABUS__CLUSTER__NAME".to_vec(), b"prod-\xff".to_vec()),
        (b"DELTABUS__CLUSTER__NAM\xff".to_vec(), b"prod".to_vec()),
        (b"OTHER".to_vec(), b"\xff".to_vec()),
    ];
    let variables = variables.map(|(name, value)| (OsString::from_vec(name), OsString::from_vec(value)));
    let errors = Config::load(&[&file], variables).unwrap_err();
    let expected = "environment variable DELTABUS__CLUSTER__NAME: the value is not UTF-8: set it to UTF-8 text\n\
                    environment variable DELTABUS__CLUSTER__NAM\u{fffd}: the name is not UTF-8: rename or unset the variable";
    assert_eq!(errors.to_string(), expected);
    let deep = format!("DELTABUS{}", "__A".repeat(10_000));
    let errors = Config::load(&[&file], [(deep.into(), "1".into())]).unwrap_err();
    assert!(errors.to_string().ends_with(": too many keys: expected at most 16, separated by `__`"));
}

/// Loads a configuration of many parts; `part` gets its number and their total. Returns the errors, and asserts that the
/// time is linear in the number of parts.
#[track_caller]
fn load_many(part: impl Fn(usize, usize) -> String) -> Option<ConfigErrors> {
    let load = |parts: usize| {
        let text: String = (0..parts).map(|n| part(n, parts)).collect();
        let begin = cpu_time();
        let outcome = Config::from_toml_str(&format!("{text}\n[handlers.out]\ntype = \"stdout\"\n"));
        (cpu_time().saturating_sub(begin), outcome)
    };
    let ((some, _), (many, outcome)) = (load(MANY / 4), load(MANY));
    // Linear cost takes four times as long, quadratic cost sixteen times.
    assert!(many < some * 10, "{some:?} for {}, {many:?} for {MANY}", MANY / 4);
    outcome.err()
}

/// Returns the CPU time of this thread, because other tests use the cores too.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

const MANY: usize = 12_000;

#[test]
fn many_mistakes_take_linear_time_and_are_counted() {
    let parts: [&dyn Fn(usize, usize) -> String; 6] = [
        &|n, _| format!("key_{n} = 1\n"),
        &|n, _| format!("[table_{n}]\nx = 1\n"),
        &|n, _| format!("[resources.r{n}]\n"),
        &|n, _| format!("[resources.r{n}]\nmatch = [\"pods\"]\n"),
        &|n, _| format!("[handlers.h{n}]\ntype = \"stdout\"\nresources = [\"nope{n}\"]\ndead_letter = \"none{n}\"\n"),
        &|n, _| format!("key_{n} = = 1\n"),
    ];
    for part in parts {
        let errors = load_many(part).expect("all parts are wrong");
        assert_eq!(errors.errors.len(), 100);
        assert!(errors.more >= MANY - 101, "{}", errors.more);
        assert!(errors.to_string().ends_with(&format!("\nand {} more errors", errors.more)));
    }
}

#[test]
fn large_configurations_load_in_linear_time() {
    let parts: [&dyn Fn(usize, usize) -> String; 3] = [
        &|n, _| format!("[resources.r{n}]\nmatch = [\"t{n}.example.com\"]\n"),
        &|n, all| {
            let head = if n == 0 { "[resources.r]\nmatch = [\"pods\"]\n" } else { "" };
            let next = if n + 1 < all { format!("dead_letter = \"h{:05}\"\n", n + 1) } else { String::new() };
            format!("{head}[handlers.h{n:05}]\ntype = \"blackhole\"\n{next}")
        },
        &|n, _| {
            let head = if n == 0 { "[resources.r]\nmatch = [\"pods\"]\n" } else { "" };
            format!("{head}[[tests]]\nname = \"t{n}\"\nnew = \"x.yaml\"\nexpect = {{ out = 1 }}\n")
        },
    ];
    for part in parts {
        assert_eq!(load_many(part), None);
    }
}

#[test]
fn mistake_is_reported_at_its_layer() {
    let wrong = "[handlers.out]\ninitial = \"now\"\n";
    let text = load_files(&[("a", MINIMAL), ("b", wrong)], &["a", "b"], &[]).unwrap_err();
    assert!(text.starts_with("b:2:11: handlers.out.initial: expected one of"), "{text}");
    // A correct later layer repairs an earlier one.
    load_files(&[("a", MINIMAL), ("b", wrong), ("c", "handlers.out.initial = \"send\"")], &["a", "b", "c"], &[])
        .unwrap();
    // A value in place of a table is an error of the later layer.
    let text = load_files(&[("a", MINIMAL), ("b", "handlers = 1")], &["a", "b"], &[]).unwrap_err();
    assert_eq!(text, "b:1:12: handlers: expected a table, found the number 1");
    // Columns count characters.
    let text = load_files(&[("a", "cluster = { \"ä\" = 1, nam = 2 }\n")], &["a"], &[]).unwrap_err();
    assert!(text.contains("a:1:22: cluster.nam: unknown key"), "{text}");
    // A conflict left by another file is reported at its own position.
    let file = "[handlers.out]\ntype = \"file\"\npath = \"/tmp/x\"\n";
    let text = load_files(&[("a", file), ("b", MINIMAL)], &["a", "b"], &[]).unwrap_err();
    assert_eq!(text, "a:3:1: handlers.out.path: unknown key; `path` belongs to handlers of type file");
}

#[test]
fn syntax_errors_of_all_files_are_reported() {
    let text = load_files(&[("a", "x = "), ("b", "[y")], &["a", "b"], &[]).unwrap_err();
    assert!(text.contains("a:1:5: invalid TOML") && text.contains("b:1:3: invalid TOML"), "{text}");
}

#[test]
fn missing_bracket_is_one_error() {
    let broken = MINIMAL.replace("[\"pods\"]", "[\"pods\"");
    let text = load_files(&[("a", &broken)], &["a"], &[]).unwrap_err();
    assert_eq!(text.matches("invalid TOML").count(), 1, "{text}");
    assert!(text.contains("the array before this line has no `]`"), "{text}");
    // Errors before the array are reported as well.
    let text = load_files(&[("a", &format!("x = \n{broken}"))], &["a"], &[]).unwrap_err();
    assert_eq!(text.matches("invalid TOML").count(), 2, "{text}");
}

#[test]
fn environment_variables_override_files() {
    let config = override_minimal(&[
        ("DELTABUS__HANDLERS__OUT__TYPE", "file"),
        ("DELTABUS__HANDLERS__OUT__PATH", "/tmp/12"),
        ("DELTABUS__HANDLERS__OUT__ON", "[\"added\", 'synced']"),
        ("DELTABUS__HANDLERS__OUT__BUFFER__MAX_EVENTS", "50_000"),
        ("DELTABUS__HANDLERS__OUT__RETRY__JITTER", "false"),
        ("DELTABUS__HANDLERS__OUT__ROTATE", "{ keep = 3 }"),
        ("DELTABUS__KUBE__BACKOFF__FACTOR", "3"),
        ("DELTABUS__KUBE__CONTEXT", "5"),
        ("DELTABUS__HTTP__LISTEN", ""),
        ("DELTABUS__RESOURCES__NODES__MATCH", "[\"nodes\"]"),
        ("DELTABUS_CONFIG", "is another program's"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    let out = &config.handlers["out"];
    let SinkConfig::File(file) = &out.sink else { panic!("another type") };
    assert_eq!((&*file.path, file.rotate.as_ref().unwrap().keep), ("/tmp/12", Some(3)));
    assert_eq!(out.options.on, [EventType::Added, EventType::Synced]);
    assert_eq!((out.options.buffer.max_events, out.options.retry.jitter), (50_000, false));
    assert!((config.kube.backoff.factor - 3.0).abs() < f64::EPSILON);
    assert_eq!((config.kube.context.as_deref(), config.http.listen), (Some("5"), None));
    assert!(config.resources.contains_key("nodes"));
}

#[test]
fn mistakes_in_environment_variables_name_the_variable() {
    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: &str) {
        assert_eq!(override_minimal(variables).unwrap_err(), expected);
    }
    check(
        &[("DELTABUS__HANDLERS__OUT__INITAL", "send")],
        "environment variable DELTABUS__HANDLERS__OUT__INITAL: handlers.out.inital: unknown key; did you mean `initial`?",
    );
    check(
        &[("DELTABUS__KUBE__PAGE_SIZE", "many")],
        "environment variable DELTABUS__KUBE__PAGE_SIZE: kube.page_size: expected a whole number of at least 1, found \
         the string \"many\"",
    );
    check(
        &[("DELTABUS__KUBE__PAGE_SIZE", "1\nmax_frame = 2")],
        "environment variable DELTABUS__KUBE__PAGE_SIZE: kube.page_size: expected a whole number of at least 1, found \
         the string \"1\\nmax_frame = 2\"",
    );
    check(
        &[("DELTABUS__RESOURCES__PODS__MATCH", "[\"pods\", \"*.*\"]")],
        "environment variable DELTABUS__RESOURCES__PODS__MATCH: resources.pods.match[1]: unexpected resource type \
         \"*.*\", expected *.GROUP, like *.apps",
    );
    check(
        &[("DELTABUS__HANDLERS__AUDIT__PATH", "/tmp/x")],
        "environment variable DELTABUS__HANDLERS__AUDIT__PATH: handlers.audit: missing `type`: expected one of \
         `stdout`, `file`, `blackhole`, `webhook`, `nats`, `kafka`, `exec`",
    );
    check(
        &[("DELTABUS__LOG", "x"), ("DELTABUS__LOG__LEVEL", "info")],
        "environment variable DELTABUS__LOG: log: conflicts with DELTABUS__LOG__LEVEL, which sets a part of the same value: expected only one of them",
    );
}

// ── meaning of a configuration ──

#[test]
fn smallest_configuration_has_documented_defaults() {
    let config = Config::from_toml_str(MINIMAL).unwrap();
    let pods = &config.resources["pods"];
    assert_eq!(
        (pods.mode, pods.options.order, pods.options.on_missing),
        (Mode::Full, QueueOrder::Stream, OnMissing::Wait)
    );
    assert_eq!((pods.cache, pods.options.on_removed, &pods.exclude[..]), (Cache::Full, OnRemoved::Drain, &[][..]));
    assert!(pods.namespaces.is_all() && pods.namespace_selector.is_empty());
    assert_eq!((config.kube.rediscover, config.reload.watch), (Rediscover::CrdWatch, true));
    assert_eq!(pods.options.fifo_max_bytes, 64 << 20);
    assert_eq!(pods.options.drop.len(), 2);
    let out = &config.handlers["out"];
    assert_eq!((&out.sink, out.enabled, out.options.initial), (&SinkConfig::Stdout, true, Initial::Skip));
    assert_eq!(out.options.buffer.when_full, WhenFull::Coalesce);
    assert!(out.takes("pods"));
    assert_eq!(config.http.listen.unwrap().to_string(), "127.0.0.1:8080");
}

#[test]
fn entries_inherit_and_override_defaults() {
    let config = load(&[Path::new("tests/configs/full.toml")], &[]).unwrap().config;
    let [pods, secrets] = ["pods", "secrets"].map(|name| &config.resources[name]);
    assert_eq!((pods.options.order, secrets.options.order), (QueueOrder::PerKey, QueueOrder::Stream));
    assert_eq!((pods.options.drop.len(), secrets.options.drop.len()), (2, 0));
    let [out, null] = ["out", "null"].map(|name| &config.handlers[name].options);
    assert_eq!((out.retry.initial, out.retry.max), (Duration::from_secs(1), Duration::from_mins(3)));
    assert_eq!((null.retry.max, out.initial, null.initial), (Duration::from_mins(2), Initial::Skip, Initial::Send));
    assert_eq!((out.buffer.max_events, out.buffer.when_full), (5, WhenFull::DropOldest));
    let SinkConfig::File(file) = &config.handlers["dlq"].sink else { panic!("another type") };
    assert_eq!(file.fsync, FileFsync::Interval(Duration::from_millis(250)));
    let formats = ["dlq", "out", "signed_hook"].map(|name| config.handlers[name].options.format);
    assert_eq!(formats, [DataFormat::Diff, DataFormat::Template, DataFormat::MergePatch]);
    let modes = ["hook", "signed_hook", "bus"].map(|name| match &config.handlers[name].sink {
        SinkConfig::Webhook(hook) => hook.mode,
        SinkConfig::Nats(bus) => bus.mode,
        _ => panic!("another type"),
    });
    assert_eq!(modes, [ContentMode::Binary, ContentMode::Binary, ContentMode::Structured]);
}

#[test]
fn handler_takes_names_and_globs_with_exclusions() {
    #[track_caller]
    fn check(patterns: &str, expected: &[&str]) {
        let resources = ["pods", "podtemplates", "nodes"];
        let entries = resources.map(|name| format!("[resources.{name}]\nmatch = [\"{name}\"]\n")).concat();
        let text = format!("{entries}[handlers.out]\ntype = \"stdout\"\nresources = {patterns}\n");
        let config = Config::from_toml_str(&text).unwrap();
        let takes: Vec<_> = resources.into_iter().filter(|name| config.handlers["out"].takes(name)).collect();
        assert_eq!(takes, expected, "{patterns}");
    }
    check(r#"["*"]"#, &["pods", "podtemplates", "nodes"]);
    check("[]", &[]);
    check(r#"["pods"]"#, &["pods"]);
    check(r#"["pod*"]"#, &["pods", "podtemplates"]);
    check(r#"["pod*", "!pods"]"#, &["podtemplates"]);
    check(r#"["!pods", "*"]"#, &["podtemplates", "nodes"]);
    check(r#"["!pod*"]"#, &["nodes"]);
    check(r#"["pods", "!*"]"#, &[]);
}

#[test]
fn odd_configuration_causes_warnings() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let loaded = load_files(&[("a", text)], &["a"], &[]).unwrap();
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        let told = warnings.join("\n");
        assert!(!told.is_empty() && told.contains(expected), "{told}");
    }
    check("[resources.pods]\nmatch = [\"pods\"]", "no handlers: nothing will be sent");
    let state = "[state]\ndir = \"/x\"\nmax_bytes = \"200MiB\"";
    check(&format!("{MINIMAL}{state}"), "state.max_bytes: the store itself takes about 200 MB");
    check(&format!("{MINIMAL}enabled = false"), "no handler is enabled");
    check(&format!("{MINIMAL}resources = []"), "gets no events");
    check(&format!("{MINIMAL}resync = \"1h\""), "there will be no resync events");
    check(&format!("{MINIMAL}resources = [\"*\", \"!node*\"]"), "\"!node*\" matches no entry of [resources]");
    let one_at_a_time = "handlers.out.concurrency: has no effect with type = \"stdout\"";
    check(&format!("{MINIMAL}concurrency = 4"), one_at_a_time);
    let no_list = "handlers.out.changed[0]: goes into a list without `[*]`, so nothing is found; did you mean \
                   `spec.template.spec.containers[*].image`?";
    check(&format!("{MINIMAL}changed = [\"spec.template.spec.containers.image\"]"), no_list);
    let selected = MINIMAL.replace("[\"pods\"]", "[\"pods\"]\nlabels = \"app=web\"") + "on = [\"deleted\"]";
    check(&selected, "handlers.out.on: [resources.pods] has a selector");
    let metadata =
        MINIMAL.replace("[\"pods\"]", "[\"pods\"]\nmode = \"metadata\"\nindex = [\"spec.nodeName\", \"owner\"]");
    check(&metadata, "a:4:10: resources.pods.index[0]: with mode = \"metadata\" no object has `spec.nodeName`");
    let no_digests = format!("[redact]\nsecrets = \"drop\"\nhmac_key = {{ env = \"K\" }}\n{MINIMAL}");
    check(&no_digests, "a:3:1: redact.hmac_key: has no effect: no values are replaced by digests");
    let of_nothing = format!("[redact]\npaths = [{{ path = \"data\", resources = [\"node*\"] }}]\n{MINIMAL}");
    check(&of_nothing, "redact.paths[0].resources[0]: \"node*\" matches no entry of [resources]");
    let stubs = MINIMAL.replace("[\"pods\"]", "[\"pods\"]\ncache = \"none\"\nresync = \"1h\"");
    check(&stubs, "a:4:10: resources.pods.resync: with cache = \"none\" no bodies are kept: there will be no resync");
    let stubs = MINIMAL.replace("[\"pods\"]", "[\"pods\"]\ncache = \"none\"") + "format = \"diff\"";
    check(
        &stubs,
        "handlers.out.format: [resources.pods] has cache = \"none\", so the previous object of an update is unknown",
    );
    let template = |text: &str| format!("{MINIMAL}format = \"template\"\ntemplate = \"{text}\"");
    check(
        &template("{{ old.spec }}"),
        "a:7:12: handlers.out.template: the handler will give up some or all `added`, `deleted`, `removed` events: line 1, \
         column 4: undefined value",
    );
    let hook = template("x").replace("stdout", "webhook\"\nurl = \"http://127.0.0.1/\"\nbatch = {}\n#");
    check(&hook, "handlers.out.template: may produce invalid JSON");
    check(&format!("{MINIMAL}template = \"x\""), "handlers.out.template: has no effect without format = \"template\"");
}

#[test]
fn dead_letter_to_disabled_handler_is_an_error() {
    let disabled = format!("{MINIMAL}dead_letter = \"d\"\n[handlers.d]\ntype = \"blackhole\"\nenabled = false");
    let errors = load_files(&[("a", &disabled)], &["a"], &[]).unwrap_err().clone();
    assert!(errors.contains("handlers.out.dead_letter: [handlers.d] is not enabled"), "{errors}");
    let both = disabled.replace("dead_letter", "enabled = false\ndead_letter");
    assert!(load_files(&[("a", &both)], &["a"], &[]).is_ok(), "a handler that is not enabled gives nothing up");
}

#[test]
fn secrets_load_in_every_redaction_mode() {
    for (redact, entry, loads) in [
        ("", "match = [\"secrets\"]", true),
        ("", "match = [\"secrets\"]\nmode = \"full\"", true),
        ("secrets = \"drop\"", "match = [\"secrets\"]\nmode = \"full\"", true),
        ("secrets = \"metadata\"", "match = [\"secrets\"]", true),
        ("secrets = \"metadata\"", "match = [\"pods\", \"Secret\"]", true),
        ("secrets = \"metadata\"", "match = [\"secrets\"]\nmode = \"metadata\"", true),
        ("secrets = \"metadata\"", "match = [\"secrets\"]\nmode = \"full\"", false),
    ] {
        let text = format!("[redact]\n{redact}\n[resources.s]\n{entry}\n[handlers.out]\ntype = \"stdout\"\n");
        let loaded = load_files(&[("a", &text)], &["a"], &[]);
        assert_eq!(loaded.is_ok(), loads, "{text}");
        let Ok(loaded) = loaded else { continue };
        assert_eq!(loaded.warnings, [], "{text}");
        assert_eq!(Config::from_toml_str(&loaded.config.to_toml()).unwrap(), loaded.config, "{text}");
    }
}

#[test]
fn non_loopback_address_needs_token_and_certificate() {
    #[track_caller]
    fn check(http: &str, expected: &str) {
        let said = load_files(&[("a", &format!("{MINIMAL}[http]\n{http}"))], &["a"], &[]).err().unwrap_or_default();
        assert_eq!(said, expected, "{http}");
    }
    const TOKEN: &str = "auth = \"token\"\ntoken = { env = \"T\" }";
    const TOKENS: &str = "tokens = [{ name = \"a\", token = { env = \"T\" } }";
    const TLS: &str = "tls = { cert_file = \"c\", key_file = \"k\" }";
    for listen in ["", "127.0.0.1:8080", "[::1]:8080", "127.9.9.9:0"] {
        check(&format!("listen = \"{listen}\""), "");
    }
    check(TOKEN, "");
    check(TLS, "");
    check("listen = \"\"\nprobe_listen = \"0.0.0.0:8081\"", "");
    check(&format!("listen = \"0.0.0.0:8080\"\n{TOKEN}\n{TLS}"), "");
    let open = "can be reached from other machines, and any client could read everything: expected";
    check(
        "listen = \"192.168.0.1:8080\"",
        &format!(
            "a:7:10: http.listen: 192.168.0.1:8080 {open} auth = \"token\" and `tls`, or a loopback address such as \
             \"127.0.0.1:8080\""
        ),
    );
    check(
        &format!("listen = \"[2001:db8::1]:80\"\n{TLS}"),
        &format!(
            "a:7:10: http.listen: [2001:db8::1]:80 {open} auth = \"token\", or a loopback address such as \"[::1]:80\""
        ),
    );
    check(
        &format!("listen = \"0.0.0.0:8080\"\n{TOKEN}"),
        "a:7:10: http.listen: 0.0.0.0:8080 can be reached from other machines, and the token would be sent without encryption: expected `tls`, or a loopback address such as \"127.0.0.1:8080\"",
    );
    check(
        "auth = \"token\"",
        "a:7:8: http.auth: no client could authenticate: expected `token` too, such as { file = \
         \"/run/secrets/deltabus/token\" }",
    );
    check("token = { env = \"T\" }", "a:7:1: http.token: has no effect: expected auth = \"token\" too, or no token");
    check("tls = { key_file = \"k\" }", "a:7:20: http.tls.key_file: expected `cert_file` too");
    check(&format!("auth = \"token\"\n{TOKENS}]"), "");
    check(
        &format!("auth = \"token\"\n{TOKENS}, {{ name = \"a\", token = {{ env = \"U\" }} }}]"),
        "a:8:10: http.tokens: the name \"a\" is empty or used twice: expected a different name for each token",
    );
    for host in ["http://engine", "engine:8080", "", "*.example.com"] {
        let expected = "a:7:17: http.allowed_hosts: expected a host name or an address without scheme and port, found";
        check(&format!("allowed_hosts = [{host:?}]"), &format!("{expected} {host:?}"));
    }
    check("allowed_hosts = [\"engine.example.com\", \"10.0.0.1\", \"2001:db8::1\"]", "");
    check("write_timeout = \"10ms\"", "a:7:17: http.write_timeout: expected at least \"1s\", found \"10ms\"");
}

#[test]
fn entries_share_type_in_disjoint_namespaces() {
    #[track_caller]
    fn check(left: &str, right: &str, shared: bool) {
        let text = format!("[resources.a]\nmatch = [\"pods\"]\n{left}\n[resources.b]\nmatch = [\"pods\"]\n{right}\n");
        let loaded = Config::from_toml_str(&text);
        assert_eq!(loaded.is_ok(), shared, "{text}{loaded:?}");
    }
    check("", "", false);
    check("namespaces = [\"a\"]", "namespaces = [\"b\"]", true);
    check("namespaces = [\"!b\"]", "namespaces = [\"b\"]", true);
    check("namespaces = [\"team-*\"]", "namespaces = [\"*-b\"]", false);
    // labels may change
    check("namespace_selector = \"team=a\"", "namespace_selector = \"team=b\"", false);
}

#[test]
fn secrets_under_wildcard_cause_no_warning() {
    for entry in ["match = [\"*\"]", "match = [\"*\"]\nmode = \"full\""] {
        let text = format!("[resources.all]\n{entry}\n[handlers.out]\ntype = \"stdout\"\n");
        assert_eq!(load_files(&[("a", &text)], &["a"], &[]).unwrap().warnings, [], "{entry}");
    }
}

// ── printed configurations load again and conform to the schema ──

/// Uncomments the options of the top-level config.toml: lines with `#` directly before the text.
fn uncomment(text: &str) -> String {
    let bare = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with("# ")).map(str::to_owned)
    };
    // `#  "metadata.managedFields",` continues a list; prose is `# text`.
    let option = |line: &str| bare(line).filter(|rest| !rest.starts_with(' ') || rest.starts_with("  \""));
    text.lines().map(|line| option(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn shipped() -> String {
    fs::read_to_string("config.toml").unwrap()
}

fn full() -> String {
    fs::read_to_string("tests/configs/full.toml").unwrap()
}

fn from_toml(text: &str) -> Value {
    toml::from_str(text).unwrap()
}

#[test]
fn shipped_configuration_loads_without_warning() {
    let loaded = load(&[Path::new("config.toml")], &[]).unwrap();
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.config.resources.len(), 2);
    assert_eq!(loaded.config.handlers["out"].sink, SinkConfig::Stdout);
}

#[test]
fn uncommented_shipped_configuration_shows_true_defaults() {
    let text = uncomment(&shipped());
    let lifted = Config::from_toml_str(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let mut plain = Config::from_toml_str(&shipped()).unwrap();
    assert_eq!((lifted.resources.len(), lifted.handlers.len()), (6, 7));
    // All values are defaults, except entries and handlers that are examples.
    for example in ["certificates", "custom", "everything", "warnings"] {
        plain.resources.insert(example.to_owned(), lifted.resources[example].clone());
    }
    // Secrets and named files are examples too.
    let Http { auth, token, tokens, tls, .. } = lifted.http.clone();
    plain.http = Http { auth, token, tokens, tls, ..plain.http };
    plain.redact.hmac_key.clone_from(&lifted.redact.hmac_key);
    plain.redact.paths.clone_from(&lifted.redact.paths);
    plain.tests.clone_from(&lifted.tests);
    plain.handlers = lifted.handlers.clone();
    plain.handlers.insert("out".to_owned(), Config::from_toml_str(&shipped()).unwrap().handlers["out"].clone());
    assert_eq!(lifted, plain);
}

/// Collects the paths of all keys, with map entries as `*`.
fn keys_of_schema(root: &Value, schema: &Value, at: &str, keys: &mut BTreeSet<String>) {
    let reference = schema.get("$ref").and_then(Value::as_str);
    let schema = reference.and_then(|reference| root.pointer(&reference[1..])).unwrap_or(schema);
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        keys_of_schema(root, variant, at, keys);
    }
    for entry in schema["patternProperties"].as_object().into_iter().flat_map(|entries| entries.values()) {
        keys_of_schema(root, entry, &format!("{at}.*"), keys);
    }
    // An example shows only one alternative of a choice.
    let is_choice = schema["maxProperties"] == 1;
    for (key, schema) in schema["properties"].as_object().filter(|_| !is_choice).into_iter().flatten() {
        keys.insert(format!("{at}.{key}"));
        keys_of_schema(root, schema, &format!("{at}.{key}"), keys);
    }
}

fn keys_of(value: &Value, at: &str, keys: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let key = if at == ".resources" || at == ".handlers" { "*" } else { key };
        let at = format!("{at}.{key}");
        keys_of(value, &at, keys);
        keys.insert(at);
    }
}

#[test]
fn every_schema_option_is_in_example_configurations() {
    let schema = schema().to_value();
    let mut known = BTreeSet::new();
    keys_of_schema(&schema, &schema, "", &mut known);
    for text in [uncomment(&shipped()), full()] {
        let mut used = BTreeSet::new();
        keys_of(&from_toml(&text), "", &mut used);
        // Inheritable keys need not be repeated in an entry.
        let inherited: Vec<_> = used.iter().filter_map(|key| key.strip_prefix(".defaults.")?.split_once('.')).collect();
        let inherited: Vec<_> = inherited.iter().map(|(section, key)| format!(".{section}.*.{key}")).collect();
        used.extend(inherited);
        used.insert(".resources.*".to_owned());
        let missing: Vec<_> = known.difference(&used).filter(|key| !key.ends_with('*')).collect();
        assert!(missing.is_empty(), "not shown: {missing:?}");
    }
}

#[test]
fn shown_configuration_loads_as_the_same() {
    for text in [MINIMAL.to_owned(), shipped(), uncomment(&shipped()), full()] {
        let config = Config::from_toml_str(&text).unwrap();
        let shown = config.to_toml();
        assert_eq!(Config::from_toml_str(&shown).unwrap(), config, "{shown}");
        assert_eq!(json_schema::violations(schema().as_value(), &from_toml(&shown)), [""; 0]);
    }
}

#[test]
fn example_configurations_conform_to_schema() {
    for text in [MINIMAL.to_owned(), shipped(), uncomment(&shipped()), full()] {
        assert_eq!(json_schema::violations(schema().as_value(), &from_toml(&text)), [""; 0]);
    }
}

#[test]
fn compression_is_zstd_lz4_or_none() {
    for (text, expected) in [("zstd", Compression::Zstd), ("lz4", Compression::Lz4), ("none", Compression::None)] {
        let config =
            Config::from_toml_str(&format!("{MINIMAL}[defaults.resources]\ncompression = \"{text}\"\n")).unwrap();
        assert_eq!(config.resources["pods"].options.compression, expected);
        assert_eq!(json_schema::violations(schema().as_value(), &from_toml(&config.to_toml())), [""; 0]);
    }
    let names: Vec<_> = schema().to_value()["$defs"]["Compression"]["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| choice["const"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["zstd", "lz4", "none"]);
}

#[test]
fn schema_refuses_unknown_keys_in_every_table() {
    // Break one table at a time: the others stay correct.
    fn each_table(value: &Value, at: &str, pointers: &mut Vec<String>) {
        let Value::Object(table) = value else { return };
        pointers.push(at.to_owned());
        table.iter().for_each(|(key, value)| each_table(value, &format!("{at}/{key}"), pointers));
    }
    let schema = schema().to_value();
    let whole = from_toml(&full());
    let mut pointers = Vec::new();
    each_table(&whole, "", &mut pointers);
    assert!(pointers.len() > 20);
    for pointer in pointers {
        let mut odd = whole.clone();
        odd.pointer_mut(&pointer).unwrap()["Unknown"] = 1.into();
        assert!(!json_schema::violations(&schema, &odd).is_empty(), "{pointer:?} takes unknown keys");
    }
}

#[test]
fn every_option_of_the_schema_is_described() {
    fn check(schema: &Value, at: &str) {
        schema["oneOf"].as_array().into_iter().flatten().for_each(|schema| check(schema, at));
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            let described = schema["description"].is_string() || key == "type";
            assert!(described, "{at}.{key} has no description");
            check(schema, &format!("{at}.{key}"));
        }
    }
    let schema = schema().to_value();
    check(&schema, "");
    schema["$defs"].as_object().unwrap().iter().for_each(|(name, definition)| check(definition, name));
}

// ── any error ──

/// Returns true if an error has no position although a text in the file caused it.
fn is_lost(error: &Finding) -> bool {
    error.origin == ValueOrigin::Nowhere && error.key != "resources"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Values that the schema accepts must deserialize: otherwise the error would have no position.
    #[test]
    fn any_wrong_value_is_reported_with_its_location(at in 0..10_000_usize, value in 0..VALUES.len()) {
        let text = full();
        let lines: Vec<&str> = text.lines().collect();
        let assignments: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].contains(" = ")).collect();
        let line = assignments[at % assignments.len()];
        let (key, _) = lines[line].split_once(" = ").unwrap();
        let changed = format!("{key} = {}", VALUES[value]);
        let text: Vec<&str> = lines.iter().enumerate().map(|(i, old)| if i == line { &*changed } else { old }).collect();
        if let Err(errors) = Config::from_toml_str(&text.join("\n")) {
            prop_assert!(!errors.errors.iter().any(is_lost), "{changed}: {errors}");
        }
    }

    #[test]
    fn damaged_file_is_reported_with_locations(from in 0..4_000_usize, len in 0..200_usize) {
        let text = full();
        let from = text.floor_char_boundary(from);
        let to = text.floor_char_boundary(from + len);
        if let Err(errors) = Config::from_toml_str(&format!("{}{}", &text[..from], &text[to..])) {
            prop_assert!(!errors.errors.iter().any(is_lost), "{errors}");
        }
    }
}

const VALUES: [&str; 16] = [
    "\"\"",
    "\"x\"",
    "\"*\"",
    "\"5m\"",
    "\"1B\"",
    "0",
    "-1",
    "4294967296",
    "9223372036854775807",
    "1e300",
    "nan",
    "true",
    "[]",
    "[[1], {}]",
    "{}",
    "1979-05-27T07:32:00Z",
];

/// Asserts that an error of these lines shows `***` and no part of the secret.
fn assert_masked(lines: &str) {
    let error = Config::from_toml_str(&format!("{MINIMAL}{lines}\n")).unwrap_err().to_string();
    assert!(!error.contains("s3cret") && !error.contains("5373") && error.contains("***"), "{lines}: {error}");
}

#[test]
fn syntax_errors_do_not_show_secrets() {
    for lines in [
        "[http]\ntoken = \"s3cret",
        "[http]\ntoken \"s3cret\"",
        "[http]\ntoken = s3cret",
        "[http]\nmy token = \"s3cret\"",
        "[[http.tokens]]\nname = s3cret",
        "[handlers.h]\nurl = \"https://x/s3cret",
        "[handlers.h]\nservers = [\"nats://me:s3cret@x\" 5]",
        "[handlers.h]\nheaders = {\n  X-A = \"s3cret\" 5 }",
        "[handlers.h]\nheaders = { X-A = \"s3cret\" 5 }",
        "[handlers.h]\nsasl = { username = \"u\", password = \"s3cret\" 5 }",
        "[handlers.h.headers]\nX-A = \"s3cret\" 5",
        "[handlers.h]\npassword = \"\"\"\nfirst\nx = s3cret \\q\n\"\"\"",
        "[handlers.h]\nnames = [\n  \"a\",\n  token = \"s3cret\" 5\n]",
        "whatever [handlers] = \"s3cret\"",
    ] {
        assert_masked(lines);
    }
}

#[test]
fn syntax_errors_show_lines_without_secrets() {
    for line in ["match = = 1", "ignore_changes = [\"a\" 5]", "[resources.pods"] {
        let text = format!("[resources.tokens]\n{line}\n[handlers.h]\npassword = {{ env = \"X\" }}\n");
        let error = Config::from_toml_str(&text).unwrap_err().to_string();
        assert!(error.contains(line) && !error.contains("***"), "{error}");
    }
}

#[test]
fn wrong_values_do_not_show_secrets() {
    for lines in
        ["[http]\nauth = \"s3cret\"", "[handlers.h]\ntype = \"webhook\"\nurl = \"http://x\"\nidempotency_header = 5373"]
    {
        assert_masked(&lines.replace("5373", "53739999999999999999999"));
        assert_masked(lines);
    }
}
