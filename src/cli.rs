//! Command line. The smallest subcommands are in this file. Each other subcommand has its own file.

mod bench;
mod demo;
mod rbac;
mod manifests;
mod engine_client;
mod get;
mod handlers;
mod hangup;
mod orphans;
mod report;
mod resources;
mod run;
mod server;
mod status;
mod table;
mod tail;
mod terminal;
mod test;
mod validate;
mod verify;
mod yaml;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::LazyLock,
};

use crate::{
    build_info,
    config::{CheckedConfig, Config, ConfigErrors, Kube, Loaded},
    engine::{EngineError, reload::ConfigFiles},
};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

/// Exit code of a failure at run time.
const FAILED: u8 = 1;
/// Exit code of bad usage or a bad configuration. clap itself exits with the same code.
const BAD_USAGE: u8 = 2;

const EXAMPLES: &str = "\
The smallest useful configuration:

  [resources.pods]
  match = [\"pods\", \"deployments.apps\"]

  [handlers.out]
  type = \"stdout\"
  initial = \"send\"        # also the objects that exist already

Examples:

  deltabus demo                                   try it without a cluster
  deltabus demo -c config.toml                    try a configuration with the simulated cluster
  deltabus run -c config.toml                     watch the cluster of the current kubectl context
  deltabus run -c base.toml -c local.toml         the second file is merged into the first
  deltabus validate -c config.toml                report all errors, with file and line
  deltabus validate --strict -o json -c config.toml
                                                  for CI: treat warnings and notes as errors
  deltabus test -c config.toml                    run the [[tests]] of the configuration
  deltabus resources -c config.toml               list the types that it selects on this cluster
  deltabus rbac -c config.toml --service-account deltabus/deltabus | kubectl apply -f -
                                                  grant the least rights that it needs
  deltabus manifests -c config.toml | kubectl apply -f -
                                                  install it in the cluster
  deltabus get pods -A                            read the cache of a running engine
  deltabus tail pods -n shop                      show changes as they happen
  deltabus verify                                 check that the cache equals the API server
  deltabus status                                 show what runs, what is late, and why
  deltabus handlers                               show delivered and queued events of each handler
  deltabus bench                                  measure the engine on this machine
  DELTABUS__HANDLERS__OUT__INITIAL=send deltabus run -c config.toml
                                                  override [handlers.out] initial

Exit codes: 0 success or a requested stop, 1 failed at run time, 2 bad usage or bad configuration.
Events and other output go to stdout, messages and logs to stderr. NO_COLOR turns colours off.";

const COMPLETION_EXAMPLES: &str = "\
Examples:

  source <(deltabus completion bash)                              this shell only
  deltabus completion bash > /etc/bash_completion.d/deltabus      every bash
  deltabus completion zsh > \"${fpath[1]}/_deltabus\"               every zsh
  deltabus completion fish > ~/.config/fish/completions/deltabus.fish";

/// Version, commit, features and target of this program.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = if build_info::FEATURES.is_empty() { "none".to_owned() } else { build_info::FEATURES.join(", ") };
    let (version, commit, target) = (build_info::VERSION, build_info::COMMIT, build_info::target());
    format!("{version} (commit {commit}, features {features}, target {target})")
});

/// Watches Kubernetes resources of many types and sends every change to the handlers of a TOML file.
///
/// Each watched type has its own reflector, queue and indexed cache. All changes form one ordered stream. Each handler
/// reads the stream at its own pace.
#[derive(Debug, Parser)]
#[command(name = "deltabus", version = VERSION.as_str(), after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::RunArgs),
    Demo(demo::DemoArgs),
    Validate(validate::ValidateArgs),
    Test(test::TestArgs),
    Resources(resources::ResourcesArgs),
    Rbac(rbac::RbacArgs),
    Manifests(manifests::ManifestsArgs),
    Get(get::GetArgs),
    Tail(Box<tail::TailArgs>),
    Verify(verify::VerifyArgs),
    Handlers(handlers::HandlersArgs),
    Status(status::StatusArgs),
    Bench(Box<bench::BenchArgs>),
    /// Prints a script that lets a shell complete commands and options.
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// Shell that the script is for.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Shows the effective configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Prints the JSON Schema of configuration files.
    ///
    /// With the schema, an editor completes and explains keys. Write it with `deltabus schema > deltabus.schema.json`, and
    /// refer to it in the configuration with `#:schema ./deltabus.schema.json`.
    Schema,
}

