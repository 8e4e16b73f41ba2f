//! `deltabus validate`: every mistake of a configuration at once, with what the API server has to say about it.

use std::{
    io::{self, Write as _},
    path::Path,
};

use clap::{Args, ValueEnum};
use deltabus::{
    config::{self, ConfigErrors, Finding, Loaded, OnMissing, ResourceConfig, TypePattern, ValueOrigin},
    discovery::{self, Catalog, Conflict, Owned, Resolution, Selection, Unmatched},
    object::ResourceType,
};
use serde_json::json;

use super::{
    ConfigArgs, Reported, report, run,
    server::{Rights, ServerArgs},
};

/// How many types are named where many are at fault.
const NAMED_MAX: usize = 8;

/// Checks a configuration: every mistake at once, with file, line, key and the nearest right name.
///
/// Asks the API server what each `match` means there, which `fields` it cannot select by, and what this user may not list
/// or watch. Tries to write to `[state] dir`. Exit code 2 where the configuration is wrong, 1 where the server cannot be
/// asked.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of the command line")]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Do not ask the API server.
    #[arg(long)]
    pub(crate) offline: bool,
    /// Checks for another machine, such as a pod: leaves out this environment, and does not look for the secrets and
    /// directories that the configuration names.
    #[arg(long)]
    pub(crate) elsewhere: bool,
    /// Treats warnings and notes as errors, such as a `match` that no served type answers to.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Accepts handlers of type `exec`: the configuration is for `deltabus run --allow-exec`.
    #[arg(long)]
    pub(crate) allow_exec: bool,
    /// Form of the findings.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: ValidateOutput,
}

/// Form of the findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ValidateOutput {
    /// Findings on stderr, a line each; what each `match` means on stdout.
    #[default]
    Text,
    /// One JSON document on stdout: `valid`, `errors`, `warnings`, `notes` (how many), and `findings` with `level`, `key`,
    /// `file`, `line`, `column`, `variable`, `message`, `excerpt`; `null` where there is none.
    Json,
}

/// Checks a configuration.
pub(crate) fn validate(args: &ValidateArgs) -> anyhow::Result<()> {
    let mut verdict = Verdict::default();
    let (mut valid, mut asked) = (String::new(), Ok(()));
    let loaded =
        if args.elsewhere { args.config.load_for_elsewhere().map(|(loaded, _)| loaded) } else { args.config.load() };
    match loaded {
        Ok(loaded) => {
            verdict.errors = found_here(args, &loaded);
            verdict.warnings.clone_from(&loaded.warnings);
            if verdict.errors.is_empty() && !args.offline {
                asked = ask_the_server(&loaded, &mut verdict);
            }
            if asked.is_ok() && args.output == ValidateOutput::Text {
                verdict.print_types(&loaded)?;
            }
            valid = counts(&loaded);
        }
        Err(ConfigErrors { errors, more, warnings }) => {
            (verdict.errors, verdict.more, verdict.warnings) = (errors, more, warnings);
        }
    }
    if args.strict {
        verdict.errors.append(&mut verdict.warnings);
        verdict.errors.append(&mut verdict.notes);
    }
    let is_valid = verdict.errors.is_empty();
    match args.output {
        ValidateOutput::Json => verdict.print_json(asked.is_ok())?,
        ValidateOutput::Text => verdict.tell(asked.is_ok().then_some(&valid)),
    }
    asked?;
    if is_valid { Ok(()) } else { Err(Reported.into()) }
}

/// Returns the errors that need no server.
fn found_here(args: &ValidateArgs, loaded: &Loaded) -> Vec<Finding> {
    let mut errors = missing_files(loaded);
    if !args.allow_exec {
        errors.extend(run::programs(loaded));
    }
    let dir = loaded.config.state.dir.as_deref().filter(|_| !args.elsewhere);
    errors.extend(dir.and_then(state_problem).map(|problem| loaded.finding(&["state", "dir"], problem)));
    errors
}

