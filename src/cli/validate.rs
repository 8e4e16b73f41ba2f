//! `deltabus validate`: reports all errors of a configuration at once, also those that need the API server.

mod fields;

use std::{
    io::{self, Write as _},
    path::Path,
};

use crate::{
    config::{CheckedConfig, ConfigErrors, Finding, Loaded, OnMissing, ResourceConfig, TypePattern, ValueOrigin},
    discovery::{self, Conflict, Owned, Resolution, Selection, Unmatched},
    object::ResourceType,
    suggestion::nearest,
};
use clap::Args;
use serde_json::json;

use super::{
    ConfigArgs, Reported,
    report::{self, TextOutput},
    run,
    server::{Rights, ServerArgs},
};

/// Maximum number of types that a message names; further ones are only counted.
const NAMED_MAX: usize = 8;

/// Checks a configuration and reports all errors at once, with file, line, key and the nearest valid name.
///
/// The command asks the API server which types each `match` selects, which `fields` they do not support, which of them this
/// user may not list or watch, and which paths no object of these types has. It also tries to write to `[state] dir`. The exit
/// code is 2 if the configuration has errors, and 1 if the server cannot be reached.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of the command line")]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Skips the checks that need the API server.
    #[arg(long)]
    pub(crate) offline: bool,
    /// Validates as if on another machine, such as a pod: ignores the environment of this machine, and does not look for the
    /// secrets and directories that the configuration names.
    #[arg(long)]
    pub(crate) elsewhere: bool,
    /// Treats warnings and notes, such as a `match` without a served type, as errors.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Accepts handlers of type `exec`, as `deltabus run --allow-exec` does.
    #[arg(long)]
    pub(crate) allow_exec: bool,
    /// Output format. Text has findings on stderr, one per line, and the types of each `match` on stdout. JSON is one document
    /// on stdout: `valid`, the numbers of `errors`, `warnings` and `notes`, and `findings`. Each finding has `level` and
    /// `message`. Its `key`, `file`, `line`, `column`, `variable` and `excerpt` can be `null`.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: TextOutput,
}

/// Checks a configuration.
pub(crate) async fn validate(args: &ValidateArgs) -> anyhow::Result<()> {
    let CheckedConfig { loaded, errors } = args.config.check(args.elsewhere);
    let is_complete = errors.is_empty();
    let ConfigErrors { errors, more, warnings } = ConfigErrors::new(errors, loaded.warnings.clone());
    let mut verdict = Verdict { errors, more, warnings, ..Verdict::default() };
    verdict.errors.extend(found_here(args, &loaded));
    let is_fine_here = verdict.errors.is_empty();
    let mut asked = Ok(());
    if !args.offline && !loaded.config.resources.is_empty() {
        asked = ask_the_server(&loaded, is_complete, &mut verdict).await;
    }
    if let Some(error) = asked.as_ref().err().filter(|_| !is_fine_here) {
        let message = format!("the checks that need the API server were skipped: {error:#}");
        verdict.notes.push(Finding::new(ValueOrigin::Nowhere, String::new(), message));
        asked = Ok(());
    }
    if is_fine_here && asked.is_ok() && args.output == TextOutput::Text {
        verdict.print_types(&loaded)?;
    }
    let handlers = loaded.config.handlers.values().filter(|handler| handler.enabled).count();
    let resources = report::counted(loaded.config.resources.len(), "resource");
    let absent = if verdict.absent > 0 {
        format!("; {} not served now", report::counted(verdict.absent, "pattern"))
    } else {
        String::new()
    };
    let mut valid = format!("{resources}, {}{absent}", report::counted(handlers, "handler"));
    if args.offline {
        let fields = if fields::names_fields(&loaded) { ", and the fields of objects" } else { "" };
        valid += "; not checked without the API server: types, rights, namespaces";
        valid += fields;
    }
    if args.strict {
        verdict.errors.append(&mut verdict.warnings);
        verdict.errors.append(&mut verdict.notes);
    }
    let is_valid = verdict.errors.is_empty();
    match args.output {
        TextOutput::Json => verdict.print_json(asked.is_ok())?,
        TextOutput::Text => verdict.tell(asked.is_ok().then_some(&valid)),
    }
    asked?;
    if is_valid { Ok(()) } else { Err(Reported.into()) }
}

