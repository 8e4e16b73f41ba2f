//! A position in JSON text, and steps from it.

use std::borrow::Cow;

use super::{
    ScanError,
    block::{self, Progress},
};

/// Maximum number of open brackets: the limit of `serde_json`, so that accepted objects can be decoded.
pub(crate) const DEPTH_MAX: u32 = 127;

/// A position in JSON text. Every step advances or returns an error; none recurses.
///
/// A decoded string is checked as strictly as in `serde_json`. A string that is not decoded is checked only for its end. Literals
/// are checked completely, numbers only for their characters. Skipped containers are checked only for ends of strings and the
/// number of brackets.
#[derive(Clone, Debug)]
pub(crate) struct JsonCursor<'a> {
    json: &'a [u8],
    at: usize,
    depth: u32,
    depth_max: u32,
}

/// A key, read before its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) key: JsonText<'a>,
    /// Offset of the preceding comma; `None` for the first member.
    pub(crate) comma: Option<usize>,
}

/// Undecoded bytes of a string between its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonText<'a> {
    raw: &'a [u8],
    /// Offset of `raw` in the JSON.
    at: usize,
    escapes: bool,
}

impl<'a> JsonCursor<'a> {
    pub(crate) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0, depth: 0, depth_max: DEPTH_MAX }
    }

    /// Creates a cursor without a maximum number of open brackets, to read parts of an object that cannot be decoded.
    pub(crate) fn of_any_depth(json: &'a [u8]) -> Self {
        Self { depth_max: u32::MAX, ..Self::new(json) }
    }

    /// Returns a cursor at the start of another text, with the same maximum number of open brackets.
    pub(crate) fn over(&self, json: &'a [u8]) -> Self {
        Self { depth_max: self.depth_max, ..Self::new(json) }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the text from an earlier offset up to here.
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        &self.json[from..self.at]
    }

    /// Sets the number of open brackets and returns the old number. With `depth` 0, the cursor counts brackets as in a separate
    /// document.
    pub(crate) fn set_depth(&mut self, depth: u32) -> u32 {
        std::mem::replace(&mut self.depth, depth)
    }

    /// Returns the error for an unexpected byte here.
    #[cold]
    pub(crate) fn unexpected(&self, expected: &'static str) -> ScanError {
        if self.at >= self.json.len() {
            ScanError::Truncated(self.json.len())
        } else {
            ScanError::Malformed { at: self.at, expected }
        }
    }

    /// Skips whitespace and returns the next byte without consuming it.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Result<u8, ScanError> {
        while let Some(byte) = self.json.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Ok(*byte);
            }
            self.at += 1;
        }
        Err(ScanError::Truncated(self.json.len()))
    }

    /// Checks that only whitespace is left.
    pub(crate) fn end(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Ok(_) => Err(self.unexpected("the end")),
            Err(_) => Ok(()),
        }
    }

    /// Consumes an opening bracket.
    pub(crate) fn enter(&mut self, bracket: u8, expected: &'static str) -> Result<(), ScanError> {
        if self.peek()? != bracket {
            return Err(self.unexpected(expected));
        }
        if self.depth >= self.depth_max {
            return Err(ScanError::TooDeep(self.at));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Consumes the next key and its colon, or the closing brace.
    #[inline(always)]
    pub(crate) fn next_member(&mut self, first: &mut bool) -> Result<Option<Member<'a>>, ScanError> {
        let Some(comma) = self.next(first, b'}', "`,` or `}`")? else { return Ok(None) };
        let key = self.string("a key")?;
        if self.peek()? != b':' {
            return Err(self.unexpected("`:`"));
        }
        self.at += 1;
        Ok(Some(Member { key, comma }))
    }

    /// Moves to the next element and returns the offset of the preceding comma, or consumes the closing bracket.
    #[expect(clippy::option_option, reason = "as for `next`")]
    pub(crate) fn next_element(&mut self, first: &mut bool) -> Result<Option<Option<usize>>, ScanError> {
        self.next(first, b']', "`,` or `]`")
    }

    #[inline(always)]
    #[expect(clippy::option_option, reason = "the end, an element to read, an element whose end is known")]
    fn next(
        &mut self,
        first: &mut bool,
        close: u8,
        expected: &'static str,
    ) -> Result<Option<Option<usize>>, ScanError> {
        let byte = self.peek()?;
        if byte == close {
            self.at += 1;
            self.depth -= 1;
            return Ok(None);
        }
        if std::mem::take(first) {
            return Ok(Some(None));
        }
        if byte != b',' {
            return Err(self.unexpected(expected));
        }
        let comma = self.at;
        self.at += 1;
        if self.peek()? == close {
            return Err(self.unexpected("another one after the comma"));
        }
        Ok(Some(Some(comma)))
    }

    /// Consumes a string.
    #[inline(always)]
    pub(crate) fn string(&mut self, expected: &'static str) -> Result<JsonText<'a>, ScanError> {
        if self.peek()? != b'"' {
            return Err(self.unexpected(expected));
        }
        let rest = &self.json[self.at + 1..];
        let end = block::string_end(rest).ok_or(ScanError::Truncated(self.json.len()))?;
        let text = JsonText { raw: &rest[..end.quote], at: self.at + 1, escapes: end.escapes };
        self.at += end.quote + 2;
        Ok(text)
    }

    /// Consumes a string or `null`.
    #[inline(always)]
    pub(crate) fn string_or_null(&mut self, expected: &'static str) -> Result<Option<JsonText<'a>>, ScanError> {
        if self.peek()? != b'n' {
            return self.string(expected).map(Some);
        }
        self.scalar().map(|_| None)
    }

    /// Consumes a number, `true`, `false` or `null`. Another byte must follow: a value at the very end may be truncated.
    pub(crate) fn scalar(&mut self) -> Result<&'a [u8], ScanError> {
        self.peek()?;
        let rest = &self.json[self.at..];
        let len = rest.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
        let Some(len) = len else { return Err(ScanError::Truncated(self.json.len())) };
        let scalar = &rest[..len];
        if !matches!(scalar, b"null" | b"true" | b"false") && !is_number(scalar) {
            return Err(self.unexpected("a value"));
        }
        self.at += len;
        Ok(scalar)
    }

    /// Consumes any value; returns its text.
    #[inline]
    pub(crate) fn skip_value(&mut self) -> Result<&'a [u8], ScanError> {
        let (byte, from) = (self.peek()?, self.at);
        match byte {
            b'{' => self.skip_container(b'}')?,
            b'[' => self.skip_container(b']')?,
            b'"' => {
                self.string("a string")?;
            }
            _ => {
                self.scalar()?;
            }
        }
        Ok(self.since(from))
    }

    /// Consumes any value that is cut, so its depth does not matter.
    pub(crate) fn skip_cut_value(&mut self) -> Result<(), ScanError> {
        let depth_max = std::mem::replace(&mut self.depth_max, u32::MAX);
        let skipped = self.skip_value();
        self.depth_max = depth_max;
        skipped.map(|_| ())
    }

    /// Consumes an object; returns the values of the named members. For a repeated name, the last value counts.
    pub(crate) fn values<const N: usize>(&mut self, names: [&[u8]; N]) -> Result<[Option<&'a [u8]>; N], ScanError> {
        let (mut values, mut first) = ([None; N], true);
        self.enter(b'{', "an object")?;
        while let Some(member) = self.next_member(&mut first)? {
            let (key, value) = (member.key.bytes()?, self.skip_value()?);
            if let Some(at) = names.iter().position(|name| **name == *key) {
                values[at] = Some(value);
            }
        }
        Ok(values)
    }

    fn skip_container(&mut self, close: u8) -> Result<(), ScanError> {
        if self.depth >= self.depth_max {
            return Err(ScanError::TooDeep(self.at));
        }
        let from = self.at + 1;
        match block::container_end(&self.json[from..], self.depth_max - self.depth) {
            Progress::Done(len) => self.at = from + len,
            Progress::More => return Err(ScanError::Truncated(self.json.len())),
            Progress::TooDeep(offset) => {
                return Err(ScanError::TooDeep(from + offset));
            }
        }
        if self.json[self.at - 1] == close {
            Ok(())
        } else {
            Err(ScanError::Malformed { at: self.at - 1, expected: "the matching bracket" })
        }
    }
}

