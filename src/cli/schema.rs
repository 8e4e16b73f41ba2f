//! `deltabus schema`: the JSON Schema of configuration files.

use std::io::{self, Write};

/// Prints the schema to stdout.
pub(crate) fn print() -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, &crate::config::schema::schema())?;
    stdout.write_all(b"\n")
}
