//! `when`: a CEL expression over one change.

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use cel::{
    Context, Env, ExecutionError, IdedExpr, Program, Value,
    common::{
        types::{CelBool, CelList, CelMap, CelMapKey, CelNull, CelString},
        value::CowVal,
    },
    context::VariableResolver,
    extensions,
    extractors::This,
};
use regex::{Regex, RegexBuilder};

use super::{
    MATCHES, RuleError, RuleVerdict,
    check::{PATTERN_BYTES_MAX, check},
    limits::RuleLimits,
    meter::{Meter, STEP, Weight, instrument},
    reads::{Part, Reads, children},
    subject::{Before, State, Subject},
    value::{Any, decode},
};
use crate::object::{FieldUse, difference::paths_between};

/// Maximum length of an error, in characters.
const ERROR_MAX: usize = 300;

/// Maximum size of an expression in bytes, and maximum number of its [`SIGNS`]. Each sign may add a level. The parser is
/// recursive, and for some forms it has no limit of its own.
const TEXT_MAX: usize = 4 << 10;
const SIGNS_MAX: usize = 400;
const SIGNS: &[u8] = b"+-*/%.?([{!<>=";
/// Maximum depth of an expression. The evaluation is recursive and must not overflow the normal stack of a thread.
const DEPTH_MAX: usize = 100;

/// The functions and macros of CEL, with its usual extensions.
pub(super) static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, extensions::math] {
        env.add_extension(extension).expect("the extensions do not overlap");
    }
    Arc::new(env)
});

/// A compiled expression.
pub(super) struct When {
    source: Box<str>,
    expression: IdedExpr,
    reads: Reads,
    cluster: Box<str>,
    /// Compiled literal patterns; `None` if `matches` is not used.
    patterns: Option<Arc<HashMap<String, Regex>>>,
    limits: RuleLimits,
    /// Expensive calls of an iteration; `None` if there is no macro.
    weight: Option<Weight>,
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("When").field(&self.source).finish()
    }
}

impl When {
    /// Returns the fields of `object` that the expression reads, each as a list of names.
    pub(super) fn fields(&self) -> Vec<Vec<&str>> {
        let mut fields = Vec::new();
        self.reads.object.collect_paths(&mut Vec::new(), &mut fields);
        fields
    }

    /// Returns the fields that the expression uses.
    pub(super) fn uses(&self) -> &[FieldUse] {
        &self.reads.uses
    }

    /// Compiles an expression; `variables` are the allowed names.
    pub(super) fn compile(
        text: &str,
        cluster: &str,
        variables: &[&str],
        limits: RuleLimits,
    ) -> Result<Self, RuleError> {
        let program = read(text)?;
        let patterns = check(&program, variables, &limits)?;
        let (reads, cluster) = (Reads::of(program.expression()), cluster.into());
        let mut expression = program.expression().clone();
        let weight = instrument(&mut expression);
        Ok(Self { source: text.into(), expression, reads, cluster, patterns: patterns.map(Arc::new), limits, weight })
    }

    /// Returns the text of the expression.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Evaluates the expression. If the evaluation needs a previous object that is unknown, and therefore fails, the change
    /// matches.
    pub(super) fn judge(&self, subject: &Subject<'_>) -> RuleVerdict {
        let scope = Scope::new(self, subject);
        let evaluated = catch_unwind(AssertUnwindSafe(|| self.evaluate(&scope)));
        let error = |error: &str| RuleVerdict::Error(format!("`when`: {error}"));
        if let Some(malformed) = scope.malformed.get() {
            return error(malformed);
        }
        scope.meter.check_time();
        if let Some(limit) = scope.meter.exceeded() {
            return RuleVerdict::Exceeded(format!("`when`: {limit}"));
        }
        match evaluated {
            Ok(Ok(true)) => RuleVerdict::Match,
            Ok(Ok(false)) => RuleVerdict::NotTrue,
            Ok(Err(_)) if scope.missed.load(Ordering::Relaxed) => RuleVerdict::Match,
            Ok(Err(failure)) => error(&failure.chars().take(ERROR_MAX).collect::<String>()),
            Err(_) => error("the evaluation has panicked"),
        }
    }

