//! JSON structure, 64 bytes at a time: where strings end and brackets nest.
//!
//! A kernel turns a block into four bit masks; what follows from the masks is the same code for every kernel. There
//! are four: AVX-512 and AVX2 (found at run time), SSE2 (every `x86_64`), and plain words (everywhere; the tests hold the
//! others to it).

/// Which of 64 bytes are what; bit 0 is the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Masks {
    quote: u64,
    backslash: u64,
    /// `{` and `[`.
    open: u64,
    /// `}` and `]`.
    close: u64,
}

type Block = [u8; 64];

/// How far a walk over a container came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The container ends before this offset.
    Done(usize),
    /// It goes on behind these bytes.
    More,
    /// The bracket at this offset is nested too deeply.
    TooDeep(usize),
}

/// Where a walk over nested brackets stands: it can stop after any byte and go on with the next.
///
/// It does not tell `{` from `[`, and looks at nothing but brackets and strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nesting {
    /// Brackets that are open.
    depth: u32,
    /// All ones inside a string.
    in_string: u64,
    /// 1 if the next byte is escaped.
    escaped: u64,
}

impl Nesting {
    /// Stands just behind the opening bracket.
    pub(crate) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Goes on through `bytes` until the first bracket is closed. `depth_max` counts from that bracket.
    pub(crate) fn advance(&mut self, bytes: &[u8], depth_max: u32) -> Progress {
        run_fastest(Advance { nesting: self, bytes, depth_max })
    }

    /// Takes one block of which `len` bytes count; the others are spaces.
    #[inline(always)]
    fn step(&mut self, masks: Masks, len: usize, depth_max: u32, parity: impl Fn(u64) -> u64) -> Progress {
        let (escaped, carry) = escaped_bytes(masks.backslash, self.escaped);
        let inside = parity(masks.quote & !escaped) ^ self.in_string;
        let (open, close) = (masks.open & !inside, masks.close & !inside);
        let (opened, closed) = (open.count_ones(), close.count_ones());
        if closed < self.depth && self.depth + opened <= depth_max {
            self.depth = self.depth + opened - closed;
        } else {
            match self.step_by_bracket(open, close, depth_max) {
                Progress::More => {}
                end => return end,
            }
        }
        if len == 64 {
            self.escaped = carry;
            self.in_string = 0_u64.wrapping_sub(inside >> 63);
        } else {
            self.escaped = (escaped >> len) & 1;
            self.in_string = 0_u64.wrapping_sub((inside >> len) & 1);
        }
        Progress::More
    }

    /// Takes the brackets of a block one by one: where the container may end, or the limit is near.
    #[cold]
    #[inline(never)]
    fn step_by_bracket(&mut self, open: u64, close: u64, depth_max: u32) -> Progress {
        let mut brackets = open | close;
        while brackets != 0 {
            let offset = brackets.trailing_zeros();
            brackets &= brackets - 1;
            if close >> offset & 1 == 0 {
                self.depth += 1;
                if self.depth > depth_max {
                    return Progress::TooDeep(offset as usize);
                }
            } else {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return Progress::Done(offset as usize + 1);
                }
            }
        }
        Progress::More
    }
}

/// Where a string ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringEnd {
    /// Offset of the closing quote.
    pub(crate) quote: usize,
    /// Whether there is a backslash before it.
    pub(crate) escapes: bool,
}

/// Most strings end within so many words, which are looked at before a kernel is called.
const SHORT_WORDS: usize = 4;

/// Finds the end of the string that begins with `bytes`, behind its opening quote.
pub(crate) fn string_end(bytes: &[u8]) -> Option<StringEnd> {
    for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate().take(SHORT_WORDS) {
        let word = u64::from_le_bytes(*word);
        let (quotes, backslashes) = (words::equal_bytes(word, b'"'), words::equal_bytes(word, b'\\'));
        if quotes | backslashes != 0 {
            if quotes.trailing_zeros() > backslashes.trailing_zeros() {
                break;
            }
            return Some(StringEnd { quote: index * 8 + quotes.trailing_zeros() as usize / 8, escapes: false });
        }
    }
    run_fastest(FindStringEnd { bytes })
}

/// Work on blocks that can be compiled for any kernel.
trait BlockWork {
    type Output;

