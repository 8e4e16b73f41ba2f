//! Bodies compressed one by one, with a dictionary of what objects of their type have in common (D2).

use std::{cell::RefCell, fmt, sync::Arc};

use zstd::{
    dict::{DecoderDictionary, EncoderDictionary},
    zstd_safe::{CCtx, DCtx, compress_bound, get_dict_id_from_frame, get_frame_content_size, zstd_sys},
};

use super::{Identity, Object};

/// zstd's level. Level 3 saves some percent and costs half as much again.
const LEVEL: i32 = 1;

/// Bytes of content of a dictionary. Twice as much saves few percent more, and each type pays for it in memory.
const DICTIONARY_BYTES: usize = 64 << 10;

/// What zstd puts before that, at most, and more.
const TABLES_BYTES_MAX: usize = 4 << 10;

/// What bodies of one type have in common, ready to compress and decompress with.
///
/// It is the samples themselves, one behind the other, which zstd refers to as if they stood before each body, with
/// tables of how often what occurs in them, so that no body carries its own: packed it has 12 % less, in half the
/// time. That takes 0.2 ms; to train a dictionary takes a hundred times as long for few percent.
pub struct Dictionary {
    /// What zstd calls it in each body; 0 where it has no name.
    id: u32,
    /// Which one of its unit it is, from 1 on.
    number: u8,
    encoder: EncoderDictionary<'static>,
    decoder: DecoderDictionary<'static>,
    len: usize,
}

