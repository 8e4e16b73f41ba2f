//! Checks of a template's syntax tree. They cover every branch, while a trial covers only the branches that it takes.

use std::collections::BTreeSet;

use minijinja::{
    Environment, ErrorKind,
    machinery::{
        Span,
        ast::{BinOp, BinOpKind, Call, CallArg, CallType, Expr, Filter, ForLoop, Macro, Stmt},
    },
};

use super::{TemplateError, TemplateErrorKind, VARIABLES, place};
use crate::{
    object::{FieldUse, PathStep},
    suggestion::nearest,
};

/// Methods of `loop`, the only variable that has methods.
const OF_LOOP: [&str; 2] = ["changed", "cycle"];

/// Filters, for suggestions.
pub(super) const FILTERS: [&str; 47] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "count",
    "default",
    "dictsort",
    "escape",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "urlencode",
    "zip",
];

/// Tests, for suggestions.
pub(super) const TESTS: [&str; 30] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
    "upper",
];

/// Methods of Python, and the syntax of a template with the same meaning.
const INSTEAD: [(&str, &str); 18] = [
    ("items", "`x | items`"),
    ("keys", "`x | list`, or `for key in x`"),
    ("values", "`for key, value in x | items`"),
    ("get", "`x.name | default(\"\")`, or `x[\"name\"] | default(\"\")`"),
    ("upper", "`x | upper`"),
    ("lower", "`x | lower`"),
    ("title", "`x | title`"),
    ("capitalize", "`x | capitalize`"),
    ("split", "`x | split(\",\")`"),
    ("splitlines", "`x | lines`"),
    ("strip", "`x | trim`"),
    ("lstrip", "`x | trim`"),
    ("rstrip", "`x | trim`"),
    ("replace", "`x | replace(\"old\", \"new\")`"),
    ("join", "`list | join(\",\")`"),
    ("format", "`\"%s\" | format(x)`"),
    ("startswith", "`x is startingwith(\"a\")`"),
    ("endswith", "`x is endingwith(\"a\")`"),
];

/// Filters whose result has the elements of their value, or is their value.
const KEEPING: [&str; 10] =
    ["default", "d", "list", "sort", "reverse", "unique", "select", "reject", "selectattr", "rejectattr"];

/// Result of the checks.
#[derive(Debug, Default)]
pub(super) struct TemplateCheck {
    /// Errors that the template causes in every event that reaches them.
    pub(super) mistakes: Vec<TemplateError>,
    /// Fields that the template uses, sorted, each once.
    pub(super) uses: Vec<FieldUse>,
    /// Variables of the event that the template reads.
    pub(super) variables: BTreeSet<&'static str>,
}

/// Checks a template.
pub(super) fn check(tree: &Stmt<'_>, environment: &Environment<'static>, text: &str) -> TemplateCheck {
    let mut check =
        Check { environment, text, callables: Vec::new(), bound: Vec::new(), found: TemplateCheck::default() };
    check.statement(tree);
    let mut found = check.found;
    found.uses.sort_unstable();
    found.uses.dedup();
    found
}

/// Path from a variable to a value. Its first step is the name of the variable.
type Place = Vec<PathStep>;

struct Check<'a> {
    environment: &'a Environment<'static>,
    text: &'a str,
    /// Names of variables that may contain macros, which are then called like methods.
    callables: Vec<&'a str>,
    /// Names that the template binds, with the places of their values. `None` for a value that is no part of a variable.
    bound: Vec<(&'a str, Option<Place>)>,
    found: TemplateCheck,
}