    /// Does the work; is always inlined, so that it is compiled for the kernel's processor. `parity` is [`prefix_xor`], as
    /// the kernel does it.
    fn run(self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Self::Output;
}

/// Does `work` with the best kernel there is.
#[inline]
fn run_fastest<W: BlockWork>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "code compiled for more than the baseline may only run where it was detected")]
    {
        if avx512::detected() {
            // SAFETY: every feature that `avx512::run` enables was just detected; it has no other precondition.
            return unsafe { avx512::run(work) };
        }
        if avx2::detected() {
            // SAFETY: every feature that `avx2::run` enables was just detected; it has no other precondition.
            return unsafe { avx2::run(work) };
        }
        // SAFETY: every x86_64 has SSE2; `sse2::run` has no other precondition.
        unsafe { sse2::run(work) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    work.run(words::classify, prefix_xor)
}

struct Advance<'a> {
    nesting: &'a mut Nesting,
    bytes: &'a [u8],
    depth_max: u32,
}

impl BlockWork for Advance<'_> {
    type Output = Progress;

    #[inline(always)]
    fn run(self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Progress {
        let (blocks, tail) = self.bytes.as_chunks::<64>();
        let mut at = 0;
        for block in blocks {
            match self.nesting.step(classify(block), 64, self.depth_max, &parity) {
                Progress::More => at += 64,
                Progress::Done(offset) => return Progress::Done(at + offset),
                Progress::TooDeep(offset) => return Progress::TooDeep(at + offset),
            }
        }
        if tail.is_empty() {
            return Progress::More;
        }
        match self.nesting.step(classify(&padded(tail)), tail.len(), self.depth_max, &parity) {
            Progress::More => Progress::More,
            Progress::Done(offset) => Progress::Done(at + offset),
            Progress::TooDeep(offset) => Progress::TooDeep(at + offset),
        }
    }
}

struct FindStringEnd<'a> {
    bytes: &'a [u8],
}

impl BlockWork for FindStringEnd<'_> {
    type Output = Option<StringEnd>;

    #[inline(always)]
    fn run(self, classify: impl Fn(&Block) -> Masks, _parity: impl Fn(u64) -> u64) -> Option<StringEnd> {
        let (blocks, tail) = self.bytes.as_chunks::<64>();
        let (mut carry, mut escapes) = (0, false);
        let mut step = |at: usize, masks: Masks| {
            let (literal, next) = escaped_bytes(masks.backslash, carry);
            carry = next;
            let quotes = masks.quote & !literal;
            let before = (quotes & quotes.wrapping_neg()).wrapping_sub(1);
            escapes |= masks.backslash & before != 0;
            (quotes != 0).then(|| StringEnd { quote: at + quotes.trailing_zeros() as usize, escapes })
        };
        for (index, block) in blocks.iter().enumerate() {
            if let Some(end) = step(index * 64, classify(block)) {
                return Some(end);
            }
        }
        step(blocks.len() * 64, classify(&padded(tail)))
    }
}

