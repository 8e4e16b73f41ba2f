//! Templates: a text with placeholders for the fields of an event, in the Jinja language.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use minijinja::{
    AutoEscape, Environment, ErrorKind, UndefinedBehavior,
    value::{Enumerator, Object as Reflected, ObjectRepr, Serde, Value},
};
use serde_json::Value as Json;

use super::{
    Encoder, cause, copy,
    error::{FormatError, TemplateError, TemplateErrorKind, decoded},
    id, plain, write_subject, write_time,
};
use crate::{
    journal::ChangeKind,
    notification::Event,
    object::{
        ChangedBy, Object,
        difference::{Difference, differences},
    },
};

/// Variables of a template. `object`, `old` and `changed_by` are `none` if the event has no such value. `changes` is empty if
/// `old` or `object` is `none`.
pub const VARIABLES: [&str; 10] =
    ["object", "old", "type", "cause", "changes", "changed_by", "cluster", "id", "subject", "time"];

/// Name of the template in its environment.
const NAME: &str = "template";

/// A compiled template. Unknown names are errors, nothing is escaped, and `tojson` writes JSON.
#[derive(Clone, Debug)]
pub struct Template {
    environment: Environment<'static>,
    text: Box<str>,
    /// Names that the template reads from its context.
    names: BTreeSet<String>,
}

impl Template {
    /// Compiles a template.
    pub fn compile(text: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_debug(true); // errors have their line and column
        environment.add_template_owned(NAME, text.to_owned()).map_err(|error| described(&error, text))?;
        let template = environment.get_template(NAME).map_err(|error| described(&error, text))?;
        let globals: BTreeSet<_> = environment.globals().map(|(name, _)| name.to_owned()).collect();
        let names = template.undeclared_variables(false).into_iter().filter(|name| !globals.contains(name)).collect();
        Ok(Self { environment, text: text.into(), names })
    }

    /// Returns the names that the template reads, except those in [`VARIABLES`].
    pub fn unknown_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str).filter(|name| !VARIABLES.contains(name))
    }

    /// Renders an event. Decodes an object only if the template reads it.
    pub fn render(&self, encoder: &Encoder, event: &Event) -> Result<String, FormatError> {
        let record = &event.record;
        let needs = |name: &str| self.names.contains(name);
        let decode = |wanted: bool, object: Option<&Object>| object.filter(|_| wanted).map(decoded).transpose();
        let object = decode(needs("object") || needs("changes"), record.object())?;
        let old = decode(needs("old") || needs("changes"), record.old())?;
        let changes = match (&old, &object) {
            (Some(old), Some(new)) if needs("changes") => changes(old, new),
            _ => Vec::new(),
        };
        let of_event = |write: &dyn Fn(&mut Vec<u8>)| Value::from(plain(write));
        self.fill(BTreeMap::from([
            ("object", value(object.as_ref())),
            ("old", value(old.as_ref())),
            ("changes", Value::from(changes)),
            ("changed_by", changed_by(record.object().and_then(Object::changed_by))),
            ("type", Value::from(ChangeKind::of(&record.change).as_str())),
            ("cause", Value::from(cause(&record.change))),
            ("cluster", Value::from(encoder.cluster())),
            ("id", Value::from(id(event))),
            ("subject", of_event(&|out| write_subject(out, &event.unit, record, copy))),
            ("time", of_event(&|out| write_time(out, record.time_micros))),
        ]))
        .map_err(FormatError::Template)
    }

    /// Renders a sample event of this kind. The sample has every field that the template reads. A field is printed as `0`; in a
    /// condition, it is `truth`. If this fails with an error other than [`TemplateErrorKind::Unfit`], real events can fail too.
    pub fn try_out(&self, kind: ChangeKind, truth: bool) -> Result<String, TemplateError> {
        let any = || Value::from_object(Sample { truth, depth: 3 });
        let has_old = matches!(kind, ChangeKind::Updated | ChangeKind::Unchanged);
        let change = BTreeMap::from([("path", Value::from("spec.replicas")), ("old", any()), ("new", any())]);
        let sample = |is_there: bool| if is_there { any() } else { Value::from(()) };
        self.fill(BTreeMap::from([
            ("object", sample(kind != ChangeKind::Synced)),
            ("old", sample(has_old)),
            ("changes", Value::from(if has_old { vec![Value::from(change)] } else { Vec::new() })),
            ("changed_by", sample(kind != ChangeKind::Synced)),
            ("type", Value::from(kind.as_str())),
            ("cause", Value::from("watch")),
            ("cluster", Value::from("cluster")),
            ("id", Value::from("5f1c.48211")),
            ("subject", Value::from("/api/v1/namespaces/default/pods/web-1")),
            ("time", Value::from("2026-11-21T06:40:03.123456Z")),
        ]))
    }

    fn fill(&self, variables: BTreeMap<&'static str, Value>) -> Result<String, TemplateError> {
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(variables));
        rendered.map_err(|error| described(&error, &self.text))
    }
}

fn value(json: Option<&Json>) -> Value {
    json.map_or(Value::from(()), |json| Value::from(Serde(json)))
}

/// Returns the changes between two objects. An added field has `none` as `old`, a removed field has `none` as `new`.
fn changes(old: &Json, new: &Json) -> Vec<Value> {
    let change = |change: Difference<'_>| {
        let (old, new) = (value(change.old), value(change.new));
        Value::from(BTreeMap::from([("path", Value::from(change.path)), ("old", old), ("new", new)]))
    };
    differences(old, new).into_iter().map(change).collect()
}

/// Returns the variable `changed_by`. Unknown parts are empty texts; if nothing is known, the variable is `none`.
fn changed_by(who: Option<ChangedBy<'_>>) -> Value {
    let Some(who) = who else { return Value::from(()) };
    let parts = who.parts().map(|(name, part)| (name, Value::from(part)));
    Value::from(BTreeMap::from(parts))
}

fn described(error: &minijinja::Error, text: &str) -> TemplateError {
    let kind = match error.kind() {
        ErrorKind::UndefinedError => TemplateErrorKind::Undefined,
        ErrorKind::SyntaxError
        | ErrorKind::BadEscape
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction => TemplateErrorKind::Wrong,
        _ => TemplateErrorKind::Unfit,
    };
    let column = error.range().and_then(|range| {
        let before = text.get(..range.start)?;
        Some(before[before.rfind('\n').map_or(0, |at| at + 1)..].chars().count() + 1)
    });
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TemplateError { kind, place: error.line().zip(column.or(Some(1))), message }
}

/// Sample value that has every requested field.
#[derive(Clone, Copy, Debug)]
struct Sample {
    truth: bool,
    /// Number of levels of lists that the sample contains.
    depth: u8,
}

impl Reflected for Sample {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, _key: &Value) -> Option<Value> {
        Some(Value::from_object(**self))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if !self.truth || self.depth == 0 {
            return Enumerator::Empty;
        }
        Enumerator::Iter(Box::new(std::iter::once(Value::from_object(Self { depth: self.depth - 1, ..**self }))))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.truth
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0")
    }
}
