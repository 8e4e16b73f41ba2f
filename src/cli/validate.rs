//! `deltabus validate`: every mistake of a configuration at once, with what the API server has to say about it.

use std::{
    collections::HashMap,
    io::{self, Write as _},
};

use anyhow::Context as _;
use clap::Args;
use deltabus::{
    config::{ConfigErrors, Finding, Loaded, OnMissing},
    discovery::{self, Access, Catalog, Resolution},
    list_watch::kube::ClusterAccess,
    object::ResourceType,
};

use super::{ConfigArgs, report};

/// Checks a configuration: every mistake at once, with file, line, key and the nearest right name.
///
/// Asks the API server what each `match` means there, and what this user may not list or watch. Exit code 2 where the
/// configuration is wrong, 1 where the server cannot be asked.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Do not ask the API server.
    #[arg(long)]
    pub(crate) offline: bool,
}

/// Checks a configuration.
pub(crate) fn validate(args: &ValidateArgs) -> anyhow::Result<()> {
    let loaded = args.config.load()?;
    report::warnings(&loaded.warnings);
    if !args.offline {
        ask_the_server(&loaded)?;
    }
    let handlers = loaded.config.handlers.values().filter(|handler| handler.enabled).count();
    let [resources, handlers] = [(loaded.config.resources.len(), "resource"), (handlers, "handler")]
        .map(|(count, noun)| report::counted(count, noun));
    report::note(&format!("the configuration is valid: {resources}, {handlers}"));
    Ok(())
}

fn ask_the_server(loaded: &Loaded) -> anyhow::Result<()> {
    let cannot = "the API server cannot be asked, --offline checks without it";
    let access = ClusterAccess::load(&loaded.config.kube.access()).context(cannot)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let verdict = runtime.block_on(async {
        let client = access.client().context(cannot)?;
        let catalog = discovery::discover(&client).await.with_context(|| {
            format!("the API server {} cannot be asked, --offline checks without it", access.server_url())
        })?;
        let mut verdict = judge(loaded, &catalog);
        for claim in &mut verdict.claims {
            claim.access =
                Some(discovery::allowed(&client, &claim.resource, None).await.map_err(|error| error.to_string()));
        }
        anyhow::Ok(verdict)
    })?;
    verdict.tell(loaded)
}

/// What the server has to say.
#[derive(Default)]
struct Verdict {
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    notes: Vec<Finding>,
    claims: Vec<Claim>,
}

/// A pattern that means a type.
struct Claim {
    entry: String,
    pattern: String,
    /// Where the pattern stands: its position in `match`.
    element: String,
    resource: ResourceType,
    /// What this user may do with the type, or why that is not known.
    access: Option<Result<Access, String>>,
}

/// Holds every pattern against what is served.
fn judge(loaded: &Loaded, catalog: &Catalog) -> Verdict {
    let mut verdict = Verdict::default();
    for (entry, resource) in &loaded.config.resources {
        for (i, pattern) in resource.patterns.iter().enumerate() {
            let element = format!("[{i}]");
            let finding = |message: String| loaded.finding(&["resources", entry, "match", &element], message);
            let resolution = catalog.resolve(pattern.pattern());
            match (&resolution, resource.options.on_missing) {
                (Resolution::Found(resource), _) => verdict.claims.push(Claim {
                    entry: entry.clone(),
                    pattern: pattern.to_string(),
                    element,
                    resource: resource.clone(),
                    access: None,
                }),
                (Resolution::Missing { .. }, OnMissing::Wait) => {
                    verdict.notes.push(finding(format!("\"{pattern}\" will be waited for: {}", resolution.why_not())));
                }
                (Resolution::Missing { .. }, OnMissing::Warn) => {
                    verdict.warnings.push(finding(format!("\"{pattern}\" is left out: {}", resolution.why_not())));
                }
                _ => verdict.errors.push(finding(format!("\"{pattern}\": {}", resolution.why_not()))),
            }
        }
    }
    verdict.find_conflicts(loaded);
    verdict
}

