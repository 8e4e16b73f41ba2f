//! Detection of running types that have certainly been removed. A type that may still exist keeps its units.
//!
//! A type counts as removed if its group answered twice without it, or if its CRD was seen deleted. A group that did not
//! answer gives no information.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::TypeName;

/// Number of successive answers of a group without a type after which the type counts as removed.
const ABSENT_TIMES: u32 = 2;

/// Information about a type in the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The server serves it in some version.
    Yes,
    /// The group answered without it.
    No,
    /// The group did not answer.
    Unknown,
}

/// Knowledge about types that may have been removed.
#[derive(Clone, Debug, Default)]
pub struct Presence {
    absent: BTreeMap<TypeName, u32>,
    deleted: BTreeSet<TypeName>,
}

impl Presence {
    /// Records that a CRD was seen deleted.
    pub fn definition_deleted(&mut self, name: TypeName) {
        self.deleted.insert(name);
    }

    /// Records that a CRD was seen.
    pub fn definition_seen(&mut self, name: &TypeName) {
        self.deleted.remove(name);
        self.absent.remove(name);
    }

    /// Returns true if the type's CRD was seen deleted: an answer with the type is outdated.
    pub fn is_deleted(&self, name: &TypeName) -> bool {
        self.deleted.contains(name)
    }

    /// Compares the running types with a new answer.
    pub fn look(&mut self, running: &[TypeName], served: impl Fn(&TypeName) -> Served) {
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
    }

    /// Returns true if a running type was certainly removed.
    pub fn is_gone(&self, name: &TypeName) -> bool {
        self.deleted.contains(name) || self.absent.get(name) == Some(&ABSENT_TIMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> TypeName {
        TypeName { group: "acme.io".into(), plural: "apples".into() }
    }

    /// Checks the result of a series. The group answers with the type (`y`), without it (`n`), or not at all (`?`). The CRD is
    /// deleted (`D`) or seen (`S`).
    fn check(answers: &str, expected: &str) {
        let mut presence = Presence::default();
        let mut last = Served::Yes;
        for answer in answers.chars() {
            last = match answer {
                'D' => {
                    presence.definition_deleted(name());
                    continue;
                }
                'S' => {
                    presence.definition_seen(&name());
                    continue;
                }
                'y' => Served::Yes,
                'n' => Served::No,
                _ => Served::Unknown,
            };
            presence.look(&[name()], |_| last);
        }
        let said = match (presence.is_gone(&name()), last) {
            (true, _) => "gone",
            (false, Served::Yes) => "there",
            (false, Served::No | Served::Unknown) => "doubtful",
        };
        assert_eq!(said, expected, "{answers}");
    }

    #[test]
    fn type_is_gone_after_two_negative_answers() {
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