/// Tries to write to a state directory, or to the directory that it would be made in; leaves nothing there.
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

fn counts(loaded: &Loaded) -> String {
    let handlers = loaded.config.handlers.values().filter(|handler| handler.enabled).count();
    let resources = report::counted(loaded.config.resources.len(), "resource");
    format!("{resources}, {}", report::counted(handlers, "handler"))
}

/// Returns the files of `[[tests]]` that are not there.
fn missing_files(loaded: &Loaded) -> Vec<Finding> {
    let mut missing = Vec::new();
    for place in 0..loaded.config.tests.len() {
        for (key, path) in ["old", "new"].into_iter().zip(loaded.files_of_test(place)) {
            if let Some(path) = path.filter(|path| !path.is_file()) {
                let message = format!("there is no file {}", path.display());
                missing.push(loaded.finding(&["tests", &format!("[{place}]"), key], message));
            }
        }
    }
    missing
}

fn ask_the_server(loaded: &Loaded, verdict: &mut Verdict) -> anyhow::Result<()> {
    let server = ServerArgs::of(&loaded.config.kube, ", --offline checks without it")?;
    verdict.judge(loaded, &server.catalog()?);
    let types: Vec<_> =
        verdict.claims.iter().map(|claim| (&claim.owned.resource, entry(loaded, &claim.owned.entry))).collect();
    let rights = server.rights(&types)?;
    for (claim, rights) in verdict.claims.iter_mut().zip(rights) {
        claim.rights = rights;
    }
    verdict.refusals(loaded);
    verdict.unsupported_fields(loaded, &server)?;
    verdict.absent_namespaces(loaded, &server);
    Ok(())
}

/// Findings, and the types that each entry has.
#[derive(Default)]
struct Verdict {
    errors: Vec<Finding>,
    /// Number of errors that are not listed.
    more: usize,
    warnings: Vec<Finding>,
    notes: Vec<Finding>,
    claims: Vec<Claim>,
}

/// A type that an entry watches.
struct Claim {
    owned: Owned,
    rights: Rights,
}

impl Claim {
    fn is_of(&self, entry: &str, pattern: usize) -> bool {
        self.owned.entry == entry && self.owned.pattern == pattern
    }
}

fn entry<'a>(loaded: &'a Loaded, name: &str) -> Option<&'a ResourceConfig> {
    loaded.config.resources.get(name)
}

fn finding(loaded: &Loaded, entry: &str, pattern: usize, message: String) -> Finding {
    loaded.finding(&["resources", entry, "match", &format!("[{pattern}]")], message)
}

impl Verdict {
    /// Compares every pattern with the types that are served.
    fn judge(&mut self, loaded: &Loaded, catalog: &Catalog) {
        let selection = discovery::select(catalog, &loaded.config.wanted());
        let claim = |owned: &Owned| Claim { owned: owned.clone(), rights: Rights::default() };
        self.claims = selection.owned.iter().map(claim).collect();
        for Unmatched { entry, pattern, resolution } in &selection.unmatched {
            self.unmatched(loaded, entry, *pattern, resolution);
        }
        self.overlaps(loaded, &selection);
        self.excludes(loaded, &selection);
        self.namespaces_of_nothing(loaded);
        self.left_to_others(loaded, &selection);
    }

    fn unmatched(&mut self, loaded: &Loaded, name: &str, pattern: usize, resolution: &Resolution) {
        let (text, why) = (loaded.config.pattern(name, pattern), resolution.why_not());
        let finding = |message: String| finding(loaded, name, pattern, message);
        let on_missing = entry(loaded, name).map(|entry| entry.options.on_missing);
        match (resolution, on_missing) {
            (Resolution::Missing { .. }, Some(OnMissing::Wait)) | (Resolution::Empty { .. }, _) => {
                self.notes.push(finding(format!("\"{text}\" will be waited for: {why}")));
            }
            (Resolution::Missing { .. }, Some(OnMissing::Warn)) => {
                self.warnings.push(finding(format!("\"{text}\" is left out: {why}")));
            }
            (Resolution::Excluded { .. }, _) => self.warnings.push(finding(format!("\"{text}\": {why}"))),
            _ => self.errors.push(finding(format!("\"{text}\": {why}"))),
        }
    }