/// Returns the errors that are found without a server.
fn found_here(args: &ValidateArgs, loaded: &Loaded) -> Vec<Finding> {
    let mut errors = missing_files(loaded);
    if !args.allow_exec {
        errors.extend(run::programs(loaded));
    }
    let dir = loaded.config.state.dir.as_deref().filter(|_| !args.elsewhere);
    errors.extend(dir.and_then(state_problem).map(|problem| loaded.finding(&["state", "dir"], problem)));
    errors
}

/// Tries to write to a state directory. If it does not exist, tries its nearest existing parent directory. Returns the problem, if
/// there is one. Leaves no file behind.
fn state_problem(dir: &Path) -> Option<String> {
    let place = dir.ancestors().find(|place| place.as_os_str().is_empty() || place.exists())?;
    let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
    let error = if place.is_dir() { tempfile::tempfile_in(place).err()? } else { io::ErrorKind::NotADirectory.into() };
    Some(if place == dir {
        format!("cannot write to {}: {error}", dir.display())
    } else {
        format!("cannot create {} in {}: {error}", dir.display(), place.display())
    })
}

/// Returns the missing files of `[[tests]]`.
fn missing_files(loaded: &Loaded) -> Vec<Finding> {
    let mut missing = Vec::new();
    for place in 0..loaded.config.tests.len() {
        for (key, path) in ["old", "new"].into_iter().zip(loaded.files_of_test(place)) {
            if let Some(path) = path.filter(|path| !path.is_file()) {
                let message = format!("file {} does not exist", path.display());
                missing.push(loaded.finding(&["tests", &format!("[{place}]"), key], message));
            }
        }
    }
    missing
}

/// Adds the findings of the checks that need the API server. Checks of types that are selected together are skipped if a part of the
/// configuration has errors, because the selection then lacks types.
async fn ask_the_server(loaded: &Loaded, is_complete: bool, verdict: &mut Verdict) -> anyhow::Result<()> {
    let hint = " (use --offline to skip the checks that need it)";
    let server = ServerArgs::of(&loaded.config.kube, hint).await?;
    let (_, selection) = server.select(&loaded.config).await?;
    let entries = &loaded.config.resources;
    let types: Vec<_> = selection.owned.iter().map(|owned| (&owned.resource, entries.get(&owned.entry))).collect();
    verdict.claims = selection.owned.iter().cloned().zip(server.rights(&types).await).collect();
    for Unmatched { entry, pattern, resolution } in &selection.unmatched {
        verdict.unmatched(loaded, entry, *pattern, resolution);
    }
    verdict.overlaps(loaded, &selection);
    if is_complete {
        verdict.excludes(loaded, &selection);
        verdict.namespaces_of_nothing(loaded);
    }
    verdict.left_to_others(loaded, &selection);
    verdict.refusals(loaded);
    verdict.unsupported_fields(loaded, &server).await;
    verdict.absent_namespaces(loaded, &server).await;
    let fields::FieldFindings { warnings, notes } = fields::check(loaded, &server.client, &selection.owned).await;
    verdict.warnings.extend(warnings);
    verdict.notes.extend(notes);
    Ok(())
}

/// Findings, and the types of each entry.
#[derive(Default)]
struct Verdict {
    errors: Vec<Finding>,
    /// Number of errors that are not listed.
    more: usize,
    warnings: Vec<Finding>,
    notes: Vec<Finding>,
    /// Number of patterns of types that the server does not serve.
    absent: usize,
    /// Each type that an entry watches, with this user's rights on it.
    claims: Vec<(Owned, Rights)>,
}

fn finding(loaded: &Loaded, entry: &str, pattern: usize, message: String) -> Finding {
    loaded.finding(&["resources", entry, "match", &format!("[{pattern}]")], message)
}

