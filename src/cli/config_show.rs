//! `deltabus config show`: the effective configuration.

use std::io::{self, Write};

use crate::config::Loaded;
use clap::Args;

use super::{FileArgs, report};

/// Prints the merged configuration as TOML, with defaults filled in.
///
/// Each entry shows the values that it inherits from `[defaults]`. The output is an equivalent configuration, except that
/// the locations of secrets are replaced by `***`.
#[derive(Debug, Args)]
pub(crate) struct ConfigShowArgs {
    #[command(flatten)]
    pub(crate) config: FileArgs,
}

/// Prints the configuration to stdout.
pub(crate) fn show(args: &ConfigShowArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    Ok(io::stdout().lock().write_all(config.show().as_bytes())?)
}