impl<'a> JsonText<'a> {
    /// Returns the decoded string: valid UTF-8 without escapes.
    pub(crate) fn decode(&self) -> Result<Cow<'a, str>, ScanError> {
        let text = std::str::from_utf8(self.raw)
            .map_err(|error| ScanError::Malformed { at: self.at + error.valid_up_to(), expected: "UTF-8" })?;
        if let Some(offset) = self.raw.iter().position(|byte| *byte < 0x20) {
            return Err(ScanError::Malformed { at: self.at + offset, expected: "no control character in a string" });
        }
        if !self.escapes {
            return Ok(Cow::Borrowed(text));
        }
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        quoted.push_str(text);
        quoted.push('"');
        serde_json::from_str(&quoted)
            .map(Cow::Owned)
            .map_err(|_| ScanError::Malformed { at: self.at, expected: "valid escapes in a string" })
    }

    /// Returns the decoded bytes of the string; UTF-8 is checked only if there are escapes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> Result<Cow<'a, [u8]>, ScanError> {
        if self.escapes { self.unescaped() } else { Ok(Cow::Borrowed(self.raw)) }
    }

    #[cold]
    fn unescaped(&self) -> Result<Cow<'a, [u8]>, ScanError> {
        Ok(match self.decode()? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        })
    }
}

/// Returns the text of a string value; empty for any other value.
pub(crate) fn text(value: Option<&[u8]>) -> Result<Cow<'_, str>, ScanError> {
    match value {
        Some(value @ [b'"', ..]) => JsonCursor::new(value).string("a string")?.decode(),
        _ => Ok(Cow::Borrowed("")),
    }
}

/// Returns true if a text consists of characters that occur in numbers. `1-2` is accepted: only decoding checks the form of a
/// number.
fn is_number(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
    !text.is_empty() && text.iter().all(is_part)
}
