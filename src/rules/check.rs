//! Checks of an expression before its evaluation: its names, its functions, and the type of its result.

use std::{collections::HashMap, sync::Arc};

use cel::{
    Context, ExecutionError, IdedExpr, Program, Value,
    common::ast::{CallExpr, Expr, LiteralValue, operators},
};
use regex::{Regex, RegexBuilder};

use super::{
    MATCHES, RuleError,
    limits::RuleLimits,
    reads::{Reader, Step, children},
    when::ENV,
};

/// Maximum number of literal patterns in an expression, if `limits_patterns` is set.
const PATTERNS_MAX: usize = 8;
/// Maximum size in bytes of a compiled pattern. For literal patterns, the maximum applies only with `limits_patterns`.
pub(super) const PATTERN_BYTES_MAX: usize = 256 << 10;
/// Type names to which `type(x)` may be compared.
const TYPES: [&str; 10] = ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "google"];
/// CEL functions whose result can be large, even for short arguments.
const UNBOUNDED: [&str; 2] = ["range", "replace"];
/// Functions that combine all elements of a list. A macro can make a list of any size. Therefore these functions are refused
/// within macros and for the result of a macro.
const JOINING: [&str; 3] = ["join", "format", "flatten"];
/// Further functions to suggest for a misspelt one.
const TEXTUAL: [&str; 6] = ["string", "lowerAscii", "upperAscii", "split", "join", "trim"];
/// Functions allowed within `map`. None of them returns a text, so the size of the result is bounded.
const SMALL: [&str; 19] = [
    MATCHES,
    "startsWith",
    "endsWith",
    "contains",
    "size",
    "indexOf",
    "lastIndexOf",
    "int",
    "uint",
    "double",
    "bool",
    "timestamp",
    "duration",
    "type",
    "getFullYear",
    "getMonth",
    "getDate",
    "getHours",
    "getMinutes",
];
/// Macros. They are not functions and have their own syntax.
const MACROS: [&str; 6] = ["has", "exists", "exists_one", "all", "filter", "map"];
const MACRO_USE: &str = "`has(object.spec.x)`, or `list.exists(x, x == 1)`, the same with all, exists_one, filter, map";

/// Checks an expression without evaluating it. `variables` are the allowed names. Returns the compiled literal
/// patterns; `None` if `matches` is not used.
pub(super) fn check(
    program: &Program,
    variables: &[&str],
    limits: &RuleLimits,
) -> Result<Option<HashMap<String, Regex>>, RuleError> {
    let mut check = Check {
        program,
        variables,
        limits,
        bound: Vec::new(),
        made: Vec::new(),
        chained: 0,
        collects: 0,
        patterns: None,
    };
    check.visit(program.expression())?;
    check.result(program.expression())?;
    Ok(check.patterns)
}

/// Returns true if an expression contains a macro.
fn has_macro(expression: &IdedExpr) -> bool {
    matches!(expression.expr, Expr::Comprehension(_)) || children(expression).into_iter().any(has_macro)
}

struct Check<'a> {
    program: &'a Program,
    variables: &'a [&'a str],
    limits: &'a RuleLimits,
    /// Names of the variables of enclosing macros.
    bound: Vec<&'a str>,
    /// Names of the internal variables in which enclosing macros build their results.
    made: Vec<&'a str>,
    /// Number of macros that contain the current expression, in their range or in their body.
    chained: usize,
    /// Number of enclosing `map` and `filter` macros whose result will contain the value of the current expression.
    collects: usize,
    /// Patterns found so far.
    patterns: Option<HashMap<String, Regex>>,
}

