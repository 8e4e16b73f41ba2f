//! The figures in docs/benchmarks.md, with what they were measured on.

use std::{error::Error, fs, path::Path, process::Command, thread};

use crate::{EVENTS, PODS, go::GoPeers};

const BEGIN: &str = "<!-- peers -->\n";
const END: &str = "<!-- /peers -->";
const DOCUMENT: &str = "docs/benchmarks.md";
const CHART: &str = "docs/img/peers.svg";

/// Says what was run, on which machine, in which versions.
pub(crate) fn conditions(go: &GoPeers, rounds: usize) -> Result<String, Box<dyn Error>> {
    let rustc = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?;
    let rustc = rustc.split(' ').nth(1).unwrap_or("unknown");
    let cpus = thread::available_parallelism()?;
    let cpu = proc_field("/proc/cpuinfo", "model name")?;
    let memory: u64 = proc_field("/proc/meminfo", "MemTotal")?.trim_end_matches(" kB").parse()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel = kernel.split('.').take(2).collect::<Vec<_>>().join(".");
    let medians = if rounds == 1 { "one run of each row".to_owned() } else { format!("medians of {rounds} rounds") };
    Ok(format!(
        "{PODS} pods of 9 KB, then {EVENTS} updates; {medians}. {cpus} × {cpu}, {} GiB, Linux {}; {}, Rust {rustc}, \
         kube {}, deltabus {}.\n",
        memory.div_ceil(1 << 20),
        kernel.trim(),
        go.versions()?.join(", "),
        locked_version("kube")?,
        env!("CARGO_PKG_VERSION"),
    ))
}

/// Puts the text between its marks, and the chart where the document looks for it.
pub(crate) fn write(text: &str, chart: &str) -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let document = fs::read_to_string(&path)?;
    let marks = || format!("{DOCUMENT} has no lines {} and {END} to write between", BEGIN.trim());
    let (before, rest) = document.split_once(BEGIN).ok_or_else(marks)?;
    let (_, after) = rest.split_once(END).ok_or_else(marks)?;
    let picture = format!("![CPU an event and bytes an object, as each comes]({})", CHART.trim_start_matches("docs/"));
    fs::write(path, format!("{before}{BEGIN}{picture}\n\n{}\n\n{END}{after}", text.trim_end()))?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART);
    fs::create_dir_all(path.parent().ok_or("the chart has a directory")?)?;
    Ok(fs::write(path, chart)?)
}

/// Returns the first value of a name in a file of `name: value` lines.
fn proc_field(file: &str, name: &str) -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    Ok(line.ok_or_else(|| format!("{file} does not say {name}"))?.trim().to_owned())
}

/// Returns the version of a crate in Cargo.lock.
fn locked_version(name: &str) -> Result<&'static str, Box<dyn Error>> {
    let begin = format!("name = \"{name}\"\nversion = \"");
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once(&begin).ok_or_else(|| format!("Cargo.lock does not name {name}"))?;
    Ok(rest.split('"').next().unwrap_or_default())
}
