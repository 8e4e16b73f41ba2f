//! What bodies of one type have in common.

use std::fmt;

use zstd::{
    dict::{DecoderDictionary, EncoderDictionary},
    zstd_safe::zstd_sys,
};

use super::{LEVEL, lz4};

/// Bytes of content of a dictionary for zstd; lz4 uses the end of it. Twice as much saves few percent more, and each type pays for it in memory.
pub(super) const DICTIONARY_BYTES: usize = 64 << 10;

/// What zstd puts before that, at most, and more.
const TABLES_BYTES_MAX: usize = 4 << 10;

/// One of so many samples, and those for which there is no room, are no content: what is counted for the tables is what a
/// body has that the content does not. Of samples that are content themselves nothing is left to count, and literals are
/// stored as they are then: pods took 414 and 1,014 bytes for 314 and 728, in the same time.
const HELD_OUT_ONE_OF: usize = 4;

/// What bodies of one type have in common, ready to compress and decompress with.
///
/// It is samples themselves, one behind the other, which zstd refers to as if they stood before each body, with tables of
/// how often what occurs in other samples, so that no body carries its own: packed it has a third less, in half the
/// time. That takes 0.5 ms; to train a dictionary takes a hundred times as long for few percent.
pub struct Dictionary {
    /// What zstd calls it in each body; 0 where it has no name.
    pub(super) id: u32,
    /// Which one of its unit it is, from 1 on.
    number: u8,
    pub(super) encoder: EncoderDictionary<'static>,
    pub(super) decoder: DecoderDictionary<'static>,
    /// What lz4 uses.
    pub(super) content: lz4::Content,
    len: usize,
}

impl Dictionary {
    /// Makes the bytes of a dictionary from sample bodies; the last ones are found best. None where fewer than two fit.
    pub fn choose<S: AsRef<[u8]>>(samples: &[S]) -> Option<Vec<u8>> {
        let mut room = DICTIONARY_BYTES;
        let holds_out = samples.len() >= HELD_OUT_ONE_OF;
        let (mut content, mut others) = (Vec::new(), Vec::new());
        for (at, sample) in samples.iter().map(AsRef::as_ref).enumerate().rev() {
            match room.checked_sub(sample.len()) {
                Some(left) if !(holds_out && at.is_multiple_of(HELD_OUT_ONE_OF)) => {
                    room = left;
                    content.push(sample);
                }
                _ => others.push(sample),
            }
        }
        content.reverse();
        let counted = if holds_out { &others } else { &content };
        (content.len() >= 2).then(|| with_tables(&content.concat(), counted))
    }

    /// Takes up the bytes that [`Dictionary::choose`] chose, now or in an earlier run, as the `number`-th of a unit; none
    /// where zstd cannot use them.
    pub fn new(number: u8, bytes: &[u8]) -> Option<Self> {
        let encoder = EncoderDictionary::try_copy(bytes, LEVEL).ok()?;
        let decoder = DecoderDictionary::try_copy(bytes).ok()?;
        let id = decoder.as_ddict().get_dict_id().map_or(0, std::num::NonZero::get);
        Some(Self { id, number, encoder, decoder, content: lz4::Content::of(bytes), len: bytes.len() })
    }

    /// Returns which one of its unit it is, from 1 on.
    pub fn number(&self) -> u8 {
        self.number
    }
}

/// Puts before a content what zstd needs to know of bodies that are packed with it, as it finds that in `samples`:
/// `ZDICT_finalizeDictionary`, which the zstd crate does not offer. Where zstd finds no use in that, for samples that are
/// all equal, the content is the dictionary as it is.
#[expect(unsafe_code, reason = "there is no other way to it")]
fn with_tables(content: &[u8], samples: &[&[u8]]) -> Vec<u8> {
    let lens: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    let samples = samples.concat();
    let mut out = vec![0_u8; content.len() + TABLES_BYTES_MAX];
    let count = u32::try_from(lens.len()).expect("some dozens of samples");
    let parameters = zstd_sys::ZDICT_params_t { compressionLevel: LEVEL, notificationLevel: 0, dictID: 0 };
    // safety: each pointer comes with the length of what it points to, which outlives the call; the samples lie one behind
    // the other and are as long as `lens` says.
    let made = unsafe {
        let (content_at, content_len) = (content.as_ptr().cast(), content.len());
        let (lens_at, out_at, out_len) = (lens.as_ptr(), out.as_mut_ptr().cast(), out.len());
        zstd_sys::ZDICT_finalizeDictionary(
            out_at,
            out_len,
            content_at,
            content_len,
            samples.as_ptr().cast(),
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
