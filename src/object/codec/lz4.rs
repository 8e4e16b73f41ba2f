//! Bodies as blocks of lz4, each behind a check of itself: a block says neither how long it is nor what it refers to.

use lz4_flex::block::{
    compress_into, compress_into_with_dict, decompress_into, decompress_into_with_dict, get_maximum_output_size,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CodecError, ROOM};

/// Bytes of the check before a block.
const CHECK_BYTES: usize = 4;

/// Bytes of a dictionary that are used: its end, the newest samples. lz4 notes all of them anew for each body, in a table of
/// 4096 places: four times as many save a tenth and take twice the time; to put the best samples last saves 2 %.
pub(super) const CONTENT_BYTES: usize = 16 << 10;

/// What blocks refer to as if it stood before each.
pub(super) struct Content {
    bytes: Box<[u8]>,
    /// Tells it from others.
    seed: u64,
}

impl Content {
    /// Takes as much of a dictionary as is used.
    pub(super) fn of(dictionary: &[u8]) -> Self {
        let bytes = &dictionary[dictionary.len().saturating_sub(CONTENT_BYTES)..];
        Self { bytes: bytes.into(), seed: xxh3_64_with_seed(bytes, 0) }
    }
}

/// Returns a check of a block, of the length of what it was made of, and of what it refers to.
fn check(block: &[u8], len: usize, content: Option<&Content>) -> [u8; CHECK_BYTES] {
    let seed = content.map_or(0, |content| content.seed) ^ len as u64;
    let [a, b, c, d, ..] = xxh3_64_with_seed(block, seed).to_le_bytes();
    [a, b, c, d]
}

/// Replaces what is in `room` by the packed form of `json`.
pub(super) fn pack(room: &mut Vec<u8>, json: &[u8], content: Option<&Content>) {
    room.resize(CHECK_BYTES + get_maximum_output_size(json.len()), 0);
    let block = &mut room[CHECK_BYTES..];
    let packed = match content {
        Some(content) => compress_into_with_dict(json, block, &content.bytes),
        None => compress_into(json, block),
    };
    room.truncate(CHECK_BYTES + packed.expect(ROOM));
    let check = check(&room[CHECK_BYTES..], json.len(), content);
    room[..CHECK_BYTES].copy_from_slice(&check);
}

/// Returns whether [`pack`] made this of so many bytes, with the same content.
pub(super) fn verify(packed: &[u8], len: usize, content: Option<&Content>) -> Result<(), CodecError> {
    let (noted, block) = packed.split_first_chunk().ok_or(CodecError::Unpack("it has no check"))?;
    if *noted == check(block, len, content) { Ok(()) } else { Err(CodecError::Unpack("its check does not fit")) }
}

/// Returns the `len` bytes that [`pack`] was given.
pub(super) fn unpack(packed: &[u8], len: usize, content: Option<&Content>) -> Result<Vec<u8>, CodecError> {
    let block = packed.get(CHECK_BYTES..).ok_or(CodecError::Unpack("it has no check"))?;
    let mut json = vec![0; len];
    let unpacked = match content {
        Some(content) => decompress_into_with_dict(block, &mut json, &content.bytes),
        None => decompress_into(block, &mut json),
    };
    match unpacked {
        Ok(found) if found == len => Ok(json),
        Ok(found) => Err(CodecError::Length { expected: len, found }),
        Err(_) => Err(CodecError::Unpack("its block of lz4 contradicts itself")),
    }
}