    /// Tells the types that several patterns name (D12), once for two patterns: a mistake between entries, odd within
    /// one.
    fn overlaps(&mut self, loaded: &Loaded, selection: &Selection) {
        for Conflict { resource, first, second } in &selection.repeated {
            let [other, pattern] = [first, second].map(|place| loaded.config.pattern(&place.entry, place.pattern));
            let message = format!("\"{pattern}\" is {resource}, as \"{other}\" is: one of them is enough");
            self.warnings.push(finding(loaded, &second.entry, second.pattern, message));
        }
        let mut told: Vec<&Conflict> = Vec::new();
        for conflict in &selection.conflicts {
            let Conflict { first, second, .. } = conflict;
            let is_same = |other: &&Conflict| other.first == *first && other.second == *second;
            if told.iter().any(is_same) {
                continue;
            }
            told.push(conflict);
            let types: Vec<_> = selection.conflicts.iter().filter(is_same).map(|other| &other.resource).collect();
            let [other, pattern] = [first, second].map(|place| loaded.config.pattern(&place.entry, place.pattern));
            let rule = "a type belongs to one entry, or to several whose `namespaces` have none in common";
            let message = format!(
                "\"{pattern}\" is {}, as \"{other}\" in [resources.{}] is: {rule}",
                listed(&types),
                first.entry
            );
            self.errors.push(finding(loaded, &second.entry, second.pattern, message));
        }
    }

    fn excludes(&mut self, loaded: &Loaded, selection: &Selection) {
        for place in &selection.unused_excludes {
            let text = entry(loaded, &place.entry).and_then(|entry| entry.exclude.get(place.pattern));
            let message = format!(
                "\"{}\" keeps nothing out: `match` means no such type now",
                text.map_or("", TypePattern::as_str)
            );
            let keys = ["resources", &place.entry, "exclude", &format!("[{}]", place.pattern)];
            self.warnings.push(loaded.finding(&keys, message));
        }
    }

    /// Namespaces say nothing where all types are without.
    fn namespaces_of_nothing(&mut self, loaded: &Loaded) {
        for (name, resource) in &loaded.config.resources {
            let types = self.claims.iter().filter(|claim| claim.owned.entry == *name);
            let types = types.map(|claim| &claim.owned.resource);
            let (within, without): (Vec<_>, Vec<_>) = types.partition(|resource| resource.namespaced);
            if without.is_empty() {
                continue;
            }
            let said = [
                ("namespaces", !resource.namespaces.is_all()),
                ("namespace_selector", !resource.namespace_selector.is_empty()),
            ];
            for (key, _) in said.into_iter().filter(|(_, said)| *said) {
                let keys = ["resources", name, key];
                if within.is_empty() {
                    let message = "no type of this entry has namespaces: all their objects are shown";
                    self.warnings.push(loaded.finding(&keys, message));
                } else {
                    let message = format!("types without namespaces are shown in full: {}", listed(&without));
                    self.notes.push(loaded.finding(&keys, message));
                }
            }
        }
    }

