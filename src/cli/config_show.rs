//! `deltabus config show`: what is in force.

use std::io::{self, Write};

use clap::Args;
use deltabus::config::{Config, ConfigErrors, Loaded};

use super::{FileArgs, report};

/// Prints the merged configuration as TOML, defaults filled in.
///
/// What `[defaults]` says is shown in each entry that inherits it. The output is a configuration that means the same,
/// but for secrets: where they are shows as `***`.
#[derive(Debug, Args)]
pub(crate) struct ConfigShowArgs {
    #[command(flatten)]
    pub(crate) config: FileArgs,
}

/// Loads the configuration to print.
pub(crate) fn load(args: &ConfigShowArgs) -> Result<Config, ConfigErrors> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    Ok(config)
}

/// Prints it to stdout.
pub(crate) fn print(config: &Config) -> io::Result<()> {
    io::stdout().lock().write_all(config.show().as_bytes())
}