impl<'a> Check<'a> {
    fn visit(&mut self, expression: &'a IdedExpr) -> Result<(), RuleError> {
        match &expression.expr {
            Expr::Ident(name) => self.name(expression, name),
            Expr::Struct(made) => self.refuse(expression, format!("unknown type `{}`", made.type_name)),
            Expr::Comprehension(all) => {
                let RuleLimits { nested, chained, .. } = *self.limits;
                if self.made.len() == nested {
                    let expected = format!("expected a depth of {nested} at most");
                    return self.refuse(expression, format!("macros are nested too deeply, {expected}"));
                }
                if self.chained == chained {
                    let expected = format!("expected {chained} at most");
                    return self.refuse(expression, format!("too many macros use the results of others, {expected}"));
                }
                self.chained += 1;
                self.visit(&all.iter_range)?;
                self.visit(&all.accu_init)?;
                let before = self.bound.len();
                self.made.push(&all.accu_var);
                self.bound.extend([all.iter_var.as_str(), all.accu_var.as_str()]);
                self.bound.extend(all.iter_var2.as_deref());
                for inner in [&all.loop_cond, &all.loop_step, &all.result] {
                    self.visit(inner)?;
                }
                self.bound.truncate(before);
                self.made.pop();
                self.chained -= 1;
                Ok(())
            }
            Expr::Call(call) if call.func_name == operators::ADD && !self.made.is_empty() => {
                // the macros `map` and `filter` expand to this `+`
                let is_own = matches!(&call.args[..], [IdedExpr { expr: Expr::Ident(name), .. }, _]
                    if self.made.contains(&name.as_str()));
                if !is_own {
                    return self.refuse(expression, "`+` is not offered within a macro: its result could be too large");
                }
                self.collects += 1;
                call.args.iter().try_for_each(|part| self.visit(part))?;
                self.collects -= 1;
                Ok(())
            }
            Expr::Call(call) => {
                let is_qualified = self.call(expression, call)?;
                let target = call.target.as_deref().filter(|_| !is_qualified);
                target.into_iter().chain(&call.args).try_for_each(|part| self.visit(part))
            }
            _ => children(expression).into_iter().try_for_each(|part| self.visit(part)),
        }
    }

    fn is_variable(&self, name: &str) -> bool {
        self.bound.contains(&name) || self.variables.contains(&name)
    }

    fn name(&self, at: &IdedExpr, name: &str) -> Result<(), RuleError> {
        if self.is_variable(name) || TYPES.contains(&name) {
            return Ok(());
        }
        let (expected, meant) = (self.variables.join(", "), suggestion(name, self.variables));
        self.refuse(at, format!("unknown variable `{name}`, expected one of {expected}{meant}"))
    }

    /// Checks that the function exists. Returns true if the target of the call is part of the function's name, like
    /// `math` in `math.abs(x)`.
    fn call(&mut self, at: &IdedExpr, call: &CallExpr) -> Result<bool, RuleError> {
        let name = call.func_name.as_str();
        let is_operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
        if is_operator {
            return Ok(false);
        }
        let root = call.target.as_deref().and_then(root);
        let is_qualified = root.is_some_and(|root| !self.is_variable(root));
        if name == MATCHES && !is_qualified {
            return self.pattern(at, call).map(|()| false);
        }
        if UNBOUNDED.contains(&name) {
            return self.refuse(at, format!("`{name}` is not offered: its result could be too large"));
        }
        let mut parts = call.target.as_deref().into_iter().chain(&call.args);
        if JOINING.contains(&name) && (!self.made.is_empty() || parts.any(has_macro)) {
            let where_not = "within a macro or for its result: the text or list could be too large";
            return self.refuse(at, format!("`{name}` is not offered {where_not}"));
        }
        if self.collects > 0 && !SMALL.contains(&name) {
            let expected = SMALL.join(", ");
            return self.refuse(at, format!("`{name}` is not offered within `map`, expected one of {expected}"));
        }
        // a call without arguments fails with different errors for an existing and an unknown function
        let target = match &call.target {
            Some(_) if !is_qualified => Some(Expr::Literal(LiteralValue::Null)),
            Some(target) => Some(target.expr.clone()),
            None => None,
        };
        let target = target.map(|expr| Box::new(IdedExpr { id: 0, expr }));
        let probe = Expr::Call(CallExpr { func_name: name.to_owned(), target, args: Vec::new() });
        let context = Context::with_env(Arc::clone(&ENV));
        match Value::resolve(&IdedExpr { id: 0, expr: probe }, &context) {
            Err(ExecutionError::UndeclaredReference(_)) => {
                let target = root.filter(|_| is_qualified);
                let name = target.map_or_else(|| name.to_owned(), |target| format!("{target}.{name}"));
                if MACROS.contains(&name.as_str()) {
                    return self.refuse(at, format!("`{name}` is not written like this, expected {MACRO_USE}"));
                }
                let meant = suggestion(&name, &[&SMALL[..], &TEXTUAL, &MACROS].concat());
                self.refuse(at, format!("unknown function `{name}`{meant}"))
            }
            _ => Ok(is_qualified),
        }
    }

