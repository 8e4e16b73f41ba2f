//! JSON structure, 64 bytes at a time: ends of strings, and nesting of brackets.
//!
//! A kernel turns a block into four bit masks; the code that uses the masks is the same for every kernel. There are four kernels:
//! AVX-512 and AVX2 (detected at run time), SSE2 (every `x86_64`), and a portable one (eight bytes per word, any processor). Tests
//! compare the other three with the portable one.

/// Positions of special bytes in a block of 64; bit 0 is the first byte.
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

/// Result of a walk over a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The container ends just before this offset.
    Done(usize),
    /// The container continues after these bytes.
    More,
    /// The bracket at this offset is nested too deeply.
    TooDeep(usize),
}

impl Progress {
    /// Shifts all offsets by `by`.
    #[inline(always)]
    fn further(self, by: usize) -> Self {
        match self {
            Self::More => Self::More,
            Self::Done(offset) => Self::Done(by + offset),
            Self::TooDeep(offset) => Self::TooDeep(by + offset),
        }
    }
}

/// State of a walk over nested brackets. The walk can stop after any byte and continue with the next one.
///
/// It does not distinguish `{` from `[`, and looks only at brackets and strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nesting {
    /// Number of open brackets.
    depth: u32,
    /// All ones inside a string.
    in_string: u64,
    /// Set to 1 if the next byte is escaped.
    escaped: u64,
}

impl Nesting {
    /// Returns the state just after an opening bracket.
    pub(crate) fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Walks through `bytes` until the container's own bracket is closed. This bracket has depth 1; `depth_max` is the maximum
    /// depth.
    pub(crate) fn advance(&mut self, bytes: &[u8], depth_max: u32) -> Progress {
        let (progress, nesting) = run_fastest(Advance { nesting: *self, bytes, depth_max });
        *self = nesting;
        progress
    }

    /// Walks through the first `len` bytes of one block. The bytes after them are spaces. The function returns the new state: if it
    /// changed `self` in place, the compiler would keep the state in memory between blocks.
    #[inline(always)]
    fn step(self, masks: Masks, len: usize, depth_max: u32, parity: impl Fn(u64) -> u64) -> (Self, Progress) {
        let (escaped, carry) = escaped_bytes(masks.backslash, self.escaped);
        let inside = parity(masks.quote & !escaped) ^ self.in_string;
        let (open, close) = (masks.open & !inside, masks.close & !inside);
        let (opened, closed) = (open.count_ones(), close.count_ones());
        let (depth, progress) = if closed < self.depth && self.depth + opened <= depth_max {
            (self.depth + opened - closed, Progress::More)
        } else {
            by_bracket(self.depth, open, close, depth_max)
        };
        let (last, escaped) = if len == 64 { (inside >> 63, carry) } else { (inside >> len & 1, escaped >> len & 1) };
        (Self { depth, in_string: 0_u64.wrapping_sub(last), escaped }, progress)
    }
}

/// Counts the brackets of a block one by one, if the container may end in the block or become too deep. Returns the new number of
/// open brackets, and the progress.
#[cold]
#[inline(never)]
fn by_bracket(mut depth: u32, open: u64, close: u64, depth_max: u32) -> (u32, Progress) {
    let mut brackets = open | close;
    while brackets != 0 {
        let offset = brackets.trailing_zeros();
        brackets &= brackets - 1;
        if close >> offset & 1 == 0 {
            depth += 1;
            if depth > depth_max {
                return (depth, Progress::TooDeep(offset as usize));
            }
        } else {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return (depth, Progress::Done(offset as usize + 1));
            }
        }
    }
    (depth, Progress::More)
}

/// Finds the end of a complete container; `bytes` starts after the container's opening bracket. Unlike [`Nesting::advance`], this
/// function keeps no state, so the walk cannot continue later.
pub(crate) fn container_end(bytes: &[u8], depth_max: u32) -> Progress {
    run_fastest(FindContainerEnd { bytes, depth_max })
}

/// End of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringEnd {
    /// Offset of the closing quote.
    pub(crate) quote: usize,
    /// Set when the string contains a backslash.
    pub(crate) escapes: bool,
}

/// Length within which most strings end. These bytes are checked before a kernel is called.
const SHORT: usize = 32;