fn padded(tail: &[u8]) -> Block {
    let mut block = [b' '; 64];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// Returns which bytes follow an odd run of backslashes, and whether the next block's first byte does.
///
/// Of a run that begins on an odd bit the addition carries past its end; that tells odd from even lengths without a
/// loop (Langdale and Lemire, "Parsing gigabytes of JSON per second", 3.1.1).
#[inline(always)]
fn escaped_bytes(backslash: u64, carry: u64) -> (u64, u64) {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    if backslash == 0 {
        return (carry, 0);
    }
    let backslash = backslash & !carry;
    let follows = backslash << 1 | carry;
    let odd_starts = backslash & !EVEN & !follows;
    let (runs, overflow) = odd_starts.overflowing_add(backslash);
    ((EVEN ^ runs << 1) & follows, u64::from(overflow))
}

/// Returns for every bit the parity of the bits up to and with it.
#[inline(always)]
fn prefix_xor(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// The kernel that needs nothing of the machine: eight bytes a word.
mod words {
    use super::{Block, Masks};

    #[inline(always)]
    #[cfg_attr(all(target_arch = "x86_64", not(test)), expect(dead_code, reason = "there it only serves the tests"))]
    pub(super) fn classify(block: &Block) -> Masks {
        let mut masks = Masks { quote: 0, backslash: 0, open: 0, close: 0 };
        for (index, word) in block.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let lower = word | splat(0x20); // `[` becomes `{`, `]` becomes `}`, and nothing else does
            masks.quote |= equal(word, b'"') << (index * 8);
            masks.backslash |= equal(word, b'\\') << (index * 8);
            masks.open |= equal(lower, b'{') << (index * 8);
            masks.close |= equal(lower, b'}') << (index * 8);
        }
        masks
    }

    const fn splat(byte: u8) -> u64 {
        u64::from_le_bytes([byte; 8])
    }

    /// Returns one bit a byte: whether it is `byte`.
    #[inline(always)]
    fn equal(word: u64, byte: u8) -> u64 {
        (equal_bytes(word, byte) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }

    /// Returns the high bit of every byte that is `byte`.
    #[inline(always)]
    pub(super) fn equal_bytes(word: u64, byte: u8) -> u64 {
        const LOW: u64 = splat(0x7f);
        let difference = word ^ splat(byte);
        !(((difference & LOW) + LOW) | difference | LOW)
    }
}

/// The kernel of every `x86_64`: sixteen bytes a register.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8};

    use super::{Block, BlockWork, Masks, prefix_xor};

    #[target_feature(enable = "sse2")]
    pub(super) fn run<W: BlockWork>(work: W) -> W::Output {
        work.run(|block| classify(block), prefix_xor)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn classify(block: &Block) -> Masks {
        let mut masks = Masks { quote: 0, backslash: 0, open: 0, close: 0 };
        for (index, part) in block.as_chunks::<16>().0.iter().enumerate() {
            let bytes = load(part);
            let lower = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
            masks.quote |= equal(bytes, b'"') << (index * 16);
            masks.backslash |= equal(bytes, b'\\') << (index * 16);
            masks.open |= equal(lower, b'{') << (index * 16);
            masks.close |= equal(lower, b'}') << (index * 16);
        }
        masks
    }

    /// Compiles to one unaligned load.
    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(part: &[u8; 16]) -> __m128i {
        let all = u128::from_le_bytes(*part);
        #[expect(clippy::cast_possible_truncation, reason = "two halves, bit by bit")]
        _mm_set_epi64x((all >> 64) as i64, all as i64)
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn equal(bytes: __m128i, byte: u8) -> u64 {
        let found = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()));
        u64::from(_mm_movemask_epi8(found).cast_unsigned())
    }
}

/// The kernel of newer `x86_64`: thirty-two bytes a register, and counting bits in one instruction.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_cmpeq_epi8,
        _mm256_movemask_epi8, _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi8,
    };

    use super::{Block, BlockWork, Masks};

    /// Returns whether the processor has what the functions here are compiled for.
    #[inline]
    pub(super) fn detected() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("pclmulqdq")
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,pclmulqdq")]
    pub(super) fn run<W: BlockWork>(work: W) -> W::Output {
        work.run(|block| classify(block), |bits| parity(bits))
    }

    /// Does what `prefix_xor` does: to multiply by all ones without carries adds up, bit by bit, all lower bits.
    #[inline]
    #[target_feature(enable = "sse2,pclmulqdq")]
    pub(super) fn parity(bits: u64) -> u64 {
        let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, bits.cast_signed()), _mm_set1_epi8(-1));
        _mm_cvtsi128_si64(product).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn classify(block: &Block) -> Masks {
        let ([low, high], _) = block.as_chunks::<32>() else { unreachable!("64 bytes are twice 32") };
        let (low, high) = (load(low), load(high));
        let case = _mm256_set1_epi8(0x20);
        let (low_case, high_case) = (_mm256_or_si256(low, case), _mm256_or_si256(high, case));
        Masks {
            quote: equal(low, high, b'"'),
            backslash: equal(low, high, b'\\'),
            open: equal(low_case, high_case, b'{'),
            close: equal(low_case, high_case, b'}'),
        }
    }

    /// Compiles to one unaligned load.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(part: &[u8; 32]) -> __m256i {
        let word = |index: usize| i64::from_le_bytes(part.as_chunks::<8>().0[index]);
        _mm256_set_epi64x(word(3), word(2), word(1), word(0))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(low: __m256i, high: __m256i, byte: u8) -> u64 {
        let wanted = _mm256_set1_epi8(byte.cast_signed());
        let mask = |bytes| u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, wanted)).cast_unsigned());
        mask(low) | mask(high) << 32
    }
}

