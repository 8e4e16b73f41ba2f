//! A CEL expression over one object, for who has no change to judge.

use super::{Before, RuleError, RuleLimits, value::Subject, when::When};
use crate::{journal::ChangeKind, object::Object};

/// What the expression may name.
const VARIABLES: [&str; 2] = ["object", "cluster"];

/// An expression over `object` and `cluster`, made ready. It decodes of an object only what it reads.
#[derive(Debug)]
pub struct Condition(When);

impl Condition {
    /// Makes an expression ready, in which `cluster` is this name.
    pub fn compile(text: &str, cluster: &str) -> Result<Self, RuleError> {
        When::compile(text, cluster, &VARIABLES, RuleLimits::CONFIGURATION).map(Self)
    }

    /// Evaluates it.
    /// An error may have parts of the object in it.
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
    fn a_condition_is_evaluated_over_the_object_and_the_cluster() {
        let is_true = |text: &str| Condition::compile(text, "prod").unwrap().is_true(&object());
        assert_eq!(is_true("object.metadata.name.endsWith('-credentials')"), Ok(true));
        assert_eq!(is_true("cluster == 'test' || object.data.a == '2'"), Ok(false));
        assert!(is_true("object.data.b == '2'").is_err());
    }

    #[test]
    fn a_condition_knows_of_no_change() {
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
