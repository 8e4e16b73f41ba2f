//! Bodies compressed one by one, with a dictionary of what objects of their type have in common (D2).

mod dictionary;
mod lz4;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, num::NonZero, sync::Arc};

use zstd::zstd_safe::{
    CCtx, DCtx, compress_bound, find_frame_compressed_size, get_dict_id_from_frame, get_error_name,
    get_frame_content_size,
};

pub use self::dictionary::Dictionary;
use super::{Identity, Object};

/// zstd's level. Level 3 saves some percent and costs half as much again.
const LEVEL: i32 = 1;

/// What packs a body. A dictionary serves both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// zstd: the smallest.
    Zstd,
    /// lz4: larger; bodies that differ much are read in less time.
    Lz4,
}

/// A compressed body does not give the object it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// It is damaged, or made with another codec or another dictionary.
    #[error("it cannot be unpacked: {0}")]
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
pub fn with_packed<T>(json: &[u8], codec: Codec, dictionary: Option<&Dictionary>, take: impl FnOnce(&[u8]) -> T) -> T {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.clear(compress_bound(json.len()));
        let Contexts { packer, room, .. } = contexts;
        match (codec, dictionary) {
            (Codec::Lz4, dictionary) => lz4::pack(room, json, dictionary.map(|dictionary| &dictionary.content)),
            (Codec::Zstd, Some(dictionary)) => {
                let packed = packer.compress_using_cdict(room, json, dictionary.encoder.as_cdict());
                packed.expect(ROOM);
            }
            (Codec::Zstd, None) => {
                packer.compress(room, json, LEVEL).expect(ROOM);
            }
        }
        take(room)
    })
}

/// Why nothing fails.
const ROOM: &str = "there is room for the worst case, and no other error";

/// Makes an object of its identity and what [`with_packed`] made of its `len` bytes of JSON with the same codec and
/// dictionary. It stays packed: that it is complete and of this dictionary is checked; of zstd's no more than what it says
/// in front of its blocks, their content where it comes from.
pub fn of_packed(
    identity: Identity<'_>,
    packed: &[u8],
    len: usize,
    codec: Codec,
    dictionary: Option<Arc<Dictionary>>,
) -> Result<Object, CodecError> {
    let json_bytes = u32::try_from(len).map_err(|_| CodecError::Unpack("it is larger than the largest object"))?;
    match codec {
        Codec::Zstd => verify_zstd(packed, len, dictionary.as_deref())?,
        Codec::Lz4 => lz4::verify(packed, len, dictionary.as_deref().map(|dictionary| &dictionary.content))?,
    }
    Ok(Object::of_packed(identity, &[], packed, json_bytes, codec, dictionary))
}

fn verify_zstd(packed: &[u8], len: usize, dictionary: Option<&Dictionary>) -> Result<(), CodecError> {
    let noted = get_frame_content_size(packed).map_err(|_| CodecError::Unpack("it has no zstd header"))?;
    let found = noted.and_then(|found| usize::try_from(found).ok()).ok_or(CodecError::Unpack("it says no length"))?;
    if found != len {
        return Err(CodecError::Length { expected: len, found });
    }
    let made_with = get_dict_id_from_frame(packed).map_or(0, NonZero::get);
    if made_with != dictionary.map_or(0, |dictionary| dictionary.id) {
        return Err(CodecError::Unpack("another dictionary was used"));
    }
    match find_frame_compressed_size(packed) {
        Ok(end) if end == packed.len() => Ok(()),
        Ok(_) => Err(CodecError::Unpack("something follows it")),
        Err(code) => Err(CodecError::Unpack(get_error_name(code))),
    }
}

/// Makes an object of its identity and `len` bytes of JSON.
pub fn plain(identity: Identity<'_>, json: &[u8], len: usize) -> Result<Object, CodecError> {
    if json.len() != len {
        return Err(CodecError::Length { expected: len, found: json.len() });
    }
    Object::assemble_with(identity, &[], len, |room| room.put(json)).map_err(|_| CodecError::Text)
}

/// Returns the `len` bytes that [`with_packed`] made `packed` of with the same codec and dictionary.
pub(super) fn unpack_json(
    packed: &[u8],
    len: usize,
    codec: Codec,
    dictionary: Option<&Dictionary>,
) -> Result<Vec<u8>, CodecError> {
    match codec {
        Codec::Zstd => CONTEXTS.with_borrow_mut(|contexts| unpack_zstd(contexts, packed, len, dictionary)),
        Codec::Lz4 => lz4::unpack(packed, len, dictionary.map(|dictionary| &dictionary.content)),
    }
}

fn unpack_zstd(
    contexts: &mut Contexts,
    packed: &[u8],
    len: usize,
    dictionary: Option<&Dictionary>,
) -> Result<Vec<u8>, CodecError> {
    let mut json = Vec::with_capacity(len);
    let unpacked = match dictionary {
        Some(dictionary) => contexts.unpacker.decompress_using_ddict(&mut json, packed, dictionary.decoder.as_ddict()),
        None => contexts.unpacker.decompress(&mut json, packed),
    };
    match unpacked {
        Ok(found) if found == len => Ok(json),
        Ok(found) => Err(CodecError::Length { expected: len, found }),
        Err(code) => Err(CodecError::Unpack(get_error_name(code))),
    }
}
