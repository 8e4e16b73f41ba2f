//! Checks whether bytes are the beginning of a JSON document, in pieces, and no byte twice.

use crate::object::scan::ScanError;

/// Brackets whose kind is kept.
const DEPTH_MAX: u32 = u128::BITS;

/// State of the check of one JSON object (RFC 8259). It checks neither UTF-8 nor anything behind a bracket that is nested
/// more than 128 deep: such documents are skipped once they are complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    /// Bytes checked so far.
    at: usize,
    place: Place,
    /// Open brackets.
    depth: u32,
    /// One bit an open bracket, the innermost lowest: 1 is an object.
    objects: u128,
}

/// Bytes that may come next, white space aside.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// A value, or the closing bracket if `may_close`.
    Value {
        may_close: bool,
    },
    /// A key, or the closing brace if `may_close`.
    Key {
        may_close: bool,
    },
    Colon,
    /// A comma or a closing bracket.
    AfterValue,
    Text {
        is_key: bool,
        part: Text,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// Behind the object, or too deep: nothing more is checked.
    End,
}

/// A part of a string.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Text {
    Plain,
    Escape,
    /// Digits of `\u` that are missing.
    Hex(u8),
}

/// The part of a number that was read last.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Default for Prefix {
    fn default() -> Self {
        Self { at: 0, place: Place::Value { may_close: false }, depth: 0, objects: 0 }
    }
}

impl Prefix {
    /// Checks the bytes of `document` that were not checked before; it begins with those that were.
    pub(super) fn advance(&mut self, document: &[u8]) -> Result<(), ScanError> {
        while let Some(byte) = document.get(self.at) {
            self.place = self.after(*byte).map_err(|expected| ScanError::Malformed { at: self.at, expected })?;
            self.at += 1;
        }
        Ok(())
    }

    /// Takes one byte and returns the place behind it. The error names what was expected.
    fn after(&mut self, byte: u8) -> Result<Place, &'static str> {
        match self.place {
            Place::End => return Ok(Place::End),
            Place::Text { is_key, part } => return text(is_key, part, byte),
            Place::Word([next, rest @ ..]) => {
                let place = if rest.is_empty() { Place::AfterValue } else { Place::Word(rest) };
                return if byte == *next { Ok(place) } else { Err("a value") };
            }
            Place::Number(part) => match part.after(byte) {
                Some(part) => return Ok(Place::Number(part)),
                None if part.may_end() => self.place = Place::AfterValue,
                None => return Err("a number"),
            },
            _ => {}
        }
        match (self.place, byte) {
            (place, b' ' | b'\t' | b'\n' | b'\r') => Ok(place),
            (Place::Key { .. }, b'"') => Ok(Place::Text { is_key: true, part: Text::Plain }),
            (Place::Key { may_close: true }, b'}') | (Place::Value { may_close: true }, b']') => Ok(self.close()),
            (Place::Key { .. }, _) => Err("a key"),
            (Place::Colon, b':') => Ok(Place::Value { may_close: false }),
            (Place::Colon, _) => Err("`:`"),
            (Place::Value { .. }, _) => self.value(byte),
            (_, b',') if self.is_in_object() => Ok(Place::Key { may_close: false }),
            (_, b',') => Ok(Place::Value { may_close: false }),
            (_, b'}') if self.is_in_object() => Ok(self.close()),
            (_, b']') if !self.is_in_object() => Ok(self.close()),
            _ => Err("`,` or the closing bracket"),
        }
    }

    /// Takes the first byte of a value.
    fn value(&mut self, byte: u8) -> Result<Place, &'static str> {
        Ok(match byte {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'"' => Place::Text { is_key: false, part: Text::Plain },
            b't' => Place::Word(b"rue"),
            b'f' => Place::Word(b"alse"),
            b'n' => Place::Word(b"ull"),
            b'-' => Place::Number(Number::Minus),
            b'0' => Place::Number(Number::Zero),
            b'1'..=b'9' => Place::Number(Number::Integer),
            _ => return Err("a value"),
        })
    }

    fn open(&mut self, is_object: bool) -> Place {
        if self.depth == DEPTH_MAX {
            return Place::End;
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(is_object);
        if is_object { Place::Key { may_close: true } } else { Place::Value { may_close: true } }
    }

    fn close(&mut self) -> Place {
        self.depth -= 1;
        self.objects >>= 1;
        if self.depth == 0 { Place::End } else { Place::AfterValue }
    }

    fn is_in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

/// Takes a byte of a string.
fn text(is_key: bool, part: Text, byte: u8) -> Result<Place, &'static str> {
    let part = match (part, byte) {
        (Text::Plain, b'"') => return Ok(if is_key { Place::Colon } else { Place::AfterValue }),
        (Text::Plain, b'\\') => Text::Escape,
        (Text::Plain, ..0x20) => return Err("no control character in a string"),
        (Text::Escape, b'u') => Text::Hex(4),
        (Text::Hex(missing @ 2..), _) if byte.is_ascii_hexdigit() => Text::Hex(missing - 1),
        (Text::Hex(_), _) if !byte.is_ascii_hexdigit() => return Err("a hexadecimal digit"),
        (Text::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') | (Text::Plain | Text::Hex(_), _) => {
            Text::Plain
        }
        (Text::Escape, _) => return Err("an escape"),
    };
    Ok(Place::Text { is_key, part })
}

