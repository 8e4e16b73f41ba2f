//! Values of generated objects.

use std::io::{self, Write as _};

use super::Shape;
use crate::simulator::Random;

/// Base 32: five bits per letter. All letters are allowed in names.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Number of letters from one 64-bit draw.
const LETTERS_A_DRAW: usize = 12;
/// Value of every field that holds a time. In objects of [`Shape::Diverse`], these fields have random values instead.
const BEGIN: &str = "2026-01-01T00:00:00Z";
/// Size of a text block in bytes.
const BLOCK: usize = 4096;
/// Number of text blocks in a config map.
const BLOCKS: usize = 49;
/// Number of text blocks in the pool. Config maps take random blocks from the pool.
const POOL_BLOCKS: usize = 256;

/// One state of one object, and the source of its random values.
#[derive(Debug)]
pub(super) struct Draw<'a> {
    pub(super) seed: u64,
    pub(super) number: u64,
    /// Number of the change that led to this state; 0 for the first state.
    pub(super) change: u64,
    pub(super) version: u64,
    /// Source of random values. It gives the same values for all states of the object.
    pub(super) own: Random,
    /// Text blocks of config maps.
    pub(super) pool: &'a [u8],
}

/// Function that appends the value of a hole of the template. The value depends on the object, on the change, or on both.
pub(super) type Field = fn(&mut Draw<'_>, &mut Vec<u8>) -> io::Result<()>;

impl Draw<'_> {
    /// Returns the source of random numbers for one value of the object. `salt` names the value.
    fn of_object(&self, salt: u64) -> Random {
        Random::new(self.seed ^ salt ^ (self.number << 8))
    }

    /// Returns the number of the owner. Twenty objects have the same owner.
    fn set(&self) -> u64 {
        self.number / 20
    }

    /// Returns the number of the node. Thirty objects are on the same node.
    fn node(&self) -> u64 {
        self.number / 30
    }

    fn is_ready(&self) -> bool {
        self.change.is_multiple_of(2)
    }

    fn hash(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        write!(out, "{}", letters(&mut Random::new(self.seed ^ (self.set() << 8)), 9))
    }

    /// Appends between `min` and `min + span` letters.
    fn word(&mut self, min: usize, span: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let len = min + self.own.below(span + 1);
        write!(out, "{}", letters(&mut self.own, len))
    }

    /// Appends 200 KB of escaped text.
    fn blocks(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let changing = Random::new(self.change).below(POOL_BLOCKS);
        let others = (1..BLOCKS).map(|_| self.own.below(POOL_BLOCKS));
        let mut blocks = std::iter::once(changing).chain(others);
        blocks.try_for_each(|block| out.write_all(&self.pool[block * BLOCK..(block + 1) * BLOCK]))
    }
}

/// Returns the content of a hole of the templates. It begins with a text that is the same in all objects of an application. The
/// optional [`Field`] appends a value after this text.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the lifetimes of the methods do not match `Field`")]
pub(super) fn fill(shape: Shape, app: &str, hole: &str) -> (String, Option<Field>) {
    let diverse = shape == Shape::Diverse;
    let text = |text: &str| (text.to_owned(), None);
    let after = |text: &str, field: Field| (text.to_owned(), Some(field));
    let field = |field: Field| (String::new(), Some(field));
    let name = match shape {
        Shape::Pods | Shape::Diverse | Shape::Events => "pod",
        Shape::Custom => "site",
        Shape::Configmaps => "config",
    };
    match hole {
        "NAME" => after(&format!("{app}-{name}-"), |draw, out| write!(out, "{:07}", draw.number)),
        "NS" => after("team-", |draw, out| write!(out, "{:02}", draw.set() % 100)),
        "UID" => field(|draw, out| write!(out, "{}", draw.of_object(0x5eed).uuid())),
        "APP" => text(app),
        "OWNER" => after(&format!("{app}-"), |draw, out| draw.hash(out)),
        "OWNERKIND" => text("ReplicaSet"),
        "OWNERAPI" => text("apps/v1"),
        "OWNERUID" => field(|draw, out| write!(out, "{}", Random::new(!draw.seed ^ (draw.set() << 8)).uuid())),
        "RESTART" => text("Always"),
        "HASH" => field(|draw, out| draw.hash(out)),
        "IMAGE" => text("1.4.2"),
        "CREATED" | "TIME" if !diverse => text(BEGIN),
        "CREATED" => field(|draw, out| time(&mut draw.of_object(0xc4ea), out)),
        "TIME" => field(|draw, out| time(&mut Random::new(draw.seed ^ draw.number ^ (draw.change << 32)), out)),
        "READY" => field(|draw, out| out.write_all(if draw.is_ready() { b"True" } else { b"False" })),
        "READYBOOL" => field(|draw, out| write!(out, "{}", draw.is_ready())),
        "NODE" => after("node-", |draw, out| write!(out, "{:04}", draw.node())),
        "RESTARTS" => field(|draw, out| write!(out, "{}", draw.change % 1000)),
        "IP" => after("10.", |draw, out| address(draw.number, out)),
        "HOSTIP" => after("172.", |draw, out| address(draw.node(), out)),
        "VERSION" => field(|draw, out| write!(out, "{}", draw.version)),
        "BLOCKS" => field(|draw, out| draw.blocks(out)),
        "DIGEST" if diverse => field(|draw, out| digest(&mut draw.own, out)),
        "DIGEST" => field(|draw, out| digest(&mut draw.of_object(0xd16e), out)),
        "MEM" if diverse => field(|draw, out| write!(out, "{}", (1 << 26) + draw.own.below(1 << 32))),
        "CPU" if diverse => after("0.", |draw, out| write!(out, "{}", 100 + draw.own.below(900))),
        "TAG" if diverse => field(|draw, out| draw.word(5, 0, out)),
        "TEAM" if diverse => after("team-", |draw, out| write!(out, "{}", draw.own.below(40))),
        "NOTE" if diverse => field(|draw, out| draw.word(20, 120, out)),
        _ if diverse => field(|draw, out| draw.word(8, 60, out)),
        "TEAM" => text(&format!("team-{}", app.len() % 7)),
        hole => panic!("no value for ${{{hole}}}"),
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