    /// Tells the patterns of namespaces that mean none of those there are. A namespace that is not there has no objects, and
    /// the server says no more about it.
    fn absent_namespaces(&mut self, loaded: &Loaded, server: &ServerArgs) {
        let narrowed = loaded.config.resources.iter().filter(|(_, entry)| !entry.namespaces.is_all());
        let narrowed: Vec<_> = narrowed.collect();
        let Some((first, _)) = narrowed.first() else { return };
        let there = match server.namespaces() {
            Ok(Some(there)) => there,
            Ok(None) => return,
            Err(error) => {
                let message = format!("which of them there are is not known: {error:#}");
                self.notes.push(loaded.finding(&["resources", first, "namespaces"], message));
                return;
            }
        };
        for (name, entry) in narrowed {
            for (place, pattern, is_name) in entry.namespaces.without_match(&there) {
                let finding =
                    |message| loaded.finding(&["resources", name, "namespaces", &format!("[{place}]")], message);
                let is_exclude = entry.namespaces.patterns()[place].starts_with('!');
                let meant = config::nearest(pattern, there.iter().map(String::as_str));
                let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
                match (is_name, is_exclude) {
                    (true, false) => self.warnings.push(finding(format!(
                        "there is no namespace `{pattern}` now, it is watched once there is{meant}"
                    ))),
                    (true, true) => self
                        .warnings
                        .push(finding(format!("there is no namespace `{pattern}` now that could be left out{meant}"))),
                    (false, _) => self.notes.push(finding(format!("no namespace is like `{pattern}` now"))),
                }
            }
        }
    }

    /// Names the wildcards all of whose types closer patterns have.
    fn left_to_others(&mut self, loaded: &Loaded, selection: &Selection) {
        for (name, entry) in &loaded.config.resources {
            for (position, pattern) in entry.patterns.iter().enumerate() {
                let is_here = |entry: &str, pattern: usize| (entry, pattern) == (name, position);
                let has_types = self.claims.iter().any(|claim| claim.is_of(name, position));
                let told = selection.unmatched.iter().any(|unmatched| is_here(&unmatched.entry, unmatched.pattern))
                    || selection.conflicts.iter().any(|c| is_here(&c.second.entry, c.second.pattern));
                if pattern.pattern().is_wildcard() && !has_types && !told {
                    let message = format!("\"{pattern}\" brings no type now: closer patterns have all that it means");
                    self.notes.push(finding(loaded, name, position, message));
                }
            }
        }
    }

    /// Tells what this user may not do, once for a pattern and what is refused.
    fn refusals(&mut self, loaded: &Loaded) {
        let key = |claim: &Claim| {
            let Claim { owned: Owned { entry, pattern, .. }, rights } = claim;
            let namespaces: Vec<_> = rights.namespaces().into_iter().map(str::to_owned).collect();
            (entry.clone(), *pattern, rights.verbs(), namespaces)
        };
        let mut told = Vec::new();
        for claim in self.claims.iter().filter(|claim| !claim.rights.refused.is_empty()) {
            let what = key(claim);
            if told.contains(&what) {
                continue;
            }
            let same = self.claims.iter().filter(|other| key(other) == what);
            let types: Vec<_> = same.map(|other| &other.owned.resource).collect();
            let message = refusal(&types, &claim.rights);
            self.warnings.push(finding(loaded, &what.0, what.1, message));
            told.push(what);
        }
        let unknown = self.claims.iter().find_map(|claim| Some((&claim.owned, claim.rights.unknown.as_ref()?)));
        if let Some((owned, why)) = unknown {
            let message = format!("whether it may be listed and watched is not known: {why}");
            self.notes.push(finding(loaded, &owned.entry, owned.pattern, message));
        }
    }

    /// Reports the selectors that types of an entry do not support.
    fn unsupported_fields(&mut self, loaded: &Loaded, server: &ServerArgs) -> anyhow::Result<()> {
        for (name, entry) in &loaded.config.resources {
            // Each type supports these two, and a wildcard may mean hundreds of types.
            let keys = entry.fields.split(',').filter_map(|term| term.split(['=', '!']).next());
            if keys.map(str::trim).all(|key| matches!(key, "" | "metadata.name" | "metadata.namespace")) {
                continue;
            }
            let mut refusing: Vec<&ResourceType> = Vec::new();
            let mut said = String::new();
            for Claim { owned, .. } in self.claims.iter().filter(|claim| claim.owned.entry == *name) {
                if let Some(problem) = server.refuses_fields(&owned.resource, entry)? {
                    refusing.push(&owned.resource);
                    said = problem;
                }
            }
            if !refusing.is_empty() {
                let message = format!("the server cannot select {} by this: {said}", listed(&refusing));
                self.errors.push(loaded.finding(&["resources", name, "fields"], message));
            }
        }
        Ok(())
    }

