//! Flags of a bench's own.

use std::error::Error;

/// Returns the number behind a flag.
pub(crate) fn number(args: &[String], flag: &str, default: usize) -> Result<usize, Box<dyn Error>> {
    let Some(at) = args.iter().position(|arg| arg == flag) else { return Ok(default) };
    let number = args.get(at + 1).and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("expected a number after {flag}").into())
}
