//! Configuration that changes under a running engine: detection of new file content, and options that need a
//! restart.
//!
//! The detection compares content, not modification times or file events. A `ConfigMap` is swapped by a symlink, editors
//! rename files, and directories get new files.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash as _, Hasher as _},
    path::PathBuf,
};

use crate::{
    config::{self, Config, ConfigErrors, FlagValue, Loaded, environment},
    regular_file,
};

/// Files of a configuration, and their last known content.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFiles {
    paths: Vec<PathBuf>,
    /// Options that flags of the command line override.
    flags: Vec<FlagValue>,
    /// Fingerprint of content that was loaded or refused.
    known: u64,
    /// Fingerprint of content seen for the first time. The content counts as new if the next check finds the same fingerprint.
    settling: Option<u64>,
}

impl ConfigFiles {
    /// Accepts the present content as known. Reads the files, so it blocks the thread.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { known: fingerprint(&paths), settling: None, flags: Vec::new(), paths }
    }

    /// Overrides options of the files.
    #[must_use]
    pub(crate) fn with_flags(self, flags: Vec<FlagValue>) -> Self {
        Self { flags, ..self }
    }

    /// Returns true if the content is new, and has not changed since the last check (no write is in progress). Reads the files, so
    /// it blocks the thread.
    pub(crate) fn has_changed(&mut self) -> bool {
        let found = fingerprint(&self.paths);
        if found == self.known {
            self.settling = None;
            return false;
        }
        self.settling.replace(found) == Some(found)
    }

    /// Returns true if new content was seen once; the next check decides whether it is complete.
    pub(crate) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    /// Loads the present content, and accepts it as known, even with errors. Reads the files, so it blocks the thread.
    ///
    /// # Errors
    /// Returns all errors of the files.
    pub(crate) fn load(&mut self) -> Result<Loaded, ConfigErrors> {
        self.known = fingerprint(&self.paths);
        self.settling = None;
        Config::load_with(&self.paths, environment(), &self.flags)
    }
}

/// Returns a hash of the names and the content of the files. If a file cannot be read, the kind of error replaces the content.
fn fingerprint(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        for file in config::files(path).unwrap_or_else(|_| vec![path.clone()]) {
            file.hash(&mut hasher);
            regular_file::read(&file).map_err(|error| error.kind()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Copies from `running` to `new` every option that needs a restart. Returns the names of the options that differed.
pub(super) fn keep_until_restart(running: &Config, new: &mut Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    keep("[cluster]", &running.cluster, &mut new.cluster, &mut kept);
    let (old_kube, kube) = (&running.kube, &mut new.kube);
    keep("[kube] kubeconfig", &old_kube.kubeconfig, &mut kube.kubeconfig, &mut kept);
    keep("[kube] context", &old_kube.context, &mut kube.context, &mut kept);
    keep("[kube] max_concurrent_lists", &old_kube.max_concurrent_lists, &mut kube.max_concurrent_lists, &mut kept);
    keep("[kube] max_frame", &old_kube.max_frame, &mut kube.max_frame, &mut kept);
    keep("[supervision]", &running.supervision, &mut new.supervision, &mut kept);
    keep("[http]", &running.http, &mut new.http, &mut kept);
    keep("[subscribe]", &running.subscribe, &mut new.subscribe, &mut kept);
    keep("[state]", &running.state, &mut new.state, &mut kept);
    keep("[telemetry]", &running.telemetry, &mut new.telemetry, &mut kept);
    if running.log.format != new.log.format {
        kept.push("[log] format"); // set by the program, not by the engine
    }
    kept
}

fn keep<T: Clone + PartialEq>(name: &'static str, running: &T, new: &mut T, kept: &mut Vec<&'static str>) {
    if running != new {
        new.clone_from(running);
        kept.push(name);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const PODS: &str = "[resources.pods]\nmatch = [\"pods\"]\n";

    /// Returns true if the second check notices new content, and the first does not.
    fn notices(files: &mut ConfigFiles) -> bool {
        assert!(!files.has_changed(), "somebody may be writing");
        let changed = files.has_changed();
        assert_eq!(files.has_changed(), changed, "it stays new until it is loaded");
        changed
    }

    #[test]
    fn changed_content_is_noticed_once_settled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::write(&path, PODS).unwrap();
        let mut files = ConfigFiles::new(vec![path.clone()]);
        assert!(!notices(&mut files));
        fs::write(&path, PODS).unwrap();
        assert!(!notices(&mut files), "the same content, written again");

        fs::write(&path, "[resources.po").unwrap();
        assert!(!files.has_changed());
        fs::write(&path, format!("{PODS}labels = \"a=b\"\n")).unwrap();
        assert!(notices(&mut files));
        assert_eq!(files.load().unwrap().config.resources["pods"].labels, "a=b");
        assert!(!notices(&mut files));

        fs::write(&path, "nonsense").unwrap();
        assert!(notices(&mut files));
        files.load().unwrap_err();
        assert!(!notices(&mut files), "a mistake is told once");
        fs::remove_file(&path).unwrap();
        assert!(notices(&mut files));
    }

    #[test]
    fn symlink_swap_rename_and_extra_file_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, labels) in [("v1", "a=1"), ("v2", "a=2")] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("config.toml"), format!("{PODS}labels = \"{labels}\"\n")).unwrap();
        }
        symlink(at("v1"), at("data")).unwrap();
        let mut files = ConfigFiles::new(vec![at("data")]);
        symlink(at("v2"), at("new")).unwrap();
        fs::rename(at("new"), at("data")).unwrap();
        assert!(notices(&mut files), "as a ConfigMap is swapped");
        assert_eq!(files.load().unwrap().config.resources["pods"].labels, "a=2");

        fs::write(at("draft"), PODS).unwrap();
        fs::rename(at("draft"), at("v2").join("config.toml")).unwrap();
        assert!(notices(&mut files), "as editors save");
        files.load().unwrap();
        fs::write(at("v2").join("more.toml"), "[resources.more]\nmatch = [\"nodes\"]\n").unwrap();
        assert!(notices(&mut files));
        assert_eq!(files.load().unwrap().config.resources.len(), 2);
        fs::write(at("v2").join("notes.txt"), "").unwrap();
        assert!(!notices(&mut files), "it is no part of the configuration");
    }

    #[test]
    fn options_that_need_restart_are_named() {
        let base = Config::from_toml_str(PODS).unwrap();
        let with = |more: &str| Config::from_toml_str(&format!("{PODS}{more}")).unwrap();
        let needs_restart = |more: &str| keep_until_restart(&base, &mut with(more));
        assert!(needs_restart("[handlers.o]\ntype = \"stdout\"").is_empty());
        assert!(needs_restart("[kube]\npage_size = 7\nstall_after = \"1m\"").is_empty());
        let changed = "[kube]\ncontext = \"other\"\n[http]\nlisten = \"\"\n[cluster]\nname = \"c\"";
        assert_eq!(needs_restart(changed), ["[cluster]", "[kube] context", "[http]"]);
    }
}
