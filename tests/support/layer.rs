//! Libraries of `tests/support/*.c` that are preloaded into the engine.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

static COMPILED: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);

/// Compiles `NAME.c`, once per process; returns the library.
pub(crate) fn library(name: &str) -> PathBuf {
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_default();
    compiled.entry(name.to_owned()).or_insert_with(|| compile(name)).clone()
}

fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/support/{name}.c"));
    // one file per process, because other processes may have theirs open
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.so", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    assert!(compiler.status().expect("a C compiler is among the toolchains").success(), "{name}.c compiles");
    library
}
