//! Compression of single bodies, with a dictionary per type.
//!
//! Reasons: `docs/decisions/0004-compressed-bodies.md`.

mod dictionary;
mod lz4;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, num::NonZero, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zstd::zstd_safe::{
    CCtx, DCtx, compress_bound, find_frame_compressed_size, get_dict_id_from_frame, get_error_name,
    get_frame_content_size,
};

pub use self::dictionary::Dictionary;
use super::{Identity, Object};

/// Compression level of zstd. Level 3 saves a few percent and takes 50 % longer.
const LEVEL: i32 = 1;

/// Compression of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// zstd, with a dictionary of samples of the type.
    #[default]
    Zstd,
    /// lz4, with the same dictionary.
    Lz4,
    /// No compression.
    None,
}

/// Reason why a packed body cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The body is damaged, or was packed with another compression or dictionary.
    #[error("the body cannot be unpacked: {0}")]
    Unpack(&'static str),
    /// The body has another length than recorded.
    #[error("the body has {found} bytes, expected {expected}")]
    Length {
        /// Recorded length.
        expected: usize,
        /// Actual length.
        found: usize,
    },
    /// The body is not UTF-8.
    #[error("the body is not UTF-8")]
    Text,
}

/// Contexts of zstd and an output buffer, one set per thread.
struct Contexts {
    packer: CCtx<'static>,
    unpacker: DCtx<'static>,
    room: Vec<u8>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> =
        RefCell::new(Contexts { packer: CCtx::create(), unpacker: DCtx::create(), room: Vec::new() });
}

/// Largest capacity that the output buffer keeps after use.
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

/// Passes the compressed form of `json` to `take`.
pub fn with_packed<T>(
    json: &[u8],
    compression: Compression,
    dictionary: Option<&Dictionary>,
    take: impl FnOnce(&[u8]) -> T,
) -> T {
    if compression == Compression::None {
        return take(json);
    }
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.clear(compress_bound(json.len()));
        let Contexts { packer, room, .. } = contexts;
        match (compression, dictionary) {
            (Compression::Lz4, dictionary) => lz4::pack(room, json, dictionary.map(|dictionary| &dictionary.content)),
            (_, Some(dictionary)) => {
                let packed = packer.compress_using_cdict(room, json, dictionary.encoder.as_cdict());
                packed.expect(ROOM);
            }
            (_, None) => {
                packer.compress(room, json, LEVEL).expect(ROOM);
            }
        }
        take(room)
    })
}

/// Panic message of calls that cannot fail.
const ROOM: &str = "there is room for the worst case, and no other error";

/// Creates an object from its identity and a packed body; the body stays packed. `packed` must be the output of [`with_packed`] for
/// `len` bytes of JSON, with this compression and dictionary. The function checks that the body is complete and matches the
/// dictionary. It does not check the compressed data of a zstd body, so the store must detect damage to this data.
pub fn of_packed(
    identity: Identity<'_>,
    packed: &[u8],
    len: usize,
    compression: Compression,
    dictionary: Option<Arc<Dictionary>>,
) -> Result<Object, CodecError> {
    let json_bytes = u32::try_from(len).map_err(|_| CodecError::Unpack("it is larger than the largest object"))?;
    match compression {
        Compression::Zstd => verify_zstd(packed, len, dictionary.as_deref())?,
        Compression::Lz4 => lz4::verify(packed, len, dictionary.as_deref().map(|dictionary| &dictionary.content))?,
        Compression::None => return plain(identity, packed, len),
    }
    Ok(Object::of_packed(identity, &[], packed, json_bytes, compression, dictionary))
}

fn verify_zstd(packed: &[u8], len: usize, dictionary: Option<&Dictionary>) -> Result<(), CodecError> {
    let noted = get_frame_content_size(packed).map_err(|_| CodecError::Unpack("it has no zstd header"))?;
    let found =
        noted.and_then(|found| usize::try_from(found).ok()).ok_or(CodecError::Unpack("its length is missing"))?;
    if found != len {
        return Err(CodecError::Length { expected: len, found });
    }
    let made_with = get_dict_id_from_frame(packed).map_or(0, NonZero::get);
    if made_with != dictionary.map_or(0, |dictionary| dictionary.id) {
        return Err(CodecError::Unpack("another dictionary was used"));
    }
    match find_frame_compressed_size(packed) {
        Ok(end) if end == packed.len() => Ok(()),
        Ok(_) => Err(CodecError::Unpack("bytes follow it")),
        Err(code) => Err(CodecError::Unpack(get_error_name(code))),
    }
}

/// Creates an object from its identity and `len` bytes of JSON.
fn plain(identity: Identity<'_>, json: &[u8], len: usize) -> Result<Object, CodecError> {
    if json.len() != len {
        return Err(CodecError::Length { expected: len, found: json.len() });
    }
    Object::assemble_with(identity, &[], len, |room| room.put(json)).map_err(|_| CodecError::Text)
}

/// Unpacks `packed`, the output of [`with_packed`] for `len` bytes of JSON with the same compression and dictionary.
pub(super) fn unpack_json(
    packed: &[u8],
    len: usize,
    compression: Compression,
    dictionary: Option<&Dictionary>,
) -> Result<Vec<u8>, CodecError> {
    match compression {
        Compression::Zstd => CONTEXTS.with_borrow_mut(|contexts| unpack_zstd(contexts, packed, len, dictionary)),
        Compression::Lz4 => lz4::unpack(packed, len, dictionary.map(|dictionary| &dictionary.content)),
        Compression::None => Ok(packed.to_vec()),
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
