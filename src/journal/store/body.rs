//! Bodies, and where the states of objects lie.

use std::sync::Arc;

use super::wire::{Wire, put_number, put_text, put_uid};
use crate::{
    journal::UnitId,
    object::{
        Identity, KeyRef, Object, SharedObject,
        codec::{self, CodecError, Dictionary},
    },
};

/// Version of the form of bodies and pointers. A new form gets a new number; old ones stay readable.
const FORM: u8 = 1;

/// Packs the body of an object, with the dictionary of that number.
pub(super) fn encode_body(object: &Object, dictionary: Option<(u8, &Dictionary)>) -> Vec<u8> {
    let json = object.json();
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(&[FORM, dictionary.map_or(0, |(number, _)| number)]);
    put_number(&mut out, json.len() as u64);
    put_uid(&mut out, object.uid());
    put_text(&mut out, object.resource_version());
    codec::pack(&json, dictionary.map(|(_, dictionary)| dictionary), &mut out);
    out
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

/// Unpacks what [`encode_body`] made. `dictionaries` holds that of number n at n − 1.
pub(super) fn decode_body(
    key: KeyRef<'_>,
    value: &[u8],
    dictionaries: &[Arc<Dictionary>],
) -> Result<SharedObject, BodyError> {
    let mut wire = Wire(value);
    let head = (|| {
        (wire.byte()? == FORM).then_some(())?;
        let number = wire.byte()?;
        Some((number, usize::try_from(wire.number()?).ok()?, wire.uid()?, wire.text()?))
    })();
    let (number, len, uid, resource_version) = head.ok_or(BodyError::Form)?;
    let dictionary = match usize::from(number).checked_sub(1) {
        None => None,
        Some(at) => Some(&**dictionaries.get(at).ok_or(BodyError::Dictionary(number))?),
    };
    let identity = Identity { namespace: key.namespace, name: key.name, uid: uid.as_str(), resource_version };
    Ok(Arc::new(codec::unpack(identity, wire.0, len, dictionary)?))
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
