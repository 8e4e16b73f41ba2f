//! Bodies as lz4 blocks. A block records neither the length of its JSON nor its dictionary. A checksum before each block covers
//! the block, this length and the dictionary.

use lz4_flex::block::{
    compress_into, compress_into_with_dict, decompress_into, decompress_into_with_dict, get_maximum_output_size,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CodecError, ROOM};

/// Size of the checksum before a block.
const CHECK_BYTES: usize = 4;

/// Size of the used part of a dictionary: the end, with the newest samples. For each body, lz4 indexes this whole part in a table
/// of 4096 entries. Four times the size would save a tenth but take twice the time. Moving the best samples to the end would
/// save 2 %.
pub(super) const CONTENT_BYTES: usize = 16 << 10;

/// Dictionary content that each block may refer to.
pub(super) struct Content {
    bytes: Box<[u8]>,
    /// Hash that distinguishes this content from others.
    seed: u64,
}

impl Content {
    /// Keeps the used part of a dictionary.
    pub(super) fn of(dictionary: &[u8]) -> Self {
        let bytes = &dictionary[dictionary.len().saturating_sub(CONTENT_BYTES)..];
        Self { bytes: bytes.into(), seed: xxh3_64_with_seed(bytes, 0) }
    }
}

/// Returns a checksum over a block, the length of its source and the dictionary content.
fn check(block: &[u8], len: usize, content: Option<&Content>) -> [u8; CHECK_BYTES] {
    let seed = content.map_or(0, |content| content.seed) ^ len as u64;
    let [a, b, c, d, ..] = xxh3_64_with_seed(block, seed).to_le_bytes();
    [a, b, c, d]
}

/// Replaces the content of `room` by the packed form of `json`.
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

/// Checks that `packed` is the output of [`pack`] for `len` bytes of JSON and this dictionary content.
pub(super) fn verify(packed: &[u8], len: usize, content: Option<&Content>) -> Result<(), CodecError> {
    let (noted, block) = packed.split_first_chunk().ok_or(CodecError::Unpack("it has no checksum"))?;
    if *noted == check(block, len, content) { Ok(()) } else { Err(CodecError::Unpack("its checksum is wrong")) }
}

/// Unpacks `packed`, the output of [`pack`] for `len` bytes of JSON and the same dictionary content.
pub(super) fn unpack(packed: &[u8], len: usize, content: Option<&Content>) -> Result<Vec<u8>, CodecError> {
    let block = packed.get(CHECK_BYTES..).ok_or(CodecError::Unpack("it has no checksum"))?;
    let mut json = vec![0; len];
    let unpacked = match content {
        Some(content) => decompress_into_with_dict(block, &mut json, &content.bytes),
        None => decompress_into(block, &mut json),
    };
    match unpacked {
        Ok(found) if found == len => Ok(json),
        Ok(found) => Err(CodecError::Length { expected: len, found }),
        Err(_) => Err(CodecError::Unpack("its lz4 block is malformed")),
    }
}
