//! Unusual JSON text: any order, whitespace, escapes, repeated keys.

use std::fmt::Write as _;

use serde_json::Value;

use super::FieldPath;
use crate::object::field_path::PathStep;

/// Words that the scanner handles specially, and similar words.
const KEYS: [&str; 16] = [
    "metadata",
    "kind",
    "apiVersion",
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "managedFields",
    "labels",
    "annotations",
    "a",
    "b",
    "é\u{1F600}",
    "a/b.c",
    "",
    "q\"\\\n",
];

/// Writes JSON from a seed.
pub(crate) struct Writer {
    state: u64,
    /// Set to repeat keys sometimes.
    pub(crate) repeats: bool,
}

impl Writer {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed, repeats: false }
    }

    /// Returns a number below `bound` (splitmix64).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(bound).unwrap()).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn space(&mut self, out: &mut String) {
        if self.one_in(4) {
            for _ in 0..self.below(4) {
                out.push(self.pick(&[' ', '\n', '\t', '\r']));
            }
        }
    }

    pub(crate) fn string(&mut self, text: &str, out: &mut String) {
        let escape = self.one_in(6);
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                c if escape && self.one_in(3) || u32::from(c) < 0x20 => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}").unwrap();
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn text(&mut self) -> String {
        match self.below(5) {
            0 => self.pick(&KEYS).to_owned(),
            1 => r#"f:{"x\":[{"#.repeat(self.below(20)),
            2 => "\\".repeat(self.below(70)),
            3 => "x".repeat(self.below(150)),
            _ => format!("v{}", self.below(100)),
        }
    }

    /// Writes items between two brackets.
    fn items(
        &mut self,
        [open, close]: [char; 2],
        len: usize,
        out: &mut String,
        mut item: impl FnMut(&mut Self, usize, &mut String),
    ) {
        out.push(open);
        for index in 0..len {
            out.push_str(if index > 0 { "," } else { "" });
            self.space(out);
            item(self, index, out);
            self.space(out);
        }
        out.push(close);
    }

    fn member(&mut self, key: &str, out: &mut String, value: impl FnOnce(&mut Self, &mut String)) {
        self.string(key, out);
        self.space(out);
        out.push(':');
        self.space(out);
        value(self, out);
    }

    /// Writes any value.
    pub(crate) fn value(&mut self, depth: usize, out: &mut String) {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => out.push_str(self.pick(&["null", "true", "false"])),
            1 => out.push_str(self.pick(&["0", "-1", "12345678901", "1.5", "-0.25"])),
            2..6 => {
                let text = self.text();
                self.string(&text, out);
            }
            6 | 7 => {
                let len = self.below(5);
                self.items(['[', ']'], len, out, |writer, _, out| writer.value(depth - 1, out));
            }
            _ => {
                let len = self.below(6);
                self.members(len, out, |writer, _, out| writer.value(depth - 1, out));
            }
        }
    }

    /// Writes this value with keys in any order. Some keys are first written with another value, except keys whose
    /// values a scan checks.
    pub(crate) fn given(&mut self, value: &Value, out: &mut String) {
        match value {
            Value::String(text) => self.string(text, out),
            Value::Array(elements) => {
                self.items(['[', ']'], elements.len(), out, |writer, index, out| writer.given(&elements[index], out));
            }
            Value::Object(members) => {
                let mut left: Vec<_> = members.iter().collect();
                self.items(['{', '}'], members.len(), out, |writer, _, out| {
                    let (key, value) = left.swap_remove(writer.below(left.len()));
                    let is_checked = ["metadata", "apiVersion", "kind", "name"].contains(&key.as_str());
                    if !is_checked && writer.one_in(6) {
                        writer.string(key, out);
                        out.push(':');
                        out.push_str(writer.pick(&["null,", "\"x\",", "[{}],"]));
                    }
                    writer.member(key, out, |writer, out| writer.given(value, out));
                });
            }
            scalar => out.push_str(&scalar.to_string()),
        }
    }

    fn members(&mut self, len: usize, out: &mut String, mut value: impl FnMut(&mut Self, &str, &mut String)) {
        let mut left = KEYS.to_vec();
        self.items(['{', '}'], len, out, |writer, _, out| {
            let at = writer.below(left.len());
            let key = if writer.repeats && writer.one_in(6) { writer.pick(&KEYS) } else { left.swap_remove(at) };
            writer.member(key, out, |writer, out| value(writer, key, out));
        });
    }

    /// Writes an object that nearly always has an identity.
    pub(crate) fn object(&mut self, out: &mut String) {
        self.members(14, out, |writer, key, out| match key {
            "metadata" if !writer.one_in(40) => writer.members(14, out, |writer, key, out| {
                if matches!(key, "name" | "namespace" | "uid" | "resourceVersion") && !writer.one_in(60) {
                    let text = format!("{key}-é{}", writer.below(10));
                    writer.string(&text, out);
                } else {
                    writer.value(3, out);
                }
            }),
            "kind" if !writer.one_in(20) => writer.string("Pod", out),
            "apiVersion" if !writer.one_in(20) => writer.string("v1", out),
            _ => writer.value(3, out),
        });
    }

    /// Returns a random path of words that occur in the objects.
    pub(crate) fn path(&mut self) -> FieldPath {
        let mut path = if self.one_in(3) { String::from("metadata") } else { String::new() };
        for _ in 0..=self.below(3) {
            if self.one_in(4) {
                path.push_str("[*]");
            } else {
                let key = self.pick(&KEYS).replace('\\', "\\\\").replace('\'', "\\'");
                write!(path, "['{key}']").unwrap();
            }
        }
        FieldPath::parse(&path).unwrap()
    }

    /// Damages some bytes.
    pub(crate) fn mutate(&mut self, json: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(json.len());
            match self.below(6) {
                0 => json[at] = u8::try_from(self.below(256)).unwrap(),
                1 => json[at] = self.pick(br#"{}[],:"\0 n"#),
                2 if json.len() > 1 => drop(json.remove(at)),
                3 => json.insert(at, self.pick(br#"{}[],:"\0 n"#)),
                4 => json.truncate(at.max(1)),
                _ => json[at] ^= 1 << self.below(8),
            }
        }
    }
}

/// Removes the value at `steps` from `value`.
pub(crate) fn remove(value: &mut Value, steps: &[PathStep]) {
    match (value, steps) {
        (Value::Object(members), [PathStep::Member(name)]) => drop(members.remove(&**name)),
        (Value::Object(members), [PathStep::Each]) => members.clear(),
        (Value::Array(elements), [PathStep::Each]) => elements.clear(),
        (Value::Object(members), [PathStep::Member(name), rest @ ..]) => {
            if let Some(value) = members.get_mut(&**name) {
                remove(value, rest);
            }
        }
        (Value::Object(members), [PathStep::Each, rest @ ..]) => members.values_mut().for_each(|v| remove(v, rest)),
        (Value::Array(elements), [PathStep::Each, rest @ ..]) => elements.iter_mut().for_each(|v| remove(v, rest)),
        _ => {}
    }
}

/// Returns a pod as a server sends it: 9 KB, of which 3.5 KB are `managedFields` with many quotes within strings.
pub(crate) fn pod() -> String {
    include_str!("pod.json").trim_end().to_owned()
}
