//! Reports paths of a configuration that no object of the selected types can have, with the schemas of the server.

use crate::{
    config::{Finding, HandlerConfig, Loaded, RedactedPath, ResourceConfig, ResourceDefaults},
    discovery::{FieldPresence, KnownValue, Owned, SchemaReader, Schemas},
    indexer::index_func::NAMESPACE_INDEX,
    list_watch::kube::Client,
    object::{FieldPath, FieldUse, PathStep, ResourceType},
    rules::Rules,
    suggestion::{nearest, suggestion},
};

/// Values that `old` and `object` have.
const OBJECTS: [&str; 2] = ["object", "old"];

/// Use of a field of objects, with the types of the objects.
#[derive(Debug)]
struct CheckedUse<'a> {
    /// Position of the option, and its path.
    at: Finding,
    path: Vec<PathStep>,
    compared: Option<Box<str>>,
    types: Vec<&'a ResourceType>,
    /// Set if an object of one of the types can have the field, or if this is not known.
    is_possible: bool,
    /// The type that has most steps of the path, with their number and the problem behind them.
    nearest: Option<(usize, &'a ResourceType, String)>,
}

/// Returns true if the configuration names fields of objects.
pub(super) fn names_fields(loaded: &Loaded) -> bool {
    !uses(loaded, &[]).is_empty()
}

/// Findings of the check.
#[derive(Debug, Default)]
pub(super) struct FieldFindings {
    pub(super) warnings: Vec<Finding>,
    /// Reason why some paths were not checked.
    pub(super) notes: Vec<Finding>,
}

/// Checks each path. Requests only the schemas of types for which a path is named.
pub(super) async fn check(loaded: &Loaded, client: &Client, types: &[Owned]) -> FieldFindings {
    let mut found = FieldFindings::default();
    let mut uses = uses(loaded, types);
    let Some(first) = uses.first().map(|used| used.at.clone()) else { return found };
    let unchecked =
        |why: String| Finding { message: format!("cannot check fields of objects: {why}"), ..first.clone() };
    let mut without = Vec::new();
    let mut reader = match SchemaReader::open(client).await {
        Ok(reader) => reader,
        Err(error) => {
            found.notes.push(unchecked(error.to_string()));
            return found;
        }
    };
    // Only one document is kept in memory, so its types come one after another.
    let mut types: Vec<_> = uses.iter().flat_map(|used| used.types.iter().copied()).collect();
    types.sort_by_key(|resource| (&resource.group, &resource.version, &resource.plural));
    types.dedup();
    for resource in types {
        let mut undecided: Vec<_> =
            uses.iter_mut().filter(|used| !used.is_possible && used.types.contains(&resource)).collect();
        if undecided.is_empty() {
            continue;
        }
        let schemas = reader.of(resource).await;
        if schemas.is_none_or(|schemas| !schemas.describe(resource)) {
            without.push(resource.to_string());
        }
        for used in &mut undecided {
            used.judge(resource, schemas);
        }
    }
    if !without.is_empty() && reader.failure().is_none() {
        found.notes.push(unchecked(format!("the server publishes no schema of {}", without.join(", "))));
    }
    for used in uses {
        let finding = used.problem().map(|message| Finding { message, ..used.at });
        found.warnings.extend(finding.filter(|finding| !found.warnings.contains(finding)));
    }
    found.notes.extend(reader.failure().map(|error| unchecked(error.to_string())));
    found
}

impl<'a> CheckedUse<'a> {
    /// Follows the path through the schema of a type. Without schemas, nothing is known.
    fn judge(&mut self, resource: &'a ResourceType, schemas: Option<&Schemas>) {
        let Self { path, compared, .. } = &*self;
        let presence = schemas.map(|schemas| schemas.find(resource, path));
        let text = compared.as_deref().filter(|text| !text.is_empty());
        let (depth, problem) = match (presence, text) {
            (Some(FieldPresence::Missing { found, value }), _) => (found, missing(path, found, &value)),
            (Some(FieldPresence::Possible { choices }), Some(text))
                if !choices.is_empty() && !choices.contains(&text) =>
            {
                let hint = suggestion(text, choices.iter().copied());
                (path.len(), format!("`{}` is never {text:?}; {hint}", show(path)))
            }
            _ => {
                self.is_possible = true;
                return;
            }
        };
        if self.nearest.as_ref().is_none_or(|(known, ..)| *known < depth) {
            self.nearest = Some((depth, resource, problem));
        }
    }

    /// Returns what is wrong with the use.
    fn problem(&self) -> Option<String> {
        let (_, resource, problem) = self.nearest.as_ref().filter(|_| !self.is_possible)?;
        Some(match self.types.len() {
            1 => format!("{problem} (schema of {resource})"),
            count => format!("{problem} (schema of {resource}; the same for {} other selected types)", count - 1),
        })
    }
}

