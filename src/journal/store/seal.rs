//! The seal: facts about durable data, in a separate file. At the next start they show whether the store has lost data.
//!
//! If fjall's journal file or the marker of a keyspace is missing, fjall starts empty without an error. Waiting events and
//! positions of readers would be lost unnoticed. The seal is written only after the data is durable, and its positions only grow.
//! Therefore an intact store is never behind its seal. The seal is written about once per second: it does not show the loss of newer
//! data. A directory without a seal comes from an earlier version, and gets one.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    path::Path,
    sync::Mutex,
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{DB, Fault, Store, StoreError, StoredReader};
use crate::{mutex::lock, private_dir, regular_file};

/// Name of the file in the state directory.
const FILE: &str = "seal";

/// Facts about a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    journal_id: String,
    /// Position of the last record.
    last: u64,
    /// Position of each reader.
    readers: BTreeMap<String, u64>,
}

impl Facts {
    pub(super) fn new(journal_id: &str, last: u64, readers: &[StoredReader]) -> Self {
        let readers = readers.iter().map(|reader| (reader.name.clone(), reader.position.0)).collect();
        Self { journal_id: journal_id.to_owned(), last, readers }
    }

    /// Compares this seal with the facts `found` in the store. Returns a text about the first fact that is lost; `None` if no fact
    /// is lost.
    pub(super) fn lost(&self, found: &Self) -> Option<String> {
        if found.journal_id.is_empty() {
            return Some(format!("records up to {} were durable, but the store is empty", self.last));
        }
        if self.journal_id != found.journal_id {
            return Some(format!("its journal was {}, now it is {}", self.journal_id, found.journal_id));
        }
        if found.last < self.last {
            return Some(format!(
                "records up to {} were durable, but only those up to {} exist",
                self.last, found.last
            ));
        }
        self.readers.iter().find_map(|(name, position)| match found.readers.get(name) {
            None => Some(format!("the position of handler {name:?} is missing, it was {position}")),
            Some(now) if now < position => Some(format!("handler {name:?} was at {position}, now it is at {now}")),
            Some(_) => None,
        })
    }
}

/// Reads the seal of a directory; `None` if there is none.
pub(super) fn read(dir: &Path) -> Result<Option<Facts>, Fault> {
    let path = dir.join(FILE);
    let text = match regular_file::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let facts = text.split_once('\n').filter(|(facts, sum)| sum.trim_end() == checksum(facts));
    let facts = facts.and_then(|(facts, _)| serde_json::from_str(facts).ok());
    let what = "it does not match its checksum; remove this file if the rest of the directory is intact";
    facts.map(Some).ok_or_else(|| Fault::corrupt(path, what))
}

/// Checks that the files of a sealed store exist. Call it before fjall opens them.
pub(super) fn check_files(dir: &Path) -> Result<(), Fault> {
    let keyspaces = dir.join(DB).join("keyspaces");
    let missing = match fs::read_dir(&keyspaces) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(keyspaces),
        entries => {
            let dirs = entries?.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
            dirs.map(|path| path.join("current")).filter(|marker| !marker.exists()).min()
        }
    };
    missing.map_or(Ok(()), |path| Err(Fault::Lost(format!("{} is missing", path.display()))))
}

