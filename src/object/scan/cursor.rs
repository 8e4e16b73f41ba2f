//! A place in JSON text and the steps that can be taken from there.

use std::borrow::Cow;

use super::{
    ScanError,
    block::{self, Progress},
};

/// Brackets that may be open at once: as many as `serde_json` reads, so that what was accepted can be decoded.
pub(crate) const DEPTH_MAX: u32 = 127;

/// A position in JSON text. Every step either moves on or says what does not fit; none recurses.
///
/// Scalars, and strings that are decoded, are checked as `serde_json` checks them. A container that is skipped is checked
/// for the ends of strings and the number of brackets alone; other strings for their end.
#[derive(Clone, Debug)]
pub(crate) struct JsonCursor<'a> {
    json: &'a [u8],
    at: usize,
    depth: u32,
}

/// A key as it is read, before its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    pub(crate) key: JsonText<'a>,
    /// Where the comma before it is; `None` for the first.
    pub(crate) comma: Option<usize>,
}

/// The beginning of an array's element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    /// Where the comma before it is; `None` for the first.
    pub(crate) comma: Option<usize>,
}

/// A string's bytes between its quotes, as they are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonText<'a> {
    raw: &'a [u8],
    /// Where `raw` begins in the JSON.
    at: usize,
    escapes: bool,
}

impl<'a> JsonCursor<'a> {
    pub(crate) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0, depth: 0 }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the text from an earlier offset up to here.
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        &self.json[from..self.at]
    }

    /// Counts open brackets from here on as a document of its own; returns the count for [`JsonCursor::set_depth`].
    pub(crate) fn set_depth(&mut self, depth: u32) -> u32 {
        std::mem::replace(&mut self.depth, depth)
    }

    /// Says that something else was expected here.
    #[cold]
    pub(crate) fn unexpected(&self, expected: &'static str) -> ScanError {
        if self.at >= self.json.len() {
            ScanError::Truncated(self.json.len())
        } else {
            ScanError::Malformed { at: self.at, expected }
        }
    }

    /// Skips whitespace and returns the next byte, which it leaves.
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

    /// Checks that nothing but whitespace is left.
    pub(crate) fn end(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Ok(_) => Err(self.unexpected("the end")),
            Err(_) => Ok(()),
        }
    }

    /// Takes an opening bracket.
    pub(crate) fn enter(&mut self, bracket: u8, expected: &'static str) -> Result<(), ScanError> {
        if self.peek()? != bracket {
            return Err(self.unexpected(expected));
        }
        if self.depth >= DEPTH_MAX {
            return Err(ScanError::TooDeep(self.at));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Takes the next key and its colon, or the closing brace.
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

    /// Moves to the next element, or takes the closing bracket.
    pub(crate) fn next_element(&mut self, first: &mut bool) -> Result<Option<Element>, ScanError> {
        Ok(self.next(first, b']', "`,` or `]`")?.map(|comma| Element { comma }))
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

    /// Takes a string.
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

    /// Takes a string or `null`.
    #[inline(always)]
    pub(crate) fn string_or_null(&mut self, expected: &'static str) -> Result<Option<JsonText<'a>>, ScanError> {
        if self.peek()? != b'n' {
            return self.string(expected).map(Some);
        }
        self.scalar().map(|_| None)
    }

    /// Takes a number, `true`, `false` or `null`. It ends where something follows it: text that ends with it is cut.
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

    /// Takes any value; returns its text.
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

    /// Takes an object; returns the values of the members of these names, of several of one name the last.
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
        if self.depth >= DEPTH_MAX {
            return Err(ScanError::TooDeep(self.at));
        }
        let from = self.at + 1;
        match block::container_end(&self.json[from..], DEPTH_MAX - self.depth) {
            Progress::Done(len) => self.at = from + len,
            Progress::More => return Err(ScanError::Truncated(self.json.len())),
            Progress::TooDeep(offset) => {
                return Err(ScanError::TooDeep(from + offset));
            }
        }
        if self.json[self.at - 1] == close {
            Ok(())
        } else {
            Err(ScanError::Malformed { at: self.at - 1, expected: "the bracket that was opened" })
        }
    }
}

impl<'a> JsonText<'a> {
    /// Returns the string that is meant: valid UTF-8, escapes resolved.
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

    /// Returns the bytes of the string that is meant; they are checked only where there are escapes.
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

/// Returns the text of a value that is a string; empty for any other.
pub(crate) fn text(value: Option<&[u8]>) -> Result<Cow<'_, str>, ScanError> {
    match value {
        Some(value @ [b'"', ..]) => JsonCursor::new(value).string("a string")?.decode(),
        _ => Ok(Cow::Borrowed("")),
    }
}

fn is_number(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> Option<&[u8]> {
        let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (len > 0).then(|| &text[len..])
    }
    fn tail(text: &[u8]) -> Option<&[u8]> {
        let mut rest = match text {
            [b'0', rest @ ..] => rest,
            _ => digits(text)?,
        };
        if let [b'.', fraction @ ..] = rest {
            rest = digits(fraction)?;
        }
        if let [b'e' | b'E', exponent @ ..] = rest {
            rest = digits(exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent))?;
        }
        Some(rest)
    }
    tail(text.strip_prefix(b"-").unwrap_or(text)).is_some_and(<[u8]>::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_json() {
        for good in ["0", "-0", "10", "1.5", "1e5", "-12.25E+10", "3e-1"] {
            assert!(is_number(good.as_bytes()), "{good}");
        }
        for bad in ["", "-", "01", "1.", ".5", "1e", "+1", "1.5.5", "0x1", "NaN", "1e+", "--1", "nul"] {
            assert!(!is_number(bad.as_bytes()), "{bad}");
        }
    }
}
