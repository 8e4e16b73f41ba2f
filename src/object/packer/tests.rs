use super::{
    sampler::{SAMPLES, SAMPLES_BYTES},
    testing::object,
    *,
};

fn show(packer: &Packer, family: usize, count: usize) -> usize {
    let objects: Vec<_> = (0..count).map(|number| object(family, number)).collect();
    packer.look_at(objects.iter());
    let kept: Vec<_> = objects.iter().map(|object| packer.pack(object)).collect();
    for (object, packed) in objects.iter().zip(&kept) {
        assert_eq!(object.json(), packed.json());
        assert_eq!((object.identity(), object.json_bytes()), (packed.identity(), packed.json_bytes()));
    }
    kept.last().map_or(0, Object::size_bytes)
}

#[test]
fn object_is_packed_once_and_reads_unchanged() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let packer = Packer::new(compression);
        let one = object(1, 7);
        let kept = packer.pack(&one);
        assert!(kept.ptr_eq(&packer.pack(&one)) && kept.ptr_eq(&packer.pack(&kept)));
        assert!(kept.size_bytes() * 10 < one.size_bytes() * 7 && kept.same_version(&one), "{compression:?}");
        assert_eq!(kept.key(), one.key());
        assert_eq!(kept.value().expect("JSON"), one.value().expect("JSON"));
        let tiny = Object::from_json(br#"{"apiVersion":"v","kind":"K","metadata":{"name":"n"}}"#).unwrap();
        assert!(packer.pack(&tiny).size_bytes() <= tiny.size_bytes(), "what would grow stays as it is");
        let none = Packer::new(Compression::None);
        assert!(none.pack(&tiny).ptr_eq(&tiny));
        assert!(none.pack(&one).ptr_eq(&one), "although it is packed elsewhere");
        let whole = none.pack(&kept);
        assert_eq!((whole.size_bytes(), whole.json()), (one.size_bytes(), one.json()));
    }
}

fn codec_of(object: &Object) -> Option<Compression> {
    object.packed_body().map(|(_, codec, _)| codec)
}

#[test]
fn new_codec_repacks_objects_of_previous_one() {
    let old = Packer::new(Compression::Zstd);
    show(&old, 1, 1000);
    let fresh = object(1, 2000);
    let kept = old.pack(&fresh);
    let new = Packer::new(Compression::Lz4);
    let alone = new.pack(&object(1, 2000)).size_bytes();
    for object in [&kept, &fresh] {
        let packed = new.pack(object);
        assert_eq!((codec_of(object), codec_of(&packed)), (Some(Compression::Zstd), Some(Compression::Lz4)));
        assert_eq!((packed.json(), packed.identity()), (fresh.json(), fresh.identity()));
        assert!(packed.size_bytes() * 2 < alone, "with the dictionary that it had: {} {alone}", packed.size_bytes());
        assert!(new.pack(&packed).ptr_eq(&packed));
    }
    old.set_compression(Compression::Lz4);
    assert_eq!(codec_of(&old.pack(&object(1, 2001))), Some(Compression::Lz4));
    old.set_compression(Compression::Zstd);
    assert!(old.pack(&kept).ptr_eq(&kept));
}

#[test]
fn dictionary_is_made_during_first_list() {
    let packer = Packer::new(Compression::Zstd);
    let alone = show(&packer, 1, 1);
    let few = show(&packer, 1, 100);
    assert!(few + 10 > alone, "few bytes make no dictionary: {few}");
    let many = show(&packer, 1, 1000);
    assert!(many * 3 < alone, "{many} of {alone}");
    let before = show(&packer, 2, 1);
    (0..3).for_each(|_| packer.learn(2));
    assert_eq!(current(&packer), Some(2), "what is as good is not replaced");
    let after = show(&packer, 2, 1);
    assert!(after * 2 < before, "{after} of {before}");
    assert!(packer.dictionary(1).is_none(), "nothing is packed with the first any more");
    assert!(packer.dictionary(2).is_some() && packer.dictionary(3).is_none() && packer.dictionary(0).is_none());
}

#[test]
fn better_dictionary_is_sought_when_bytes_double() {
    let mut sampler = Sampler::default();
    let object = object(1, 1);
    let mut due = Vec::new();
    for at in 0..200_000_u64 {
        if sampler.offer(&object) {
            let chosen = sampler.take();
            assert!(chosen.len() > 20 && chosen.len() <= SAMPLES, "{}", chosen.len());
            due.push(((at + 1) * object.json_bytes() as u64) >> 20);
        }
        assert!(sampler.samples_bytes <= SAMPLES_BYTES);
    }
    assert_eq!(due[..8], [1, 2, 4, 8, 16, 32, 64, 128]);
    assert_eq!(due[8] - due[7], 64);
}

/// Returns the number of the newest dictionary.
fn current(packer: &Packer) -> Option<u8> {
    lock(&packer.state).current.as_ref().map(|dictionary| dictionary.number())
}