/// Finds the end of a string; `bytes` starts after its opening quote.
#[inline(always)]
pub(crate) fn string_end(bytes: &[u8]) -> Option<StringEnd> {
    if let Some(short) = bytes.first_chunk::<SHORT>() {
        let (quotes, backslashes) = ends(short);
        if quotes.trailing_zeros() < backslashes.trailing_zeros() {
            return Some(StringEnd { quote: quotes.trailing_zeros() as usize, escapes: false });
        }
    }
    long_string_end(bytes)
}

#[inline(never)]
fn long_string_end(bytes: &[u8]) -> Option<StringEnd> {
    run_fastest(FindStringEnd { bytes })
}

/// Returns true if all of `bytes` are ASCII.
///
/// The standard library compiles this check for the baseline processor only.
pub(in crate::object) fn is_ascii(bytes: &[u8]) -> bool {
    run_fastest(IsAscii { bytes })
}

/// Returns bit masks of the quotes and the backslashes.
#[inline]
fn ends(bytes: &[u8; SHORT]) -> (u32, u32) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the compiler does not know that every x86_64 has it")]
    {
        // SAFETY: every x86_64 has SSE2; `sse2::ends` has no other precondition.
        unsafe { sse2::ends(bytes) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    words::ends(bytes)
}

/// A task on blocks of 64 bytes. The task can be compiled for any kernel.
trait BlockWork {
    type Output;

    /// Does the work; always inlined, so that it is compiled for the kernel's processor. `classify` and `parity` belong to the
    /// kernel: `classify` makes the masks of a block, `parity` is a version of [`prefix_xor`].
    fn run(self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Self::Output;
}

/// Does `work` with the fastest available kernel.
#[inline]
fn run_fastest<W: BlockWork>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "code for newer processors may only run where they were detected")]
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

/// Work of [`Nesting::advance`]: returns its result and the new state.
struct Advance<'a> {
    nesting: Nesting,
    bytes: &'a [u8],
    depth_max: u32,
}

impl BlockWork for Advance<'_> {
    type Output = (Progress, Nesting);

    #[inline(always)]
    fn run(self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Self::Output {
        let Self { mut nesting, bytes, depth_max } = self;
        let (blocks, tail) = bytes.as_chunks::<64>();
        for (index, block) in blocks.iter().enumerate() {
            let (next, progress) = nesting.step(classify(block), 64, depth_max, &parity);
            nesting = next;
            if progress != Progress::More {
                return (progress.further(index * 64), nesting);
            }
        }
        if tail.is_empty() {
            return (Progress::More, nesting);
        }
        let (nesting, progress) = nesting.step(classify(&padded(tail)), tail.len(), depth_max, &parity);
        (progress.further(blocks.len() * 64), nesting)
    }
}

struct FindContainerEnd<'a> {
    bytes: &'a [u8],
    depth_max: u32,
}

impl BlockWork for FindContainerEnd<'_> {
    type Output = Progress;

    #[inline(always)]
    fn run(self, classify: impl Fn(&Block) -> Masks, parity: impl Fn(u64) -> u64) -> Progress {
        let Self { bytes, depth_max } = self;
        Advance { nesting: Nesting::inside(), bytes, depth_max }.run(classify, parity).0
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

struct IsAscii<'a> {
    bytes: &'a [u8],
}

impl BlockWork for IsAscii<'_> {
    type Output = bool;

    /// Ignores both arguments: the compiler vectorizes this loop for the kernel's processor.
    #[inline(always)]
    fn run(self, _classify: impl Fn(&Block) -> Masks, _parity: impl Fn(u64) -> u64) -> bool {
        let (blocks, tail) = self.bytes.as_chunks::<64>();
        let mut united = padded(tail);
        for block in blocks {
            united.iter_mut().zip(block).for_each(|(united, byte)| *united |= byte);
        }
        united.iter().fold(0, |all, byte| all | byte).is_ascii()
    }
}

