//! Comparison of namespaces with a simple reference matcher.

use proptest::prelude::*;

use super::*;

fn parse(patterns: &[&str]) -> Namespaces {
    Namespaces::parse(patterns).unwrap_or_else(|error| panic!("{patterns:?}: {error}"))
}

#[test]
fn globs_match_whole_names_and_exclusion_wins() {
    #[track_caller]
    fn check(patterns: &[&str], shown: &[&str], hidden: &[&str]) {
        let namespaces = parse(patterns);
        for name in shown {
            assert!(namespaces.matches(name), "{patterns:?} {name}");
        }
        for name in hidden {
            assert!(!namespaces.matches(name), "{patterns:?} {name}");
        }
    }
    check(&[], &["a", "kube-system"], &[]);
    check(&["*"], &["a", "kube-system"], &[]);
    check(&["team"], &["team"], &["team-a", "a-team", "tea"]);
    check(&["team-*"], &["team-", "team-a"], &["team", "a-team-a"]);
    check(&["*-sandbox"], &["a-sandbox"], &["sandbox", "a-sandbox-1"]);
    check(&["team-?", "{prod,dev}", "v[0-9]"], &["team-a", "prod", "dev", "v1"], &["team-", "team-ab", "produ", "va"]);
    check(&["!kube-system"], &["a"], &["kube-system"]);
    check(&["!team-a", "team-*"], &["team-b"], &["team-a", "c"]);
    check(&["*", "!kube-*", "!*-sandbox"], &["a", "kube"], &["kube-system", "x-sandbox"]);
}

#[test]
fn impossible_namespace_patterns_are_refused() {
    for pattern in ["", "!", "Team", "team_a", "a/b", "team a", "!!a", "a,b", "ä*", "a\\*"] {
        let error = Namespaces::parse(&[pattern]).unwrap_err();
        assert!(error.0.starts_with(&format!("unexpected namespace {pattern:?}, ")), "{error}");
    }
    for pattern in ["[a", "{a,b", "!{a"] {
        let error = Namespaces::parse(&[pattern]).unwrap_err();
        assert!(error.0.starts_with("invalid glob "), "{error}");
    }
    for patterns in [&["a", "!a"][..], &["a", "b", "!*"], &["!*"], &["team-*", "!team-*"], &["team-a*", "!team-*"]] {
        assert!(parse(patterns).is_nothing(), "{patterns:?}");
    }
    for patterns in [&["a", "!b"][..], &["*", "!a*"], &[], &["team-*", "!team-a*"]] {
        assert!(!parse(patterns).is_nothing(), "{patterns:?}");
    }
}

#[test]
fn server_side_filtering_is_used_where_possible() {
    #[track_caller]
    fn check(patterns: &[&str], all: bool, names: Option<&[&str]>, selector: Option<&str>, filter: bool) {
        let namespaces = parse(patterns);
        assert_eq!(namespaces.is_all(), all, "{patterns:?}");
        assert_eq!(namespaces.names().as_deref(), names, "{patterns:?}");
        assert_eq!(namespaces.field_selector().as_deref(), selector, "{patterns:?}");
        assert_eq!(namespaces.needs_filter(), filter, "{patterns:?}");
    }
    check(&[], true, None, None, false);
    check(&["a", "*"], true, None, None, false);
    check(&["b", "a", "b"], false, Some(&["a", "b"]), None, false);
    check(&["b", "a", "!b"], false, Some(&["a"]), None, false);
    check(&["team-a", "team-b", "!*-b"], false, Some(&["team-a"]), None, false);
    check(&["!b", "!a"], false, None, Some("metadata.namespace!=a,metadata.namespace!=b"), false);
    check(&["*", "a", "!b", "!b"], false, None, Some("metadata.namespace!=b"), false);
    check(&["team-*"], false, None, None, true);
    check(&["*", "!kube-*"], false, None, None, true);
    check(&["*", "!kube-system", "!*-sandbox"], false, None, None, true);
}

#[test]
fn namespaces_are_disjoint_where_certain() {
    #[track_caller]
    fn check(left: &[&str], right: &[&str], expected: bool) {
        let (left, right) = (parse(left), parse(right));
        assert_eq!(left.is_disjoint_from(&right), expected, "{left:?} {right:?}");
        assert_eq!(right.is_disjoint_from(&left), expected, "{right:?} {left:?}");
    }
    check(&["a"], &["b"], true);
    check(&["a", "b"], &["b", "c"], false);
    check(&["a", "b"], &["b", "c", "!b"], true);
    check(&["*"], &["a"], false);
    check(&["*", "!a"], &["a"], true);
    check(&["*", "!team-*"], &["team-a", "team-b"], true);
    check(&["*", "!team-*"], &["team-*"], true);
    check(&["*", "!team-*"], &["team-a-*"], true);
    check(&["*", "!*-dev"], &["team-*-dev"], true);
    check(&["team-*"], &["infra-*"], true);
    check(&["*-prod"], &["*-dev"], true);
    check(&["*-dev"], &["*-a-dev"], false);
    check(&["team-*"], &["team-a-*"], false);
    check(&["team-*"], &["*-dev"], false);
    check(&["team-?"], &["team-ab"], true);
    check(&["team-*", "!team-a"], &["team-a"], true);
    check(&["team-*", "!team-a"], &["*", "!team-*"], true);
    check(&[], &[], false);
}

