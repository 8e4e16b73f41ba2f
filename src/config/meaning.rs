//! Checks that no schema can express: references, cycles, contradictions, and suspicious settings.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    iter::successors,
    time::Duration,
};

use super::{
    CONFIG_VERSION, Cache, Config, ConfigPlace, DataFormat, EventType, HandlerConfig, HandlerOptions, Mode,
    ResourceConfig, SecretValues, SinkConfig, TestCase, TypePattern,
    key_path::KeyPath,
    report::{Report, Section},
    text::print_duration,
};
use crate::{build_info, discovery::Pattern, indexer::index_func::NAMESPACE_INDEX, object::FieldPath};

/// Smallest `max_bytes` of `[state]` that causes no warning. The store itself takes about 200 MB.
const STATE_BYTES_MIN: u64 = 256 << 20;

/// Checks a configuration with a valid structure.
pub(crate) fn check(config: &Config, place: ConfigPlace, report: &mut Report) {
    let [resources, handlers] = ["resources", "handlers"].map(|section| report.positions.names(section));
    let [resources_are_wrong, handlers_are_wrong] =
        ["resources", "handlers"].map(|section| report.reported.contains(&KeyPath::new(&[section])));
    let checker = Checker { config, place, resources, handlers };
    let root = &mut report.root();
    checker.engine(root);
    if checker.resources.is_empty() && !resources_are_wrong {
        root.error(
            &["resources"],
            "nothing to watch: expected at least one entry, such as\n    [resources.pods]\n    match = [\"pods\"]",
        );
    }
    if !handlers_are_wrong {
        checker.nothing_is_sent(root);
    }
    checker.resources(root);
    checker.handlers(root);
    checker.dead_letter_cycles(root);
    checker.shared_files(root);
    checker.tests(root);
}

struct Checker<'a> {
    config: &'a Config,
    place: ConfigPlace,
    /// Names of all entries, including entries with errors that prevent further checks.
    resources: BTreeSet<String>,
    /// Names of all handlers, including handlers with errors that prevent further checks.
    handlers: BTreeSet<String>,
}

