//! A shell script whose behaviour is controlled by a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Manner, Sink};
use crate::support::engine::{Engine, text};

/// A script that appends its input to a file.
pub(crate) struct Script {
    program: PathBuf,
    /// Path of the script while it is absent.
    away: PathBuf,
    manner: PathBuf,
    taken: PathBuf,
}

impl Script {
    /// Creates a script in `dir`.
    pub(crate) fn new(dir: &Path) -> Self {
        let of = |name: &str| dir.join(name);
        let sink =
            Self { program: of("script"), away: of("script.away"), manner: of("manner"), taken: of("taken.jsonl") };
        let (manner, taken) = (text(dir, "manner"), text(dir, "taken.jsonl"));
        let script = format!(
            "case $(cat {manner}) in\n\
             well) cat >>{taken} ;;\n\
             refuses) echo no >&2; exit 1 ;;\n\
             stuck) sleep 600 ;;\n\
             mute) cat >>{taken}; sleep 600 ;;\n\
             esac\n"
        );
        fs::write(&sink.program, script).expect("the directory is writable");
        fs::write(&sink.manner, "well").expect("the directory is writable");
        sink
    }
}

impl Sink for Script {
    fn handler(&self) -> String {
        format!("type = \"exec\"\ntimeout = \"5s\"\ncommand = [\"sh\", \"{}\"]", self.program.display())
    }

    fn be(&mut self, manner: Manner) {
        let (from, to) = if manner == Manner::Gone { (&self.program, &self.away) } else { (&self.away, &self.program) };
        if from.exists() {
            fs::rename(from, to).expect("the directory is writable");
        }
        let manner = match manner {
            Manner::Well => "well",
            Manner::Refuses => "refuses",
            Manner::Stuck => "stuck",
            Manner::Mute => "mute",
            Manner::Gone => return,
        };
        let unfinished = self.manner.with_extension("new");
        fs::write(&unfinished, manner).expect("the directory is writable");
        fs::rename(unfinished, &self.manner).expect("the directory is writable");
    }

    fn arrived(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.taken).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn shows_repetitions(&self) -> bool {
        true
    }

    fn run(&self, dir: &Path) -> Engine {
        Engine::run_allowing_programs(dir, &[])
    }
}
