//! Checks that no schema can express: references, cycles, contradictions, and suspicious settings.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    iter::successors,
    time::Duration,
};

use serde_json::{Map, Value};

use super::{
    CONFIG_VERSION, Cache, Config, ConfigPlace, FormatSettings, HandlerConfig, Mode, ResourceConfig, SecretValues,
    SinkConfig, TestCase, TypePattern,
    error::{Finding, LISTED_MAX, Problem, suggestion},
    key_path::KeyPath,
    layers::Positions,
    oddities,
    text::print_duration,
};
use crate::{build_info, discovery::Pattern, indexer::index_func::NAMESPACE_INDEX, object::FieldPath};

/// Minimum size of a state directory: the store's own data may permanently fill a smaller one.
const STATE_BYTES_MIN: u64 = 256 << 20;

/// Names of all entries, including entries with errors that prevent further checks.
#[derive(Debug, Default)]
pub(crate) struct Names {
    resources: BTreeSet<String>,
    handlers: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(tree: &Map<String, Value>) -> Self {
        let of = |section: &str| {
            tree.get(section).and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
        };
        Self { resources: of("resources"), handlers: of("handlers") }
    }
}

/// Checks a configuration with a valid structure; returns errors and warnings.
///
/// `meant` contains the probable correct paths of misspelt keys.
pub(crate) fn check(
    config: &Config,
    place: ConfigPlace,
    names: &Names,
    meant: &HashSet<KeyPath>,
    positions: &Positions,
) -> (Vec<Finding>, Vec<Finding>) {
    let mut checker = Checker { config, place, names, positions, errors: Vec::new(), warnings: Vec::new() };
    checker.engine();
    if names.resources.is_empty() && !meant.contains(&KeyPath::new(&["resources"])) {
        checker.error(
            &["resources"],
            "nothing to watch: expected at least one entry, such as\n    [resources.pods]\n    match = [\"pods\"]",
        );
    }
    if !meant.contains(&KeyPath::new(&["handlers"])) {
        checker.nothing_is_sent();
    }
    checker.resources();
    checker.handlers();
    checker.dead_letter_cycles();
    checker.shared_files();
    checker.tests();
    (checker.errors, checker.warnings)
}

