//! Checks that names in the documents exist.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::support::engine::{Engine, text};
use deltabus::internals::simulator::{Simulator, SimulatorOptions, Sizes, Workload};
use regex::Regex;

fn sources(dir: &Path, all: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// Returns all Rust code below `src` and `tests`.
fn code() -> String {
    let mut code = String::new();
    for dir in ["src", "tests"] {
        sources(Path::new(dir), &mut code);
    }
    code
}

/// Returns the names of all tests in the source.
fn tests() -> BTreeSet<String> {
    let code = code();
    assert!(!code.contains(concat!("#[", "ignore")), "every test runs");
    let test = Regex::new(
        r"(?m)#\[(?:\w+::)*test\b.*\]\s*(?:#\[.*\]\s*|//.*\n\s*)*(?:pub(?:\(crate\))? )?(?:async )?fn (\w+)",
    );
    let case = Regex::new(r"(?m)^pub\(crate\) fn (\w+)\(");
    let cases = fs::read_to_string("tests/sinks/contract/cases.rs").unwrap();
    let names = |pattern: Result<Regex, _>, text: &str| -> Vec<String> {
        pattern.unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
    };
    names(test, &code).into_iter().chain(names(case, &cases)).collect()
}

/// Returns the texts in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A word with an underscore in these documents is a test, an option or a metric.
#[test]
fn tests_named_in_documents_exist() {
    let tests = tests();
    assert!(tests.len() > 1_000, "{}", tests.len());
    let [text, semantics, state, questions] = ["guarantees", "semantics", "state", "questions"]
        .map(|name| fs::read_to_string(format!("docs/{name}.md")).unwrap());
    let options = fs::read_to_string("config.toml").unwrap();
    let options: BTreeSet<&str> = options.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let is_test = |name: &&str| {
        name.contains('_')
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !name.starts_with("deltabus_") // a metric
            && !options.contains(name)
    };
    let named: Vec<&str> =
        [&text, &semantics, &state, &questions].into_iter().flat_map(|text| quoted(text)).filter(is_test).collect();
    assert!(named.len() > 400, "{}", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !tests.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for promise in 1..=8 {
        assert!(text.contains(&format!("**E{promise} · ")), "E{promise} is missing");
    }
    for section in ["A", "T", "LW", "P", "R", "F", "K", "I", "C", "S", "X", "L", "H", "Q", "W", "G", "D"] {
        assert!(semantics.contains(&format!("\n## {section} · ")), "section {section} is missing");
    }
}

/// Reads the rules of `docs/semantics.md`, each with the tests in its row.
fn rules(semantics: &str, tests: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let id = Regex::new(r"^[A-Z]+-\d+$").unwrap();
    let mut all = BTreeMap::new();
    for row in semantics.lines().filter(|line| line.starts_with("| ")) {
        let row = row.trim_matches(['|', ' ']);
        let (Some((ids, _)), Some((_, held_by))) = (row.split_once(" | "), row.rsplit_once(" | ")) else { continue };
        let named: BTreeSet<_> = quoted(held_by).filter(|name| tests.contains(*name)).map(str::to_owned).collect();
        for rule in ids.split(", ").filter(|rule| id.is_match(rule)) {
            all.insert(rule.to_owned(), named.clone());
        }
    }
    all
}

/// Reads the rules above each test, from lines like `/// Rules: R-10, R-30.`
fn rules_above_tests(code: &str) -> BTreeMap<String, BTreeSet<String>> {
    let ids = r"([A-Z]+-\d+(?:, [A-Z]+-\d+)*)";
    let function = r"(?:\s*(?:#\[.*\]|//.*)\n)*\s*(?:pub\(crate\) )?(?:async )?fn (\w+)";
    let line = Regex::new(&format!(r"(?m)^ */// Rules?: {ids}\.\n{function}")).unwrap();
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for found in line.captures_iter(code) {
        all.entry(found[2].to_owned()).or_default().extend(found[1].split(", ").map(str::to_owned));
    }
    let lines = Regex::new(r"(?m)^ */// Rules?: ").unwrap().find_iter(code).count();
    assert_eq!(lines, line.find_iter(code).count(), "each line of rules stands above a test");
    all
}

#[test]
fn rules_and_tests_name_each_other() {
    let semantics = fs::read_to_string("docs/semantics.md").unwrap();
    let (rules, above) = (rules(&semantics, &tests()), rules_above_tests(&code()));
    assert!(rules.len() > 150 && above.len() > 250, "{} rules, {} tests", rules.len(), above.len());
    let named = rules.iter().flat_map(|(rule, tests)| tests.iter().map(move |test| (rule, test)));
    let unmarked: Vec<_> =
        named.filter(|(rule, test)| above.get(*test).is_none_or(|own| !own.contains(*rule))).collect();
    assert!(unmarked.is_empty(), "no line `/// Rule` names the rule above its test: {unmarked:?}");
    let unknown: Vec<_> = above.iter().filter(|(_, own)| own.iter().any(|rule| !rules.contains_key(rule))).collect();
    assert!(unknown.is_empty(), "docs/semantics.md has no such rule: {unknown:?}");
}

#[test]
fn programs_and_files_named_in_texts_exist() {
    let mut text = String::new();
    for dir in ["src", "tests", "benches", "examples"] {
        sources(Path::new(dir), &mut text);
    }
    for file in documents().into_iter().chain([PathBuf::from(".ci/run"), PathBuf::from(".ci/long")]) {
        // Older entries of the changelog name files that no longer exist.
        if !file.ends_with("CHANGELOG.md") {
            text.push_str(&fs::read_to_string(file).unwrap());
        }
    }
    let path = Regex::new(r"(?m)(?:^|[\s(\x22`])(tests/[\w./]+\.(?:rs|md|sh|toml|xml|c))\b").unwrap();
    let paths: BTreeSet<&str> =
        path.captures_iter(&text).filter_map(|found| found.get(1)).map(|found| found.as_str()).collect();
    let gone: Vec<_> = paths.iter().filter(|path| !Path::new(path).exists()).collect();
    assert!(gone.is_empty() && paths.len() > 10, "{gone:?}, of {paths:?}");
    let command = Regex::new(r"--test (\w+)(?: (?:-- )?(\w+))?").unwrap();
    let mut commands = 0;
    for found in command.captures_iter(&text) {
        let program = Path::new("tests").join(&found[1]);
        assert!(program.join("main.rs").exists() || program.with_extension("rs").exists(), "{}", &found[0]);
        if let Some(module) = found.get(2) {
            let module = program.join(module.as_str()).with_extension("rs");
            assert!(module.exists(), "{}: no {}", &found[0], module.display());
        }
        commands += 1;
    }
    assert!(commands > 5, "{commands}");
}

/// Returns the documents of the project.
fn documents() -> Vec<PathBuf> {
    let of = |dir: &str| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mut all: Vec<_> =
        [".", "docs", "docs/handlers", "docs/decisions", "tests/cluster"].into_iter().flat_map(of).collect();
    all.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    all
}

/// Returns GitHub's link anchors for the headings of a document.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    headings.map(slug).collect()
}

#[test]
fn every_link_between_documents_resolves() {
    let mut followed = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", document.display());
            if !anchor.is_empty() {
                let there = anchors(&fs::read_to_string(&target).unwrap());
                assert!(there.iter().any(|known| known == anchor), "{}: {link}: {there:?}", document.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 50, "{followed}");
}

#[test]
fn configurations_in_readme_are_valid_without_warnings() {
    let text = fs::read_to_string("README.md").unwrap();
    let blocks: Vec<_> = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    for block in blocks {
        fs::write(&file, block).unwrap();
        let validated = Command::new(env!("CARGO_BIN_EXE_deltabus"))
            .args(["validate", "--offline", "-c", file.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&validated.stderr);
        assert!(validated.status.success() && !said.contains("warning"), "{said}\n{block}");
    }
}

/// Returns the cells of a row in the first Markdown table that has it.
fn cells<'a>(text: &'a str, row: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(&format!("| {row} |")));
    line.unwrap_or_else(|| panic!("no row {row}")).trim_matches('|').split('|').skip(1).map(str::trim).collect()
}

#[test]
fn readme_figures_match_benchmarks() {
    let [readme, measured] = ["README.md", "docs/benchmarks.md"].map(|file| fs::read_to_string(file).unwrap());
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let [hundred_thousand, million] = [2, 3].map(|column| {
        let last = |row| cells(&measured, row)[column].rsplit(' ').next().unwrap();
        let seconds: f64 = last("sync, s").parse().unwrap();
        (last("memory, synced → after the events, MB"), (seconds * 10.0).round() / 10.0)
    });
    let peer = cells(&measured, "client-go, typed, protobuf");
    let factor = |cell: &str| cell.split(['(', '×']).nth(1).unwrap().to_owned();
    let events: f64 = cells(&measured, "events per second")[2].replace(',', "").parse().unwrap();
    for claim in [
        format!("100,000 pods need {} MB and sync in {} s", hundred_thousand.0, hundred_thousand.1),
        format!("a million need {} MB and {:.0} s", million.0, million.1),
        format!("{},000 changes a second", (events / 1000.0).floor()),
        format!("needed {} times the CPU and {} times the memory", factor(peer[0]), factor(peer[3])),
    ] {
        assert!(readme.contains(&claim), "{claim}");
    }
}

#[test]
fn readme_is_short() {
    let words = fs::read_to_string("README.md").unwrap().split_whitespace().count();
    assert!(words <= 900, "{words}");
}

/// A reader who copies the webhook's configuration receives events of the simulated cluster.
#[test]
fn readme_webhook_gets_events_from_simulated_cluster() {
    let readme = fs::read_to_string("README.md").unwrap();
    let block = readme.split("```toml\n").find(|block| block.contains("\"webhook\"")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let mut workload = Workload::new(1);
    workload.populate(simulator.store(), Sizes::default()).unwrap();
    let living = workload.run(simulator.store().clone(), 500.0).unwrap();
    let (kubeconfig, state) = (text(dir.path(), "kubeconfig"), text(dir.path(), "state"));
    fs::write(&kubeconfig, simulator.kubeconfig()).unwrap();
    let config = block.split("```").next().unwrap().replace("\"state\"", &format!("{state:?}"));
    let config = config.replace("http://127.0.0.1:9000/deploys", "http://127.0.0.1:1/deploys");
    let config = format!("[kube]\nkubeconfig = {kubeconfig:?}\n{config}");
    let engine = Engine::run(dir.path(), &config);
    let is_tried = || engine.json("/v1/handlers")["handlers"][0]["retried"].as_u64() > Some(0);
    engine.wait_for("an event", Duration::from_mins(1), is_tried);
    drop(living);
    drop(engine);
}

/// Rule: G-9.
#[test]
fn documented_state_fields_match_running_engine() {
    let simulator = Simulator::start(SimulatorOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kubeconfig"), simulator.kubeconfig()).unwrap();
    let kubeconfig = text(dir.path(), "kubeconfig");
    let config = format!(
        "[kube]\nkubeconfig = {kubeconfig:?}\n[resources.pods]\nmatch = [\"pods\"]\n[handlers.null]\ntype = \"blackhole\""
    );
    let engine = Engine::run(dir.path(), &config);
    engine.wait_ready(Duration::from_mins(1));
    let document = fs::read_to_string("docs/http.md").unwrap();
    for (list, promised) in [
        (
            "resources",
            "name apiVersion kind plural state synced objects bytes resourceVersion queueLength events restarts lastError lagSeconds",
        ),
        (
            "handlers",
            "state queued delivered retried dropped deadLettered position oldestUndeliveredAgeSeconds lastError",
        ),
    ] {
        let answer = engine.json(&format!("/v1/{list}"));
        let there: BTreeSet<&str> = answer[list][0].as_object().unwrap().keys().map(String::as_str).collect();
        for field in promised.split(' ') {
            assert!(there.contains(field), "{list}: {field}");
        }
        let (_, section) = document.split_once(&format!("## `/v1/{list}`")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
        let documented: BTreeSet<&str> =
            rows.flat_map(|(fields, _)| fields.split(", ").map(|field| field.trim_matches('`'))).collect();
        assert_eq!(documented, there, "{list}");
    }
    assert!(engine.terminate().success());
}

/// Reads the options of `config.toml`, each with its default or example: `[http] idle_timeout` → `"2m"`.
fn options() -> BTreeMap<String, String> {
    let text = fs::read_to_string("config.toml").unwrap();
    let section = Regex::new(r"^#?(\[[\w.]+\])(?:\s|$)").unwrap();
    let option = Regex::new(r"^#?(\w+) = (.+?)(?:\s+#.*)?$").unwrap();
    let (mut current, mut all) = (String::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(found) = section.captures(line) {
            found[1].clone_into(&mut current);
        } else if let Some(found) = option.captures(line) {
            all.insert(format!("{current} {}", &found[1]), found[2].to_owned());
        }
    }
    all
}

#[test]
fn limits_in_threat_model_are_defaults() {
    let (options, text) = (options(), fs::read_to_string("docs/security.md").unwrap());
    let row = Regex::new(r"(?m)^\| `(\[.+?\] \w+)` \| `(.+?)` \|").unwrap();
    let rows: Vec<_> = row.captures_iter(&text).collect();
    assert!(rows.len() > 10, "{}", rows.len());
    for found in rows {
        assert_eq!(options.get(&found[1]).map(String::as_str), Some(&found[2]), "{}", &found[1]);
    }
}

#[test]
fn benches_named_in_texts_exist() {
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let command = Regex::new(r"--bench (\w+)(?: -- (\w+))?").unwrap();
    let mut commands = 0;
    for document in documents().into_iter().chain([PathBuf::from("benches/README.md")]) {
        if document.ends_with("CHANGELOG.md") {
            continue; // older entries name benches that no longer exist
        }
        let text = fs::read_to_string(&document).unwrap();
        for found in command.captures_iter(&text) {
            let bench = &found[1];
            assert!(
                manifest.contains(&format!("[[bench]]\nname = \"{bench}\"\n")),
                "{}: {}",
                document.display(),
                &found[0]
            );
            if let Some(module) = found.get(2) {
                let module = Path::new("benches").join(bench).join(module.as_str()).with_extension("rs");
                assert!(module.exists(), "{}: {}", document.display(), &found[0]);
            }
            commands += 1;
        }
    }
    assert!(commands > 5, "{commands}");
}
