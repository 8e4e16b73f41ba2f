//! Layers of a configuration: files, directories, the environment and flags. The crate `config` merges the layers.
//! [`Positions`] stores the positions of the values, which the crate does not.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    fs,
    iter::successors,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use config::{ConfigBuilder, ConfigError, Source, builder::DefaultState};
use serde_json::{Map, Number, Value};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    error::{Finding, ValueOrigin},
    key_path::KeyPath,
    report::Report,
    secret::{self, MASK},
};
use crate::regular_file;

/// Prefix of the names of environment variables.
const PREFIX: &str = "DELTABUS__";
const SEPARATOR: &str = "__";
/// Maximum number of keys in the name of a variable.
const DEPTH_MAX: usize = 16;

/// Returns true if a variable of this name overrides an option.
pub(crate) fn overrides(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Value of an option that a flag of the command line sets. It overrides files and environment.
#[derive(Clone, Debug)]
pub(crate) struct FlagValue {
    /// Flag, such as `--listen`.
    pub(crate) flag: &'static str,
    /// Keys of the option, from the outermost table.
    pub(crate) keys: &'static [&'static str],
    /// Text of the value.
    pub(crate) value: String,
}

#[derive(Clone, Debug, PartialEq)]
struct Place {
    key: ValueOrigin,
    value: ValueOrigin,
    is_table: bool,
}

/// Origins of all keys and values. The origin of a value is in the last layer that sets the value. The origin of a table is in the
/// first layer that has the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Positions {
    places: HashMap<KeyPath, Place>,
    /// Original positions of the remaining elements, for each list from which elements were cut.
    shortened: HashMap<KeyPath, Vec<usize>>,
}

impl Positions {
    fn record(&mut self, path: KeyPath, place: Place) {
        let keep = self.places.get(&path).is_some_and(|known| known.is_table && place.is_table);
        if !keep {
            self.places.insert(path, place);
        }
    }

    /// Finds the origin of a value, and its path for messages:
    /// - If a layer sets the value, the place in this layer, and `path`.
    /// - If the value is inherited from `[defaults]`, the place in `[defaults]`, and the path there.
    /// - If nothing sets the value, the nearest table around it, and `path`.
    pub(crate) fn of_value(&self, path: &KeyPath) -> (KeyPath, ValueOrigin) {
        self.find(path, |place| &place.value)
    }

    /// Finds the origin of a key, like [`Positions::of_value`].
    pub(crate) fn of_key(&self, path: &KeyPath) -> (KeyPath, ValueOrigin) {
        self.find(path, |place| &place.key)
    }

    /// Creates a finding about a value, with its origin.
    pub(crate) fn finding(&self, path: &KeyPath, message: String) -> Finding {
        let (key, origin) = self.of_value(&self.as_written(path));
        Finding::new(origin, key.to_string(), message)
    }

    /// Stores the original positions of a list's remaining elements, so that [`Positions::finding`] finds their origins.
    pub(crate) fn shorten(&mut self, list: KeyPath, left: Vec<usize>) {
        self.shortened.insert(list, left);
    }

    /// Returns the names of all entries of a section, including entries with errors that prevent further checks.
    pub(crate) fn names(&self, section: &str) -> BTreeSet<String> {
        let name = |path: &KeyPath| match &path.0[..] {
            [first, name] if first == section => Some(name.clone()),
            _ => None,
        };
        self.places.keys().filter_map(name).collect()
    }

    fn as_written(&self, path: &KeyPath) -> KeyPath {
        let mut written = KeyPath::default();
        for step in &path.0 {
            let index = step.strip_prefix('[').and_then(|step| step.strip_suffix(']')?.parse::<usize>().ok());
            let original = index.and_then(|index| self.shortened.get(&written)?.get(index).copied());
            written = match original {
                Some(original) => written.element(original),
                None => written.child(step),
            };
        }
        written
    }

    fn find(&self, path: &KeyPath, pick: impl Fn(&Place) -> &ValueOrigin) -> (KeyPath, ValueOrigin) {
        if let Some(place) = self.places.get(path) {
            return (path.clone(), pick(place).clone());
        }
        if let Some(inherited) = path.inherited()
            && let Some(place) = self.places.get(&inherited)
        {
            return (inherited, pick(place).clone());
        }
        let around = successors(path.parent(), KeyPath::parent).find_map(|around| self.places.get(&around));
        (path.clone(), around.map_or(ValueOrigin::Nowhere, |place| place.key.clone()))
    }

    /// Returns true if a layer sets this value, directly or for all entries that inherit it.
    pub(crate) fn is_set(&self, path: &KeyPath) -> bool {
        self.places.contains_key(path) || path.inherited().is_some_and(|path| self.places.contains_key(&path))
    }