impl Checker<'_> {
    fn engine(&self, root: &mut Section<'_>) {
        let config = self.config;
        if config.config_version > CONFIG_VERSION {
            root.error(
                &["config_version"],
                format!(
                    "version {} is newer than this deltabus supports ({CONFIG_VERSION}): use a newer deltabus, or \
                     write the file for version {CONFIG_VERSION}",
                    config.config_version
                ),
            );
        }
        let (kube, supervision) = (&config.kube, &config.supervision);
        if config.subscribe.heartbeat < Duration::from_secs(1) {
            root.error(&["subscribe", "heartbeat"], "expected at least \"1s\": heartbeats would flood every stream");
        }
        if kube.watch_timeout < Duration::from_secs(1) {
            root.error(&["kube", "watch_timeout"], "expected at least \"1s\": the API counts in whole seconds");
        }
        if kube.stall_after.is_zero() {
            root.error(&["kube", "stall_after"], "expected more than \"0s\": every watch would be stalled at once");
        }
        if supervision.hung_after.is_zero() {
            root.error(&["supervision", "hung_after"], "expected more than \"0s\": every actor would be hung at once");
        }
        growing_delay(&mut root.below(&["kube", "backoff"]), kube.backoff.initial, kube.backoff.max);
        let backoff = &supervision.backoff;
        growing_delay(&mut root.below(&["supervision", "backoff"]), backoff.initial, backoff.max);
        if config.state.dir.is_some() && self.place == ConfigPlace::Here && cfg!(not(feature = "state")) {
            root.error(&["state", "dir"], build_info::lacking("state"));
        }
        if config.state.dir.is_some() && config.state.journal.max_bytes < STATE_BYTES_MIN {
            let message = "the store itself takes about 200 MB: with less than \"256MiB\" the engine may stop \
                           reading the API server for a long time; the default is \"4GiB\"";
            root.warn(&["state", "max_bytes"], message);
        }
        config.http.check(&mut root.below(&["http"]));
        config.telemetry.check(self.place, &mut root.below(&["telemetry"]));
        if config.redact.hmac_key.is_some() && !config.redact.makes_digests() {
            root.warn(&["redact", "hmac_key"], "has no effect: no values are replaced by digests");
        }
        for (i, wanted) in config.redact.paths.iter().enumerate() {
            self.entries(&mut root.below(&["redact", "paths", &format!("[{i}]")]), &wanted.resources);
        }
    }

    fn resources(&self, root: &mut Section<'_>) {
        for (name, resource) in &self.config.resources {
            let at = &mut root.below(&["resources", name]);
            listed_twice(at, "match", &resource.patterns);
            listed_twice(at, "exclude", &resource.exclude);
            exclude(at, resource);
            self.secrets(at, resource);
            let options = &resource.options;
            lists_without_star(at, "index", &resource.index);
            lists_without_star(at, "drop", &options.drop);
            lists_without_star(at, "ignore_changes", &options.ignore_changes);
            if resource.namespaces.is_nothing() {
                at.error(&["namespaces"], "excludes every namespace that it names: expected at least one other");
            }
            if resource.cache == Cache::None {
                without_bodies(at, resource);
            }
            if resource.mode == Mode::Metadata {
                empty_indexes(at, resource);
            }
        }
        self.shared_types(root);
    }

    /// Reports each pattern that occurs in two entries with overlapping namespaces. Skips a wildcard if one of the entries has
    /// `exclude`: only the server's types show whether the entries then have types in common.
    fn shared_types(&self, root: &mut Section<'_>) {
        let mut named: HashMap<&Pattern, Vec<(&String, &ResourceConfig)>> = HashMap::new();
        for (name, resource) in &self.config.resources {
            for (i, pattern) in resource.patterns.iter().enumerate() {
                let claims = named.entry(pattern.pattern()).or_default();
                let is_shared = |(other, claim): &&(&String, &ResourceConfig)| {
                    let may_differ = !(resource.exclude.is_empty() && claim.exclude.is_empty());
                    *other != name
                        && !(may_differ && pattern.pattern().is_wildcard())
                        && !claim.namespaces.is_disjoint_from(&resource.namespaces)
                };
                if let Some((other, _)) = claims.iter().find(is_shared) {
                    let message = format!(
                        "\"{pattern}\" is already in [resources.{other}]: a type belongs to one entry, or to several \
                         entries with disjoint `namespaces`"
                    );
                    root.error(&["resources", name, "match", &format!("[{i}]")], message);
                }
                claims.push((name, resource));
            }
        }
    }

    /// Reports an entry of Secrets that sets `mode = "full"` although `[redact]` has `secrets = "metadata"`. An unset mode is no
    /// error.
    fn secrets(&self, at: &mut Section<'_>, resource: &ResourceConfig) {
        if self.config.redact.secrets == SecretValues::Metadata
            && resource.mode == Mode::Full
            && resource.patterns.iter().any(TypePattern::names_secrets)
            && at.is_set("mode")
        {
            at.error(
                &["mode"],
                "with [redact] secrets = \"metadata\" Secrets are watched as metadata only: expected \"metadata\", \
                 a separate entry for Secrets, or [redact] secrets = \"hmac\" or \"drop\"",
            );
        }
    }

    fn nothing_is_sent(&self, root: &mut Section<'_>) {
        let handlers = &self.config.handlers;
        let some_are_wrong = self.handlers.len() > handlers.len();
        if some_are_wrong || handlers.values().any(|handler| handler.enabled) {
            return;
        }
        let none = if handlers.is_empty() { "no handlers" } else { "no handler is enabled" };
        root.warn(&["handlers"], format!("{none}: nothing will be sent, but the cache can be read over HTTP"));
    }

    fn handlers(&self, root: &mut Section<'_>) {
        let handlers = &self.config.handlers;
        let dead_letters: HashSet<_> = handlers.values().filter_map(|handler| handler.dead_letter.as_deref()).collect();
        for (name, handler) in handlers {
            let at = &mut root.below(&["handlers", name]);
            self.entries(at, &handler.resources);
            if handler.enabled && handler.resources.is_empty() && !dead_letters.contains(&**name) {
                let message = "gets no events: it selects no resource, and no handler names it as `dead_letter`";
                at.warn(&["resources"], message);
            }
            self.dead_letter(at, name, handler);
            self.sink(at, handler);
            handler.check_format(at);
            handler.check_fields(at);
            self.without_old(at, handler);
            lists_without_star(at, "changed", &handler.options.changed);
            changed_of_nothing(at, handler);
            self.never_deleted(at, handler);
            let retry = &handler.options.retry;
            growing_delay(&mut at.below(&["retry"]), retry.initial, retry.max);
            concurrency(at, handler);
            let given = |resource: &ResourceConfig| !resource.options.resync.is_zero();
            if !handler.options.resync.is_zero() && self.taken(handler, given).is_none() {
                at.warn(&["resync"], "no resource of this handler has `resync`: there will be no resync events");
            }
        }
    }

    /// Returns the name of the first entry whose changes the handler gets and for which `has` returns true.
    fn taken(&self, handler: &HandlerConfig, has: impl Fn(&ResourceConfig) -> bool) -> Option<&str> {
        let mut entries = self.config.resources.iter();
        entries.find(|(name, resource)| has(resource) && handler.takes(name)).map(|(name, _)| &**name)
    }

    /// Checks the options of a handler's type. If the handler is enabled and runs on this machine, also checks the files and
    /// secrets that the options name.
    fn sink(&self, at: &mut Section<'_>, handler: &HandlerConfig) {
        let is_used_here = handler.enabled && self.place == ConfigPlace::Here;
        handler.check_sink(at);
        match &handler.sink {
            SinkConfig::Webhook(webhook) if is_used_here => webhook.check_files(at),
            SinkConfig::Kafka(kafka) if is_used_here => kafka.check_files(at),
            SinkConfig::Nats(_) if is_used_here && cfg!(not(feature = "nats")) => {
                at.error(&["type"], build_info::lacking("nats"));
            }
            _ => {}
        }
    }

    /// Reports a format that shows the previous object, if the handler gets changes of an entry with `cache = "none"`.
    fn without_old(&self, at: &mut Section<'_>, handler: &HandlerConfig) {
        let needs_old = matches!(handler.options.format, DataFormat::Patch | DataFormat::MergePatch | DataFormat::Diff);
        if let Some(entry) = self.taken(handler, |resource| needs_old && resource.cache == Cache::None) {
            let message = format!(
                "[resources.{entry}] has cache = \"none\", so the previous object of an update is unknown: events of \
                 updates contain the whole object"
            );
            at.warn(&["format"], message);
        }
    }

    /// Reports a handler that gets `deleted` but not `removed` from an entry with a selector. The server does not
    /// distinguish deleted objects from objects that no longer match, so both are `removed`.
    fn never_deleted(&self, at: &mut Section<'_>, handler: &HandlerConfig) {
        let on = &handler.options.on;
        if !on.contains(&EventType::Deleted) || on.contains(&EventType::Removed) {
            return;
        }
        let has_selector = |entry: &ResourceConfig| !(entry.labels.is_empty() && entry.fields.is_empty());
        if let Some(entry) = self.taken(handler, has_selector) {
            let message = format!(
                "[resources.{entry}] has a selector, so the server does not distinguish deleted objects from objects \
                 that no longer match: both are `removed`, never `deleted`; add \"removed\" to `on`"
            );
            at.warn(&["on"], message);
        }
    }

    /// Checks names of entries, and globs of names, in the option `resources`.
    fn entries(&self, at: &mut Section<'_>, patterns: &[String]) {
        for (i, pattern) in patterns.iter().enumerate() {
            let wanted = pattern.strip_prefix('!').unwrap_or(pattern);
            let keys = ["resources", &format!("[{i}]")];
            let known = &self.resources;
            if wanted.contains(['*', '?', '[', '{']) {
                let glob = globset::Glob::new(wanted).map(|glob| glob.compile_matcher());
                let matches = known.iter().any(|known| glob.as_ref().is_ok_and(|glob| glob.is_match(known)));
                // If there is no entry, the default "*" needs no second message.
                if !matches && wanted != "*" {
                    at.warn(&keys, format!("{pattern:?} matches no entry of [resources]"));
                }
            } else if !known.contains(wanted) {
                let hint = at.suggestion(wanted, known.iter());
                at.error(&keys, format!("there is no [resources.{wanted}]; {hint}"));
            }
        }
    }

    fn dead_letter(&self, at: &mut Section<'_>, name: &str, handler: &HandlerConfig) {
        let Some(target) = &handler.dead_letter else { return };
        if !self.handlers.contains(target) {
            let others = self.handlers.iter().filter(|other| *other != name);
            let hint = match others.clone().next() {
                Some(_) => at.suggestion(target, others),
                None => "there is no other handler".to_owned(),
            };
            at.error(&["dead_letter"], format!("there is no [handlers.{target}]; {hint}"));
        } else if self.config.handlers.get(target).is_some_and(|target| !target.enabled) && handler.enabled {
            let message = format!(
                "[handlers.{target}] is not enabled, so it would get none of the events that are given up: enable it, or \
                 remove `dead_letter`"
            );
            at.error(&["dead_letter"], message);
        }
    }

    /// Reports each cycle of `dead_letter` once, at the alphabetically first handler of the cycle.
    fn dead_letter_cycles(&self, root: &mut Section<'_>) {
        let next = |name: &str| self.config.handlers.get(name)?.dead_letter.as_deref();
        let mut reached = HashSet::new();
        for start in self.config.handlers.keys() {
            let mut way: Vec<&str> =
                successors(Some(start.as_str()), |name| next(name)).take_while(|name| reached.insert(*name)).collect();
            let back = way.last().and_then(|last| next(last));
            let Some(begin) = way.iter().position(|name| Some(*name) == back) else { continue };
            let mut cycle = way.split_off(begin);
            let first = (0..cycle.len()).min_by_key(|at| cycle[*at]).unwrap_or(0);
            cycle.rotate_left(first);
            let shown = cycle.iter().chain([&cycle[0]]).copied().collect::<Vec<_>>().join(" → ");
            root.error(&["handlers", cycle[0], "dead_letter"], format!("dead letters form a cycle: {shown}"));
        }
    }

    fn tests(&self, root: &mut Section<'_>) {
        let mut titles = HashSet::new();
        for (i, TestCase { name, old, new, expect }) in self.config.tests.iter().enumerate() {
            let at = &mut root.below(&["tests", &format!("[{i}]")]);
            if name.trim().is_empty() {
                at.error(&["name"], "expected a short description of the test");
            } else if !titles.insert(name) {
                at.error(&["name"], format!("another test is called {name:?}"));
            }
            if old.is_none() && new.is_none() {
                at.error(&[], "nothing changes: expected `old`, `new`, or both");
            }
            if expect.is_empty() {
                at.error(&["expect"], "nothing is tested: expected at least one handler");
            }
            for handler in expect.keys().filter(|handler| !self.handlers.contains(*handler)) {
                let hint = at.suggestion(handler, self.handlers.iter());
                at.error(&["expect", handler], format!("there is no [handlers.{handler}]; {hint}"));
            }
        }
    }

    fn shared_files(&self, root: &mut Section<'_>) {
        let mut writers = BTreeMap::new();
        for (name, handler) in self.config.handlers.iter().filter(|(_, handler)| handler.enabled) {
            let SinkConfig::File(file) = &handler.sink else { continue };
            let Some(identity) = file.identity() else { continue };
            if let Some(other) = writers.insert(identity, name) {
                let message = format!("[handlers.{other}] also writes to this file: expected another file");
                root.error(&["handlers", name, "path"], message);
            }
        }
    }
}

