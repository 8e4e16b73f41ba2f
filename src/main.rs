//! The `deltabus` program: reads the command line, hands over to a subcommand, turns its outcome into an exit code.

mod cli;

use std::{io, process::ExitCode};

use clap::Parser;
use deltabus::{config::ConfigErrors, engine::EngineError};

use cli::{BadUsage, Cli, Command, ConfigCommand, Reported, report};

/// Failed at run time.
const FAILED: u8 = 1;
/// Bad usage (of flags clap says so itself) or a bad configuration.
const BAD_USAGE: u8 = 2;

fn main() -> ExitCode {
    let Err(error) = dispatch(Cli::parse().command) else { return ExitCode::SUCCESS };
    if let Some(errors) = error.downcast_ref::<ConfigErrors>() {
        report::errors(errors);
        return ExitCode::from(BAD_USAGE);
    }
    if error.is::<Reported>() {
        return ExitCode::from(BAD_USAGE);
    }
    // Whoever read our output has seen enough: `deltabus schema | head`.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    report::failure(&format!("{error:#}"));
    if let Some(hint) = hint(&error) {
        report::note(hint);
    }
    ExitCode::from(if error.is::<BadUsage>() { BAD_USAGE } else { FAILED })
}

/// Says what helps, where the error does not.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref::<EngineError>()? {
        EngineError::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse => Some(
            "something listens there already, perhaps another deltabus: stop it or choose another address; port 0 takes \
             any free one",
        ),
        _ => None,
    }
}

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => cli::run::run(&args),
        Command::Demo(args) => cli::demo::demo(&args),
        Command::Validate(args) => cli::validate::validate(&args),
        Command::Test(args) => cli::test::test(&args),
        Command::Resources(args) => cli::resources::resources(&args),
        Command::Rbac(args) => cli::rbac::rbac(&args),
        Command::Manifests(args) => cli::manifests::manifests(&args),
        Command::Get(args) => cli::get::get(&args),
        Command::Tail(args) => cli::tail::tail(&args),
        Command::Verify(args) => cli::verify::verify(&args),
        Command::Handlers(args) => cli::handlers::handlers(&args),
        Command::Status(args) => cli::status::status(&args),
        Command::Bench(args) => cli::bench::bench(&args),
        Command::Completion(args) => Ok(cli::completion::print(&args)?),
        Command::Config { command: ConfigCommand::Show(args) } => cli::config_show::show(&args),
        Command::Schema => Ok(cli::schema::print()?),
    }
}
