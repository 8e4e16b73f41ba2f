//! `deltabus test`: shows which events each handler would send, without a cluster.

mod file;
mod print;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use crate::{
    config::{ConfigErrors, Finding, Loaded, TestCase},
    engine::dry_run::{DryReport, DryRun, DryState},
    object::ResourceType,
    printable::printable,
};
use clap::Args;
use jiff::Timestamp;

use super::{
    BadUsage, FileArgs,
    report::{self, TextOutput},
};

const EXAMPLES: &str = "\
Examples:

  deltabus test -c config.toml                  run the [[tests]] of the configuration
  deltabus test image -c config.toml            run the tests with \"image\" in their names
  deltabus test -c config.toml --old web-v1.yaml --new web-v2.yaml
                                                show which events each handler would send
  deltabus test -c config.toml --new web.yaml   for a new object; --old alone: for a deletion
  kubectl get deploy web -o yaml > web-v1.yaml  save a state; copy it and edit the copy

A test in the configuration, with its files in the same directory:

  [[tests]]
  name = \"image change in prod reaches the hook\"
  old = \"web-v1.yaml\"
  new = \"web-v2.yaml\"
  expect = { hook = 1, audit = 1 }

Exit codes: 0 all is as expected, 1 a test failed, 2 bad usage, configuration or files.";

/// Shows which events each handler would send for changes of objects, and why it would not send others; needs no cluster.
///
/// Runs the [[tests]] of the configuration, or those whose names contain a NAME (put NAME before -c). With --old or
/// --new, prints the events that each handler would send if the objects changed from one file to the other. Nothing is sent.
///
/// The objects pass through the stages of an engine, with the options of the configuration. The files are assumed to contain
/// the objects as the API server has them. A missing namespace (`default`), uid and resourceVersion are filled in. The plural
/// of types that are not built in is guessed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TestArgs {
    /// Names of tests, or parts of them; all tests if none is given.
    #[arg(value_name = "NAME", conflicts_with_all = ["old", "new"])]
    names: Vec<String>,
    #[command(flatten)]
    config: FileArgs,
    /// Objects before the change, in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    old: Option<PathBuf>,
    /// Objects after the change.
    #[arg(long, value_name = "FILE")]
    new: Option<PathBuf>,
    /// Output format. JSON is one object for each test, or for each object and handler.
    #[arg(short, long, value_enum, default_value_t)]
    output: TextOutput,
}

/// Objects of one test, before and after the change.
type States = [Vec<DryState>; 2];

/// Runs the tests, or tries the change between two files.
pub(crate) fn test(args: &TestArgs) -> anyhow::Result<()> {
    // Nothing is sent, so the secrets need not be here.
    let loaded = args.config.load_without_secrets()?;
    report::warnings(&loaded.warnings);
    let dry_run = DryRun::new(&loaded.config, None).map_err(BadUsage::of)?;
    if args.old.is_some() || args.new.is_some() {
        try_files(args, &dry_run)
    } else {
        try_tests(args, &loaded, &dry_run)
    }
}

fn try_files(args: &TestArgs, dry_run: &DryRun) -> anyhow::Result<()> {
    let read = |path: &Option<PathBuf>| path.as_deref().map_or(Ok(Vec::new()), file::read).map_err(BadUsage::of);
    let tried = run(dry_run, [read(&args.old)?, read(&args.new)?]).map_err(BadUsage::of)?;
    tell_guesses([&tried]);
    let mut out = anstream::stdout().lock();
    Ok(match args.output {
        TextOutput::Text => print::objects(&mut out, &tried, io::stdout().is_terminal()),
        TextOutput::Json => print::objects_json(&mut out, &tried),
    }?)
}

fn try_tests(args: &TestArgs, loaded: &Loaded, dry_run: &DryRun) -> anyhow::Result<()> {
    let mut tried = Vec::new();
    let mut errors = Vec::new();
    for (place, test) in chosen(args, &loaded.config.tests)? {
        match read(loaded, place).and_then(|states| {
            run(dry_run, states).map_err(|error| vec![loaded.finding(&["tests", &format!("[{place}]")], error)])
        }) {
            Ok(report) => tried.push((test, report)),
            Err(wrong) => errors.extend(wrong),
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors::new(errors, Vec::new()).into());
    }
    let failed = tried.iter().filter(|(test, report)| !print::unmet(test, report).is_empty()).count();
    tell_guesses(tried.iter().map(|(_, report)| report));
    let mut out = anstream::stdout().lock();
    match args.output {
        TextOutput::Text => print::tests(&mut out, &tried, failed),
        TextOutput::Json => print::tests_json(&mut out, &tried),
    }?;
    if failed > 0 {
        anyhow::bail!("{failed} of {} failed", report::counted(tried.len(), "test"));
    }
    Ok(())
}

/// Returns the tests that the arguments select, each with its position in the configuration.
fn chosen<'a>(args: &TestArgs, tests: &'a [TestCase]) -> Result<Vec<(usize, &'a TestCase)>, BadUsage> {
    if tests.is_empty() {
        let message = "the configuration has no [[tests]]: add tests, or pass files with --old and --new";
        return Err(BadUsage::of(message));
    }
    for name in &args.names {
        if !tests.iter().any(|test| test.name.contains(name)) {
            let names: Vec<_> = tests.iter().map(|test| format!("  {}", printable(&test.name))).collect();
            return Err(BadUsage::of(format!("no test name contains {name:?}; configured:\n{}", names.join("\n"))));
        }
    }
    let is_asked_for =
        |test: &TestCase| args.names.is_empty() || args.names.iter().any(|name| test.name.contains(name));
    Ok(tests.iter().enumerate().filter(|(_, test)| is_asked_for(test)).collect())
}

/// Reads the files of a test.
fn read(loaded: &Loaded, place: usize) -> Result<States, Vec<Finding>> {
    let mut states = States::default();
    let mut wrong = Vec::new();
    for ((path, key), states) in loaded.files_of_test(place).into_iter().zip(["old", "new"]).zip(&mut states) {
        match path.map_or(Ok(Vec::new()), |path| file::read(&path)) {
            Ok(read) => *states = read,
            Err(error) => wrong.push(loaded.finding(&["tests", &format!("[{place}]"), key], error)),
        }
    }
    if wrong.is_empty() { Ok(states) } else { Err(wrong) }
}

fn run(dry_run: &DryRun, [old, new]: States) -> Result<DryReport, String> {
    dry_run.run(old, new, Timestamp::now().as_microsecond()).map_err(|error| printable(&error))
}

/// Prints a note for each type that is not built in. The note says what is assumed about the type.
fn tell_guesses<'a>(reports: impl IntoIterator<Item = &'a DryReport>) {
    let guessed = reports.into_iter().flat_map(|report| &report.guessed);
    let guessed: BTreeMap<String, &ResourceType> = guessed.map(|guess| (guess.qualified_name(), guess)).collect();
    for (name, guess) in guessed {
        let scope = if guess.namespaced { "namespaced" } else { "cluster-scoped" };
        report::note(&format!(
            "{} of {} is assumed to be {} ({scope}): no server was asked",
            printable(&guess.kind),
            printable(&guess.api_version()),
            printable(&name)
        ));
    }
}
