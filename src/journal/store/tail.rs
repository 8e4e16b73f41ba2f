//! Repair of the end of fjall's journal file after an interrupted run.
//!
//! fjall itself removes a last batch that has no end marker. But it refuses to open if the last batch has an end marker and damaged
//! content. A power failure can cause this, because the pages of a file reach the disk in any order. So this module first cuts the
//! file at the first invalid batch. It does not cut if later batches show that the invalid batch had been synced: the disk has then
//! lost durable data.
//!
//! The format is that of fjall 3 (`FJL\x03`). A batch consists of:
//! - a start: 1, count u32, sequence number u64
//! - items: 2, type u8, compression u8, keyspace u64, length of key u16, of value u32, of stored value u32, key, stored value
//! - or clears: 4, keyspace u64
//! - an end: 3, xxh3 of all items u64, magic
//!
//! Numbers are little-endian. Zeros follow the last batch.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64;

use super::wire::Wire;

/// Key of the [`Mark`] in each append.
pub(super) const MARK_KEY: &[u8] = b"append\0mark";

const MAGIC: &[u8] = b"FJL\x03";

/// Facts about the journal that are written with each append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// All records up to here were synced before the append.
    pub(super) synced: u64,
    /// First position of the append.
    pub(super) first: u64,
    /// Last position of the append.
    pub(super) last: u64,
}

impl Mark {
    pub(super) fn encode(self) -> Vec<u8> {
        [self.synced, self.first, self.last].iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let numbers = value.as_chunks::<8>().0;
        let &[synced, first, last] = numbers else { return None };
        let [synced, first, last] = [synced, first, last].map(u64::from_be_bytes);
        Some(Self { synced, first, last })
    }
}

/// State of the end of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// Complete.
    Whole,
    /// The batch at this byte is invalid, and no later batch shows that it had been synced.
    Torn(u64),
    /// The batch at this byte is damaged, although it had been synced.
    Damaged(u64),
}

/// Returns the journal file that fjall writes to, which is the last one; `None` in a new directory.
pub(super) fn active_journal(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut last: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_journal = path.extension().is_some_and(|extension| extension == "jnl");
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (true, Some(number)) = (is_journal, number)
            && last.as_ref().is_none_or(|(last, _)| *last < number)
        {
            last = Some((number, path));
        }
    }
    Ok(last.map(|(_, path)| path))
}

/// Cuts a torn tail off the journal file. Returns the state before the cut. Reads the whole file.
pub(super) fn cut(path: &Path) -> io::Result<Tail> {
    let tail = judge(&fs::read(path)?);
    if let Tail::Torn(at) = tail {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(at)?;
        file.sync_all()?;
    }
    Ok(tail)
}

/// Checks the content of a journal file.
pub(super) fn judge(journal: &[u8]) -> Tail {
    let mut at = 0;
    let mut last: Option<Batch> = None;
    let mut known = None;
    while let Some(batch) = batch_at(journal, at) {
        at = batch.end;
        known = batch.mark.map(|mark| mark.last).or(known);
        last = Some(batch);
    }
    let rest = &journal[at..];
    if rest.is_empty() || rest.iter().all(|byte| *byte == 0) {
        return Tail::Whole;
    }
    let number = last.map_or(0, |batch| batch.number);
    let later = later_marks(journal, at, number);
    let lost_first = known.map(|known| known + 1).or_else(|| Some(later.first()?.first.saturating_sub(1)));
    let synced = later.iter().map(|mark| mark.synced).max();
    let promised = lost_first.zip(synced).is_some_and(|(first, synced)| first > 0 && synced >= first);
    if promised { Tail::Damaged(at as u64) } else { Tail::Torn(at as u64) }
}

/// Returns the marks of the valid batches after an invalid one at `from`. Skips batches whose sequence number is not above
/// `number`, the number of the last batch before `from`.
fn later_marks(journal: &[u8], from: usize, number: u64) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut at = from + 1;
    while let Some(next) = journal.get(at..).and_then(|rest| memchr::memchr(1, rest)) {
        at += next;
        let plausible = Wire(&journal[at + 1..]).start().is_some_and(|(_, found)| found > number);
        match batch_at(journal, at).filter(|_| plausible) {
            Some(batch) => {
                marks.extend(batch.mark);
                at = batch.end;
            }
            None => at += 1,
        }
    }
    marks
}

struct Batch {
    number: u64,
    end: usize,
    mark: Option<Mark>,
}

/// Reads the batch that starts at a byte; `None` if it is not valid.
fn batch_at(journal: &[u8], at: usize) -> Option<Batch> {
    let mut cursor = Wire(journal.get(at..)?);
    (cursor.byte()? == 1).then_some(())?;
    let (count, number) = cursor.start()?;
    let items = cursor.0;
    let mut mark = None;
    for _ in 0..count {
        let (key, value) = cursor.item()?;
        mark = if key == MARK_KEY { Mark::decode(value) } else { mark };
    }
    let items = &items[..items.len() - cursor.0.len()];
    (cursor.byte()? == 3).then_some(())?;
    let sum = u64::from_le_bytes(cursor.fixed()?);
    (cursor.bytes(MAGIC.len())? == MAGIC && sum == xxh3_64(items)).then_some(())?;
    Some(Batch { number, end: journal.len() - cursor.0.len(), mark })
}

impl<'a> Wire<'a> {
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// Reads the number of items and the sequence number of a batch.
    fn start(&mut self) -> Option<(u32, u64)> {
        Some((u32::from_le_bytes(self.fixed()?), u64::from_le_bytes(self.fixed()?)))
    }

    /// Reads one item or clear. Returns key and value; both are empty for a clear.
    fn item(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        match self.byte()? {
            2 => {
                self.bytes(2 + 8)?;
                let key = usize::from(u16::from_le_bytes(self.fixed()?));
                self.bytes(4)?;
                let value = usize::try_from(u32::from_le_bytes(self.fixed()?)).ok()?;
                Some((self.bytes(key)?, self.bytes(value)?))
            }
            4 => self.bytes(8).map(|_| (&[][..], &[][..])),
            _ => None,
        }
    }
}
