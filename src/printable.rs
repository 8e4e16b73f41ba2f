//! Texts of others, made safe for a terminal and for a log: object names, messages of servers, values.

use std::{borrow::Cow, fmt::Write as _};

/// Returns true for a character that a terminal executes, that begins a line, or that hides or reorders its neighbours: control
/// characters (C0, C1), line and paragraph separators, marks of writing direction, and invisible characters.
pub(crate) fn is_deceptive(c: char) -> bool {
    let is_invisible = matches!(
        c,
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || is_invisible
}

/// Escapes deceptive characters, so that a text stays on its line and cannot control a terminal.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, is_deceptive, as_in_rust).into_owned()
}

/// Escapes deceptive characters like [`printable`], except line breaks and tabs.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_deceptive(c) && c != '\n' && c != '\t', as_in_rust)
}

/// Escapes the deceptive characters of JSON documents as JSON does. The documents keep their values. The control characters of C0 are
/// unchanged: within texts, the writer of the JSON has escaped them.
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(json, |c| is_deceptive(c) && c > '\u{1f}', as_in_json)
}

fn as_in_rust(c: char, out: &mut String) {
    out.extend(c.escape_default());
}

fn as_in_json(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("writing to a string succeeds");
    }
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool, escape: fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            escape(c, &mut out);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const HOSTILE: &str =
        "a\r\n\u{7}\u{1b}[31mb\u{7f}\u{85}\u{9b}2Jc\u{61c}\u{200b}\u{202e}d\u{2028}\u{2066}e\u{feff}\u{e0041}";

    #[test]
    fn texts_of_others_control_no_terminal() {
        let one_line = "a\\r\\n\\u{7}\\u{1b}[31mb\\u{7f}\\u{85}\\u{9b}2Jc\\u{61c}\\u{200b}\\u{202e}d\\u{2028}\\u{2066}e\
                        \\u{feff}\\u{e0041}";
        assert_eq!(printable(HOSTILE), one_line);
        assert_eq!(printable_lines("a\tb\r\nc\u{9b}"), "a\tb\\r\nc\\u{9b}");
        assert_eq!(printable("Grüße, 世界 🙂 \\n"), "Grüße, 世界 🙂 \\n");
    }

    #[test]
    fn escaped_json_keeps_its_value() {
        let document = json!({ "x": HOSTILE, "y": [1, "ü"] });
        for json in [document.to_string(), format!("{document:#}")] {
            let safe = printable_json(&json);
            assert!(!safe.contains(|c| is_deceptive(c) && c != '\n'), "{safe}");
            assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), document);
        }
    }
}
