//! Dictionaries of samples of one type.

use std::fmt;

use zstd::{
    dict::{DecoderDictionary, EncoderDictionary},
    zstd_safe::zstd_sys,
};

use super::{LEVEL, lz4};

/// Size of a zstd dictionary's content; lz4 uses only its end. Twice the size would save a few percent more, but take more memory
/// for each type.
pub(super) const DICTIONARY_BYTES: usize = 64 << 10;

/// Upper bound of the tables that zstd puts before the content.
const TABLES_BYTES_MAX: usize = 4 << 10;

/// One in this many samples is left out of the content. Each sample that does not fit is left out too. zstd builds its tables from
/// the samples left out. The tables encode the parts of a body that the content lacks. Tables built from the content cannot
/// compress these parts: they increased the packed size of two pods from 314 and 728 bytes to 414 and 1,014 bytes.
const HELD_OUT_ONE_OF: usize = 4;

/// A dictionary of samples of one type, prepared for compression and decompression.
///
/// A dictionary has content and tables. The content is consecutive samples. zstd treats the content as if it preceded each body.
/// The tables are symbol statistics. With enough samples, they are made from samples that are not in the content. All bodies share
/// these tables, so no body has tables of its own. The dictionary makes packed bodies a third smaller, in half the time. Making a
/// dictionary takes 0.5 ms. zstd's own training would take a hundred times as long, and save a few percent more.
pub struct Dictionary {
    /// Dictionary id that zstd writes into each body; 0 for a dictionary without id.
    pub(super) id: u32,
    /// Number of the dictionary within its unit, from 1.
    number: u8,
    pub(super) encoder: EncoderDictionary<'static>,
    pub(super) decoder: DecoderDictionary<'static>,
    pub(super) content: lz4::Content,
    len: usize,
}

impl Dictionary {
    /// Builds the bytes of a dictionary from sample bodies; the last samples have precedence. `None` if fewer than two fit.
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

    /// Loads bytes from [`Dictionary::choose`] of this or an earlier run, as dictionary `number` of a unit. `None` if zstd
    /// cannot use them.
    pub fn new(number: u8, bytes: &[u8]) -> Option<Self> {
        let encoder = EncoderDictionary::try_copy(bytes, LEVEL).ok()?;
        let decoder = DecoderDictionary::try_copy(bytes).ok()?;
        let id = decoder.as_ddict().get_dict_id().map_or(0, std::num::NonZero::get);
        Some(Self { id, number, encoder, decoder, content: lz4::Content::of(bytes), len: bytes.len() })
    }

    /// Returns the number of the dictionary within its unit, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }
}

/// Builds tables from `samples` and puts them before the content. Calls zstd's C function `ZDICT_finalizeDictionary`, because the
/// zstd crate does not offer it. If all samples are equal, zstd cannot build tables. The content alone is then the dictionary.
#[expect(unsafe_code, reason = "there is no safe API for it")]
fn with_tables(content: &[u8], samples: &[&[u8]]) -> Vec<u8> {
    let lens: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    let samples = samples.concat();
    let mut out = vec![0_u8; content.len() + TABLES_BYTES_MAX];
    let count = u32::try_from(lens.len()).expect("some dozens of samples");
    let parameters = zstd_sys::ZDICT_params_t { compressionLevel: LEVEL, notificationLevel: 0, dictID: 0 };
    // SAFETY: each pointer comes with the length of its target, which outlives the call. The samples are consecutive and
    // have the lengths in `lens`.
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
    // an error code is a number close to the maximum
    if made > out.len() {
        return content.to_vec();
    }
    out.truncate(made);
    out
}

impl fmt::Debug for Dictionary {
    /// Omits the content, which consists of objects.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary({} bytes)", self.len)
    }
}
