//! Comparison of wildcard subjects, with the rules of the server.

/// Returns true if `wildcard` matches `subject`. If `subject` is a wildcard too, all its subjects must match.
pub(super) fn covers(wildcard: &str, subject: &str) -> bool {
    let (mut wildcard, mut subject) = (wildcard.split('.'), subject.split('.'));
    loop {
        match (wildcard.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}

/// Returns true if at least one subject matches both wildcards.
pub(super) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_cover_and_overlap_like_server() {
        for (wildcard, subject, is_covered, overlaps) in [
            ("k8s.>", "k8s.*.*", true, true),
            ("k8s.*.*", "k8s.>", false, true),
            ("k8s.*", "k8s.*.*", false, false),
            ("k8s.*.apps", "k8s.*.*", false, true),
            ("k8s.>", "k8s", false, false),
            ("other.>", "k8s.*", false, false),
            (">", "k8s.*", true, true),
        ] {
            assert_eq!(covers(wildcard, subject), is_covered, "{wildcard} {subject}");
            assert_eq!(overlap(wildcard, subject), overlaps, "{wildcard} {subject}");
        }
    }
}
