//! Random expressions on random objects: decoding only the fields that are read must give the same result as decoding
//! everything.

use std::cell::Cell;

use proptest::{
    prelude::*,
    test_runner::{TestCaseError, TestRunner},
};

use super::*;
use crate::{journal::ChangeKind, object::Object};

const CASES: u32 = 4_000;
/// Number of evaluations that see every order of a map's few keys, which changes each time.
const ORDERS: usize = 400;

const KEYS: [&str; 3] = ["a", "b", "d"];
/// Names of elements in macros: often the same, and sometimes those of variables.
const BOUND: [&str; 5] = ["c", "c", "c", "d", "object"];
const LITERALS: [&str; 10] = ["'a'", "'b'", "true", "'a'", "1", "{'a': 'a'}", "{}", "0", "null", "1.5"];

/// Choices, one after the other. At its end it always returns the first choice, which is the simplest.
struct Tape<'t>(std::slice::Iter<'t, u8>);

impl<'t> Tape<'t> {
    fn new(bytes: &'t [u8]) -> Self {
        Self(bytes.iter())
    }

    fn below(&mut self, count: usize) -> usize {
        self.0.next().map_or(0, |byte| usize::from(*byte) % count)
    }

    fn one_of(&mut self, texts: &[&'static str]) -> &'static str {
        texts[self.below(texts.len())]
    }

    fn json(&mut self, depth: usize) -> String {
        let kinds = if depth == 0 { 1 } else { 6 };
        match self.below(kinds) {
            0 => self.one_of(&LITERALS).replace('\'', "\""),
            1 | 2 => self.members(depth - 1),
            // like most lists
            3 => self.list(|tape| tape.members(depth - 1)),
            4 => self.list(|tape| tape.members(0)),
            _ => self.list(|tape| tape.json(depth - 1)),
        }
    }

    fn list(&mut self, element: impl Fn(&mut Self) -> String) -> String {
        let elements: Vec<_> = (0..self.below(4)).map(|_| element(self)).collect();
        format!("[{}]", elements.join(","))
    }

    /// Writes members. Keys may be duplicate, and be written with escapes.
    fn members(&mut self, depth: usize) -> String {
        let mut members = Vec::new();
        for keys in [["a", "a", "\\u0061"], ["b", "b", "a"], ["d", "e", "b"]] {
            if self.below(4) < 3 {
                members.push(format!("\"{}\":{}", self.one_of(&keys), self.json(depth)));
            }
        }
        format!("{{{}}}", members.join(","))
    }

    fn object(&mut self) -> Object {
        let members: Vec<_> = KEYS.iter().map(|key| format!("\"{key}\":{}", self.json(3))).collect();
        let head = r#"{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a"}"#;
        Object::from_json(format!("{head},{}}}", members.join(",")).as_bytes()).expect("an object")
    }
}

/// Writer of expressions.
struct Writer<'t> {
    tape: Tape<'t>,
    /// Names that are in scope.
    names: Vec<&'static str>,
}

impl Writer<'_> {
    fn value(&mut self, depth: usize) -> String {
        let Some(below) = depth.checked_sub(1) else { return self.path(0) };
        match self.tape.below(22) {
            0..=4 => self.path(below),
            5 => self.tape.one_of(&LITERALS).to_owned(),
            6 => self.truth(below),
            7 | 8 => self.over(below, |writer, name| format!("map({name}, {})", writer.value(below))),
            9 => self.filter(below),
            10 => self.some_mapped(below),
            11 => format!("[{}, {}]", self.value(below), self.value(below)),
            12 => format!("{{'{}': {}}}", self.key(), self.value(below)),
            13 => format!("({} ? {} : {})", self.truth(below), self.value(below), self.value(below)),
            14 => format!("size({})", self.range(below)),
            15 => format!("{}.size()", self.range(below)),
            16 => format!("{}{}", self.range(below), self.step(below)),
            17 => format!("{}.?{}.orValue({})", self.range(below), self.key(), self.value(below)),
            18 => {
                let key = self.key();
                let mapped = self.over(below, |writer, name| format!("?{key}.optMap({name}, {})", writer.value(below)));
                format!("{mapped}.orValue({})", self.value(below))
            }
            19 => {
                let function = self.tape.one_of(&["type", "string", "dyn"]);
                format!("{function}({})", self.value(below))
            }
            20 => {
                let function = self.tape.one_of(&["distinct", "reverse", "flatten", "sort"]);
                format!("{}.{function}()", self.range(below))
            }
            _ => {
                let range = self.path(below); // otherwise it is refused
                self.with(&range, |writer, name| format!("sortBy({name}, {})", writer.value(below)))
            }
        }
    }

