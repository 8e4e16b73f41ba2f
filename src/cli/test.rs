//! `deltabus test`: which handler would send what, and why not, without a cluster.

mod file;
mod print;

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};

use clap::Args;
use deltabus::{
    config::{ConfigErrors, Finding, Loaded, TestCase},
    engine::dry_run::{DryReport, DryRun, DryState},
    handler::stdout::line::printable,
    object::ResourceType,
};
use jiff::Timestamp;

use super::{BadUsage, FileArgs, report};

const EXAMPLES: &str = "\
Examples:

  deltabus test -c config.toml                  the [[tests]] of the configuration
  deltabus test image -c config.toml            those whose name has \"image\" in it
  deltabus test -c config.toml --old web-v1.yaml --new web-v2.yaml
                                                what each handler would send, and why not
  deltabus test -c config.toml --new web.yaml   of a new object; with --old alone of one that is deleted
  kubectl get deploy web -o yaml > web-v1.yaml  a state to begin with; copy it and change the copy

In the configuration, with the files beside it:

  [[tests]]
  name = \"image change in prod reaches the hook\"
  old = \"web-v1.yaml\"
  new = \"web-v2.yaml\"
  expect = { hook = 1, audit = 1 }

Exit codes: 0 all is as expected, 1 something is not, 2 bad usage, configuration or files.";

/// Tries a configuration on changes of objects, without a cluster: which handler would send what, and why not.
///
/// Runs the [[tests]] of the configuration, or those whose names contain one of NAME (put before -c). With --old or --new it
/// prints what each handler would send where the object in the one file became that in the other. Nothing is sent.
///
/// The objects go through the stages of an engine, with the options of the configuration. What nobody can know without a
/// cluster is assumed: that the files have what the API server has, but for namespace (`default`), uid and resourceVersion,
/// which are filled in; and the plural of types that are not built in.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TestArgs {
    /// Names of tests, or parts of them; all without any.
    #[arg(value_name = "NAME", conflicts_with_all = ["old", "new"])]
    names: Vec<String>,
    #[command(flatten)]
    config: FileArgs,
    /// The objects before, in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    old: Option<PathBuf>,
    /// The objects after.
    #[arg(long, value_name = "FILE")]
    new: Option<PathBuf>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// How what was found is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// For people.
    #[default]
    Text,
    /// A JSON object for each test, or for each object and handler.
    Json,
}

/// The objects of one test, before and after.
type States = [Vec<DryState>; 2];

/// Tries what was asked for.
pub(crate) fn test(args: &TestArgs) -> anyhow::Result<()> {
    let loaded = args.config.load()?;
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
    let text = match args.output {
        Output::Text => print::objects(&tried, io::stdout().is_terminal()),
        Output::Json => print::objects_json(&tried),
    };
    Ok(write(&text)?)
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
    let failed = tried.iter().filter(|(test, report)| !print::is_met(test, report)).count();
    tell_guesses(tried.iter().map(|(_, report)| report));
    let text = match args.output {
        Output::Text => print::tests(&tried),
        Output::Json => print::tests_json(&tried),
    };
    write(&text)?;
    if failed > 0 {
        anyhow::bail!("{failed} of {} failed", report::counted(tried.len(), "test"));
    }
    Ok(())
}

/// Returns the tests that were asked for, with their places.
fn chosen<'a>(args: &TestArgs, tests: &'a [TestCase]) -> Result<Vec<(usize, &'a TestCase)>, BadUsage> {
    if tests.is_empty() {
        let message = "the configuration has no [[tests]]: add some, or name files with --old and --new";
        return Err(BadUsage::of(message));
    }
    for name in &args.names {
        if !tests.iter().any(|test| test.name.contains(name)) {
            let names: Vec<_> = tests.iter().map(|test| format!("  {}", printable(&test.name))).collect();
            return Err(BadUsage::of(format!("no test has {name:?} in its name; there are:\n{}", names.join("\n"))));
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
    dry_run.run(old, new, Timestamp::now().as_microsecond()).map_err(|error| printable(&error.to_string()))
}

/// Says what was assumed of types that are not built in, of each once.
fn tell_guesses<'a>(reports: impl IntoIterator<Item = &'a DryReport>) {
    let guessed = reports.into_iter().flat_map(|report| &report.guessed);
    let guessed: BTreeMap<String, &ResourceType> = guessed.map(|guess| (guess.qualified_name(), guess)).collect();
    for (name, guess) in guessed {
        let scope = if guess.namespaced { "in namespaces" } else { "in no namespace" };
        report::note(&format!(
            "{} of {} is assumed to be {}, {scope}: no server was asked",
            printable(&guess.kind),
            printable(&guess.api_version()),
            printable(&name)
        ));
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