impl Number {
    /// Returns the part that a byte belongs to, if it goes on with the number.
    fn after(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus | Self::Integer, b'0'..=b'9') => Some(Self::Integer),
            (Self::Zero | Self::Integer, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Exponent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::{Deserialize as _, de::IgnoredAny};

    use super::*;
    use crate::object::scan::testing::Writer;

    /// Returns whether `serde_json` accepts this as the beginning of a document.
    fn may_go_on(beginning: &[u8]) -> bool {
        let read = IgnoredAny::deserialize(&mut serde_json::Deserializer::from_slice(beginning));
        read.map_or_else(|error| error.is_eof(), |_| true)
    }

    fn followed_by(beginning: &[u8], more: &str) -> Vec<u8> {
        [beginning, more.as_bytes()].concat()
    }

    #[test]
    fn prefix_is_refused_where_serde_json_refuses_it() {
        let refused = std::cell::Cell::new(0);
        let cases = ProptestConfig::default().cases.max(2000);
        proptest!(ProptestConfig { cases, ..Default::default() }, |(seed in any::<u64>(), cut in 0_usize..50)| {
            let mut writer = Writer::new(seed);
            let mut text = String::from("{\"a\":");
            writer.value(4, &mut text);
            text.push('}');
            let mut bytes = text.into_bytes();
            writer.mutate(&mut bytes);
            if bytes.first() != Some(&b'{') {
                return Ok(());
            }
            let mut prefix = Prefix::default();
            // in two steps, which find what one does
            let checked = prefix.advance(&bytes[..cut.min(bytes.len())]).and_then(|()| prefix.advance(&bytes));
            prop_assert_eq!(checked.clone(), Prefix::default().advance(&bytes));
            let at = match checked {
                Err(ScanError::Malformed { at, .. }) => at,
                _ => bytes.len(),
            };
            // serde_json takes a sign or a point at the end for the end of the number
            let is_taken = may_go_on(&bytes[..at]) || may_go_on(&followed_by(&bytes[..at], "0"));
            prop_assert!(is_taken, "{}", String::from_utf8_lossy(&bytes[..at]));
            if let Some(beginning) = bytes.get(..=at) {
                refused.set(refused.get() + 1);
                // serde_json looks at the four digits of an escape at once
                let is_taken = may_go_on(&followed_by(beginning, "0000"));
                prop_assert!(!is_taken, "{}", String::from_utf8_lossy(beginning));
            }
        });
        assert!(refused.get() > 500, "{}", refused.get());
    }

    #[test]
    fn numbers_words_and_escapes_are_those_of_json() {
        let check = |value: &str| Prefix::default().advance(format!("{{\"a\":{value}\n").as_bytes()).is_ok();
        for good in
            ["0", "-0.5e+10", "10E-2", "12.25", "true", "null", r#""\u00e9\n\"""#, "[]", "{}", "[1 ,", "[{},[]", ""]
        {
            assert!(check(good), "{good}");
        }
        for bad in
            ["01", "-", "1.", "1e", "1e+", "+1", ".5", "tru", "nul", r#""\x""#, r#""\u00g0""#, "\"", "[}", "{]", "{,"]
        {
            assert!(!check(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_nested_too_deeply_is_not_checked() {
        let deep = |levels: usize| format!("{{\"a\":{}]]}}", "[".repeat(levels));
        assert!(Prefix::default().advance(deep(127).as_bytes()).is_err());
        assert!(Prefix::default().advance(deep(128).as_bytes()).is_ok());
    }
}
