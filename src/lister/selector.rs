//! Label selectors and field selectors, in kubectl's syntax.

pub(crate) mod computed;
#[cfg(test)]
mod testing;

use std::borrow::Cow;

use computed::ComputedField;

use crate::object::{FieldPath, Object, Plucker};

/// Filter of a list. An object must match both selectors. The default matches all objects (L-2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Requirements on labels.
    pub labels: LabelSelector,
    /// Requirements on fields.
    pub fields: FieldSelector,
}

impl Selector {
    /// Returns a selector that matches everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns true if the selector matches everything.
    pub fn is_all(&self) -> bool {
        self.labels.requirements.is_empty() && self.fields.terms.is_empty()
    }

    /// Returns true if the requirements contradict each other, so that no object needs to be checked (L-2).
    pub fn is_nothing(&self) -> bool {
        self.labels.is_nothing()
    }

    /// Returns true if `object` matches. Parses the object, unless namespace and name are enough.
    pub fn matches(&self, object: &Object) -> bool {
        self.fields.matches(object) && self.labels.matches(object)
    }
}

impl From<LabelSelector> for Selector {
    fn from(labels: LabelSelector) -> Self {
        Self { labels, fields: FieldSelector::default() }
    }
}

impl From<FieldSelector> for Selector {
    fn from(fields: FieldSelector) -> Self {
        Self { labels: LabelSelector::default(), fields }
    }
}

/// Syntax error of a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid selector {:?} at byte {at}: {}", beginning(.selector), beginning(.problem))]
pub struct SelectorError {
    selector: String,
    at: usize,
    problem: String,
}

/// Maximum length of an invalid text in an error, in characters.
const SHOWN_MAX: usize = 200;

/// Returns the start of an invalid text, for an error message. A client may send a text of any length.
pub(crate) fn beginning(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// Requirements on labels, all of which must hold: `app=web,tier in (a,b),!canary`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq)]
enum Operator {
    /// `=`, `==`, `in`: the label is present with one of these values.
    In(Vec<String>),
    /// `!=`, `notin`: the label is absent, or has none of these values.
    NotIn(Vec<String>),
    Exists,
    Absent,
    GreaterThan(i64),
    LessThan(i64),
}

impl Operator {
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
            Self::NotIn(values) => value.is_none_or(|value| values.iter().all(|unwanted| unwanted != value)),
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Self::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }

    /// Returns true if no label, present or absent, can meet both requirements. Some contradictions are found only if `self` and
    /// `other` change places, and contradictory bounds (`>5`, `<3`) never.
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, Self::In(_) | Self::Exists | Self::GreaterThan(_) | Self::LessThan(_)) => true,
            (Self::In(values), other) => values.iter().all(|value| !other.matches(Some(value))),
            _ => false,
        }
    }
}

impl LabelSelector {
    /// Parses a selector; an empty one matches everything.
    pub fn parse(selector: &str) -> Result<Self, SelectorError> {
        let error = |(at, problem)| SelectorError { selector: selector.to_owned(), at, problem };
        let requirements = LabelParser { text: selector, at: 0 }.requirements().map_err(error)?;
        Ok(Self { requirements })
    }

    /// Returns true if two requirements contradict each other. Contradictory bounds such as `a>5,a<3` are not found.
    pub fn is_nothing(&self) -> bool {
        let all = &self.requirements;
        all.iter().any(|one| all.iter().any(|other| one.key == other.key && one.operator.excludes(&other.operator)))
    }

    /// Returns true if the labels satisfy every requirement; `label` returns the value of a label.
    pub fn matches_labels<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.operator.matches(label(&requirement.key)))
    }

    /// Returns true if the labels of `object` satisfy every requirement. Labels that cannot be read count as absent.
    pub fn matches(&self, object: &Object) -> bool {
        if self.requirements.is_empty() {
            return true;
        }
        let labels = object.labels();
        self.matches_labels(|key| labels.iter().find(|(label, _)| label == key).map(|(_, value)| &**value))
    }
}

type Problem = (usize, String);

