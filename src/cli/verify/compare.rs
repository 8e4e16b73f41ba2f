//! Comparison of two lists at one version, by uid and version.

use std::collections::HashMap;

use serde::Serialize;

/// Maximum number of differences that are listed; further ones are only counted.
const NAMED_MAX: usize = 1000;

/// State of an object, identified by uid and version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct State {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Box<str>,
}

/// Object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Different {
    /// `missing` (only the server has the object), `extra` (only the cache has it) or `stale` (both have it, in different states).
    pub(super) kind: &'static str,
    pub(super) key: Box<str>,
    pub(super) cache: Option<State>,
    pub(super) server: Option<State>,
}

/// Result of a comparison.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Number of objects of cache and server together. An object that both have counts once.
    pub(super) objects: usize,
    /// Number of objects that differ.
    pub(super) different: usize,
    /// First differences, ordered by key.
    pub(super) named: Vec<Different>,
}

/// Compares the objects of cache and server. Both lists may be in any order.
pub(super) fn compare(cached: Vec<(Box<str>, State)>, served: Vec<(Box<str>, State)>) -> Outcome {
    let mut cached: HashMap<_, _> = cached.into_iter().collect();
    let mut objects = served.len();
    let mut named = Vec::new();
    for (key, server) in served {
        let cache = cached.remove(&key);
        if cache.as_ref() != Some(&server) {
            let kind = if cache.is_some() { "stale" } else { "missing" };
            named.push(Different { kind, key, cache, server: Some(server) });
        }
    }
    objects += cached.len();
    let extra = |(key, state)| Different { kind: "extra", key, cache: Some(state), server: None };
    named.extend(cached.into_iter().map(extra));
    named.sort_by(|a, b| a.key.cmp(&b.key));
    let different = named.len();
    named.truncate(NAMED_MAX);
    Outcome { objects, different, named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(uid: &str, version: &str) -> State {
        State { uid: uid.into(), resource_version: version.into() }
    }

    #[test]
    fn differences_are_found_in_any_list_order() {
        let cache = [("a", "1", "10"), ("b", "2", "11"), ("c", "3", "12"), ("d", "4", "13"), ("e", "5", "14")];
        let server = [("f", "6", "15"), ("e", "5", "14"), ("c", "9", "12"), ("b", "2", "20"), ("a", "1", "10")];
        let side = |objects: [(&str, &str, &str); 5]| {
            objects.map(|(key, uid, version)| (Box::<str>::from(key), state(uid, version))).to_vec()
        };
        let outcome = compare(side(cache), side(server));
        assert_eq!((outcome.objects, outcome.different), (6, 4));
        let named: Vec<_> = outcome.named.iter().map(|different| (&*different.key, different.kind)).collect();
        assert_eq!(named, [("b", "stale"), ("c", "stale"), ("d", "extra"), ("f", "missing")]);
        assert_eq!(outcome.named[0].cache, Some(state("2", "11")));
        assert_eq!(outcome.named[0].server, Some(state("2", "20")));
    }

    #[test]
    fn further_differences_are_only_counted() {
        let cached = (0..1500).map(|i| (format!("ns/{i:05}").into(), state("u", "1"))).collect();
        let outcome = compare(cached, Vec::new());
        assert_eq!((outcome.objects, outcome.different, outcome.named.len()), (1500, 1500, NAMED_MAX));
    }
}