fn checksum(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

/// Replaces the text of a small file in the state directory. Syncs the new text, but not the directory: after a power failure the
/// previous file may be there.
pub(super) fn replace(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let mut file = private_dir::file().create(true).truncate(true).open(&new)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(new, dir.join(name))
}

/// Writes the seal atomically.
fn write(dir: &Path, facts: &Facts) -> io::Result<()> {
    let text = serde_json::to_string(facts).map_err(io::Error::other)?;
    replace(dir, FILE, &format!("{text}\n{}", checksum(&text)))
}

impl Store {
    /// Writes the durable facts to the seal, for the check at the next start. Blocks on the disk.
    pub fn seal(&self) -> Result<(), StoreError> {
        self.inner.sealer.seal(self.dir()).map_err(|error| Fault::from(error).tell(self.dir(), "write the seal"))
    }
}

/// Durable facts of an open store.
#[derive(Debug)]
pub(super) struct Sealer(Mutex<Known>);

#[derive(Debug)]
struct Known {
    /// Written positions of readers.
    written: BTreeMap<String, u64>,
    /// Number of readers removed so far. If it has changed since a [`Noted`] was taken, that [`Noted`] is void.
    removals: u64,
    durable: Facts,
    /// Content of the file; `None` if there is no seal.
    sealed: Option<Facts>,
}

/// Positions of readers at the start of a sync.
pub(super) struct Noted {
    readers: BTreeMap<String, u64>,
    removals: u64,
}

impl Sealer {
    pub(super) fn new(durable: Facts, sealed: Option<Facts>) -> Self {
        Self(Mutex::new(Known { written: durable.readers.clone(), removals: 0, durable, sealed }))
    }

    /// Notes written positions. The position of a reader only grows.
    pub(super) fn wrote(&self, readers: &[StoredReader]) {
        let mut known = lock(&self.0);
        known.written.extend(readers.iter().map(|reader| (reader.name.clone(), reader.position.0)));
    }

    /// Returns the positions that a sync starting now makes durable.
    pub(super) fn note(&self) -> Noted {
        let known = lock(&self.0);
        Noted { readers: known.written.clone(), removals: known.removals }
    }

    /// Notes the result of a successful sync: the positions `noted` before it, and all records up to `last`, are durable.
    pub(super) fn synced(&self, noted: Noted, last: u64) {
        let mut known = lock(&self.0);
        known.durable.last = known.durable.last.max(last);
        if known.removals == noted.removals {
            known.durable.readers = noted.readers;
        }
    }

    /// Removes a reader from the seal. Call it before the store removes the reader: a removed reader in the seal would look like
    /// lost data. If the new seal cannot be written, the whole seal is removed.
    pub(super) fn remove(&self, dir: &Path, name: &str) -> io::Result<()> {
        let mut known = lock(&self.0);
        known.removals += 1;
        known.written.remove(name);
        known.durable.readers.remove(name);
        match &known.sealed {
            Some(sealed) if sealed.readers.contains_key(name) => known.seal(dir).or_else(|_| {
                known.sealed = None;
                fs::remove_file(dir.join(FILE))
            }),
            _ => Ok(()),
        }
    }

    /// Writes the seal if it is not up to date. Blocks on the disk.
    pub(super) fn seal(&self, dir: &Path) -> io::Result<()> {
        let mut known = lock(&self.0);
        if known.sealed.as_ref() == Some(&known.durable) { Ok(()) } else { known.seal(dir) }
    }
}

impl Known {
    fn seal(&mut self, dir: &Path) -> io::Result<()> {
        write(dir, &self.durable)?;
        self.sealed = Some(self.durable.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;
    use crate::journal::Sequence;

    fn reader(name: &str, position: u64) -> StoredReader {
        StoredReader { name: name.to_owned(), position: Sequence(position), ..StoredReader::default() }
    }

    fn facts(last: u64, readers: &[(&str, u64)]) -> Facts {
        let readers: Vec<_> = readers.iter().map(|(name, position)| reader(name, *position)).collect();
        Facts::new("9f2c", last, &readers)
    }

    #[test]
    fn equally_advanced_store_has_lost_nothing() {
        let sealed = facts(10, &[("a", 3)]);
        for found in [facts(10, &[("a", 3)]), facts(12, &[("a", 9), ("b", 0)])] {
            assert_eq!(sealed.lost(&found), None);
        }
        for (found, expected) in [
            (facts(9, &[("a", 3)]), "records up to 10 were durable, but only those up to 9 exist"),
            (facts(10, &[("a", 2)]), "handler \"a\" was at 3, now it is at 2"),
            (facts(10, &[]), "the position of handler \"a\" is missing, it was 3"),
            (Facts::default(), "records up to 10 were durable, but the store is empty"),
            (Facts { journal_id: "ab12".to_owned(), ..facts(10, &[("a", 3)]) }, "its journal was 9f2c, now it is ab12"),
        ] {
            assert_eq!(sealed.lost(&found).as_deref(), Some(expected));
        }
    }

    #[test]
    fn seal_round_trips_and_detects_damage() {
        let dir = tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let sealed = facts(10, &[("a", 3)]);
        write(dir.path(), &sealed).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(sealed));
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        for damaged in [text.replace("10", "11"), text[..text.len() / 2].to_owned(), String::new()] {
            fs::write(dir.path().join(FILE), damaged).unwrap();
            assert!(matches!(read(dir.path()), Err(Fault::Corrupt { file, .. }) if file.ends_with(FILE)));
        }
    }

    #[test]
    fn only_synced_facts_are_sealed() {
        let dir = tempdir().unwrap();
        let sealer = Sealer::new(facts(0, &[]), None);
        let content = || {
            sealer.seal(dir.path()).unwrap();
            read(dir.path()).unwrap().unwrap()
        };
        sealer.wrote(&[reader("a", 5)]);
        assert_eq!(content(), facts(0, &[]));
        let noted = sealer.note();
        sealer.wrote(&[reader("a", 7)]);
        sealer.synced(noted, 9);
        assert_eq!(content(), facts(9, &[("a", 5)]));
    }

    #[test]
    fn removed_reader_leaves_the_seal() {
        let dir = tempdir().unwrap();
        let sealer = Sealer::new(facts(9, &[("a", 5), ("b", 6)]), None);
        sealer.seal(dir.path()).unwrap();
        let noted = sealer.note();
        sealer.remove(dir.path(), "a").unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(facts(9, &[("b", 6)])));
        sealer.wrote(&[reader("a", 0)]); // a new reader with that name
        sealer.synced(noted, 12);
        sealer.seal(dir.path()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(facts(12, &[("b", 6)])), "noted before the removal");
    }
}