/// Parser of `requirement,requirement`. Blanks are allowed between all words.
struct LabelParser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> LabelParser<'a> {
    fn requirements(mut self) -> Result<Vec<Requirement>, Problem> {
        let mut requirements = Vec::new();
        self.skip_blanks();
        while !self.rest().is_empty() {
            if !requirements.is_empty() {
                self.expect(",", "`,` or the end")?;
            }
            requirements.push(self.requirement()?);
        }
        Ok(requirements)
    }

    fn requirement(&mut self) -> Result<Requirement, Problem> {
        if self.eat("!") {
            let key = self.key()?;
            return Ok(Requirement { key, operator: Operator::Absent });
        }
        let key = self.key()?;
        let operator = if self.eat("!=") {
            Operator::NotIn(vec![self.value()?])
        } else if self.eat("==") || self.eat("=") {
            Operator::In(vec![self.value()?])
        } else if self.eat(">") {
            Operator::GreaterThan(self.number()?)
        } else if self.eat("<") {
            Operator::LessThan(self.number()?)
        } else if self.rest().is_empty() || self.rest().starts_with(',') {
            Operator::Exists
        } else {
            let at = self.at;
            match self.word() {
                "in" => Operator::In(self.values()?),
                "notin" => Operator::NotIn(self.values()?),
                _ => {
                    return Err((
                        at,
                        "expected one of `=`, `==`, `!=`, `in`, `notin`, `>`, `<`, `,` or the end".into(),
                    ));
                }
            }
        };
        Ok(Requirement { key, operator })
    }

    fn key(&mut self) -> Result<String, Problem> {
        let at = self.at;
        let key = self.word();
        match key_problem(key) {
            Some(problem) => Err((at, format!("{problem}: {key:?}"))),
            None => Ok(key.to_owned()),
        }
    }

    fn value(&mut self) -> Result<String, Problem> {
        let at = self.at;
        let value = self.word();
        if is_value(value) { Ok(value.to_owned()) } else { Err((at, format!("not a label value: {value:?}"))) }
    }

    fn number(&mut self) -> Result<i64, Problem> {
        let at = self.at;
        let word = self.word();
        word.parse().map_err(|_| (at, format!("expected a whole number, found {word:?}")))
    }

    fn values(&mut self) -> Result<Vec<String>, Problem> {
        self.expect("(", "`(`")?;
        // As in the API server, no value is the empty value.
        let mut values = vec![self.value()?];
        while self.eat(",") {
            values.push(self.value()?);
        }
        self.expect(")", "`,` or `)`")?;
        Ok(values)
    }

    fn expect(&mut self, token: &str, what: &str) -> Result<(), Problem> {
        if self.eat(token) { Ok(()) } else { Err((self.at, format!("expected {what}"))) }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
            self.skip_blanks();
        }
        found
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| "=!(),<>".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
        self.at += end;
        self.skip_blanks();
        &rest[..end]
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
}

fn key_problem(key: &str) -> Option<&'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let dns = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if key.is_empty() {
        Some("expected a label key")
    } else if prefix.is_some_and(|prefix| prefix.is_empty() || prefix.len() > 253 || !prefix.chars().all(dns)) {
        Some("not a domain before the `/` of a label key")
    } else if name.is_empty() || !is_value(name) {
        Some("not a label key")
    } else {
        None
    }
}

/// Returns true if `value` is a valid label value: up to 63 letters, digits, `-`, `_`, `.`, alphanumeric at both ends.
fn is_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= 63
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Conditions on fields, all of which must hold: `metadata.namespace=a,status.phase!=Running`.
///
/// Any path is allowed. An absent field counts as the empty text, like in the API server. A path with `[*]` may select
/// several values: `=` holds if one of them is equal, and `!=` holds if none is. Some fields of built-in types are
/// computed, as the API server does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
    /// Paths of the terms. One pass over an object reads the values at all paths.
    plucker: Plucker,
}

#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    field: Field,
    equal: bool,
    value: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Name,
    Namespace,
    Uid,
    /// Position of the path in `plucker`.
    Path(usize),
    /// Field that is computed in objects of some types.
    Computed(Computed),
}

