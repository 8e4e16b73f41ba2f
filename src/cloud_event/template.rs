//! Templates: a text with placeholders for the fields of an event, in the Jinja language.

mod check;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, functions,
    machinery::parse,
    syntax::SyntaxConfig,
    value::{Enumerator, Object as Reflected, ObjectRepr, Serde, Value},
};
use serde_json::Value as Json;

use self::check::{TemplateCheck, check};
use super::{
    Encoder, cause, copy,
    error::{FormatError, TemplateError, TemplateErrorKind, decoded},
    id, plain, write_subject, write_time,
};
use crate::{
    journal::ChangeKind,
    notification::Event,
    object::{
        ChangedBy, FieldUse, Object,
        difference::{Difference, differences},
    },
    text::print_size,
};

/// Variables of a template. `object`, `old` and `changed_by` are `none` if the event has no such value. `changes` is empty if
/// `old` or `object` is `none`.
pub(crate) const VARIABLES: [&str; 10] =
    ["object", "old", "type", "cause", "changes", "changed_by", "cluster", "id", "subject", "time"];

/// Name of the template in its environment.
const NAME: &str = "template";

/// Maximum number of steps of one rendering. An operator, an output and an iteration of a loop are one step each.
const STEPS_MAX: u64 = 1_000_000;

/// Maximum number of elements of `range`. A filter takes one step, but its work grows with the number of elements.
const RANGE_MAX: usize = 10_000;

/// Maximum size of the output, in bytes.
const OUTPUT_MAX: usize = 64 << 20;

/// A compiled template. Unknown names are errors, nothing is escaped, and `tojson` writes JSON. A rendering ends after
/// [`STEPS_MAX`] steps.
#[derive(Clone, Debug)]
pub struct Template {
    environment: Environment<'static>,
    text: Box<str>,
    mistakes: Vec<TemplateError>,
    uses: Vec<FieldUse>,
    /// Names that the template reads from its context.
    names: BTreeSet<String>,
}

impl Template {
    /// Compiles a template.
    pub fn compile(text: &str) -> Result<Self, TemplateError> {
        if let Some((span, message)) = tokens::refused(text) {
            let place = Some(place(text, span.start_offset as usize));
            return Err(TemplateError { kind: TemplateErrorKind::Wrong, place, message });
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(STEPS_MAX));
        environment.add_function("range", range);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_debug(true); // errors have their line and column
        environment.add_template_owned(NAME, text.to_owned()).map_err(|error| described(&error, text))?;
        let template = environment.get_template(NAME).map_err(|error| described(&error, text))?;
        let tree = parse(text, NAME, SyntaxConfig::default()).map_err(|error| described(&error, text))?;
        let TemplateCheck { mistakes, uses, variables } = check(&tree, &environment, text);
        let globals: BTreeSet<_> = environment.globals().map(|(name, _)| name.to_owned()).collect();
        let names = template.undeclared_variables(false).into_iter().filter(|name| !globals.contains(name));
        // minijinja overlooks names that stand only before a slice, as in `object[:2]`.
        let names = names.chain(variables.into_iter().map(str::to_owned)).collect();
        Ok(Self { environment, text: text.into(), mistakes, uses, names })
    }

    /// Returns the errors that every event causes if it reaches them: unknown filters, tests and methods, in all branches.
    pub fn mistakes(&self) -> &[TemplateError] {
        &self.mistakes
    }

    /// Returns the names that the template reads, except those in [`VARIABLES`].
    pub fn unknown_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str).filter(|name| !VARIABLES.contains(name))
    }

    /// Returns the fields that the template uses, with their variables.
    pub(crate) fn uses(&self) -> &[FieldUse] {
        &self.uses
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
            ("changed_by", changed_by(record.changed_by())),
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
            ("changed_by", sample(matches!(kind, ChangeKind::Added | ChangeKind::Updated | ChangeKind::Unchanged))),
            ("type", Value::from(kind.as_str())),
            ("cause", Value::from("watch")),
            ("cluster", Value::from("cluster")),
            ("id", Value::from("5f1c.48211")),
            ("subject", Value::from("/api/v1/namespaces/default/pods/web-1")),
            ("time", Value::from("2026-11-21T06:40:03.123456Z")),
        ]))
    }

    fn fill(&self, variables: BTreeMap<&'static str, Value>) -> Result<String, TemplateError> {
        let mut output = Output(Vec::new());
        let render = || self.environment.get_template(NAME)?.render_captured_to(variables, &mut output).map(drop);
        let rendered = catch_unwind(AssertUnwindSafe(render)).unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                "a filter, test or method of the template language has panicked",
            ))
        });
        rendered.map_err(|error| described(&error, &self.text))?;
        Ok(String::from_utf8(output.0).expect("a template writes text"))
    }
}

/// Output of a rendering, at most [`OUTPUT_MAX`] bytes.
struct Output(Vec<u8>);

impl io::Write for Output {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > OUTPUT_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the numbers of a range, at most [`RANGE_MAX`].
fn range(lower: isize, upper: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    let range = functions::range(lower, upper, step).ok();
    let range = range.filter(|range| range.len().is_some_and(|len| len <= RANGE_MAX));
    let expected = || format!("`range` has more than {RANGE_MAX} elements, or a step of 0");
    range.ok_or_else(|| Error::new(ErrorKind::OutOfFuel, expected()))
}

fn value(json: Option<&Json>) -> Value {
    json.map_or(Value::from(()), |json| Value::from(Serde(json)))
}

/// Returns the changes between two objects. An added field has `none` as `old`, a removed field has `none` as `new`.
fn changes(old: &Json, new: &Json) -> Vec<Value> {
    let change = |change: Difference<'_>| {
        let (old, new) = (value(change.old.as_deref()), value(change.new.as_deref()));
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

fn described(error: &Error, text: &str) -> TemplateError {
    let kind = match error.kind() {
        ErrorKind::UndefinedError => TemplateErrorKind::Undefined,
        ErrorKind::SyntaxError
        | ErrorKind::BadEscape
        | ErrorKind::UnknownFilter
        | ErrorKind::UnknownTest
        | ErrorKind::UnknownFunction
        | ErrorKind::UnknownMethod
        | ErrorKind::MissingArgument
        | ErrorKind::TooManyArguments
        | ErrorKind::OutOfFuel => TemplateErrorKind::Wrong,
        _ => TemplateErrorKind::Unfit,
    };
    let in_text = error.range().map(|range| place(text, range.start));
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, Some(detail)) => detail.to_owned(),
        (ErrorKind::OutOfFuel, None) => {
            format!("takes more than {STEPS_MAX} steps: expected fewer or shorter loops, for example without nesting")
        }
        (ErrorKind::WriteFailure, _) => format!("the output is larger than {}", print_size(OUTPUT_MAX as u64)),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    TemplateError { kind, place: in_text.or(error.line().map(|line| (line, 1))), message }
}

/// Returns the line and column of a byte offset, both from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
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

    /// Fails as a call of a real value does.
    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, _arguments: &[Value]) -> Result<Value, Error> {
        Err(Error::new(ErrorKind::UnknownFunction, "a value of the event is not a function"))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0")
    }
}
