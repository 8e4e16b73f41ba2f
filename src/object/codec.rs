//! Bodies compressed one by one, with a dictionary of what objects of their type have in common (D2).

use std::{cell::RefCell, fmt};

use zstd::{
    dict::{DecoderDictionary, EncoderDictionary},
    zstd_safe::{CCtx, DCtx, compress_bound},
};

use super::{Identity, Object};

/// zstd's level. Level 3 saves some percent and costs half as much again.
const LEVEL: i32 = 1;

/// Bytes of content of a dictionary. Twice as much saves few percent more, and each type pays for it in memory.
const DICTIONARY_BYTES: usize = 64 << 10;

/// What bodies of one type have in common, ready to compress and decompress with.
///
/// It is the samples themselves, one behind the other: zstd refers to them as if they stood before each body. A trained
/// dictionary is smaller per body by few percent and takes a hundred times as long to make.
pub struct Dictionary {
    encoder: EncoderDictionary<'static>,
    decoder: DecoderDictionary<'static>,
    len: usize,
}

impl Dictionary {
    /// Chooses the bytes of a dictionary from sample bodies; the last ones are found best. None where fewer than two
    /// fit.
    pub fn choose<S: AsRef<[u8]>>(samples: &[S]) -> Option<Vec<u8>> {
        let mut room = DICTIONARY_BYTES;
        let fits = |sample: &&S| {
            let left = room.checked_sub(sample.as_ref().len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let mut chosen: Vec<&[u8]> = samples.iter().rev().filter(fits).map(AsRef::as_ref).collect();
        chosen.reverse();
        (chosen.len() >= 2).then(|| chosen.concat())
    }

    /// Takes up the bytes that [`Dictionary::choose`] chose, now or in an earlier run; none where zstd cannot use them.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let encoder = EncoderDictionary::try_copy(bytes, LEVEL).ok()?;
        let decoder = DecoderDictionary::try_copy(bytes).ok()?;
        Some(Self { encoder, decoder, len: bytes.len() })
    }
}

impl fmt::Debug for Dictionary {
    /// Leaves the content out: it is made of objects.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.len)
    }
}

/// A compressed body does not give the object it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// zstd refuses it: it is damaged, or made with another dictionary.
    #[error("zstd cannot unpack it: {0}")]
    Unpack(&'static str),
    /// It has another length than was noted.
    #[error("it has {found} bytes, expected {expected}")]
    Length {
        /// The bytes noted.
        expected: usize,
        /// The bytes found.
        found: usize,
    },
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    Text,
}

/// zstd's contexts and room for one result, kept by each thread that packs or unpacks.
struct Contexts {
    packer: CCtx<'static>,
    unpacker: DCtx<'static>,
    room: Vec<u8>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> =
        RefCell::new(Contexts { packer: CCtx::create(), unpacker: DCtx::create(), room: Vec::new() });
}

/// More room than this is given back after use.
const ROOM_KEPT_BYTES: usize = 1 << 20;

impl Contexts {
    fn clear(&mut self, bytes: usize) {
        if self.room.capacity() > ROOM_KEPT_BYTES {
            self.room = Vec::new();
        }
        self.room.clear();
        self.room.reserve(bytes);
    }
}

/// Appends the compressed form of `json` to `out`.
pub fn pack(json: &[u8], dictionary: Option<&Dictionary>, out: &mut Vec<u8>) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.clear(compress_bound(json.len()));
        let Contexts { packer, room, .. } = contexts;
        let packed = match dictionary {
            Some(dictionary) => packer.compress_using_cdict(room, json, dictionary.encoder.as_cdict()),
            None => packer.compress(room, json, LEVEL),
        };
        packed.expect("there is room for the worst case, and no other error");
        out.extend_from_slice(room);
    });
}

/// Makes an object of its identity and what [`pack`] made of its `len` bytes of JSON with the same dictionary.
pub fn unpack(
    identity: Identity<'_>,
    packed: &[u8],
    len: usize,
    dictionary: Option<&Dictionary>,
) -> Result<Object, CodecError> {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.clear(len);
        let Contexts { unpacker, room, .. } = contexts;
        let unpacked = match dictionary {
            Some(dictionary) => unpacker.decompress_using_ddict(room, packed, dictionary.decoder.as_ddict()),
            None => unpacker.decompress(room, packed),
        };
        let found = unpacked.map_err(|code| CodecError::Unpack(zstd::zstd_safe::get_error_name(code)))?;
        if found != len {
            return Err(CodecError::Length { expected: len, found });
        }
        Object::assemble_with(identity, len, |data| data.extend_from_slice(room)).map_err(|_| CodecError::Text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(name: usize) -> Vec<u8> {
        let env: Vec<String> = (0..60).map(|n| format!(r#"{{"name":"KEY_{n}","value":"v{}"}}"#, n * 7919)).collect();
        let env = env.join(",");
        format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-{name}"}},"env":[{env}]}}"#).into_bytes()
    }

    fn identity(name: &str) -> Identity<'_> {
        Identity { namespace: "ns", name, uid: "u", resource_version: "7" }
    }

    fn round_trip(json: &[u8], dictionary: Option<&Dictionary>) -> usize {
        let mut packed = Vec::new();
        pack(json, dictionary, &mut packed);
        let object = unpack(identity("web"), &packed, json.len(), dictionary).expect("what was packed");
        assert_eq!((&*object.json(), object.name(), object.uid()), (json, "web", "u"));
        packed.len()
    }

    #[test]
    fn d2_what_is_packed_comes_back_with_and_without_a_dictionary() {
        let samples: Vec<_> = (0..12).map(body).collect();
        let bytes = Dictionary::choose(&samples).expect("enough samples");
        let dictionary = Dictionary::new(&bytes).expect("zstd takes any bytes");
        let with = round_trip(&body(99), Some(&dictionary));
        let without = round_trip(&body(99), None);
        assert!(with * 4 < without, "{with} and {without} bytes");
        for odd in [&b"{}"[..], b"", &vec![b'x'; 3 << 20]] {
            round_trip(odd, Some(&dictionary));
            round_trip(odd, None);
        }
        let again = Dictionary::new(&bytes).expect("it was one");
        assert_eq!(round_trip(&body(99), Some(&again)), with);
    }

    #[test]
    fn d2_a_dictionary_needs_two_samples_and_has_a_bound() {
        assert!(Dictionary::choose::<&[u8]>(&[]).is_none());
        assert!(Dictionary::choose(&[body(1)]).is_none());
        let huge = vec![b' '; DICTIONARY_BYTES + 1];
        assert_eq!(Dictionary::choose(&[body(1), huge, body(2)]), Some([body(1), body(2)].concat()));
        let many: Vec<_> = (0..1000).map(body).collect();
        assert!(Dictionary::choose(&many).expect("enough samples").len() <= DICTIONARY_BYTES);
    }

    #[test]
    fn d2_a_damaged_body_is_an_error() {
        let mut packed = Vec::new();
        pack(&body(1), None, &mut packed);
        let len = body(1).len();
        assert!(matches!(unpack(identity("a"), &packed[..9], len, None), Err(CodecError::Unpack(_))));
        let other = CodecError::Length { expected: len + 1, found: len };
        assert_eq!(unpack(identity("a"), &packed, len + 1, None).unwrap_err(), other);
        let mut text = Vec::new();
        pack(b"\xff\xff", None, &mut text);
        assert_eq!(unpack(identity("a"), &text, 2, None).unwrap_err(), CodecError::Text);
    }
}