/// Positions in `plucker` of the values from which a field is computed.
#[derive(Clone, Debug, PartialEq)]
struct Computed {
    api_version: usize,
    kind: usize,
    /// The field itself, for other types.
    own: usize,
    /// Computed fields of this name, each with the positions of its paths.
    fields: Vec<(&'static ComputedField, Vec<usize>)>,
}

impl Computed {
    /// Returns the field in an object whose values are `plucked`.
    fn values<'a>(&self, plucked: &'a [Vec<String>]) -> Cow<'a, [String]> {
        let is = |at: usize, text: &str| plucked[at].iter().any(|value| value == text);
        let of_type =
            |(field, _): &&(&ComputedField, _)| is(self.kind, field.kind) && is(self.api_version, field.api_version);
        let Some((field, paths)) = self.fields.iter().find(of_type) else { return plucked[self.own].as_slice().into() };
        let mut values = paths.iter().flat_map(|at| &plucked[*at]).filter(|value| !value.is_empty());
        vec![values.next().map_or_else(|| field.absent.to_owned(), String::clone)].into()
    }
}

impl FieldSelector {
    /// Parses a selector; an empty one matches everything. A backslash before `,`, `=` or `\` escapes that character.
    pub fn parse(selector: &str) -> Result<Self, SelectorError> {
        let (mut terms, mut paths) = (Vec::new(), Vec::new());
        let mut at = 0;
        for text in split_terms(selector) {
            if !text.trim().is_empty() {
                let error = |problem| SelectorError { selector: selector.to_owned(), at, problem };
                terms.push(field_term(text, &mut paths).map_err(error)?);
            }
            at += text.len() + 1;
        }
        Ok(Self { terms, plucker: Plucker::new(&paths) })
    }

    /// Returns the namespace that the selector requires, if any.
    pub fn namespace(&self) -> Option<&str> {
        let term = self.terms.iter().find(|term| term.equal && term.field == Field::Namespace)?;
        Some(&term.value)
    }

    /// Returns the object name that the selector requires, if any. The API server then also accepts a right on only this object.
    pub(crate) fn name(&self) -> Option<&str> {
        let term = self.terms.iter().find(|term| term.equal && term.field == Field::Name)?;
        Some(&term.value)
    }

    /// Returns true if `object` satisfies every condition.
    pub fn matches(&self, object: &Object) -> bool {
        let is_of_identity = |term: &&FieldTerm| !matches!(term.field, Field::Path(_) | Field::Computed(_));
        let mut of_identity = self.terms.iter().filter(is_of_identity);
        if !of_identity.all(|term| term.matches(object, &[])) {
            return false;
        }
        let plucked = if self.plucker.is_empty() { Vec::new() } else { object.pluck_many(&self.plucker) };
        self.terms.iter().all(|term| term.matches(object, &plucked))
    }
}
impl FieldTerm {
    /// Returns true if `object` satisfies the condition; `plucked` has the values of the selector's paths.
    fn matches(&self, object: &Object, plucked: &[Vec<String>]) -> bool {
        let equal = match &self.field {
            Field::Name => object.name() == self.value,
            Field::Namespace => object.namespace() == self.value,
            Field::Uid => object.uid() == self.value,
            Field::Path(place) => self.is_among(&plucked[*place]),
            Field::Computed(computed) => self.is_among(&computed.values(plucked)),
        };
        equal == self.equal
    }

    fn is_among(&self, values: &[String]) -> bool {
        values.contains(&self.value) || values.is_empty() && self.value.is_empty()
    }
}

