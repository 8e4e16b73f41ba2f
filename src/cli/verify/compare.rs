//! Comparison of two lists at one version, as their objects arrive, in any order.
//!
//! Objects that both lists have are dropped at once. If both lists have the same order, few objects are held at a time.

use std::collections::HashMap;

use serde::Serialize;

/// Maximum number of differences that are listed; further ones are only counted.
const NAMED_MAX: usize = 1000;

/// Side that has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Cache,
    Server,
}

/// Identity of a state of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct State {
    pub(super) uid: Box<str>,
    pub(super) resource_version: Box<str>,
}

/// Kind of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Difference {
    /// Only the server has the object.
    Missing,
    /// Only the cache has the object.
    Extra,
    /// The cache has another state than the server.
    Stale,
}

/// Object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Different {
    pub(super) kind: Difference,
    pub(super) key: Box<str>,
    pub(super) cache: Option<State>,
    pub(super) server: Option<State>,
}

/// Comparison in progress.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Objects seen on only one side so far.
    single: HashMap<Box<str>, (Side, State)>,
    outcome: Outcome,
}

/// Result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Number of objects on either side, each counted once.
    pub(super) objects: u64,
    /// Number of objects that differ.
    pub(super) different: u64,
    /// First differences, ordered by key.
    pub(super) named: Vec<Different>,
}

impl Comparison {
    /// Adds an object of one side. If one side has an object twice, the later state counts.
    pub(super) fn see(&mut self, side: Side, key: Box<str>, state: State) {
        match self.single.remove(&key) {
            Some((other, first)) if other != side => {
                self.outcome.objects += 1;
                if first != state {
                    let (cache, server) = if side == Side::Cache { (state, first) } else { (first, state) };
                    self.outcome.differ(Different {
                        kind: Difference::Stale,
                        key,
                        cache: Some(cache),
                        server: Some(server),
                    });
                }
            }
            _ => {
                self.single.insert(key, (side, state));
            }
        }
    }

    /// Ends the comparison; both lists must be complete.
    pub(super) fn finish(mut self) -> Outcome {
        for (key, (side, state)) in self.single {
            self.outcome.objects += 1;
            self.outcome.differ(match side {
                Side::Cache => Different { kind: Difference::Extra, key, cache: Some(state), server: None },
                Side::Server => Different { kind: Difference::Missing, key, cache: None, server: Some(state) },
            });
        }
        self.outcome.named.sort_by(|a, b| a.key.cmp(&b.key));
        self.outcome
    }
}

impl Outcome {
    fn differ(&mut self, different: Different) {
        self.different += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(different);
        }
    }
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
        let mut comparison = Comparison::default();
        for ((key, uid, version), (other, other_uid, other_version)) in cache.into_iter().zip(server) {
            comparison.see(Side::Cache, key.into(), state(uid, version));
            comparison.see(Side::Server, other.into(), state(other_uid, other_version));
        }
        let outcome = comparison.finish();
        assert_eq!((outcome.objects, outcome.different), (6, 4));
        let named: Vec<_> = outcome.named.iter().map(|different| (&*different.key, different.kind)).collect();
        let expected =
            [("b", Difference::Stale), ("c", Difference::Stale), ("d", Difference::Extra), ("f", Difference::Missing)];
        assert_eq!(named, expected);
        assert_eq!(outcome.named[0].cache, Some(state("2", "11")));
        assert_eq!(outcome.named[0].server, Some(state("2", "20")));
    }

    #[test]
    fn sorted_lists_use_no_memory_for_equal_objects() {
        let mut comparison = Comparison::default();
        for i in 0..5000 {
            let key = format!("ns/{i:05}");
            comparison.see(Side::Server, key.as_str().into(), state("u", "1"));
            let version = if i % 2 == 0 { "1" } else { "2" };
            comparison.see(Side::Cache, key.as_str().into(), state("u", version));
            assert!(comparison.single.is_empty());
        }
        let outcome = comparison.finish();
        assert_eq!((outcome.objects, outcome.different, outcome.named.len()), (5000, 2500, NAMED_MAX));
    }
}
