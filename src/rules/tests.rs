//! Tests of the rules as a whole: what every variable says, what is refused at load, what cannot be evaluated.

use std::fmt::Write as _;

use super::*;
use crate::object::{
    ChangedBy,
    packer::{Compression, Packer},
};

const WEB: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"prod-a","name":"web","uid":"u1","resourceVersion":"7","labels":{"app":"web","a/b":"x"},"creationTimestamp":"2026-11-21T06:40:03Z"},"spec":{"replicas":3,"ratio":0.5,"paused":false,"none":null,"big":18446744073709551615,"template":{"spec":{"containers":[{"name":"c","image":"web:1"},{"name":"s","image":"side:1"}]}}},"status":{"phase":"Running","note":"caf\u00e9"}}"#;

fn object(json: &str) -> Object {
    Object::from_json(json.as_bytes()).expect("an object")
}

fn web() -> Object {
    object(WEB)
}

/// Returns the deployment with `from` replaced by `to`.
fn other(from: &str, to: &str) -> Object {
    assert!(WEB.contains(from), "{from}");
    object(&WEB.replace(from, to).replace(r#""resourceVersion":"7""#, r#""resourceVersion":"8""#))
}

fn when(text: &str) -> Rules {
    let options =
        RulesOptions { when: Some(text.to_owned()), cluster: "prod-eu1".to_owned(), ..RulesOptions::default() };
    Rules::compile(options).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn changed(paths: &[&str]) -> Rules {
    let changed = paths.iter().map(|path| FieldPath::parse(path).expect(path)).collect();
    Rules::compile(RulesOptions { changed, ..RulesOptions::default() }).expect("no expression")
}

#[track_caller]
fn added(text: &str, expected: &RuleVerdict) {
    assert_eq!(&when(text).judge(ChangeKind::Added, None, &web()), expected, "{text}");
}

const FALSE: RuleVerdict = RuleVerdict::NotTrue;

#[test]
fn expression_sees_the_object_json() {
    for text in [
        "object.metadata.namespace.startsWith('prod-') && object.kind == 'Deployment'",
        "object.metadata.name == 'web' && object.metadata.uid == 'u1' && object.metadata.resourceVersion == '7'",
        "object.apiVersion == 'apps/v1'",
        "object.spec.replicas == 3 && object.spec.replicas + 1 > 3 && object.spec.replicas % 2 == 1",
        "object.spec.ratio == 0.5 && object.spec.big == 18446744073709551615u && object.spec.none == null",
        "!object.spec.paused",
        "object.metadata.labels['a/b'] == 'x' && 'app' in object.metadata.labels",
        "object.metadata.labels.size() == 2 && size(object.metadata) == 6",
        "has(object.spec.replicas) && !has(object.spec.nothing)",
        "object.spec.template.spec.containers.exists(c, c.image.matches('^side:[0-9]+$'))",
        "object.spec.template.spec.containers.all(c, c.name.size() == 1)",
        "object.spec.template.spec.containers.map(c, c.image) == ['web:1', 'side:1']",
        "object.spec.template.spec.containers[1].image == 'side:1'",
        "object.status.phase in ['Running', 'Pending']",
        "object.status.note == 'café'",
        "timestamp(object.metadata.creationTimestamp) < timestamp('2027-01-01T00:00:00Z')",
        "object.metadata.labels.?tier.orValue('none') == 'none'",
        "object.status.phase.lowerAscii() == 'running' && math.greatest(1, object.spec.replicas) == 3",
        "object == object && dyn(object).kind == 'Deployment'",
        "[object].exists(object, object.kind == 'Deployment')",
        "matches(object.metadata.name, object.metadata.name)",
    ] {
        added(text, &RuleVerdict::Match);
    }
    added("object.spec.replicas > 3", &FALSE);
    added("object.metadata.name.matches('^b')", &FALSE);
}

#[test]
fn changed_by_is_null_where_unknown() {
    let told = web().with_changed_by(&ChangedBy {
        manager: "kubelet".into(),
        operation: "Update".into(),
        time: "2026-11-21T06:40:03Z".into(),
        subresource: "status".into(),
    });
    for text in [
        "changed_by.manager == 'kubelet' && changed_by.operation == 'Update' && changed_by.subresource == 'status'",
        "changed_by != null && timestamp(changed_by.time) < timestamp('2027-01-01T00:00:00Z')",
        "changed_by.size() == 4",
    ] {
        assert_eq!(when(text).judge(ChangeKind::Updated, Some(&web()), &told), RuleVerdict::Match, "{text}");
        assert_ne!(
            when(text).judge(ChangeKind::Updated, Some(&told), &web()),
            RuleVerdict::Match,
            "of the old state: {text}"
        );
    }
    assert_eq!(when("changed_by == null").judge(ChangeKind::Deleted, None, &told), RuleVerdict::Match, "not recorded");
    added("changed_by == null && type == 'added'", &RuleVerdict::Match);
    added("changed_by != null && changed_by.manager == 'kubelet'", &FALSE);
    assert!(matches!(when("changed_by.manager == 'x'").judge(ChangeKind::Added, None, &web()), RuleVerdict::Error(_)));
}

#[test]
fn packed_object_is_judged_like_plain_one() {
    let (zstd, rules) =
        (Packer::new(Compression::Zstd), when("object.spec.replicas == 3 && object.metadata.name == 'web'"));
    let packed = zstd.pack(&std::sync::Arc::new(web()));
    assert_eq!(rules.judge(ChangeKind::Added, None, &packed), RuleVerdict::Match);
}

#[test]
fn expression_sees_type_and_cluster() {
    let judge = |text: &str, kind| when(text).judge(kind, Some(&web()), &web());
    for (kind, name) in [
        (ChangeKind::Added, "added"),
        (ChangeKind::Updated, "updated"),
        (ChangeKind::Unchanged, "updated"),
        (ChangeKind::Deleted, "deleted"),
        (ChangeKind::Removed, "removed"),
    ] {
        assert_eq!(judge(&format!("type == '{name}' && cluster == 'prod-eu1'"), kind), RuleVerdict::Match, "{name}");
        assert_eq!(judge(&format!("type != '{name}'"), kind), FALSE, "{name}");
    }
    assert_eq!(
        judge("type == 'synced'", ChangeKind::Synced),
        RuleVerdict::Match,
        "it has no object, and is not judged"
    );
    assert_eq!(judge("type(object.spec.replicas) == int", ChangeKind::Added), RuleVerdict::Match);
}

#[test]
fn old_is_previous_object_of_updates_only() {
    let (old, new) = (web(), other(r#""replicas":3"#, r#""replicas":5"#));
    let judge = |text: &str, kind, old| when(text).judge(kind, old, &new);
    let grown = "type == 'updated' && object.spec.replicas > old.spec.replicas";
    assert_eq!(judge(grown, ChangeKind::Updated, Some(&old)), RuleVerdict::Match);
    assert_eq!(judge(grown, ChangeKind::Updated, Some(&new)), FALSE);
    assert_eq!(judge("old.metadata.resourceVersion == '7'", ChangeKind::Updated, Some(&old)), RuleVerdict::Match);
    for kind in [ChangeKind::Added, ChangeKind::Deleted, ChangeKind::Removed] {
        assert_eq!(judge("old == null && changes == []", kind, None), RuleVerdict::Match);
        assert_eq!(judge(grown, kind, None), FALSE);
    }
    let same = "old == object && old.metadata.name == 'web' && changes.size() == 0";
    assert_eq!(judge(same, ChangeKind::Unchanged, None), RuleVerdict::Match, "a resync has the object as its old");
}

#[test]
fn changes_are_the_differing_paths() {
    let new = other(r#""image":"side:1""#, r#""image":"side:2""#);
    let judge = |text: &str| when(text).judge(ChangeKind::Updated, Some(&web()), &new);
    assert_eq!(judge("'spec.template.spec.containers[1].image' in changes"), RuleVerdict::Match);
    assert_eq!(judge("changes.exists(c, c.startsWith('spec.template.'))"), RuleVerdict::Match);
    assert_eq!(
        judge("changes == ['metadata.resourceVersion', 'spec.template.spec.containers[1].image']"),
        RuleVerdict::Match
    );
    assert_eq!(judge("changes.exists(c, c.startsWith('status.'))"), FALSE);
}

#[test]
fn unknown_old_matches_undecidable_expressions() {
    let judge = |text: &str| when(text).judge(ChangeKind::Updated, None, &web());
    for undecided in
        ["old.spec.replicas != 3", "old == null", "'spec' in changes", "has(old.spec)", "old.metadata.name == 'x'"]
    {
        assert_eq!(judge(undecided), RuleVerdict::Match, "{undecided}");
    }
    assert_eq!(judge("object.metadata.name == 'web' && old.spec.replicas == 1"), RuleVerdict::Match);
    assert_eq!(judge("object.metadata.name == 'db' && old.spec.replicas == 1"), FALSE);
    assert_eq!(judge("old.spec.replicas == 1 && object.metadata.name == 'db'"), FALSE);
    assert_eq!(judge("object.metadata.name == 'db'"), FALSE);
    assert_eq!(changed(&["spec"]).judge(ChangeKind::Updated, None, &web()), RuleVerdict::Match);
}

#[test]
fn changed_rule_judges_only_updates() {
    let (rules, old, status) = (changed(&["spec", "metadata.labels"]), web(), other("Running", "Failed"));
    let judge = |kind, old: Option<&Object>, new: &Object| rules.judge(kind, old, new);
    let unchanged = RuleVerdict::NotChanged;
    assert_eq!(judge(ChangeKind::Updated, Some(&old), &status), unchanged);
    assert_eq!(judge(ChangeKind::Updated, Some(&old), &other(r#""app":"web""#, r#""app":"db""#)), RuleVerdict::Match);
    assert_eq!(judge(ChangeKind::Updated, Some(&old), &other(":3", ":4")), RuleVerdict::Match);
    assert_eq!(judge(ChangeKind::Unchanged, None, &old), unchanged, "a resync changes nothing");
    for kind in [ChangeKind::Added, ChangeKind::Deleted, ChangeKind::Removed] {
        assert_eq!(judge(kind, None, &status), RuleVerdict::Match);
    }
}

/// An update that changes none of the fields is not sent, even if `when` is true for it.
#[test]
fn both_rules_must_match() {
    let options = RulesOptions {
        changed: vec![FieldPath::parse("spec.template.spec.containers[*].image").expect("a path")],
        when: Some("object.metadata.namespace.startsWith('prod-')".to_owned()),
        ..RulesOptions::default()
    };
    let rules = Rules::compile(options).expect("good rules");
    let judge = |old: &Object, new: &Object| rules.judge(ChangeKind::Updated, Some(old), new);
    let (old, image) = (web(), other("web:1", "web:2"));
    assert_eq!(judge(&old, &image), RuleVerdict::Match);
    assert_eq!(judge(&old, &other(":3", ":4")), RuleVerdict::NotChanged);
    let elsewhere = WEB.replace("prod-a", "dev").replace("web:1", "web:2");
    assert_eq!(judge(&old, &object(&elsewhere)), FALSE);
}

#[test]
fn mismatch_is_explained_in_words() {
    let explain = |rules: &Rules, old: &Object, new: &Object| rules.explain(ChangeKind::Updated, Some(old), new);
    let (rules, old) =
        (changed(&["spec"]), object(&WEB.replace(r#""resourceVersion":"7""#, r#""resourceVersion":"8""#)));
    let status = other("Running", "Failed");
    assert_eq!(explain(&rules, &old, &status).as_deref(), Some("`changed`: only status.phase differs"));
    let both = object(&WEB.replace("Running", "Failed"));
    assert_eq!(explain(&rules, &old, &both), explain(&rules, &old, &status), "the version is not a relevant change");
    let many = |to: u32| {
        let members: Vec<_> = (1..=to).map(|i| format!("{i}\",\"p{i}\":\"")).collect();
        object(&WEB.replace("Running", &members.concat()))
    };
    let named = |to: u32| explain(&rules, &old, &many(to)).unwrap();
    assert!(
        named(5).ends_with("status.p4 and status.p5 differ") && named(9).ends_with(" and 5 more paths differ"),
        "{}",
        named(9)
    );
    assert_eq!(explain(&rules, &old, &other(":3", ":4")), None);
    assert_eq!(rules.explain(ChangeKind::Unchanged, None, &old).as_deref(), Some("`changed`: nothing differs"));
    assert_eq!(explain(&when(" 1 > 2 "), &old, &old).as_deref(), Some("`when` is false: 1 > 2"));
    assert_eq!(explain(&when("\n1 > 2\n  && 3 > 2\n"), &old, &old).as_deref(), Some("`when` is false: 1 > 2 && 3 > 2"));
    assert_eq!(explain(&when("object.nope == 1"), &old, &old).as_deref(), Some("`when`: No such key: nope"));
}

#[test]
fn failing_expression_does_not_match_and_explains_why() {
    let said = |text: &str| match when(text).judge(ChangeKind::Added, None, &web()) {
        RuleVerdict::Error(error) => format!("{text}\n  {error}\n"),
        other => panic!("{text}: {other:?}"),
    };
    let all = [
        "object.spec.nothing == 1",
        "object.spec.nothing.more == 1",
        "object.metadata.name > 1",
        "old.spec.replicas == 1",
        "object.spec.replicas / 0 == 1",
        "object.spec.replicas",
        "object.spec.template.spec.containers[7].image == 'x'",
        "timestamp(object.metadata.name) < timestamp('2027-01-01T00:00:00Z')",
        "'x'.matches(object.metadata.name + '(')",
        "9223372036854775807 + object.spec.replicas > 0",
    ];
    insta::assert_snapshot!(all.map(said).concat());
}

#[test]
fn undecodable_body_is_error() {
    let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"a":tru,"b":1}}"#;
    let object = Object::from_json(json).expect("skipped parts are not checked");
    let verdict = when("object.spec.b == 1 && object.spec.a").judge(ChangeKind::Added, None, &object);
    assert!(matches!(&verdict, RuleVerdict::Error(error) if error.contains("malformed")), "{verdict:?}");
}

#[test]
fn unbounded_expression_is_refused() {
    let problem = |text: &str| {
        let options = RulesOptions { when: Some(text.to_owned()), ..RulesOptions::default() };
        Rules::compile(options).expect_err("the expression is refused").problem
    };
    let rows = [("1", "-1", " == 0"), ("has(object", ".a", ")"), ("", "false?false:", "true"), ("1", " in 1", "")];
    let rows = rows.into_iter().chain([("", "!", "true"), ("", "-", "1 == 1"), ("", "(", "true"), ("", "[", "true")]);
    for (begin, level, end) in rows {
        for levels in [390, 790, 3_900] {
            let text = format!("{begin}{}{end}", level.repeat(levels));
            // like on a thread of the server
            let read = || Rules::compile(RulesOptions { when: Some(text), ..RulesOptions::default() }).map(drop);
            let compiled =
                std::thread::scope(|scope| scope.spawn(read).join().expect("the thread does not overflow its stack"));
            let is_short = compiled.is_ok(); // two signs that cancel each other are dropped
            assert!(!is_short || level.len() == 1, "{begin}{level}");
        }
    }
    assert!(problem(&format!("object.kind == '{}'", "x".repeat(5_000))).contains("4096 at most"));
    assert!(problem(&format!("object.spec{} == 1", ".a".repeat(200))).contains("nested too deeply"));
    assert!(problem(&format!("1{} == 0", "-1".repeat(500))).contains("400 at most"));
    assert!(
        problem(&format!("{}true{}", "(".repeat(200), ")".repeat(200))).starts_with("the expression is nested too")
    );
    let thrice = "object.spec.a.all(a, object.spec.a.all(b, object.spec.a.all(c, a == b && b == c)))";
    assert_eq!(problem(thrice), "macros are nested too deeply, expected a depth of 2 at most");
    assert!(problem("lists.range(1000000).size() > 0").contains("not offered"));
    assert!(problem("object.kind.replace('a', 'aa') == 'b'").contains("not offered"));
    let grows = |layer: &str, layers: usize| (0..layers).fold("['x']".to_owned(), |list, _| format!("{list}{layer}"));
    assert!(problem(&format!("{} == []", grows(".map(a, [a, a, a, a])", 20))).contains("expected 3 at most"));
    assert!(problem(&format!("{} == []", grows(".map(a, a + a)", 2))).contains("`+` is not offered"));
    assert!(problem("object.spec.a.map(a, object.spec.b.lowerAscii()) == []").contains("within `map`"));
    assert!(problem("object.spec.a.map(a, a.b).join(',') == ''").contains("for its result"));
    assert!(problem("object.spec.a.exists(a, a.join(',') == '')").contains("within a macro"));
    when("object.spec.args.join(' ').contains('-v') && object.spec.a.exists(a, a.b.lowerAscii() == 'x')");
    when("object.spec.a.filter(a, a.b > 1).map(a, a.b * 2).exists(a, a == 4)");
    // a long row of operators has no depth
    when(&format!("true{}", "||true".repeat(300)));
    when("object.spec.a.all(a, object.spec.a.exists(b, a == b)) && object.spec.a.map(a, a.b).exists(b, b == 1)");
}

#[test]
fn expression_mistakes_are_reported_at_load() {
    let mut said = String::new();
    for text in [
        "",
        "object.spec.replicas >",
        "objct.kind == 'Pod'",
        "object.kind == kind",
        "object.metadata.name.startWith('a')",
        "exists(object)",
        "maths.abs(1) == 1",
        "object.kind == 'Pod' &&\n  object.metadata.name.matches('(')",
        "object.metadata.name.matches()",
        "'object'",
        "1 + 1",
        "object.metadata.labels.size()",
        "type == 'added' ? 'yes' : 'no'",
        "object",
        "object.metadata.name",
        "changes",
        "object.spec.containers.map(c, c.image)[0] == i",
        "Pod{name: 'a'} == object",
        "object.kind == 'Pod",
        "object.kind = 'Pod'",
    ] {
        let options = RulesOptions { when: Some(text.to_owned()), ..RulesOptions::default() };
        let error = Rules::compile(options).expect_err(text);
        writeln!(said, "{text}\n  {error}").expect("writing to a string succeeds");
    }
    insta::assert_snapshot!(said);
}

#[test]
fn any_text_is_expression_or_error() {
    for text in
        ["((((", "a.b.c.d", "[1,2", "{'a':", "\"", "'\\", "object..x", "has(1)", "exists(1,2)", "\u{0}", "é == é", "?:"]
    {
        let options = RulesOptions { when: Some(text.to_owned()), ..RulesOptions::default() };
        assert!(Rules::compile(options).is_err(), "{text}");
    }
    let deep = format!("{}true{}", "(".repeat(5_000), ")".repeat(5_000));
    assert!(Rules::compile(RulesOptions { when: Some(deep), ..RulesOptions::default() }).is_err(), "it is too deep");
}

#[test]
fn empty_rules_match_everything() {
    let rules = Rules::compile(RulesOptions::default()).expect("nothing");
    assert!(rules.is_empty() && !when("true").is_empty() && !changed(&["spec"]).is_empty());
    assert_eq!(rules.judge(ChangeKind::Updated, Some(&web()), &web()), RuleVerdict::Match);
}

#[test]
fn condition_sees_object_and_cluster() {
    let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"db-credentials","namespace":"n"},"data":{"a":"1"}}"#;
    let config_map = object(json);
    let judge = |text: &str| Rules::condition(text, "prod").unwrap().judge(ChangeKind::Added, None, &config_map);
    assert_eq!(judge("object.metadata.name.endsWith('-credentials')"), RuleVerdict::Match);
    assert_eq!(judge("cluster == 'test' || object.data.a == '2'"), FALSE);
    assert!(matches!(judge("object.data.b == '2'"), RuleVerdict::Error(_)));
}

#[test]
fn condition_rejects_variables_of_changes() {
    let refused = |text: &str| Rules::condition(text, "prod").unwrap_err().to_string();
    for variable in ["old", "type", "changes"] {
        let expected = format!("line 1, column 1: unknown variable `{variable}`, expected one of object, cluster");
        assert_eq!(refused(&format!("{variable} == object")), expected);
    }
    assert_eq!(
        refused("true &&\n  objct.kind == 'Pod'"),
        "line 2, column 3: unknown variable `objct`, expected one of object, cluster; did you mean `object`?"
    );
}

#[test]
fn has_with_key_in_brackets_names_alternative() {
    let problem = |text: &str| {
        let options = RulesOptions { when: Some(text.to_owned()), ..RulesOptions::default() };
        Rules::compile(options).expect_err("the expression is refused").problem
    };
    let expected = "`has` takes no key in brackets; write `\"a/b\" in object.metadata.labels`";
    assert_eq!(problem("true && has( object.metadata.labels[\"a/b\"] )"), expected);
    assert_eq!(problem("has(1)"), "`has` takes a field, such as `has(object.spec.x)`");
    let in_map = RulesOptions { when: Some("'a/b' in object.metadata.labels".to_owned()), ..RulesOptions::default() };
    assert!(Rules::compile(in_map).is_ok());
}
