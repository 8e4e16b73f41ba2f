//! Options that are written as text, for example durations and sizes.
//!
//! Each option has a [`Format`]. It describes the expected text, and the JSON Schema names it. [`Text`] and [`Optional`] are for
//! `#[serde(with = …)]`.

use std::{borrow::Cow, marker::PhantomData, net::SocketAddr, path::Path, time::Duration};

use jiff::fmt::friendly::{Spacing, SpanParser, SpanPrinter};
use schemars::{JsonSchema, Schema, SchemaGenerator, transform::Transform};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::{Value, json};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// Parses a duration: `500ms`, `5m`, `1h30m`, `7d`. Negative durations, months and years are rejected; a day has 24
/// hours.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let span = SpanParser::new().parse_span(text).ok()?;
    let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(duration).ok()
}

/// Formats a duration so that [`parse_duration`] can parse it.
pub(crate) fn print_duration(duration: Duration) -> String {
    static PRINTER: SpanPrinter = SpanPrinter::new().spacing(Spacing::None);
    PRINTER.unsigned_duration_to_string(&duration)
}

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// Parses a size, such as `64MiB`, and returns the number of bytes. The text is a whole number of at least 1 and a unit.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let digits = text.strip_suffix(unit)?.trim_end();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(*factor).filter(|bytes| *bytes > 0)
}

/// Formats a size so that [`parse_size`] can parse it, in the largest unit that divides it.
pub(crate) fn print_size(bytes: u64) -> String {
    let divides = |(_, factor): &&(&str, u64)| bytes.is_multiple_of(*factor);
    let (unit, factor) = UNITS.iter().filter(divides).max_by_key(|(_, factor)| *factor).unwrap_or(&("B", 1));
    format!("{}{unit}", bytes / factor)
}

/// A value that is written as text: a duration, a size in bytes, or an option with its own keywords.
pub(crate) trait Textual: Sized {
    const FORMAT: Format;

    fn parse(text: &str) -> Option<Self>;
    fn print(&self) -> String;
}

/// `#[serde(with)]` for a [`Textual`]. It also provides the JSON Schema of the text.
pub(crate) struct Text<T>(PhantomData<T>);

impl<T: Textual> Text<T> {
    pub(crate) fn serialize<S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        value.print().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::parse(&text).ok_or_else(|| D::Error::custom(T::FORMAT.unlike(&text)))
    }
}

impl<T: Textual> JsonSchema for Text<T> {
    fn schema_name() -> Cow<'static, str> {
        T::FORMAT.name().into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (mut schema, mut format) = (String::json_schema(generator), T::FORMAT);
        format.transform(&mut schema);
        schema
    }
}

impl Textual for Duration {
    const FORMAT: Format = Format::Duration;

    fn parse(text: &str) -> Option<Self> {
        parse_duration(text)
    }

    fn print(&self) -> String {
        print_duration(*self)
    }
}

impl Textual for u64 {
    const FORMAT: Format = Format::Size;

    fn parse(text: &str) -> Option<Self> {
        parse_size(text)
    }

    fn print(&self) -> String {
        print_size(*self)
    }
}

impl Textual for Option<SocketAddr> {
    const FORMAT: Format = Format::Address;

    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn print(&self) -> String {
        self.map(|address| address.to_string()).unwrap_or_default()
    }
}

/// `#[serde(with)]` for an optional text or path. The text `""` means `None`. The schema allows any string.
pub(crate) struct Optional;

impl Optional {
    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<T: AsRef<Path>, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|value| value.as_ref().to_string_lossy()).unwrap_or_default().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: From<String>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(if text.is_empty() { None } else { Some(text.into()) })
    }
}

impl JsonSchema for Optional {
    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Format of an option that is written as text. As a [`Transform`], it describes the text in the JSON Schema of the option. If the
/// option is a list, it describes each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Format {
    #[strum(serialize = "duration-text")]
    Duration,
    Size,
    Rate,
    Fsync,
    Permissions,
    Commit,
    Address,
    TypePattern,
    Namespace,
    FieldPath,
    IgnoredPath,
    Index,
    LabelSelector,
    FieldSelector,
    ResourceNames,
    PathTemplate,
    ClusterName,
    ChangedPath,
    Rule,
    Condition,
}