impl Verdict {
    fn unmatched(&mut self, loaded: &Loaded, name: &str, pattern: usize, resolution: &Resolution) {
        let (text, why) = (loaded.config.pattern(name, pattern), resolution.why_not());
        let on_missing = loaded.config.resources.get(name).map(|entry| entry.options.on_missing);
        let (findings, message) = match (resolution, on_missing) {
            // A type with a similar name is probably the one that is meant.
            (Resolution::Missing { suggestions, .. }, Some(OnMissing::Wait)) if !suggestions.is_empty() => {
                (&mut self.warnings, format!("the engine will wait for \"{text}\": {why}"))
            }
            (Resolution::Missing { .. }, Some(OnMissing::Wait)) | (Resolution::Empty { .. }, _) => {
                (&mut self.notes, format!("the engine will wait for \"{text}\": {why}"))
            }
            (Resolution::Missing { .. }, Some(OnMissing::Warn)) => {
                (&mut self.warnings, format!("\"{text}\" is left out: {why}"))
            }
            (Resolution::Excluded { .. }, _) => (&mut self.warnings, format!("\"{text}\": {why}")),
            _ => (&mut self.errors, format!("\"{text}\": {why}")),
        };
        self.absent += usize::from(matches!(resolution, Resolution::Missing { .. }));
        findings.push(finding(loaded, name, pattern, message));
    }

    /// Reports types that several patterns select: an error if the patterns belong to different entries, else a warning.
    /// Errors are reported once for each pair of patterns.
    fn overlaps(&mut self, loaded: &Loaded, selection: &Selection) {
        for Conflict { resource, first, second } in &selection.repeated {
            let [other, pattern] = [first, second].map(|place| loaded.config.pattern(&place.entry, place.pattern));
            let message = format!("\"{pattern}\" and \"{other}\" both select {resource}: remove one of them");
            self.warnings.push(finding(loaded, &second.entry, second.pattern, message));
        }
        let is_same = |one: &Conflict, other: &Conflict| (&one.first, &one.second) == (&other.first, &other.second);
        for same in groups(&selection.conflicts, is_same) {
            let Conflict { first, second, .. } = same[0];
            let types: Vec<_> = same.iter().map(|conflict| &conflict.resource).collect();
            let [other, pattern] = [first, second].map(|place| loaded.config.pattern(&place.entry, place.pattern));
            let message = format!(
                "\"{pattern}\" selects {}, like \"{other}\" in [resources.{}]: a type belongs to one entry, or to several \
                 entries with disjoint `namespaces`",
                listed(&types),
                first.entry
            );
            self.errors.push(finding(loaded, &second.entry, second.pattern, message));
        }
    }

    fn excludes(&mut self, loaded: &Loaded, selection: &Selection) {
        for place in &selection.unused_excludes {
            let text = loaded.config.resources.get(&place.entry).and_then(|entry| entry.exclude.get(place.pattern));
            let message = format!(
                "\"{}\" excludes nothing: `match` selects no such type now",
                text.map_or("", TypePattern::as_str)
            );
            let keys = ["resources", &place.entry, "exclude", &format!("[{}]", place.pattern)];
            self.warnings.push(loaded.finding(&keys, message));
        }
    }

    /// Reports `namespaces` and `namespace_selector` of entries with cluster-scoped types, on which these options have no effect.
    fn namespaces_of_nothing(&mut self, loaded: &Loaded) {
        for (name, resource) in &loaded.config.resources {
            let types = self.claims.iter().filter(|(owned, _)| owned.entry == *name).map(|(owned, _)| &owned.resource);
            let (within, without): (Vec<_>, Vec<_>) = types.partition(|resource| resource.namespaced);
            if without.is_empty() {
                continue;
            }
            let (findings, message) = if within.is_empty() {
                let message = "has no effect: no type of this entry has namespaces";
                (&mut self.warnings, message.to_owned())
            } else {
                let message = format!("has no effect on types without namespaces: {}", listed(&without));
                (&mut self.notes, message)
            };
            let by_name = (!resource.namespaces.is_all()).then_some("namespaces");
            let by_label = (!resource.namespace_selector.is_empty()).then_some("namespace_selector");
            for key in by_name.into_iter().chain(by_label) {
                findings.push(loaded.finding(&["resources", name, key], message.clone()));
            }
        }
    }