/// Checks that a growing delay does not begin above its maximum. The error is reported for `max` if `max` is set, else for
/// `initial`.
fn growing_delay(at: &mut Section<'_>, initial: Duration, max: Duration) {
    if initial.is_zero() {
        at.error(&["initial"], "expected more than \"0s\"");
    } else if max < initial {
        let (initial, max) = (print_duration(initial), print_duration(max));
        if at.is_set("max") {
            at.error(&["max"], format!("expected at least the value of `initial`, {initial}, found {max}"));
        } else {
            at.error(&["initial"], format!("expected at most the value of `max`, {max}, found {initial}"));
        }
    }
}

fn listed_twice(at: &mut Section<'_>, key: &str, patterns: &[TypePattern]) {
    let mut listed = HashSet::new();
    for (i, pattern) in patterns.iter().enumerate() {
        if !listed.insert(pattern.pattern()) {
            at.error(&[key, &format!("[{i}]")], format!("\"{pattern}\" is listed twice"));
        }
    }
}

fn exclude(at: &mut Section<'_>, resource: &ResourceConfig) {
    let wanted: HashSet<_> = resource.patterns.iter().map(TypePattern::pattern).collect();
    for (i, pattern) in resource.exclude.iter().enumerate() {
        let keys = ["exclude", &format!("[{i}]")];
        if *pattern.pattern() == Pattern::All {
            at.error(&keys, "excludes every type: nothing is left to watch");
        } else if wanted.contains(pattern.pattern()) {
            at.error(&keys, format!("\"{pattern}\" is also in `match`: expected it in only one of the two"));
        }
    }
}

