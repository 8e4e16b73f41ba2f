//! Writes docs/benchmarks.md anew: each of its marks names a command, whose tables, or all that it printed, stand
//! behind it.
//!
//! `--write` runs the commands, one after the other, and writes each table as soon as it is there; `--only TEXT` takes those
//! commands that hold the text. Without `--write` it says what it would run. A table that its bench writes itself, that of the
//! peers, is one of the commands too.

mod marks;

use std::{
    env,
    error::Error,
    fs,
    path::Path,
    process::{Command, Stdio},
};

const DOCUMENT: &str = "docs/benchmarks.md";
/// It writes its part of the document itself.
const PEERS: &str = "cargo bench --bench peers -- --docs";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let document = fs::read_to_string(&path)?;
    let only = args.iter().skip_while(|arg| *arg != "--only").nth(1).map_or("", String::as_str);
    let mut commands = marks::commands(&document)?;
    commands.push(PEERS);
    commands.retain(|command| command.contains(only));
    if !args.iter().any(|arg| arg == "--write") {
        println!("`cargo bench --bench document -- --write` writes {DOCUMENT} with what these print:");
        for command in commands {
            println!("  {command}");
        }
        return Ok(());
    }
    for (at, command) in commands.iter().enumerate() {
        eprintln!("{} of {}: {command}", at + 1, commands.len());
        let printed = run(command)?;
        if *command != PEERS {
            let shown = marks::shown(&printed).ok_or_else(|| format!("`{command}` printed nothing"))?;
            let document = fs::read_to_string(&path)?;
            let replaced = marks::replace(&document, command, &shown);
            fs::write(&path, replaced.ok_or_else(|| format!("{DOCUMENT} has lost the mark of `{command}`"))?)?;
        }
    }
    Ok(())
}

/// Runs a command of the document in the project's directory; returns what it printed.
fn run(command: &str) -> Result<String, Box<dyn Error>> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit());
    // What cargo says of this package would have it build others anew that look at it, and again the next time without.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            shell.env_remove(name);
        }
    }
    let output = shell.output()?;
    if !output.status.success() {
        return Err(format!("`{command}` has failed: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