impl Dictionary {
    /// Makes the bytes of a dictionary from sample bodies; the last ones are found best. None where fewer than two fit.
    pub fn choose<S: AsRef<[u8]>>(samples: &[S]) -> Option<Vec<u8>> {
        let mut room = DICTIONARY_BYTES;
        let fits = |sample: &&[u8]| {
            let left = room.checked_sub(sample.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let mut chosen: Vec<&[u8]> = samples.iter().rev().map(AsRef::as_ref).filter(fits).collect();
        chosen.reverse();
        (chosen.len() >= 2).then(|| with_tables(&chosen.concat(), &chosen))
    }

    /// Takes up the bytes that [`Dictionary::choose`] chose, now or in an earlier run, as the `number`-th of a unit; none
    /// where zstd cannot use them.
    pub fn new(number: u8, bytes: &[u8]) -> Option<Self> {
        let encoder = EncoderDictionary::try_copy(bytes, LEVEL).ok()?;
        let decoder = DecoderDictionary::try_copy(bytes).ok()?;
        let id = decoder.as_ddict().get_dict_id().map_or(0, std::num::NonZero::get);
        Some(Self { id, number, encoder, decoder, len: bytes.len() })
    }

    /// Returns which one of its unit it is, from 1 on.
    pub fn number(&self) -> u8 {
        self.number
    }
}

/// Puts before samples that lie one behind the other what zstd needs to know of them: `ZDICT_finalizeDictionary`, which
/// the zstd crate does not offer. Where zstd finds no use in that, for samples that are all equal, they are the
/// dictionary as they are.
#[expect(unsafe_code, reason = "there is no other way to it")]
fn with_tables(content: &[u8], samples: &[&[u8]]) -> Vec<u8> {
    let lens: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    assert_eq!(lens.iter().sum::<usize>(), content.len(), "the content is the samples");
    let mut out = vec![0_u8; content.len() + TABLES_BYTES_MAX];
    let count = u32::try_from(lens.len()).expect("samples of 64 KiB in all");
    let parameters = zstd_sys::ZDICT_params_t { compressionLevel: LEVEL, notificationLevel: 0, dictID: 0 };
    // safety: each pointer comes with the length of what it points to, which outlives the call; the samples lie in
    // `content` one behind the other and are as long as `lens` says, which was just checked.
    let made = unsafe {
        let (content_at, content_len) = (content.as_ptr().cast(), content.len());
        let (lens_at, out_at, out_len) = (lens.as_ptr(), out.as_mut_ptr().cast(), out.len());
        zstd_sys::ZDICT_finalizeDictionary(
            out_at,
            out_len,
            content_at,
            content_len,
            content_at,
            lens_at,
            count,
            parameters,
        )
    };
    // an error is a number near the largest
    if made > out.len() {
        return content.to_vec();
    }
    out.truncate(made);
    out
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

/// Hands the compressed form of `json` to `take`.
pub fn with_packed<T>(json: &[u8], dictionary: Option<&Dictionary>, take: impl FnOnce(&[u8]) -> T) -> T {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.clear(compress_bound(json.len()));
        let Contexts { packer, room, .. } = contexts;
        let packed = match dictionary {
            Some(dictionary) => packer.compress_using_cdict(room, json, dictionary.encoder.as_cdict()),
            None => packer.compress(room, json, LEVEL),
        };
        packed.expect("there is room for the worst case, and no other error");
        take(room)
    })
}

/// Makes an object of its identity and what [`with_packed`] made of its `len` bytes of JSON with the same dictionary. It
/// stays packed: what zstd says in front of it is checked, the rest where it comes from.
pub fn of_packed(
    identity: Identity<'_>,
    packed: &[u8],
    len: usize,
    dictionary: Option<Arc<Dictionary>>,
) -> Result<Object, CodecError> {
    let noted = get_frame_content_size(packed).map_err(|_| CodecError::Unpack("it has no zstd header"))?;
    let found = noted.and_then(|found| usize::try_from(found).ok()).ok_or(CodecError::Unpack("it says no length"))?;
    let json_bytes = u32::try_from(len).ok().filter(|_| found == len);
    let json_bytes = json_bytes.ok_or(CodecError::Length { expected: len, found })?;
    let made_with = get_dict_id_from_frame(packed);
    if made_with.map_or(0, std::num::NonZero::get) != dictionary.as_deref().map_or(0, |dictionary| dictionary.id) {
        return Err(CodecError::Unpack("another dictionary was used"));
    }
    Ok(Object::of_packed(identity, packed, json_bytes, dictionary))
}

/// Makes an object of its identity and `len` bytes of JSON.
pub fn plain(identity: Identity<'_>, json: &[u8], len: usize) -> Result<Object, CodecError> {
    if json.len() != len {
        return Err(CodecError::Length { expected: len, found: json.len() });
    }
    Object::assemble_with(identity, len, |data| data.extend_from_slice(json)).map_err(|_| CodecError::Text)
}

/// Returns the `len` bytes that [`with_packed`] made `packed` of with the same dictionary.
pub(super) fn unpack_json(packed: &[u8], len: usize, dictionary: Option<&Dictionary>) -> Result<Vec<u8>, CodecError> {
    let mut json = Vec::with_capacity(len);
    CONTEXTS.with_borrow_mut(|contexts| unpack_into(&mut contexts.unpacker, &mut json, packed, len, dictionary))?;
    Ok(json)
}

fn unpack_into(
    context: &mut DCtx<'static>,
    room: &mut Vec<u8>,
    packed: &[u8],
    len: usize,
    dictionary: Option<&Dictionary>,
) -> Result<(), CodecError> {
    let unpacked = match dictionary {
        Some(dictionary) => context.decompress_using_ddict(room, packed, dictionary.decoder.as_ddict()),
        None => context.decompress(room, packed),
    };
    let found = unpacked.map_err(|code| CodecError::Unpack(zstd::zstd_safe::get_error_name(code)))?;
    if found == len { Ok(()) } else { Err(CodecError::Length { expected: len, found }) }
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

    fn pack(json: &[u8], dictionary: Option<&Dictionary>) -> Vec<u8> {
        with_packed(json, dictionary, <[u8]>::to_vec)
    }

    fn round_trip(json: &[u8], dictionary: Option<&Arc<Dictionary>>) -> usize {
        let packed = pack(json, dictionary.map(|dictionary| &**dictionary));
        let object = of_packed(identity("web"), &packed, json.len(), dictionary.cloned()).expect("what was packed");
        assert_eq!((&*object.json(), object.name(), object.uid()), (json, "web", "u"));
        packed.len()
    }

    #[test]
    fn d2_what_is_packed_comes_back_with_and_without_a_dictionary() {
        let samples: Vec<_> = (0..12).map(body).collect();
        let bytes = Dictionary::choose(&samples).expect("enough samples");
        let dictionary = Arc::new(Dictionary::new(1, &bytes).expect("zstd takes any bytes"));
        let with = round_trip(&body(99), Some(&dictionary));
        let without = round_trip(&body(99), None);
        assert!(with * 4 < without, "{with} and {without} bytes");
        for odd in [&b"{}"[..], b"", &vec![b'x'; 3 << 20]] {
            round_trip(odd, Some(&dictionary));
            round_trip(odd, None);
        }
        let again = Arc::new(Dictionary::new(1, &bytes).expect("it was one"));
        assert_eq!(round_trip(&body(99), Some(&again)), with);
    }

    #[test]
    fn d2_a_dictionary_needs_two_samples_and_has_a_bound() {
        assert!(Dictionary::choose::<&[u8]>(&[]).is_none());
        assert!(Dictionary::choose(&[body(1)]).is_none());
        let huge = vec![b' '; DICTIONARY_BYTES + 1];
        let chosen = Dictionary::choose(&[body(1), huge, body(2)]).expect("two that fit");
        let content = [body(1), body(2)].concat();
        assert!(chosen.ends_with(&content) && chosen.len() > content.len(), "tables, and the samples as they are");
        assert!(chosen.len() < content.len() + 300, "{} bytes of tables", chosen.len() - content.len());
        let many: Vec<_> = (0..1000).map(body).collect();
        let many = Dictionary::choose(&many).expect("enough samples");
        assert!(many.len() <= DICTIONARY_BYTES + 300 && many.len() > DICTIONARY_BYTES - body(1).len());
    }

    #[test]
    fn d2_samples_that_make_no_tables_are_a_dictionary_all_the_same() {
        for odd in [vec![Vec::new(), Vec::new()], vec![b"{}".to_vec(); 2], vec![vec![b'x'; 9]; 20], vec![body(1); 9]] {
            let bytes = Dictionary::choose(&odd).expect("two that fit");
            let dictionary = Dictionary::new(1, &bytes).map(Arc::new);
            assert!(dictionary.is_some(), "{} bytes", bytes.len());
            round_trip(&body(1), dictionary.as_ref());
            round_trip(b"{}", dictionary.as_ref());
        }
    }

    #[test]
    fn d2_a_damaged_body_is_an_error() {
        let (json, packed) = (body(1), pack(&body(1), None));
        let refused = |packed: &[u8], len: usize, dictionary: Option<&Arc<Dictionary>>| {
            of_packed(identity("a"), packed, len, dictionary.cloned()).map(drop).unwrap_err()
        };
        let other = CodecError::Length { expected: json.len() + 1, found: json.len() };
        assert_eq!(refused(&packed, json.len() + 1, None), other);
        assert!(matches!(refused(b"", 2, None), CodecError::Unpack(_)));
        assert!(matches!(refused(b"{}{}{}", 6, None), CodecError::Unpack(_)));
        let dictionaries = [[body(1), body(2)], [body(3), body(4)]].map(|samples| {
            Arc::new(Dictionary::new(1, &Dictionary::choose(&samples).expect("two")).expect("zstd takes it"))
        });
        let with = pack(&json, Some(&dictionaries[0]));
        for wrong in [None, Some(&dictionaries[1])] {
            assert_eq!(refused(&with, json.len(), wrong), CodecError::Unpack("another dictionary was used"));
        }
        assert!(matches!(unpack_json(&packed[..9], json.len(), None), Err(CodecError::Unpack(_))));
        assert_eq!(plain(identity("a"), b"\xff", 1).unwrap_err(), CodecError::Text);
        assert_eq!(plain(identity("a"), b"{}", 3).unwrap_err(), CodecError::Length { expected: 3, found: 2 });
    }
}
