//! Helpers for tests of packing.

use super::Packer;
use crate::{mutex::lock, object::Object};

/// Returns an object of about 2 KB; objects of one family have much in common.
pub(crate) fn object(family: usize, number: usize) -> Object {
    let env: Vec<String> = (0..50)
        .map(|n| format!(r#"{{"name":"{family}_{:x}","value":"{}"}}"#, (n + family) * 7919, (n ^ family) * 104_729))
        .collect();
    let json = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"namespace":"ns","name":"p{number}","uid":"u{number}","resourceVersion":"{number}"}},"env":[{}]}}"#,
        env.join(",")
    );
    Object::from_json(json.as_bytes()).expect("an object")
}

impl Packer {
    /// Offers objects of a family, then makes a dictionary if it is better.
    pub(crate) fn learn(&self, family: usize) {
        self.learn_of(|number| object(family, number));
    }

    /// Offers some objects, then makes a dictionary if it is better.
    pub(crate) fn learn_of(&self, make: impl Fn(usize) -> Object) {
        let mut state = lock(&self.state);
        state.sampler.samples.extend((0..30).map(make));
        state.renew();
    }
}