    fn truth(&mut self, depth: usize) -> String {
        let Some(below) = depth.checked_sub(1) else { return format!("{} == 'a'", self.path(0)) };
        match self.tape.below(16) {
            0 | 1 => format!("{} == {}", self.value(below), self.value(below)),
            2 => format!("has({}.{})", self.range(below), self.key()),
            3 => format!("{} in {}", self.value(below), self.range(below)),
            4 => {
                let sought = self.tape.one_of(&["'a'", "'b'", "{'a': 'a'}"]);
                format!("{sought} in {}", self.range(below))
            }
            5..=10 => self.over(below, |writer, name| {
                let macro_name = writer.tape.one_of(&["exists", "all", "exists_one"]);
                format!("{macro_name}({name}, {})", writer.truth(below))
            }),
            11 => format!("({} && {})", self.truth(below), self.truth(below)),
            12 => format!("({} || {})", self.truth(below), self.truth(below)),
            13 => format!("!({})", self.truth(below)),
            14 => format!("{} < {}", self.value(below), self.value(below)),
            _ => format!("{}.startsWith('a')", self.value(below)),
        }
    }

    /// Writes a typical range of a macro: a part of a variable, or a filter of it.
    fn range(&mut self, depth: usize) -> String {
        match (self.tape.below(8), depth.checked_sub(1)) {
            (5, Some(below)) => self.filter(below),
            (6, Some(below)) => self.some_mapped(below),
            (7, Some(below)) => format!("({})", self.value(below)),
            _ => self.path(depth),
        }
    }

    fn filter(&mut self, depth: usize) -> String {
        self.over(depth, |writer, name| format!("filter({name}, {})", writer.truth(depth)))
    }

    fn some_mapped(&mut self, depth: usize) -> String {
        self.over(depth, |writer, name| format!("map({name}, {}, {})", writer.truth(depth), writer.value(depth)))
    }

    /// Writes a macro over a range; `call` writes its call.
    fn over(&mut self, depth: usize, call: impl FnOnce(&mut Self, &str) -> String) -> String {
        let range = self.range(depth);
        self.with(&range, call)
    }

    fn with(&mut self, range: &str, call: impl FnOnce(&mut Self, &str) -> String) -> String {
        let name = self.tape.one_of(&BOUND);
        self.names.push(name);
        let call = call(self, name);
        self.names.pop();
        format!("{range}.{call}")
    }

    fn path(&mut self, depth: usize) -> String {
        // the innermost bound name is used most often
        let back = [0, 0, 0, 1, 2, 3][self.tape.below(6)].min(self.names.len() - 1);
        let mut path = self.names[self.names.len() - 1 - back].to_owned();
        for _ in 0..[1, 0, 2][self.tape.below(3)] {
            path.push_str(&self.step(depth));
        }
        path
    }

    fn step(&mut self, depth: usize) -> String {
        match self.tape.below(9) {
            0..=3 => format!(".{}", self.key()),
            4 => format!("['{}']", self.key()),
            5 => "[0]".to_owned(),
            6 => "[1u]".to_owned(),
            7 => "[1.0]".to_owned(),
            _ => format!("[{}]", depth.checked_sub(1).map_or_else(|| "'a'".to_owned(), |below| self.value(below))),
        }
    }

    fn key(&mut self) -> &'static str {
        self.tape.one_of(&KEYS)
    }
}

fn expression(tape: &[u8]) -> String {
    let mut writer = Writer { tape: Tape::new(tape), names: vec!["old", "object"] };
    if writer.tape.below(2) == 0 { writer.truth(4) } else { writer.value(4) }
}

/// Compiles an expression, even if rules do not offer it.
fn ready(text: &str, reads: impl FnOnce(&IdedExpr) -> Reads) -> When {
    let program = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let mut expression = program.expression().clone();
    let weight = instrument(&mut expression);
    let (source, reads) = (text.into(), reads(program.expression()));
    When { source, expression, reads, cluster: "".into(), patterns: None, limits: RuleLimits::default(), weight }
}

/// Compiles an expression unchanged: everything is read, and no iteration is counted.
fn plain(text: &str) -> When {
    let expression = read(text).unwrap_or_else(|error| panic!("{text}: {error}")).expression().clone();
    When { expression, ..ready(text, |_| Reads::all()) }
}

/// Evaluates an expression; returns its value or error as a text that does not depend on an order.
fn outcome(when: &When, old: &Object, object: &Object) -> Result<String, String> {
    let subject = Subject::new(ChangeKind::Updated, Some(old), object);
    let scope = Scope::new(when, &subject);
    let evaluated = catch_unwind(AssertUnwindSafe(|| {
        let context = when.context(&scope)?;
        let value = Value::resolve(&when.expression, &context);
        value.map(|value| shown(&value)).map_err(|error| letters(&error.to_string()))
    }));
    assert_eq!(scope.malformed.get(), None, "the written object is valid");
    evaluated.unwrap_or_else(|_| Err("it has panicked".to_owned()))
}

/// Formats a value. Maps are sorted, and so are lists made from maps.
fn shown(value: &Value) -> String {
    let sorted = |mut parts: Vec<String>| {
        parts.sort_unstable();
        parts.join(", ")
    };
    match value {
        Value::List(list) => format!("[{}]", sorted(list.iter().map(shown).collect())),
        Value::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| format!("{key:?}: {}", shown(value)));
            format!("{{{}}}", sorted(entries.collect()))
        }
        other => format!("{other:?}"),
    }
}