struct Checker<'a> {
    config: &'a Config,
    place: ConfigPlace,
    names: &'a Names,
    positions: &'a Positions,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl Checker<'_> {
    fn error(&mut self, keys: &[&str], message: impl Into<String>) {
        self.errors.push(self.positions.finding(keys, message.into()));
    }

    fn warn(&mut self, keys: &[&str], message: impl Into<String>) {
        self.warnings.push(self.positions.finding(keys, message.into()));
    }

    /// Reports the problems that a section's own check returned.
    fn report(&mut self, section: &[&str], errors: Vec<Problem>, warnings: Vec<Problem>) {
        let section: Vec<String> = section.iter().map(|key| (*key).to_owned()).collect();
        let finding = |(keys, message): Problem| self.positions.finding(&[&*section, &*keys].concat(), message);
        self.errors.extend(errors.into_iter().map(finding));
        self.warnings.extend(warnings.into_iter().map(finding));
    }

    /// Suggests an existing name, if the error can still be among the listed ones. Further errors get a general text,
    /// because the search for the most similar name is slow.
    fn suggestion<'b>(&self, name: &str, known: impl Iterator<Item = &'b String> + Clone) -> String {
        if known.clone().next().is_none() {
            "there are none".to_owned()
        } else if self.errors.len() < LISTED_MAX {
            suggestion(name, known.map(String::as_str))
        } else {
            "expected an existing name".to_owned()
        }
    }

    fn engine(&mut self) {
        let config = self.config;
        if config.config_version > CONFIG_VERSION {
            self.error(
                &["config_version"],
                format!(
                    "version {} is newer than this deltabus supports ({CONFIG_VERSION}): use a newer deltabus, or \
                     write the file for version {CONFIG_VERSION}",
                    config.config_version
                ),
            );
        }
        if config.subscribe.heartbeat < Duration::from_secs(1) {
            self.error(&["subscribe", "heartbeat"], "expected at least \"1s\": heartbeats would flood every stream");
        }
        if config.kube.watch_timeout.as_secs() == 0 {
            self.error(&["kube", "watch_timeout"], "expected at least \"1s\": the API counts in whole seconds");
        }
        if config.kube.stall_after.is_zero() {
            self.error(&["kube", "stall_after"], "expected more than \"0s\": every watch would be stalled at once");
        }
        if config.supervision.hung_after.is_zero() {
            self.error(&["supervision", "hung_after"], "expected more than \"0s\": every actor would be hung at once");
        }
        let backoff = &config.kube.backoff;
        self.pause(&["kube", "backoff"], backoff.initial, backoff.max);
        let backoff = &config.supervision.backoff;
        self.pause(&["supervision", "backoff"], backoff.initial, backoff.max);
        if config.state.dir.is_some() && self.place == ConfigPlace::Here && cfg!(not(feature = "state")) {
            self.error(&["state", "dir"], build_info::lacking("state"));
        }
        if config.state.dir.is_some() && config.state.max_bytes < STATE_BYTES_MIN {
            let message = "the store itself takes about 200 MB: with less than \"256MiB\" the engine may not read the \
                           API server for long; the default is \"4GiB\"";
            self.warn(&["state", "max_bytes"], message);
        }
        self.report(&["http"], config.http.mistakes(), Vec::new());
        if let Some(mistake) = config.telemetry.mistake(self.place) {
            self.error(&["telemetry", "otlp_endpoint"], mistake);
        }
        self.redact();
    }

    fn redact(&mut self) {
        let redact = &self.config.redact;
        if redact.hmac_key.is_some() && !redact.makes_digests() {
            self.warn(&["redact", "hmac_key"], "has no effect: no values are replaced by digests");
        }
        for (i, wanted) in redact.paths.iter().enumerate() {
            self.entries(&["redact", "paths", &format!("[{i}]"), "resources"], &wanted.resources);
        }
    }

    /// Checks a growing delay. If `max` is too small but was not set, the error is reported for `initial`.
    fn pause(&mut self, keys: &[&str], initial: Duration, max: Duration) {
        let [initial_key, max_key] = ["initial", "max"].map(|key| [keys, &[key]].concat());
        if initial.is_zero() {
            self.error(&initial_key, "expected more than \"0s\"");
        } else if max < initial {
            let (initial, max) = (print_duration(initial), print_duration(max));
            if self.positions.is_set(&KeyPath::new(&max_key)) {
                self.error(&max_key, format!("expected at least the value of `initial`, {initial}, found {max}"));
            } else {
                self.error(&initial_key, format!("expected at most the value of `max`, {max}, found {initial}"));
            }
        }
    }

    fn resources(&mut self) {
        for (name, resource) in &self.config.resources {
            self.listed_twice(name, "match", &resource.patterns);
            self.listed_twice(name, "exclude", &resource.exclude);
            self.exclude(name, resource);
            self.resource(name, resource);
        }
        self.shared_types();
    }

    fn listed_twice(&mut self, name: &str, key: &str, patterns: &[TypePattern]) {
        let mut listed = HashSet::new();
        for (i, pattern) in patterns.iter().enumerate() {
            if !listed.insert(pattern.pattern()) {
                let keys = ["resources", name, key, &format!("[{i}]")];
                self.error(&keys, format!("\"{pattern}\" is listed twice"));
            }
        }
    }

    fn exclude(&mut self, name: &str, resource: &ResourceConfig) {
        let wanted: HashSet<_> = resource.patterns.iter().map(TypePattern::pattern).collect();
        for (i, pattern) in resource.exclude.iter().enumerate() {
            let keys = ["resources", name, "exclude", &format!("[{i}]")];
            if *pattern.pattern() == Pattern::All {
                self.error(&keys, "excludes every type: nothing is left to watch");
            } else if wanted.contains(pattern.pattern()) {
                self.error(&keys, format!("\"{pattern}\" is also in `match`: expected it in only one of the two"));
            }
        }
    }

    /// Reports types of two entries whose namespaces are not disjoint. Wildcards with different exclusions can only be
    /// checked with the types of the server.
    fn shared_types(&mut self) {
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
                    self.error(&["resources", name, "match", &format!("[{i}]")], message);
                }
                claims.push((name, resource));
            }
        }
    }

    fn resource(&mut self, name: &str, resource: &ResourceConfig) {
        self.secrets(name, resource);
        self.report(&["resources", name], Vec::new(), oddities::of_resource(resource));
        if resource.namespaces.is_nothing() {
            let message = "excludes every namespace that it names: expected at least one other";
            self.error(&["resources", name, "namespaces"], message);
        }
        if resource.cache == Cache::None {
            self.without_bodies(name, resource);
        }
        if resource.mode == Mode::Metadata {
            for (i, index) in resource.index.iter().enumerate() {
                let in_metadata = FieldPath::parse(index).is_ok_and(|path| path.to_string().starts_with("metadata"));
                if index != NAMESPACE_INDEX && !in_metadata {
                    let message = format!("with mode = \"metadata\" no object has `{index}`: this index stays empty");
                    self.warn(&["resources", name, "index", &format!("[{i}]")], message);
                }
            }
        }
    }

    fn without_bodies(&mut self, name: &str, resource: &ResourceConfig) {
        if !resource.index.is_empty() {
            let message = "with cache = \"none\" no bodies are kept that could be looked up: expected no index, or \
                           cache = \"full\"";
            self.error(&["resources", name, "index"], message);
        }
        if !resource.options.ignore_changes.is_empty() {
            let message =
                "with cache = \"none\" no bodies are kept to compare an update with: every update is an event";
            self.warn(&["resources", name, "ignore_changes"], message);
        }
        if !resource.options.resync.is_zero() {
            let message = "with cache = \"none\" no bodies are kept: there will be no resync events";
            self.warn(&["resources", name, "resync"], message);
        }
    }

    /// Checks `mode` of Secrets if their values are never fetched: an explicit `full` is an error, and an unset mode
    /// becomes `metadata`.
    fn secrets(&mut self, name: &str, resource: &ResourceConfig) {
        let mode = ["resources", name, "mode"];
        if self.config.redact.secrets == SecretValues::Metadata
            && resource.mode == Mode::Full
            && resource.patterns.iter().any(TypePattern::names_secrets)
            && self.positions.is_set(&KeyPath::new(&mode))
        {
            self.error(
                &mode,
                "with [redact] secrets = \"metadata\" Secrets are watched as metadata only: expected \"metadata\", \
                 a separate entry for Secrets, or [redact] secrets = \"hmac\" or \"drop\"",
            );
        }
    }

    fn nothing_is_sent(&mut self) {
        let some_are_wrong = self.names.handlers.len() > self.config.handlers.len();
        if some_are_wrong || self.config.handlers.values().any(|handler| handler.enabled) {
            return;
        }
        let none = if self.config.handlers.is_empty() { "no handlers" } else { "no handler is enabled" };
        self.warn(&["handlers"], format!("{none}: nothing will be sent, but the cache can be read over HTTP"));
    }

    fn handlers(&mut self) {
        let dead_letters: HashSet<_> =
            self.config.handlers.values().filter_map(|handler| handler.dead_letter.as_deref()).collect();
        for (name, handler) in &self.config.handlers {
            self.takes(name, handler, &dead_letters);
            self.dead_letter(name, handler);
            self.sink(name, handler);
            self.format(name, handler);
            self.report(&["handlers", name], Vec::new(), oddities::of_handler(handler, &self.config.resources));
            let retry = &handler.options.retry;
            self.pause(&["handlers", name, "retry"], retry.initial, retry.max);
            self.concurrency(name, handler);
            let asked = !handler.options.resync.is_zero();
            let given = |(name, resource): (&String, &ResourceConfig)| {
                !resource.options.resync.is_zero() && handler.takes(name)
            };
            if asked && !self.config.resources.iter().any(given) {
                let message = "no resource of this handler has `resync`: there will be no resync events";
                self.warn(&["handlers", name, "resync"], message);
            }
        }
    }

    /// Checks the options of a handler's type. Files and secrets that they name are checked only if the handler is used here.
    fn sink(&mut self, name: &str, handler: &HandlerConfig) {
        let is_used_here = handler.enabled && self.place == ConfigPlace::Here;
        let (wrong, unready, odd) = match &handler.sink {
            SinkConfig::Webhook(webhook) => {
                let wrong = webhook.options(handler.batch().max_events > 1, Duration::MAX).err();
                (wrong, is_used_here.then(|| webhook.unready()), webhook.oddities())
            }
            SinkConfig::Kafka(kafka) => {
                let wrong = kafka.options("", Duration::ZERO, false).err();
                (wrong, is_used_here.then(|| kafka.unready()), kafka.oddities())
            }
            SinkConfig::Nats(nats) => (nats.options("").err(), is_used_here.then(|| nats.unready()), nats.oddities()),
            SinkConfig::Exec(exec) => (exec.check().err(), None, Vec::new()),
            SinkConfig::Stdout | SinkConfig::File(_) | SinkConfig::Blackhole => return,
        };
        let wrong = [wrong, unready].into_iter().flatten().flatten().collect();
        self.report(&["handlers", name], wrong, odd);
    }

    fn format(&mut self, name: &str, handler: &HandlerConfig) {
        let (errors, warnings) = handler.check_format();
        for message in errors {
            self.error(&["handlers", name, "template"], message);
        }
        for message in warnings {
            self.warn(&["handlers", name, "template"], message);
        }
        let needs_old =
            matches!(handler.options.format, FormatSettings::Patch | FormatSettings::MergePatch | FormatSettings::Diff);
        let has_no_old = |(entry, resource): &(&String, &ResourceConfig)| {
            needs_old && resource.cache == Cache::None && handler.takes(entry)
        };
        if let Some((entry, _)) = self.config.resources.iter().find(has_no_old) {
            let message = format!(
                "[resources.{entry}] has cache = \"none\", so the previous object of an update is unknown: its updates \
                 contain the whole object"
            );
            self.warn(&["handlers", name, "format"], message);
        }
    }

    /// Reports options without effect if there is only one delivery at a time.
    fn concurrency(&mut self, name: &str, handler: &HandlerConfig) {
        if handler.options.timeout.is_zero() {
            self.error(&["handlers", name, "timeout"], "expected more than \"0s\": every attempt would fail at once");
            return;
        }
        let kind: &str = (&handler.sink).into();
        let is_concurrent = handler.sink.is_concurrent();
        let why = if is_concurrent { "order = \"total\"".to_owned() } else { format!("type = \"{kind}\"") };
        let has_timeout = is_concurrent || matches!(handler.sink, SinkConfig::Exec(_));
        let keys: &[&str] = if has_timeout { &["concurrency"] } else { &["concurrency", "timeout"] };
        for key in keys {
            let path = ["handlers", name, key];
            let is_said = self.positions.is_set_itself(&KeyPath::new(&path));
            let is_idle = !is_concurrent || (handler.concurrency() == 1 && handler.options.concurrency > 1);
            if is_said && is_idle {
                self.warn(&path, format!("has no effect with {why}: there is one delivery at a time"));
            }
        }
    }

    /// Checks names of entries, and globs of names.
    fn entries(&mut self, keys: &[&str], patterns: &[String]) {
        for (i, pattern) in patterns.iter().enumerate() {
            let wanted = pattern.strip_prefix('!').unwrap_or(pattern);
            let at = format!("[{i}]");
            let keys = [keys, &[&*at]].concat();
            let names = self.names;
            let known = &names.resources;
            if wanted.contains(['*', '?', '[', '{']) {
                let glob = globset::Glob::new(wanted).map(|glob| glob.compile_matcher());
                let matches = known.iter().any(|known| glob.as_ref().is_ok_and(|glob| glob.is_match(known)));
                // If there is no entry, the default "*" needs no second message.
                if !matches && wanted != "*" {
                    self.warn(&keys, format!("{pattern:?} matches no entry of [resources]"));
                }
            } else if !known.contains(wanted) {
                let hint = self.suggestion(wanted, known.iter());
                self.error(&keys, format!("there is no [resources.{wanted}]; {hint}"));
            }
        }
    }

    fn takes(&mut self, name: &str, handler: &HandlerConfig, dead_letters: &HashSet<&str>) {
        self.entries(&["handlers", name, "resources"], &handler.resources);
        if handler.enabled && handler.resources.is_empty() && !dead_letters.contains(name) {
            self.warn(
                &["handlers", name, "resources"],
                "gets no events: it selects no resource, and no handler names it as `dead_letter`",
            );
        }
    }

    fn dead_letter(&mut self, name: &str, handler: &HandlerConfig) {
        let Some(target) = &handler.dead_letter else { return };
        let keys = ["handlers", name, "dead_letter"];
        if !self.names.handlers.contains(target) {
            let names = self.names;
            let others = names.handlers.iter().filter(|other| *other != name);
            let hint = match others.clone().next() {
                Some(_) => self.suggestion(target, others),
                None => "there is no other handler".to_owned(),
            };
            self.error(&keys, format!("there is no [handlers.{target}]; {hint}"));
        } else if self.config.handlers.get(target).is_some_and(|target| !target.enabled) && handler.enabled {
            self.warn(&keys, format!("[handlers.{target}] is not enabled: events that are given up will be dropped"));
        }
    }

    /// Reports each cycle once, at its first name.
    fn dead_letter_cycles(&mut self) {
        let config = self.config;
        let next = |name: &str| config.handlers.get(name)?.dead_letter.as_deref();
        let mut reached = HashSet::new();
        for start in config.handlers.keys() {
            let mut way: Vec<&str> =
                successors(Some(start.as_str()), |name| next(name)).take_while(|name| reached.insert(*name)).collect();
            let back = way.last().and_then(|last| next(last));
            let Some(begin) = way.iter().position(|name| Some(*name) == back) else { continue };
            let mut cycle = way.split_off(begin);
            let first = (0..cycle.len()).min_by_key(|at| cycle[*at]).unwrap_or(0);
            cycle.rotate_left(first);
            let shown = cycle.iter().chain([&cycle[0]]).copied().collect::<Vec<_>>().join(" → ");
            self.error(&["handlers", cycle[0], "dead_letter"], format!("dead letters form a cycle: {shown}"));
        }
    }

    fn tests(&mut self) {
        let (config, names) = (self.config, self.names);
        let mut titles = HashSet::new();
        for (i, TestCase { name, old, new, expect }) in config.tests.iter().enumerate() {
            let at = format!("[{i}]");
            if name.trim().is_empty() {
                self.error(&["tests", &at, "name"], "expected a short description of the test");
            } else if !titles.insert(name) {
                self.error(&["tests", &at, "name"], format!("another test is called {name:?}"));
            }
            if old.is_none() && new.is_none() {
                self.error(&["tests", &at], "nothing changes: expected `old`, `new`, or both");
            }
            if expect.is_empty() {
                self.error(&["tests", &at, "expect"], "nothing is tested: expected at least one handler");
            }
            for handler in expect.keys().filter(|handler| !names.handlers.contains(*handler)) {
                let hint = self.suggestion(handler, names.handlers.iter());
                self.error(&["tests", &at, "expect", handler], format!("there is no [handlers.{handler}]; {hint}"));
            }
        }
    }

    fn shared_files(&mut self) {
        let mut writers: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, handler) in self.config.handlers.iter().filter(|(_, handler)| handler.enabled) {
            let SinkConfig::File(file) = &handler.sink else { continue };
            if let Some(other) = writers.insert(&file.path, name) {
                self.error(
                    &["handlers", name, "path"],
                    format!("[handlers.{other}] also writes to this file: expected another file"),
                );
            }
        }
    }
}