fn padded(tail: &[u8]) -> Block {
    let mut block = [b' '; 64];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// Returns a mask of the escaped bytes: those that follow an odd number of backslashes. The second result is 1 if the first byte of
/// the next block is escaped, else 0.
///
/// The first and the last bit of a run of backslashes show whether its length is odd. One addition handles all runs, without a
/// loop: it clears each run that begins on an odd bit (Langdale and Lemire, "Parsing gigabytes of JSON per second", 3.1.1).
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

/// Returns for every bit the parity of all bits up to and including it.
#[inline(always)]
fn prefix_xor(mut bits: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// Portable kernel: eight bytes per word.
mod words {
    use super::{Block, Masks, SHORT};

    #[inline(always)]
    #[cfg_attr(all(target_arch = "x86_64", not(test)), expect(dead_code, reason = "used only by tests there"))]
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

    /// Returns bit masks of the quotes and the backslashes.
    #[cfg_attr(all(target_arch = "x86_64", not(test)), expect(dead_code, reason = "used only by tests there"))]
    pub(super) fn ends(bytes: &[u8; SHORT]) -> (u32, u32) {
        let (mut quotes, mut backslashes) = (0, 0);
        for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            quotes |= equal(word, b'"') << (index * 8);
            backslashes |= equal(word, b'\\') << (index * 8);
        }
        let bits = |mask: u64| u32::try_from(mask).expect("it is of 32 bytes");
        (bits(quotes), bits(backslashes))
    }

    /// Returns a mask of the bytes of `word` that equal `byte`: one bit per byte.
    #[inline(always)]
    fn equal(word: u64, byte: u8) -> u64 {
        const LOW: u64 = splat(0x7f);
        let difference = word ^ splat(byte);
        let high_bits = !(((difference & LOW) + LOW) | difference | LOW);
        (high_bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }
}

/// Kernel of every `x86_64`: sixteen bytes per register.
#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};

    use super::{Block, BlockWork, Masks, SHORT, prefix_xor};

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
            masks.quote |= u64::from(equal(bytes, b'"')) << (index * 16);
            masks.backslash |= u64::from(equal(bytes, b'\\')) << (index * 16);
            masks.open |= u64::from(equal(lower, b'{')) << (index * 16);
            masks.close |= u64::from(equal(lower, b'}')) << (index * 16);
        }
        masks
    }

    /// Returns bit masks of the quotes and the backslashes.
    #[inline]
    #[target_feature(enable = "sse2")]
    pub(super) fn ends(bytes: &[u8; SHORT]) -> (u32, u32) {
        let mut masks = (0, 0);
        for (index, part) in bytes.as_chunks::<16>().0.iter().enumerate() {
            let bytes = load(part);
            masks.0 |= equal(bytes, b'"') << (index * 16);
            masks.1 |= equal(bytes, b'\\') << (index * 16);
        }
        masks
    }

    /// Loads a register from unaligned memory.
    #[inline]
    #[target_feature(enable = "sse2")]
    #[expect(unsafe_code, reason = "there is no safe load of a register")]
    fn load(part: &[u8; 16]) -> __m128i {
        // SAFETY: the part is 16 bytes that may be read; they need not be aligned.
        unsafe { _mm_loadu_si128(part.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn equal(bytes: __m128i, byte: u8) -> u32 {
        let found = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()));
        _mm_movemask_epi8(found).cast_unsigned()
    }
}

/// Kernel of newer `x86_64`: thirty-two bytes per register, and bit counts in one instruction.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_cmpeq_epi8,
        _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
    };

    use super::{Block, BlockWork, Masks};

    /// Returns true if the processor has all features that the functions here are compiled for.
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

    /// Computes `prefix_xor`: a carry-less multiplication by all ones adds up all lower bits.
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

    /// Loads a register from unaligned memory.
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(unsafe_code, reason = "there is no safe load of a register")]
    fn load(part: &[u8; 32]) -> __m256i {
        // SAFETY: the part is 32 bytes that may be read; they need not be aligned.
        unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(low: __m256i, high: __m256i, byte: u8) -> u64 {
        let wanted = _mm256_set1_epi8(byte.cast_signed());
        let mask = |bytes| u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, wanted)).cast_unsigned());
        mask(low) | mask(high) << 32
    }
}