    fn pattern(&mut self, at: &IdedExpr, call: &CallExpr) -> Result<(), RuleError> {
        let expected = if call.target.is_some() { 1 } else { 2 };
        let last = call.args.last().filter(|_| call.args.len() == expected);
        let Some(pattern) = last else { return self.refuse(at, "`matches` takes a text and a pattern") };
        let patterns = self.patterns.get_or_insert_default();
        let Expr::Literal(LiteralValue::String(text)) = &pattern.expr else {
            let is_refused = self.limits.limits_patterns;
            return if is_refused { self.refuse(at, "`matches` takes only a literal pattern here") } else { Ok(()) };
        };
        let text = text.inner();
        if patterns.contains_key(text) {
            return Ok(());
        }
        let mut builder = RegexBuilder::new(text);
        if self.limits.limits_patterns {
            if patterns.len() == PATTERNS_MAX {
                return self.refuse(at, format!("too many patterns, expected {PATTERNS_MAX} at most"));
            }
            builder.size_limit(PATTERN_BYTES_MAX);
        }
        match builder.build() {
            Ok(compiled) => patterns.insert(text.to_owned(), compiled),
            Err(error) => return self.refuse(at, format!("`matches`: {error}")),
        };
        Ok(())
    }

    /// Rejects an expression whose result is obviously not a boolean.
    fn result(&self, expression: &IdedExpr) -> Result<(), RuleError> {
        let is = match &expression.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => return Ok(()),
            Expr::Literal(LiteralValue::String(_)) => "a string",
            Expr::Literal(LiteralValue::Null) => "null",
            Expr::Literal(LiteralValue::Bytes(_)) => "bytes",
            Expr::Literal(_) => "a number",
            Expr::List(_) => "a list",
            Expr::Map(_) => "a map",
            Expr::Select(_) if is_text(expression) => "a string",
            Expr::Ident(name) if name == "object" || name == "old" => "an object",
            Expr::Ident(name) if name == "changes" => "a list",
            Expr::Ident(name) if name == "type" || name == "cluster" => "a string",
            Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
                (operators::CONDITIONAL, [_, one, other]) => {
                    return self.result(one).and_then(|()| self.result(other));
                }
                (operators::ADD, _) => "a sum",
                (
                    operators::SUBSTRACT
                    | operators::MULTIPLY
                    | operators::DIVIDE
                    | operators::MODULO
                    | operators::NEGATE
                    | "size"
                    | "int"
                    | "uint"
                    | "double",
                    _,
                ) => "a number",
                ("string", _) => "a string",
                ("timestamp", _) => "a time",
                ("duration", _) => "a duration",
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        self.refuse(expression, format!("this is {is}, expected something that is true or false"))
    }

    /// Returns an error at an expression.
    fn refuse<T>(&self, at: &IdedExpr, problem: impl Into<String>) -> Result<T, RuleError> {
        let info = self.program.source_info();
        let offset = info.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        let before: String = info.source.chars().take(offset).collect();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Err(RuleError { line: before.matches('\n').count() + 1, column, problem: problem.into() })
    }
}

/// Returns true if the expression reads a member whose value is a string in every object.
fn is_text(expression: &IdedExpr) -> bool {
    use Step::Member;
    match Reader::default().place(expression).as_deref() {
        Some([_, Member("kind" | "apiVersion")]) => true,
        Some([_, Member("metadata"), Member(field)]) => {
            ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"].contains(field)
        }
        _ => false,
    }
}

/// Returns the first name of `a.b.c`.
fn root(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Ident(name) => Some(name),
        Expr::Select(select) if !select.test => root(&select.operand),
        _ => None,
    }
}

/// Returns the end of a message, with the known name that was probably meant.
fn suggestion(name: &str, known: &[&str]) -> String {
    let distance = |other: &&&str| strsim::damerau_levenshtein(name, other);
    let meant = known.iter().min_by_key(distance).filter(|other| distance(other) <= 2);
    meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default()
}