/// Returns true if a glob of `*`, `?` and literal bytes matches a whole name.
fn naive(glob: &[u8], name: &[u8]) -> bool {
    match glob.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|taken| naive(rest, &name[taken..])),
        Some((b'?', rest)) => !name.is_empty() && naive(rest, &name[1..]),
        Some((byte, rest)) => name.first() == Some(byte) && naive(rest, &name[1..]),
    }
}

fn naive_list(patterns: &[String], name: &str) -> bool {
    let matches = |glob: &str| naive(glob.as_bytes(), name.as_bytes());
    let excluded = patterns.iter().filter_map(|pattern| pattern.strip_prefix('!')).any(matches);
    let only_excludes = patterns.iter().all(|pattern| pattern.starts_with('!'));
    let included = patterns.iter().filter(|pattern| !pattern.starts_with('!')).any(|pattern| matches(pattern));
    (only_excludes || included) && !excluded
}

/// Returns every name of at most four letters of a small alphabet.
fn names() -> Vec<String> {
    let mut names = vec![String::new()];
    let mut from = 0;
    for _ in 0..4 {
        let longer: Vec<String> =
            names[from..].iter().flat_map(|name| ["a", "b", "-"].map(|letter| format!("{name}{letter}"))).collect();
        from = names.len();
        names.extend(longer);
    }
    names.retain(|name| !name.is_empty());
    names
}

fn lists() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("!?[ab*?-]{1,4}", 0..4)
}

proptest! {
    #[test]
    fn model_namespace_list_agrees_with_naive_matcher(patterns in lists()) {
        let namespaces = Namespaces::parse(&patterns).unwrap();
        for name in names() {
            prop_assert_eq!(namespaces.matches(&name), naive_list(&patterns, &name), "{:?} {}", patterns, name);
            prop_assert!(!(namespaces.is_nothing() && namespaces.matches(&name)), "{:?} {}", patterns, name);
        }
    }

    #[test]
    fn model_pushed_down_filter_equals_shown_namespaces(patterns in lists()) {
        let namespaces = Namespaces::parse(&patterns).unwrap();
        let names = names();
        let shown: Vec<&String> = names.iter().filter(|name| namespaces.matches(name)).collect();
        if namespaces.is_all() {
            prop_assert_eq!(shown.len(), names.len());
        }
        if let Some(exactly) = namespaces.names() {
            let exactly: Vec<&str> = exactly.into_iter().filter(|name| names.iter().any(|known| known == name)).collect();
            let mut shown: Vec<&str> = shown.iter().map(|name| name.as_str()).collect();
            shown.sort_unstable();
            prop_assert_eq!(exactly, shown);
        } else if let Some(selector) = namespaces.field_selector() {
            let hidden: Vec<&str> = selector.split(',').filter_map(|term| term.strip_prefix("metadata.namespace!=")).collect();
            for name in &names {
                prop_assert_eq!(!hidden.contains(&name.as_str()), shown.contains(&name), "{:?} {}", patterns, name);
            }
        } else {
            prop_assert_eq!(namespaces.needs_filter(), !namespaces.is_all());
        }
    }

    #[test]
    fn model_disjoint_namespaces_share_no_name(left in lists(), right in lists()) {
        let [left, right] = [left, right].map(|patterns| Namespaces::parse(&patterns).unwrap());
        prop_assert_eq!(left.is_disjoint_from(&right), right.is_disjoint_from(&left));
        if left.is_disjoint_from(&right) {
            for name in names() {
                prop_assert!(!(left.matches(&name) && right.matches(&name)), "{:?} {:?} {}", left, right, name);
            }
        }
        if let (Some(left_names), Some(right_names)) = (left.names(), right.names()) {
            let apart = !left_names.iter().any(|name| right_names.contains(name));
            prop_assert_eq!(left.is_disjoint_from(&right), apart, "{:?} {:?}", left, right);
        }
    }
}

#[test]
fn patterns_without_match_are_found_by_position() {
    let namespaces = parse(&["!kube-*", "shop", "team-*", "!shpo", "stage"]);
    let found = namespaces.without_match(&["kube-system", "shop", "team-a"]);
    assert_eq!(found, [(3, "shpo", true), (4, "stage", true)]);
    assert_eq!(namespaces.without_match(&["stage"]).len(), 4);
    assert_eq!(parse(&["!x"]).without_match(&["a"]), [(0, "x", true)], "only written patterns are reported");
    assert_eq!(parse(&[]).without_match(&[""; 0]), [(0, "*", false)]);
}
