//! Heads of records: the stored data of a record without bodies.

use super::{
    NOBODY,
    wire::{Uid, Wire, put_number, put_text, put_uid},
};
use crate::{
    change::{Cause, Change},
    journal::{ChangeKind, Record, Sequence, UnitId},
    object::{KeyRef, Object, ResourceVersion},
};

/// Version of the encoding of heads. A new encoding gets a new number; old ones stay readable.
const FORM: u8 = 2;

/// Previous version, without [`Head::recreates`].
const FORM_1: u8 = 1;

/// Location of a record's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoredBody {
    /// The record has no body.
    None,
    /// Stored with the record, under its own sequence.
    Own,
    /// Stored with an earlier record of the same state of the object. The number is the sequence of that record.
    At(u64),
}

/// Location of the previous object of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Old {
    /// Not known, or the record is no update.
    None,
    /// Body of the state that this record superseded.
    Superseded,
    /// Stored with the record: the store had another state of the object, or none.
    Own,
}

/// Stored record without its bodies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head<'a> {
    pub(crate) sequence: u64,
    pub(crate) unit: UnitId,
    pub(crate) time_micros: i64,
    pub(crate) kind: ChangeKind,
    /// `None` for [`ChangeKind::Synced`].
    pub(crate) cause: Option<Cause>,
    pub(super) tombstone: bool,
    /// Name of the only reader that gets the record; `None` for all readers.
    pub(crate) only: Option<&'a str>,
    /// Both parts are empty for [`ChangeKind::Synced`].
    pub(super) key: KeyRef<'a>,
    pub(super) uid: Uid<'a>,
    /// Version of the object; version of the list for [`ChangeKind::Synced`].
    pub(super) resource_version: &'a str,
    /// Size of the object's JSON, in bytes; number of objects for [`ChangeKind::Synced`].
    pub(super) size: u64,
    pub(super) body: StoredBody,
    pub(super) old: Old,
    /// Sequence of the record that brought the object's previous state. This record replaced or ended that state. Once this record
    /// is removed, nothing needs the body of that state.
    pub(super) supersedes: Option<u64>,
    /// Set for an update that changed the uid of the object. Also set for all updates in the previous encoding, which does not
    /// store this flag.
    pub(super) recreates: bool,
}

const ONLY: u8 = 1;
const TOMBSTONE: u8 = 1 << 1;
const SUPERSEDES: u8 = 1 << 2;
const BODY_OWN: u8 = 1 << 3;
const BODY_AT: u8 = 1 << 4;
const OLD_SUPERSEDED: u8 = 1 << 5;
const OLD_OWN: u8 = 1 << 6;
const RECREATES: u8 = 1 << 7;

const KINDS: [ChangeKind; 7] = [
    ChangeKind::Added,
    ChangeKind::Updated,
    ChangeKind::Deleted,
    ChangeKind::Removed,
    ChangeKind::Unchanged,
    ChangeKind::Synced,
    ChangeKind::Refreshed,
];

const CAUSES: [Option<Cause>; 8] = [
    None,
    Some(Cause::Initial),
    Some(Cause::Watch),
    Some(Cause::Relist),
    Some(Cause::Resync { round: 0 }),
    Some(Cause::Downtime),
    Some(Cause::Reload),
    Some(Cause::Replay),
];

impl<'a> Head<'a> {
    /// Returns the head of a change, without bodies.
    pub(crate) fn of(change: &'a Change, unit: UnitId, sequence: u64, time_micros: i64, only: Option<&'a str>) -> Self {
        let (key, uid, resource_version, size) = match change {
            Change::Synced { objects, resource_version } => {
                (KeyRef { namespace: "", name: "" }, "", resource_version.as_str(), *objects)
            }
            change => {
                let object = change.object().expect("only a synced has none");
                (object.key(), object.uid(), object.resource_version(), object.json_bytes() as u64)
            }
        };
        Self {
            sequence,
            unit,
            time_micros,
            kind: ChangeKind::of(change),
            cause: change.cause(),
            tombstone: matches!(change, Change::Deleted { tombstone: true, .. }),
            only,
            key,
            uid: Uid::Text(uid),
            resource_version,
            size,
            body: StoredBody::None,
            old: Old::None,
            supersedes: None,
            recreates: change.old().is_some_and(|old| old.uid() != uid),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut flags = 0;
        let mut flag = |set: bool, bit: u8| flags |= if set { bit } else { 0 };
        flag(self.only.is_some(), ONLY);
        flag(self.tombstone, TOMBSTONE);
        flag(self.supersedes.is_some(), SUPERSEDES);
        flag(self.body == StoredBody::Own, BODY_OWN);
        flag(matches!(self.body, StoredBody::At(_)), BODY_AT);
        flag(self.old == Old::Superseded, OLD_SUPERSEDED);
        flag(self.old == Old::Own, OLD_OWN);
        flag(self.recreates, RECREATES);
        let (cause, round) = match self.cause {
            Some(Cause::Resync { round }) => (Some(Cause::Resync { round: 0 }), Some(round)),
            cause => (cause, None),
        };
        let cause = CAUSES.iter().position(|known| *known == cause).expect("all causes are listed");
        let kind = KINDS.iter().position(|kind| *kind == self.kind).expect("all kinds are listed");
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&[FORM, kind.to_le_bytes()[0], cause.to_le_bytes()[0], flags]);
        put_number(&mut out, self.unit.0.into());
        put_number(&mut out, self.time_micros.cast_unsigned());
        if let Some(round) = round {
            put_number(&mut out, round.into());
        }
        if let Some(only) = self.only {
            put_text(&mut out, only);
        }
        put_text(&mut out, self.key.namespace);
        put_text(&mut out, self.key.name);
        put_uid(&mut out, self.uid.as_str());
        put_text(&mut out, self.resource_version);
        put_number(&mut out, self.size);
        if let Some(superseded) = self.supersedes {
            put_number(&mut out, self.sequence - superseded);
        }
        if let StoredBody::At(sequence) = self.body {
            put_number(&mut out, self.sequence - sequence);
        }
        out
    }

