//! Detection of running types that have certainly been removed. A type that may still exist keeps its units.
//!
//! A type counts as removed if its group answered twice without it. A group that did not answer gives no information.

/// A type counts as removed when its group has answered this many times in succession without the type.
const ABSENT_TIMES: u32 = 2;

/// Information about a type in the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The server serves the type in some version.
    Yes,
    /// The group of the type answered without the type.
    No,
    /// The group of the type did not answer.
    Unknown,
}

/// Knowledge about a type that may have been removed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Presence {
    absent: u32,
}

impl Presence {
    /// Records an answer of the server.
    pub(crate) fn answered(&mut self, served: Served) {
        self.absent = match served {
            Served::Yes => 0,
            Served::No => ABSENT_TIMES.min(self.absent + 1),
            Served::Unknown => self.absent,
        };
    }

    /// Returns true if the type was certainly removed.
    pub(crate) fn is_gone(self) -> bool {
        self.absent == ABSENT_TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the result of a series of answers: the group answers with the type (`y`), without it (`n`), or not at all (`?`).
    fn check(answers: &str, expected: &str) {
        let mut presence = Presence::default();
        let mut last = Served::Yes;
        for answer in answers.chars() {
            last = match answer {
                'y' => Served::Yes,
                'n' => Served::No,
                _ => Served::Unknown,
            };
            presence.answered(last);
        }
        let said = match (presence.is_gone(), last) {
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
        ] {
            check(answers, expected);
        }
    }
}
