//! Checks of the encodings with arbitrary bytes; see `crate::fuzz`.

use super::{
    body::{
        PLAIN, Pointer, WITH_WHO, compacted_key, decode_body, encode_body, object_key, split_compacted_key,
        split_object_key,
    },
    record::Head,
};
use crate::{
    journal::{ChangeKind, UnitId},
    object::{
        ChangedBy, Identity, KeyRef, Object,
        packer::{Compression, Packer},
    },
};

/// Checks that a readable head survives encoding and decoding, and gives a record of its kind.
pub(crate) fn check_head(sequence: u64, value: &[u8]) {
    let Some(head) = Head::decode(sequence, value) else { return };
    let encoded = head.encode();
    let again = Head::decode(sequence, &encoded).expect("it was just written");
    assert_eq!(again.encode(), encoded);
    assert_eq!((again, again.is_state()), (head, head.is_state()));

    let KeyRef { namespace, name } = head.key;
    let (uid, resource_version) = (head.uid.as_str(), head.resource_version);
    let object = Object::assemble(Identity { namespace, name, uid, resource_version }, &[b"{}"]);
    let record = head.record(Some(object.clone()), Some(object)).expect("it has its bodies");
    let written = Head::of(&record.change, head.unit, sequence, head.time_micros, head.only);
    assert_eq!((written.kind, written.resource_version), (head.kind, head.resource_version));
    assert!(head.kind == ChangeKind::Synced || (written.key, written.uid.as_str()) == (head.key, uid));
}

/// Checks that a readable body, pointer or key survives encoding and decoding.
pub(crate) fn check_body(value: &[u8]) {
    // Packed bodies are not decoded here: the checksums of the store detect damaged ones.
    if let Ok(object) = decode_body(KEY, value, &Packer::new(Compression::None))
        && value[0] & !WITH_WHO == PLAIN
    {
        check_packed(&object, Compression::None);
    }
    if let Some(pointer) = Pointer::decode(value) {
        let encoded = pointer.encode();
        let again = Pointer::decode(&encoded).expect("it was just written");
        let parts = |pointer: &Pointer<'_>| {
            (pointer.sequence, pointer.uid.as_str().to_owned(), pointer.resource_version.to_owned())
        };
        assert_eq!(parts(&again), parts(&pointer));
    }
    if let Some((reader, sequence)) = split_compacted_key(value) {
        assert_eq!(compacted_key(reader, sequence), value);
    }
    if let (Some(unit), Some(key)) = (value.first_chunk(), split_object_key(value)) {
        assert_eq!(object_key(UnitId(u32::from_be_bytes(*unit)), key), value);
    }
}

const KEY: KeyRef<'static> = KeyRef { namespace: "ns", name: "a" };

/// Checks that the body of an object survives encoding and decoding, with every compression. The text consists of uid,
/// version, manager and JSON, separated by NUL.
pub(crate) fn check_text(text: &str) {
    let mut parts = text.splitn(4, '\0');
    let mut part = || parts.next().unwrap_or_default();
    let (uid, resource_version, manager) = (part(), part(), part());
    let identity = Identity { namespace: KEY.namespace, name: KEY.name, uid, resource_version };
    let who = ChangedBy { manager: manager.into(), ..ChangedBy::default() };
    let object = Object::assemble(identity, &[part().as_bytes()]);
    let object = if manager.is_empty() { object } else { object.with_changed_by(&who) };
    for compression in [Compression::Zstd, Compression::Lz4, Compression::None] {
        check_packed(&object, compression);
    }
}

fn check_packed(object: &Object, compression: Compression) {
    let packer = Packer::new(compression);
    let again = decode_body(object.key(), &encode_body(object, &packer), &packer).expect("it was just written");
    assert_eq!(again.identity(), object.identity());
    assert_eq!((again.json(), again.who()), (object.json(), object.who()));
    assert_eq!(again.json_bytes(), object.json_bytes());
}