impl Format {
    /// Returns the format with this name in the schema.
    pub(crate) fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Returns the name of the format in the schema.
    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns a description of a text of this format.
    pub(crate) fn expected(self) -> &'static str {
        match self {
            Self::Duration => "a duration with its unit, such as \"500ms\", \"30s\" or \"1h30m\"",
            Self::Size => "a size of at least one byte with its unit, such as \"64MiB\"",
            Self::Rate => {
                "a number of deliveries per second, minute or hour, such as \"20/s\" or \"600/m\", or \"\" for no limit"
            }
            Self::Fsync => "\"always\", \"never\" or an interval such as \"1s\"",
            Self::Permissions => "permissions in octal that let the owner read and write, such as \"0640\"",
            Self::Commit => "\"group\" or an interval such as \"1s\"",
            Self::Address => "an IP address and port, such as \"127.0.0.1:8080\", or \"\" for off",
            Self::TypePattern => {
                "a type as kubectl spells it, such as \"pods\", \"deployments.apps\", \"*.apps\" or \"crd:*\""
            }
            Self::Namespace => "a namespace, a glob such as \"team-*\", or either of them after \"!\"",
            Self::FieldPath => "a path such as \"metadata.managedFields\" or \"metadata.annotations['a/b']\"",
            Self::IgnoredPath => "a path such as \"status.conditions[*].lastHeartbeatTime\"",
            Self::Index => "\"owner\" or a path such as \"spec.nodeName\" or \"labels['app']\"",
            Self::LabelSelector => "a label selector such as \"app in (web,api),!legacy\"",
            Self::FieldSelector => "a field selector such as \"status.phase!=Succeeded\"",
            Self::ResourceNames => {
                "the name of a [resources.*] entry, a glob of such names, or either of them after \"!\""
            }
            Self::PathTemplate => "a file path, in which %Y, %m, %d, %H … are replaced by the time",
            Self::ClusterName => "a name without spaces",
            Self::ChangedPath => "a path such as \"spec\" or \"spec.template.spec.containers[*].image\"",
            Self::Rule | Self::Condition => "a CEL expression such as \"object.metadata.namespace == 'prod'\"",
        }
    }

    /// Returns an error for a text that does not have this format.
    pub(crate) fn unlike(self, text: &str) -> String {
        format!("expected {}, found {text:?}", self.expected())
    }

    /// Returns a regular expression for texts of this format, and examples. If the expression is empty, the schema has no pattern.
    fn shape(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Duration => ("^[0-9]", &["500ms", "30s", "1h30m"]),
            Self::Size => ("^[0-9]+ *([KMGT]i?)?B$", &["512KiB", "64MiB"]),
            Self::Rate => ("^([0-9]+ */ *[smh])?$", &["20/s", "600/m", ""]),
            Self::Fsync => ("^(always|never|[0-9].*)$", &["always", "never", "1s"]),
            Self::Permissions => ("^0?[67][0-7]{2}$", &["0640", "0600"]),
            Self::Commit => ("^(group|[0-9].*)$", &["group", "1s"]),
            Self::Address => ("", &["127.0.0.1:8080", "0.0.0.0:8081", ""]),
            Self::TypePattern => (r"^(\*|crd:\*|[^*]+|\*\.[^*]+)$", &["pods", "deployments.apps", "*.apps", "crd:*"]),
            Self::Namespace => (r"^!?[-a-z0-9*?\[\]{},!^]+$", &["team-a", "team-*", "!kube-system"]),
            Self::FieldPath => (".", &["metadata.managedFields", "data.*", "spec.containers[*].env[*].value"]),
            Self::IgnoredPath => (".", &["status.conditions[*].lastHeartbeatTime"]),
            Self::Index => (".", &["spec.nodeName", "owner", "labels['app']"]),
            Self::LabelSelector => ("", &["app in (web,api),!legacy"]),
            Self::FieldSelector => ("", &["status.phase!=Succeeded"]),
            Self::ResourceNames => ("^!?[^!]+$", &["pods", "*", "!pods"]),
            Self::PathTemplate => ("[^/]$", &["/var/lib/deltabus/%Y-%m-%d.jsonl"]),
            Self::ClusterName => (r"^\S*$", &["prod-eu1"]),
            Self::ChangedPath => (".", &["spec", "spec.template.spec.containers[*].image"]),
            Self::Rule => ("", &["object.metadata.namespace.startsWith(\"prod-\")"]),
            Self::Condition => ("", &["object.metadata.name.endsWith(\"-credentials\")"]),
        }
    }
}

impl Transform for Format {
    fn transform(&mut self, schema: &mut Schema) {
        let text = match schema.get_mut("items") {
            Some(Value::Object(items)) => items,
            _ => schema.ensure_object(),
        };
        let (pattern, examples) = self.shape();
        text.insert("format".to_owned(), self.name().into());
        if !pattern.is_empty() {
            text.insert("pattern".to_owned(), pattern.into());
        }
        text.insert("examples".to_owned(), examples.into());
    }
}

/// Returns a change to the schema of a list of addresses. It requires at least one element, and adds `example` as an example of an
/// element.
pub(crate) fn addresses(example: &'static str) -> impl Fn(&mut Schema) {
    move |schema| {
        schema.insert("minItems".to_owned(), 1.into());
        schema.insert("items".to_owned(), json!({ "type": "string", "examples": [example] }));
    }
}

/// Returns a change to the schema of a table. It makes `key` required and removes the default of `key`.
pub(crate) fn required(key: &'static str) -> impl Fn(&mut Schema) {
    move |schema| {
        schema.insert("required".to_owned(), [key].as_slice().into());
        if let Some(required) = schema.pointer_mut(&format!("/properties/{key}")).and_then(Value::as_object_mut) {
            required.remove("default");
        }
    }
}
