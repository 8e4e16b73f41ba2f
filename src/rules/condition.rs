//! CEL expression on one object, without a change.

use super::{Before, RuleError, RuleLimits, subject::Subject, when::When};
use crate::{journal::ChangeKind, object::Object};

/// Variables of the expression.
const VARIABLES: [&str; 2] = ["object", "cluster"];

/// A compiled expression over `object` and `cluster`. It decodes only the fields that it reads.
#[derive(Debug)]
pub struct Condition(When);

impl Condition {
    /// Compiles an expression; `cluster` is the value of its variable `cluster`.
    pub fn compile(text: &str, cluster: &str) -> Result<Self, RuleError> {
        When::compile(text, cluster, &VARIABLES, RuleLimits::CONFIGURATION).map(Self)
    }

    /// Evaluates the expression. An error may contain parts of the object.
    pub fn is_true(&self, object: &Object) -> Result<bool, String> {
        let subject = Subject::new(object);
        self.0.is_true(ChangeKind::Added, Before::Nothing, &subject, &subject).map_err(|failure| failure.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"db-credentials","namespace":"n"},"data":{"a":"1"}}"#;
        Object::from_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn condition_sees_object_and_cluster() {
        let is_true = |text: &str| Condition::compile(text, "prod").unwrap().is_true(&object());
        assert_eq!(is_true("object.metadata.name.endsWith('-credentials')"), Ok(true));
        assert_eq!(is_true("cluster == 'test' || object.data.a == '2'"), Ok(false));
        assert!(is_true("object.data.b == '2'").is_err());
    }

    #[test]
    fn condition_rejects_variables_of_changes() {
        let refused = |text: &str| Condition::compile(text, "prod").unwrap_err().to_string();
        for variable in ["old", "type", "changes"] {
            let expected = format!("line 1, column 1: unknown variable `{variable}`, expected one of object, cluster");
            assert_eq!(refused(&format!("{variable} == object")), expected);
        }
        assert_eq!(
            refused("true &&\n  objct.kind == 'Pod'"),
            "line 2, column 3: unknown variable `objct`, expected one of object, cluster; did you mean `object`?"
        );
    }
}
