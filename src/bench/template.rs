//! JSON templates with `${NAME}` holes, compiled once an application: an object costs little more than its bytes.

use crate::simulator::Random;

/// Base 32: five bits a letter, all of them allowed in names.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// As many as one 64-bit draw has bits for.
const LETTERS_A_DRAW: usize = 12;
/// Bytes of a block of text, and how many of them a config map has.
const BLOCK: usize = 4096;
const BLOCKS: usize = 49;
/// Blocks that config maps draw from.
const POOL_BLOCKS: usize = 256;

/// What a hole is filled with: text that all objects of the application share, then what differs.
pub(super) struct Fill(pub(super) String, pub(super) Option<Field>);

/// What differs from object to object, or from change to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Seven digits.
    Number,
    /// Two digits: one of a hundred.
    Namespace,
    Uid,
    OwnerUid,
    /// Nine letters, the same for twenty objects.
    Hash,
    Version,
    /// 64 hexadecimal digits, the same each time in one object.
    Digest,
    /// The same, another each time.
    OtherDigest,
    /// When it was created.
    Created,
    /// The time of its last change.
    Changed,
    /// Four digits, the same for thirty objects.
    Node,
    /// The last three parts of the node's address.
    HostIp,
    /// The last three parts of an address of its own.
    Ip,
    Restarts,
    Ready,
    ReadyBool,
    /// So many letters, and up to `span` more.
    Word {
        min: usize,
        span: usize,
    },
    /// A number from `min`, below `min + span`.
    Amount {
        min: usize,
        span: usize,
    },
    /// 200 KB of escaped text.
    Blocks,
}

/// One state of one object.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) seed: u64,
    pub(super) number: u64,
    /// The change that made it so; 0 for the first state.
    pub(super) change: u64,
    pub(super) version: u64,
}

/// A template cut at its holes.
#[derive(Debug)]
pub(super) struct Template {
    text: Vec<u8>,
    /// Where in the text a field goes in.
    cuts: Vec<(usize, Field)>,
}

impl Template {
    /// Compiles a template, one JSON object, without its opening brace; its line breaks do not count.
    pub(super) fn compile(text: &str, fill: impl Fn(&str) -> Fill) -> Self {
        let joined: String = text.lines().map(str::trim).collect();
        let mut rest = joined.strip_prefix('{').unwrap_or(&joined);
        let (mut text, mut cuts) = (Vec::new(), Vec::new());
        while let Some((before, (hole, after))) =
            rest.split_once("${").and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            text.extend_from_slice(before.as_bytes());
            let Fill(shared, field) = fill(hole);
            text.extend_from_slice(shared.as_bytes());
            cuts.extend(field.map(|field| (text.len(), field)));
            rest = after;
        }
        text.extend_from_slice(rest.as_bytes());
        Self { text, cuts }
    }

    /// Appends the object, without its opening brace. `pool` is what [`Field::Blocks`] draws from.
    pub(super) fn render(&self, state: State, pool: &[u8], out: &mut Vec<u8>) {
        let mut own = Random::new(state.seed ^ state.number.wrapping_mul(0x9e6d_62d0_6f6a_9a9b));
        let mut from = 0;
        for (at, field) in &self.cuts {
            out.extend_from_slice(&self.text[from..*at]);
            from = *at;
            field.put(state, &mut own, pool, out);
        }
        out.extend_from_slice(&self.text[from..]);
    }
}

impl Field {
    pub(super) fn put(self, state: State, own: &mut Random, pool: &[u8], out: &mut Vec<u8>) {
        let State { seed, number, change, version } = state;
        let set = number / 20;
        let of_object = |salt: u64| Random::new(seed ^ salt ^ (number << 8));
        match self {
            Self::Number => decimal(number, 7, out),
            Self::Namespace => decimal(set % 100, 2, out),
            Self::Uid => uuid(&mut of_object(0x5eed), out),
            Self::OwnerUid => uuid(&mut Random::new(!seed ^ (set << 8)), out),
            Self::Hash => letters(&mut Random::new(seed ^ (set << 8)), 9, out),
            Self::Version => decimal(version, 1, out),
            Self::Digest => digest(&mut of_object(0xd16e), out),
            Self::OtherDigest => digest(own, out),
            Self::Created => time(&mut of_object(0xc4ea), out),
            Self::Changed => time(&mut Random::new(seed ^ number ^ (change << 32)), out),
            Self::Node => decimal(number / 30, 4, out),
            Self::HostIp => address(number / 30, out),
            Self::Ip => address(number, out),
            Self::Restarts => decimal(change % 1000, 1, out),
            Self::Ready => out.extend_from_slice(if change.is_multiple_of(2) { b"True" } else { b"False" }),
            Self::ReadyBool => out.extend_from_slice(if change.is_multiple_of(2) { b"true" } else { b"false" }),
            Self::Word { min, span } => {
                let len = min + own.below(span + 1);
                letters(own, len, out);
            }
            Self::Amount { min, span } => decimal((min + own.below(span)) as u64, 1, out),
            Self::Blocks => {
                let changing = Random::new(change).below(POOL_BLOCKS);
                let others = (1..BLOCKS).map(|_| own.below(POOL_BLOCKS));
                for block in std::iter::once(changing).chain(others) {
                    out.extend_from_slice(&pool[block * BLOCK..(block + 1) * BLOCK]);
                }
            }
        }
    }
}

