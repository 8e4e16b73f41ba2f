//! Fields that `when`, `where`, `template` and `once_key` use. The fields of most variables are known without a server; those of `object` and
//! `old` need its schemas.

use strum::VariantNames as _;

use super::{DataFormat, EventType, HandlerConfig, report::Section};
use crate::{
    change::Cause,
    cloud_event::template::Template,
    object::{ChangedBy, FieldUse, PathStep},
    rules::{Rules, RulesOptions},
    suggestion::suggestion,
};

/// Fields of a change in the variable `changes` of a template.
const OF_CHANGE: [&str; 3] = ["path", "old", "new"];
/// Values of `changed_by.operation`. It is empty if it is not known.
const OPERATIONS: [&str; 3] = ["Apply", "Update", ""];

impl HandlerConfig {
    /// Returns the fields that the handler's options use, each with the name of the option. Skips an option with an error.
    pub(crate) fn field_uses(&self) -> Vec<(&'static str, FieldUse)> {
        let when = self.options.when.clone().map(|when| RulesOptions { when: Some(when), ..RulesOptions::default() });
        let rules = when.and_then(|when| Rules::compile(when).ok());
        let template = self.template.as_ref().filter(|_| self.options.format == DataFormat::Template);
        let template = template.and_then(|text| Template::compile(text).ok());
        let key = self.options.once_key.as_ref().and_then(|text| Template::compile(text).ok());
        let of_rules = rules.iter().flat_map(Rules::uses).map(|used| ("when", used.clone()));
        let templates = [("template", template), ("once_key", key)];
        let of_templates = templates.iter().flat_map(|(option, template)| {
            template.iter().flat_map(Template::uses).map(|used| (*option, used.clone()))
        });
        of_rules.chain(of_templates).collect()
    }

    /// Reports fields that no event has, and values that a field never has, except for the fields of objects.
    pub(super) fn check_fields(&self, at: &mut Section<'_>) {
        for (option, used) in self.field_uses() {
            if let Some(problem) = problem(option, &used) {
                at.warn(&[option], problem);
            }
        }
    }
}

/// Returns what is wrong with the use of a variable other than `object` and `old`.
fn problem(option: &str, used: &FieldUse) -> Option<String> {
    use EventType::{Added, Deleted, Removed, Synced, Updated};
    let steps: Vec<&str> = used.path.iter().map(name).collect();
    match (steps.as_slice(), used.compared.as_deref()) {
        (["type"], Some(text)) => {
            let known = [Added, Updated, Deleted, Removed, Synced].map(|event| event.kind().as_str());
            // `synced` has no object, and rules do not apply to it.
            let known = known.into_iter().filter(|event| option != "when" || *event != Synced.kind().as_str());
            unknown_value("type", text, &known.collect::<Vec<_>>())
        }
        (["cause"], Some(text)) => unknown_value("cause", text, Cause::VARIANTS),
        (["changed_by", "operation"], Some(text)) => unknown_value("changed_by.operation", text, &OPERATIONS),
        (["changed_by", field, ..], _) => {
            unknown_field("changed_by", field, &ChangedBy::default().parts().map(|(part, _)| part))
        }
        (["changes", "[*]", field, ..], _) => unknown_field("a change", field, &OF_CHANGE),
        _ => None,
    }
}

fn name(step: &PathStep) -> &str {
    match step {
        PathStep::Member(name) => name,
        PathStep::Each => "[*]",
    }
}

fn unknown_value(variable: &str, text: &str, known: &[&str]) -> Option<String> {
    let hint = || suggestion(text, known.iter().copied());
    (!known.contains(&text)).then(|| format!("`{variable}` is never {text:?}; {}", hint()))
}

fn unknown_field(variable: &str, field: &str, known: &[&str]) -> Option<String> {
    let hint = || suggestion(field, known.iter().copied());
    (!known.contains(&field)).then(|| format!("{variable} has no field `{field}`; {}", hint()))
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigPlace, layers::Layers};

    fn warnings(options: &str) -> Vec<String> {
        let mut layers = Layers::default();
        let text = format!("[resources.a]\nmatch = [\"pods\"]\n[handlers.out]\ntype = \"stdout\"\n{options}\n");
        layers.add_text("a", &text);
        let loaded = crate::config::resolve(layers, ConfigPlace::Here).unwrap();
        loaded.warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn impossible_values_and_unknown_fields_are_warnings() {
        let template = |text: &str| format!("format = \"template\"\ntemplate = '{text}'");
        let when = |text: &str| format!("when = '{text}'");
        for (options, expected) in [
            (
                when("type == \"MODIFIED\""),
                "`type` is never \"MODIFIED\"; expected one of `added`, `updated`, `deleted`",
            ),
            (when("type in [\"added\", \"delete\"]"), "`type` is never \"delete\"; did you mean `deleted`?"),
            (
                when("changed_by != null && changed_by.manger == \"x\""),
                "changed_by has no field `manger`; did you mean `manager`?",
            ),
            (
                when("changed_by.operation == \"apply\""),
                "`changed_by.operation` is never \"apply\"; did you mean `Apply`?",
            ),
            (template("{{ changed_by.manger if changed_by else 1 }}"), "changed_by has no field `manger`"),
            (template("{% if type == \"ADDED\" %}{% endif %}"), "`type` is never \"ADDED\"; did you mean `added`?"),
            (
                template("{% for c in changes %}{{ c.pth }}{% endfor %}"),
                "a change has no field `pth`; did you mean `path`?",
            ),
            (template("{{ \"x\" if cause == \"reload\" and cause != \"restart\" }}"), "`cause` is never \"restart\""),
        ] {
            let warnings = warnings(&options);
            let found = warnings.iter().filter(|warning| warning.contains(expected)).count();
            assert_eq!(found, 1, "{options}: {warnings:?}");
        }
        for fine in [
            when("type == \"updated\" && object.kind == \"Pod\" && changed_by.manager != \"\""),
            template("{% for c in changes %}{{ c.path }}{{ c.old.x }}{% endfor %}{{ cause == \"initial\" }}"),
        ] {
            assert_eq!(warnings(&fine), [""; 0], "{fine}");
        }
    }
}
