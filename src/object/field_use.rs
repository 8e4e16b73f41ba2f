//! Uses of fields by an expression or a template.

use super::PathStep;

/// Use of a field by an expression or a template.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FieldUse {
    /// Path of the field. Its first step is the name of a variable, such as `object`.
    pub(crate) path: Vec<PathStep>,
    /// Text that the field is compared with; `None` if it is used in another way.
    pub(crate) compared: Option<Box<str>>,
}

#[cfg(test)]
impl FieldUse {
    /// Returns the use as text: `object.spec.*.name=web`.
    pub(crate) fn told(&self) -> String {
        let step = |step: &PathStep| match step {
            PathStep::Member(name) => name.to_string(),
            PathStep::Each => "*".to_owned(),
        };
        let path = self.path.iter().map(step).collect::<Vec<_>>().join(".");
        self.compared.as_ref().map_or_else(|| path.clone(), |text| format!("{path}={text}"))
    }
}
