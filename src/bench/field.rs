//! Values of generated objects.

use std::io::{self, Write as _};

use crate::simulator::{Random, template::ObjectTemplate};

/// Base 32: five bits per letter. All letters are allowed in names.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Number of letters from one 64-bit draw.
const LETTERS_A_DRAW: usize = 12;
/// Size of a text block in bytes, and number of blocks in a config map.
const BLOCK: usize = 4096;
const BLOCKS: usize = 49;
/// Number of blocks that config maps draw from.
const POOL_BLOCKS: usize = 256;

/// A value that differs between objects or between changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Seven digits.
    Number,
    /// Two digits: one of a hundred values.
    Namespace,
    Uid,
    OwnerUid,
    /// Nine letters, shared by twenty objects.
    Hash,
    Version,
    /// 64 hexadecimal digits; every occurrence in one object is the same.
    Digest,
    /// 64 hexadecimal digits; every occurrence is different.
    OtherDigest,
    /// Creation time.
    Created,
    /// Time of the last change.
    Changed,
    /// Four digits, shared by thirty objects.
    Node,
    /// Last three parts of the node's address.
    HostIp,
    /// Last three parts of the object's own address.
    Ip,
    Restarts,
    Ready,
    ReadyBool,
    /// Between `min` and `min + span` random letters.
    Word {
        min: usize,
        span: usize,
    },
    /// A number of at least `min` and less than `min + span`.
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
    /// Number of the change that led to this state; 0 for the first state.
    pub(super) change: u64,
    pub(super) version: u64,
}

impl ObjectTemplate<Field> {
    /// Appends a state of an object. [`Field::Blocks`] draws from `pool`.
    pub(super) fn object(&self, state: State, pool: &[u8], out: &mut Vec<u8>) {
        let mut own = Random::new(state.seed ^ state.number.wrapping_mul(0x9e6d_62d0_6f6a_9a9b));
        self.render(out, |field, out| field.put(state, &mut own, pool, out).expect("a vector takes all"));
    }
}

impl Field {
    fn put(self, state: State, own: &mut Random, pool: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let State { seed, number, change, version } = state;
        let set = number / 20;
        let of_object = |salt: u64| Random::new(seed ^ salt ^ (number << 8));
        let is_ready = change.is_multiple_of(2);
        match self {
            Self::Number => write!(out, "{number:07}"),
            Self::Namespace => write!(out, "{:02}", set % 100),
            Self::Uid => out.write_all(of_object(0x5eed).uuid().as_bytes()),
            Self::OwnerUid => out.write_all(Random::new(!seed ^ (set << 8)).uuid().as_bytes()),
            Self::Hash => out.write_all(letters(&mut Random::new(seed ^ (set << 8)), 9).as_bytes()),
            Self::Version => write!(out, "{version}"),
            Self::Digest => digest(&mut of_object(0xd16e), out),
            Self::OtherDigest => digest(own, out),
            Self::Created => time(&mut of_object(0xc4ea), out),
            Self::Changed => time(&mut Random::new(seed ^ number ^ (change << 32)), out),
            Self::Node => write!(out, "{:04}", number / 30),
            Self::HostIp => address(number / 30, out),
            Self::Ip => address(number, out),
            Self::Restarts => write!(out, "{}", change % 1000),
            Self::Ready => out.write_all(if is_ready { b"True" } else { b"False" }),
            Self::ReadyBool => write!(out, "{is_ready}"),
            Self::Word { min, span } => {
                let len = min + own.below(span + 1);
                out.write_all(letters(own, len).as_bytes())
            }
            Self::Amount { min, span } => write!(out, "{}", min + own.below(span)),
            Self::Blocks => {
                let changing = Random::new(change).below(POOL_BLOCKS);
                let others = (1..BLOCKS).map(|_| own.below(POOL_BLOCKS));
                let mut blocks = std::iter::once(changing).chain(others);
                blocks.try_for_each(|block| out.write_all(&pool[block * BLOCK..(block + 1) * BLOCK]))
            }
        }
    }
}

/// Generates the text of config maps: lines of YAML, escaped for a JSON string.
pub(super) fn pool(seed: u64) -> Vec<u8> {
    let mut random = Random::new(!seed);
    let mut pool = Vec::with_capacity(POOL_BLOCKS * BLOCK);
    while pool.len() < POOL_BLOCKS * BLOCK {
        let end = pool.len() + BLOCK;
        loop {
            let [upstream, host] = [6, 8].map(|len| letters(&mut random, len));
            let (weight, path) = (random.below(1000), letters(&mut random, 10));
            let lines = format!(
                r#"  upstream-{upstream}:\n    host: {host}.team.svc.cluster.local\n    weight: {weight}\n    path: \"/{path}\"\n"#
            );
            if pool.len() + lines.len() > end {
                break;
            }
            pool.extend_from_slice(lines.as_bytes());
        }
        pool.resize(end, b'#'); // do not split an escape
    }
    pool
}

fn letters(random: &mut Random, len: usize) -> String {
    let mut letters = String::with_capacity(len);
    while letters.len() < len {
        let bits = random.next_u64();
        let left = (len - letters.len()).min(LETTERS_A_DRAW);
        letters.extend((0..left).map(|at| char::from(LETTERS[usize::from((bits >> (5 * at)).to_le_bytes()[0] & 31)])));
    }
    letters
}

fn digest(random: &mut Random, out: &mut Vec<u8>) -> io::Result<()> {
    (0..4).try_for_each(|_| write!(out, "{:016x}", random.next_u64()))
}

fn address(number: u64, out: &mut Vec<u8>) -> io::Result<()> {
    write!(out, "{}.{}.{}", (number >> 16) & 255, (number >> 8) & 255, number & 255)
}

/// Appends a random time in 2026.
fn time(random: &mut Random, out: &mut Vec<u8>) -> io::Result<()> {
    let [month, day, hour, minute, second] = [12, 28, 24, 60, 60].map(|span| random.below(span));
    write!(out, "2026-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, day + 1)
}
