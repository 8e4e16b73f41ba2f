//! Encoding of bodies, locations of states, and keys.

use super::{
    record::{Head, Old, StoredBody},
    wire::{Uid, Wire, put_number, put_text, put_uid},
};
use crate::{
    journal::UnitId,
    object::{
        Identity, KeyRef, Object,
        codec::{self, Compression},
        packer::Packer,
    },
};

/// Version of the encoding of bodies and pointers. A new encoding gets a new number; old ones stay readable. Bodies with this
/// version are packed by zstd.
const FORM: u8 = 1;

/// Version of a body that is not packed.
pub(super) const PLAIN: u8 = 2;

/// Version of a body that is packed by lz4.
const LZ4: u8 = 3;

/// Added to the version if the record of the object's writer is stored before the body.
pub(super) const WITH_WHO: u8 = 1 << 4;

/// Encodes the body of an object in the form that `packer` produces.
pub(super) fn encode_body(object: &Object, packer: &Packer) -> Vec<u8> {
    packer.with_body(object, |compression, number, body| {
        let form = match compression {
            Compression::Zstd => FORM,
            Compression::Lz4 => LZ4,
            Compression::None => PLAIN,
        };
        let who = object.who_to_store();
        let form = if who.is_empty() { form } else { form + WITH_WHO };
        let mut out = Vec::with_capacity(80 + who.len() + body.len());
        out.extend_from_slice(&[form, number]);
        put_number(&mut out, object.json_bytes() as u64);
        put_uid(&mut out, object.uid());
        put_text(&mut out, object.resource_version());
        if !who.is_empty() {
            put_number(&mut out, who.len() as u64);
            out.extend_from_slice(who);
        }
        out.extend_from_slice(body);
        out
    })
}

/// Decodes the output of [`encode_body`]. An error says why that output is unreadable.
pub(super) fn decode_body(key: KeyRef<'_>, value: &[u8], packer: &Packer) -> Result<Object, String> {
    let mut wire = Wire(value);
    let head = (|| {
        let form = wire.byte()?;
        let compression = match form & !WITH_WHO {
            FORM => Compression::Zstd,
            LZ4 => Compression::Lz4,
            PLAIN => Compression::None,
            _ => return None,
        };
        let number = wire.byte()?;
        let (len, uid, resource_version) = (usize::try_from(wire.number()?).ok()?, wire.uid()?, wire.text()?);
        let who_bytes = if form & WITH_WHO == 0 { 0 } else { usize::try_from(wire.number()?).ok()? };
        let who = wire.bytes(who_bytes)?;
        Some((compression, number, len, uid, resource_version, Object::stored_who(who)?))
    })();
    let (compression, number, len, uid, resource_version, who) = head.ok_or("it has an unknown form")?;
    let identity = Identity { namespace: key.namespace, name: key.name, uid: uid.as_str(), resource_version };
    let dictionary = match number {
        0 => None,
        number => {
            let missing = || format!("its dictionary {number} is missing");
            Some(packer.dictionary(number).ok_or_else(missing)?)
        }
    };
    let object = codec::of_packed(identity, wire.0, len, compression, dictionary);
    object.map(|object| object.with_who(who)).map_err(|error| error.to_string())
}

/// Location of an object's state, with its uid and version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer<'a> {
    pub(super) sequence: u64,
    pub(super) uid: Uid<'a>,
    pub(super) resource_version: &'a str,
}

impl<'a> Pointer<'a> {
    pub(super) fn to(sequence: u64, object: &'a Object) -> Self {
        Self { sequence, uid: Uid::Text(object.uid()), resource_version: object.resource_version() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        out.push(FORM);
        put_number(&mut out, self.sequence);
        put_uid(&mut out, self.uid.as_str());
        put_text(&mut out, self.resource_version);
        out
    }

    pub(super) fn decode(value: &'a [u8]) -> Option<Self> {
        let mut wire = Wire(value);
        (wire.byte()? == FORM).then_some(())?;
        Some(Self { sequence: wire.number()?, uid: wire.uid()?, resource_version: wire.text()? })
    }
}

/// Returns the key of a record, which is also the key of its body.
pub(super) fn sequence_key(sequence: u64) -> [u8; 8] {
    sequence.to_be_bytes()
}

/// Returns the key of a previous object that is stored with its record.
pub(super) fn old_key(sequence: u64) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// Part of a record: the body of its object, or of its previous object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Object = 1,
    Old = 2,
}

/// Returns the key of a coalesced record's body. It is longer than the other keys of the sequence, and sorted after them.
pub(super) fn compacted_body_key(reader: &str, sequence: u64, part: Part) -> Vec<u8> {
    [&sequence.to_be_bytes()[..], &[part as u8], reader.as_bytes()].concat()
}

/// Returns the key of the body that a record refers to; `None` if the record has no such body. `reader` is set for a coalesced
/// record: its own bodies are stored under the name of its reader.
pub(super) fn body_key(head: &Head<'_>, part: Part, reader: Option<&str>) -> Option<Vec<u8>> {
    let coalesced = reader.map(|reader| compacted_body_key(reader, head.sequence, part));
    match part {
        Part::Object => match head.body {
            StoredBody::None => None,
            StoredBody::Own => coalesced.or_else(|| Some(sequence_key(head.sequence).to_vec())),
            StoredBody::At(at) => Some(sequence_key(at).to_vec()),
        },
        Part::Old => match head.old {
            Old::None => None,
            Old::Own => coalesced.or_else(|| Some(old_key(head.sequence).to_vec())),
            Old::Superseded => Some(sequence_key(head.supersedes?).to_vec()),
        },
    }
}

/// Returns the key of a coalesced record's head.
pub(super) fn compacted_key(reader: &str, sequence: u64) -> Vec<u8> {
    [reader.as_bytes(), &[0], &sequence.to_be_bytes()].concat()
}

/// Splits a [`compacted_key`] into the name of the reader and the sequence.
pub(super) fn split_compacted_key(key: &[u8]) -> Option<(&str, u64)> {
    let (name, sequence) = key.split_last_chunk::<8>()?;
    let (0, name) = name.split_last()? else { return None };
    Some((std::str::from_utf8(name).ok()?, u64::from_be_bytes(*sequence)))
}

/// Returns the key of an object. The keys of a unit are sorted by namespace and name.
pub(super) fn object_key(unit: UnitId, key: KeyRef<'_>) -> Vec<u8> {
    [&unit.0.to_be_bytes()[..], key.namespace.as_bytes(), &[0], key.name.as_bytes()].concat()
}

/// Splits the key of an object into namespace and name.
pub(super) fn split_object_key(key: &[u8]) -> Option<KeyRef<'_>> {
    let (namespace, name) = std::str::from_utf8(key.get(4..)?).ok()?.split_once('\0')?;
    Some(KeyRef { namespace, name })
}
