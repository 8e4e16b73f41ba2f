//! The command line: what can be asked for, one file a subcommand.

pub(crate) mod bench;
pub(crate) mod completion;
pub(crate) mod config_show;
pub(crate) mod demo;
pub(crate) mod rbac;
pub(crate) mod manifests;
pub(crate) mod engine_client;
pub(crate) mod get;
pub(crate) mod handlers;
pub(crate) mod report;
pub(crate) mod resources;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod server;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod tail;
pub(crate) mod terminal;
pub(crate) mod test;
pub(crate) mod validate;
pub(crate) mod verify;
pub(crate) mod yaml;

use std::{path::PathBuf, sync::LazyLock};

use clap::{Args, Parser, Subcommand};
use deltabus::{
    build_info,
    config::{Config, ConfigErrors, Kube, Loaded},
    engine::reload::ConfigFiles,
};

const EXAMPLES: &str = "\
The smallest useful configuration:

  [resources.pods]
  match = [\"pods\", \"deployments.apps\"]

  [handlers.out]
  type = \"stdout\"

Examples:

  deltabus demo                                   see it at work, without a cluster
  deltabus run -c config.toml                     watch the cluster that kubectl talks to
  deltabus run -c base.toml -c local.toml         the second file is merged into the first
  deltabus validate -c config.toml                every mistake at once, with file and line
  deltabus validate --strict -o json -c config.toml
                                                  for CI: warnings and notes are errors too
  deltabus test -c config.toml                    its [[tests]]: which handler would send what, and why not
  deltabus resources -c config.toml               which types that means on this cluster
  deltabus rbac -c config.toml | kubectl apply -f -
                                                  the least rights it needs
  deltabus manifests -c config.toml | kubectl apply -f -
                                                  installs it in the cluster
  deltabus get pods -A                            what a running engine has cached
  deltabus tail pods -n shop                      what happens, as it happens
  deltabus verify                                 proves that it misses nothing
  deltabus status                                 what runs, what is late, and why
  deltabus handlers                               what each handler has delivered, and what waits
  deltabus bench                                  what this machine takes
  DELTABUS__HANDLERS__OUT__INITIAL=send deltabus run -c config.toml
                                                  override [handlers.out] initial

Exit codes: 0 stopped as asked, 1 failed at run time, 2 bad usage or bad configuration.
Events and other output go to stdout, everything else to stderr. NO_COLOR is honoured.";

/// Version, commit, features and target of this program.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = if build_info::FEATURES.is_empty() { "none".to_owned() } else { build_info::FEATURES.join(", ") };
    let (version, commit, target) = (build_info::VERSION, build_info::COMMIT, build_info::target());
    format!("{version} (commit {commit}, features {features}, target {target})")
});

/// Watches many types of Kubernetes resources and sends every change where a TOML file says.
///
/// Each watched type has a reflector, a queue and an indexed cache of its own; what changes in the caches becomes one
/// ordered stream that handlers take at their own pace.
#[derive(Debug, Parser)]
#[command(name = "deltabus", version = VERSION.as_str(), after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What can be asked for.
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
    Completion(completion::CompletionArgs),
    /// Looks at configurations.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Prints the JSON Schema of configuration files.
    ///
    /// Editors that know it complete keys and explain them: `deltabus schema > deltabus.schema.json`, and in the file
    /// `#:schema ./deltabus.schema.json`.
    Schema,
}

/// What can be asked about configurations.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    Show(config_show::ConfigShowArgs),
}

/// Something that was asked for and cannot be, which was seen only after the command line was read: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(crate) struct BadUsage(pub(crate) anyhow::Error);

impl BadUsage {
    /// Makes one of what is to be said.
    pub(crate) fn of(said: impl Into<String>) -> Self {
        Self(anyhow::Error::msg(said.into()))
    }
}

/// A bad configuration that was reported already: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used")]
pub(crate) struct Reported;

/// Files of the configuration.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// A TOML file, or a directory of *.toml; can be repeated.
    ///
    /// Later ones are merged into earlier ones: tables key by key, lists and scalars replace, [[tests]] of all count. The
    /// files of a directory come in the order of their names. Environment variables override all of them:
    /// `DELTABUS__HANDLERS__OUT__PATH=/tmp/x` is `[handlers.out] path`.
    #[arg(short = 'c', long = "config", value_name = "FILE", num_args = 1.., required = true)]
    files: Vec<PathBuf>,
}

impl FileArgs {
    /// Loads the configuration with the overrides of the environment.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigErrors> {
        Config::load(&self.files, deltabus::config::environment())
    }
}

/// Cluster of a command, in place of that of the configuration.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct KubeArgs {
    /// Kubeconfig of the cluster, in place of `[kube] kubeconfig`; with its current context unless --context names another.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig, in place of `[kube] context`.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl KubeArgs {
    /// Returns whether the command line names a cluster.
    pub(crate) fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// Puts the cluster of the command line in place of that of a configuration.
    pub(crate) fn apply(&self, kube: &mut Kube) {
        if let Some(kubeconfig) = &self.kubeconfig {
            kube.kubeconfig = Some(kubeconfig.clone());
            kube.context = None; // it is one of another file
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
    file: FileArgs,
    #[command(flatten)]
    kube: KubeArgs,
}

impl ConfigArgs {
    /// Loads the configuration with the overrides of the environment and of the command line.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigErrors> {
        let mut loaded = self.file.load()?;
        self.kube.apply(&mut loaded.config.kube);
        Ok(loaded)
    }

    /// Loads the configuration for another machine; returns the text of each file with it.
    pub(crate) fn load_for_elsewhere(&self) -> Result<(Loaded, Vec<(PathBuf, String)>), ConfigErrors> {
        let (mut loaded, texts) = Config::load_for_elsewhere(&self.file.files)?;
        self.kube.apply(&mut loaded.config.kube);
        Ok((loaded, texts))
    }

    /// Returns the files, to look at them again.
    pub(crate) fn files(&self) -> ConfigFiles {
        ConfigFiles::new(self.file.files.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn files_can_be_listed_and_repeated() {
        let cli = Cli::try_parse_from(["deltabus", "run", "-c", "a", "b", "-c", "c"]).unwrap();
        let Command::Run(args) = cli.command else { panic!("another command") };
        assert_eq!(args.config.file.files, ["a", "b", "c"].map(PathBuf::from));
        assert!(Cli::try_parse_from(["deltabus", "run"]).is_err());
    }

    #[test]
    fn cluster_of_the_command_line_replaces_the_configured_one() {
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
    fn the_configuration_of_the_help_loads() {
        let text = EXAMPLES.lines().skip(2).take(5).collect::<Vec<_>>().join("\n");
        let config = Config::from_toml_str(&text).unwrap();
        assert_eq!((config.resources.len(), config.handlers.len()), (1, 1));
    }
}