    /// Reports patterns of namespaces that match no existing namespace. The API server does not report them: it answers a list in a
    /// missing namespace with an empty list.
    async fn absent_namespaces(&mut self, loaded: &Loaded, server: &ServerArgs) {
        let mut narrowed = loaded.config.resources.iter().filter(|(_, entry)| !entry.namespaces.is_all()).peekable();
        let Some(&(first, _)) = narrowed.peek() else { return };
        let there = match discovery::namespaces(&server.client).await {
            Ok(Some(there)) => there,
            Ok(None) => return,
            Err(error) => {
                let message = format!("cannot check which namespaces exist: {error}");
                self.notes.push(loaded.finding(&["resources", first, "namespaces"], message));
                return;
            }
        };
        for (name, entry) in narrowed {
            for (place, pattern, is_name) in entry.namespaces.without_match(&there) {
                let is_exclude = entry.namespaces.patterns()[place].starts_with('!');
                let meant = nearest(pattern, there.iter().map(String::as_str));
                let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
                let effect = if is_exclude { "nothing is left out" } else { "it is watched once it exists" };
                let (findings, message) = if is_name {
                    (&mut self.warnings, format!("namespace `{pattern}` does not exist now; {effect}{meant}"))
                } else {
                    (&mut self.notes, format!("no namespace matches `{pattern}` now"))
                };
                let keys = ["resources", name, "namespaces", &format!("[{place}]")];
                findings.push(loaded.finding(&keys, message));
            }
        }
    }

    /// Reports each wildcard that selects no type because more specific patterns select all types that it matches.
    fn left_to_others(&mut self, loaded: &Loaded, selection: &Selection) {
        for (name, entry) in &loaded.config.resources {
            for (position, pattern) in entry.patterns.iter().enumerate() {
                let is_here = |entry: &str, pattern: usize| (entry, pattern) == (name, position);
                let has_types = self.claims.iter().any(|(owned, _)| is_here(&owned.entry, owned.pattern));
                let told = selection.unmatched.iter().any(|unmatched| is_here(&unmatched.entry, unmatched.pattern))
                    || selection.conflicts.iter().any(|c| is_here(&c.second.entry, c.second.pattern));
                if pattern.pattern().is_wildcard() && !has_types && !told {
                    let message =
                        format!("\"{pattern}\" selects no type now: more specific patterns select all its types");
                    self.notes.push(finding(loaded, name, position, message));
                }
            }
        }
    }

    /// Reports missing rights. Types that one pattern selects are reported together if they lack the same rights.
    fn refusals(&mut self, loaded: &Loaded) {
        let is_same = |(one, one_rights): &(Owned, Rights), (other, other_rights): &(Owned, Rights)| {
            let [one_refused, other_refused] = [one_rights, other_rights].map(|it| (it.verbs(), it.namespaces()));
            (&one.entry, one.pattern, one_refused) == (&other.entry, other.pattern, other_refused)
        };
        for same in groups(&self.claims, is_same) {
            let (owned, rights) = same[0];
            if !rights.refused.is_empty() {
                let types: Vec<_> = same.iter().map(|(owned, _)| &owned.resource).collect();
                let name = loaded.config.resources.get(&owned.entry).and_then(ResourceConfig::object_name);
                let message = refusal(&types, name.as_deref(), rights);
                self.warnings.push(finding(loaded, &owned.entry, owned.pattern, message));
            }
        }
        let unknown = self.claims.iter().find_map(|(owned, rights)| Some((owned, rights.unknown.as_ref()?)));
        if let Some((owned, why)) = unknown {
            let message = format!("cannot check the rights to list and watch types: {why}");
            self.notes.push(finding(loaded, &owned.entry, owned.pattern, message));
        }
    }

    /// Reports each `fields` selector that some types of its entry do not support.
    async fn unsupported_fields(&mut self, loaded: &Loaded, server: &ServerArgs) {
        for (name, entry) in &loaded.config.resources {
            // Each check is a request per type. A selector of only `metadata.name` and `metadata.namespace` needs no check: every
            // type supports these fields.
            let keys = entry.fields.split(',').filter_map(|term| term.split(['=', '!']).next());
            if keys.map(str::trim).all(|key| matches!(key, "" | "metadata.name" | "metadata.namespace")) {
                continue;
            }
            let namespace = entry.namespaces.names().and_then(|names| names.first().copied());
            let mut refusing: Vec<&ResourceType> = Vec::new();
            let mut said = String::new();
            for (owned, _) in self.claims.iter().filter(|(owned, _)| owned.entry == *name) {
                let refused = discovery::refused_fields(&server.client, &owned.resource, namespace, &entry.fields);
                if let Some(problem) = refused.await {
                    refusing.push(&owned.resource);
                    said = problem;
                }
            }
            if !refusing.is_empty() {
                let message = format!("the server cannot select {} by these fields: {said}", listed(&refusing));
                self.errors.push(loaded.finding(&["resources", name, "fields"], message));
            }
        }
    }