    pub(super) fn decode(sequence: u64, value: &'a [u8]) -> Option<Self> {
        let mut wire = Wire(value);
        let form = wire.byte().filter(|form| [FORM, FORM_1].contains(form))?;
        let kind = *KINDS.get(usize::from(wire.byte()?))?;
        let mut cause = *CAUSES.get(usize::from(wire.byte()?))?;
        let flags = wire.byte()?;
        let unit = UnitId(u32::try_from(wire.number()?).ok()?);
        let time_micros = wire.number()?.cast_signed();
        if let Some(Cause::Resync { round }) = &mut cause {
            *round = u32::try_from(wire.number()?).ok()?;
        }
        let only = if flags & ONLY == 0 { None } else { Some(wire.text()?) };
        let key = KeyRef { namespace: wire.text()?, name: wire.text()? };
        let uid = wire.uid()?;
        let resource_version = wire.text()?;
        let size = wire.number()?;
        let supersedes = if flags & SUPERSEDES == 0 { None } else { Some(sequence.checked_sub(wire.number()?)?) };
        let body = match flags & (BODY_OWN | BODY_AT) {
            0 => StoredBody::None,
            BODY_OWN => StoredBody::Own,
            _ => StoredBody::At(sequence.checked_sub(wire.number()?)?),
        };
        let old = match flags & (OLD_SUPERSEDED | OLD_OWN) {
            0 => Old::None,
            OLD_OWN => Old::Own,
            _ => Old::Superseded,
        };
        let tombstone = flags & TOMBSTONE != 0;
        let recreates = flags & RECREATES != 0 || (form == FORM_1 && kind == ChangeKind::Updated);
        Some(Self {
            sequence,
            unit,
            time_micros,
            kind,
            cause,
            tombstone,
            only,
            key,
            uid,
            resource_version,
            size,
            body,
            old,
            supersedes,
            recreates,
        })
    }

    /// Returns true if the record is for one reader alone. Such a record does not change the state of its object. See [`NOBODY`].
    pub(super) fn is_addressed(&self) -> bool {
        self.only.is_some_and(|name| name != NOBODY)
    }

    /// Returns true if the body of this record became the state of its object.
    pub(super) fn is_state(&self) -> bool {
        let lives = !matches!(self.kind, ChangeKind::Deleted | ChangeKind::Removed | ChangeKind::Synced);
        lives && !self.is_addressed() && self.body == StoredBody::Own
    }

    /// Returns the number of objects of a [`ChangeKind::Synced`], and zero for other kinds.
    pub(crate) fn objects(&self) -> u64 {
        if self.kind == ChangeKind::Synced { self.size } else { 0 }
    }

    /// Returns the size of the object's JSON, in bytes.
    pub fn json_bytes(&self) -> u64 {
        if self.kind == ChangeKind::Synced { 0 } else { self.size }
    }

    /// Returns the record with these bodies; `None` if a required body is missing.
    pub(super) fn record(&self, object: Option<Object>, old: Option<Object>) -> Option<Record> {
        let cause = self.cause.unwrap_or(Cause::Watch);
        // The flag is also set with `cache = "none"`, where the previous object was never known. The object is then the
        // placeholder.
        let old_lost = self.kind == ChangeKind::Updated && old.is_none();
        let change = match self.kind {
            ChangeKind::Added => Change::Added { object: object?, cause },
            ChangeKind::Updated => {
                let object = object?;
                Change::Updated { old: old.unwrap_or_else(|| object.clone()), object, cause }
            }
            ChangeKind::Deleted => Change::Deleted { object: object?, tombstone: self.tombstone, cause },
            ChangeKind::Removed => Change::Removed { object: object?, cause },
            ChangeKind::Unchanged => Change::Unchanged { object: object?, cause },
            ChangeKind::Refreshed => Change::Refreshed { object: object? },
            ChangeKind::Synced => {
                Change::Synced { objects: self.size, resource_version: ResourceVersion::from(self.resource_version) }
            }
        };
        let (sequence, unit, time_micros) = (Sequence(self.sequence), self.unit, self.time_micros);
        Some(Record { sequence, unit, time_micros, change, old_lost })
    }
}
