//! Writer of an object's state, found in `metadata.managedFields`. By default, objects are stored without this field. If a consumer
//! needs the writer, the writer is therefore stored after the object's JSON.
//!
//! The scan notes the entries of `managedFields`. The DeltaFIFO compares them with the entries of the previous state
//! ([`Object::with_writer_since`]), and keeps the writer and a hash of each entry. The entry with the newest time need not be the
//! writer: times are whole seconds, and a write of the subresource `scale` has no time. The comparison uses these facts instead:
//!
//! - Almost every write sets the time of its entry, or adds an entry. If exactly one entry has a new time, this is the writer.
//! - A write owns every value that it sets. Otherwise, the writer is therefore the only entry that owns changed values.
//! - A write that only removes fields of others leaves no entry of its own. Such a write has no known writer.

mod ownership;

use std::borrow::Cow;

use serde::Serialize;

use super::{
    Form, Object,
    scan::{JsonCursor, ScanError, text},
};

/// First byte of noted entries that are not compared with the previous state yet.
const NOTED: u8 = 0xfd;

/// First byte of a [`Kept`]. Neither this byte nor the other two constants occur in UTF-8.
const KEPT: u8 = 0xfe;

/// Separator between encoded texts.
const SEPARATOR: u8 = 0xff;

/// Number of hashes that says that the entries are not known. It limits the number of hashes that are kept.
const UNKNOWN: u8 = u8::MAX;

/// Managers that an API server invents: for fields from before the first server-side apply, and for the oldest of too many entries.
const INVENTED: [&str; 2] = ["before-first-apply", "ancient-changes"];

/// Writer of an object's state, according to its `managedFields`.
///
/// The server records no writer of a deletion, nor of a write that only removes fields which others had set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChangedBy<'a> {
    /// Name of the program: `kubectl-edit`, `kube-controller-manager`.
    pub manager: Cow<'a, str>,
    /// `Apply` or `Update`.
    pub operation: Cow<'a, str>,
    /// Time in RFC 3339, as the server wrote it; empty if it wrote none.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub time: Cow<'a, str>,
    /// Subresource, such as `status` or `scale`; empty for the object itself.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subresource: Cow<'a, str>,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ManagedEntry<'a> {
    writer: ChangedBy<'a>,
    /// JSON of `fieldsV1`; empty if it was not noted.
    fields: &'a [u8],
}

/// Parts of `managedFields` that a scan notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotedParts {
    /// Nothing, for a deletion: the server does not record its writer.
    Nothing,
    /// Writers and times, without the fields that they own. This is enough for an object of a list.
    Writers,
    /// Writers, times and owned fields, for an update.
    WithFields,
}

/// Stored record of an object: its writer, and the entries for the comparison with the next state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept<'a> {
    /// `None` if the entries are not known. The writer then comes from another source.
    entries: Option<KeptEntries<'a>>,
    writer: Option<ChangedBy<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptEntries<'a> {
    /// Hash of the version with which the entries were compared; 0 if there was no previous state.
    since: u64,
    /// Hashes of the entries, eight bytes each. A hash covers the writer and the time.
    hashes: &'a [u8],
}

impl<'a> ChangedBy<'a> {
    /// Returns each part of the writer with the part's name; a missing part is an empty text.
    pub fn parts(&self) -> [(&'static str, &str); 4] {
        let Self { manager, operation, time, subresource } = self;
        [("manager", manager), ("operation", operation), ("time", time), ("subresource", subresource)]
    }

    fn encode(&self) -> Vec<u8> {
        self.parts().map(|(_, part)| part.as_bytes()).join(&SEPARATOR)
    }

    fn decode(encoded: &'a [u8]) -> Option<Self> {
        let mut parts = encoded.split(|byte| *byte == SEPARATOR).map(|part| std::str::from_utf8(part).ok());
        let mut part = || parts.next().flatten().map(Cow::Borrowed);
        let (manager, operation, time, subresource) = (part()?, part()?, part()?, part()?);
        parts.next().is_none().then_some(Self { manager, operation, time, subresource })
    }

    fn hash(&self) -> u64 {
        hash(&self.encode())
    }
}

impl<'a> ManagedEntry<'a> {
    /// Decodes the output of [`note`]; `None` if it has another form.
    fn decode_all(noted: &'a [u8]) -> Option<Vec<Self>> {
        let [NOTED, noted @ ..] = noted else { return None };
        let parts: Vec<_> = noted.split(|byte| *byte == SEPARATOR).collect();
        let text = |part: &'a [u8]| std::str::from_utf8(part).ok().map(Cow::Borrowed);
        let (entries, [[]]) = parts.as_chunks::<5>() else { return None };
        let entries = entries.iter().map(|&[manager, operation, time, subresource, fields]| {
            let (manager, operation) = (text(manager)?, text(operation)?);
            let writer = ChangedBy { manager, operation, time: text(time)?, subresource: text(subresource)? };
            Some(Self { writer, fields })
        });
        entries.collect()
    }

