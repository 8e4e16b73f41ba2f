//! Webhook options in the configuration, and their errors.

use std::fs;

use deltabus::internals::config::Config;

fn load(options: &str) -> Result<Config, String> {
    let head = "[resources.pods]\nmatch = [\"pods\"]\n[handlers.hook]\ntype = \"webhook\"\n";
    Config::from_toml_str(&format!("{head}{options}\n")).map_err(|errors| errors.to_string())
}

/// Loads options with an error in line 5, the handler's first line, and returns the message.
fn wrong(options: &str) -> String {
    load(options).err().unwrap_or_else(|| panic!("{options} loads"))
}

/// Compares the messages for options that follow a URL with the expected ones, all at once.
fn check(mistakes: &[(&str, &str)]) {
    let told =
        |(option, expected): &(&str, &str)| (wrong(&format!("{URL}{option}")), format!("configuration:{expected}"));
    let (found, expected): (Vec<_>, Vec<_>) = mistakes.iter().map(told).unzip();
    assert_eq!(found, expected);
    assert!(!found.concat().contains("s3cret"));
}

const URL: &str = "url = \"https://hooks.example.com/events\"\n";

#[test]
fn mistakes_are_reported_with_key_and_location() {
    let (found, expected): (Vec<_>, Vec<_>) = [
        ("method = \"PUT\"", "3:11: handlers.hook: missing `url`: expected a string, or a table with one of `env`, `file`, such as { env = \"NAME\" }"),
        (
            "url = \"hooks.example.com\"",
            "5:7: handlers.hook.url: expected a URL such as \"https://hooks.example.com/events\", found \"hooks.example.com\"",
        ),
        (
            "url = \"ftp://x/\"",
            "5:7: handlers.hook.url: expected a URL such as \"https://hooks.example.com/events\", found \"ftp://x/\"",
        ),
        (
            "url = \"https://me:s3cret@x/\"",
            "5:7: handlers.hook.url: has a user or password in it: expected them in `auth`",
        ),
        (
            "url = \"https://x/#a\"",
            "5:7: handlers.hook.url: has a fragment, `#…`, which is never sent: expected it without",
        ),
        (
            "url = \"https://x/\"\nmethod = \"GET\"",
            "6:10: handlers.hook.method: expected one of `POST`, `PUT`, `PATCH`, found \"GET\"",
        ),
        (
            "url = \"https://x/\"\nreject = [404, 302]",
            "6:16: handlers.hook.reject[1]: expected a whole number from 400 to 599, found the number 302",
        ),
        (
            "url = \"https://x/\"\nreject = [600]",
            "6:11: handlers.hook.reject[0]: expected a whole number from 400 to 599, found the number 600",
        ),
        (
            "url = \"https://x/\"\nreject = 404",
            "6:10: handlers.hook.reject: expected a list, found the number 404",
        ),
        (
            "url = \"https://x/\"\nmode = \"binar\"",
            "6:8: handlers.hook.mode: expected one of `structured`, `binary`, found \"binar\"; did you mean `binary`?",
        ),
        (
            "url = \"https://x/\"\nmode = \"binary\"\nbatch = { max_events = 2 }",
            "6:8: handlers.hook.mode: a batch is a JSON array, which \"binary\" does not support: expected \"structured\", or no `batch`",
        ),
        (
            "url = \"http://x/\"\ntls = { server_name = \"y\" }",
            "6:1: handlers.hook.tls: `url` is http://, without TLS: expected https://, or no `tls`",
        ),
    ]
    .map(|(options, expected)| (wrong(options), format!("configuration:{expected}")))
    .into_iter()
    .unzip();
    assert_eq!(found, expected);
}

#[test]
fn header_mistakes_are_reported_without_secrets() {
    check(&[
        (
            "headers = { X-A = 5 }",
            "6:19: handlers.hook.headers.X-A: expected a string, or a table with one of `env`, `file`, such as { env = \"NAME\" }",
        ),
        (
            "headers = { \"X A\" = \"b\" }",
            "6:21: handlers.hook.headers.\"X A\": \"X A\" is not a valid header name: expected letters, digits and `-`",
        ),
        (
            "headers = { Authorization = \"Bearer s3cret\" }",
            "6:29: handlers.hook.headers.Authorization: contains a secret, which must be a reference: expected it in `auth`",
        ),
        (
            "headers = { Content-Type = \"a/b\" }",
            "6:28: handlers.hook.headers.Content-Type: is set by the handler itself: expected another header",
        ),
        (
            "headers = { X-A = \"a\\nb\" }",
            "6:19: handlers.hook.headers.X-A: has characters that no header can carry: expected printable ASCII",
        ),
        (
            "headers = { X-A = \"1\", x-a = \"2\" }",
            "6:30: handlers.hook.headers.x-a: is already set in another letter case: expected it once",
        ),
        (
            "headers = { Idempotency-Key = \"1\" }",
            "3:11: handlers.hook.idempotency_header: is also in `headers`: expected it in only one of the two",
        ),
    ]);
}

