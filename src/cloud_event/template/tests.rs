//! Output of templates for events, and errors of invalid templates.

use serde_json::json;

use super::super::tests::*;
use super::*;
use crate::{
    change::{Cause, Change},
    journal::testing::synced,
};

fn update() -> Event {
    let pod = |json: &str| object("default", "web", "5f1c", json);
    let old = pod(r#"{"kind":"Pod","metadata":{"name":"web","labels":{"b":"1","a":"<&'>"}},"spec":{"image":"web:1"}}"#);
    let new = pod(r#"{"kind":"Pod","metadata":{"name":"web","labels":{"b":"2","c":null}},"spec":{"image":"web:2"}}"#);
    event(unit("", "pods", "Pod"), Change::Updated { old, object: new, cause: Cause::Downtime })
}

fn render(text: &str, event: &Event) -> Result<String, FormatError> {
    Template::compile(text).unwrap().render(&encoder(), event)
}

#[track_caller]
fn fails(text: &str, event: &Event) -> TemplateError {
    match render(text, event) {
        Err(FormatError::Template(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn template_has_ten_names_and_escapes_nothing() {
    let text = "{{ type }} {{ cause }} {{ cluster }} {{ id }} {{ subject }} {{ time }} \
                {{ object.spec.image }} {{ old.metadata.labels.a }} {{ changes | length }} {{ changed_by }}";
    let expected = "updated downtime prod-eu1 5f1c.7 /api/v1/namespaces/default/pods/web \
                    2026-11-21T06:40:03.123456Z web:2 <&'> 4 None";
    assert_eq!(render(text, &update()).unwrap(), expected);
    assert_eq!(Template::compile(text).unwrap().names.len(), VARIABLES.len());
}

/// Each row of the table in docs/handlers/templates.md renders as documented, and each filter, test and function of its lists exists.
#[test]
fn documented_examples_render_as_documented() {
    let page = include_str!("../../../docs/handlers/templates.md");
    let json = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let deployment = |json: &str| object("prod-eu", "web", "5f1c", json);
    let old = deployment(&json.replace("\"replicas\": 3", "\"replicas\": 2"));
    let writer = ChangedBy { manager: "kubectl-edit".into(), ..ChangedBy::default() };
    let new = deployment(json).with_changed_by(&writer);
    let event =
        event(unit("apps", "deployments", "Deployment"), Change::Updated { old, object: new, cause: Cause::Watch });
    let rows: Vec<_> =
        page.lines().filter_map(|line| line.strip_prefix("| `{")?.strip_suffix("` |")?.split_once("` | `")).collect();
    assert!(rows.len() > 20, "{}", rows.len());
    for (text, expected) in rows {
        let text = format!("{{{}", text.replace("\\|", "|"));
        assert_eq!(
            render(&text, &event).unwrap_or_else(|error| panic!("{text}: {error}")).trim_end(),
            expected,
            "{text}"
        );
    }
    for (list, before) in [("Filters:", "object | "), ("Tests,", "object is "), ("Functions:", "")] {
        let list = page.split("\n\n").find(|paragraph| paragraph.starts_with(list)).unwrap();
        let names = list.split('`').skip(1).step_by(2).filter(|name| !name.starts_with("is"));
        for name in names {
            let template = Template::compile(&format!("{{{{ {before}{name} }}}}")).unwrap();
            assert_eq!((template.mistakes().len(), template.unknown_names().count()), (0, 0), "{name}");
        }
    }
}

#[test]
fn tojson_writes_json_and_marks_absent_values() {
    let text = "{{ changes | tojson }}";
    let changes: Json = serde_json::from_str(&render(text, &update()).unwrap()).unwrap();
    let expected = json!([
        { "path": "metadata.labels.b", "old": "1", "new": "2" },
        { "path": "metadata.labels.a", "old": "<&'>", "new": null },
        { "path": "metadata.labels.c", "old": null, "new": null },
        { "path": "spec.image", "old": "web:1", "new": "web:2" },
    ]);
    assert_eq!(changes, expected);
    let text = "{% for change in changes %}{{ change.path }}: {{ change.old }} → {{ change.new }};{% endfor %}";
    assert!(render(text, &update()).unwrap().contains("metadata.labels.a: <&'> → None;"));
}

#[test]
fn template_of_reference_configuration_renders() {
    let text = "{ \"text\": \"{{ cluster }}: {{ object.kind }} {{ object.metadata.namespace }}/{{ object.metadata.name }}\", \
                \"changes\": {{ changes | tojson }} }\n";
    let pod = |json: &str| object("prod-a", "web", "5f1c", json);
    let old = pod(r#"{"kind":"Deployment","metadata":{"namespace":"prod-a","name":"web"},"spec":{"image":"web:1"}}"#);
    let new = pod(r#"{"kind":"Deployment","metadata":{"namespace":"prod-a","name":"web"},"spec":{"image":"web:2"}}"#);
    let event =
        event(unit("apps", "deployments", "Deployment"), Change::Updated { old, object: new, cause: Cause::Watch });
    let text: Json = serde_json::from_str(&render(text, &event).unwrap()).unwrap();
    let changes = json!([{ "path": "spec.image", "old": "web:1", "new": "web:2" }]);
    assert_eq!(text, json!({ "text": "prod-eu1: Deployment prod-a/web", "changes": changes }));
}

#[test]
fn missing_object_field_is_error_with_position() {
    let end = event(unit("", "pods", "Pod"), synced(3));
    assert_eq!(render("{{ object }} {{ old }} {{ changes }}", &end).unwrap(), "None None []");
    for (text, event) in [("a\n {{ object.nope }}", &update()), ("é\n {{ object.nope }}", &end)] {
        let error = fails(text, event);
        assert_eq!(error.kind, TemplateErrorKind::Undefined);
        assert_eq!(error.place.map(|(line, _)| line), Some(2), "{error}");
    }
    assert_eq!(fails("{{ object + 1 }}", &update()).kind, TemplateErrorKind::Unfit);
    assert_eq!(render("{{ object.nope | default('-') }}", &update()).unwrap(), "-");
}

#[test]
fn template_names_changed_by_when_known() {
    let Change::Updated { old, object, cause } = update().record.change else { unreachable!("it is one") };
    let object = object_of(&object);
    let gone = event(unit("", "pods", "Pod"), Change::Deleted { object: object.clone(), tombstone: false, cause });
    let told = event(unit("", "pods", "Pod"), Change::Updated { old, object, cause });
    let text = "{{ changed_by.manager | default('somebody') }}{% if changed_by.subresource %} ({{ changed_by.subresource }}){% endif %}";
    assert_eq!(render(text, &told).unwrap(), "kubelet (status)");
    assert_eq!(fails(text, &update()).kind, TemplateErrorKind::Undefined);
    let text = "{{ changed_by.manager if changed_by else 'somebody' }} {{ changed_by | tojson }}";
    let rendered = render(text, &told).unwrap();
    let json =
        json!({ "manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-11-21T06:40:03Z" });
    assert_eq!(serde_json::from_str::<Json>(rendered.strip_prefix("kubelet ").unwrap()).unwrap(), json);
    assert_eq!(render(text, &update()).unwrap(), "somebody null");
    assert_eq!(render(text, &gone).unwrap(), "somebody null", "the server does not record who deletes");
    assert_eq!(render(text, &event(unit("", "pods", "Pod"), synced(3))).unwrap(), "somebody null");
    let tried = Template::compile("{{ changed_by.manager }}").unwrap();
    assert_eq!(tried.try_out(ChangeKind::Added, true).unwrap(), "0");
    for kind in [ChangeKind::Synced, ChangeKind::Deleted, ChangeKind::Removed] {
        assert_eq!(tried.try_out(kind, true).unwrap_err().kind, TemplateErrorKind::Undefined, "{kind:?}");
    }
}

fn object_of(object: &Object) -> Object {
    let made = Object::assemble(object.identity(), &[&object.json()]);
    made.with_changed_by(&ChangedBy {
        manager: "kubelet".into(),
        operation: "Update".into(),
        time: "2026-11-21T06:40:03Z".into(),
        subresource: "status".into(),
    })
}

#[test]
fn template_error_has_line_and_column() {
    let error = Template::compile("{ \"é\": {{ object.kind }},\n  \"b\": {{ object. }} }").unwrap_err();
    assert_eq!(error.kind, TemplateErrorKind::Wrong);
    assert_eq!(error.place, Some((2, 19)), "{error}");
    assert!(error.to_string().starts_with("line 2, column 19: syntax error: "), "{error}");
    let template = Template::compile("{{ objct.kind }} {% for x in range(2) %}{{ x }}{% endfor %} {{ typ }}").unwrap();
    assert_eq!(template.unknown_names().collect::<Vec<_>>(), ["objct", "typ"]);
}

#[test]
fn template_trial_accepts_any_object_field() {
    let try_out = |text: &str, kind, truth| Template::compile(text).unwrap().try_out(kind, truth);
    let loops = "{% for c in object.spec.containers %}{{ c.image }};{% endfor %}{% if object.x %}yes{% endif %}";
    assert_eq!(try_out(loops, ChangeKind::Added, true).unwrap(), "0;yes");
    assert_eq!(try_out(loops, ChangeKind::Added, false).unwrap(), "");
    let json = "{\"a\": {{ object.spec | tojson }}, \"b\": {{ object.spec.replicas }}, \"c\": \"{{ old.x }}\"}";
    let text = try_out(json, ChangeKind::Updated, true).unwrap();
    assert!(serde_json::from_str::<Json>(&text).is_ok(), "{text}");
    assert_eq!(try_out(json, ChangeKind::Added, true).unwrap_err().kind, TemplateErrorKind::Undefined);
    let unknown = "{% if not object.x %}{{ object.y | nope }}{% endif %}";
    assert!(try_out(unknown, ChangeKind::Added, true).is_ok());
    assert_eq!(try_out(unknown, ChangeKind::Added, false).unwrap_err().kind, TemplateErrorKind::Wrong);
}

#[track_caller]
fn mistakes(text: &str) -> Vec<String> {
    Template::compile(text).unwrap().mistakes().iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_methods_and_filters_are_found_in_all_branches() {
    for (text, expected) in [
        (
            "{{ object.metadata.labels.items() }}",
            "line 1, column 26: unknown method `.items()`: values have filters instead of methods; write `x | items`",
        ),
        ("{{ object.metadata.labels.get('a') }}", "`x.name | default(\"\")`"),
        ("a\n{{ object.metadata.name.split('-') }}", "line 2, column 24: unknown method `.split()`"),
        ("{{ cluster.upper() }}", "write `x | upper`"),
        ("{{ object.metadata.name.upper() }}", "unknown method `.upper()`"),
        ("{{ 'a'.frobnicate() }}", "unknown method `.frobnicate()`: values have filters instead of methods"),
        ("{% for k in object.data %}{{ loop.items() }}{% endfor %}", "unknown method `.items()`"),
        ("{% set name = object.metadata.name %}{% if type == 'x' %}{{ name.upper() }}{% endif %}", "`.upper()`"),
        ("{% if type == 'x' %}{% elif type == 'y' %}{{ object.x | nope }}{% endif %}", "unknown filter `nope`"),
        ("{{ object.x | uppercase }}", "unknown filter `uppercase`; did you mean `upper`?"),
        ("{{ object.x is endswith('a') }}", "unknown test `endswith`; did you mean `endingwith`?"),
        ("{{ (object.x is nope) if type == 'x' }}", "unknown test `nope`"),
        ("{{ object.x | map('nope') | list }}", "unknown filter `nope`"),
        ("{{ object.x | selectattr('a', 'nope') | list }}", "unknown test `nope`"),
        ("{% macro m(x) %}{{ x.upper() }}{% endmacro %}", "`.upper()`"),
        ("{{ object() }}", "`object` is a value, not a function"),
        ("{{ self.x() }}", "unknown method `.x()`"),
        ("{{ {'a': [cluster.lower()]} | tojson }}", "`.lower()`"),
    ] {
        let found = mistakes(text);
        assert!(matches!(found.as_slice(), [one] if one.contains(expected)), "{text}: {found:?}");
    }
    assert_eq!(mistakes("{{ cluster.upper() }}{{ id.lower() }}").len(), 2);
    for suggested in check::FILTERS.map(|name| format!("{{{{ object.x | {name} }}}}")) {
        assert_eq!(mistakes(&suggested), [""; 0], "{suggested}");
    }
    for suggested in check::TESTS.map(|name| format!("{{{{ object.x is {name} }}}}")) {
        assert_eq!(mistakes(&suggested), [""; 0], "{suggested}");
    }
    for statement in ["include 'template'", "extends 'x'", "block a", "from 'x' import a", "import 'x' as x"] {
        let error = Template::compile(&format!("a{{%- {statement} %}}")).unwrap_err();
        assert!(error.to_string().contains("unknown statement"), "{error}");
    }
    for fine in [
        "{% for k, v in object.metadata.labels | items %}{{ loop.cycle('a', 'b') }}{{ loop.changed(k) }}{{ v }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ range(3) | list }}",
        "{% macro hi(x) %}{{ x | upper }}{% endmacro %}{% set all = {'hi': hi} %}{{ hi('a') }}{{ all.hi('b') }}",
        "{% for x in object.a recursive %}{{ loop(x.a) }}{% endfor %}{{ object.a | selectattr('b', 'eq', 1) | map('upper') }}",
        "{{ object.a | map(attribute='b') | join(',') if object.a is defined else 'x' }}",
    ] {
        assert_eq!(mistakes(fine), [""; 0], "{fine}");
    }
}

#[test]
fn trial_is_as_strict_as_real_values() {
    for (text, expected) in [
        ("{% set call = object.x %}{{ call() }}", "not a function"),
        ("{{ object.x | replace('a') }}", "missing argument"),
        ("{{ object.x | upper(1, 2) }}", "too many arguments"),
        ("{% for name in object.x %}{% set all = {'f': name} %}{{ all.g() }}{% endfor %}", "unknown method"),
    ] {
        let template = Template::compile(text).unwrap();
        assert_eq!(template.mistakes(), []);
        let tried = template.try_out(ChangeKind::Added, true).unwrap_err();
        assert_eq!(tried.kind, TemplateErrorKind::Wrong, "{text}: {tried}");
        assert!(tried.to_string().contains(expected), "{text}: {tried}");
    }
}

/// Forms that nest without a limit in the parser of the template language, each with this many levels.
fn nested(levels: usize) -> Vec<String> {
    let chain = |before: &str, middle: &str, after: &str| format!("{{{{ {before}{}{after} }}}}", middle.repeat(levels));
    vec![
        chain("", "not ", "1"),
        chain("", "- ", "1"),
        chain("object", ".a", ""),
        chain("object", "[0]", ""),
        chain("object", "()", ""),
        chain("object", "|string", ""),
        chain("object", " is true", ""),
        chain("1", "+1", ""),
        chain("1", "**1", ""),
        chain("1", " ~ 1", ""),
        chain("1", " or 1", ""),
        chain("1", " in [1]", ""),
        chain("1 if 1 ", "else 1 if 1 ", ""),
        chain("[1, ", "not ", "1]"),
        format!("{{% set {}a{} = 1 %}}", "(".repeat(levels), ")".repeat(levels)),
        format!("{{% set a{} = 1 %}}", ".a".repeat(levels)),
        format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(levels)),
        format!("{}{}", "{% if 1 %}".repeat(levels), "{% endif %}".repeat(levels)),
        format!("{}{}", "{% for a in [1] %}".repeat(levels), "{% endfor %}".repeat(levels)),
        format!("{{{{ {}1{} }}}}", "[".repeat(levels), "]".repeat(levels)),
        format!("{{{{ {}1{} }}}}", "(".repeat(levels), ")".repeat(levels)),
        format!("{{{{ {}1{} }}}}", "{1: ".repeat(levels), "} ".repeat(levels)),
    ]
}

#[test]
fn deep_nesting_is_error_instead_of_stack_overflow() {
    let check = || {
        for text in nested(50_000) {
            let error = Template::compile(&text).unwrap_err();
            assert_eq!(error.kind, TemplateErrorKind::Wrong);
            assert!(error.place.is_some() && error.to_string().len() < 300, "{error}");
        }
        // What is accepted fits on the stack: compiled, tried and dropped.
        for text in nested(tokens::LEVELS_MAX / 2).into_iter().chain(nested(tokens::LEVELS_MAX - 5)) {
            if let Ok(template) = Template::compile(&text) {
                drop(template.try_out(ChangeKind::Added, true));
            }
        }
        for text in nested(30) {
            assert!(Template::compile(&text).is_ok(), "{text}");
        }
        let flat = format!("{{{{ [{}] }}}}{}", "a.b.c, ".repeat(500), "{% if type %}{{ a.b }}{% endif %}".repeat(500));
        assert!(Template::compile(&flat).is_ok());
    };
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(check).unwrap();
    thread.join().unwrap();
}

#[test]
fn endless_loops_and_huge_outputs_are_errors() {
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    let huge = "{% set a = 'x' * 1000000 %}{% for i in range(1000) %}{{ a }}{% endfor %}";
    let long_range = "{{ range(100000) | list | length }}";
    for (text, expected) in [
        (endless, "takes more than 1000000 steps"),
        (huge, "the output is larger than 64MiB"),
        (long_range, "`range` has more than 10000 elements"),
    ] {
        let tried = Template::compile(text).unwrap().try_out(ChangeKind::Added, true).unwrap_err();
        assert!(tried.to_string().contains(expected), "{tried}");
        assert!(fails(text, &update()).to_string().contains(expected));
    }
    let steps = Template::compile(endless).unwrap().try_out(ChangeKind::Added, true).unwrap_err();
    assert_eq!((steps.kind, steps.place.map(|(line, _)| line)), (TemplateErrorKind::Wrong, Some(1)));
    let long = "{% for a in range(100) %}{% for b in range(1000) %}{{ b }}{% endfor %}{% endfor %}";
    assert!(Template::compile(long).unwrap().try_out(ChangeKind::Added, true).is_ok());
    assert!(fails("{% for a in [1] %}{{ loop.cycle() }}{% endfor %}", &update()).to_string().contains("panicked"));
}

#[test]
fn template_uses_are_paths_with_elements_and_comparisons() {
    for (text, expected) in [
        ("{{ object.a['b/c'].d | default(1) }}", "object.a object.a.b/c object.a.b/c.d"),
        ("{% for c in object.a %}{{ c.b }}{% endfor %}{{ c.d }}", "object.a object.a.*.b"),
        ("{% for k, v in object.a | items %}{{ k.x }}{{ v.y }}{% endfor %}", "object.a object.a.*.y"),
        ("{% set a = object.a %}{{ a.b }}{% set a = 1 %}{{ a.c }}", "object.a object.a.b"),
        ("{{ (object.a | first).b }}{{ object.c[0].d }}", "object.a object.a.*.b object.c object.c.* object.c.*.d"),
        ("{% if type == 'x' or 'y' != type or type in ['z'] %}{% endif %}", "type=x type=y type=z"),
        ("{{ changed_by.manger }}{{ changes[0].path }}", "changed_by.manger changes.* changes.*.path"),
        ("{% macro m(object) %}{{ object.a }}{% endmacro %}", ""),
    ] {
        let uses: Vec<_> = Template::compile(text).unwrap().uses().iter().map(FieldUse::told).collect();
        assert_eq!(uses.join(" "), expected, "{text}");
    }
}
