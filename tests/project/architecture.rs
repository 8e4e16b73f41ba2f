//! Layering of the crate, checked in its source: `lib.rs` gives the order of layers, and every file must follow it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// Patterns that state machines must not use: time, randomness, threads, the environment.
const EFFECTS: &[&str] = &[
    r"\basync\b",
    r"\bactix(_rt)?::",
    r"\btokio::",
    r"\bkube::",
    r"\btracing::",
    r"\brand::",
    r"\bInstant\b",
    r"\bSystemTime\b",
    r"\bjiff::Timestamp::now\b",
    r"\bstd::(fs|net|io|process)\b",
    r"\bthread::",
];

/// Files of the stages' state machines and their parts.
const CORES: &[&str] = &[
    "printable.rs",
    "change.rs",
    "redact.rs",
    "object.rs",
    "object/",
    "scope.rs",
    "backoff.rs",
    "discovery.rs",
    "discovery/assumed.rs",
    "discovery/built_in.rs",
    "discovery/catalog.rs",
    "discovery/openapi.rs",
    "discovery/pattern.rs",
    "discovery/selection.rs",
    "list_watch/decode.rs",
    "list_watch/decode/",
    "list_watch/retry.rs",
    "list_watch/kube/credentials/cache.rs",
    "list_watch/kube/query.rs",
    "reflector.rs",
    "reflector/",
    "delta_fifo.rs",
    "delta_fifo/",
    "indexer.rs",
    "indexer/",
    "lister.rs",
    "lister/",
    "journal/memory.rs",
    "journal/memory/",
    "journal/reader.rs",
    "journal/reader/",
    "journal/compaction.rs",
    "journal/recovery.rs",
    "journal/filter.rs",
    "journal/retention.rs",
    "journal/record.rs",
    "journal/change_set.rs",
    "journal/interest.rs",
    "journal/coalesce.rs",
    "journal/timeline.rs",
    "journal/timeline/",
    "journal/store/record.rs",
    "journal/store/wire.rs",
    "rules.rs",
    "rules/",
    "cloud_event.rs",
    "cloud_event/",
    "handler.rs",
    "handler/nats/message.rs",
    "handler/nats/subject.rs",
    "handler/template.rs",
    "subscribe.rs",
    "subscribe/cursor.rs",
    "subscribe/filter.rs",
    "subscribe/frame.rs",
    "subscribe/query.rs",
    "subscribe/ring.rs",
    "work_queue.rs",
    "work_queue/",
    "supervisor.rs",
    "supervisor/policy.rs",
    "delivery.rs",
    "delivery/attempts.rs",
    "delivery/core.rs",
    "delivery/pace.rs",
    "delivery/schedule.rs",
    "delivery/table.rs",
    "delivery/throttle.rs",
    "simulator/patch.rs",
    "simulator/patch/",
    "engine/dry_run.rs",
    "engine/dry_run/",
    "engine/plan.rs",
    "engine/reconcile.rs",
    "engine/presence.rs",
    "engine/rediscovery.rs",
];

/// Names of files in those directories that are shells.
const SHELLS: &[&str] = &["actor.rs", "log.rs", "ask.rs", "handle.rs", "messages.rs", "run.rs", "writer.rs"];

/// One file of `src`, without comments and tests.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Returns the top-level module of the file.
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    /// Returns the top-level modules that the file uses.
    fn named(&self) -> BTreeSet<&str> {
        let mut named = BTreeSet::new();
        for (at, _) in self.text.match_indices("crate::") {
            let rest = &self.text[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                Some(group) => named.extend(first_names(group)),
                None => named.extend(first_name(rest)),
            }
        }
        named
    }
}

/// Returns the first name of every path in a `{…}` group, up to its end.
fn first_names(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut names) = (0_usize, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                names.extend(first_name(&group[start..at]));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

fn first_name(path: &str) -> Option<&str> {
    let path = path.trim_start();
    let end = path.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(path.len());
    Some(&path[..end]).filter(|name| !name.is_empty())
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let comment = Regex::new(r"(?m)//.*$").expect("a valid pattern");
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("source is readable");
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let path = path.strip_prefix(&root).expect("it was found there").to_str().expect("source paths are text");
        Source { path: path.to_owned(), text: comment.replace_all(text, "").into_owned() }
    };
    files.iter().map(read).collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("source is readable") {
        let path = entry.expect("source is readable").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !matches!(name, "tests" | "model_tests" | "testing")
        {
            files.push(path);
        }
    }
}

/// Returns the modules of `lib.rs`, in layer order.
fn order() -> Vec<String> {
    let lib = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).expect("it is there");
    let modules = Regex::new(r"(?m)^(?:pub )?mod (\w+);").expect("a valid pattern");
    modules.captures_iter(&lib).map(|found| found[1].to_owned()).collect()
}

