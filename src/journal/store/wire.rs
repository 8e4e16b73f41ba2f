//! Encoding of numbers and texts in the values of the store. Small values take few bytes.

/// Appends a number, with seven bits per byte.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Appends the length of a text and the text.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a uid: as 16 bytes if it is a UUID in lower case, otherwise as text.
pub(super) fn put_uid(out: &mut Vec<u8>, uid: &str) {
    if let Some(bytes) = uuid_bytes(uid) {
        out.push(1);
        out.extend_from_slice(&bytes);
    } else {
        out.push(0);
        put_text(out, uid);
    }
}

/// Decoder for encoded numbers, texts and uids. Its methods return `None` if the data ends too early or is invalid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire<'a>(pub(super) &'a [u8]);

impl<'a> Wire<'a> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    pub(super) fn uid(&mut self) -> Option<Uid<'a>> {
        match self.byte()? {
            0 => self.text().map(Uid::Text),
            1 => Some(Uid::Uuid(uuid_text(self.bytes(16)?.try_into().ok()?))),
            _ => None,
        }
    }
}

/// A decoded uid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Uid<'a> {
    Text(&'a str),
    Uuid([u8; 36]),
}

impl PartialEq for Uid<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Uid<'_> {
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Uuid(text) => std::str::from_utf8(text).expect("hex digits and dashes"),
        }
    }
}

const DASHES: [usize; 4] = [8, 13, 18, 23];

/// Offsets in the text of a uid: the two digits of each byte.
const BYTES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

/// Value for a byte that is no digit.
const NONE: u8 = 0xff;

/// Value of each byte as a hex digit: 10 for `b'a'`, for example. [`NONE`] for all other bytes.
const DIGITS: [u8; 256] = {
    let mut digits = [NONE; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    digits
};

fn uuid_bytes(uid: &str) -> Option<[u8; 16]> {
    let text: &[u8; 36] = uid.as_bytes().try_into().ok()?;
    let (mut bytes, mut all) = ([0; 16], 0);
    for (byte, at) in bytes.iter_mut().zip(BYTES) {
        let (high, low) = (DIGITS[usize::from(text[at])], DIGITS[usize::from(text[at + 1])]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all != NONE && DASHES.iter().all(|at| text[*at] == b'-')).then_some(bytes)
}

fn uuid_text(bytes: [u8; 16]) -> [u8; 36] {
    let mut text = [b'-'; 36];
    let places = (0..36).filter(|at| !DASHES.contains(at));
    for (digit, at) in places.enumerate() {
        let shift = if digit % 2 == 0 { 4 } else { 0 };
        text[at] = b"0123456789abcdef"[usize::from((bytes[digit / 2] >> shift) & 0xf)];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_takes_16_bytes_and_round_trips() {
        let cases = [
            ("5f1c0e62-8d9f-4a55-9c54-0123456789ab", 17),
            ("5F1C0E62-8d9f-4a55-9c54-0123456789ab", 38),
            ("5f1c0e62x8d9f-4a55-9c54-0123456789ab", 38),
            ("", 2),
            ("übel", 7),
        ];
        for (uid, len) in cases {
            let mut out = Vec::new();
            put_uid(&mut out, uid);
            assert_eq!(out.len(), len, "{uid}");
            let mut wire = Wire(&out);
            assert_eq!(wire.uid().expect("just written").as_str(), uid);
            assert!(wire.0.is_empty());
        }
    }

    #[test]
    fn numbers_and_texts_round_trip_or_are_refused() {
        let mut out = Vec::new();
        let numbers = [0, 127, 128, 300, u64::MAX];
        for number in numbers {
            put_number(&mut out, number);
        }
        put_text(&mut out, "text");
        let mut wire = Wire(&out);
        assert!(numbers.iter().all(|&number| wire.number() == Some(number)));
        assert_eq!(wire.text(), Some("text"));
        assert_eq!(wire.byte(), None);
        assert_eq!(Wire(&out[out.len() - 4..]).text(), None);
        assert_eq!(Wire(&[0xff; 11]).number(), None);
    }
}