    fn is_invented(&self) -> bool {
        INVENTED.contains(&&*self.writer.manager)
    }
}

impl<'a> Kept<'a> {
    fn encode(since: Option<&Object>, entries: &[ManagedEntry<'_>], writer: Option<&ChangedBy<'_>>) -> Vec<u8> {
        let named = entries.iter().filter(|entry| !entry.is_invented());
        let hashes: Vec<_> = named.map(|entry| entry.writer.hash()).collect();
        let mut kept = vec![KEPT];
        match u8::try_from(hashes.len()) {
            Ok(len) if len < UNKNOWN => {
                kept.push(len);
                kept.extend(since.map_or(0, version_hash).to_le_bytes());
                kept.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes()));
            }
            _ => kept.push(UNKNOWN),
        }
        kept.extend(writer.map(ChangedBy::encode).unwrap_or_default());
        kept
    }

    /// Decodes a record; `None` if it has another form.
    fn decode(kept: &'a [u8]) -> Option<Self> {
        let [KEPT, len, rest @ ..] = kept else { return None };
        let (entries, writer) = match *len {
            UNKNOWN => (None, rest),
            len => {
                let (since, rest) = rest.split_first_chunk()?;
                let (hashes, writer) = rest.split_at_checked(usize::from(len) * 8)?;
                (Some(KeptEntries { since: u64::from_le_bytes(*since), hashes }), writer)
            }
        };
        let writer = if writer.is_empty() { None } else { Some(ChangedBy::decode(writer)?) };
        Some(Self { entries, writer })
    }
}

impl KeptEntries<'_> {
    fn hashes(&self) -> impl Iterator<Item = u64> {
        self.hashes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash))
    }

    fn has(&self, entry: u64) -> bool {
        self.hashes().any(|hash| hash == entry)
    }
}

impl Object {
    /// Returns the writer of this state. `None` if the writer is unknown, or if the scan did not note the writers: see
    /// `ScanPlan::notes_who_changed`.
    ///
    /// Of a deleted object, this is the writer of its last state, not of the deletion.
    pub fn changed_by(&self) -> Option<ChangedBy<'_>> {
        Kept::decode(self.who())?.writer
    }

    /// Returns the writer of the change from `old` to this state; `None` for `old` means that the object is new. If the change
    /// consists of several writes with different writers, no one is its writer.
    pub(crate) fn changed_by_since(&self, old: Option<&Self>) -> Option<ChangedBy<'_>> {
        let Kept { entries, writer } = Kept::decode(self.who())?;
        let Some(entries) = entries.filter(|entries| entries.since != old.map_or(0, version_hash)) else {
            return writer;
        };
        let before = match old {
            Some(old) => Some(Kept::decode(old.who())?.entries?),
            None => None,
        };
        let is_new = |entry: &u64| before.is_none_or(|before| !before.has(*entry));
        let mut new = entries.hashes().filter(is_new);
        let last = writer.as_ref().map(ChangedBy::hash);
        (new.all(|entry| Some(entry) == last)).then_some(writer).flatten()
    }

    /// Sets `who` as the writer, unless one is recorded already. Use this function for objects whose writer is known from another
    /// source, for example from the fields of an event.
    #[must_use]
    pub fn with_changed_by(self, who: &ChangedBy<'_>) -> Self {
        self.with_who(&[&[KEPT, UNKNOWN], &*who.encode()].concat())
    }

    /// Returns the record of the writer in encoded form; empty if there is none.
    pub(crate) fn who(&self) -> &[u8] {
        let bytes = self.0.bytes();
        &bytes[bytes.len() - self.who_bytes()..]
    }

    /// Returns the record of the writer for storage; empty if there is none, or if it is not compared yet.
    pub(crate) fn who_to_store(&self) -> &[u8] {
        let who = self.who();
        if who.first() == Some(&KEPT) { who } else { &[] }
    }

    /// Checks a stored record of the writer. Returns an empty one for a record of an earlier version of the program, which took the
    /// newest entry for the writer. `None` if the record has an unknown form.
    pub(crate) fn stored_who(stored: &[u8]) -> Option<&[u8]> {
        if stored.is_empty() || Kept::decode(stored).is_some() {
            return Some(stored);
        }
        ChangedBy::decode(stored).map(|_| &[][..])
    }

    /// Adds the encoded record `who` to the object. An object that already has a record stays unchanged.
    #[must_use]
    pub(crate) fn with_who(self, who: &[u8]) -> Self {
        if who.is_empty() || self.who_bytes() > 0 { self } else { self.having_who(who) }
    }

    fn having_who(&self, who: &[u8]) -> Self {
        match self.form() {
            Form::Json { .. } => Self::assemble_with_who(self.identity(), &[self.body()], who),
            Form::Packed { compression, json_bytes, dictionary, .. } => {
                Self::of_packed(self.identity(), who, self.body(), *json_bytes, *compression, dictionary.clone())
            }
            Form::OptedOut | Form::Unread => self.clone(),
        }
    }

    /// Returns true if the object has noted entries that are not compared with the previous state yet.
    pub(crate) fn has_noted_writers(&self) -> bool {
        self.who().first() == Some(&NOTED)
    }

    /// Replaces the noted entries by the writer of this state. `old` is the previous state, or `None` if the object is new. Set
    /// `has_bodies` if the body of `old` is complete.
    #[must_use]
    pub(crate) fn with_writer_since(&self, old: Option<&Self>, has_bodies: bool) -> Self {
        let Some(entries) = ManagedEntry::decode_all(self.who()) else { return self.having_who(&[]) };
        let old = old.filter(|old| old.uid() == self.uid());
        if let Some(same) = old.filter(|old| old.same_version(self) && !old.who_to_store().is_empty()) {
            return self.having_who(same.who());
        }
        let old = old.filter(|old| !old.same_version(self));
        let writer = match old {
            Some(old) => writer_between(&entries, old, self, has_bodies),
            None => Some(&entries).filter(|entries| entries.len() == 1).and_then(|entries| entries.first()),
        };
        let writer = writer.filter(|entry| !entry.is_invented()).map(|entry| &entry.writer);
        self.having_who(&Kept::encode(old, &entries, writer))
    }
}