/// Returns all uses of fields. A use that several entries or handlers inherit occurs once, with the types of all of them.
fn uses<'a>(loaded: &Loaded, types: &'a [Owned]) -> Vec<CheckedUse<'a>> {
    let mut all: Vec<CheckedUse<'a>> = Vec::new();
    let mut add = |keys: &[&str], used: FieldUse, takes: &dyn Fn(&str) -> bool| {
        let types = types.iter().filter(|owned| takes(&owned.entry)).map(|owned| &owned.resource);
        let (at, FieldUse { path, compared }) = (loaded.finding(keys, ""), used);
        match all.iter_mut().find(|known| known.at == at && known.path == path && known.compared == compared) {
            Some(known) => known.types.extend(types),
            None => {
                all.push(CheckedUse { at, path, compared, types: types.collect(), is_possible: false, nearest: None });
            }
        }
    };
    for (name, entry) in &loaded.config.resources {
        for (option, index, path) in paths(entry) {
            add(&["resources", name, option, &format!("[{index}]")], path, &|entry| entry == name);
        }
    }
    for (index, redacted) in loaded.config.redact.paths.iter().enumerate() {
        let RedactedPath { path, only_where, .. } = redacted;
        let at = |option| ["redact", "paths", &format!("[{index}]"), option].map(str::to_owned);
        let condition = only_where.as_deref().and_then(|text| Rules::condition(text, "").ok());
        let conditions = condition.iter().flat_map(Rules::uses).filter_map(of_object).map(|used| ("where", used));
        for (option, used) in of_path(path).map(|used| ("path", used)).into_iter().chain(conditions) {
            add(&at(option).each_ref().map(String::as_str), used, &|entry| redacted.means(entry));
        }
    }
    for (name, handler) in loaded.config.handlers.iter().filter(|(_, handler)| handler.enabled) {
        for (keys, used) in of_handler(name, handler) {
            let keys: Vec<_> = keys.iter().map(String::as_str).collect();
            add(&keys, used, &|entry| handler.takes(entry));
        }
    }
    all
}

/// Returns the configured paths of an entry, each with its option and its position in the list.
fn paths(entry: &ResourceConfig) -> impl Iterator<Item = (&'static str, usize, FieldUse)> {
    let dropped = Some(&entry.options.drop).filter(|dropped| **dropped != ResourceDefaults::default().drop);
    let lists =
        [("index", Some(&entry.index)), ("drop", dropped), ("ignore_changes", Some(&entry.options.ignore_changes))];
    lists.into_iter().flat_map(|(option, paths)| {
        let paths = paths.into_iter().flatten().enumerate().filter(|(_, path)| *path != NAMESPACE_INDEX);
        paths.filter_map(move |(index, path)| Some((option, index, of_path(path)?)))
    })
}

/// Returns the fields of objects that a handler uses, each with the path of its option.
fn of_handler(name: &str, handler: &HandlerConfig) -> Vec<(Vec<String>, FieldUse)> {
    let keys = |option: &[&str]| ["handlers", name].iter().chain(option).map(|&key| key.to_owned()).collect();
    let mut all = Vec::new();
    for (index, path) in handler.options.changed.iter().enumerate() {
        all.extend(of_path(path).map(|used| (keys(&["changed", &format!("[{index}]")]), used)));
    }
    for (option, used) in handler.field_uses() {
        all.extend(of_object(&used).map(|used| (keys(&[option]), used)));
    }
    all
}

/// Returns the use of a field of an object, with the path in the object. Returns `None` for a field of another variable.
fn of_object(used: &FieldUse) -> Option<FieldUse> {
    match used.path.split_first()? {
        (PathStep::Member(variable), path) if OBJECTS.contains(&&**variable) && !path.is_empty() => {
            Some(FieldUse { path: path.to_vec(), compared: used.compared.clone() })
        }
        _ => None,
    }
}

/// Returns the use of a path in an option.
fn of_path(path: &str) -> Option<FieldUse> {
    Some(FieldUse { path: FieldPath::parse(path).ok()?.steps().to_vec(), compared: None })
}

/// Describes a path that does not exist behind its first `found` steps.
fn missing(path: &[PathStep], found: usize, value: &KnownValue<'_>) -> String {
    let (there, rest) = path.split_at(found);
    let parent = if there.is_empty() { "an object".to_owned() } else { format!("`{}`", show(there)) };
    match (value, rest.first()) {
        (KnownValue::Object(fields), Some(PathStep::Member(name))) => {
            let near = nearest(name, fields.iter().copied());
            let near = near.map(|near| show(&[there, &[PathStep::Member(near.into())]].concat()));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            format!("{parent} has no field `{name}`{hint}")
        }
        (KnownValue::List, _) => format!("{parent} is a list: its elements have the fields, not the list"),
        (KnownValue::Scalar(kind), _) => format!("{parent} has no fields: it is of type {kind}"),
        (KnownValue::Object(_), _) => format!("{parent} has no elements"),
    }
}

fn show(path: &[PathStep]) -> String {
    FieldPath::from_steps(path).to_string()
}
