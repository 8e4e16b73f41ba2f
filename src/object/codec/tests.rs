use proptest::prelude::*;
use serde_json::Value;

use super::{dictionary::DICTIONARY_BYTES, *};
use crate::object::Head;

const CODECS: [Compression; 2] = [Compression::Zstd, Compression::Lz4];

fn body(name: usize) -> Vec<u8> {
    let env: Vec<String> = (0..60).map(|n| format!(r#"{{"name":"KEY_{n}","value":"v{}"}}"#, n * 7919)).collect();
    let env = env.join(",");
    format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"web-{name}"}},"env":[{env}]}}"#).into_bytes()
}

fn identity(name: &str) -> Identity<'_> {
    Identity { namespace: "ns", name, uid: "u", resource_version: "7" }
}

fn pack(json: &[u8], codec: Compression, dictionary: Option<&Arc<Dictionary>>) -> Vec<u8> {
    with_packed(json, codec, dictionary.map(|dictionary| &**dictionary), <[u8]>::to_vec)
}

fn dictionary(samples: &[Vec<u8>]) -> Arc<Dictionary> {
    Arc::new(Dictionary::new(1, &Dictionary::choose(samples).expect("enough samples")).expect("zstd takes any bytes"))
}

fn round_trip(json: &[u8], codec: Compression, dictionary: Option<&Arc<Dictionary>>) -> usize {
    let packed = pack(json, codec, dictionary);
    let object = of_packed(identity("web"), &packed, json.len(), codec, dictionary.cloned()).expect("what was packed");
    assert_eq!((&*object.json(), object.name(), object.uid()), (json, "web", "u"));
    packed.len()
}

#[test]
fn packed_body_round_trips_with_and_without_dictionary() {
    let samples: Vec<_> = (0..12).map(body).collect();
    let (dictionary, again) = (dictionary(&samples), dictionary(&samples));
    for codec in CODECS {
        let with = round_trip(&body(99), codec, Some(&dictionary));
        let without = round_trip(&body(99), codec, None);
        assert!(with * 4 < without, "{codec:?}: {with} and {without} bytes");
        for odd in [&b"{}"[..], b"", &vec![b'x'; 3 << 20]] {
            round_trip(odd, codec, Some(&dictionary));
            round_trip(odd, codec, None);
        }
        assert_eq!(round_trip(&body(99), codec, Some(&again)), with);
    }
}

/// Generates any JSON with several levels.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-e]{0,60}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 96, 12, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z./]{0,12}", inner, 0..12)
                .prop_map(|members| members.into_iter().collect::<Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_round_trips(value in values(), samples in prop::collection::vec(values(), 2..6)) {
        let json = serde_json::to_vec(&value).expect("a value");
        let samples: Vec<_> = samples.iter().map(|sample| serde_json::to_vec(sample).expect("a value")).collect();
        let like_it = [samples.as_slice(), std::slice::from_ref(&json)].concat();
        for codec in CODECS {
            round_trip(&json, codec, None);
            round_trip(&json, codec, Some(&dictionary(&samples)));
            round_trip(&json, codec, Some(&dictionary(&like_it)));
        }
    }

    #[test]
    fn damage_never_panics(cut in 0..200_usize, at in any::<prop::sample::Index>(), byte: u8, len in 0..5000_usize) {
        let samples = [body(1), body(2)];
        let dictionary = dictionary(&samples);
        for codec in CODECS {
            for with in [None, Some(&dictionary)] {
                let mut packed = pack(&body(7), codec, with);
                packed.truncate(packed.len().saturating_sub(cut));
                if !packed.is_empty() {
                    let at = at.index(packed.len());
                    packed[at] = byte;
                }
                for reader in [None, Some(&*dictionary)] {
                    let unpacked = unpack_json(&packed, len, codec, reader);
                    prop_assert!(unpacked.is_err() || unpacked.is_ok_and(|json| json.len() == len));
                }
            }
        }
    }
}