/// Returns the entry that made `new` out of `old`.
fn writer_between<'e, 'a>(
    entries: &'e [ManagedEntry<'a>],
    old: &Object,
    new: &Object,
    has_bodies: bool,
) -> Option<&'e ManagedEntry<'a>> {
    let before = Kept::decode(old.who()).and_then(|kept| kept.entries);
    let named = || entries.iter().filter(|entry| !entry.is_invented());
    let is_new = |entry: &&ManagedEntry<'_>| before.is_some_and(|before| !before.has(entry.writer.hash()));
    let candidates: Vec<_> = match named().filter(is_new).collect::<Vec<_>>() {
        new if new.len() == 1 => return new.first().copied(),
        // A write within the second of the last write leaves the time as it was. API servers write all times in one format, whose
        // texts sort like the times.
        new if new.is_empty() => {
            let newest = named().map(|entry| &entry.writer.time).max()?;
            named().filter(|entry| entry.writer.time.is_empty() || entry.writer.time == *newest).collect()
        }
        new => new,
    };
    if has_bodies { ownership::only_owner(&candidates, old, new) } else { None }
}

/// Returns the entries in the JSON of `managedFields` for [`Object::with_writer_since`]; empty if the JSON is malformed.
pub(super) fn note(managed_fields: &[u8], parts: NotedParts) -> Vec<u8> {
    match parts {
        NotedParts::Nothing => Vec::new(),
        NotedParts::Writers => noted(managed_fields, false).unwrap_or_default(),
        NotedParts::WithFields => noted(managed_fields, true).unwrap_or_default(),
    }
}

fn noted(managed_fields: &[u8], with_fields: bool) -> Result<Vec<u8>, ScanError> {
    let mut cursor = JsonCursor::new(managed_fields);
    if cursor.peek()? != b'[' {
        return Ok(Vec::new());
    }
    cursor.enter(b'[', "an array")?;
    let (mut noted, mut first) = (vec![NOTED], true);
    while cursor.next_element(&mut first)?.is_some() {
        if cursor.peek()? != b'{' {
            cursor.skip_value()?;
            continue;
        }
        let names: [&[u8]; 5] = [b"manager", b"operation", b"time", b"subresource", b"fieldsV1"];
        let [texts @ .., fields] = cursor.values(names)?;
        for part in texts {
            noted.extend_from_slice(text(part)?.as_bytes());
            noted.push(SEPARATOR);
        }
        // a skipped value is not checked: it may contain any byte
        let fields = fields.filter(|fields| with_fields && memchr::memchr(SEPARATOR, fields).is_none());
        noted.extend_from_slice(fields.unwrap_or_default());
        noted.push(SEPARATOR);
    }
    Ok(noted)
}

/// Returns a hash that tells two versions of one object apart; never 0.
fn version_hash(object: &Object) -> u64 {
    hash(object.resource_version().as_bytes()) | 1
}

/// Returns the 64-bit FNV-1a hash. It must stay the same for ever, because it is stored.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