#[test]
fn store_makes_at_most_four_dictionaries_per_unit() {
    let packer = Packer::of_store();
    (1..9).for_each(|family| packer.learn(family * 100));
    let numbers: Vec<u8> = packer.unwritten().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(packer.retiring().is_none());
    packer.written(3);
    assert_eq!(packer.unwritten().len(), 1);
}

#[test]
fn fifth_dictionary_retires_the_oldest() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let packer = Packer::new(compression);
        let mut kept = Vec::new();
        for family in 1..=6 {
            packer.learn(family * 100);
            kept.push(packer.pack(&object(family * 100, 7)));
            let newest = family.min(5);
            assert_eq!(current(&packer).map(usize::from), Some(newest), "no sixth while the first is in use");
            let retiring = packer.retiring().map(|dictionary| dictionary.number());
            assert_eq!(retiring, (family >= 5).then_some(1));
        }
        let retiring = packer.retiring().expect("the first");
        let outdated: Vec<bool> = kept.iter().map(|object| object.is_packed_with(&retiring)).collect();
        assert_eq!(outdated, [true, false, false, false, false, false]);
        drop(retiring);
        let repacked = packer.repack(&kept[0]);
        assert_eq!((repacked.json(), repacked.identity()), (kept[0].json(), kept[0].identity()));
        kept[0] = repacked;
        assert!(packer.retiring().is_none() && packer.dictionary(1).is_none(), "gone with the last that used it");
        packer.learn(600);
        assert_eq!(current(&packer), Some(6));
        assert_eq!(packer.retiring().map(|dictionary| dictionary.number()), Some(2));
        assert!(
            kept.iter()
                .zip([100, 200, 300, 400, 500, 600])
                .all(|(kept, family)| kept.json() == object(family, 7).json())
        );
    }
}

#[test]
fn small_gain_causes_no_repacking() {
    /// Returns an object of a family with random digits, which no dictionary compresses.
    fn noisy(family: usize, number: usize) -> Object {
        let mut noise = (family * 1000 + number) as u64;
        let words = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ 0x2545_F491;
            format!("{noise:016x}")
        });
        let json = String::from_utf8(object(family, number).json().into_owned()).expect("JSON");
        let (start, noise) = (&json[..json.len() - 1], words.take(300).collect::<String>());
        Object::from_json(format!(r#"{start},"noise":"{noise}"}}"#).as_bytes()).expect("an object")
    }
    let packer = Packer::new(Compression::Zstd);
    let mut kept = Vec::new();
    for family in 1..=4 {
        packer.learn_of(|number| noisy(family * 100, number));
        kept.push(packer.pack(&noisy(family * 100, 7)));
        assert_eq!(current(&packer).map(usize::from), Some(family), "a tenth is enough while there is room");
    }
    packer.learn_of(|number| noisy(500, number));
    assert_eq!((current(&packer), packer.retiring().is_none()), (Some(4), true));
    packer.learn(600);
    assert_eq!((current(&packer), packer.retiring().is_some()), (Some(5), true));
}

#[test]
fn repacking_without_compression_gives_plain_body() {
    let packer = Packer::new(Compression::Zstd);
    let kept = packer.pack(&object(1, 1));
    packer.set_compression(Compression::None);
    let plain = packer.repack(&kept);
    assert_eq!((plain.packed_body().is_none(), plain.json()), (true, object(1, 1).json()));
}

#[test]
fn store_takes_packed_bodies_and_reads_after_restart() {
    for compression in [Compression::Zstd, Compression::Lz4] {
        let (packer, other) = (Packer::of_store(), Packer::of_store());
        for packer in [&packer, &other] {
            packer.set_compression(compression);
            show(packer, 1, 1000);
        }
        let restarted = Packer::of_store();
        for (_, bytes) in packer.unwritten() {
            assert!(restarted.restore(&bytes));
        }
        assert!(restarted.unwritten().is_empty(), "it lies there already");
        let read = |by: &Packer, object: &Object| {
            let (codec, number, body) = by.with_body(object, |codec, number, body| (codec, number, body.to_vec()));
            assert_eq!(codec, compression);
            let dictionary = (number > 0).then(|| restarted.dictionary(number).expect("it was restored"));
            codec::of_packed(object.identity(), &body, object.json_bytes(), codec, dictionary).expect("a body")
        };
        let foreign = other.pack(&object(1, 5000));
        let own = packer.pack(&object(1, 5000));
        let fresh = object(1, 5000);
        let fresh_and_packed = object(1, 5000);
        packer.pack(&fresh_and_packed);
        let packed_otherwise = [Compression::Lz4, Compression::Zstd].map(|by| Packer::new(by).pack(&fresh));
        for object in [&own, &foreign, &fresh, &fresh_and_packed].into_iter().chain(&packed_otherwise) {
            assert_eq!(read(&packer, object).json(), fresh.json());
        }
        let same = own.packed_body().map(|(body, ..)| body.to_vec()).expect("it is packed");
        packer.with_body(&own, |_, number, body| assert_eq!((number, body), (1, &same[..])));
        packer.set_compression(Compression::None);
        packer.with_body(&own, |codec, number, body| {
            assert_eq!((codec, number, body), (Compression::None, 0, &*fresh.json()));
        });
    }
}