#[test]
fn authentication_mistakes_are_reported_without_secrets() {
    check(&[
        ("auth = \"s3cret\"", "6:8: handlers.hook.auth: expected a table with one of `bearer`, `basic`, `signature`"),
        (
            "auth = { bearer = \"s3cret\" }",
            "6:19: handlers.hook.auth.bearer: expected a table with one of `env`, `file`, such as { env = \"NAME\" }",
        ),
        (
            "auth = { bearer = { env = \"A\", file = \"b\" } }",
            "6:10: handlers.hook.auth.bearer: expected a table with one of `env`, `file`, such as { env = \"NAME\" }, found `env`, `file`",
        ),
        (
            "auth = { bearer = {} }",
            "6:10: handlers.hook.auth.bearer: expected a table with one of `env`, `file`, such as { env = \"NAME\" }, found none",
        ),
        (
            "auth = { bearer = { fil = \"b\" } }",
            "6:21: handlers.hook.auth.bearer.fil: unknown key; did you mean `file`?",
        ),
        (
            "auth = { basic = { username = \"a:b\", password = { env = \"PATH\" } } }",
            "6:31: handlers.hook.auth.basic.username: expected a name without colons and control characters (RFC 7617)",
        ),
        (
            "auth = { bearer = { env = \"DELTABUS_TEST_UNSET\" } }",
            "6:10: handlers.hook.auth.bearer: the environment variable DELTABUS_TEST_UNSET is not set: set it, or name \
             another one",
        ),
        (
            "auth = { bearer = { file = \"/nowhere/token\" } }",
            "6:10: handlers.hook.auth.bearer: cannot read /nowhere/token: No such file or directory (os error 2)",
        ),
        (
            "tls = { ca_file = \"/nowhere/ca.pem\" }",
            "6:19: handlers.hook.tls.ca_file: cannot read /nowhere/ca.pem: No such file or directory (os error 2)",
        ),
        (
            "tls = { cert_file = \"/nowhere/cert.pem\" }",
            "6:21: handlers.hook.tls.cert_file: expected `key_file` beside `cert_file`",
        ),
        (
            "tls = { server_name = \"a b\" }",
            "6:23: handlers.hook.tls.server_name: expected a host name or IP address, found \"a b\"",
        ),
    ]);
}

#[test]
fn unusable_files_are_reported_with_expectation() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "no PEM").unwrap();
    let place = file.display().to_string();
    for (option, expected) in [
        (
            format!("tls = {{ ca_file = {place:?} }}"),
            format!(
                "handlers.hook.tls.ca_file: {place} holds no certificate: expected PEM, \"-----BEGIN CERTIFICATE-----\""
            ),
        ),
        (
            format!("auth = {{ signature = {{ file = {place:?} }} }}"),
            "handlers.hook.auth.signature: expected a signing secret: base64 of 24 to 64 bytes after \"whsec_\", or \
             several of them, separated by blanks"
                .to_owned(),
        ),
    ] {
        let told = wrong(&format!("{URL}{option}"));
        assert!(told.ends_with(&expected), "{told}");
    }
}

#[test]
fn disabled_handler_needs_no_files() {
    load(&format!("{URL}enabled = false\nauth = {{ bearer = {{ file = \"/nowhere\" }} }}")).unwrap();
}

#[test]
fn config_show_hides_secret_locations() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "s3cret").unwrap();
    let config = load(&format!("{URL}auth = {{ bearer = {{ file = {:?} }} }}", file.display().to_string())).unwrap();
    let shown = config.show();
    assert!(shown.contains("[handlers.hook.auth.bearer]\nfile = \"***\"\n"), "{shown}");
    assert!(!format!("{config:?}{shown}").contains(&file.display().to_string()));
    assert_eq!(Config::from_toml_str(&config.to_toml()).unwrap(), config, "what the program keeps is whole");
}

#[test]
fn secret_url_and_header_are_shown_masked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("url");
    fs::write(&file, "https://x/s3cret\n").unwrap();
    let file = file.display();
    let config =
        load(&format!("url = {{ file = \"{file}\" }}\nheaders = {{ X-Key = {{ file = \"{file}\" }} }}")).unwrap();
    let shown = config.show();
    assert!(!shown.contains(&file.to_string()), "{shown}");
    assert!(!format!("{config:?}").contains(&file.to_string()));
    assert_eq!(Config::from_toml_str(&config.to_toml()).unwrap(), config);
    fs::write(dir.path().join("url"), "ftp://x/s3cret").unwrap();
    let error = wrong(&format!("url = {{ file = \"{file}\" }}"));
    assert!(error.contains("handlers.hook.url: expected a URL") && !error.contains("s3cret"), "{error}");
    let error = wrong(&format!("{URL}headers = {{ X-Key = {{ file = \"/nowhere\" }} }}"));
    assert!(error.contains("handlers.hook.headers.X-Key: cannot read /nowhere"), "{error}");
}

#[test]
fn plain_url_is_shown_without_query_values() {
    let shown = load("url = \"https://x/a?key=s3cret\"").unwrap().show();
    assert!(shown.contains("url = \"https://x/a?key=***\""), "{shown}");
    let error = wrong("url = \"ftp://x/a?key=s3cret\"");
    assert!(error.contains("found \"ftp://x/a?key=***\""), "{error}");
}
