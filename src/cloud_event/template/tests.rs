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
    let object = object_of(&object, b"kubelet\xffUpdate\xff2026-11-21T06:40:03Z\xffstatus");
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
    assert_eq!(render(text, &event(unit("", "pods", "Pod"), synced(3))).unwrap(), "somebody null");
    let tried = Template::compile("{{ changed_by.manager }}").unwrap();
    assert_eq!(tried.try_out(ChangeKind::Added, true).unwrap(), "0");
    assert_eq!(tried.try_out(ChangeKind::Synced, true).unwrap_err().kind, TemplateErrorKind::Undefined);
}

fn object_of(object: &Object, who: &[u8]) -> Object {
    let made = crate::object::Object::assemble(object.identity(), &[&object.json()]);
    made.with_who(who)
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