/// Sorts the letters of an error, because it may show a map.
fn letters(error: &str) -> String {
    let mut letters: Vec<_> = error.chars().collect();
    letters.sort_unstable();
    letters.into_iter().collect()
}

#[test]
fn unread_fields_and_counting_change_no_verdict() {
    let tape = |len| proptest::collection::vec(any::<u8>(), 0..len);
    let (partly, said) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let ran = TestRunner::new(config).run(&(tape(60), tape(250)), |(expression_tape, objects_tape)| {
        let text = expression(&expression_tape);
        let (some, all) = (ready(&text, Reads::of), plain(&text));
        let mut objects = Tape::new(&objects_tape);
        let (object, old) = (objects.object(), objects.object());
        let found = outcome(&some, &old, &object);
        partly.set(partly.get() + u32::from(some.reads.object != all.reads.object));
        said.set(said.get() + u32::from(found.is_ok()));
        if (0..ORDERS).any(|_| outcome(&all, &old, &object) == found) {
            return Ok(());
        }
        let json = |object: &Object| String::from_utf8_lossy(&object.json()).into_owned();
        let (expected, object, old) = (outcome(&all, &old, &object), json(&object), json(&old));
        let reads = &some.reads;
        Err(TestCaseError::fail(format!(
            "{text}\n  is {found:?}, expected {expected:?}\n  object {object}\n  old {old}\n  {reads:?}"
        )))
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
    // otherwise the test would prove nothing
    assert!(partly.get() > CASES / 2 && said.get() > CASES / 6, "{partly:?} {said:?}");
}

fn object_with(text: &str) -> Object {
    let json = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"x"}},"data":{{"x":"{text}"}}}}"#);
    Object::from_json(json.as_bytes()).unwrap()
}

/// Evaluates an expression with a number of steps.
fn with_steps(text: &str, steps: u64, object: &Object) -> RuleVerdict {
    let limits = RuleLimits { steps, ..RuleLimits::CONFIGURATION };
    let when = When::compile(text, "", &["object"], limits).unwrap_or_else(|error| panic!("{text}: {error}"));
    when.judge(&Subject::new(ChangeKind::Added, None, object))
}

#[test]
fn each_macro_iteration_is_a_step() {
    let object = object_with("");
    for (text, steps) in [
        ("[1, 2, 3].all(x, x > 0)", 3),
        ("[1, 2, 3].exists(x, x > 3) || true", 3),
        ("[1, 2, 3].exists_one(x, x == 2)", 3),
        ("[1, 2, 3].map(x, x * 2).size() == 3", 3),
        ("[1, 2, 3].map(x, x > 1, x * 2).size() == 2", 3),
        ("[1, 2, 3].filter(x, x > 1).size() == 2", 3),
        ("[1, 2, 3].filter(x, x > 1).all(x, x > 1)", 5),
        ("[1, 2, 3].all(x, [1, 2].all(y, y > 0))", 9),
        ("{'a': 1, 'b': 2}.all(key, key != 'c')", 2),
        ("true", 0),
    ] {
        assert_eq!(with_steps(text, steps, &object), RuleVerdict::Match, "{text}");
        if steps > 0 {
            let exceeded = RuleVerdict::Exceeded(format!("`when`: it took more than {} steps", steps - 1));
            assert_eq!(with_steps(text, steps - 1, &object), exceeded, "{text}");
        }
    }
}

#[test]
fn work_on_large_values_takes_more_steps() {
    let (small, large) = (object_with("x"), object_with(&"x".repeat(100_000)));
    for text in ["[1, 2].all(x, object.data.x.contains('x'))", "[1, 2].all(x, object.data.x.split('').size() > 0)"] {
        assert_eq!(with_steps(text, 20, &small), RuleVerdict::Match, "{text}");
        assert!(matches!(with_steps(text, 20, &large), RuleVerdict::Exceeded(_)), "{text}");
    }
    // A comparison with a literal takes one step.
    let text = "[1, 2].all(x, object.data.x != 'y' && object.data.x.startsWith('x'))";
    assert_eq!(with_steps(text, 20, &large), RuleVerdict::Match);
}

#[test]
fn cpu_time_is_bounded_on_request() {
    let object = object_with(&"x".repeat(300_000));
    let limits = RuleLimits { steps: u64::MAX, cpu: Some(std::time::Duration::from_millis(1)), ..RuleLimits::CLIENT };
    let when = When::compile("object.data.x.split('').all(x, x == 'x')", "", &["object"], limits).unwrap();
    let judged = when.judge(&Subject::new(ChangeKind::Added, None, &object));
    assert_eq!(judged, RuleVerdict::Exceeded("`when`: it took more than 1 ms of CPU time".to_owned()));
}
