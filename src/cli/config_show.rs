//! `deltabus config show`: what is in force.

use std::io::{self, Write};

use clap::Args;
use deltabus::config::Loaded;

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

/// Prints the configuration to stdout.
pub(crate) fn show(args: &ConfigShowArgs) -> anyhow::Result<()> {
    let Loaded { config, warnings, .. } = args.config.load()?;
    report::warnings(&warnings);
    Ok(io::stdout().lock().write_all(config.show().as_bytes())?)
}