    /// Returns true if the configuration sets this path directly, not through defaults.
    pub(crate) fn is_set_itself(&self, path: &KeyPath) -> bool {
        self.places.contains_key(path)
    }

    /// Returns true if an environment variable set this value.
    pub(crate) fn is_environment(&self, path: &KeyPath) -> bool {
        self.places.get(path).is_some_and(|place| matches!(place.value, ValueOrigin::Environment(_)))
    }
}

/// List to which every layer appends its elements: `[[tests]]`.
const COLLECTED: &str = "tests";

/// Layers in the order in which they were added; later ones are merged into earlier ones.
#[derive(Default)]
pub(crate) struct Layers {
    builder: ConfigBuilder<DefaultState>,
    positions: Positions,
    /// Elements of [`COLLECTED`] in the layers that were added so far.
    collected: Vec<Value>,
    errors: Vec<Finding>,
    /// Keys whose values have errors. The values are cut.
    cut: Vec<KeyPath>,
    /// Set if a layer cannot be read at all. Then the merged tree would lack its values.
    lacks_layer: bool,
    count: usize,
    /// Files that were read.
    pub(crate) texts: Vec<(PathBuf, String)>,
}

impl Layers {
    /// Reads files and directories in this order.
    pub(crate) fn of<P: AsRef<Path>>(paths: &[P]) -> Self {
        let mut layers = Self::default();
        for path in paths {
            layers.add_path(path.as_ref());
        }
        layers
    }

    fn add_path(&mut self, path: &Path) {
        let files = match files(path) {
            Ok(files) if files.is_empty() => return self.unreadable(path, "no *.toml files in this directory"),
            Ok(files) => files,
            Err(error) => return self.unreadable(path, &format!("failed to read the directory: {error}")),
        };
        for file in files {
            match regular_file::read_to_string(&file) {
                Ok(text) => {
                    self.add_text(&file.display().to_string(), &text);
                    self.texts.push((file, text));
                }
                Err(error) => self.unreadable(&file, &format!("failed to read the file: {error}")),
            }
        }
    }

    fn unreadable(&mut self, path: &Path, message: &str) {
        self.lacks_layer = true;
        self.error(ValueOrigin::Unreadable(path.display().to_string().into()), String::new(), message);
    }

    fn error(&mut self, origin: ValueOrigin, key: String, message: &str) {
        self.errors.push(Finding::new(origin, key, message));
    }

    /// Adds the text of one file.
    pub(crate) fn add_text(&mut self, name: &str, text: &str) {
        self.count += 1;
        let file = Text::new(self.count, name, text);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            self.lacks_layer = true;
            self.errors.extend(file.syntax_errors(&errors, &secret::printable_lines(text)));
            return;
        }
        let collected = self.collected.len();
        let Self { positions, errors, cut, .. } = self;
        let mut walk = Walk { file: &file, positions, errors, cut, collected };
        let mut layer = walk.table(table.get_ref(), &KeyPath::default());
        if let Some(Value::Array(more)) = layer.get_mut(COLLECTED) {
            self.collected.append(more);
        }
        self.add(layer);
    }

    fn add(&mut self, layer: Map<String, Value>) {
        self.builder = std::mem::take(&mut self.builder).add_source(Layer(layer));
    }

    /// Adds the variables that begin with `DELTABUS__`; ignores others.
    pub(crate) fn add_environment(&mut self, environment: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut variables = BTreeMap::new();
        for (name, value) in environment.into_iter().filter(|(name, _)| overrides(name)) {
            let origin = ValueOrigin::Environment(name.to_string_lossy().into());
            match (name.into_string(), value.into_string()) {
                (Ok(name), Ok(value)) => drop(variables.insert(name, value)),
                (Ok(_), Err(_)) => self.error(origin, String::new(), "the value is not UTF-8: set it to UTF-8 text"),
                (Err(_), _) => self.error(origin, String::new(), "the name is not UTF-8: rename or unset the variable"),
            }
        }
        for (name, value) in &variables {
            let keys: Vec<String> = name[PREFIX.len()..].to_lowercase().split(SEPARATOR).map(str::to_owned).collect();
            let origin = ValueOrigin::Environment(name.as_str().into());
            if keys.len() > DEPTH_MAX {
                self.error(origin, String::new(), "too many keys: expected at most 16, separated by `__`");
                continue;
            }
            let below = format!("{name}{SEPARATOR}");
            let part = variables.range(below.clone()..).next().filter(|(other, _)| other.starts_with(&below));
            if let Some((other, _)) = part {
                let message =
                    format!("conflicts with {other}, which sets a part of the same value: expected only one of them");
                self.record(&keys, &origin);
                self.error(origin, KeyPath(keys).to_string(), &message);
                continue;
            }
            self.add_value(keys, value, &origin);
        }
    }

    /// Adds the value of a flag.
    pub(crate) fn add_flag(&mut self, FlagValue { flag, keys, value }: &FlagValue) {
        self.add_value(keys.iter().map(|&key| key.to_owned()).collect(), value, &ValueOrigin::Flag(flag));
    }

    /// Adds a layer with one value.
    fn add_value(&mut self, keys: Vec<String>, value: &str, origin: &ValueOrigin) {
        self.record(&keys, origin);
        let tables = keys.into_iter().rev();
        let layer = tables.fold(value.into(), |value, key| Value::Object(Map::from_iter([(key, value)])));
        if let Value::Object(layer) = layer {
            self.add(layer);
        }
    }

    /// Notes the origin of a value and of its tables.
    fn record(&mut self, keys: &[String], origin: &ValueOrigin) {
        for end in 1..=keys.len() {
            let place = Place { key: origin.clone(), value: origin.clone(), is_table: end < keys.len() };
            self.positions.record(KeyPath(keys[..end].to_vec()), place);
        }
    }

    /// Returns the merged tree, and a report with the errors in the layers so far. Values with errors are cut.
    ///
    /// # Errors
    /// Fails with all errors if a layer cannot be read.
    pub(crate) fn merged(self) -> Result<(Map<String, Value>, Report), Vec<Finding>> {
        if self.lacks_layer {
            return Err(self.errors);
        }
        let merged = self.builder.build().and_then(config::Config::try_deserialize);
        let mut tree: Map<_, _> =
            merged.map_err(|error| vec![Finding::new(ValueOrigin::Nowhere, String::new(), error.to_string())])?;
        if let Some(Value::Array(collected)) = tree.get_mut(COLLECTED) {
            *collected = self.collected;
        }
        Ok((
            tree,
            Report { errors: self.errors, reported: self.cut.into_iter().collect(), ..Report::new(self.positions) },
        ))
    }
}