/// Makes the text that config maps are made of: lines of YAML, as JSON has them within a string.
pub(super) fn pool(seed: u64) -> Vec<u8> {
    let mut random = Random::new(!seed);
    let mut pool = Vec::with_capacity(POOL_BLOCKS * BLOCK);
    while pool.len() < POOL_BLOCKS * BLOCK {
        let end = pool.len() + BLOCK;
        loop {
            let mut lines = Vec::new();
            lines.extend_from_slice(b"  upstream-");
            letters(&mut random, 6, &mut lines);
            lines.extend_from_slice(br":\n    host: ");
            letters(&mut random, 8, &mut lines);
            lines.extend_from_slice(br".team.svc.cluster.local\n    weight: ");
            decimal(random.below(1000) as u64, 1, &mut lines);
            lines.extend_from_slice(br#"\n    path: \"/"#);
            letters(&mut random, 10, &mut lines);
            lines.extend_from_slice(br#"\"\n"#);
            if pool.len() + lines.len() > end {
                break;
            }
            pool.extend_from_slice(&lines);
        }
        pool.resize(end, b'#'); // no escape is cut apart
    }
    pool
}

fn letters(random: &mut Random, len: usize, out: &mut Vec<u8>) {
    let mut left = len;
    while left > 0 {
        let mut bits = random.next_u64();
        for _ in 0..left.min(LETTERS_A_DRAW) {
            out.push(LETTERS[low(bits & 31)]);
            bits >>= 5;
        }
        left = left.saturating_sub(LETTERS_A_DRAW);
    }
}

/// Turns a few bits into an index.
#[expect(clippy::cast_possible_truncation, reason = "they are few")]
fn low(bits: u64) -> usize {
    bits as usize
}

/// Appends a number, with leading zeros up to `width` digits.
fn decimal(number: u64, width: usize, out: &mut Vec<u8>) {
    let mut digits = [b'0'; 20];
    let (mut at, mut rest) = (digits.len(), number);
    while rest > 0 {
        at -= 1;
        digits[at] = DIGITS[low(rest % 10)];
        rest /= 10;
    }
    out.extend_from_slice(&digits[at.min(digits.len() - width)..]);
}

fn hex(value: u64, width: u32, out: &mut Vec<u8>) {
    let digit = |at: u32| DIGITS[low((value >> (4 * at)) & 15)];
    out.extend((0..width).rev().map(digit));
}

fn digest(random: &mut Random, out: &mut Vec<u8>) {
    for _ in 0..4 {
        hex(random.next_u64(), 16, out);
    }
}

/// Appends a version 4 UUID.
fn uuid(random: &mut Random, out: &mut Vec<u8>) {
    let (a, b) = (random.next_u64(), random.next_u64());
    hex(a >> 32, 8, out);
    out.push(b'-');
    hex(a >> 16, 4, out);
    out.extend_from_slice(b"-4");
    hex(a, 3, out);
    out.push(b'-');
    hex(0x8000 | ((b >> 48) & 0x3fff), 4, out);
    out.push(b'-');
    hex(b, 12, out);
}

fn address(number: u64, out: &mut Vec<u8>) {
    for shift in [16, 8, 0] {
        decimal((number >> shift) & 255, 1, out);
        if shift > 0 {
            out.push(b'.');
        }
    }
}

/// Appends some second of 2026.
fn time(random: &mut Random, out: &mut Vec<u8>) {
    out.extend_from_slice(b"2026");
    for (sign, min, span) in [(b'-', 1, 12), (b'-', 1, 28), (b'T', 0, 24), (b':', 0, 60), (b':', 0, 60)] {
        out.push(sign);
        decimal((min + random.below(span)) as u64, 2, out);
    }
    out.push(b'Z');
}