/// Subcommands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints the merged configuration as TOML, with defaults filled in.
    ///
    /// Each entry shows the values that it inherits from `[defaults]`. The output is an equivalent configuration, except that
    /// the locations of secrets are replaced by `***`.
    Show(FileArgs),
}

/// Bad usage that the parser of the command line does not find. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(crate) struct BadUsage(pub(crate) anyhow::Error);

impl BadUsage {
    /// Creates an error with this message.
    pub(crate) fn of(said: impl Into<String>) -> Self {
        Self(anyhow::Error::msg(said.into()))
    }
}

/// Bad configuration whose errors were already printed: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used")]
pub(crate) struct Reported;

/// Configuration files.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// TOML file, or directory of *.toml files; can be repeated.
    ///
    /// Later files are merged into earlier ones: tables are merged key by key, lists and scalars are replaced, and the [[tests]]
    /// of all files are kept. The files of a directory are read in the order of their names. Environment variables override
    /// all files: `DELTABUS__HANDLERS__OUT__PATH=/tmp/x` sets `[handlers.out] path`.
    #[arg(short = 'c', long = "config", value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) files: Vec<PathBuf>,
}

impl FileArgs {
    /// Loads the configuration with the overrides from the environment.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigErrors> {
        Config::load(&self.files, crate::config::environment())
    }

    /// Loads the configuration for a command that sends nothing.
    pub(crate) fn load_without_secrets(&self) -> Result<Loaded, ConfigErrors> {
        Config::load_without_secrets(&self.files, crate::config::environment())
    }
}

/// Cluster for a command. It replaces the cluster of the configuration.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KubeArgs {
    /// Kubeconfig file, instead of `[kube] kubeconfig`. Its current context is used unless --context selects another.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, instead of `[kube] context`.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeArgs {
    /// Returns true if the command line names a cluster.
    pub(crate) fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Changes the configuration to the cluster that the command line names. If the command line names none, changes nothing.
    pub(crate) fn apply(&self, kube: &mut Kube) {
        if let Some(kubeconfig) = &self.kubeconfig {
            kube.kubeconfig = Some(kubeconfig.clone());
            kube.context = None; // belongs to the replaced file
        }
        if self.context.is_some() {
            kube.context.clone_from(&self.context);
        }
    }
}

/// Configuration of a command that uses a cluster.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    pub(crate) file: FileArgs,
    #[command(flatten)]
    pub(crate) kube: KubeArgs,
}

impl ConfigArgs {
    /// Loads the configuration with the overrides from the environment and the command line.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigErrors> {
        let mut loaded = self.file.load()?;
        self.kube.apply(&mut loaded.config.kube);
        Ok(loaded)
    }

    /// Checks the configuration. Returns all errors, and the parts that have none. With `is_elsewhere`, ignores the environment of this
    /// machine, and its files and secrets.
    pub(crate) fn check(&self, is_elsewhere: bool) -> CheckedConfig {
        let environment = (!is_elsewhere).then(crate::config::environment);
        let mut checked = Config::check(&self.file.files, environment);
        self.kube.apply(&mut checked.loaded.config.kube);
        checked
    }

    /// Loads the configuration as another machine would: ignores the environment of this machine. Also returns the text of each
    /// file.
    pub(crate) fn load_for_elsewhere(&self) -> Result<(Loaded, Vec<(PathBuf, String)>), ConfigErrors> {
        let (mut loaded, texts) = Config::load_for_elsewhere(&self.file.files)?;
        self.kube.apply(&mut loaded.config.kube);
        Ok((loaded, texts))
    }

    /// Returns a value that detects later changes of the configuration files.
    pub(crate) fn files(&self) -> ConfigFiles {
        ConfigFiles::new(self.file.files.clone())
    }
}