    /// Prints all findings to stderr. If there are no errors, then prints the summary `valid`. If there are errors, then prints
    /// how many errors and warnings there are.
    fn tell(self, valid: Option<&String>) {
        report::notes(&self.notes);
        if self.errors.is_empty() {
            report::warnings(&self.warnings);
            if let Some(valid) = valid {
                report::note(&format!("the configuration is valid: {valid}"));
            }
            return;
        }
        let mut errors = ConfigErrors::new(self.errors, self.warnings);
        errors.more += self.more;
        report::errors(&errors);
    }

    /// Prints all findings to stdout; `is_complete` is set if all checks were made.
    fn print_json(&self, is_complete: bool) -> io::Result<()> {
        let levels = [("error", &self.errors), ("warning", &self.warnings), ("note", &self.notes)];
        let findings =
            levels.into_iter().flat_map(|(level, findings)| findings.iter().map(move |it| as_json(level, it)));
        let document = json!({
            "valid": is_complete && self.errors.is_empty(),
            "errors": self.errors.len() + self.more,
            "warnings": self.warnings.len(),
            "notes": self.notes.len(),
            "findings": findings.collect::<Vec<_>>(),
        });
        report::print_json(&document)
    }

    /// Prints one line for each pattern. The line shows the type that the pattern selects, or the number of types for a wildcard.
    fn print_types(&self, loaded: &Loaded) -> io::Result<()> {
        let mut rows = vec![["ENTRY", "MATCH", "TYPE", "API VERSION", "KIND", "ACCESS", "AT"].map(str::to_owned)];
        for (name, entry) in &loaded.config.resources {
            for (position, pattern) in entry.patterns.iter().enumerate() {
                let is_of = |(owned, _): &&(Owned, Rights)| (&owned.entry, owned.pattern) == (name, position);
                let claims: Vec<_> = self.claims.iter().filter(is_of).collect();
                let [resource, version, kind, access] = match claims[..] {
                    [] => continue,
                    [(Owned { resource, .. }, rights)] if !pattern.pattern().is_wildcard() => {
                        [resource.qualified_name(), resource.api_version(), resource.kind.clone(), rights.cell()]
                    }
                    _ => {
                        let count = report::counted(claims.len(), "type");
                        [count, String::new(), String::new(), access_of_many(&claims)]
                    }
                };
                let at = finding(loaded, name, position, String::new()).origin.to_string();
                rows.push([name.clone(), pattern.to_string(), resource, version, kind, access, at]);
            }
        }
        if rows.len() == 1 {
            return Ok(());
        }
        io::stdout().lock().write_all(report::table(&rows).as_bytes())
    }
}

/// Puts equal items into one group. The groups are in the order of their first items.
fn groups<T>(items: &[T], is_same: impl Fn(&T, &T) -> bool) -> Vec<Vec<&T>> {
    let mut groups: Vec<Vec<&T>> = Vec::new();
    for item in items {
        match groups.iter_mut().find(|group| is_same(group[0], item)) {
            Some(group) => group.push(item),
            None => groups.push(vec![item]),
        }
    }
    groups
}

fn as_json(level: &str, finding: &Finding) -> serde_json::Value {
    let Finding { origin, key, message, excerpt } = finding;
    let (file, line, column, variable) = match origin {
        // `validate` has no flag that sets an option.
        ValueOrigin::Nowhere | ValueOrigin::Flag(_) => (None, None, None, None),
        ValueOrigin::File { file, line, column, .. } => (Some(file), Some(line), Some(column), None),
        ValueOrigin::Unreadable(file) => (Some(file), None, None, None),
        ValueOrigin::Environment(name) => (None, None, None, Some(name)),
    };
    json!({
        "level": level,
        "key": (!key.is_empty()).then_some(key),
        "file": file.map(AsRef::<str>::as_ref),
        "line": line,
        "column": column,
        "variable": variable.map(AsRef::<str>::as_ref),
        "message": message,
        "excerpt": excerpt,
    })
}