    fn evaluate(&self, scope: &Scope<'_, '_>) -> Result<bool, String> {
        let context = self.context(scope)?;
        let value = Value::resolve_val(&self.expression, &context).map_err(|error| error.to_string())?;
        let is_true = value.downcast_ref::<CelBool>().map(|is_true| *is_true.inner());
        is_true.ok_or_else(|| format!("it is a {}, expected a bool", value.get_type().name()))
    }

    fn context<'s>(&self, scope: &'s Scope<'_, '_>) -> Result<Context<'s, 's>, String> {
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(scope);
        if let Some(patterns) = self.patterns.clone() {
            let is_match =
                move |This(text): This<Arc<String>>, pattern: Arc<String>| is_match(&patterns, &text, &pattern);
            context.add_function(MATCHES, is_match).map_err(|error| error.to_string())?;
        }
        Ok(context)
    }
}

/// Parses an expression, and rejects one that is too long or too deep.
fn read(text: &str) -> Result<Program, RuleError> {
    let refused = |problem: &str| RuleError { line: 1, column: 1, problem: problem.to_owned() };
    if text.len() > TEXT_MAX {
        return Err(refused(&format!("the expression has {} bytes, expected {TEXT_MAX} at most", text.len())));
    }
    let signs = text.bytes().filter(|byte| SIGNS.contains(byte)).count();
    if signs > SIGNS_MAX {
        return Err(refused(&format!(
            "the expression has {signs} operators, dots and brackets, expected {SIGNS_MAX} at most"
        )));
    }
    let read = catch_unwind(|| ENV.compile(text)).map_err(|_| refused("the parser has panicked"))?;
    let program = read.map_err(|errors| syntax_error(&errors, text))?;
    if is_too_deep(program.expression()) {
        return Err(refused(&format!("the expression is nested too deeply, expected {DEPTH_MAX} levels at most")));
    }
    Ok(program)
}

fn is_too_deep(expression: &IdedExpr) -> bool {
    let mut open = vec![(expression, 1)];
    while let Some((at, depth)) = open.pop() {
        if depth > DEPTH_MAX {
            return true;
        }
        open.extend(children(at).into_iter().map(|child| (child, depth + 1)));
    }
    false
}

fn is_match(patterns: &HashMap<String, Regex>, text: &str, pattern: &str) -> Result<bool, ExecutionError> {
    if let Some(pattern) = patterns.get(pattern) {
        return Ok(pattern.is_match(text));
    }
    let compiled = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES_MAX).build();
    let pattern = compiled.map_err(|error| ExecutionError::function_error(MATCHES, error))?;
    Ok(pattern.is_match(text))
}

/// Matches `has(x["key"])`, which CEL does not have.
static HAS_KEY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"\bhas\(\s*([^()]*?)\s*\[\s*("[^"]*"|'[^']*')\s*\]\s*\)"#;
    Regex::new(pattern).expect("the pattern is valid")
});

fn syntax_error(errors: &cel::ParseErrors, text: &str) -> RuleError {
    let Some(first) = errors.errors.first() else {
        return RuleError { line: 1, column: 1, problem: "expected an expression".to_owned() };
    };
    let at = |place: isize| usize::try_from(place).unwrap_or(1).max(1);
    let said = first.msg.trim_start_matches("Syntax error: ");
    let problem = match said.split_once(" expecting ").map_or(said, |(said, _)| said) {
        early if early.ends_with("'<EOF>'") => "the expression ends too early".to_owned(),
        assigned if assigned.starts_with("token recognition error at: '= ") => {
            "unexpected `=`, expected `==` to compare".to_owned()
        }
        deep if deep.contains("Recursion limit") => {
            format!("the expression is nested too deeply, expected {DEPTH_MAX} levels at most")
        }
        argument if argument.starts_with("invalid argument to has()") => match HAS_KEY.captures(text) {
            Some(found) => format!("`has` takes no key in brackets; write `{} in {}`", &found[2], &found[1]),
            None => "`has` takes a field, such as `has(object.spec.x)`".to_owned(),
        },
        said => said.to_owned(),
    };
    RuleError { line: at(first.pos.0), column: at(first.pos.1), problem }
}

/// Variables of one evaluation. Each is created on first use.
struct Scope<'d, 'o> {
    when: &'d When,
    subject: &'d Subject<'o>,
    object: OnceLock<Any<'d>>,
    old: OnceLock<Any<'d>>,
    changes: OnceLock<Any<'d>>,
    /// Error of an object that could not be decoded.
    malformed: OnceLock<String>,
    /// Set if the expression has requested the previous object or the changes although they are unknown.
    missed: AtomicBool,
    meter: Meter,
}