/// Reports paths that treat a list as an object: nothing is ever found there, and no error appears at run time.
fn lists_without_star(at: &mut Section<'_>, key: &str, paths: &[String]) {
    for (i, path) in paths.iter().enumerate() {
        if let Some(meant) = FieldPath::parse(path).ok().and_then(|path| path.with_lists()) {
            let message = format!("goes into a list without `[*]`, so nothing is found; did you mean `{meant}`?");
            at.warn(&[key, &format!("[{i}]")], message);
        }
    }
}

fn without_bodies(at: &mut Section<'_>, resource: &ResourceConfig) {
    if !resource.index.is_empty() {
        let message = "with cache = \"none\" no bodies are kept that could be looked up: expected no index, or \
                       cache = \"full\"";
        at.error(&["index"], message);
    }
    if !resource.options.ignore_changes.is_empty() {
        let message = "with cache = \"none\" no bodies are kept to compare an update with: every update is an event";
        at.warn(&["ignore_changes"], message);
    }
    if !resource.options.resync.is_zero() {
        at.warn(&["resync"], "with cache = \"none\" no bodies are kept: there will be no resync events");
    }
}

/// Reports indexes of fields outside `metadata`: they stay empty, because the entry fetches only metadata.
fn empty_indexes(at: &mut Section<'_>, resource: &ResourceConfig) {
    for (i, index) in resource.index.iter().enumerate() {
        let in_metadata = FieldPath::parse(index).is_ok_and(|path| path.to_string().starts_with("metadata"));
        if index != NAMESPACE_INDEX && !in_metadata {
            let message = format!("with mode = \"metadata\" no object has `{index}`: this index stays empty");
            at.warn(&["index", &format!("[{i}]")], message);
        }
    }
}