impl Verdict {
    /// Finds the types that several patterns name (D12): a mistake between entries, odd within one.
    fn find_conflicts(&mut self, loaded: &Loaded) {
        let name = |claim: &Claim| format!("resources.{}.match{}", claim.entry, claim.element);
        let claims: HashMap<String, &Claim> = self.claims.iter().map(|claim| (name(claim), claim)).collect();
        let named: Vec<_> = self.claims.iter().map(|claim| (name(claim), &claim.resource)).collect();
        for conflict in discovery::conflicts(named.iter().map(|(name, resource)| (&**name, *resource))) {
            let (Some(first), Some(second)) = (claims.get(&conflict.first), claims.get(&conflict.second)) else {
                continue;
            };
            let keys = ["resources", &*second.entry, "match", &*second.element];
            let (pattern, other, resource) = (&second.pattern, &first.pattern, &conflict.resource);
            if first.entry == second.entry {
                let message = format!("\"{pattern}\" is {resource}, as \"{other}\" is: one of them is enough");
                self.warnings.push(loaded.finding(&keys, message));
            } else {
                let message = format!(
                    "\"{pattern}\" is {resource}, as \"{other}\" in [resources.{}] is: a type belongs to one entry",
                    first.entry
                );
                self.errors.push(loaded.finding(&keys, message));
            }
        }
    }

    /// Prints everything: types on stdout, findings on stderr.
    fn tell(mut self, loaded: &Loaded) -> anyhow::Result<()> {
        self.print_types(loaded)?;
        for claim in &self.claims {
            let say = |message: String| loaded.finding(&["resources", &claim.entry, "match", &claim.element], message);
            match &claim.access {
                Some(Ok(access)) => self.warnings.extend(refusal(&claim.resource, access).map(say)),
                Some(Err(error)) => {
                    self.notes.push(say(format!("whether it may be listed and watched is not known: {error}")));
                }
                None => {}
            }
        }
        report::notes(&self.notes);
        if self.errors.is_empty() {
            report::warnings(&self.warnings);
            return Ok(());
        }
        Err(ConfigErrors { errors: self.errors, warnings: self.warnings }.into())
    }

    /// Prints what each pattern means, a line each.
    fn print_types(&self, loaded: &Loaded) -> io::Result<()> {
        if self.claims.is_empty() {
            return Ok(());
        }
        let mut rows = vec![["ENTRY", "MATCH", "TYPE", "API VERSION", "KIND", "ACCESS", "AT"].map(str::to_owned)];
        for claim in &self.claims {
            let at = loaded.finding(&["resources", &claim.entry, "match", &claim.element], "");
            let access = match &claim.access {
                Some(Ok(access)) => {
                    refused_verbs(access).map_or("list, watch".to_owned(), |verbs| format!("no {}", verbs.join(", ")))
                }
                Some(Err(_)) | None => "unknown".to_owned(),
            };
            let ResourceType { kind, .. } = &claim.resource;
            let [entry, pattern] = [&claim.entry, &claim.pattern].map(Clone::clone);
            let (resource, version) = (claim.resource.qualified_name(), claim.resource.api_version());
            rows.push([entry, pattern, resource, version, kind.clone(), access, at.origin.to_string()]);
        }
        io::stdout().lock().write_all(report::table(&rows).as_bytes())
    }
}

/// Returns the verbs that a user lacks, if any.
fn refused_verbs(access: &Access) -> Option<Vec<&'static str>> {
    let verbs: Vec<_> =
        [("list", access.list), ("watch", access.watch)].into_iter().filter(|(_, allowed)| !allowed).collect();
    (!verbs.is_empty()).then(|| verbs.into_iter().map(|(verb, _)| verb).collect())
}

/// Says what is refused, and what to grant.
fn refusal(resource: &ResourceType, access: &Access) -> Option<String> {
    let verbs = refused_verbs(access)?;
    let reason = if access.reason.is_empty() { String::new() } else { format!(" ({})", access.reason) };
    let ResourceType { group, plural, .. } = resource;
    Some(format!(
        "this user may not {} {resource}{reason}: grant it by a ClusterRole with apiGroups [{group:?}], resources \
         [{plural:?}], verbs {verbs:?}, and a ClusterRoleBinding",
        verbs.join(" and "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_grant() {
        let resource = |group: &str, plural: &str| ResourceType {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: "Kind".to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
        };
        let access = |list, watch| Access { list, watch, reason: String::new() };
        assert_eq!(refusal(&resource("", "pods"), &access(true, true)), None);
        let said = refusal(&resource("apps", "deployments"), &access(true, false)).unwrap();
        assert_eq!(
            said,
            "this user may not watch deployments.apps: grant it by a ClusterRole with apiGroups [\"apps\"], resources \
             [\"deployments\"], verbs [\"watch\"], and a ClusterRoleBinding"
        );
        let said = refusal(&resource("", "pods"), &access(false, false)).unwrap();
        assert!(said.starts_with("this user may not list and watch pods: "), "{said}");
        assert!(said.contains("apiGroups [\"\"], resources [\"pods\"], verbs [\"list\", \"watch\"]"), "{said}");
    }
}