impl<'d, 'o> Scope<'d, 'o> {
    fn new(when: &'d When, subject: &'d Subject<'o>) -> Self {
        Self {
            when,
            subject,
            object: OnceLock::new(),
            old: OnceLock::new(),
            changes: OnceLock::new(),
            malformed: OnceLock::new(),
            missed: AtomicBool::new(false),
            meter: Meter::start(when.limits),
        }
    }

    /// Counts an iteration. Returns `None` above the limit; that ends the evaluation.
    fn step(&self) -> Option<CowVal<'_, '_>> {
        let object = &self.subject.object;
        let bytes = object.object.json_bytes() + self.subject.old().unwrap_or(object).object.json_bytes();
        let steps = self.when.weight.unwrap_or_default().steps(bytes);
        self.meter.charge(steps).then(|| CowVal::owned(CelBool::from(true)))
    }

    fn document<'b>(&'b self, slot: &'b OnceLock<Any<'d>>, state: &'d State<'o>, part: &Part) -> CowVal<'b, 'b> {
        let value = slot.get_or_init(|| {
            decode(state.json(), part).unwrap_or_else(|error| {
                drop(self.malformed.set(error.to_string()));
                Box::new(CelNull)
            })
        });
        CowVal::Borrowed(&**value)
    }

    fn old(&self) -> Option<CowVal<'_, '_>> {
        match (&self.subject.before, self.subject.old()) {
            (_, Some(old)) => Some(self.document(&self.old, old, &self.when.reads.old)),
            (Before::Unknown, None) => self.miss(),
            (_, None) => Some(CowVal::owned(CelNull)),
        }
    }

    fn changes(&self) -> Option<CowVal<'_, '_>> {
        if let Before::Unknown = self.subject.before {
            return self.miss();
        }
        let list = self.changes.get_or_init(|| {
            let paths = match &self.subject.before {
                Before::Different(old) => paths_between(old.json(), self.subject.object.json()),
                _ => Vec::new(),
            };
            let paths = paths.into_iter().map(|path| Box::new(CelString::from(path)) as Any<'d>);
            Box::new(CelList::from(paths.collect::<Vec<_>>()))
        });
        Some(CowVal::Borrowed(&**list))
    }

    /// Returns the variable `changed_by`; unknown parts are empty texts.
    fn changed_by(&self) -> CowVal<'_, '_> {
        let Some(who) = self.subject.changed_by() else { return CowVal::owned(CelNull) };
        let text = |text: &str| CelString::from(text.to_owned());
        let parts = who.parts().map(|(name, part)| (CelMapKey::String(text(name)), Box::new(text(part)) as Any<'_>));
        CowVal::owned(CelMap::from(HashMap::from(parts)))
    }

    fn miss(&self) -> Option<CowVal<'_, '_>> {
        self.missed.store(true, Ordering::Relaxed);
        None
    }

    /// Returns the value of a name such as `object.metadata.uid`, which an object stores outside its body. `None` for other names,
    /// and for an empty value.
    fn identity(&self, name: &str) -> Option<CowVal<'_, '_>> {
        let (object, field) = match name.strip_prefix("object.metadata.") {
            Some(field) => (self.subject.object.object, field),
            None => (self.subject.old()?.object, name.strip_prefix("old.metadata.")?),
        };
        let text = match field {
            "name" => object.name(),
            "namespace" => object.namespace(),
            "uid" => object.uid(),
            "resourceVersion" => object.resource_version(),
            _ => return None,
        };
        // for an empty value, the body decides: if the body lacks the field too, CEL reports it as missing
        (!text.is_empty()).then(|| CowVal::owned(CelString::from(text)))
    }
}

impl VariableResolver for Scope<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            STEP => self.step(),
            "object" => Some(self.document(&self.object, &self.subject.object, &self.when.reads.object)),
            "old" => self.old(),
            "type" => Some(CowVal::owned(CelString::from(self.subject.kind.as_str()))),
            "changes" => self.changes(),
            "changed_by" => Some(self.changed_by()),
            "cluster" => Some(CowVal::owned(CelString::from(&*self.when.cluster))),
            qualified => self.identity(qualified),
        }
    }
}

#[cfg(test)]
mod tests;