/// Kernel of the newest `x86_64`: a block is one register, and a comparison gives a mask directly.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{__m512i, _mm512_cmpeq_epi8_mask, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi8};

    use super::{Block, BlockWork, Masks, avx2};

    /// Returns true if the processor has all features that the functions here are compiled for.
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

    /// Loads a register from unaligned memory. Building the register from words would take six instructions.
    #[inline]
    #[target_feature(enable = "avx512f")]
    #[expect(unsafe_code, reason = "there is no safe load of a register")]
    fn load(block: &Block) -> __m512i {
        // SAFETY: the block is 64 bytes that may be read; they need not be aligned.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
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

    /// Does the work with each kernel that this machine supports.
    fn run_each<W: BlockWork>(work: impl Fn() -> W) -> Vec<W::Output> {
        let mut done = vec![run_fastest(work()), work().run(words::classify, prefix_xor)];
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "as in `run_fastest`")]
        {
            if avx2::detected() {
                // SAFETY: as in `run_fastest`.
                done.push(unsafe { avx2::run(work()) });
            }
            if avx512::detected() {
                // SAFETY: as in `run_fastest`.
                done.push(unsafe { avx512::run(work()) });
            }
            // SAFETY: every x86_64 has SSE2.
            done.push(unsafe { sse2::run(work()) });
        }
        done
    }

    /// Reference implementation of the masks, byte by byte.
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

    /// Advances with each kernel: returns the results and the new states.
    fn walk(nesting: Nesting, bytes: &[u8], depth_max: u32) -> Vec<(Progress, Nesting)> {
        run_each(|| Advance { nesting, bytes, depth_max })
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
    #[cfg_attr(miri, ignore = "takes hours there: `kernels_agree_at_every_length` does the same on fewer texts")]
    fn every_kernel_agrees_with_bytewise_walk() {
        proptest!(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), ..Default::default() }, |(
            bytes in soup(), depth in prop_oneof![Just(1_u32), 0_u32..100], depth_max in prop_oneof![1_u32..20, Just(100)], cut in 0_usize..400
        )| {
            let start = Nesting { depth, ..Nesting::default() };
            let depth_max = depth_max.max(depth);
            let mut expected_state = start;
            let expected = advance_bytewise(&mut expected_state, &bytes, depth_max);
            prop_assert!(depth != 1 || container_end(&bytes, depth_max) == expected);
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
    #[cfg_attr(miri, ignore = "takes hours there: `kernels_agree_at_every_length` does the same on fewer texts")]
    fn every_kernel_finds_the_same_string_end() {
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
            if let Some(short) = text.first_chunk() {
                prop_assert_eq!(ends(short), words::ends(short));
            }
            for found in run_each(|| FindStringEnd { bytes: &text }) {
                prop_assert_eq!(found, expected);
            }
        });
    }

    /// A kernel that reads too far reads beyond the allocation here, which Miri and `AddressSanitizer` detect.
    #[test]
    fn kernels_agree_at_every_length() {
        let pattern = br#"{"a\"b":["\\",{"c":[]}],"d":"eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"} "#;
        for len in (0..200).step_by(if cfg!(miri) { 9 } else { 1 }) {
            let bytes: Box<[u8]> = pattern.iter().copied().cycle().take(len).collect();
            let mut state = Nesting { depth: 50, ..Nesting::default() };
            let start = state;
            let expected = advance_bytewise(&mut state, &bytes, 100);
            for found in walk(start, &bytes, 100) {
                assert_eq!(found, (expected, state), "{len}");
            }
            for from in [0, 2, 45].map(|from| from.min(len)) {
                let rest: Box<[u8]> = bytes[from..].into();
                let expected = string_end(&rest);
                assert!(
                    run_each(|| FindStringEnd { bytes: &rest }).iter().all(|found| *found == expected),
                    "{len} {from}"
                );
            }
        }
    }

    #[test]
    fn every_kernel_finds_non_ascii_byte_anywhere() {
        let (lengths, places) = if cfg!(miri) { (73, 53) } else { (1, 1) };
        for len in (0..300).step_by(lengths) {
            let mut bytes = vec![0x7f; len];
            assert!(is_ascii(&bytes));
            assert_eq!(run_each(|| IsAscii { bytes: &bytes }).into_iter().find(|ascii| !ascii), None);
            for at in (0..len).step_by(places) {
                bytes[at] = 0x80;
                assert!(!is_ascii(&bytes));
                assert_eq!(run_each(|| IsAscii { bytes: &bytes }).into_iter().find(|ascii| *ascii), None);
                bytes[at] = 0x7f;
            }
        }
    }
}
