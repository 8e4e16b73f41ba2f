//! Bodies, and where the states of objects lie.

use std::sync::Arc;

use super::wire::{Wire, put_number, put_text, put_uid};
use crate::{
    journal::UnitId,
    object::{
        Identity, KeyRef, Object, SharedObject,
        codec::{self, CodecError},
        packer::{Compression, Packer},
    },
};

/// Version of the form of bodies and pointers. A new form gets a new number; old ones stay readable.
const FORM: u8 = 1;

/// A body that is not packed.
const PLAIN: u8 = 2;

/// Writes the body of an object, packed as `packer` says.
pub(super) fn encode_body(object: &Object, packer: &Packer) -> Vec<u8> {
    let head = |form: u8, number: u8, body: &[u8]| {
        let mut out = Vec::with_capacity(80 + body.len());
        out.extend_from_slice(&[form, number]);
        put_number(&mut out, object.json_bytes() as u64);
        put_uid(&mut out, object.uid());
        put_text(&mut out, object.resource_version());
        out.extend_from_slice(body);
        out
    };
    match packer.compression() {
        Compression::Zstd => packer.with_body(object, |number, body| head(FORM, number, body)),
        Compression::None => head(PLAIN, 0, &object.json()),
    }
}

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("it has an unknown form")]
    Form,
    #[error("its dictionary {0} is missing")]
    Dictionary(u8),
    #[error(transparent)]
    Codec(#[from] CodecError),
}

/// Reads what [`encode_body`] made.
pub(super) fn decode_body(key: KeyRef<'_>, value: &[u8], packer: &Packer) -> Result<SharedObject, BodyError> {
    let mut wire = Wire(value);
    let head = (|| {
        let form = wire.byte().filter(|form| [FORM, PLAIN].contains(form))?;
        let number = wire.byte()?;
        Some((form, number, usize::try_from(wire.number()?).ok()?, wire.uid()?, wire.text()?))
    })();
    let (form, number, len, uid, resource_version) = head.ok_or(BodyError::Form)?;
    let identity = Identity { namespace: key.namespace, name: key.name, uid: uid.as_str(), resource_version };
    if form == PLAIN {
        return Ok(Arc::new(codec::plain(identity, wire.0, len)?));
    }
    let dictionary = match number {
        0 => None,
        number => Some(packer.dictionary(number).ok_or(BodyError::Dictionary(number))?),
    };
    Ok(Arc::new(codec::of_packed(identity, wire.0, len, dictionary)?))
}

/// Where the state of an object lies, and which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) sequence: u64,
    pub(super) uid: Box<str>,
    pub(super) resource_version: Box<str>,
}

impl Pointer {
    pub(super) fn to(sequence: u64, object: &Object) -> Self {
        Self { sequence, uid: object.uid().into(), resource_version: object.resource_version().into() }
    }

    /// Returns whether it is that very state; versions are compared where there are any.
    pub(super) fn is(&self, object: &Object) -> bool {
        !self.resource_version.is_empty()
            && *self.resource_version == *object.resource_version()
            && *self.uid == *object.uid()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        out.push(FORM);
        put_number(&mut out, self.sequence);
        put_uid(&mut out, &self.uid);
        put_text(&mut out, &self.resource_version);
        out
    }

    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let mut wire = Wire(value);
        (wire.byte()? == FORM).then_some(())?;
        let sequence = wire.number()?;
        let uid = wire.uid()?.as_str().into();
        Some(Self { sequence, uid, resource_version: wire.text()?.into() })
    }
}

/// The key of a record and of its body.
pub(super) fn sequence_key(sequence: u64) -> [u8; 8] {
    sequence.to_be_bytes()
}

/// The key of an old state that lies beside its record.
pub(super) fn old_key(sequence: u64) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The key of an object; those of a unit are in the order of namespace and name.
pub(super) fn object_key(unit: UnitId, key: KeyRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + key.namespace.len() + key.name.len());
    out.extend_from_slice(&unit.0.to_be_bytes());
    out.extend_from_slice(key.namespace.as_bytes());
    out.push(0);
    out.extend_from_slice(key.name.as_bytes());
    out
}

/// Splits the key of an object into namespace and name.
pub(super) fn split_object_key(key: &[u8]) -> Option<KeyRef<'_>> {
    let (namespace, name) = std::str::from_utf8(key.get(4..)?).ok()?.split_once('\0')?;
    Some(KeyRef { namespace, name })
}