/// The kernel of the newest `x86_64`: a block is one register, and what is compared becomes a mask at once.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{__m512i, _mm512_cmpeq_epi8_mask, _mm512_or_si512, _mm512_set_epi64, _mm512_set1_epi8};

    use super::{Block, BlockWork, Masks, avx2};

    /// Returns whether the processor has what the functions here are compiled for.
    #[inline]
    pub(super) fn detected() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && avx2::detected()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,popcnt,pclmulqdq")]
    pub(super) fn run<W: BlockWork>(work: W) -> W::Output {
        work.run(|block| classify(block), |bits| avx2::parity(bits))
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn classify(block: &Block) -> Masks {
        let bytes = load(block);
        let case = _mm512_or_si512(bytes, _mm512_set1_epi8(0x20));
        Masks {
            quote: equal(bytes, b'"'),
            backslash: equal(bytes, b'\\'),
            open: equal(case, b'{'),
            close: equal(case, b'}'),
        }
    }

    /// Compiles to one unaligned load.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(block: &Block) -> __m512i {
        let word = |index: usize| i64::from_le_bytes(block.as_chunks::<8>().0[index]);
        _mm512_set_epi64(word(7), word(6), word(5), word(4), word(3), word(2), word(1), word(0))
    }

    #[inline]
    #[target_feature(enable = "avx512bw")]
    fn equal(bytes: __m512i, byte: u8) -> u64 {
        _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte.cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Does the work with each kernel that this machine has.
    fn run_each<W: BlockWork>(work: impl Fn() -> W) -> Vec<W::Output> {
        let mut done = vec![run_fastest(work()), work().run(words::classify, prefix_xor)];
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "as in `run_fastest`")]
        {
            if avx2::detected() {
                // SAFETY: as in `run_fastest`.
                done.push(unsafe { avx2::run(work()) });
            }
            // SAFETY: every x86_64 has SSE2.
            done.push(unsafe { sse2::run(work()) });
        }
        done
    }

    /// What the masks promise, one byte after the other.
    fn advance_bytewise(nesting: &mut Nesting, bytes: &[u8], depth_max: u32) -> Progress {
        for (offset, byte) in bytes.iter().enumerate() {
            if nesting.escaped == 1 {
                nesting.escaped = 0;
                if *byte == b'"' {
                    continue;
                }
            } else if *byte == b'\\' {
                nesting.escaped = 1;
                continue;
            } else if *byte == b'"' {
                nesting.in_string = !nesting.in_string;
                continue;
            }
            match byte {
                b'{' | b'[' if nesting.in_string == 0 => {
                    nesting.depth += 1;
                    if nesting.depth > depth_max {
                        return Progress::TooDeep(offset);
                    }
                }
                b'}' | b']' if nesting.in_string == 0 => {
                    nesting.depth = nesting.depth.saturating_sub(1);
                    if nesting.depth == 0 {
                        return Progress::Done(offset + 1);
                    }
                }
                _ => {}
            }
        }
        Progress::More
    }

    /// Advances with each kernel: how far it came, and where it stands then.
    fn walk(start: Nesting, bytes: &[u8], depth_max: u32) -> Vec<(Progress, Nesting)> {
        run_each(|| Walk { nesting: start, bytes, depth_max })
    }

    /// [`Advance`] with a state of its own.
    struct Walk<'a> {
        nesting: Nesting,
        bytes: &'a [u8],
        depth_max: u32,
    }

    impl BlockWork for Walk<'_> {
        type Output = (Progress, Nesting);

        #[inline(always)]
        fn run(mut self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Self::Output {
            let advance = Advance { nesting: &mut self.nesting, bytes: self.bytes, depth_max: self.depth_max };
            (advance.run(classify, parity), self.nesting)
        }
    }

    fn soup() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => proptest::sample::select(br#"{}[]"\\{[""#.to_vec()),
            2 => Just(b'a'),
            1 => any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..400)
    }

    #[test]
    fn every_kernel_finds_what_a_byte_by_byte_walk_finds() {
        proptest!(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..Default::default() }, |(
            bytes in soup(), depth in 0_u32..100, depth_max in prop_oneof![1_u32..20, Just(100)], cut in 0_usize..400
        )| {
            let start = Nesting { depth, ..Nesting::default() };
            let depth_max = depth_max.max(depth);
            let mut expected_state = start;
            let expected = advance_bytewise(&mut expected_state, &bytes, depth_max);
            for (came, state) in walk(start, &bytes, depth_max) {
                prop_assert_eq!(came, expected);
                if expected == Progress::More {
                    prop_assert_eq!(state, expected_state);
                }
            }
            if expected == Progress::More {
                let (head, tail) = bytes.split_at(cut.min(bytes.len()));
                for (came, state) in walk(start, head, depth_max) {
                    prop_assert_eq!(came, Progress::More);
                    for (came, state) in walk(state, tail, depth_max) {
                        prop_assert_eq!(came, Progress::More);
                        prop_assert_eq!(state, expected_state);
                    }
                }
            }
        });
    }

    #[test]
    fn every_kernel_finds_the_same_end_of_a_string() {
        proptest!(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..Default::default() }, |(
            filler in 0_usize..150, bytes in soup()
        )| {
            let mut text = vec![b'x'; filler];
            text.extend(bytes);
            let mut at = 0;
            let mut escapes = false;
            let expected = loop {
                match text.get(at) {
                    None => break None,
                    Some(b'"') => break Some(StringEnd { quote: at, escapes }),
                    Some(b'\\') => {
                        escapes = true;
                        at += 2;
                    }
                    Some(_) => at += 1,
                }
            };
            prop_assert_eq!(string_end(&text), expected);
            for found in run_each(|| FindStringEnd { bytes: &text }) {
                prop_assert_eq!(found, expected);
            }
        });
    }
}