    /// Prints all findings to stderr, and how many there are; `valid` is what the configuration has.
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

    /// Prints all findings to stdout; `is_complete` where nothing was left to be checked.
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
        writeln!(io::stdout().lock(), "{document:#}")
    }

    /// Prints what each pattern means, a line each; of a wildcard how many types.
    fn print_types(&self, loaded: &Loaded) -> io::Result<()> {
        let mut rows = vec![["ENTRY", "MATCH", "TYPE", "API VERSION", "KIND", "ACCESS", "AT"].map(str::to_owned)];
        for (name, entry) in &loaded.config.resources {
            for (position, pattern) in entry.patterns.iter().enumerate() {
                let claims: Vec<&Claim> = self.claims.iter().filter(|claim| claim.is_of(name, position)).collect();
                let [resource, version, kind, access] = match claims[..] {
                    [] => continue,
                    [Claim { owned: Owned { resource, .. }, rights }] if !pattern.pattern().is_wildcard() => {
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

fn as_json(level: &str, finding: &Finding) -> serde_json::Value {
    let Finding { origin, key, message, excerpt } = finding;
    let (file, line, column, variable) = match origin {
        ValueOrigin::Nowhere => (None, None, None, None),
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

/// Sums up what may be done with the types of a wildcard: `list, watch`, `no watch of 2 types`.
fn access_of_many(types: &[&Claim]) -> String {
    let mut cells: Vec<(String, usize)> = Vec::new();
    for claim in types {
        let cell = claim.rights.cell();
        match cells.iter_mut().find(|(known, _)| *known == cell) {
            Some((_, count)) => *count += 1,
            None => cells.push((cell, 1)),
        }
    }
    if let [(cell, _)] = &cells[..] {
        return cell.clone();
    }
    let odd = cells.iter().filter(|(cell, _)| cell.starts_with("no ") || cell == "unknown");
    odd.map(|(cell, count)| format!("{cell}: {}", report::counted(*count, "type"))).collect::<Vec<_>>().join(", ")
}

/// Names types: `pods`, or `pods, services and 7 more types`.
fn listed(types: &[&ResourceType]) -> String {
    let names: Vec<String> = types.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match types.len().saturating_sub(NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {}", names.join(", "), report::counted(more, "more type")),
    }
}

/// Says what is refused, and what to grant. All types are refused the same.
fn refusal(types: &[&ResourceType], rights: &Rights) -> String {
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
            format!(" with apiGroups [{group:?}], resources [{plural:?}], verbs {verbs:?}, and its binding")
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
    fn a_refusal_says_the_verb_the_type_the_place_and_what_to_grant() {
        let (pods, deployments) = (resource("", "pods"), resource("apps", "deployments"));
        let rights = |refused: Vec<Refused>| Rights { refused, unknown: None };
        assert_eq!(
            refusal(&[&pods], &rights(vec![refused("list", None), refused("watch", None)])),
            "this user may not list and watch pods (no rule): grant it by a ClusterRole with apiGroups [\"\"], resources \
             [\"pods\"], verbs [\"list\", \"watch\"], and its binding; `deltabus rbac` prints all that is needed"
        );
        assert_eq!(
            refusal(&[&deployments], &rights(vec![refused("watch", Some("a")), refused("watch", Some("b"))])),
            "this user may not watch deployments.apps in a, b (no rule): grant it by a Role there with apiGroups \
             [\"apps\"], resources [\"deployments\"], verbs [\"watch\"], and its binding; `deltabus rbac` prints all that \
             is needed"
        );
        let many = vec![&pods; NAMED_MAX + 2];
        let said = refusal(&many, &rights(vec![refused("list", None)]));
        assert!(said.contains("pods, pods and 2 more types: grant it by a ClusterRole and its binding"), "{said}");
    }
}
