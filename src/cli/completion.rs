//! `deltabus completion`: shell completion for the command line.

use std::io::{self, Write as _};

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::Cli;

const EXAMPLES: &str = "\
Examples:

  source <(deltabus completion bash)                              this shell only
  deltabus completion bash > /etc/bash_completion.d/deltabus      every bash
  deltabus completion zsh > \"${fpath[1]}/_deltabus\"               every zsh
  deltabus completion fish > ~/.config/fish/completions/deltabus.fish";

/// Prints a script that lets a shell complete commands and options.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionArgs {
    /// Shell that the script is for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub(crate) fn print(args: &CompletionArgs) -> io::Result<()> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "deltabus", &mut script);
    io::stdout().lock().write_all(&script)
}
