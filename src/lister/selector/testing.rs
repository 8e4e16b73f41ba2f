//! Writer of label selectors, so that tests can parse its output again.

use std::fmt;

use super::{LabelSelector, Operator, Requirement};

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, operator }) in self.requirements.iter().enumerate() {
            f.write_str(if index > 0 { "," } else { "" })?;
            match operator {
                Operator::In(values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
                Operator::NotIn(values) if values.len() == 1 => write!(f, "{key}!={}", values[0]),
                Operator::In(values) => write!(f, "{key} in ({})", values.join(",")),
                Operator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
                Operator::Exists => f.write_str(key),
                Operator::Absent => write!(f, "!{key}"),
                Operator::GreaterThan(bound) => write!(f, "{key}>{bound}"),
                Operator::LessThan(bound) => write!(f, "{key}<{bound}"),
            }?;
        }
        Ok(())
    }
}
