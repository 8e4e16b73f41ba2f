//! Which running types are certainly gone: a type is drained only where that is sure.
//!
//! A type is gone when its group answered twice without it, or when its CRD was seen deleted. A group that could not be
//! asked says nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::TypeName;

/// How often a type must be missing from its group's answer, one after another.
const ABSENT_TIMES: u32 = 2;

/// What the server's answer says of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It is served, in whatever version.
    Yes,
    /// Its group has answered without it.
    No,
    /// Its group could not be asked.
    Unknown,
}

/// What is known of types that may be gone.
#[derive(Clone, Debug, Default)]
pub struct Presence {
    absent: BTreeMap<TypeName, u32>,
    deleted: BTreeSet<TypeName>,
}

/// What a look at an answer says of the running types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Certainly gone.
    pub gone: BTreeSet<TypeName>,
    /// Missing, and perhaps gone: what runs goes on until another look.
    pub doubtful: BTreeSet<TypeName>,
}

impl Presence {
    /// Notes that a CRD was seen deleted.
    pub fn definition_deleted(&mut self, name: TypeName) {
        self.deleted.insert(name);
    }

    /// Notes that a CRD was seen.
    pub fn definition_seen(&mut self, name: &TypeName) {
        self.deleted.remove(name);
        self.absent.remove(name);
    }

    /// Returns whether the type's CRD was seen deleted: an answer that has it is old.
    pub fn is_deleted(&self, name: &TypeName) -> bool {
        self.deleted.contains(name)
    }

    /// Holds the running types against a new answer.
    pub fn look(&mut self, running: &[TypeName], served: impl Fn(&TypeName) -> Served) -> Looked {
        let mut absent = BTreeMap::new();
        for name in running {
            let before = self.absent.get(name).copied();
            match served(name) {
                Served::Yes => {}
                Served::No => drop(absent.insert(name.clone(), before.map_or(1, |times| ABSENT_TIMES.min(times + 1)))),
                Served::Unknown => absent.extend(before.map(|times| (name.clone(), times))),
            }
        }
        self.absent = absent;
        self.judge(running, served)
    }

    /// Says of the running types what the last answer said, and the CRDs that were seen since.
    pub fn judge(&self, running: &[TypeName], served: impl Fn(&TypeName) -> Served) -> Looked {
        let is_gone = |name: &&TypeName| self.deleted.contains(*name) || self.absent.get(*name) == Some(&ABSENT_TIMES);
        let (gone, others): (BTreeSet<_>, BTreeSet<_>) = running.iter().partition(is_gone);
        let doubtful = others.into_iter().filter(|name| served(name) != Served::Yes);
        Looked { doubtful: doubtful.cloned().collect(), gone: gone.into_iter().cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> TypeName {
        TypeName { group: "acme.io".into(), plural: "apples".into() }
    }

    /// What a series of answers says in the end: `y`es, `n`o, `?`; `D` the CRD was deleted, `S` it was seen.
    fn check(answers: &str, expected: &str) {
        let mut presence = Presence::default();
        let mut last = Served::Yes;
        let mut looked = Looked::default();
        for answer in answers.chars() {
            match answer {
                'D' => presence.definition_deleted(name()),
                'S' => presence.definition_seen(&name()),
                answer => {
                    last = match answer {
                        'y' => Served::Yes,
                        'n' => Served::No,
                        _ => Served::Unknown,
                    };
                    looked = presence.look(&[name()], |_| last);
                    continue;
                }
            }
            looked = presence.judge(&[name()], |_| last);
        }
        let said = match (looked.gone.len(), looked.doubtful.len()) {
            (0, 0) => "there",
            (0, 1) => "doubtful",
            (1, 0) => "gone",
            _ => "both",
        };
        assert_eq!(said, expected, "{answers}");
    }

    #[test]
    fn a_type_is_gone_when_its_group_answered_twice_without_it_or_its_crd_was_seen_deleted() {
        for (answers, expected) in [
            ("y", "there"),
            ("n", "doubtful"),
            ("nn", "gone"),
            ("nnn", "gone"),
            ("ny", "there"),
            ("nyn", "doubtful"),
            ("?", "doubtful"),
            ("????", "doubtful"),
            ("n?", "doubtful"),
            ("n?n", "gone"),
            ("D", "gone"),
            ("yD", "gone"),
            ("Dy", "gone"),
            ("DS", "there"),
            ("DSy", "there"),
            ("nnS", "doubtful"),
            ("nnSn", "doubtful"),
        ] {
            check(answers, expected);
        }
    }
}