/// One layer, for the builder of the crate `config`.
#[derive(Clone, Debug)]
struct Layer(Map<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<config::Map<String, config::Value>, ConfigError> {
        let tables = serde_json::from_value(self.0.clone().into());
        tables.map_err(|error| ConfigError::Message(error.to_string()))
    }
}

/// Merges a layer into a tree: tables key by key; lists and scalars are replaced.
pub(crate) fn merge(tree: &mut Map<String, Value>, layer: Map<String, Value>) {
    for (key, mut value) in layer {
        match (tree.get_mut(&key), &mut value) {
            (Some(Value::Object(known)), Value::Object(more)) => merge(known, std::mem::take(more)),
            _ => drop(tree.insert(key, value)),
        }
    }
}

/// Returns the file itself, or the `*.toml` of a directory in the order of their names. Blocks the thread.
///
/// # Errors
/// Fails if the directory cannot be read.
pub(crate) fn files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Maximum length of a line that is shown with a syntax error.
const EXCERPT_BYTES_MAX: usize = 1024;

/// Text of one file, to convert offsets to lines and columns.
struct Text<'a> {
    layer: usize,
    name: Arc<str>,
    content: &'a str,
    /// Offset of the start of each line.
    lines: Vec<usize>,
}

impl<'a> Text<'a> {
    fn new(layer: usize, name: &str, content: &'a str) -> Self {
        let lines = [0].into_iter().chain(content.match_indices('\n').map(|(newline, _)| newline + 1)).collect();
        Self { layer, name: name.into(), content, lines }
    }

    /// Returns the index of the line that contains an offset.
    fn line(&self, offset: usize) -> usize {
        self.lines.partition_point(|start| *start <= offset) - 1
    }

    fn origin(&self, offset: usize) -> ValueOrigin {
        let offset = self.content.floor_char_boundary(offset);
        let line = self.line(offset);
        ValueOrigin::File {
            layer: self.layer,
            file: Arc::clone(&self.name),
            line: line + 1,
            column: self.content[self.lines[line]..offset].chars().count() + 1,
        }
    }