impl<'a> Check<'a> {
    fn statements(&mut self, statements: &[Stmt<'a>]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt<'a>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(all) => self.for_loop(all),
            Stmt::IfCond(branch) => {
                self.expression(&branch.expr);
                self.statements(&branch.true_body);
                self.statements(&branch.false_body);
            }
            Stmt::WithBlock(with) => {
                let outside = self.bound.len();
                for (target, value) in &with.assignments {
                    self.assigned(target, value);
                }
                self.statements(&with.body);
                self.bound.truncate(outside);
            }
            Stmt::Set(set) => self.assigned(&set.target, &set.expr),
            Stmt::SetBlock(set) => {
                self.expressions(set.filter.as_ref());
                self.statements(&set.body);
                self.bind(&set.target, None);
            }
            Stmt::AutoEscape(escape) => {
                self.expression(&escape.enabled);
                self.statements(&escape.body);
            }
            Stmt::FilterBlock(block) => {
                self.expression(&block.filter);
                self.statements(&block.body);
            }
            Stmt::Macro(made) => self.macro_made(made),
            Stmt::CallBlock(block) => {
                self.call(&block.call, block.call.span());
                self.macro_made(&block.macro_decl);
            }
            Stmt::Do(statement) => self.call(&statement.call, statement.call.span()),
            // Text has no names, and the other statements were refused before.
            Stmt::EmitRaw(_)
            | Stmt::Block(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => {}
        }
    }

    fn for_loop(&mut self, all: &ForLoop<'a>) {
        self.expression(&all.iter);
        let outside = self.bound.len();
        let element = |mut place: Place| {
            place.push(PathStep::Each);
            place
        };
        match (&all.target, &all.iter) {
            (Expr::List(names), Expr::Filter(filter)) if matches!(filter.name, "items" | "dictsort") => {
                let value = filter.expr.as_ref().and_then(|map| self.place(map)).map(element);
                for (name, value) in names.items.iter().zip([None, value]) {
                    self.bind(name, value);
                }
            }
            (target, list) => {
                let value = self.place(list).filter(|_| matches!(target, Expr::Var(_))).map(element);
                self.bind(target, value);
            }
        }
        self.expressions(all.filter_expr.as_ref());
        self.statements(&all.body);
        self.bound.truncate(outside);
        self.statements(&all.else_body);
    }

    /// Binds a name, or each name of a list, which then have no place.
    fn bind(&mut self, target: &Expr<'a>, value: Option<Place>) {
        match target {
            Expr::Var(name) => self.bound.push((name.id, value)),
            Expr::List(names) => names.items.iter().for_each(|name| self.bind(name, None)),
            _ => {}
        }
    }

    fn macro_made(&mut self, made: &Macro<'a>) {
        self.expressions(&made.defaults);
        let outside = self.bound.len();
        made.args.iter().for_each(|argument| self.bind(argument, None));
        self.statements(&made.body);
        self.bound.truncate(outside);
    }

    fn assigned(&mut self, target: &Expr<'a>, value: &Expr<'a>) {
        self.expression(value);
        let makes_object = match value {
            Expr::Map(_) => true,
            Expr::Call(call) => matches!(call.identify_call(), CallType::Function("namespace" | "dict")),
            _ => false,
        };
        if let (Expr::Var(name), true) = (target, makes_object) {
            self.callables.push(name.id);
        }
        let place = self.place(value);
        self.bind(target, place);
    }

    fn expressions<'e>(&mut self, expressions: impl IntoIterator<Item = &'e Expr<'a>>)
    where
        'a: 'e,
    {
        expressions.into_iter().for_each(|expression| self.expression(expression));
    }

    fn expression(&mut self, expression: &Expr<'a>) {
        match expression {
            Expr::Const(_) => {}
            // A name that the template binds itself may hide the variable: then the variable is only decoded in vain.
            Expr::Var(name) => self.found.variables.extend(VARIABLES.into_iter().find(|variable| *variable == name.id)),
            Expr::Slice(slice) => {
                let bounds = [&slice.start, &slice.stop, &slice.step].into_iter().flatten();
                self.expressions(std::iter::once(&slice.expr).chain(bounds));
            }
            Expr::UnaryOp(operator) => self.expression(&operator.expr),
            Expr::BinOp(operator) => {
                self.compare(operator);
                self.expressions([&operator.left, &operator.right]);
            }
            Expr::Compare(all) => {
                self.expressions(std::iter::once(&all.expr).chain(all.ops.iter().map(|other| &other.expr)));
            }
            Expr::IfExpr(choice) => {
                self.expressions([&choice.test_expr, &choice.true_expr].into_iter().chain(&choice.false_expr));
            }
            Expr::Filter(filter) => {
                self.filters(filter, filter.span());
                self.expressions(&filter.expr);
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                self.test(test.name, test.span());
                self.expression(&test.expr);
                self.arguments(&test.args);
            }
            Expr::GetAttr(member) => {
                self.uses(expression);
                self.expression(&member.expr);
            }
            Expr::GetItem(item) => {
                self.uses(expression);
                self.expressions([&item.expr, &item.subscript_expr]);
            }
            Expr::Call(call) => self.call(call, call.span()),
            Expr::List(list) => self.expressions(&list.items),
            Expr::Tuple(tuple) => self.expressions(&tuple.items),
            Expr::Map(map) => self.expressions(map.keys.iter().chain(&map.values)),
        }
    }

    /// Returns the place of an expression's value; `None` if the value is no part of a variable.
    fn place(&self, expression: &Expr<'a>) -> Option<Place> {
        let (inner, step) = match expression {
            Expr::Var(name) => {
                if let Some((_, place)) = self.bound.iter().rev().find(|(bound, _)| *bound == name.id) {
                    return place.clone();
                }
                return VARIABLES.contains(&name.id).then(|| vec![PathStep::Member(name.id.into())]);
            }
            Expr::GetAttr(member) => (&member.expr, Some(PathStep::Member(member.name.into()))),
            Expr::GetItem(item) => match &item.subscript_expr {
                Expr::Const(key) if key.value.as_str().is_some() => {
                    (&item.expr, key.value.as_str().map(|key| PathStep::Member(key.into())))
                }
                _ => (&item.expr, Some(PathStep::Each)),
            },
            Expr::Filter(filter) if KEEPING.contains(&filter.name) => (filter.expr.as_ref()?, None),
            Expr::Filter(filter) if matches!(filter.name, "first" | "last") => {
                (filter.expr.as_ref()?, Some(PathStep::Each))
            }
            _ => return None,
        };
        let mut place = self.place(inner)?;
        place.extend(step);
        Some(place)
    }

    /// Records the use of a field.
    fn uses(&mut self, expression: &Expr<'a>) {
        self.found.uses.extend(self.place(expression).map(|path| FieldUse { path, compared: None }));
    }

    /// Records a comparison of a field with a text, or with each text of a list.
    fn compare(&mut self, operator: &BinOp<'a>) {
        let (part, texts) = match (operator.op, &operator.left, &operator.right) {
            (BinOpKind::Eq | BinOpKind::Ne, part, literal @ Expr::Const(_))
            | (BinOpKind::Eq | BinOpKind::Ne, literal @ Expr::Const(_), part) => (part, std::slice::from_ref(literal)),
            (BinOpKind::In, part, Expr::List(list)) => (part, list.items.as_slice()),
            (BinOpKind::In, part, Expr::Tuple(tuple)) => (part, tuple.items.as_slice()),
            _ => return,
        };
        let Some(path) = self.place(part) else { return };
        let texts = texts.iter().filter_map(|text| match text {
            Expr::Const(literal) => literal.value.as_str(),
            _ => None,
        });
        self.found.uses.extend(texts.map(|text| FieldUse { path: path.clone(), compared: Some(text.into()) }));
    }

    fn arguments(&mut self, arguments: &[CallArg<'a>]) {
        for argument in arguments {
            let (CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value)) = argument;
            self.expression(value);
        }
    }

    fn call(&mut self, call: &Call<'a>, span: Span) {
        match call.identify_call() {
            CallType::Function(name) if VARIABLES.contains(&name) => {
                self.wrong(span, format!("`{name}` is a value, not a function"));
            }
            CallType::Function(_) => {}
            CallType::Block(name) => self.unknown_method(name, span),
            CallType::Method(receiver, name) => {
                self.method(receiver, name, span);
                self.expression(receiver);
            }
            CallType::Object(made) => self.expression(made),
        }
        self.arguments(&call.args);
    }

    fn method(&mut self, receiver: &Expr<'a>, name: &str, span: Span) {
        if let Expr::Var(variable) = receiver
            && (self.callables.contains(&variable.id) || variable.id == "loop" && OF_LOOP.contains(&name))
        {
            return;
        }
        self.unknown_method(name, span);
    }

    fn unknown_method(&mut self, name: &str, span: Span) {
        let instead = INSTEAD.iter().find(|(method, _)| *method == name);
        let instead = instead.map(|(_, instead)| format!("; write {instead}")).unwrap_or_default();
        self.wrong(span, format!("unknown method `.{name}()`: values have filters instead of methods{instead}"));
    }

    /// Checks the name of a filter, and the name of a filter or test in its arguments.
    fn filters(&mut self, filter: &Filter<'a>, span: Span) {
        self.filter(filter.name, span);
        match (filter.name, positional(&filter.args).as_slice()) {
            ("map", [Some(name), ..]) => self.filter(name, span),
            ("select" | "reject", [Some(name), ..]) | ("selectattr" | "rejectattr", [_, Some(name), ..]) => {
                self.test(name, span);
            }
            _ => {}
        }
    }

    /// Reports an unknown filter. Without arguments, a known one fails with another error, or not at all.
    fn filter(&mut self, name: &str, span: Span) {
        let tried = self.environment.empty_state().apply_filter(name, &[]);
        if tried.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter) {
            let hint = nearest(name, FILTERS).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.wrong(span, format!("unknown filter `{name}`{hint}"));
        }
    }

    /// Reports an unknown test, as [`Check::filter`] does.
    fn test(&mut self, name: &str, span: Span) {
        let tried = self.environment.empty_state().perform_test(name, &[]);
        if tried.is_err_and(|error| error.kind() == ErrorKind::UnknownTest) {
            let hint = nearest(name, TESTS).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.wrong(span, format!("unknown test `{name}`{hint}"));
        }
    }

    fn wrong(&mut self, span: Span, message: String) {
        let place = Some(place(self.text, span.start_offset as usize));
        self.found.mistakes.push(TemplateError { kind: TemplateErrorKind::Wrong, place, message });
    }
}

/// Returns the texts of the positional arguments, `None` for those that are not literal texts.
fn positional(arguments: &[CallArg<'_>]) -> Vec<Option<String>> {
    let literal = |argument: &CallArg<'_>| match argument {
        CallArg::Pos(Expr::Const(literal)) => literal.value.as_str().map(str::to_owned),
        _ => None,
    };
    arguments.iter().map(literal).collect()
}