#[test]
fn files_name_only_earlier_modules_of_lib_rs() {
    let order = order();
    assert!(order.len() > 15, "{order:?}");
    let rank = |module: &str| order.iter().position(|name| name == module);
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(own) = rank(source.module()) else { continue }; // lib.rs, main.rs, cli
        for named in source.named() {
            if rank(named).is_some_and(|named| named > own) {
                wrong.push(format!("{} names crate::{named}, which comes later", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn cores_have_no_effects() {
    let effects: Vec<_> = EFFECTS.iter().map(|effect| Regex::new(effect).expect("a valid pattern")).collect();
    let (mut wrong, mut cores) = (Vec::new(), 0);
    for source in sources() {
        let file = source.path.rsplit('/').next().unwrap_or_default();
        let is_core =
            CORES.iter().any(|core| source.path == *core || (core.ends_with('/') && source.path.starts_with(core)));
        if !is_core || (SHELLS.contains(&file) && source.path.contains('/')) {
            continue;
        }
        cores += 1;
        for effect in &effects {
            for found in effect.find_iter(&source.text) {
                let line = source.text[..found.start()].matches('\n').count() + 1;
                wrong.push(format!("{}:{line} names {}", source.path, found.as_str()));
            }
        }
    }
    assert!(cores > 25, "{cores} cores were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_store_uses_evmap_and_few_use_kube() {
    let evmap = Regex::new(r"\bevmap::").expect("a valid pattern");
    let kube = Regex::new(r"(?:^|[^:\w])(?:kube|kube_client|kube_core)::").expect("a valid pattern");
    let own = Regex::new(r"(?s)\buse (?:crate|super|self)::.*?;").expect("a valid pattern"); // `list_watch::kube` is ours
    for source in sources() {
        let path = &source.path;
        if evmap.is_match(&source.text) {
            assert_eq!(path, "indexer/store.rs", "only the store names evmap");
        }
        // Clients belong to threads, so the thread code holds them; the formatting of both errors is shared.
        let may = path.starts_with("list_watch/kube") || path.starts_with("discovery");
        let may = may || matches!(path.as_str(), "engine/sources.rs" | "client_error.rs");
        let names = kube.is_match(&own.replace_all(&source.text, ""));
        assert!(may || !names, "{path} names the kube client");
    }
}

#[test]
fn every_file_states_its_purpose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for source in sources() {
        let text = fs::read_to_string(root.join(&source.path)).expect("source is readable");
        assert!(text.starts_with("//! "), "{} begins with its purpose", source.path);
    }
}

/// Returns the crate-wide types that a file declares.
fn declared(source: &Source) -> impl Iterator<Item = &str> {
    let declaration =
        Regex::new(r"(?m)^pub(?:\(crate\))? (?:struct|enum|trait|type|union) (\w+)").expect("a valid pattern");
    let names: Vec<_> = declaration.captures_iter(&source.text).filter_map(|found| found.get(1)).collect();
    names.into_iter().map(|name| name.as_str())
}

#[test]
fn crate_wide_types_have_unique_names() {
    let (sources, mut files) = (sources(), BTreeMap::<_, Vec<_>>::new());
    // A stand-in for a missing feature has the names of the real types.
    for source in sources.iter().filter(|source| !source.path.ends_with("/none.rs")) {
        declared(source).for_each(|name| files.entry(name).or_default().push(&source.path));
    }
    assert!(files.len() > 300, "{} types were found", files.len());
    files.retain(|_, files| files.len() > 1);
    assert!(files.is_empty(), "{files:#?}");
}

#[test]
fn architecture_page_names_existing_files_and_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/architecture.md")).expect("the page is there");
    let sources = sources();
    let declaration =
        Regex::new(r"(?m)^(?:pub(?:\([a-z]+\))? )?(?:struct|enum|trait|type) (\w+)").expect("a valid pattern");
    let types: BTreeSet<_> = sources
        .iter()
        .flat_map(|source| declaration.captures_iter(&source.text))
        .map(|found| found[1].to_owned())
        .collect();
    let (file, name) =
        (Regex::new("`([a-z_/]+(?:\\.rs|/))`"), Regex::new("`([A-Z][A-Za-z]+)`|\\b((?:[A-Z][a-z]+){2,})\\b"));
    let (file, name) = (file.expect("a valid pattern"), name.expect("a valid pattern"));
    let files: BTreeSet<_> = file.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    let names: BTreeSet<_> =
        name.captures_iter(&page).filter_map(|found| Some(found.get(1).or(found.get(2))?.as_str())).collect();
    assert!(files.len() > 40 && names.len() > 20, "{files:?} {names:?}");
    let is_there = |path: &String| root.join("src").join(path).exists() || root.join(path).exists();
    let files: Vec<_> = files.iter().filter(|path| !is_there(path)).collect();
    let names: Vec<_> = names.iter().filter(|name| !types.contains(**name)).collect();
    assert!(files.is_empty() && names.is_empty(), "not in the source: {files:?} {names:?}");
}
