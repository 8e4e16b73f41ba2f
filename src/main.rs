//! The `deltabus` program.

fn main() -> std::process::ExitCode {
    deltabus::cli::main()
}