/// Runs the command that the process's arguments name, and returns the exit code.
pub fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    let Err(error) = dispatch(cli.command) else { return ExitCode::SUCCESS };
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        report::errors(errors);
        return ExitCode::from(BAD_USAGE);
    }
    if error.is::<Reported>() {
        return ExitCode::from(BAD_USAGE);
    }
    // The reader of our output has closed it, as in `deltabus schema | head`.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    report::failure(&format!("{error:#}"));
    if let Some(EngineError::Listen { error, .. }) = error.downcast_ref()
        && error.kind() == io::ErrorKind::AddrInUse
    {
        report::note(
            "another program already uses this address, perhaps another deltabus: stop it, or set another address with \
             `--listen 127.0.0.1:0` or `[http] listen`; port 0 takes any free port",
        );
    }
    ExitCode::from(if error.is::<BadUsage>() { BAD_USAGE } else { FAILED })
}

/// Prints an error of the command line, or the help, and exits.
fn refuse(error: &clap::Error) -> ! {
    if let Some(clap::error::ContextValue::String(argument)) = error.get(clap::error::ContextKind::InvalidArg)
        && error.kind() == clap::error::ErrorKind::UnknownArgument
        && Path::new(argument).extension().is_some_and(|extension| extension == "toml")
    {
        report::note(&format!("configuration files are named with -c: -c {argument}"));
    }
    error.exit()
}

/// Runs a command that needs only one thread, because it only sends requests.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Validate(args) => block_on(validate::validate(&args)),
        Command::Test(args) => test::test(&args),
        Command::Resources(args) => block_on(resources::resources(&args)),
        Command::Rbac(args) => block_on(rbac::rbac(&args)),
        Command::Manifests(args) => block_on(manifests::manifests(&args)),
        Command::Get(args) => block_on(get::get(&args)),
        Command::Tail(args) => tail::tail(&args),
        Command::Verify(args) => block_on(verify::verify(&args)),
        Command::Handlers(args) => block_on(handlers::handlers(&args)),
        Command::Status(args) => block_on(status::status(&args)),
        Command::Bench(args) => bench::bench(&args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "deltabus", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
        Command::Config { command: ConfigCommand::Show(files) } => {
            let Loaded { config, warnings, .. } = files.load()?;
            report::warnings(&warnings);
            Ok(io::stdout().write_all(config.show().as_bytes())?)
        }
        Command::Schema => {
            // Serialized directly: a `Schema` writes its keywords in the usual order, a `Value` does not.
            Ok(writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&crate::config::schema::schema())?)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn config_files_can_be_listed_and_repeated() {
        let cli = Cli::try_parse_from(["deltabus", "run", "-c", "a", "b", "-c", "c"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("another command") };
        assert_eq!(args.config.file.files, ["a", "b", "c"].map(PathBuf::from));
        assert!(Cli::try_parse_from(["deltabus", "run"]).is_err());
    }

    #[test]
    fn cluster_flags_override_configured_cluster() {
        let resolve = |line: &str| {
            let args = Cli::try_parse_from(["deltabus", "run", "-c", "a"].into_iter().chain(line.split_whitespace()));
            let Command::Run(args) = args.unwrap().command else { panic!("another command") };
            let configured = |text: &str| Some(text.to_owned());
            let mut kube = Kube { kubeconfig: Some("file".into()), context: configured("prod"), ..Kube::default() };
            args.config.kube.apply(&mut kube);
            (kube.access().kubeconfig, kube.access().context)
        };
        let pair = |kubeconfig: &str, context: &str| (kubeconfig.to_owned(), context.to_owned());
        assert_eq!(resolve(""), pair("file", "prod"));
        assert_eq!(resolve("--context test"), pair("file", "test"));
        assert_eq!(resolve("--kubeconfig other"), pair("other", ""));
        assert_eq!(resolve("--kubeconfig other --context test"), pair("other", "test"));
    }

    #[test]
    fn configuration_in_help_is_valid() {
        let text = EXAMPLES.lines().skip(2).take(5).collect::<Vec<_>>().join("\n");
        let config = Config::from_toml_str(&text).unwrap();
        assert_eq!((config.resources.len(), config.handlers.len()), (1, 1));
    }
}
