//! The command line as a process: exit codes, and use of stdout and stderr.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

fn deltabus(arguments: &[&str], environment: &[(&str, &str)]) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_deltabus"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn valid_configuration_succeeds_with_empty_stdout() {
    let outcome = deltabus(&["validate", "--offline", "-c", "config.toml"], &[]);
    assert_eq!((outcome.code, &*outcome.stdout), (0, ""));
    assert_eq!(
        outcome.stderr,
        "note: the configuration is valid: 2 resources, 1 handler; not checked without the API server: types, rights, \
         namespaces\n"
    );
}

#[test]
fn bad_configuration_is_exit_code_2_everywhere() {
    let file = "tests/configs/broken/everything_at_once.toml";
    for command in [&["validate"][..], &["run"], &["resources"], &["rbac"], &["config", "show"]] {
        let outcome = deltabus(&[command, &["-c", file]].concat(), &[]);
        assert_eq!((outcome.code, &*outcome.stdout), (2, ""), "{command:?}");
        assert!(
            outcome.stderr.contains(&format!("error: {file}:1:1: shutdown_timout: unknown key")),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.ends_with("error: the configuration cannot be used: 7 errors\n"), "{}", outcome.stderr);
    }
}

#[test]
fn bad_usage_is_exit_code_2() {
    for arguments in [&["run"][..], &["nonsense"], &[], &["validate", "-c"]] {
        assert_eq!(deltabus(arguments, &[]).code, 2, "{arguments:?}");
    }
    assert_eq!(deltabus(&["--help"], &[]).code, 0);
    let version = deltabus(&["--version"], &[]);
    assert_eq!(version.code, 0);
    for part in [concat!("deltabus ", env!("CARGO_PKG_VERSION"), " (commit "), ", features ", ", target "] {
        assert!(version.stdout.contains(part), "{}", version.stdout);
    }
}

#[test]
fn colours_are_for_terminals_unless_forced() {
    let arguments = ["validate", "-c", "tests/configs/broken/syntax_error.toml"];
    let coloured = |environment: &[(&str, &str)]| deltabus(&arguments, environment).stderr.contains('\x1b');
    assert!(!coloured(&[]));
    assert!(coloured(&[("CLICOLOR_FORCE", "1")]));
    assert!(!coloured(&[("NO_COLOR", "1")]));
}

#[test]
fn environment_overrides_shown_configuration() {
    let overrides = [("DELTABUS__HANDLERS__OUT__INITIAL", "send")];
    let outcome = deltabus(&["config", "show", "-c", "config.toml"], &overrides);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    assert!(outcome.stdout.contains("initial = \"send\""), "{}", outcome.stdout);
    deltabus::internals::config::Config::from_toml_str(&outcome.stdout).unwrap();
}

#[test]
fn schema_is_printed_as_json() {
    let outcome = deltabus(&["schema"], &[]);
    let printed: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(&printed, deltabus::internals::config::schema::schema().as_value());
    assert_eq!(printed["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