    /// Returns the errors in the order of their positions. If an array has no `]`, the parser reads the rest of the file as its
    /// elements, which causes further errors. Of these errors, only the first is returned.
    fn syntax_errors(&self, errors: &[toml::de::Error], printable: &[Cow<'_, str>]) -> Vec<Finding> {
        let mut errors: Vec<_> =
            errors.iter().map(|error| (error.span().unwrap_or(0..0), error.message().to_owned())).collect();
        errors.sort_by_key(|(span, _)| span.start);
        let is_unclosed = errors.iter().any(|(_, message)| message.starts_with("unclosed array"));
        let follows = |(span, message): &(Range<usize>, String)| {
            let start = self.content.floor_char_boundary(span.start);
            let begins_line = self.content[self.lines[self.line(start)]..start].trim().is_empty();
            message.starts_with("missing comma") && begins_line
        };
        if let Some(first) = errors.iter().position(follows).filter(|_| is_unclosed) {
            errors.truncate(first + 1);
            "the array before this line has no `]`".clone_into(&mut errors[first].1);
        }
        let finding = |(span, message): (Range<usize>, String)| Finding {
            origin: self.origin(span.start),
            key: String::new(),
            message: format!("invalid TOML: {}", message.lines().collect::<Vec<_>>().join("; ")),
            excerpt: self.excerpt(&span, printable),
        };
        errors.into_iter().map(finding).collect()
    }

    /// Returns the line in which a span begins, without secrets. Carets below the line mark the span. If a part of the line is
    /// hidden, one caret marks the start of the span. Returns `None` if the line is too long.
    fn excerpt(&self, span: &Range<usize>, printable: &[Cow<'_, str>]) -> Option<String> {
        let start = self.content.floor_char_boundary(span.start);
        let line = self.line(start);
        let printable = printable.get(line).map_or("", |line| &**line);
        let (line_start, number) = (self.lines[line], (line + 1).to_string());
        let line = self.content[line_start..].lines().next().unwrap_or("");
        if line.len() > EXCERPT_BYTES_MAX {
            return None;
        }
        let end = self.content.floor_char_boundary(span.end).min(line_start + line.len());
        let margin = " ".repeat(number.len());
        // Tabs stay, so that the caret is below its character.
        let indent: String =
            self.content[line_start..start].chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let marked = self.content.get(start..end).filter(|_| printable == line);
        let carets = "^".repeat(marked.map_or(1, |marked| marked.chars().count().max(1)));
        Some(format!(" {margin} |\n {number} | {printable}\n {margin} | {indent}{carets}"))
    }
}

/// Walk over a document. It records the origin of every key, and converts the values.
struct Walk<'a> {
    file: &'a Text<'a>,
    positions: &'a mut Positions,
    errors: &'a mut Vec<Finding>,
    cut: &'a mut Vec<KeyPath>,
    /// Number of elements of [`COLLECTED`] in earlier layers.
    collected: usize,
}

impl Walk<'_> {
    fn table(&mut self, table: &DeTable<'_>, path: &KeyPath) -> Map<String, Value> {
        let members = table.iter().filter_map(|(key, value)| {
            let origin = self.file.origin(key.span().start);
            Some((key.get_ref().to_string(), self.value(value, origin, &path.child(key.get_ref()))?))
        });
        members.collect()
    }

    /// Converts a value; returns `None` for a value with an error.
    fn value(&mut self, value: &Spanned<DeValue<'_>>, key: ValueOrigin, path: &KeyPath) -> Option<Value> {
        let span = value.span();
        let is_table = value.get_ref().is_table();
        // The origin of a table is its header, because the span of the value may end on any line of the table.
        let origin = if is_table { key.clone() } else { self.file.origin(span.start) };
        self.positions.record(path.clone(), Place { key, value: origin.clone(), is_table });
        let number = match value.get_ref() {
            DeValue::Table(table) => return Some(self.table(table, path).into()),
            DeValue::Array(elements) => {
                let before = if *path == KeyPath::new(&[COLLECTED]) { self.collected } else { 0 };
                let elements = (before..).zip(elements.iter()).filter_map(|(i, element)| {
                    let origin = self.file.origin(element.span().start);
                    self.value(element, origin, &path.element(i))
                });
                return Some(elements.collect());
            }
            DeValue::String(text) => return Some((**text).into()),
            DeValue::Boolean(value) => return Some((*value).into()),
            DeValue::Datetime(time) => return Some(time.to_string().into()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(Value::from),
            DeValue::Float(number) => read_float(number.as_str()),
        };
        if number.is_none() {
            let number = if path.has_secret_name() { MASK } else { &self.file.content[span] };
            let message = format!("the number {number} is too large");
            self.errors.push(Finding::new(origin, path.to_string(), message));
            self.cut.push(path.clone());
        }
        number
    }
}

/// Reads a TOML float; returns `None` if it is too large. Infinity and NaN become text, because JSON cannot represent
/// them. The check then reports a wrong type.
fn read_float(text: &str) -> Option<Value> {
    let value: f64 = text.parse().ok().filter(|value: &f64| text.contains("inf") || !value.is_infinite())?;
    Some(Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number))
}