/// Summarizes the rights on the types of a wildcard: `list, watch`, or `no watch: 2 types`.
fn access_of_many(types: &[&(Owned, Rights)]) -> String {
    let mut cells: Vec<_> = types.iter().map(|(_, rights)| rights.cell()).collect();
    cells.sort();
    let groups: Vec<_> = cells.chunk_by(|a, b| a == b).collect();
    if let [group] = groups[..] {
        return group[0].clone();
    }
    let odd = groups.iter().filter(|group| group[0] != "list, watch");
    odd.map(|group| format!("{}: {}", group[0], report::counted(group.len(), "type"))).collect::<Vec<_>>().join(", ")
}

/// Lists types: `pods`, or `pods, services and 7 more types`.
fn listed(types: &[&ResourceType]) -> String {
    let names: Vec<String> = types.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match types.len().saturating_sub(NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {}", names.join(", "), report::counted(more, "more type")),
    }
}

/// Describes the rights that this user lacks on `types`, and how to grant them. `name` is the name of the only watched object, if the
/// entry selects one. `rights` are the rights on each of the types.
fn refusal(types: &[&ResourceType], name: Option<&str>, rights: &Rights) -> String {
    let verbs = rights.verbs();
    let reason = rights.refused.iter().map(|refused| &*refused.reason).find(|reason| !reason.is_empty());
    let reason = reason.filter(|_| types.len() == 1).map(|reason| format!(" ({reason})")).unwrap_or_default();
    let namespaces = rights.namespaces();
    let (place, role) = if namespaces.is_empty() {
        (String::new(), "a ClusterRole")
    } else {
        (format!(" in {}", namespaces.join(", ")), "a Role there")
    };
    let grant = match types {
        [ResourceType { group, plural, .. }] => {
            let names = name.map(|name| format!("resourceNames [{name:?}], ")).unwrap_or_default();
            format!(" with apiGroups [{group:?}], resources [{plural:?}], {names}verbs {verbs:?}, and its binding")
        }
        _ => " and its binding".to_owned(),
    };
    format!(
        "this user may not {} {}{place}{reason}: grant it by {role}{grant}; `deltabus rbac` prints all that is needed",
        verbs.join(" and "),
        listed(types),
    )
}

#[cfg(test)]
mod tests {
    use super::{super::server::Refused, *};

    fn resource(group: &str, plural: &str) -> ResourceType {
        let [group, plural] = [group, plural].map(str::to_owned);
        ResourceType { group, version: "v1".to_owned(), kind: String::new(), plural, namespaced: true }
    }

    fn refused(verb: &'static str, namespace: Option<&str>) -> Refused {
        Refused { verb, namespace: namespace.map(str::to_owned), reason: "no rule".to_owned() }
    }

    #[test]
    fn refusal_names_verb_type_place_and_grant() {
        let (pods, deployments) = (resource("", "pods"), resource("apps", "deployments"));
        let rights = |refused: Vec<Refused>| Rights { refused, unknown: None };
        assert_eq!(
            refusal(&[&pods], None, &rights(vec![refused("list", None), refused("watch", None)])),
            "this user may not list and watch pods (no rule): grant it by a ClusterRole with apiGroups [\"\"], resources \
             [\"pods\"], verbs [\"list\", \"watch\"], and its binding; `deltabus rbac` prints all that is needed"
        );
        assert_eq!(
            refusal(&[&deployments], None, &rights(vec![refused("watch", Some("a")), refused("watch", Some("b"))])),
            "this user may not watch deployments.apps in a, b (no rule): grant it by a Role there with apiGroups \
             [\"apps\"], resources [\"deployments\"], verbs [\"watch\"], and its binding; `deltabus rbac` prints all that \
             is needed"
        );
        let many = vec![&pods; NAMED_MAX + 2];
        let named = refusal(&[&pods], Some("x"), &rights(vec![refused("list", Some("a"))]));
        assert!(named.contains("resources [\"pods\"], resourceNames [\"x\"], verbs [\"list\"]"), "{named}");
        let said = refusal(&many, None, &rights(vec![refused("list", None)]));
        assert!(said.contains("pods, pods and 2 more types: grant it by a ClusterRole and its binding"), "{said}");
    }
}