/// Reports `changed` of a handler that gets no updates.
fn changed_of_nothing(at: &mut Section<'_>, handler: &HandlerConfig) {
    let HandlerOptions { changed, on, .. } = &handler.options;
    if !changed.is_empty() && !on.contains(&EventType::Updated) {
        at.warn(&["changed"], "has no effect: it applies to updates, and `on` has no \"updated\"");
    }
}

/// Reports options that have no effect because there is only one delivery at a time.
fn concurrency(at: &mut Section<'_>, handler: &HandlerConfig) {
    if handler.options.timeout.is_zero() {
        return at.error(&["timeout"], "expected more than \"0s\": every attempt would fail at once");
    }
    let kind: &str = (&handler.sink).into();
    let is_concurrent = handler.sink.is_concurrent();
    let why = if is_concurrent { "order = \"total\"".to_owned() } else { format!("type = \"{kind}\"") };
    let has_timeout = is_concurrent || matches!(handler.sink, SinkConfig::Exec(_));
    let keys: &[&str] = if has_timeout { &["concurrency"] } else { &["concurrency", "timeout"] };
    for key in keys {
        let is_idle = !is_concurrent || (handler.concurrency() == 1 && handler.options.concurrency > 1);
        if at.is_set_itself(key) && is_idle {
            at.warn(&[key], format!("has no effect with {why}: there is one delivery at a time"));
        }
    }
}