#[test]
fn dictionary_needs_two_samples_and_is_bounded() {
    assert!(Dictionary::choose::<&[u8]>(&[]).is_none());
    assert!(Dictionary::choose(&[body(1)]).is_none());
    let huge = vec![b' '; DICTIONARY_BYTES + 1];
    let chosen = Dictionary::choose(&[body(1), huge, body(2)]).expect("two that fit");
    let content = [body(1), body(2)].concat();
    assert!(chosen.ends_with(&content) && chosen.len() > content.len(), "tables, and the samples as they are");
    assert!(chosen.len() < content.len() + 300, "{} bytes of tables", chosen.len() - content.len());
    let many: Vec<_> = (0..1000).map(body).collect();
    let many = Dictionary::choose(&many).expect("enough samples");
    assert!(many.len() <= DICTIONARY_BYTES + 300 && many.len() > DICTIONARY_BYTES - body(1).len());
}

/// Samples within the content would leave nothing to count, and literals would be stored uncompressed.
#[test]
fn tables_come_from_samples_outside_dictionary_content() {
    let digits = |n: u64| format!("{:016x}", n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let noisy = |n: usize| {
        let own: Vec<String> = (0..40).map(|at| digits((n * 40 + at) as u64)).collect();
        format!(r#"{{"kind":"Noise","own":["{}"]}}"#, own.join(r#"",""#)).into_bytes()
    };
    let samples: Vec<_> = (0..24).map(noisy).collect();
    let packed = round_trip(&noisy(99), Compression::Zstd, Some(&dictionary(&samples)));
    let own_bytes = 40 * 16;
    assert!(packed < own_bytes * 2 / 3, "{packed} bytes of {own_bytes} hex digits, which are half a byte each");
}

#[test]
fn samples_without_tables_still_make_dictionary() {
    for odd in [vec![Vec::new(), Vec::new()], vec![b"{}".to_vec(); 2], vec![vec![b'x'; 9]; 20], vec![body(1); 9]] {
        let dictionary = dictionary(&odd);
        for codec in CODECS {
            round_trip(&body(1), codec, Some(&dictionary));
            round_trip(b"{}", codec, Some(&dictionary));
        }
    }
}

#[test]
fn incomplete_or_foreign_body_is_error() {
    let json = body(1);
    let dictionaries = [dictionary(&[body(1), body(2)]), dictionary(&[body(3), body(4)])];
    let all = [None, Some(&dictionaries[0]), Some(&dictionaries[1])];
    let read = |packed: &[u8], len: usize, codec: Compression, dictionary: Option<&Arc<Dictionary>>| {
        of_packed(identity("a"), packed, len, codec, dictionary.cloned()).map(drop)
    };
    for codec in CODECS {
        for (at, with) in all.into_iter().enumerate() {
            let packed = pack(&json, codec, with);
            for (read_at, reader) in all.into_iter().enumerate() {
                assert_eq!(read(&packed, json.len(), codec, reader).is_ok(), at == read_at, "{codec:?} {at} {read_at}");
            }
            for end in 0..packed.len() {
                let error = read(&packed[..end], json.len(), codec, with).unwrap_err();
                assert!(matches!(error, CodecError::Unpack(_)), "{error}");
                assert!(unpack_json(&packed[..end], json.len(), codec, with.map(|with| &**with)).is_err(), "{end}");
            }
            assert!(read(&[&packed[..], b"x"].concat(), json.len(), codec, with).is_err());
            for len in [0, json.len() - 1, json.len() + 1] {
                assert!(read(&packed, len, codec, with).is_err());
                assert!(unpack_json(&packed, len, codec, with.map(|with| &**with)).is_err());
            }
        }
        assert!(read(b"{}{}{}", 6, codec, None).is_err());
    }
    for (codec, other) in [(Compression::Zstd, Compression::Lz4), (Compression::Lz4, Compression::Zstd)] {
        assert!(read(&pack(&json, codec, None), json.len(), other, None).is_err());
    }
    let longer = CodecError::Length { expected: json.len() + 1, found: json.len() };
    assert_eq!(read(&pack(&json, Compression::Zstd, None), json.len() + 1, Compression::Zstd, None), Err(longer));
    assert_eq!(plain(identity("a"), b"\xff", 1).unwrap_err(), CodecError::Text);
    assert_eq!(plain(identity("a"), b"{}", 3).unwrap_err(), CodecError::Length { expected: 3, found: 2 });
}

#[test]
fn packing_takes_no_extra_object_bytes() {
    assert_eq!((size_of::<Object>(), size_of::<Head>()), (8, 40));
}