/// Splits at commas that are not escaped with a backslash.
fn split_terms(selector: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in selector.char_indices() {
        if c == ',' && !escaped {
            terms.push(&selector[start..at]);
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    terms.push(&selector[start..]);
    terms
}

/// Parses one term; its path is appended to `paths`.
fn field_term(text: &str, paths: &mut Vec<FieldPath>) -> Result<FieldTerm, String> {
    let at = text.find(['=', '!']).ok_or("expected `=`, `==` or `!=`")?;
    let (path, rest) = text.split_at(at);
    let found = [("!=", false), ("==", true), ("=", true)]
        .into_iter()
        .find_map(|(operator, equal)| rest.strip_prefix(operator).map(|value| (equal, value)));
    let (equal, value) = found.ok_or("expected `=`, `==` or `!=`")?;
    let mut position = |path: &str| {
        paths.push(FieldPath::parse(path).map_err(|error| format!("not a field path: {error}"))?);
        Ok::<_, String>(paths.len() - 1)
    };
    let field = match path.trim() {
        "metadata.name" => Field::Name,
        "metadata.namespace" => Field::Namespace,
        "metadata.uid" => Field::Uid,
        path if computed::named(path).next().is_some() => {
            let mut positions = |field: &'static ComputedField| {
                let paths = field.paths.iter().map(|path| position(path)).collect::<Result<_, String>>();
                Ok((field, paths?))
            };
            let fields = computed::named(path).map(&mut positions).collect::<Result<_, String>>()?;
            let [api_version, kind, own] = ["apiVersion", "kind", path].map(&mut position);
            Field::Computed(Computed { api_version: api_version?, kind: kind?, own: own?, fields })
        }
        path => Field::Path(position(path)?),
    };
    Ok(FieldTerm { field, equal, value: unescape(value)? })
}

fn unescape(value: &str) -> Result<String, String> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ (',' | '=' | '\\')) => text.push(c),
                _ => return Err("expected `,`, `=` or a backslash after a backslash".into()),
            },
            '=' => return Err("expected `\\=` for a `=` in a value".into()),
            c => text.push(c),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta_fifo::tests::object_with;

    #[track_caller]
    fn labels(selector: &str, expected: bool) {
        let object = crate::object::Object::assemble(
            crate::object::Identity { name: "web", ..<_>::default() },
            &[br#"{"metadata":{"labels":{"app":"web","tier":"","x.io/n":"7","in":"yes"}}}"#],
        );
        let parsed = LabelSelector::parse(selector).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parsed.matches(&object), expected, "{selector}");
    }

    #[test]
    fn every_kubectl_operator_selects() {
        for selector in [
            "",
            " ",
            "app",
            "app=web",
            "app==web",
            " app = web ",
            "app!=db",
            "none!=db",
            "!none",
            "! none",
            "app in (db,web)",
            "app in ( web )",
            "app notin (db, x)",
            "none notin (a)",
            "tier=",
            "tier",
            "tier in (,a)",
            "tier in ()",
            "app notin ( )",
            "none notin ()",
            "x.io/n=7",
            "x.io/n>6",
            "x.io/n<8",
            "app=web,!none,x.io/n>0",
            "in",
            "in=yes",
            "in in (yes)",
            "tier==,app",
        ] {
            labels(selector, true);
        }
        for selector in [
            "none",
            "app=db",
            "app!=web",
            "!app",
            "app in (db)",
            "app notin (web)",
            "none in (a)",
            "app in ()",
            "none in ()",
            "tier notin ()",
            "none=",
            "tier!=",
            "x.io/n>7",
            "x.io/n<7",
            "app>1",
            "none<1",
            "app=web,none",
            "App=web",
        ] {
            labels(selector, false);
        }
    }

    #[track_caller]
    fn refused(selector: &str, at: usize, problem: &str) {
        let error = LabelSelector::parse(selector).expect_err(selector);
        assert_eq!(error.at, at, "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }

    #[test]
    fn label_selector_mistake_is_named_with_position() {
        refused(",", 0, "expected a label key");
        refused("app,", 4, "expected a label key");
        refused("app web", 4, "expected one of");
        refused("app in web", 7, "expected `(`");
        refused("app in (web", 11, "expected `,` or `)`");
        refused("app=we b", 7, "expected `,` or the end");
        refused("app=-web", 4, "not a label value");
        refused("app=web=x", 7, "expected `,` or the end");
        refused("n>many", 2, "whole number");
        refused("!=x", 1, "expected a label key");
        refused("a/b/c=1", 0, "not a label key");
        refused("X.io/b=1", 0, "not a domain");
        refused("-a", 0, "not a label key");
        refused(&format!("a={}", "x".repeat(64)), 2, "not a label value");
    }

    /// Rule: L-2.
    #[test]
    fn contradictory_selector_matches_nothing() {
        for nothing in ["a=b,a=c", "a,!a", "a=b,!a", "a=b,a!=b", "a in (b,c),a notin (c,b)", "a=1,a>1"] {
            assert!(LabelSelector::parse(nothing).unwrap().is_nothing(), "{nothing}");
        }
        for something in ["", "a=b,c=d", "a in (b,c),a=c", "!a,a!=b", "!a,a notin (b)", "a,a!=b", "a=2,a>1"] {
            assert!(!LabelSelector::parse(something).unwrap().is_nothing(), "{something}");
        }
    }

    #[test]
    fn fields_are_compared_as_text() {
        let object = object_with("ns/web", "u", "1", r#","spec":{"nodeName":"n,1","ports":[{"port":80},{"port":81}]}"#);
        let matches = |selector: &str| FieldSelector::parse(selector).expect(selector).matches(&object);
        for yes in [
            "",
            "metadata.name=web",
            "metadata.namespace==ns,metadata.name!=db",
            r"spec.nodeName=n\,1",
            "status.phase=",
            "spec.ports[*].port=81",
            "status.phase!=Running",
            "metadata.uid=u",
            "metadata.name=web,",
        ] {
            assert!(matches(yes), "{yes}");
        }
        for no in ["metadata.name=db", "metadata.namespace!=ns", "spec.nodeName=", "status.phase=Running"] {
            assert!(!matches(no), "{no}");
        }
        assert_eq!(FieldSelector::parse("a.b!=c,metadata.namespace=x").unwrap().namespace(), Some("x"));
        let name = |selector: &str| FieldSelector::parse(selector).unwrap().name().map(str::to_owned);
        assert_eq!(name("type=Opaque,metadata.name==x").as_deref(), Some("x"));
        assert_eq!(["metadata.name!=x", "a.b=x"].map(name), [None, None]);
    }

    #[test]
    fn computed_fields_follow_api_server() {
        let check = |api_version: &str, kind: &str, rest: &str, selector: &str, expected: bool| {
            let json = format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{"name":"a"}}{rest}}}"#);
            let object = crate::object::Object::from_json(json.as_bytes()).unwrap();
            for (term, expected) in [(selector.to_owned(), expected), (selector.replace('=', "!="), !expected)] {
                assert_eq!(FieldSelector::parse(&term).unwrap().matches(&object), expected, "{kind} {rest} {term}");
            }
        };
        check("v1", "Node", "", "spec.unschedulable=false", true);
        check("v1", "Node", "", "spec.unschedulable=", false);
        check("v1", "Node", r#","spec":{"unschedulable":true}"#, "spec.unschedulable=true", true);
        check("v1", "Pod", r#","spec":{"nodeName":"n"}"#, "spec.hostNetwork=false", true);
        check("v1", "Pod", "", "spec.nodeName=", true);
        check("batch/v1", "Job", "", "status.successful=0", true);
        check("batch/v1", "Job", r#","status":{"succeeded":3}"#, "status.successful=3", true);
        check("batch/v1", "Job", r#","status":{"succeeded":3}"#, "status.successful=0", false);
        check("v1", "ReplicationController", "", "status.replicas=0", true);
        let event = r#","source":{"component":"kubelet"},"reportingComponent":"x""#;
        check("v1", "Event", event, "source=kubelet", true);
        check("v1", "Event", event, "source=x", false);
        check("v1", "Event", r#","source":{},"reportingComponent":"x""#, "source=x", true);
        check("v1", "Event", "", "source=", true);
        check("events.k8s.io/v1", "Event", event, "source=kubelet", false);
        check("acme.io/v1", "Node", "", "spec.unschedulable=", true);
        check("acme.io/v1", "Job", r#","status":{"successful":"yes"}"#, "status.successful=yes", true);
    }

    #[test]
    fn field_selector_mistake_is_named_with_position() {
        for (selector, at, problem) in [
            ("a.b", 0, "expected `=`"),
            ("a=b,c", 4, "expected `=`"),
            ("a=b=c", 0, r"\="),
            ("a!b", 0, "expected `=`"),
            (".a=b", 0, "not a field path"),
            (r"a=b\x", 0, "after a backslash"),
        ] {
            let error = FieldSelector::parse(selector).expect_err(selector);
            assert_eq!(error.at, at, "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        }
    }
}
